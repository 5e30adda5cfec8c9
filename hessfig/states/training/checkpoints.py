"""The folder of one training: states by step, the state to resume from, the log, and the step of divergence."""

import csv
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hessfig.files import write_bytes, write_text
from hessfig.record import CHECKSUM, checksum, read_checked
from hessfig.states.training.trajectory import Trajectory

_ABOUT, _VERSION = "hessfig", 2
Tensors = dict[str, Tensor]


class Damaged(Exception):
    """An invalid checkpoint: truncated, altered, or of another training or step."""


def write(path: Path, tensors: Mapping[str, Tensor], *, key: str, step: int) -> None:
    """Write named tensors atomically."""
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    about = {
        "key": key,
        "step": step,
        "version": _VERSION,
        "checksum": _checksum(plain, key, step),
    }
    write_bytes(path, save(plain, {_ABOUT: json.dumps(about, sort_keys=True)}))


def read(
    path: Path, *, key: str, step: int | None = None
) -> tuple[Tensors, int] | None:
    """Return the tensors and their step; None if there is no file.

    Raises Damaged, with the name of the file, if this training did not write it (at
    `step`, if given).
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as handle:
            about = json.loads((handle.metadata() or {})[_ABOUT])
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        written = int(about["step"])
        # Version 0.2.0 hashed the numbers only.
        vouched = (key, written) if "version" in about else ()
        sound = about["key"] == key and about["checksum"] == _checksum(
            tensors, *vouched
        )
    except (
        SafetensorError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ) as error:
        raise Damaged(
            f"{path}: truncated or no checkpoint of a training ({type(error).__name__})"
        ) from error
    if not sound or step not in (None, written):
        raise Damaged(f"{path}: its checksum, key or step is not that of its content")
    return tensors, written


def _checksum(tensors: Mapping[str, Tensor], *about: object) -> str:
    digest = hashlib.sha256(repr(about).encode() if about else b"")
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


COLUMNS = ("step", "loss", "learning_rate", "gradient_norm", "accuracy")
_WEIGHT, _LOG = "weight/", "log"


@dataclass
class TrainingState:
    """A training after `step` updates: weights and moments by name, and the log so far (steps x COLUMNS)."""

    step: int
    weights: Tensors
    moments: Tensors
    log: Tensor


class Folder:
    """The stored states of `trajectory`. Invalid files are reported on stderr and treated as missing."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory = trajectory
        self.path = trajectory.folder
        self.key = trajectory.key

    def weights_path(self, step: int) -> Path:
        """Path of the weights after `step` updates, under the network's own names."""
        return self.path / f"step_{step:06d}.safetensors"

    def optimiser_path(self, step: int) -> Path:
        """Path of the moments after `step` updates, and of the log so far."""
        return self.path / f"step_{step:06d}.optimiser.safetensors"

    def weights(self, step: int) -> Tensors | None:
        """Return the weights after `step` updates, if they are stored and valid."""
        return self._read(self.weights_path(step), step)[0]

    def missing(self, steps: Iterable[int]) -> list[int]:
        """Return the `steps` whose states are missing or invalid, in ascending order."""
        return [step for step in sorted(steps) if self.at(step) is None]

    def at(self, step: int) -> TrainingState | None:
        """Return the training after `step` updates, if this state is stored."""
        weights = self.weights(step)
        beside = self._read(self.optimiser_path(step), step)[0]
        if weights is None or beside is None or not _reaches(beside, step):
            return None
        log = beside.pop(_LOG)
        return TrainingState(step, weights, beside, log)

    def nearest(self, step: int) -> TrainingState | None:
        """Return the latest state at or before `step` from which the training can resume: a stored one, or `resume`."""
        on_the_way = self._resume()
        if on_the_way is not None and on_the_way.step > step:
            on_the_way = None
        least = on_the_way.step if on_the_way else -1
        for kept in reversed(self._steps()):
            if least < kept <= step and (state := self.at(kept)) is not None:
                return state
        return on_the_way

    def keep(self, now: TrainingState) -> None:
        """Store a state permanently. Moments are written first, so that training can resume from every stored state."""
        write(
            self.optimiser_path(now.step),
            {**now.moments, _LOG: now.log},
            key=self.key,
            step=now.step,
        )
        write(self.weights_path(now.step), now.weights, key=self.key, step=now.step)

    def keep_for_resuming(self, now: TrainingState) -> None:
        """Store the current state for resuming, unless another run of this training is further."""
        latest = self._resume()
        if latest is None or latest.step < now.step:
            weights = {f"{_WEIGHT}{name}": value for name, value in now.weights.items()}
            write(
                self._resume_path,
                {**weights, **now.moments, _LOG: now.log},
                key=self.key,
                step=now.step,
            )

    def forget_resuming(self, step: int) -> None:
        """Remove the state of `keep_for_resuming` if it is not beyond `step`, or if it is invalid."""
        latest = self._resume()
        if latest is None or latest.step <= step:
            self._resume_path.unlink(missing_ok=True)

    def describe(self) -> None:
        """Write training.json, the description of this training."""
        content = {
            "key": self.key,
            "label": self.trajectory.label,
            "settings": self.trajectory.science,
        }
        self._write_json("training.json", content)

    def log(self, now: TrainingState) -> None:
        """Write training.csv, unless the file already reaches further."""
        path = self.path / "training.csv"
        if _last_step(path) <= now.step:
            write_text(path, log_text(now.log))

    def note_divergence(self, step: int, cause: str) -> None:
        """Record that the training has no state at `step` and beyond, and the cause."""
        self._write_json(
            "diverged.json", {"key": self.key, "step": step, "cause": cause}
        )

    def divergence(self) -> tuple[int, str] | None:
        """Return the first step that this training does not reach, and the cause; None if none is known."""
        try:
            record = read_checked(self.path / "diverged.json")
            if record["key"] == self.key:
                return (int(record["step"]), str(record["cause"]))
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    @property
    def _resume_path(self) -> Path:
        return self.path / "resume.safetensors"

    def _resume(self) -> TrainingState | None:
        tensors, step = self._read(self._resume_path)
        if tensors is None or not _reaches(tensors, step):
            return None
        log = tensors.pop(_LOG)
        names = [name for name in tensors if name.startswith(_WEIGHT)]
        weights = {name.removeprefix(_WEIGHT): tensors.pop(name) for name in names}
        return TrainingState(step, weights, tensors, log)

    def _read(
        self, path: Path, step: int | None = None
    ) -> tuple[Tensors, int] | tuple[None, int]:
        """Return the tensors of a file and their step; without tensors, and with a warning, if the file is invalid."""
        try:
            return read(path, key=self.key, step=step) or (None, -1)
        except Damaged as error:
            print(
                f"warning: {error}; it counts as not there, and is computed again",
                file=sys.stderr,
            )
            return None, -1

    def _steps(self) -> list[int]:
        names = (
            path.name.split(".")[0].removeprefix("step_")
            for path in self.path.glob("step_*.safetensors")
        )
        return sorted({int(name) for name in names if name.isdigit()})

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        whole = {**content, CHECKSUM: checksum(content)}
        write_text(self.path / name, json.dumps(whole, indent=1, sort_keys=True) + "\n")


def log_text(log: Tensor) -> str:
    """Return the log as CSV; steps without a test have no accuracy."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for step, *values in log.tolist():
        writer.writerow(
            [int(step), *("" if value != value else f"{value:.9g}" for value in values)]
        )
    return buffer.getvalue()


def _reaches(tensors: Tensors, step: int) -> bool:
    """Whether the log among the tensors has a row for each update up to `step`."""
    log = tensors.get(_LOG)
    return (
        log is not None
        and log.shape == (step, len(COLUMNS))
        and (step == 0 or int(log[-1, 0]) == step)
    )


def _last_step(path: Path) -> int:
    """Return the last step of a log; -1 if there is no readable log."""
    try:
        return int(path.read_text("utf-8").splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return -1
