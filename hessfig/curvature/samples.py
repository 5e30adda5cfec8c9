"""Samples of a loss: which of them count and how much, how each is taken alone, and that their gradients add up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.curvature.gradients import LossGradient
from hessfig.curvature.losses import Inside, of_classes, single_weights
from hessfig.curvature.problem import Batch, Layered, Objective, scored_outputs
from hessfig.curvature.rounding import SINGLES
from hessfig.errors import UserError, first_few, plain

_NOISE = 1e3  # roundings of all gradients together, of which the gradient of a parameter may consist


@runtime_checkable
class BySample(Protocol):
    """A network of arguments of several kinds, which can tell the axis of each that runs over samples."""

    def by_sample(self) -> nn.Module:
        """Return the same network, to be given some of the samples. Raises UserError where samples meet."""


def by_sample(objective: Objective) -> Objective:
    """Return the problem with a network that may be given some of its samples.

    Inputs that are one tensor have the samples as their first axis; a network that is called with several arguments is
    asked. Raises UserError where it gives no sample alone what it gives the sample among the others.
    """
    if not isinstance(objective.network, BySample):
        return objective
    with alone():
        return replace(objective, network=objective.network.by_sample())


@dataclass(frozen=True)
class Counted:
    """The loss of a batch as sum_i weights_i l_i / divisor, l_i that of sample i alone; 0 for one that does not count.

    Weights of a mean are what the sample's own divides by: its targets that are not ignored, or their class weights.
    Those of a sum are 1. A loss of a type that is not known shows its weights, by value and gradient.
    """

    weights: Float[Tensor, " samples"]
    divisor: float


def counted(objective: Objective, batch: Batch) -> Counted:
    """Return which samples of a batch count, and how much. Raises UserError for a loss in which samples meet."""
    count, loss = len(batch.inputs), objective.loss
    if isinstance(loss, Inside):  # of which the sum of the gradients tells
        return Counted(torch.ones(count, dtype=torch.float64), float(count) if loss.reduction == "mean" else 1.0)
    if of_classes(loss, batch.targets):
        outputs = [torch.empty(0)] * count  # targets alone are read
    else:
        with torch.set_grad_enabled(not isinstance(objective.network, Layered)):  # others may differentiate inside
            outputs = list(scored_outputs(objective.network, batch.inputs, batch.scored).detach().split(1))
    if len(outputs) != count or len(batch.targets) % count:
        raise met(f"{count} samples, {len(outputs)} rows of outputs, targets of shape {tuple(batch.targets.shape)}")
    with alone():
        weights, scale = single_weights(loss, outputs, batch.targets.split(len(batch.targets) // count))
    return Counted(torch.tensor(weights, dtype=torch.float64), scale)


@dataclass(frozen=True)
class Single:
    """A sample that counts as a problem of its own; `factor` is its weight over the mean of all weights."""

    problem: Objective
    factor: float


def singles(objective: Objective) -> tuple[list[Single], float]:
    """Return every sample that counts, and s: the gradient of the loss is s times the mean of factor times gradient.

    For a loss that is a mean s is 1. Raises UserError as `by_sample` and `counted` do.
    """
    apart, weighed = by_sample(objective), [(batch, counted(objective, batch)) for batch in objective.batches]
    sizes = [1.0 if objective.loss.reduction == "sum" else batch.size for batch in objective.batches]
    masses = [size * (float(own.weights.sum()) / own.divisor) for size, (_, own) in zip(sizes, weighed, strict=True)]
    count = sum(int(own.weights.count_nonzero()) for _, own in weighed)
    samples = []
    for size, (batch, own) in zip(sizes, weighed, strict=True):
        targets = batch.targets.split(len(batch.targets) // len(batch.inputs))
        for row in own.weights.nonzero().flatten().tolist():
            factor = size * float(own.weights[row]) * count / (sum(masses) * own.divisor)
            single = Batch(batch.inputs[row : row + 1], targets[row], batch.scored)
            samples.append(Single(replace(apart, batch=single, more=()), factor))
    return samples, sum(masses) / (1.0 if objective.loss.reduction == "sum" else sum(sizes))


def single_gradients(objective: Objective, most: int | None = None) -> Iterator[Float[Tensor, " n"]]:
    """Yield the factor times the gradient of every sample that counts, in float64; of the first `most` of them.

    Raises UserError, at the end, where they do not add up to the gradient of the loss, parameter by parameter. Of the
    package's networks, whose samples never meet, no more are made than are yielded.
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
        total, sizes = total + gradient, sizes + torch.stack([piece.norm().cpu() for piece in gradient.split(lengths)])
        if is_wanted:
            yield gradient
    mean = scale / len(every)
    check_sum(whole, dict(zip(whole, (mean * total).split(lengths), strict=True)), (mean * sizes).tolist())


def check_alike(objective: Objective) -> None:
    """Raise UserError where the samples of the batch do not count alike, or those of somebody's own network meet."""
    weights = counted(objective, objective.batch).weights
    if bool((weights != weights[0]).any()):
        raise UserError(
            "the samples do not count alike in the loss: some targets are ignored, or weigh more than others",
            got=f"weights of samples from {float(weights.min()):.4g} to {float(weights.max()):.4g}",
            allowed="a loss that is the mean over samples that count alike",
            remedy="leave the quantities of single samples out, or give samples with as many targets that count",
        )
    if not isinstance(objective.network, Layered):
        for _ in single_gradients(objective):
            pass


def check_sum(whole: Mapping[str, Tensor], total: Mapping[str, Tensor], sizes: Sequence[float]) -> None:
    """Raise UserError where gradients of single samples do not add up to that of all, by the parameter's name.

    `sizes` are the sums of the lengths of those that are added up, parameter by parameter: rounding is relative to
    these. Where the gradient is not finite there is nothing to tell.
    """
    if not all(bool(gradient.isfinite().all()) for gradient in whole.values()):
        return
    noise = _NOISE * torch.finfo(next(iter(whole.values())).dtype).eps * sum(sizes)
    wrong = dict[str, float]()
    for (name, gradient), size in zip(whole.items(), sizes, strict=True):
        off = float((gradient.double().flatten() - total[name].to(gradient.device).flatten()).norm())
        if not off <= SINGLES.of(gradient.dtype) * size + noise:
            wrong[name] = off / max(float(gradient.norm()), torch.finfo(torch.float64).tiny)
    if wrong:
        shares = [f"{name} by {share:.2g} of its length" for name, share in wrong.items()]
        raise met(f"the gradients of single samples do not add up to that of the loss: off in {first_few(shares)}")


@contextmanager
def alone() -> Iterator[None]:
    """Turn what a network or loss raises of a sample alone into a UserError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError | torch.OutOfMemoryError):
            raise
        raise met(f"{type(error).__name__} of a sample alone: {plain(str(error), most=200)}") from error


def met(got: str) -> UserError:
    """Return what is said of samples that see each other."""
    return UserError(
        "quantities of single samples (Fisher matrices, Shampoo, noise_scale, ...): the samples see each other, or "
        "cannot be taken alone",
        got=got,
        allowed="a network and a loss that give each sample alone what they give it among the others, outputs and "
        "targets with the samples as their first axis",
        remedy="leave these quantities out; of approximations, diagonal, kfoc and kronecker_sum need no single samples",
    )
