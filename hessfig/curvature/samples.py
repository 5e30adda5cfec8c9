"""Single samples of a loss: their weights, their own losses and gradients, and a check that the gradients add up."""

from __future__ import annotations

import math
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

# Allowed rounding errors in the gradient of a parameter, relative to all gradients
# together.
_NOISE = 1e3


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
    see `BySample`. A network whose output is the loss itself, summed over samples, gets
    the sum as its reduction.

    Raises
    ------
    UserError
        If the outputs of a sample alone differ from its outputs among the others, or if
        several batches are such sums within a mean over batches.
    """
    if not isinstance(objective.network, BySample):
        return objective
    with alone():
        network = objective.network.by_sample()
        if not bool(network.is_sum) or objective.loss.reduction == "sum":
            return replace(objective, network=network)
        if objective.more:
            raise samples_interact(
                "batches whose losses are sums over their samples, in a mean over batches"
            )
        return replace(objective, network=network, loss=Inside("sum"))


def first_samples(objective: Objective, count: int) -> Objective:
    """Return the problem with the first `count` samples of its first batch, to find out what a product takes."""
    batch = objective.batch
    targets = batch.targets[: count * (len(batch.targets) // len(batch.inputs))]
    network = objective.network
    inputs = batch.inputs[:count]
    if isinstance(network, BySample):
        network, inputs = network.of_first_samples(count)
    first = Batch(inputs, targets, batch.scored)
    return replace(objective, network=network, batch=first, more=())


# A check takes at most every eighth sample.
_SHARE = 8


def few_samples(objective: Objective) -> int:
    r"""Return the number of first samples on which derivatives of a large network are checked; 0 for all samples.

    With n_1 samples in the first of the batches,

    .. math:: \min\Bigl(n_1, \Bigl\lceil \tfrac{1}{8} \sum_k n_k \Bigr\rceil\Bigr);

    with a bound of memory it is a single sample. All samples are taken if these are all
    there are, or if the first ones may lack what others have: the padding word of an
    embedding that treats it in its own way.
    """
    for module in objective.network.modules():
        if getattr(module, "padding_idx", None) is not None:
            return 0
    sizes = [len(batch.inputs) for batch in objective.batches]
    count = min(sizes[0], math.ceil(sum(sizes) / _SHARE))
    if objective.memory is not None:
        count = 1
    return 0 if count == sum(sizes) else count


@dataclass(frozen=True)
class SampleWeights:
    """The loss of a batch as sum_i weights_i l_i / divisor, with the loss l_i of sample i alone.

    For a mean, the weight of a sample is the divisor of its own mean: the number of
    targets that are not ignored, or their class weights. For a sum all weights are 1. A
    sample that does not count has weight 0. For a loss of unknown type, weights are
    inferred from values and gradients.
    """

    weights: Float[Tensor, " samples"]
    divisor: float


def sample_weights(objective: Objective, batch: Batch) -> SampleWeights:
    r"""Return the weights of the samples of a batch. Raises UserError for a loss in which samples interact.

    .. math:: L = \frac{1}{d} \sum_i w_i \, l_i,

    with the losses l_i of the samples alone. For classes, w_i is the number of targets of
    the sample that count, or the sum of their class weights, and d the sum of all w_i: the
    mean over targets is not the mean of the samples' means if these have different numbers
    of targets. Equal weights make it so.

    Examples
    --------
    Of three samples, the second one is ignored:

    >>> import torch, hessfig
    >>> from hessfig.curvature.samples import sample_weights
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, -100, 1]))
    >>> objective = problem.objective("float64")
    >>> sample_weights(objective, objective.batch)
    SampleWeights(weights=tensor([1., 0., 1.], dtype=torch.float64), divisor=2.0)
    """
    count = len(batch.inputs)
    loss = objective.loss
    # Its samples are checked by the sum of their gradients.
    if isinstance(loss, Inside):
        divisor = float(count) if loss.reduction == "mean" else 1.0
        return SampleWeights(torch.ones(count, dtype=torch.float64), divisor)
    if of_classes(loss, batch.targets):
        # Only targets are used.
        outputs = [torch.empty(0)] * count
    else:
        # Networks of users may differentiate inside.
        with torch.set_grad_enabled(not isinstance(objective.network, Layered)):
            whole = scored_outputs(objective.network, batch.inputs, batch.scored)
        whole = whole.detach()
        if not whole.ndim:
            raise samples_interact("outputs that are one number for all samples")
        outputs = list(whole.split(1))
    if len(outputs) != count or len(batch.targets) % count:
        raise samples_interact(
            f"{count} samples, {len(outputs)} rows of outputs, targets of shape {tuple(batch.targets.shape)}"
        )
    targets = batch.targets.split(len(batch.targets) // count)
    with alone():
        weights, divisor = single_weights(loss, outputs, targets)
    return SampleWeights(torch.tensor(weights, dtype=torch.float64), divisor)


@dataclass(frozen=True)
class Single:
    """A sample as a problem of its own; `factor` is its weight divided by the mean weight of samples that count."""

    problem: Objective
    factor: float


def singles(objective: Objective) -> tuple[list[Single], float]:
    r"""Return the samples that count, and s such that the loss has s times the mean of factor * gradient as gradient.

    A batch k of size n_k (1 for a loss that is a sum) has the mass n_k sum_i w_i / d_k,
    with the weights w_i and the divisor d_k of SampleWeights. With M the sum of the
    masses and N samples that count,

    .. math:: \text{factor}_i = \frac{n_k w_i}{d_k} \frac{N}{M}, \qquad
              s = \frac{M}{\sum_k n_k}, \qquad
              \frac{s}{N} \sum_i \text{factor}_i \, g_i
              = \sum_k \frac{n_k}{\sum_j n_j} \frac{1}{d_k} \sum_{i \in k} w_i g_i = g,

    with the gradients g_i of the samples alone; without the division by sum_k n_k for a
    sum. The mean of the factors is 1. s is 1 for a loss that is a mean, since sum_i w_i =
    d_k there. Raises UserError as `by_sample` and `sample_weights` do.
    """
    apart = by_sample(objective)
    is_sum = apart.loss.reduction == "sum"
    weights = [sample_weights(apart, batch) for batch in objective.batches]
    sizes = [1.0 if is_sum else batch.size for batch in objective.batches]
    mass = 0.0
    count = 0
    for size, of_batch in zip(sizes, weights, strict=True):
        mass += size * (float(of_batch.weights.sum()) / of_batch.divisor)
        count += int(of_batch.weights.count_nonzero())
    samples = []
    for size, batch, of_batch in zip(sizes, objective.batches, weights, strict=True):
        targets = batch.targets.split(len(batch.targets) // len(batch.inputs))
        for row in of_batch.weights.nonzero().flatten().tolist():
            weight = float(of_batch.weights[row])
            factor = size * weight * count / (mass * of_batch.divisor)
            single = Batch(batch.inputs[row : row + 1], targets[row], batch.scored)
            samples.append(Single(replace(apart, batch=single, more=()), factor))
    return samples, mass / (1.0 if is_sum else sum(sizes))


def single_gradients(
    objective: Objective, most: int | None = None
) -> Iterator[Float[Tensor, " n"]]:
    """Yield factor * gradient in float64 for every sample that counts, or for the first `most` of them.

    One gradient per sample, each by a backward pass of its own. In networks of the package
    samples never interact, so that no further gradients are computed after `most`.

    Yields
    ------
    tensor, (n,)
        In the order of LossGradient.flat.

    Raises
    ------
    UserError
        At the end, if the gradients do not add up to that of the loss, parameter by
        parameter (`check_sum`).
    """
    whole = LossGradient(objective).gradient
    samples, scale = singles(objective)
    lengths = [slope.numel() for slope in whole.values()]
    total = torch.zeros(())
    # Of the norms of all gradients, by parameter.
    sizes = torch.zeros(len(lengths))
    for number, sample in enumerate(samples):
        is_wanted = most is None or number < most
        if not is_wanted and isinstance(objective.network, Layered):
            return
        with alone():
            gradient = LossGradient(sample.problem).flat.double() * sample.factor
        total = total + gradient
        norms = [piece.norm().cpu() for piece in gradient.split(lengths)]
        sizes = sizes + torch.stack(norms)
        if is_wanted:
            yield gradient
    mean = scale / len(samples)
    total_by_name = dict(zip(whole, (mean * total).split(lengths), strict=True))
    change = partial(_change, objective, whole)
    check_sum(whole, total_by_name, (mean * sizes).tolist(), change)


def _change(objective: Objective, here: Mapping[str, Tensor]) -> float:
    """Return |g(w + d) - g(w)| |w| / |d|, which does not vanish at a perfect fit, where all gradients are rounding.

    d has the length STEP |w| in every parameter, along random signs (witness.step_of). To
    first order it is the change of the gradient under a step as long as the weights.
    """
    leaves = leaves_of(objective, here)
    at = {name: leaf.detach() for name, leaf in leaves.items()}
    steps = step_of(at)
    beside = {name: (at[name] + steps[name]).requires_grad_() for name in at}
    there = derivatives(terms_of(objective, beside), beside, (), 1).slopes
    return length(there[name] - gradient for name, gradient in here.items()) / STEP


def check_alike(objective: Objective) -> None:
    """Raise UserError if samples of the batch have different weights, or interact in a network of a user."""
    weights = sample_weights(objective, objective.batch).weights
    allowed = LOSS.double * weights.abs().max()
    if bool(((weights - weights[0]).abs() > allowed).any()):
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
    r"""Raise UserError if gradients of single samples do not add up to that of all; the error names the parameters.

    For the rows p of a parameter, with S_p the sum of the norms of the summands g_ip
    (`sizes`), t = rounding.SINGLES and eps of the type, the gradients add up if

    .. math:: \Bigl|g_p - \sum_i g_{ip}\Bigr| \le t S_p + 10^3 \epsilon \sum_q S_q
              \text{ for all } p,

    or if no difference is above 10^3 eps times the `change` of the gradient under a step
    as long as the weights, which is called only then. By the triangle inequality
    |g_p| <= S_p: rounding of a sum is relative to its terms, not to its value. Gradients
    that are not finite are not checked.

    Parameters
    ----------
    whole, total : dict
        The gradient of the loss, and the sum of those of the samples, by parameter.
    sizes : sequence of float
        S_p, in the order of `whole`.
    change : callable, optional
        Returns the change; 0 by default.
    """
    if not all(bool(gradient.isfinite().all()) for gradient in whole.values()):
        return
    noise = _NOISE * torch.finfo(next(iter(whole.values())).dtype).eps
    wrong = dict[str, float]()
    for (name, gradient), size in zip(whole.items(), sizes, strict=True):
        of_singles = total[name].to(gradient.device).flatten()
        off = float((gradient.double().flatten() - of_singles).norm())
        if not off <= SINGLES.of(gradient.dtype) * size + noise * sum(sizes):
            wrong[name] = off
    if wrong and not max(wrong.values()) <= noise * change():
        shares = []
        for name, off in wrong.items():
            share = off / (float(whole[name].norm()) or off)
            shares.append(f"{name} by {share:.2g} of its length")
        raise samples_interact(
            f"the gradients of single samples do not add up to that of the loss: off in {first_few(shares)}"
        )


@contextmanager
def alone() -> Iterator[None]:
    """Turn any exception of a network or loss for a single sample into a UserError."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise samples_interact(
            f"{type(error).__name__} of a sample alone: {plain(str(error), most=200)}"
        ) from error


def samples_interact(got: str) -> UserError:
    """Return the error for samples that interact."""
    return UserError(
        "quantities of single samples (Fisher matrices, Shampoo, noise_scale, ...): the samples see each other, or "
        "cannot be taken alone",
        got=got,
        allowed="a network and a loss whose results for a sample do not depend on the others, with outputs and "
        "targets that have samples as their first axis",
        remedy="leave these quantities out; of approximations, diagonal, kfoc and kronecker_sum need no single samples",
    )
