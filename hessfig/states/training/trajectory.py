"""Identity of a training: the hash of everything that changes its trajectory (no torch)."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hessfig.config.enums import Curvature, Schedule, TrainingData
from hessfig.config.keys import in_key
from hessfig.config.schema import Config, with_defaults
from hessfig.models.protocol import kind
from hessfig.record import digest
from hessfig.terms import RULE_SETTINGS

ALGORITHM_VERSION = 1
FOLDER = "states"
# Settings that change nothing of the trajectory: what is kept, and how it is tested on
# the way.
_WATCHING = ("checkpoints", "evaluate_every", "evaluation_size")
# What of the task is about its measuring batch alone.
_MEASURING = ("batch_size", "seed")


@dataclass(frozen=True)
class Trajectory:
    """One training: the network of `seed` at `sigma` (None: no sigma), trained with these settings.

    `common`, if given, is `science(config)`, which is slow to compute and the same for
    all sigmas and seeds.
    """

    config: Config
    sigma: float | None
    seed: int
    common: dict[str, Any] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def science(self) -> dict[str, Any]:
        """Everything that influences a weight at some step, as plain values."""
        return {
            **(self.common or science(self.config)),
            "sigma": self.sigma,
            "seed": self.seed,
        }

    @cached_property
    def key(self) -> str:
        """The name of the training's folder."""
        return digest(self.science)

    @property
    def folder(self) -> Path:
        """The folder of the training's states."""
        return Path(self.config.output_dir) / FOLDER / self.key

    @property
    def label(self) -> dict[str, Any]:
        """Description of the training with one line per setting, for readers of the folder."""
        model, training = self.config.model, self.config.training
        words = {
            "model": model.kind,
            "n_layers": model.n_layers,
            "d_model": model.d_model,
            "norm": model.norm,
        }
        optimiser = {
            "optimiser": training.optimiser,
            "learning_rate": training.learning_rate,
        }
        return {**words, **optimiser, "sigma": self.sigma, "seed": self.seed}

    def __str__(self) -> str:
        sigma = "" if self.sigma is None else f"sigma={self.sigma:g}, "
        return f"training {self.key[:8]} ({sigma}seed={self.seed})"


def science(config: Config) -> dict[str, Any]:
    """Return what identifies the trainings of `config` besides sigma and seed."""
    whole = replace(config, model=with_defaults(config.model))
    plain = in_key(whole)
    fixed = config.training.data == TrainingData.fixed
    task = {
        name: value
        for name, value in plain["task"].items()
        if fixed or name not in _MEASURING
    }
    return {
        "algorithm": ALGORITHM_VERSION,
        "task": task,
        "model": plain["model"],
        "source": kind(config.model.kind).source(config),
        "training": _read(config, plain["training"]),
    }


def _read(config: Config, training: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that this training uses: a constant schedule has no end, a fixed set no enrichment."""
    chosen = config.training
    looks = set() if chosen.curvature == Curvature.none else {"curvature", "refresh"}
    unread = (
        {*_WATCHING, *RULE_SETTINGS, "curvature"}
        - {*chosen.optimiser.facts.reads}
        - looks
    )
    unread |= {"steps"} if chosen.schedule == Schedule.constant else set()
    unread |= {"cascades"} if chosen.data == TrainingData.fixed else set()
    return {name: value for name, value in training.items() if name not in unread}
