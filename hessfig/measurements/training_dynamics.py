"""Quantities of a state of a training: loss, accuracy, norms, gradient noise, and the cost of the training.

Letters: w all parameters, L the loss of the measuring batch, g_i the gradient of example
i and g = dL/dw their mean, A_ij the weight of key j for query i.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

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
    exact,
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

EXAMPLES = 64  # of which a covariance of gradients is taken
# Repeats of a timing, and the seconds above which one is enough.
_REPEATS, _LONG = 3, 0.2


def loss(objective: Objective, request: Request) -> Measured:
    """Return the loss on the measuring batch: the function whose Hessian is measured."""
    return Measured([state_row("loss", request, float(loss_value(objective)))])


def accuracy(objective: Objective, request: Request) -> Measured:
    """Return shares of training.evaluation_size sums, each with its standard error sqrt(p (1 - p) / n).

    `accuracy`: whole answers (no index), then digits, 1 the most significant.
    `cascade_accuracy`: whole answers, and digits, of as many sums with three carries in a row
    (hessfig.tasks.addition.has_cascade), uniform among those. Of pictures: the share of the
    test pictures that are classified rightly.

    The error is that of n independent draws with the probability p; it is 0 at p = 0 and p =
    1.
    """
    task = request.at.config.task
    size = request.at.config.training.evaluation_size
    network = objective.network
    rows = _accuracy_rows("accuracy", request, right_answers(network, task, size))
    if has_cascades(task):
        hard = right_answers(network, task, size, cascade_batch)
        rows += _accuracy_rows("cascade_accuracy", request, hard)
    return Measured(rows)


def held_out_loss(objective: Objective, request: Request) -> Measured:
    r"""Return the loss on examples that no training sees (tasks.examples.unseen_batch), with its standard error.

    With the losses l_i of n examples, mean l and error std(l_i) / sqrt(n).

    For cross-entropy there are the losses of two models that see no input: `uniform_loss`, ln
    V of V equally likely classes, and `unigram_loss`,

    .. math:: -\sum_c p_c \ln p_c,

    of the shares p_c that the classes have among these very targets (the least there is, by
    Gibbs' inequality). For text, `bigram_loss` is that of a table of pairs of characters in
    the training text (tasks.text.bigram_losses).
    """
    config = request.at.config
    task = config.task
    network = objective.network
    like = next(network.parameters())
    batch = unseen_batch(task, config.training.evaluation_size, config.dtype)
    batch = batch.cast(like.dtype).to(like.device)
    pieces = zip(batch.inputs.split(AT_ONCE), batch.targets.split(AT_ONCE), strict=True)
    by_piece = []
    with torch.no_grad():
        for inputs, targets in pieces:
            outputs = scored_outputs(network, inputs, batch.scored)
            by_piece.append(per_sample(objective.loss, outputs, targets).double())
    losses = torch.cat(by_piece)
    loss = Estimate(float(losses.mean()), standard_error(losses), 0, "unseen examples")
    rows = [state_row("held_out_loss", request, loss)]
    if task.loss == Loss.cross_entropy:
        classes = task.vocabulary
        counts = torch.bincount(batch.targets.flatten(), minlength=classes).double()
        shares = counts / batch.targets.numel()
        blind = {
            "uniform_loss": math.log(classes),
            "unigram_loss": float(torch.special.entr(shares).sum()),
        }
        rows += state_rows(request, blind)
    if task.data == Data.text:
        table = torch.from_numpy(bigram_losses(task))
        of_pairs = table[batch.inputs[:, batch.scored], batch.targets]
        rows += state_rows(request, {"bigram_loss": float(of_pairs.mean())})
    return Measured(rows)


def gradient_norm(objective: Objective, request: Request) -> Measured:
    """Return the norm of the loss's gradient: of all parameters, and of every requested weight.

    |g| with g = dL/dw, and |g_W| of the entries of a weight W, so that the squares of weights
    that share no entry add up.
    """
    gradient = LossGradient(objective).gradient
    return Measured(norm_rows("gradient_norm", objective, request, gradient))


def weight_norm(objective: Objective, request: Request) -> Measured:
    """Return the Euclidean norm of all parameters, and of every requested weight.

    |w|, and |W| of every weight, which is ||W||_F of a matrix.
    """
    parameters = {}
    for name, parameter in objective.network.named_parameters():
        parameters[name] = parameter.detach()
    return Measured(norm_rows("weight_norm", objective, request, parameters))


@torch.no_grad()
def residual_norm(objective: Objective, request: Request) -> Measured:
    """Return mean |h| over sequences and positions after layer 0 (the embeddings), 1, ...; `layer` says which.

    Raises UserError for a network that does not show its residual stream h.
    """
    network = objective.network
    if not isinstance(network, Layered):
        raise without_layers("residual_norm", type(network).__name__)
    rows = []
    for layer in range(len(objective.layers) + 1):
        lengths = []
        for batch in objective.batches:
            hidden = network.hidden(batch.inputs, layer)
            lengths.append(hidden.norm(dim=-1).flatten())
        mean = float(torch.cat(lengths).mean())
        rows.append(state_row("residual_norm", request, mean, layer=layer))
    return Measured(rows)


@torch.no_grad()
def score_spread(objective: Objective, request: Request) -> Measured:
    """Return, layer by layer, the standard deviation over sums, heads and pairs of positions on the measuring batch.

    Of the scores before the softmax (pairs that the mask allows), and of the mixing weights
    after it (all pairs, with the zeros of masked ones). The divisor is the number of pairs
    less one.
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
    r"""Return the distribution of attention on the measuring batch; A_ij is the weight of key j <= i for query i.

    `sink_mass`, by layer and head (`index`): the mean of A_i1 over sequences and queries i >
    1, the weight of the first key. `key_mass`, by layer and position j of the key (`index`):

    .. math:: \text{mean}_{i \ge j} \; i A_{ij}

    over sequences, heads and queries, which is 1 at every j for uniform attention, A_ij = 1 /
    i.
    """
    rows = []
    for layer, (_, _, pattern) in enumerate(_attention(objective), start=1):
        first = pattern[:, :, 1:, 0].mean(dim=(0, 2))
        # i, and for every key j the number of queries that see it.
        i = torch.arange(1, pattern.shape[-1] + 1, device=pattern.device)
        seen_by = i.flip(0)
        weighted = pattern.mean(dim=(0, 1)) * i.unsqueeze(1)
        keys = weighted.sum(dim=0) / seen_by
        for name, values in (("sink_mass", first), ("key_mass", keys)):
            for index, value in enumerate(values, 1):
                row = state_row(name, request, float(value), layer=layer, index=index)
                rows.append(row)
    return Measured(rows)


def gradient_covariance(objective: Objective, request: Request) -> Measured:
    """Return trace and largest eigenvalue of C = 1/(k - 1) sum_i (g_i - g)(g_i - g)^T, g_i the gradient of example i.

    Of the measuring batch's first k = 64 examples that count (all, where it has fewer), with
    the g_i of noise_scale. The gradient of a mini-batch of m examples, drawn independently, has
    the covariance C / m. No error is known of one batch. The eigenvalues are those of a k x k
    matrix (`gram`), which takes k gradients and no product with H.
    """
    values = gram(objective)
    numbers = {
        "gradient_covariance": without_error(float(values.sum())),
        "gradient_covariance_eigenvalue": without_error(float(values[-1])),
    }
    return Measured(state_rows(request, numbers))


def noise_scale(objective: Objective, request: Request) -> Measured:
    r"""Return tr(C) / |G|^2, the batch size at which the noise of a gradient is as large as the gradient.

    A mini-batch of m has the noise tr(C) / m in its squared gradient, which equals |G|^2
    there. Of McCandlish et al. (arXiv 1812.06162, equation 2.9), both without bias (appendix
    A.1): with the gradients g_i of the n examples of the measuring batch that count and their
    mean g,

    .. math:: \operatorname{tr} C = \frac{\sum_i |g_i|^2 - n |g|^2}{n - 1}, \qquad
              |G|^2 = |g|^2 - \frac{\operatorname{tr} C}{n},

    as E |g|^2 = |G|^2 + tr(C) / n. Where examples do not count alike, g_i is n times the
    example's share of the gradient of the loss, so that g is that gradient. Not finite where
    noise hides the gradient, |G|^2 <= 0. No error is known of one batch. Raises UserError for
    examples that see each other.

    Examples
    --------
    The gradients 2 and 8, with mean 5: tr C = 68 - 50 = 18, and |G|^2 = 25 - 9 = 16.

    >>> import hessfig
    >>> network = torch.nn.Linear(1, 1, bias=False)
    >>> _ = network.weight.data.fill_(1.0)
    >>> problem = hessfig.Problem(network, torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1), "mse")
    >>> hessfig.measure(problem, quantities=["noise_scale"]).value.item()
    1.125
    """
    squares = 0.0
    total = torch.zeros(())
    count = 0
    for gradient in single_gradients(objective):
        squares = squares + float(gradient.square().sum())
        total = total + gradient
        count = count + 1
    mean = float((total / count).square().sum())
    scale = math.nan
    if count > 1:
        trace = (squares - count * mean) / (count - 1)
        signal = mean - trace / count
        if signal > 0:
            scale = trace / signal
    return Measured([state_row("noise_scale", request, without_error(scale))])


def num_parameters(objective: Objective, request: Request) -> Measured:
    """Return how many parameters every diagonal block has, and the network (without a row)."""
    number = sum(parameter.numel() for parameter in objective.network.parameters())
    rows = [state_row("num_parameters", request, float(number))]
    for block in request.blocks:
        size = float(objective.layout.size(block.layer, block.col))
        rows.append(state_row("num_parameters", request, size, block=block))
    return Measured(rows)


def training_cost(objective: Objective, request: Request) -> Measured:
    r"""Return the seconds of all updates and curvature refreshes so far, with counts and the seconds of one of each.

    .. math:: \text{seconds} = \text{updates} \cdot t_{update} + \text{refreshes} \cdot t_{refresh}

    An update and a refresh are timed on a copy of this network (the median of three of each,
    or fewer where refreshes take more than 0.2 s together). Seconds are of this machine, and
    differ from run to run; the counts of refreshes (`looks`) and of their products do not.
    """
    spent = cost_of(objective, request.at)
    numbers = {
        "hessian_products": exact(float(spent.products)),
        "looks": exact(float(spent.num_refreshes)),
        "training_cost": without_error(spent.seconds, "clock"),
        "update_seconds": without_error(spent.update, "clock"),
        "look_seconds": without_error(spent.refresh, "clock"),
    }
    return Measured(state_rows(request, numbers))


def norm_rows(
    quantity: str, objective: Objective, request: Request, tensors: dict[str, Tensor]
) -> list[Row]:
    """Return the Euclidean norm of `tensors`, by parameter: of all of them, then of every diagonal block's weights.

    Squares are added in float64; where they under- or overflow, the norm is taken in units
    (`norm_of_all`).
    """
    squares = [tensor.double().square().sum() for tensor in tensors.values()]
    whole = norm_of_all(tensors.values(), float(sum(squares)) ** 0.5)
    rows = [state_row(quantity, request, whole)]
    for block in request.blocks:
        if not block.is_diagonal:
            continue
        weights = []
        for weight in objective.layout.side(block.layer, block.col):
            weights.append(view_of(tensors[weight.parameter], weight).double())
        plain = sum(float(tensor.square().sum()) for tensor in weights) ** 0.5
        norm = norm_of_all(weights, plain)
        rows.append(state_row(quantity, request, norm, block=block))
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


@torch.no_grad()
def _inputs(objective: Objective) -> list[tuple[SelfAttention | BareAttention, Tensor]]:
    """Return every attention layer with its inputs at all positions, recorded in one pass of the network."""
    from hessfig.models.networks import BareAttention, SelfAttention

    network = objective.network
    tokens = objective.batch.inputs
    if isinstance(network, BareAttention):
        return [(network, network.hidden(tokens, 0).detach())]
    inputs: list[tuple[SelfAttention | BareAttention, Tensor]] = []

    def record(module: Any, arguments: tuple[Any, ...], _: Any) -> None:
        inputs.append((module, arguments[0].detach()))

    modules = [one for one in network.modules() if isinstance(one, SelfAttention)]
    with hooked(modules, record):
        network(tokens)
    return inputs


def gram(objective: Objective) -> Float[Tensor, " k"]:
    """Return the eigenvalues of C but for zeros, rising: of the Gram matrix of k centred gradients over k - 1.

    C = D^T D / (k - 1) for the rows D of centred gradients has the nonzero eigenvalues of D
    D^T / (k - 1), which has k rows however many parameters there are: if D D^T x = mu x, then
    D^T D (D^T x) = mu D^T x. Rounding below 0 counts as 0; a single example has none (NaN).

    Examples
    --------
    Two gradients, 2 and 8, have the variance 18, and the centred ones one degree of freedom:

    >>> import hessfig
    >>> network = torch.nn.Linear(1, 1, bias=False)
    >>> _ = network.weight.data.fill_(1.0)
    >>> problem = hessfig.Problem(network, torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1), "mse")
    >>> [round(value, 9) for value in gram(problem.objective("float64")).tolist()]
    [0.0, 18.0]
    """
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
    """Return the cost of the training up to its step, timed at its batches' size and in its type.

    A rule with curvature refreshes it before the first update and every training.refresh
    updates, ceil(updates / refresh) times.
    """
    training = at.config.training
    updates = at.step or 0
    is_refreshed = (
        training.curvature != Curvature.none or training.optimiser.facts.divides
    )
    refreshes = 0
    if is_refreshed:
        refreshes = -(-updates // training.refresh)
    update, refresh = _seconds(objective, at)
    products = refreshes * _products(objective, training)
    return Cost(update, refresh, updates, refreshes, products)


def _products(objective: Objective, training: TrainingConfig) -> int:
    """Return the products of one refresh: of a solver, or of the estimates of the curvature's blocks."""
    if training.optimiser.facts.divides:
        loss = BatchLoss(objective.network, objective.loss, objective.batch)
        return products_of_a_solver(training.optimiser, loss)
    count = len(list(objective.network.parameters()))
    return products_of_a_refresh(training.curvature, count)


def _seconds(objective: Objective, at: At) -> tuple[float, float]:
    """Return the seconds of an update and of a refresh, on a copy of the network.

    The weights are restored after each repeat, since a large rate may lead too far.
    """
    training = at.config.training
    dtype = getattr(torch, DType(training.dtype))
    network = copy.deepcopy(objective.network).to(dtype).requires_grad_(True)
    rule = StepRule(network, replace(training, refresh=1))
    batch = training_batch(at.config, seed=at.seed, step=1)
    device = next(network.parameters()).device
    loss = BatchLoss(network, objective.loss, batch.to(device))
    weights = copy.deepcopy(network.state_dict())

    def gradient() -> None:
        network.zero_grad(set_to_none=True)
        loss().backward()

    def update() -> None:
        gradient()
        rule.update(1)

    def refresh() -> None:
        rule.refresh_curvature(1, loss, seed=at.seed)

    updates: list[float] = []
    refreshes: list[float] = []
    with torch.enable_grad():
        # A refresh finds one; and a rule that divides by curvature is refreshed before
        # its first update.
        gradient()
        while len(updates) < _REPEATS and sum(refreshes) < _LONG:
            refreshes.append(_time(refresh))
            updates.append(_time(update))
            # A large rate may lead too far for a second refresh.
            network.load_state_dict(weights)
    return statistics.median(updates), statistics.median(refreshes)


def _time(work: Callable[[], None]) -> float:
    """Return the seconds that some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _accuracy_rows(name: str, request: Request, right: Tensor) -> list[Row]:
    """Return the share of whole answers, then that of every digit where there are several.

    An answer is right if all its digits are; each row has its binomial error.
    """
    hits_at: dict[int | None, Tensor] = {None: right.all(dim=1)}
    if right.shape[1] > 1:
        hits_at |= dict(enumerate(right.unbind(1), 1))
    rows = []
    for index, hits in hits_at.items():
        share = float(hits.double().mean())
        error = (share * (1 - share) / len(hits)) ** 0.5
        estimate = Estimate(share, error, 0, "unseen sums")
        rows.append(state_row(name, request, estimate, index=index))
    return rows
