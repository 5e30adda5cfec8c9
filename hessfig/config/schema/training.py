"""Settings of a training: optimiser, schedule, batches, which states are kept, and how it is tested on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from hessfig.config.choices import DType
from hessfig.config.optimisation import Optimiser, Schedule, TrainingData


@dataclass
class TrainingConfig:
    """How a network is trained for `state=trained`; names and meanings are those of torch.optim.

    Which states are kept, and how it is tested on the way, change nothing of the trajectory: asking for more of them
    goes on from what is there. A constant schedule does not depend on `steps` either.
    """

    optimiser: Annotated[
        Optimiser, "adamw, adam and sgd on mini-batches; gd: plain gradient descent, full batch"
    ] = Optimiser.adamw
    learning_rate: Annotated[float, "the largest learning rate"] = 1e-3
    betas: Annotated[list[float], "for adamw and adam: decay of the two moments"] = field(
        default_factory=lambda: [0.9, 0.98]
    )
    eps: Annotated[float, "for adamw and adam: added to the root of the second moment"] = 1e-8
    weight_decay: Annotated[float, "of every parameter: decoupled for adamw, added to the gradient else"] = (
        0.1
    )
    momentum: Annotated[float, "for sgd"] = 0.0
    schedule: Annotated[Schedule, "after the warm-up: cosine to zero at the last step, or constant"] = (
        Schedule.cosine
    )
    warmup: Annotated[int, "steps over which the learning rate rises to its largest"] = 100
    batch_size: Annotated[int, "sums of a batch; gd takes the whole fixed set"] = 128
    steps: Annotated[int, "updates of a whole run"] = 4000
    data: Annotated[
        TrainingData, "fresh sums at every step, or a fixed set: the task's batch, which is measured too"
    ] = TrainingData.fresh
    cascades: Annotated[float, "share of a fresh batch that is enriched with cascades of carries"] = 0.2
    checkpoints: Annotated[
        list[int], "steps whose states are kept beside those of state.step and the last"
    ] = field(default_factory=list)
    evaluate_every: Annotated[int, "steps between tests on unseen sums (training.csv)"] = 500
    evaluation_size: Annotated[int, "unseen sums of a test, and of the quantity accuracy"] = 10_000
    dtype: Annotated[DType, "floating-point type of the training; states are measured in dtype"] = (
        DType.float32
    )
