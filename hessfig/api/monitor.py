"""hessfig.Monitor: measures the curvature of a user's own training from inside any loop."""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn

from hessfig.api.arguments import Measure, Spec, device_of, one_of, whole
from hessfig.api.budget import Budget
from hessfig.api.interface import Problem, check_form, checked_request, of_ranks
from hessfig.api.network_copy import (
    NetworkCopy,
    check_type,
    keep_training_state,
    trainable_names,
    unwrapped,
)
from hessfig.api.owner import Owner
from hessfig.config.schema import SweepConfig
from hessfig.errors import UserError, did_you_mean, first_few
from hessfig.files import check_writable
from hessfig.integrations.loggers import Log, logger
from hessfig.measurements.catalogue import quantity, walks
from hessfig.measurements.quantity import At, Measured, Row, asked_of
from hessfig.measurements.torch_optimisers import check_optimiser, state_of_optimiser
from hessfig.models.fingerprint import fingerprint
from hessfig.models.identity import identity
from hessfig.models.own.opaque import warn_of_lengths
from hessfig.models.own.own_checks import check_not_sharded, is_sharded
from hessfig.models.own.weight_names import TRAINABLE
from hessfig.models.own.wrappers import opener_of
from hessfig.record import digest
from hessfig.sweep.monitored import MonitoredTraining, OtherTraining

Values = dict[str, float]
_MOST_STEPS = 10**15


P = ParamSpec("P")


def _checked_keywords(init: Callable[P, None]) -> Callable[P, None]:
    """Make Monitor(...) suggest the keyword that was probably meant, and refuse settings next to a Measure."""
    known = signature(init).parameters
    of_measure = {each.name for each in fields(Measure)}

    @wraps(init)
    def checked(*args: P.args, **given: P.kwargs) -> None:
        for name in given:
            if name not in known:
                hint = did_you_mean(name, known)
                raise TypeError(
                    f"Monitor() got an unexpected keyword argument {name!r}"
                    + (hint and f": {hint}")
                )
        measure = given.get("measure")
        own = [name for name in given if name in of_measure]
        if measure is not None and (own or not isinstance(measure, Measure)):
            raise UserError(
                "Monitor: measure is a hessfig.Measure, which contains these settings",
                got=first_few(own) if own else type(measure).__name__,
                allowed="measure=hessfig.Measure(...), or its fields as keywords",
                remedy="measure=hessfig.Measure(blocks=['all'], quantities=['largest_eigenvalue'], parts='H')",
            )
        init(*args, **given)

    return checked


class Monitor:
    """Measure the curvature of a network while a loop of your own trains it: call monitor(step) at every step.

    A copy of the network is measured, in evaluation mode: weights, gradients, modes and
    random generators of the training stay as they are, to the bit. The largest and
    smallest eigenvalues start from the eigenvectors of the last measurement. If a
    training has several processes, the one of rank 0 measures; a network that is
    sharded over them is measured in place, on all ranks, which all call monitor(step)
    (docs/cluster.md).

    A restart after a crash, with the same arguments, continues the table: steps after
    the checkpoint are measured again. The folder is the monitor's own until `close`,
    its garbage collection or the end of the process.

    Parameters
    ----------
    network, loss, batch
        What is measured, as in hessfig.Problem; the batch holds its `inputs` and
        `targets`.
    compute_loss, batch_weights, compute_outputs
        As in hessfig.Problem: Monitor(network, batches, compute_loss=f, folder=...),
        for any function f(network, batch). For transformers' Trainer:
        compute_loss=trainer.compute_loss.
    folder : path
        Where table.csv and manifest.json are written, in the format of `hessfig run`,
        for all its readers. A relative folder is relative to the directory in which the
        monitor is made.
    measure : hessfig.Measure, optional
        Blocks, parts, quantities, estimator, dtype and the other fields at once, in
        place of the keywords below.
    blocks, parts, quantities, estimator, num_probes, spectrum, directions, seed, products
        As in hessfig.measure. By default loss, gradient norm and largest eigenvalue of
        H of all weights: a few dozen products with H for each measurement. Norms of
        single blocks, quantities=["frobenius"], blocks="each", cost `num_probes`
        products for each weight; whole densities and all eigenvalues cost much more,
        for a larger `every`.
    dtype, device : str, optional
        By default the device of the network, and float64 on the CPU, float32 elsewhere.
    every : int
        Steps between two measurements. Steps grow through the whole training, over its
        epochs: a step below the last one is refused.
    optimiser : torch.optim.Optimizer, optional
        For preconditioned_eigenvalue (of the moments as they are stored),
        stability_threshold and critical_step (without it: the step of plain gradient
        descent).
    weights, outputs
        As in hessfig.Problem, but for the default "trainable": the parameters that
        require a gradient. None: every parameter, frozen ones too.
    sharded_batches : bool
        As in hessfig.Problem, for a network that is sharded over ranks.
    max_fraction : float, optional
        Share of the training's time that measurements may take, without set-up and the
        first one; a step is skipped if its measurement would exceed the share. None: no
        limit, for short trainings whose every step matters.
    log : str or callable, optional
        "tensorboard", "wandb", "mlflow", "trackio", or a function log(values, step) for
        every measurement.
    on_error : str
        "warn": a failed measurement is reported and noted in the manifest, a failed
        logger is reported, and the training continues. "raise": either of them ends the
        training.
    overwrite : bool
        Whether the results of another training in the folder are replaced.

    Raises
    ------
    UserError
        For what cannot be measured, for a folder that holds something else, and for
        that of another monitor.
    TypeError
        For a keyword that does not exist.

    Examples
    --------
    >>> import tempfile, torch, hessfig
    >>> network, batch = torch.nn.Linear(3, 2), (torch.eye(3), torch.tensor([0, 1, 1]))
    >>> wanted = hessfig.Measure(blocks=["all"], parts="H", quantities=["largest_eigenvalue"])
    >>> options = {"folder": tempfile.mkdtemp(), "every": 10, "max_fraction": None}
    >>> monitor = hessfig.Monitor(network, "cross_entropy", batch, measure=wanted, **options)
    >>> [list(monitor(step)) for step in range(12) if step % 10 == 0]
    [['largest_eigenvalue/all/H'], ['largest_eigenvalue/all/H']]
    >>> monitor.skipped
    []
    >>> monitor.close()
    """

    @_checked_keywords
    def __init__(
        self,
        network: nn.Module,
        loss: Any = None,
        batch: Any = None,
        *,
        folder: str | Path,
        compute_loss: Callable[[Any, Any], Tensor] | None = None,
        batch_weights: Sequence[float] | Callable[[Any], Any] | None = None,
        compute_outputs: Callable[[Any, Any], Tensor] | None = None,
        measure: Measure | None = None,
        blocks: str | Sequence[Any] = ("all",),
        parts: str | Sequence[str] | None = "H",
        quantities: str | Sequence[str] = (
            "loss",
            "gradient_norm",
            "largest_eigenvalue",
        ),
        estimator: str = "auto",
        num_probes: int = 20,
        spectrum: Mapping[str, Any] | None = None,
        directions: Mapping[str, Any] | None = None,
        seed: int = 0,
        dtype: str | None = None,
        device: str | None = None,
        products: str = "auto",
        every: int = 20,
        optimiser: torch.optim.Optimizer | None = None,
        weights: Mapping[str, Spec] | str | None = TRAINABLE,
        outputs: str | int | None = None,
        sharded_batches: bool = False,
        max_fraction: float | None = 0.05,
        log: str | Log | None = None,
        on_error: str = "warn",
        overwrite: bool = False,
    ) -> None:
        wanted = measure or Measure(
            blocks,
            parts,
            quantities,
            estimator,
            num_probes,
            spectrum,
            seed,
            dtype,
            device,
            directions,
            products,
        )
        # Independent of later changes of directory.
        self.folder = Path(folder).absolute()
        self.every = whole("every", every, most=_MOST_STEPS, example=20)
        self.budget = Budget(max_fraction)
        network = unwrapped(network)
        if compute_loss is not None and batch is None:
            loss, batch = None, loss
        check_form(
            compute_loss,
            loss=loss,
            outputs=outputs,
            batch_weights=batch_weights,
            compute_outputs=compute_outputs,
        )
        opener = opener_of(network)
        if opener is not None and compute_loss is None:
            network, batch, loss = opener.followed(network, batch, loss)
        self._network = network
        self._optimiser = optimiser
        self._is_first = _rank() == 0
        self._raises = one_of("on_error", on_error, ("warn", "raise")) == "raise"
        self._step, self._reported, self._is_open = -1, set[str](), True
        self._owner: Owner | None = None
        self._is_sharded = is_sharded(self._network)
        if not (self._is_first or self._is_sharded):
            return
        check_type(self._network)
        with keep_training_state(self._network):
            place = device_of(wanted.device or next(self._network.parameters()).device)
            config = wanted.config(
                "float64" if place.type == "cpu" or self._is_sharded else "float32"
            )
            config.sweep = SweepConfig(
                self.folder.name or "monitor", axis="step", windows=[[None, None]]
            )
            config.device = str(place)
            check_optimiser(optimiser, config.quantities, self._network)
            self._trained = (
                trainable_names(self._network) if weights == TRAINABLE else None
            )
            if self._is_sharded:
                from hessfig.api.sharded_training import ShardedTraining, from_first

                problem = Problem(
                    self._network,
                    batch,
                    loss=loss,
                    weights=weights,
                    outputs=outputs,
                    compute_loss=compute_loss,
                    batch_weights=batch_weights,
                    compute_outputs=compute_outputs,
                    sharded_batches=sharded_batches,
                )
                self._config = of_ranks(config, wanted.parts, problem)
                self._sharded = ShardedTraining(problem, self._config)
                from_first(
                    lambda: self._open(
                        self._sharded.content, 0, log, overwrite=overwrite
                    )
                )
                return
            check_not_sharded(sharded_batches)
            if compute_loss is not None:
                warn_of_lengths(batch, batch_weights)
            if compute_loss is not None:
                functions = (compute_loss, compute_outputs, batch_weights)
            else:
                functions = None
            asked = (batch, loss, weights, outputs, functions)
            self._copy = NetworkCopy(
                self._network, *asked, dtype=config.dtype, place=place
            )
            objective, self._warm = self._copy.problem, dict[str, Tensor]()
            self._config, self._blocks = checked_request(
                config, objective, wanted.parts, is_followed=True
            )
            for name in config.quantities:
                _ = quantity(name).function  # imports do not count as time of measuring
            self._open(
                self._copy.data_content,
                objective.layout.num_layers,
                log,
                overwrite=overwrite,
            )

    def _open(
        self, content: str, num_layers: int, log: str | Log | None, *, overwrite: bool
    ) -> None:
        """Take the folder, and continue what an earlier process measured in it."""
        check_writable(self.folder)
        self._owner = Owner(self.folder)
        try:
            self._log = logger(log, self.folder)
            self._course = MonitoredTraining(
                self.folder, self._config, content, num_layers, overwrite=overwrite
            )
        except BaseException:
            self.close()
            raise
        self.budget.resume(self._course.seen["budget"])

    def close(self) -> None:
        """Release the folder for another monitor; this monitor measures no more."""
        self._is_open = False
        if self._owner is not None:
            self._owner.release()
            self._owner = None

    def __call__(self, step: int) -> Values:
        """Measure if this step is due, and return what was measured by name.

        Parameters
        ----------
        step : int
            Of the training. Steps that were measured, or are called again (accumulated
            gradients), are not measured twice.

        Returns
        -------
        dict
            Numbers by quantity, block and part: {"largest_eigenvalue/all/H": 12.3};
            empty at other steps.

        Raises
        ------
        UserError
            For a folder that holds another training. Where on_error is "raise", any
            error of a measurement.
        """
        self.budget.arrive()
        try:
            at = whole("step", step, least=0, most=_MOST_STEPS, example=0)
            return self._at(at) if self._is_first or self._is_sharded else {}
        finally:
            self.budget.leave()

    @property
    def skipped(self) -> list[int]:
        """The steps that were due and not measured, to stay within `max_fraction`; of rank 0, which measures."""
        return list(self._course.seen["skipped"]) if self._is_first else []

    def _at(self, step: int) -> Values:
        if not self._is_open:
            raise UserError(
                "monitor(step): it was closed",
                got=step,
                allowed="an open monitor",
                remedy="make another Monitor",
            )
        last, self._step = self._step, max(step, self._step)
        if step < last:
            return self._refuse(step, last)
        if step % self.every or step == last:
            return {}
        if not self._allows():
            if self._is_first:
                self._thin(step)
                self._write_down()
            return {}
        try:
            with (
                self.budget.measuring(),
                keep_training_state(self._network),
                self._once(),
            ):
                if self._is_sharded:
                    values = self._measured_by_all(step)
                else:
                    values = self._measured(step)
                if self._is_first:
                    self._tell(values, step)
            return values
        except OtherTraining:
            raise
        except Exception as error:
            if self._raises:
                raise
            self._fail(step, error)
            return {}

    def _allows(self) -> bool:
        """Whether the budget of rank 0 allows a measurement."""
        if not self._is_sharded:
            return self.budget.allows()
        from hessfig.api.sharded_training import from_first

        return from_first(self.budget.allows)

    def _measured_by_all(self, step: int) -> Values:
        """Measure a sharded network on all ranks; rank 0 knows what an earlier process measured, and writes."""
        from hessfig.api.sharded_training import from_first

        self._check_trained()
        point = self._sharded.point()
        names = self._config.quantities

        def missing() -> list[str]:
            self._course.begin(step, dict.fromkeys(names, point), {})
            return [
                name
                for name in names
                if self._course.find(self._course.key(step, name, point)) is None
            ]

        started = time.perf_counter()
        measured = self._sharded.measured(from_first(missing))
        seconds = (time.perf_counter() - started) / max(1, len(measured))

        def written() -> Values:
            rows = list[Row]()
            for name in names:
                key = self._course.key(step, name, point)
                known = self._course.find(key)
                rows += known or self._course.keep(
                    key, step, name, measured[name], seconds=seconds
                )
            self._course.write(self.budget.record(), every=self.every)
            return {_label(row): float(row["value"]) for row in rows}

        return from_first(written)

    def _refuse(self, step: int, last: int) -> Values:
        """Refuse a step below the last one, for which the table would have two numbers."""
        error = UserError(
            "monitor(step): the steps went back",
            got=f"step {step} after step {last}",
            allowed="steps that grow from the first epoch to the last",
            remedy="monitor(epoch * len(loader) + number); a training that went back to a checkpoint takes another "
            "Monitor, after close() of this one: it continues the folder",
        )
        if self._raises:
            raise error
        self._fail(step, error, kind="steps", is_due=step % self.every == 0)
        return {}

    def _measured(self, step: int) -> Values:
        self._check_trained()
        order = max(quantity(name).order for name in self._config.quantities)
        function, parts, why = self._copy.follow(self._course.hash, order)
        points = self._points(function)
        if why:
            self._say(
                f"a restart will measure again what was measured: {why}",
                kind="fingerprint",
            )
        self._course.begin(step, points, parts)
        self._course.witness = self._copy.witness
        rows = [
            row
            for name, point in points.items()
            for row in self._rows(name, step, point)
        ]
        self._course.write(self.budget.record(), every=self.every)
        return {_label(row): float(row["value"]) for row in rows}

    def _check_trained(self) -> None:
        """Raise UserError where other parameters require a gradient than did when the monitor was made."""
        now = trainable_names(self._network)
        was = self._trained
        if was is not None and now != was:
            other = sorted(now ^ was)
            raise UserError(
                "Monitor: weights='trainable', and other parameters require a gradient than at the start",
                got=first_few(
                    [f"{name}: requires_grad={name in now}" for name in other]
                ),
                allowed="the same trained parameters at every step that is measured",
                remedy="create a new Monitor with its own folder after the change; or weights=None from the "
                "start, which measures every parameter, frozen or not",
            )

    def _points(self, function: str) -> dict[str, str]:
        """Return the hash of the function by quantity: at its weights, and away from them where a quantity walks."""
        point = self._point(function)
        names = self._config.quantities
        away = [name for name in names if walks(name, self._config)]
        if not away:
            return dict.fromkeys(names, point)
        far = fingerprint(
            self._copy.problem, self._course.hash, twice=False, is_far=True
        )
        return {
            name: digest([point, far.digest]) if name in away else point
            for name in names
        }

    def _point(self, function: str) -> str:
        """Return a hash of the function at its weights and, where a quantity needs it, of the optimiser's state."""
        if not any(quantity(name).needs_optimiser for name in self._config.quantities):
            return function
        state = state_of_optimiser(self._optimiser, self._network)
        return identity(
            function, state.training, state.updates, sorted(state.moments.items())
        )

    def _tell(self, values: Values, step: int) -> None:
        """Pass the numbers to the logger; its failure is a warning unless on_error is "raise"."""
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
        measured = self._quantity(name, step)
        return self._course.keep(
            key, step, name, measured, seconds=time.perf_counter() - started
        )

    def _quantity(self, name: str, step: int) -> Measured:
        at = At(self._config, seed=self._config.first_seed, step=step, warm=self._warm)
        if quantity(name).needs_optimiser:
            state = state_of_optimiser(self._optimiser, self._network)
            settings = replace(self._config, training=state.training)
            at = replace(at, config=settings, step=state.updates, moments=state.moments)
        measured = quantity(name).measured(
            self._copy.problem, asked_of(quantity(name), self._blocks, at)
        )
        if quantity(name).needs_optimiser and not measured.rows:
            self._say(
                f"{name} is not defined before the optimiser's first update: step {step} has none",
                kind=name,
            )
        self._warm.update(measured.warm)
        return measured

    def _thin(self, step: int) -> None:
        self._course.seen["skipped"].append(step)
        share = f"{self.budget.max_fraction:.0%} of the training's time"
        every = f"measuring every {self.every} steps would take more than {share}"
        took, gap = (f"{seconds:.2g} s" for seconds in self.budget.pace)
        expected = f"one takes {took}, so expect one every {gap} of training"
        self._say(
            f"{every}: some are skipped; {expected} (max_fraction=None measures all)",
            kind="thinned",
        )

    def _fail(
        self, step: int, error: Exception, *, kind: str = "", is_due: bool = True
    ) -> None:
        """Warn that a step was not measured, once per kind, and note it in the manifest if it was due."""
        if not self._is_first:
            return
        words = f"{type(error).__name__}: {error}"
        self._say(
            f"step {step} was not measured: {words}", kind=kind or type(error).__name__
        )
        if is_due:
            # No directory of this machine.
            noted = words.replace(str(self.folder), self.folder.name)
            self._course.seen["failures"][str(step)] = noted[:1000]
            self._write_down()

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
            self._say(
                f"the manifest was not written: {error}", kind=type(error).__name__
            )

    @contextmanager
    def _once(self) -> Iterator[None]:
        """Show each warning of the engines only once, not with every measurement."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        for warning in caught:
            place = f"{warning.category.__name__} {warning.filename}:{warning.lineno}"
            if place not in self._reported:
                self._reported.add(place)
                warnings.warn_explicit(
                    warning.message, warning.category, warning.filename, warning.lineno
                )

    def _say(self, words: str, *, kind: str) -> None:
        """Warn, once per kind."""
        if kind not in self._reported:
            self._reported.add(kind)
            warnings.warn(f"hessfig.Monitor: {words}", RuntimeWarning, stacklevel=5)


def _rank() -> int:
    """Return which process of a training this is: 0 measures."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK") or 0)


def _label(row: Row) -> str:
    """Return the name of a number for a logger: quantity, block, part, index."""
    sides = [
        f"{row[side]}@{row[at]}" if row[at] else row[side]
        for side, at in (("row", "row_layer"), ("col", "layer"))
    ]
    block = ",".join(dict.fromkeys(side for side in sides if side))
    words = (row["quantity"], block, row["part"], row["index"])
    return "/".join(str(word) for word in words if word not in ("", None))
