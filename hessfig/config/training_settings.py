"""The settings of a state: drawn, trained by stated rules, or loaded from a file."""

from dataclasses import dataclass
from typing import Any

from hessfig.config import enums
from hessfig.config.facts import Role, added, setting
from hessfig.terms import Optimiser

_MOST_STEPS = 100_000_000  # a larger number is probably a mistake


def _of_rules(name: str) -> str:
    """Return under which step rules a setting of the training is read."""
    return f"training.optimiser={'|'.join(rule for rule in Optimiser if name in rule.facts.reads)}"


@dataclass
class StateConfig:
    """The point of weight space: drawn for each sigma and seed, trained from there, or loaded from `path`."""

    kind: enums.State = setting(
        enums.State.initialised,
        "weights drawn from sigma and seed, trained from there, or read from a file",
    )
    path: str | None = setting(
        None,
        "for kind loaded, the file: safetensors, or a state_dict",
        where="state.kind=loaded",
        implies="state=loaded",
    )
    sha256: str | None = setting(
        None,
        "SHA-256 that the file of state.path must have; null: what it has when planned",
        role=Role.pin,
        where="state.kind=loaded",
    )
    draw: enums.Draws = added(
        enums.Draws.named,
        "where weights and embeddings come from: a stream of each, or the generators of the published code, in order",
        where="state.kind=initialised model.kind=transformer|linear_mlp",
    )
    step: Any = setting(
        None,
        "for kind trained: the steps of the training; null: the last",
        "null, a step, or a list of steps",
        where="state.kind=trained",
    )


@dataclass
class TrainingConfig:
    """How a network is trained for `state=trained`; names and meanings are those of torch.optim.

    Which states are kept, and how it is tested on the way, change nothing of the
    trajectory: asking for more of them goes on from what is there. A constant schedule
    does not depend on `steps` either.
    """

    optimiser: Optimiser = setting(
        Optimiser.adamw,
        "the step rule; gd and those that divide by a curvature matrix are full batch",
    )
    learning_rate: float = setting(1e-3, "the largest learning rate", above=0)
    betas: list[float] = setting(
        [0.9, 0.98],
        "for adamw and adam: decay of the two moments",
        "two numbers",
        size=2,
        least=0,
        below=1,
        allowed="0 <= beta < 1",
        where=_of_rules("betas"),
    )
    eps: float = setting(
        1e-8,
        "for adamw and adam: added to the root of the second moment",
        above=0,
        where=_of_rules("eps"),
    )
    weight_decay: float = setting(
        0.1,
        "of every parameter: decoupled for adamw, added to the gradient else",
        least=0,
    )
    momentum: float = setting(
        0.0,
        "for sgd, muon and the step rules that divide by curvature",
        least=0,
        below=1,
        where=_of_rules("momentum"),
    )
    clip_norm: float = added(
        0.0,
        "the largest norm of a gradient; longer ones are scaled down (0: none are)",
        least=0,
    )
    damping: float = added(
        0.01,
        "for the rules that divide by curvature: added to every eigenvalue",
        above=0,
        where=_of_rules("damping"),
    )
    curvature: enums.Curvature = added(
        enums.Curvature.none,
        "what divides the learning rate: nothing, the largest eigenvalue, its blocks', or a stand-in",
    )
    refresh: int = added(
        100,
        "updates between two estimates of the curvature",
        least=1,
        most=_MOST_STEPS,
        where=("training.curvature!=none", _of_rules("refresh")),
    )
    schedule: enums.Schedule = setting(
        enums.Schedule.cosine,
        "after the warm-up: cosine to zero at the last step, or constant",
    )
    warmup: int = setting(
        100,
        "steps over which the learning rate rises to its largest",
        least=0,
        most=_MOST_STEPS,
    )
    batch_size: int = setting(
        128,
        "sums of a batch; gd takes the whole fixed set",
        least=1,
        most=_MOST_STEPS,
        where=_of_rules("batch_size"),
    )
    steps: int = setting(
        4000,
        "updates of a whole run",
        least=1,
        most=_MOST_STEPS,
        where=("state.kind=trained", "training.schedule=cosine"),
    )
    data: enums.TrainingData = setting(
        enums.TrainingData.fresh,
        "fresh sums at every step, or a fixed set: the task's batch, which is measured too",
    )
    cascades: float = setting(
        0.2,
        "share of a fresh batch that is enriched with cascades of carries",
        least=0,
        most=1,
        where="training.data=fresh task.data=addition",
    )
    checkpoints: list[int] = setting(
        [],
        "steps whose states are kept in addition to those of state.step and the last",
        where="state.kind=trained",
        watches=True,
    )
    evaluate_every: int = setting(
        500,
        "steps between tests on held-out examples (training.csv)",
        least=1,
        most=_MOST_STEPS,
        where="state.kind=trained",
        watches=True,
    )
    evaluation_size: int = setting(
        10_000,
        "held-out sums of a test, and of the quantity accuracy",
        least=1,
        most=_MOST_STEPS,
        watches=True,
    )
    dtype: enums.DType = setting(
        enums.DType.float32,
        "floating-point type of the training; states are measured in dtype",
    )
