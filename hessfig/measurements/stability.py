"""Stability of a training at a state: the loss along its next update, and curvature against the rule's threshold."""

import copy
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config.enums import Curvature, Schedule
from hessfig.config.training_settings import TrainingConfig
from hessfig.curvature.column import entries_of
from hessfig.curvature.gradients import (
    LossGradient,
    above_rounding,
    loss_of,
    loss_value,
)
from hessfig.curvature.problem import Batch, Objective
from hessfig.curvature.spectral.extremes import End
from hessfig.curvature.spectral.lanczos import NotFinite, Square
from hessfig.errors import UserError
from hessfig.measurements.eigenvalues import extremes_of, outer_estimate
from hessfig.measurements.quantity import (
    At,
    Estimate,
    Measured,
    Request,
    state_row,
    state_rows,
)
from hessfig.measurements.torch_optimisers import steps_of
from hessfig.models.routes import Engines
from hessfig.states.stored_states import moments
from hessfig.states.training.second_order import BatchLoss
from hessfig.states.training.step_rules import StepRule, learning_rate
from hessfig.tasks.examples import is_full_batch, training_batch
from hessfig.terms import Block, Group, Optimiser, Part

_DOUBLINGS, _HALVINGS = 40, 6
Named = dict[str, Tensor]


def batch_sharpness(objective: Objective, request: Request) -> Measured:
    """Return the mean of g.H_B g / |g|^2 over mini-batches B, with its standard error.

    There are estimator.num_probes of them, drawn as the training draws its own, from a
    stream that it does not see. Full-batch training has one batch, and an error of 0; a
    single mini-batch has none (NaN).
    """
    at = request.at
    config = replace(
        at.config, training=replace(at.config.training, dtype=at.config.dtype)
    )
    full = is_full_batch(config)
    name = f"sharpness at {at.step or 0}"
    values = []
    for number in range(1 if full else request.estimator.num_probes):
        batch = training_batch(config, seed=at.seed, step=number, name=name)
        moved = batch.to(next(objective.network.parameters()).device)
        values.append(along_gradient(replace(objective, batch=moved, more=())))
    if len(values) > 1:
        spread = statistics.stdev(values) / len(values) ** 0.5
    else:
        spread = math.nan
    error, count = (0.0, 0) if full else (spread, len(values))
    mean = Estimate(statistics.fmean(values), error, count, "mini-batches")
    return Measured([state_row("batch_sharpness", request, mean)])


def critical_step(objective: Objective, request: Request) -> Measured:
    """Return eta_c, the smallest step at which L(w - eta u) > L(w), and 2 / eta_c, with half the bracket as error.

    u is the update that the training's rule would make had its batch the measured
    gradient, without weight decay; L is the loss of the measuring batch. Where u does
    not lower the loss at all the number did not converge.
    """
    step = crossing_step(objective, request.at)
    step = replace(step, by="losses", is_unreliable=not step.error > 0)
    sharpness = 2 / step.value if step.value else float("nan")
    beside = sharpness * step.error / step.value if step.value else float("nan")
    sharp = replace(step, value=sharpness, error=beside)
    return Measured(
        state_rows(request, {"critical_step": step, "critical_sharpness": sharp})
    )


def stability_threshold(objective: Objective, request: Request) -> Measured:
    """Return eta of update step + 1 (a cosine's last one at its end), and the threshold of the largest eigenvalue.

    gd: 2 / eta. sgd: (2 + 2 momentum) / eta. adam, adamw: (2 + 2 beta1) / ((1 - beta1)
    eta), of P^-1 H (see preconditioned_eigenvalue; arXiv 2207.14484). Weight decay is
    left out.
    """
    del objective
    training, rate = request.at.config.training, coming_rate(request.at)
    return Measured(
        state_rows(
            request,
            {"stability_threshold": factor(training) / rate, "learning_rate": rate},
        )
    )


def coming_rate(at: At) -> float:
    """Return the learning rate of the next update; a cosine's last one at its end."""
    training, coming = at.config.training, (at.step or 0) + 1
    # A constant schedule does not depend on its length.
    ends = training.schedule == Schedule.cosine
    return learning_rate(training, min(coming, training.steps) if ends else coming)


def preconditioned_eigenvalue(objective: Objective, request: Request) -> Measured:
    """Return the largest eigenvalue of P^-1/2 H P^-1/2, which is that of P^-1 H, over every parameter.

    P = (1 - beta1^t) (sqrt(nu_t / (1 - beta2^t)) + eps) after t updates of adam or
    adamw; H is the loss's, without the weight decay. The error is the residual norm in
    the symmetric form. Before the first update there is no P, and no row. sgd has P = I
    at every step.
    """
    if request.at.config.training.optimiser.facts.is_adaptive and not request.at.step:
        return Measured([])
    diagonal = preconditioner(request.at, _weights(objective))
    return _scaled_eigenvalue(
        "preconditioned_eigenvalue",
        objective,
        request,
        _in_order(objective, diagonal).rsqrt(),
    )


def adaptive_sharpness(objective: Objective, request: Request) -> Measured:
    """Return the largest eigenvalue of |W| H |W|, where |W| is the diagonal of the absolute values of every parameter.

    To second order it is the worst rise of the loss under relative perturbations of the
    weights (adaptive sharpness of Kwon et al., 2021, ICML). Rescaling some weights, and
    others so that the network stays the same function, leaves it as it is, which is not
    true of the largest eigenvalue of H. A parameter at 0 has no part in it. The error
    is the residual norm.
    """
    sizes = {name: weight.abs() for name, weight in _weights(objective).items()}
    return _scaled_eigenvalue(
        "adaptive_sharpness", objective, request, _in_order(objective, sizes)
    )


def _scaled_eigenvalue(
    name: str, objective: Objective, request: Request, scale: Float[Tensor, " n"]
) -> Measured:
    """Return the largest eigenvalue of S H S over every parameter, for the diagonal S."""
    block = Block(0, Group.all.value, Group.all.value)
    engines = Engines(objective, request.model, request.estimator.products)
    square = Square(engines.column(0, Group.all.value, [block]), block, Part.H)
    generator = request.stream(0, Group.all.value)
    try:
        estimate = outer_estimate(
            extremes_of(Scaled(square, scale), End.largest, request.spectrum, generator)
        )
    except NotFinite:
        estimate = Estimate(math.nan, math.nan, 0, "lanczos")
    return Measured([state_row(name, request, estimate, block=block, part=Part.H)])


def predicted_decrease(objective: Objective, request: Request) -> Measured:
    """Return how much the training's next update lowers the loss: predicted, true, and true / predicted.

    The prediction is that of the quadratic model: -(g.d + 1/2 d.Hd), with g and H of
    the loss of the measuring batch and d the whole update, weight decay included. The
    true one is L(w) - L(w + d). Where d = 0, as in SOAP's first update, the ratio is
    not finite.
    """
    slope, update = LossGradient(objective), coming_update(objective, request.at)
    flat = torch.cat([update[name].flatten() for name in slope.gradient]).to(slope.flat)
    predicted = -float(slope.flat @ flat + flat @ slope.product(flat) / 2)
    with _moving(objective, update) as loss_at:
        true = loss_at(0.0) - loss_at(-1.0)
    ratio = true / predicted if predicted else math.nan
    numbers = {
        "predicted_decrease": predicted,
        "true_decrease": true,
        "decrease_ratio": ratio,
    }
    return Measured(state_rows(request, numbers))


def coming_update(objective: Objective, at: At) -> Named:
    """Return w' - w of the update that the training takes next, made by its own rule on a copy of the network."""
    step = (at.step or 0) + 1
    trial = Trial(objective, at.config.training)
    if step > 1:
        trial.rule.restore(
            moments(at.config, sigma=at.sigma, seed=at.seed, step=step - 1), step - 1
        )
    trial.step(step, training_batch(at.config, seed=at.seed, step=step), seed=at.seed)
    return trial.moved


def update_of(
    objective: Objective, at: At, optimiser: Optimiser, gradients: int
) -> Named:
    """Return the update w' - w that a rule would make at the state, without weight decay and warm-up, in dtype.

    Entries that the rule `sign` takes from the rounding of a gradient are 0 (see
    above_rounding). The training's own rule has its moments of the state and sees the
    next batch. Any other one sees `gradients` batches at the weights of the state,
    which fill its moments, and the last of its updates is taken. The measuring batch is
    seen by full-batch rules, by followed trainings, and where there are no examples.
    Raises UserError for a rule that divides by the curvature of several batches.
    """
    training, first = at.config.training, (at.step or 0) + 1
    if optimiser == training.optimiser and steps_of(at.moments or {}):
        coming = next_update(at, LossGradient(objective).gradient)
        rate = coming_rate(at)
        return {name: -rate * update for name, update in coming.items()}
    is_own = optimiser == training.optimiser and first > 1
    plain = replace(
        training,
        schedule=Schedule.constant,
        warmup=0,
        weight_decay=0.0,
        dtype=at.config.dtype,
    )
    plain = replace(
        plain,
        optimiser=optimiser,
        curvature=training.curvature if is_own else Curvature.none,
    )
    config, trial = replace(at.config, training=plain), Trial(objective, plain)
    if is_own:
        trial.rule.restore(
            {key: moment.to(trial.like) for key, moment in _moments(at).items()},
            first - 1,
        )
    is_measured = (
        optimiser.facts.is_full_batch
        or at.moments is not None
        or not config.task.data.facts.is_trainable
    )
    if is_measured and optimiser.facts.divides and objective.more:
        raise UserError(
            f"directions.rules: {optimiser} divides by the curvature of one batch",
            got=f"{len(objective.batches)} batches",
            allowed="one batch, or rules that take gradients alone",
            remedy="join the batches, or leave the rule out",
        )
    batch: Batch | None = None
    for place in range(1 if is_own else gradients):
        if is_measured:
            batch = None
        else:
            batch = training_batch(config, seed=at.seed, step=first + place)
        trial.restart()
        trial.step(first if is_own else place + 1, batch, seed=at.seed)
    if optimiser != Optimiser.sign:
        return trial.moved
    above = above_rounding(
        replace(objective, batch=batch.to(trial.like.device), more=())
        if batch
        else objective
    )
    return {name: change * above[name] for name, change in trial.moved.items()}


class Trial:
    """A step rule on a copy of a problem's network, in the training's type; `moved` is how far it is from the start."""

    def __init__(self, objective: Objective, training: TrainingConfig) -> None:
        self._problem, self._at = objective, next(objective.network.parameters())
        self.network = (
            copy.deepcopy(objective.network)
            .to(getattr(torch, training.dtype))
            .requires_grad_(True)
        )
        self._before = {
            name: parameter.detach().clone()
            for name, parameter in self.network.named_parameters()
        }
        self.rule = StepRule(self.network, training)
        self.like = next(iter(self._before.values()))

    def step(self, step: int, batch: Batch | None, *, seed: int) -> None:
        """Take update `step` on a batch of the training; on all measuring batches without one."""
        self.network.zero_grad(set_to_none=True)
        problem = replace(self._problem, network=self.network)
        loss = BatchLoss(
            self.network, problem.loss, (batch or problem.batch).to(self.like.device)
        )
        with torch.enable_grad():
            (loss() if batch else loss_of(problem)).backward()
            self.rule.refresh_curvature(step, loss, seed=seed)
            self.rule.update(step)

    def restart(self) -> None:
        """Restore the weights; the rule keeps its moments."""
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(self._before[name])

    @property
    def moved(self) -> Named:
        """w' - w, by the names of the parameters."""
        parameters = self.network.named_parameters()
        return {
            name: (parameter.detach() - self._before[name]).to(self._at)
            for name, parameter in parameters
        }


def factor(training: TrainingConfig) -> float:
    """Return threshold times learning rate."""
    if training.optimiser.facts.is_adaptive:
        first = training.betas[0]
        return (2 + 2 * first) / (1 - first)
    return 2 + 2 * training.momentum * ("momentum" in training.optimiser.facts.reads)


def crossing_step(objective: Objective, at: At) -> Estimate:
    """Return the step at which the loss along the next update crosses that of the start, with half its bracket."""
    slope = LossGradient(objective)
    update = next_update(at, slope.gradient)
    with _moving(objective, update) as loss_at:
        start = loss_at(0.0)
        if not math.isfinite(start):
            return Estimate(math.nan, math.nan, 0)
        # A loss that is nan counts as larger than every loss.
        return crossing(
            lambda step: not loss_at(step) <= start,
            first=at.config.training.learning_rate,
        )


def crossing(is_higher: Callable[[float], bool], *, first: float) -> Estimate:
    """Return the middle of a bracket [low, high] with the loss higher at `high` and not at `low`, and half of it.

    From `first` on by doubling or halving, then by bisection: the bracket ends at 1 /
    64 of `low`. The error is 0 where there is no such place within forty doublings: a
    line that falls for ever, or rises from the start.
    """
    up = not is_higher(first)
    low = high = first
    for _ in range(_DOUBLINGS):
        low, high = (high, 2 * high) if up else (low / 2, low)
        if is_higher(high) if up else not is_higher(low):
            break
    else:
        return Estimate(high if up else low, 0.0, 0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_higher(middle) else (middle, high)
    return Estimate((low + high) / 2, (high - low) / 2, 0)


@contextmanager
def _moving(
    objective: Objective, update: Mapping[str, Tensor]
) -> Iterator[Callable[[float], float]]:
    """Yield the function step -> loss at w - step * update; the weights are restored at the end."""
    parameters = dict(objective.network.named_parameters())
    before = {
        name: parameter.detach().clone() for name, parameter in parameters.items()
    }

    def loss_at(step: float) -> float:
        for name, parameter in parameters.items():
            parameter.copy_(before[name] - step * update[name])
        return float(loss_value(objective))

    with torch.no_grad():
        try:
            yield loss_at
        finally:
            for name, parameter in parameters.items():
                parameter.copy_(before[name])


def along_gradient(objective: Objective) -> float:
    """Return g.H g / |g|^2 of the problem's own loss; NaN where the gradient vanishes."""
    slope = LossGradient(objective)
    squared = float(slope.flat.square().sum())
    if squared:
        return float(slope.flat @ slope.product(slope.flat)) / squared
    return math.nan


class Scaled:
    """S A S for a diagonal S, given as a vector: symmetric as A is."""

    def __init__(self, operator: Square, scale: Float[Tensor, " n"]) -> None:
        self._operator, self._scale = operator, scale.to(operator.like)[:, None]
        self.dim = operator.dim
        self.rounding = operator.rounding
        self.products = 0
        self.like = operator.like

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return S A S V."""
        self.products += vectors.shape[1]
        return self._scale * self._operator.matmat(self._scale * vectors)

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Ask what the operator inside allows."""
        self._operator.check_symmetric(asymmetry, size)


def _weights(objective: Objective) -> Named:
    return {
        name: parameter.detach().double()
        for name, parameter in objective.network.named_parameters()
    }


def _in_order(objective: Objective, numbers: Named) -> Float[Tensor, " n"]:
    """Return values by parameter as one vector, in the order of the group of all parameters."""
    return entries_of(numbers, objective.layout.side(0, Group.all.value)).cpu()


def next_update(at: At, gradient: Mapping[str, Tensor]) -> Named:
    """Return u of the next step w - eta u, had its batch this `gradient`; without the weight decay.

    adam, adamw: m' / (1 - beta1^t) over sqrt(nu' / (1 - beta2^t)) + eps, with t, m',
    nu' after this update (arXiv 1412.6980, algorithm 1). sgd: momentum times the
    buffer, plus the gradient. gd: the gradient. A parameter that an optimiser of torch
    does not hold has the update 0, and others have a t of their own.
    """
    training, kept = at.config.training, _kept(at, gradient)
    if not training.optimiser.facts.moments:
        return dict(gradient)
    updates = {name: torch.zeros_like(slope) for name, slope in gradient.items()}
    steps = _steps(at, gradient)
    held = {name: slope for name, slope in gradient.items() if name in steps}
    if not training.optimiser.facts.is_adaptive:
        return updates | {
            name: training.momentum * kept[0][name] + slope
            for name, slope in held.items()
        }
    first, second = training.betas
    for name, slope in held.items():
        t = steps[name] + 1
        mean = (first * kept[0][name] + (1 - first) * slope) / (1 - first**t)
        square = (second * kept[1][name] + (1 - second) * slope.square()) / (
            1 - second**t
        )
        updates[name] = mean / (square.sqrt() + training.eps)
    return updates


def preconditioner(at: At, like: Mapping[str, Tensor]) -> Named:
    """Return the diagonal of P = (1 - beta1^t) (sqrt(nu_t / (1 - beta2^t)) + eps) after t = at.step > 0 updates.

    So adam's update is P^-1 m_t, with m_t the moment as it is kept, not corrected for
    its bias (arXiv 2207.14484). Of rules without a preconditioner P = I. A parameter
    that an optimiser of torch does not hold does not move: there P is infinite, as is
    adam's of a parameter before its first update.
    """
    training, steps = at.config.training, _steps(at, like)
    diagonal = {
        name: torch.full_like(tensor, math.inf) for name, tensor in like.items()
    }
    if not training.optimiser.facts.is_adaptive:
        return diagonal | {
            name: torch.ones_like(tensor)
            for name, tensor in like.items()
            if name in steps
        }
    (first, second), (_, squares) = training.betas, _kept(at, like)
    for name, t in steps.items():
        if t and name in squares:
            diagonal[name] = (1 - first**t) * (
                (squares[name] / (1 - second**t)).sqrt() + training.eps
            )
    return diagonal


def _steps(at: At, like: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of updates of every parameter that moves: its own, for an optimiser of torch."""
    return steps_of(at.moments or {}) or dict.fromkeys(like, at.step or 0)


def _moments(at: At) -> Mapping[str, Tensor]:
    """Return the moments at the state, of a followed training or of a stored one."""
    if at.moments is not None:
        return at.moments
    return moments(at.config, sigma=at.sigma, seed=at.seed, step=at.step)


def _kept(at: At, like: Mapping[str, Tensor]) -> list[Named]:
    """Return the moments that the rule keeps; zeros before the first update."""
    moments = _moments(at)
    return [
        {
            name: moments.get(f"{moment}/{name}", torch.zeros_like(tensor)).to(tensor)
            for name, tensor in like.items()
        }
        for moment in at.config.training.optimiser.facts.moments
    ]
