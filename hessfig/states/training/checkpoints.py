"""The folder of one training: states by step, where to go on from, the log, and where it diverged."""

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
    """A checkpoint that cannot be trusted: truncated, altered, or of another training or step."""


def write(path: Path, tensors: Mapping[str, Tensor], *, key: str, step: int) -> None:
    """Write tensors under their names, all or nothing."""
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    about = {"key": key, "step": step, "version": _VERSION, "checksum": _checksum(plain, key, step)}
    write_bytes(path, save(plain, {_ABOUT: json.dumps(about, sort_keys=True)}))


def read(path: Path, *, key: str, step: int | None = None) -> tuple[Tensors, int] | None:
    """Return the tensors and their step; None where there is no file.

    Raises Damaged, naming the file, when it is not what this training wrote (at `step`, if one is given).
    """
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as handle:
            about = json.loads((handle.metadata() or {})[_ABOUT])
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
        written = int(about["step"])
        vouched = (key, written) if "version" in about else ()  # by 0.2.0, the numbers alone
        sound = about["key"] == key and about["checksum"] == _checksum(tensors, *vouched)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"{path}: truncated or no checkpoint of a training ({type(error).__name__})") from error
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
    """A training after `step` updates: weights and moments by name, and the log up to there (steps x COLUMNS)."""

    step: int
    weights: Tensors
    moments: Tensors
    log: Tensor


class Folder:
    """What is kept of `trajectory`. Files that cannot be trusted are named on stderr and count as not there."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.trajectory, self.path, self.key = trajectory, trajectory.folder, trajectory.key

    def weights_path(self, step: int) -> Path:
        """Where the weights after `step` updates are, under the network's own names."""
        return self.path / f"step_{step:06d}.safetensors"

    def optimiser_path(self, step: int) -> Path:
        """Where the moments after `step` updates are, and the log up to there."""
        return self.path / f"step_{step:06d}.optimiser.safetensors"

    def weights(self, step: int) -> Tensors | None:
        """Return the weights after `step` updates, if they are there and sound."""
        return self._read(self.weights_path(step), step)[0]

    def missing(self, steps: Iterable[int]) -> list[int]:
        """Return those of `steps` that are not there, or not sound, in rising order."""
        return [step for step in sorted(steps) if self.at(step) is None]

    def at(self, step: int) -> TrainingState | None:
        """Return the training after `step` updates, if that state is kept."""
        weights = self.weights(step)
        beside = self._read(self.optimiser_path(step), step)[0]
        if weights is None or beside is None or not _reaches(beside, step):
            return None
        moments = {name: value for name, value in beside.items() if name != _LOG}
        return TrainingState(step, weights, moments, beside[_LOG])

    def nearest(self, step: int) -> TrainingState | None:
        """Return the latest point of the training at or before `step` to go on from: a kept state, or `resume`."""
        on_the_way = self._resume()
        if on_the_way is not None and on_the_way.step > step:
            on_the_way = None
        least = on_the_way.step if on_the_way else -1
        for kept in sorted((kept_step for kept_step in self._steps() if least < kept_step <= step), reverse=True):
            state = self.at(kept)
            if state is not None:
                return state
        return on_the_way

    def keep(self, now: TrainingState) -> None:
        """Keep a state for good: moments first, so that a state that is there can be gone on from."""
        write(self.optimiser_path(now.step), {**now.moments, _LOG: now.log}, key=self.key, step=now.step)
        write(self.weights_path(now.step), now.weights, key=self.key, step=now.step)

    def keep_for_resuming(self, now: TrainingState) -> None:
        """Leave where this training is, unless another run of it is further."""
        latest = self._resume()
        if latest is None or latest.step < now.step:
            weights = {f"{_WEIGHT}{name}": value for name, value in now.weights.items()}
            write(self._resume_path, {**weights, **now.moments, _LOG: now.log}, key=self.key, step=now.step)

    def forget_resuming(self, step: int) -> None:
        """Remove what `keep_for_resuming` left, when it is not beyond `step`, or cannot be trusted."""
        latest = self._resume()
        if latest is None or latest.step <= step:
            self._resume_path.unlink(missing_ok=True)

    def describe(self) -> None:
        """Write training.json: what this training is."""
        content = {"key": self.key, "label": self.trajectory.label, "settings": self.trajectory.science}
        self._write_json("training.json", content)

    def log(self, now: TrainingState) -> None:
        """Write training.csv, unless it reaches further already."""
        path = self.path / "training.csv"
        if _last_step(path) <= now.step:
            write_text(path, log_text(now.log))

    def note_divergence(self, step: int, cause: str) -> None:
        """Record that there is no state at `step` and beyond, and why."""
        self._write_json("diverged.json", {"key": self.key, "step": step, "cause": cause})

    def divergence(self) -> tuple[int, str] | None:
        """Return the first step that this training does not reach, and why; None if none is known."""
        try:
            record = read_checked(self.path / "diverged.json")
            return (int(record["step"]), str(record["cause"])) if record["key"] == self.key else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    @property
    def _resume_path(self) -> Path:
        return self.path / "resume.safetensors"

    def _resume(self) -> TrainingState | None:
        tensors, step = self._read(self._resume_path)
        if tensors is None or not _reaches(tensors, step):
            return None
        weights = {n.removeprefix(_WEIGHT): t for n, t in tensors.items() if n.startswith(_WEIGHT)}
        moments = {n: t for n, t in tensors.items() if not n.startswith(_WEIGHT) and n != _LOG}
        return TrainingState(step, weights, moments, tensors[_LOG])

    def _read(self, path: Path, step: int | None = None) -> tuple[Tensors, int] | tuple[None, int]:
        """Return the tensors of a file and their step; no tensors, with a warning, where it cannot be trusted."""
        try:
            return read(path, key=self.key, step=step) or (None, -1)
        except Damaged as error:
            print(f"warning: {error}; it counts as not there, and is computed again", file=sys.stderr)
            return None, -1

    def _steps(self) -> list[int]:
        names = (path.name.split(".")[0].removeprefix("step_") for path in self.path.glob("step_*.safetensors"))
        return sorted({int(name) for name in names if name.isdigit()})

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        whole = {**content, CHECKSUM: checksum(content)}
        write_text(self.path / name, json.dumps(whole, indent=1, sort_keys=True) + "\n")


def log_text(log: Tensor) -> str:
    """Return the log as CSV; a step without a test has no accuracy."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for step, *values in log.tolist():
        writer.writerow([int(step), *("" if value != value else f"{value:.9g}" for value in values)])
    return buffer.getvalue()


def _reaches(tensors: Tensors, step: int) -> bool:
    """Whether the log among the tensors has a row for each update up to `step`."""
    log = tensors.get(_LOG)
    return log is not None and log.shape == (step, len(COLUMNS)) and (step == 0 or int(log[-1, 0]) == step)


def _last_step(path: Path) -> int:
    """Return the last step of a log; -1 where there is none that can be read."""
    try:
        return int(path.read_text("utf-8").splitlines()[-1].partition(",")[0])
    except (OSError, ValueError, IndexError):
        return -1
