"""Quantities of a state of a training: loss, accuracy, norms, gradient noise, and the cost of the training."""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config.enums import Curvature, Data, DType, Loss
from hessfig.config.training_settings import TrainingConfig
from hessfig.curvature.column import view_of
from hessfig.curvature.gradients import LossGradient, loss_value
from hessfig.curvature.losses import per_sample
from hessfig.curvature.problem import (
    Layered,
    Objective,
    hooked,
    scored_outputs,
    standard_error,
)
from hessfig.curvature.rounding import norm_of_all
from hessfig.curvature.samples import single_gradients
from hessfig.curvature.spectral.densities import eigenvalues
from hessfig.measurements.quantity import (
    At,
    Estimate,
    Measured,
    Request,
    Row,
    state_row,
    state_rows,
    without_error,
)
from hessfig.measurements.requirements import without_layers
from hessfig.models.components import outside_window
from hessfig.states.training.loop import AT_ONCE, right_answers
from hessfig.states.training.second_order import BatchLoss, products_of_a_solver
from hessfig.states.training.step_rules import StepRule, products_of_a_refresh
from hessfig.tasks.examples import (
    cascade_batch,
    has_cascades,
    training_batch,
    unseen_batch,
)
from hessfig.tasks.text import bigram_losses

if TYPE_CHECKING:
    from hessfig.models.networks import BareAttention, SelfAttention

EXAMPLES = 64
_REPEATS, _LONG = 3, 0.2  # repeats of a timing; seconds above which one is enough


def loss(objective: Objective, request: Request) -> Measured:
    """Return the loss on the measuring batch: the function whose Hessian is measured."""
    return Measured([state_row("loss", request, float(loss_value(objective)))])


def accuracy(objective: Objective, request: Request) -> Measured:
    """Return shares of training.evaluation_size sums, each with its standard error sqrt(p (1 - p) / n).

    `accuracy`: whole answers (no index), then digits, 1 the most significant.
    `cascade_accuracy`: whole answers, and digits, of as many sums with three carries in
    a row (hessfig.tasks.addition.has_cascade), uniform among those. Of pictures: the
    share of the test pictures that are classified rightly.
    """
    task, size = request.at.config.task, request.at.config.training.evaluation_size
    rows = _accuracy_rows(
        "accuracy", request, right_answers(objective.network, task, size)
    )
    if has_cascades(task):
        hard = right_answers(objective.network, task, size, cascade_batch)
        rows += _accuracy_rows("cascade_accuracy", request, hard)
    return Measured(rows)


def held_out_loss(objective: Objective, request: Request) -> Measured:
    """Return the loss on examples that no training sees (tasks.examples.unseen_batch), with its standard error.

    For cross-entropy there are the losses of two models that see no input:
    `uniform_loss`, ln V of V equally likely classes, and `unigram_loss`, of the shares
    that the classes have among these very targets (the least there is). For text,
    `bigram_loss` is that of a table of pairs of characters in the training text
    (tasks.text.bigram_losses).
    """
    config, network = request.at.config, objective.network
    like = next(network.parameters())
    batch = (
        unseen_batch(config.task, config.training.evaluation_size, config.dtype)
        .cast(like.dtype)
        .to(like.device)
    )
    with torch.no_grad():
        pairs = zip(
            batch.inputs.split(AT_ONCE), batch.targets.split(AT_ONCE), strict=True
        )
        singles = [
            per_sample(
                objective.loss, scored_outputs(network, x, batch.scored), y
            ).double()
            for x, y in pairs
        ]
    losses = torch.cat(singles)
    loss = Estimate(float(losses.mean()), standard_error(losses), 0, "unseen examples")
    rows = [state_row("held_out_loss", request, loss)]
    if config.task.loss == Loss.cross_entropy:
        classes = config.task.vocabulary
        shares = (
            torch.bincount(batch.targets.flatten(), minlength=classes).double()
            / batch.targets.numel()
        )
        unigram = float(torch.special.entr(shares).sum())
        rows += state_rows(
            request, {"uniform_loss": math.log(classes), "unigram_loss": unigram}
        )
    if config.task.data == Data.text:
        of_pairs = torch.from_numpy(bigram_losses(config.task))[
            batch.inputs[:, batch.scored], batch.targets
        ]
        rows += state_rows(request, {"bigram_loss": float(of_pairs.mean())})
    return Measured(rows)


def gradient_norm(objective: Objective, request: Request) -> Measured:
    """Return the norm of the loss's gradient: of all parameters, and of every requested weight."""
    return Measured(
        norm_rows("gradient_norm", objective, request, LossGradient(objective).gradient)
    )


def weight_norm(objective: Objective, request: Request) -> Measured:
    """Return the Euclidean norm of all parameters, and of every requested weight."""
    parameters = {
        name: parameter.detach()
        for name, parameter in objective.network.named_parameters()
    }
    return Measured(norm_rows("weight_norm", objective, request, parameters))


def residual_norm(objective: Objective, request: Request) -> Measured:
    """Return mean |h| over sequences and positions after layer 0 (the embeddings), 1, ...; `layer` says which."""
    if not isinstance(objective.network, Layered):
        raise without_layers("residual_norm", type(objective.network).__name__)
    rows = []
    with torch.no_grad():
        for layer in range(len(objective.layers) + 1):
            lengths = [
                objective.network.hidden(batch.inputs, layer).norm(dim=-1).flatten()
                for batch in objective.batches
            ]
            rows.append(
                state_row(
                    "residual_norm",
                    request,
                    float(torch.cat(lengths).mean()),
                    layer=layer,
                )
            )
    return Measured(rows)


@torch.no_grad()
def score_spread(objective: Objective, request: Request) -> Measured:
    """Return, layer by layer, the standard deviation over sums, heads and pairs of positions on the measuring batch.

    Of the scores before the softmax (pairs that the mask allows), and of the mixing
    weights after it (all pairs).
    """
    rows = []
    for layer, (scores, masked, pattern) in enumerate(_attention(objective), start=1):
        allowed = ~masked[: scores.shape[-2], : scores.shape[-1]]
        numbers = {
            "score_spread": float(scores[..., allowed].double().std()),
            "pattern_spread": float(pattern.std()),
        }
        rows += state_rows(request, numbers, layer=layer)
    return Measured(rows)


@torch.no_grad()
def sink_mass(objective: Objective, request: Request) -> Measured:
    """Return the distribution of attention on the measuring batch; A_ij is the weight of key j <= i for query i.

    `sink_mass`, by layer and head (`index`): the mean of A_i1 over sequences and
    queries i > 1, the weight of the first key. `key_mass`, by layer and position j of
    the key (`index`): the mean of i A_ij over sequences, heads and queries i >= j,
    which is 1 at every j for uniform attention.
    """
    rows = []
    for layer, (_, _, pattern) in enumerate(_attention(objective), start=1):
        first = pattern[:, :, 1:, 0].mean(dim=(0, 2))
        allowed = torch.arange(1, pattern.shape[-1] + 1, device=pattern.device)
        keys = (pattern.mean(dim=(0, 1)) * allowed.unsqueeze(1)).sum(
            dim=0
        ) / allowed.flip(0)
        for name, values in (("sink_mass", first), ("key_mass", keys)):
            rows += [
                state_row(name, request, float(value), layer=layer, index=k)
                for k, value in enumerate(values, 1)
            ]
    return Measured(rows)


def gradient_covariance(objective: Objective, request: Request) -> Measured:
    """Return trace and largest eigenvalue of C = 1/(k - 1) sum_i (g_i - g)(g_i - g)^T, g_i the gradient of example i.

    Of the measuring batch's first k = 64 examples that count (all, where it has fewer),
    with the g_i of noise_scale; C of a mini-batch of m is C / m. No error is known of
    one batch.
    """
    eigenvalues = gram(objective)
    trace = without_error(float(eigenvalues.sum()))
    largest = without_error(float(eigenvalues[-1]))
    return Measured(
        state_rows(
            request,
            {"gradient_covariance": trace, "gradient_covariance_eigenvalue": largest},
        )
    )


def noise_scale(objective: Objective, request: Request) -> Measured:
    """Return tr(C) / |G|^2, the batch size at which the noise of a gradient is as large as the gradient.

    Of McCandlish et al. (arXiv 1812.06162, equation 2.9), both without bias (appendix
    A.1): with the gradients g_i of the n examples of the measuring batch that count and
    their mean g, tr(C) = (sum_i |g_i|^2 - n |g|^2) / (n - 1), and
    |G|^2 = |g|^2 - tr(C) / n. Where examples do not count alike, g_i is n times the example's share of the gradient of
    the loss, so that g is that gradient. Not finite where noise hides the gradient,
    |G|^2 <= 0. No error is known of one batch. Raises UserError for examples that see
    each other.
    """
    squares, total, count = 0.0, torch.zeros(()), 0
    for gradient in single_gradients(objective):
        squares = squares + float(gradient.square().sum())
        total = total + gradient
        count = count + 1
    mean = float((total / count).square().sum())
    trace = (squares - count * mean) / (count - 1) if count > 1 else math.nan
    signal = mean - trace / count
    return Measured(
        [
            state_row(
                "noise_scale",
                request,
                without_error(trace / signal if signal > 0 else math.nan),
            )
        ]
    )


def num_parameters(objective: Objective, request: Request) -> Measured:
    """Return how many parameters every diagonal block has, and the network (without a row)."""
    rows = [
        state_row(
            "num_parameters",
            request,
            float(sum(p.numel() for p in objective.network.parameters())),
        )
    ]
    sizes = (
        (block, objective.layout.size(block.layer, block.col))
        for block in request.blocks
    )
    return Measured(
        [
            *rows,
            *(
                state_row("num_parameters", request, float(size), block=at)
                for at, size in sizes
            ),
        ]
    )


def training_cost(objective: Objective, request: Request) -> Measured:
    """Return the seconds of all updates and curvature refreshes so far, the counts of products
    and refreshes, and the seconds of one update and one refresh.

    An update and a refresh are timed on a copy of this network (the median of three of
    each, or one where it takes more than 0.2 s); the sum is what that many would take.
    Seconds are of this machine, and differ from run to run.
    """
    spent = cost_of(objective, request.at)
    counted = {
        "hessian_products": float(spent.products),
        "looks": float(spent.num_refreshes),
    }
    timed = {
        "training_cost": spent.seconds,
        "update_seconds": spent.update,
        "look_seconds": spent.refresh,
    }
    clocked = {name: without_error(value, "clock") for name, value in timed.items()}
    return Measured(state_rows(request, counted) + state_rows(request, clocked))


def norm_rows(
    quantity: str, objective: Objective, request: Request, tensors: dict[str, Tensor]
) -> list[Row]:
    """Return the Euclidean norm of `tensors`, by parameter: of all of them, then of every diagonal block's weights."""
    whole = [tensor.double().square().sum() for tensor in tensors.values()]
    rows = [
        state_row(
            quantity, request, norm_of_all(tensors.values(), float(sum(whole)) ** 0.5)
        )
    ]
    for block in request.blocks:
        if block.is_diagonal:
            side = objective.layout.side(block.layer, block.col)
            own = [
                view_of(tensors[weight.parameter], weight).double() for weight in side
            ]
            plain = sum(float(tensor.square().sum()) for tensor in own) ** 0.5
            rows.append(
                state_row(quantity, request, norm_of_all(own, plain), block=block)
            )
    return rows


def _attention(objective: Objective) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield scores, mask and mixing weights (float64) of every attention layer at all positions."""
    for attention, hidden in _inputs(objective):
        scores = attention.scores(hidden, slice(None))
        masked = _masked(attention, scores)
        yield scores, masked, attention.pattern(scores, slice(None), masked).double()


def _masked(attention: SelfAttention | BareAttention, scores: Tensor) -> Tensor:
    """Return the mask of keys that a query does not see; the bare layer masks by its window only."""
    causal: Tensor | None = getattr(attention, "causal_mask", None)
    if causal is not None:
        return causal
    return outside_window(scores.shape[-1], attention.model.window, scores.device)


def _inputs(objective: Objective) -> list[tuple[SelfAttention | BareAttention, Tensor]]:
    """Return every attention layer with its inputs at all positions."""
    from hessfig.models.networks import BareAttention, SelfAttention

    if isinstance(objective.network, BareAttention):
        return [
            (
                objective.network,
                objective.network.hidden(objective.batch.inputs, 0).detach(),
            )
        ]
    inputs: list[tuple[SelfAttention | BareAttention, Tensor]] = []
    modules = [
        module
        for module in objective.network.modules()
        if isinstance(module, SelfAttention)
    ]
    with (
        hooked(
            modules, lambda module, given, _: inputs.append((module, given[0].detach()))
        ),
        torch.no_grad(),
    ):
        objective.network(objective.batch.inputs)
    return inputs


def gram(objective: Objective) -> Float[Tensor, " k"]:
    """Return the eigenvalues of C but for zeros, rising: of the Gram matrix of k centred gradients over k - 1."""
    single = list(single_gradients(objective, EXAMPLES))
    if len(single) < 2:
        return torch.full((1,), float("nan"), dtype=torch.float64)
    slopes = torch.stack(single)
    centred = slopes - slopes.mean(dim=0)
    return eigenvalues(centred @ centred.T / (len(slopes) - 1)).clamp(min=0)


@dataclass(frozen=True)
class Cost:
    """Seconds of one update and one curvature refresh, the count of each, and the products of all refreshes."""

    update: float
    refresh: float
    updates: int
    num_refreshes: int
    products: int

    @property
    def seconds(self) -> float:
        """Seconds of all updates and refreshes together."""
        return self.updates * self.update + self.num_refreshes * self.refresh


def cost_of(objective: Objective, at: At) -> Cost:
    """Return the cost of the training up to its step, timed at its batches' size and in its type."""
    training, updates = at.config.training, at.step or 0
    looks = training.curvature != Curvature.none or training.optimiser.facts.divides
    refreshes = -(-updates // training.refresh) if looks else 0
    update, refresh = _seconds(objective, at)
    return Cost(
        update, refresh, updates, refreshes, refreshes * _products(objective, training)
    )


def _products(objective: Objective, training: TrainingConfig) -> int:
    if training.optimiser.facts.divides:
        return products_of_a_solver(
            training.optimiser,
            BatchLoss(objective.network, objective.loss, objective.batch),
        )
    return products_of_a_refresh(
        training.curvature, len(list(objective.network.parameters()))
    )


def _seconds(objective: Objective, at: At) -> tuple[float, float]:
    training = at.config.training
    network = (
        copy.deepcopy(objective.network)
        .to(getattr(torch, DType(training.dtype)))
        .requires_grad_(True)
    )
    rule = StepRule(network, replace(training, refresh=1))
    batch = training_batch(at.config, seed=at.seed, step=1)
    loss = BatchLoss(
        network, objective.loss, batch.to(next(network.parameters()).device)
    )
    weights = copy.deepcopy(network.state_dict())

    def gradient() -> None:
        network.zero_grad(set_to_none=True)
        loss().backward()

    def update() -> None:
        gradient()
        rule.update(1)

    updates, refreshes = list[float](), list[float]()
    with torch.enable_grad():
        gradient()  # a refresh finds one; and a rule that divides by curvature is refreshed before its first update
        while len(updates) < _REPEATS and sum(refreshes) < _LONG:
            refreshes.append(
                _time(lambda: rule.refresh_curvature(1, loss, seed=at.seed))
            )
            updates.append(_time(update))
            # A large rate may lead too far for a second refresh.
            network.load_state_dict(weights)
    return statistics.median(updates), statistics.median(refreshes)


def _time(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _accuracy_rows(name: str, request: Request, right: Tensor) -> list[Row]:
    places = right.unbind(1) if right.shape[1] > 1 else ()
    shares = [(None, right.all(dim=1)), *enumerate(places, 1)]
    rows = []
    for index, hits in shares:
        share = float(hits.double().mean())
        error = (share * (1 - share) / len(hits)) ** 0.5
        rows.append(
            state_row(
                name, request, Estimate(share, error, 0, "unseen sums"), index=index
            )
        )
    return rows
