"""Single samples of a loss: their weights, their own losses and gradients, and a check that the gradients add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.curvature.double_backward import length
from hessfig.curvature.gradients import LossGradient
from hessfig.curvature.losses import Inside, of_classes, single_weights
from hessfig.curvature.problem import Batch, Layered, Objective, scored_outputs
from hessfig.curvature.rounding import LOSS, SINGLES
from hessfig.curvature.witness import STEP, derivatives, leaves_of, step_of, terms_of
from hessfig.errors import UserError, first_few, plain

_NOISE = 1e3  # allowed rounding errors in the gradient of a parameter, relative to all gradients together


@runtime_checkable
class BySample(Protocol):
    """A network with arguments of several kinds that knows which axis of each argument runs over samples."""

    @property
    def is_sum(self) -> bool:
        """Whether the output for some samples is one number, the sum over these."""

    def by_sample(self) -> nn.Module:
        """Return the same network as a function of any of the samples. Raises UserError if samples interact."""

    def of_first_samples(self, count: int) -> tuple[nn.Module, Tensor]:
        """Return the network for the first `count` samples of the first batch, unchecked, and its inputs."""


def by_sample(objective: Objective) -> Objective:
    """Return the problem with a network that accepts any subset of its samples.

    Inputs that are one tensor have the samples as their first axis; for other inputs
    see `BySample`. Raises UserError if the outputs of a sample alone differ from its
    outputs among the others.
    """
    if not isinstance(objective.network, BySample):
        return objective
    with alone():
        network = objective.network.by_sample()
        if not bool(network.is_sum) or objective.loss.reduction == "sum":
            return replace(objective, network=network)
        if objective.more:
            raise met(
                "batches whose losses are sums over their samples, in a mean over batches"
            )
        return replace(objective, network=network, loss=Inside("sum"))


def first_samples(objective: Objective, count: int) -> Objective:
    """Return the problem with the first `count` samples of its first batch, to find out what a product takes."""
    batch = objective.batch
    targets = batch.targets[: count * (len(batch.targets) // len(batch.inputs))]
    if not isinstance(objective.network, BySample):
        return replace(
            objective, batch=Batch(batch.inputs[:count], targets, batch.scored), more=()
        )
    network, inputs = objective.network.of_first_samples(count)
    return replace(
        objective, network=network, batch=Batch(inputs, targets, batch.scored), more=()
    )


_SHARE = 8  # a check takes at most every eighth sample


def few_samples(objective: Objective) -> int:
    """Return the number of first samples on which derivatives of a large network are checked; 0 for all samples.

    With a bound of memory it is a single sample. All samples are taken if the first
    ones may lack what others have: the padding word of an embedding that treats it in
    its own way.
    """
    sizes = [len(batch.inputs) for batch in objective.batches]
    count = (
        1 if objective.memory is not None else min(sizes[0], -(-sum(sizes) // _SHARE))
    )
    has_padding = any(
        getattr(module, "padding_idx", None) is not None
        for module in objective.network.modules()
    )
    return 0 if has_padding or count == sum(sizes) else count


@dataclass(frozen=True)
class Counted:
    """The loss of a batch as sum_i weights_i l_i / divisor, with the loss l_i of sample i alone.

    For a mean, the weight of a sample is the divisor of its own mean: the number of
    targets that are not ignored, or their class weights. For a sum all weights are 1. A
    sample that does not count has weight 0. For a loss of unknown type, weights are
    inferred from values and gradients.
    """

    weights: Float[Tensor, " samples"]
    divisor: float


def counted(objective: Objective, batch: Batch) -> Counted:
    """Return the weights of the samples of a batch. Raises UserError for a loss in which samples interact."""
    count, loss = len(batch.inputs), objective.loss
    # Its samples are checked by the sum of their gradients.
    if isinstance(loss, Inside):
        return Counted(
            torch.ones(count, dtype=torch.float64),
            float(count) if loss.reduction == "mean" else 1.0,
        )
    if of_classes(loss, batch.targets):
        outputs = [torch.empty(0)] * count  # only targets are used
    else:
        # Users' may differentiate inside.
        with torch.set_grad_enabled(not isinstance(objective.network, Layered)):
            whole = scored_outputs(
                objective.network, batch.inputs, batch.scored
            ).detach()
        if not whole.ndim:
            raise met("outputs that are one number for all samples")
        outputs = list(whole.split(1))
    if len(outputs) != count or len(batch.targets) % count:
        raise met(
            f"{count} samples, {len(outputs)} rows of outputs, targets of shape {tuple(batch.targets.shape)}"
        )
    with alone():
        weights, scale = single_weights(
            loss, outputs, batch.targets.split(len(batch.targets) // count)
        )
    return Counted(torch.tensor(weights, dtype=torch.float64), scale)


@dataclass(frozen=True)
class Single:
    """A sample as a problem of its own; `factor` is its weight divided by the mean weight of samples that count."""

    problem: Objective
    factor: float


def singles(objective: Objective) -> tuple[list[Single], float]:
    """Return all samples that count, and s such that the gradient of the loss is s times the mean of factor * gradient.

    For a loss that is a mean, s is 1. Raises UserError as `by_sample` and `counted` do.
    """
    apart = by_sample(objective)
    weighed = [(batch, counted(apart, batch)) for batch in objective.batches]
    sizes = [
        1.0 if apart.loss.reduction == "sum" else batch.size
        for batch in objective.batches
    ]
    masses = [
        size * (float(own.weights.sum()) / own.divisor)
        for size, (_, own) in zip(sizes, weighed, strict=True)
    ]
    count = sum(int(own.weights.count_nonzero()) for _, own in weighed)
    samples = []
    for size, (batch, own) in zip(sizes, weighed, strict=True):
        targets = batch.targets.split(len(batch.targets) // len(batch.inputs))
        for row in own.weights.nonzero().flatten().tolist():
            factor = (
                size * float(own.weights[row]) * count / (sum(masses) * own.divisor)
            )
            single = Batch(batch.inputs[row : row + 1], targets[row], batch.scored)
            samples.append(Single(replace(apart, batch=single, more=()), factor))
    return samples, sum(masses) / (1.0 if apart.loss.reduction == "sum" else sum(sizes))


def single_gradients(
    objective: Objective, most: int | None = None
) -> Iterator[Float[Tensor, " n"]]:
    """Yield factor * gradient in float64 for every sample that counts, or for the first `most` of them.

    Raises UserError at the end if the gradients do not add up to that of the loss,
    parameter by parameter. In networks of the package samples never interact, so
    further gradients are not computed.
    """
    whole, (every, scale) = LossGradient(objective).gradient, singles(objective)
    lengths = [slope.numel() for slope in whole.values()]
    total, sizes = torch.zeros(()), torch.zeros(len(lengths))
    for number, sample in enumerate(every):
        is_wanted = most is None or number < most
        if not is_wanted and isinstance(objective.network, Layered):
            return
        with alone():
            gradient = LossGradient(sample.problem).flat.double() * sample.factor
        total = total + gradient
        sizes = sizes + torch.stack(
            [piece.norm().cpu() for piece in gradient.split(lengths)]
        )
        if is_wanted:
            yield gradient
    mean = scale / len(every)
    total_by_name = dict(zip(whole, (mean * total).split(lengths), strict=True))
    check_sum(
        whole,
        total_by_name,
        (mean * sizes).tolist(),
        partial(_change, objective, whole),
    )


def _change(objective: Objective, here: Mapping[str, Tensor]) -> float:
    """Return |g(w + d) - g(w)| |w| / |d|, which does not vanish at a perfect fit, where all gradients are rounding."""
    at = leaves_of(objective, here)
    steps = step_of({name: one.detach() for name, one in at.items()})
    beside = {
        name: (one.detach() + steps[name]).requires_grad_() for name, one in at.items()
    }
    there = derivatives(terms_of(objective, beside), beside, (), 1).slopes
    return length(there[name] - one for name, one in here.items()) / STEP


def check_alike(objective: Objective) -> None:
    """Raise UserError if samples of the batch have different weights, or interact in a network of a user."""
    weights = counted(objective, objective.batch).weights
    if bool(((weights - weights[0]).abs() > LOSS.double * weights.abs().max()).any()):
        raise UserError(
            "the samples have different weights in the loss: some targets are ignored, or have larger weights",
            got=f"weights of samples from {float(weights.min()):.4g} to {float(weights.max()):.4g}",
            allowed="a loss that is the mean over samples with equal weights",
            remedy="leave the quantities of single samples out, or give samples with equally many targets that count",
        )
    if not isinstance(objective.network, Layered):
        for _ in single_gradients(objective):
            pass


def check_sum(
    whole: Mapping[str, Tensor],
    total: Mapping[str, Tensor],
    sizes: Sequence[float],
    change: Callable[[], float] = float,
) -> None:
    """Raise UserError if gradients of single samples do not add up to that of all; the error names the parameters.

    `sizes` are the sums of the norms of the summands, parameter by parameter; rounding
    is relative to these, and to the `change` of the gradient under a step as long as
    the weights. Gradients that are not finite are not checked.
    """
    if not all(bool(gradient.isfinite().all()) for gradient in whole.values()):
        return
    noise = _NOISE * torch.finfo(next(iter(whole.values())).dtype).eps
    wrong = dict[str, float]()
    for (name, gradient), size in zip(whole.items(), sizes, strict=True):
        off = float(
            (
                gradient.double().flatten() - total[name].to(gradient.device).flatten()
            ).norm()
        )
        if not off <= SINGLES.of(gradient.dtype) * size + noise * sum(sizes):
            wrong[name] = off
    if wrong and not max(wrong.values()) <= noise * change():
        lengths = {name: float(whole[name].norm()) for name in wrong}
        shares = [
            f"{name} by {off / (lengths[name] or off):.2g} of its length"
            for name, off in wrong.items()
        ]
        raise met(
            f"the gradients of single samples do not add up to that of the loss: off in {first_few(shares)}"
        )


@contextmanager
def alone() -> Iterator[None]:
    """Turn any exception of a network or loss for a single sample into a UserError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError | torch.OutOfMemoryError):
            raise
        raise met(
            f"{type(error).__name__} of a sample alone: {plain(str(error), most=200)}"
        ) from error


def met(got: str) -> UserError:
    """Return the error for samples that interact."""
    return UserError(
        "quantities of single samples (Fisher matrices, Shampoo, noise_scale, ...): the samples see each other, or "
        "cannot be taken alone",
        got=got,
        allowed="a network and a loss whose results for a sample do not depend on the others, with outputs and "
        "targets that have samples as their first axis",
        remedy="leave these quantities out; of approximations, diagonal, kfoc and kronecker_sum need no single samples",
    )
