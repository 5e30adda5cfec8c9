"""Loggers by name: sends measured values to TensorBoard, Weights & Biases, MLflow or trackio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from hessfig.errors import UserError, install_extra

Log = Callable[[Mapping[str, float], int], object]


def logger(chosen: str | Log | None, folder: Path) -> Log:
    """Return a function log(values, step): that of the named logger, the user's own, or one without effect.

    TensorBoard writes below `folder`. The others log into the user's current run; if
    there is none, they start one (Weights & Biases: offline, below `folder`). Raises
    UserError for an unknown name and for a library that is not installed.
    """
    if chosen is None:
        return lambda values, step: None
    if callable(chosen):
        return chosen
    if chosen not in LOGGERS:
        raise UserError(
            "log: there is no such logger",
            got=repr(chosen)[:200],
            allowed=", ".join(LOGGERS) + ", or a function log(values, step)",
            remedy="for example log='tensorboard'",
        )
    module, make = LOGGERS[chosen]
    try:
        return make(import_module(module), folder)
    except ImportError as error:
        raise UserError(
            f"log={chosen}: its library is not installed",
            got=str(error)[:200],
            allowed="an installed logger",
            remedy=install_extra("trackio" if chosen == "trackio" else "loggers"),
        ) from error


def _tensorboard(library: ModuleType, folder: Path) -> Log:
    writer = library.SummaryWriter(log_dir=str(folder / "tensorboard"))

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def _wandb(library: ModuleType, folder: Path) -> Log:
    run = library.run or library.init(
        project="hessfig", dir=str(folder), mode="offline"
    )
    return lambda values, step: run.log({**values, "step": step})


def _mlflow(library: ModuleType, folder: Path) -> Log:
    del folder

    def log(values: Mapping[str, float], step: int) -> None:
        # "@" is not allowed.
        plain = {name.replace("@", " layer "): value for name, value in values.items()}
        library.log_metrics(plain, step=step)

    return log


def _trackio(library: ModuleType, folder: Path) -> Log:
    del folder
    if library.context_vars.current_run.get() is None:
        library.init(project="hessfig")

    def log(values: Mapping[str, float], step: int) -> None:
        library.log(dict(values), step=step)

    return log


LOGGERS: dict[str, tuple[str, Callable[[Any, Path], Log]]] = {
    "tensorboard": ("torch.utils.tensorboard", _tensorboard),
    "wandb": ("wandb", _wandb),
    "mlflow": ("mlflow", _mlflow),
    "trackio": ("trackio", _trackio),
}
