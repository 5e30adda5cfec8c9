"""hessfig.Monitor: the curvature of a training of the user's own, measured from inside any loop."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from hessfig.arguments import Measure, Spec, device_of, one_of
from hessfig.config.schema import SweepConfig
from hessfig.errors import UserError, first_few
from hessfig.files import check_writable
from hessfig.integrations.loggers import Log, logger
from hessfig.interface import blocks_asked, with_parts
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import At, Measured, Row, asked_of
from hessfig.measurements.torch_optimisers import OF_AN_OPTIMISER, check_optimiser, state_of
from hessfig.models.own_checks import check_network
from hessfig.models.own_network import TRAINABLE
from hessfig.network_copy import NetworkCopy
from hessfig.owner import Owner
from hessfig.sweep.monitored import MonitoredTraining, OtherTraining

Values = dict[str, float]


class Budget:
    """Seconds of a training and of measuring it, and whether another measurement would exceed its share.

    The first measurement is always made: what one takes is not known before it. A note in the manifest between two
    measurements counts as spent; notes take a tenth of the share, or else are made each time the list has doubled.
    """

    def __init__(self, max_fraction: float | None) -> None:
        self.max_fraction, self.spent, self.training = max_fraction, 0.0, 0.0
        self._last, self._left = 0.0, float("nan")
        self._note, self._noted, self._count = 0.0, 0.0, 0

    def arrive(self) -> None:
        """Count the time since `leave` as the training's."""
        if self._left == self._left:
            self.training += time.perf_counter() - self._left

    def leave(self) -> None:
        """Let the training go on."""
        self._left = time.perf_counter()

    def allows(self) -> bool:
        """Whether one more measurement, as long as the last, is within max_fraction of the training so far."""
        within = self.max_fraction is None or self.spent + self._last <= self.max_fraction * self.training
        return not self._last or within

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time of the block as spent."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._last = time.perf_counter() - start
            self.spent += self._last

    def allows_note(self, count: int) -> bool:
        """Whether `count` skipped or failed steps are written down: twice as many as last time, or time for a note."""
        share, since = self.max_fraction, self.training - self._noted
        return count >= 2 * self._count or share is None or self._note <= 0.1 * share * since

    @contextmanager
    def noting(self, count: int) -> Iterator[None]:
        """Count the time of the block as that of a note of `count` steps."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._note, self._noted, self._count = time.perf_counter() - start, self.training, count
            self.spent += self._note

    def resume(self, record: Mapping[str, float]) -> None:
        """Go on from the record of an earlier process."""
        self.spent, self.training = record.get("spent_seconds", 0.0), record.get("training_seconds", 0.0)

    def record(self) -> dict[str, Any]:
        """Return what the manifest holds."""
        spent, training = round(self.spent, 3), round(self.training, 3)
        return {"max_fraction": self.max_fraction, "spent_seconds": spent, "training_seconds": training}


class Monitor:
    """Measure the curvature of a network while a loop of your own trains it: call monitor(step) at every step.

    network, loss, batch   what is measured, as in hessfig.Problem; the batch holds its `inputs` and `targets`
    folder      where table.csv and manifest.json are written, in the format of `hessfig run`, for all its readers
    every       steps between two measurements
    quantities, blocks, parts, estimator, num_probes, spectrum, seed   as in hessfig.measure
    weights     "trainable" (those that require a gradient), or names as in hessfig.Problem
    optimiser   the torch.optim optimiser, for preconditioned_eigenvalue, stability_threshold and critical_step (without
                it: the step of plain gradient descent)
    max_fraction   the share of the training's time that measurements may take, without set-up and the first one:
                a step is skipped if its measurement would exceed the share. None: no limit
    dtype, device   of the measurement. None: float64 on the CPU, else float32; the device of the network
    log         "tensorboard", "wandb", "mlflow", "trackio", or a function log(values, step) for every measurement
    on_error    "warn": a failed measurement is reported and noted in the manifest, a failed logger is reported, and
                the training continues; "raise": either of them ends the training
    overwrite   replace the results of another training in this folder

    A copy of the network is measured, in evaluation mode: weights, gradients, modes and random generators of the
    training stay as they are, to the bit. The largest and smallest eigenvalues start from the eigenvectors of the last
    measurement. If a training has several processes, the one of rank 0 measures.

    A restart after a crash, with the same arguments, continues the table: steps after the checkpoint are measured
    again. The folder is the monitor's own until `close`, its garbage collection or the end of the process. Raises
    UserError for what cannot be measured, for a folder that holds something else, and for that of another monitor.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Any,
        batch: Any,
        *,
        folder: str | Path,
        every: int = 20,
        quantities: str | Sequence[str] = ("loss", "gradient_norm", "largest_eigenvalue"),
        blocks: str | Sequence[Any] = ("all",),
        parts: str | Sequence[str] | None = "H",
        estimator: str = "auto",
        num_probes: int = 20,
        spectrum: Mapping[str, Any] | None = None,
        seed: int = 0,
        weights: Mapping[str, Spec] | str | None = TRAINABLE,
        outputs: str | int | None = None,
        optimiser: torch.optim.Optimizer | None = None,
        max_fraction: float | None = 0.05,
        dtype: str | None = None,
        device: str | None = None,
        log: str | Log | None = None,
        on_error: str = "warn",
        overwrite: bool = False,
    ) -> None:
        self.folder, self.every, self.budget = Path(folder), _every(every), Budget(_fraction(max_fraction))
        self._network, self._optimiser, self._is_first = _unwrapped(network), optimiser, _rank() == 0
        self._raises = one_of("on_error", on_error, ("warn", "raise")) == "raise"
        self._step, self._told = -1, set[str]()
        self._owner: Owner | None = None
        if not self._is_first:
            return
        with _undisturbed():
            check_spread(self._network)
            place = device_of(device or next(self._network.parameters()).device)
            real = dtype or ("float64" if place.type == "cpu" else "float32")
            config = Measure(blocks, parts, quantities, estimator, num_probes, spectrum, seed, real).config()
            config.sweep = SweepConfig(self.folder.name or "monitor", axis="step", windows=[[None, None]])
            config.device = str(place)
            check_optimiser(optimiser, config.quantities)
            self._copy = NetworkCopy(self._network, batch, loss, weights, outputs, dtype=real, place=place)
            self._config, self._warm = with_parts(config, self._copy.problem, parts), dict[str, Tensor]()
            layout = self._copy.problem.layout
            self._blocks = blocks_asked(self._config, layout, unchecked=OF_AN_OPTIMISER)
            for name in config.quantities:
                _ = quantity(name).function  # imports are set-up: they are not the time of measuring
            check_writable(self.folder)
            self._owner = Owner(self.folder)
            try:
                self._log = logger(log, self.folder)
                content, depth = self._copy.data_content, layout.num_layers
                self._course = MonitoredTraining(self.folder, self._config, content, depth, overwrite=overwrite)
            except BaseException:
                self.close()
                raise
            self.budget.resume(self._course.seen["budget"])

    def close(self) -> None:
        """Let the folder go: another monitor may have it, and this one measures no more."""
        if self._owner is not None:
            self._owner.release()
            self._owner = None

    def __call__(self, step: int) -> Values:
        """Measure if this step is due, and return what was measured by name: {"largest_eigenvalue/all/H": 12.3}.

        Steps that were measured, or are called again (accumulated gradients), are not measured twice. Raises what a
        measurement raises where on_error is "raise", and UserError for a folder that holds another training.
        """
        self.budget.arrive()
        try:
            return self._at(_step(step)) if self._is_first else {}
        finally:
            self.budget.leave()

    @property
    def skipped(self) -> list[int]:
        """The steps that were due and not measured, to stay within `max_fraction`; of rank 0, which measures."""
        return list(self._course.seen["skipped"]) if self._is_first else []

    def _at(self, step: int) -> Values:
        if self._owner is None:
            raise UserError("monitor(step): the monitor was closed", got=step, remedy="make another Monitor")
        if step % self.every or step == self._step:
            return {}
        self._step = step
        if not self.budget.allows():
            self._thin(step)
            self._write_down()
            return {}
        try:
            with self.budget.measuring(), _undisturbed(), self._once():
                values = self._measured(step)
                self._tell(values, step)
            return values
        except OtherTraining:
            raise
        except Exception as error:
            if self._raises:
                raise
            self._fail(step, error)
            self._write_down()
            return {}

    def _measured(self, step: int) -> Values:
        order = max(quantity(name).order for name in self._config.quantities)
        point, parts, why = self._copy.follow(self._course.hash, order)
        if why:
            self._say(f"a restart will measure again what was measured: {why}", kind="fingerprint")
        self._course.begin(step, point, parts)
        rows = [row for name in self._config.quantities for row in self._rows(name, step, point)]
        self._course.write(self.budget.record(), every=self.every)
        return {_label(row): float(row["value"]) for row in rows}

    def _tell(self, values: Values, step: int) -> None:
        """Tell the logger; what is measured is kept where it fails."""
        try:
            self._log(values, step)
        except Exception as error:
            if self._raises:
                raise
            words = f"step {step} was measured, but not logged: {type(error).__name__}: {error}"
            self._say(words, kind=f"{type(error).__name__} of the logger")

    def _rows(self, name: str, step: int, point: str) -> list[Row]:
        """Return the rows of a quantity: those of an earlier process, if of the same function at the same point."""
        key = self._course.key(step, name, point)
        known = self._course.find(key)
        if known is not None:
            return known
        started = time.perf_counter()
        found = self._quantity(name, step)
        return self._course.keep(key, step, name, found, seconds=time.perf_counter() - started)

    def _quantity(self, name: str, step: int) -> Measured:
        at = At(self._config, seed=self._config.first_seed, step=step, warm=self._warm)
        if name in OF_AN_OPTIMISER:
            state = state_of(self._optimiser, self._network)
            settings = replace(self._config, training=state.training)
            at = replace(at, config=settings, step=state.updates, moments=state.moments)
        found = quantity(name).measured(self._copy.problem, asked_of(quantity(name), self._blocks, at))
        if name in OF_AN_OPTIMISER and not found.rows:
            self._say(f"{name} is not defined before the optimiser's first update: step {step} has none", kind=name)
        self._warm.update(found.warm)
        return found

    def _thin(self, step: int) -> None:
        self._course.seen["skipped"].append(step)
        share = f"{self.budget.max_fraction:.0%} of the training's time"
        every = f"measuring every {self.every} steps would take more than {share}"
        self._say(f"{every}: some are skipped (max_fraction=None measures all)", kind="thinned")

    def _fail(self, step: int, error: Exception) -> None:
        self._course.seen["failures"][str(step)] = f"{type(error).__name__}: {error}"[:1000]
        self._say(f"step {step} was not measured: {type(error).__name__}: {error}", kind=type(error).__name__)

    def _write_down(self) -> None:
        """Write into the manifest which steps were skipped or failed, as often as the budget allows."""
        count = len(self._course.seen["skipped"]) + len(self._course.seen["failures"])
        if not self.budget.allows_note(count):
            return
        try:
            with self.budget.noting(count):
                self._course.note(self.budget.record(), every=self.every)
        except UserError as error:
            if self._raises:
                raise
            self._say(f"the manifest was not written: {error}", kind=type(error).__name__)

    @contextmanager
    def _once(self) -> Iterator[None]:
        """Show a warning of the engines the first time only: it would come with every measurement."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for one in caught:
            place = f"{one.category.__name__} {one.filename}:{one.lineno}"
            if place not in self._told:
                self._told.add(place)
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)

    def _say(self, words: str, *, kind: str) -> None:
        """Warn, once of each kind."""
        if kind not in self._told:
            self._told.add(kind)
            warnings.warn(f"hessfig.Monitor: {words}", RuntimeWarning, stacklevel=5)


def _unwrapped(network: Any) -> Any:
    """Return the network inside of DataParallel, DistributedDataParallel and torch.compile."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while isinstance(network, parallel) or hasattr(network, "_orig_mod"):
        network = network.module if isinstance(network, parallel) else network._orig_mod
    return network


def _rank() -> int:
    """Return which process of a training this is: 0 measures."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK") or 0)


def check_spread(network: Any) -> None:
    """Raise UserError for a network of which this process holds a part only, or that is none."""
    if not isinstance(network, nn.Module):
        check_network(network)
    pieces = [name for name, one in network.named_parameters() if type(one.data).__name__ == "DTensor"]
    if pieces:
        raise UserError(
            "Monitor: the network is spread over several processes",
            got=first_few(pieces),
            allowed="a network that this process holds whole",
            remedy="measure a checkpoint of it with hessfig.measure",
        )


def _every(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise UserError("every: steps between two measurements", got=repr(given), allowed=">= 1", remedy="every=20")
    return given


def _step(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int | numpy.integer) or given < 0:
        raise UserError("monitor(step)", got=repr(given), allowed="a whole number >= 0", remedy="monitor(step)")
    return int(given)


def _fraction(given: Any) -> float | None:
    if given is None or (isinstance(given, int | float) and not isinstance(given, bool) and given > 0):
        return given
    raise UserError(
        "max_fraction: a share of the training's time", got=repr(given), allowed="> 0, or None", remedy="0.05"
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep the generators of torch, numpy and Python, and autocast and grad mode, as the training has them."""
    python, arrays = random.getstate(), numpy.random.get_state()  # noqa: NPY002 - the global one, which a training may use
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    if devices:
        torch.cuda.synchronize()  # what the training has under way is not the time of measuring
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for kind in ("cpu", "cuda")[: 1 + bool(devices)]:
                stack.enter_context(torch.autocast(kind, enabled=False))
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)  # noqa: NPY002


def _label(row: Row) -> str:
    """Return the name of a number for a logger: quantity, block, part, index."""
    sides = [
        f"{row[side]}@{row[at]}" if row[at] else row[side] for side, at in (("row", "row_layer"), ("col", "layer"))
    ]
    block = ",".join(dict.fromkeys(side for side in sides if side))
    words = (row["quantity"], block, row["part"], row["index"])
    return "/".join(str(word) for word in words if word not in ("", None))
