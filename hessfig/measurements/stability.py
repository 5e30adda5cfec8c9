"""Stability of a training at a state: the loss along its next update, and curvature against the rule's threshold.

Gradient descent with the rate eta on a parabola of curvature lambda multiplies the
distance to its minimum by 1 - eta lambda, which shrinks while lambda < 2 / eta. Each rule
has such a threshold for an eigenvalue (`stability_threshold`), for the curvature along
its gradients (`batch_sharpness`) and along its own update (`critical_step`).

Letters: w the weights, g and H gradient and Hessian of the loss L, eta the learning rate,
u the update's direction (w' = w - eta u), d = w' - w the whole update, P a preconditioner.
"""

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
from hessfig.measurements.torch_optimisers import LARGEST, NesterovTraining, steps_of
from hessfig.models.routes import Engines
from hessfig.states.stored_states import moments
from hessfig.states.training.second_order import BatchLoss
from hessfig.states.training.step_rules import StepRule, learning_rate
from hessfig.tasks.examples import is_full_batch, training_batch
from hessfig.terms import Block, Group, Optimiser, Part

# Of the search for a crossing: a factor of 1e12 either way, then a bracket of 1 / 64.
_DOUBLINGS, _HALVINGS = 40, 6
Named = dict[str, Tensor]


def batch_sharpness(objective: Objective, request: Request) -> Measured:
    r"""Return the mean of g.H_B g / |g|^2 over mini-batches B, with its standard error.

    .. math:: \frac{1}{K} \sum_B \frac{g_B^T H_B \, g_B}{|g_B|^2}

    g and H_B are gradient and Hessian of the loss of the mini-batch. There are
    estimator.num_probes of them, drawn as the training draws its own, from a stream that it
    does not see. Full-batch training has one batch, and an error of 0; a single mini-batch has
    none (NaN). One product per mini-batch.
    """
    at = request.at
    training = replace(at.config.training, dtype=at.config.dtype)
    config = replace(at.config, training=training)
    is_full = is_full_batch(config)
    count = 1 if is_full else request.estimator.num_probes
    name = f"sharpness at {at.step or 0}"
    device = next(objective.network.parameters()).device
    values = []
    for number in range(count):
        batch = training_batch(config, seed=at.seed, step=number, name=name)
        alone = replace(objective, batch=batch.to(device), more=())
        values.append(along_gradient(alone))
    mean = statistics.fmean(values)
    if is_full:
        estimate = Estimate(mean, 0.0, 0, "mini-batches")
    else:
        error = math.nan
        if count > 1:
            error = statistics.stdev(values) / count**0.5
        estimate = Estimate(mean, error, count, "mini-batches")
    return Measured([state_row("batch_sharpness", request, estimate)])


def critical_step(objective: Objective, request: Request) -> Measured:
    r"""Return eta_c, the step at which L(w - eta u) passes L(w) from below, and 2 / eta_c, with half the bracket.

    u is the update that the training's rule would make had its batch the measured gradient,
    without weight decay; L is the loss of the measuring batch. On a parabola along u,

    .. math:: L(w - \eta u) = L(w) - \eta \, u \cdot g + \tfrac{1}{2} \eta^2 \, u \cdot H u

    crosses its start at eta_c = 2 u.g / u.Hu, so that 2 / eta_c is u.Hu / u.g: the curvature
    that u sees. Where u does not lower the loss at all the number did not converge.
    """
    step = crossing_step(objective, request.at)
    step = replace(step, by="losses", is_unreliable=not step.error > 0)
    sharpness = error = float("nan")
    if step.value:
        sharpness = 2 / step.value
        error = sharpness * step.error / step.value
    numbers = {
        "critical_step": step,
        "critical_sharpness": replace(step, value=sharpness, error=error),
    }
    return Measured(state_rows(request, numbers))


def stability_threshold(objective: Objective, request: Request) -> Measured:
    r"""Return eta of update step + 1 (a cosine's last one at its end), and the threshold of the largest eigenvalue.

    On a parabola of curvature lambda the averages of a rule give a recurrence of two terms:
    with m' = beta m + c lambda w and w' = w - eta m',

    .. math:: w_{t+1} = (1 + \beta - \eta c \lambda) \, w_t - \beta \, w_{t-1},

    whose roots lie in the unit circle while eta c lambda < 2 + 2 beta. So

    - gd: 2 / eta (beta = 0, c = 1);
    - sgd: (2 + 2 momentum) / eta (c = 1);
    - adam, adamw: (2 + 2 beta1) / ((1 - beta1) eta), of P^-1 H (c = 1 - beta1; see
      preconditioned_eigenvalue; arXiv 2207.14484).

    With Nesterov's momentum, w' = w - eta (lambda w + beta m') and c = 1, the recurrence is

    .. math:: w_{t+1} = (1 + \beta) (1 - \eta \lambda) \, w_t
              - \beta (1 - \eta \lambda) \, w_{t-1},

    stable while eta lambda < (2 + 2 beta) / (1 + 2 beta).

    Weight decay is left out. While the rate is 0, as in the first update of a warm-up, no
    curvature is too large: the threshold is infinite, which is not a finite number of the
    table.
    """
    del objective
    rate = coming_rate(request.at)
    threshold = math.inf
    if rate:
        threshold = factor(request.at.config.training) / rate
    numbers = {"stability_threshold": threshold, "learning_rate": rate}
    return Measured(state_rows(request, numbers))


def coming_rate(at: At) -> float:
    """Return the learning rate of the next update; a cosine's last one at its end."""
    training = at.config.training
    coming = (at.step or 0) + 1
    # A constant schedule does not depend on its length.
    if training.schedule == Schedule.cosine:
        coming = min(coming, training.steps)
    return learning_rate(training, coming)


def preconditioned_eigenvalue(objective: Objective, request: Request) -> Measured:
    r"""Return the largest eigenvalue of P^-1/2 H P^-1/2, which is that of P^-1 H, over every parameter.

    .. math:: P = (1 - \beta_1^t) \left( \sqrt{\frac{\nu_t}{1 - \beta_2^t}} + \epsilon \right)

    after t updates of adam or adamw; H is the loss's, without the weight decay. The two
    matrices are similar, P^1/2 (P^-1 H) P^-1/2 being the symmetric one, which Lanczos needs.
    The error is the residual norm in the symmetric form. Before the first update there is no
    P, and no row. sgd has P = I at every step.
    """
    if request.at.config.training.optimiser.facts.is_adaptive and not request.at.step:
        return Measured([])
    diagonal = preconditioner(request.at, _weights(objective))
    scale = _in_order(objective, diagonal).rsqrt()
    return _scaled_eigenvalue("preconditioned_eigenvalue", objective, request, scale)


def adaptive_sharpness(objective: Objective, request: Request) -> Measured:
    """Return the largest eigenvalue of |W| H |W|, where |W| is the diagonal of the absolute values of every parameter.

    A relative perturbation w + |W| v with |v| <= rho raises the loss by 1/2 v.|W| H |W| v to
    second order, apart from the gradient's term: at a critical point at most by rho^2 / 2
    times this number (adaptive sharpness of Kwon et al., 2021, ICML). Rescaling some weights,
    and others so that the network stays the same function, multiplies |W| by D and H by D^-1
    from both sides, which leaves |W| H |W| as it is; the largest eigenvalue of H changes. A
    parameter at 0 has no part in it. The error is the residual norm.

    Examples
    --------
    f = a b with the squared loss at its target 2, where H = 2 [[b^2, a b], [a b, a^2]]: every
    scaling has the number 4 (a b)^2 = 16.

    >>> import hessfig
    >>> numbers = []
    >>> for a, b in ((1.0, 2.0), (4.0, 0.5)):
    ...     network = torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in "ab"))
    ...     for linear, weight in zip(network, (a, b)):
    ...         _ = linear.weight.data.fill_(weight)
    ...     problem = hessfig.Problem(network, torch.ones(1, 1), torch.full((1, 1), 2.0), "mse")
    ...     table = hessfig.measure(problem, quantities=["adaptive_sharpness"])
    ...     numbers.append(round(table.value.item(), 6))
    >>> numbers
    [16.0, 16.0]
    """
    sizes = {name: weight.abs() for name, weight in _weights(objective).items()}
    scale = _in_order(objective, sizes)
    return _scaled_eigenvalue("adaptive_sharpness", objective, request, scale)


def _scaled_eigenvalue(
    name: str, objective: Objective, request: Request, scale: Float[Tensor, " n"]
) -> Measured:
    """Return the largest eigenvalue of S H S over every parameter, for the diagonal S."""
    every = Group.all.value
    block = Block(0, every, every)
    engines = Engines(objective, request.model, request.estimator.products)
    hessian = Square(engines.column(0, every, [block]), block, Part.H)
    scaled = Scaled(hessian, scale)
    generator = request.stream(0, every)
    try:
        found = extremes_of(scaled, End.largest, request.spectrum, generator)
        estimate = outer_estimate(found)
    except NotFinite:
        estimate = Estimate(math.nan, math.nan, 0, "lanczos")
    return Measured([state_row(name, request, estimate, block=block, part=Part.H)])


def predicted_decrease(objective: Objective, request: Request) -> Measured:
    r"""Return how much the training's next update lowers the loss: predicted, true, and true / predicted.

    The prediction is that of the quadratic model,

    .. math:: -\left( g \cdot d + \tfrac{1}{2} \, d \cdot H d \right),

    with g and H of the loss of the measuring batch and d the whole update, weight decay
    included: one product with H. The true one is L(w) - L(w + d). Where d = 0, as in SOAP's
    first update, the ratio is not finite.
    """
    slope = LossGradient(objective)
    update = coming_update(objective, request.at)
    g = slope.flat
    d = torch.cat([update[name].flatten() for name in slope.gradient]).to(g)
    predicted = -float(g @ d + d @ slope.product(d) / 2)
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
    """Return w' - w of the update that the training takes next, made by its own rule on a copy of the network.

    It sees the batch of step + 1, and has its moments of the state.
    """
    done = at.step or 0
    trial = Trial(objective, at.config.training)
    if done:
        kept = moments(at.config, sigma=at.sigma, seed=at.seed, step=done)
        trial.rule.restore(kept, done)
    batch = training_batch(at.config, seed=at.seed, step=done + 1)
    trial.step(done + 1, batch, seed=at.seed)
    return trial.moved


def update_of(
    objective: Objective, at: At, optimiser: Optimiser, gradients: int
) -> Named:
    """Return the update w' - w that a rule would make at the state, without weight decay and warm-up, in dtype.

    Entries that the rule `sign` takes from the rounding of a gradient are 0 (see
    above_rounding). The training's own rule has its moments of the state and sees the next
    batch. Any other one sees `gradients` batches at the weights of the state, which fill its
    moments, and the last of its updates is taken. The measuring batch is seen by full-batch
    rules, by followed trainings, and where there are no examples.

    Parameters
    ----------
    objective : Objective
    at : At
        The state, with the moments of the training's rule.
    optimiser : Optimiser
    gradients : int
        Batches that fill the moments of a rule that the training does not use.

    Returns
    -------
    dict
        One tensor for each parameter.

    Raises
    ------
    UserError
        For a rule that divides by the curvature of several batches.
    """
    training = at.config.training
    first = (at.step or 0) + 1
    if optimiser == training.optimiser and steps_of(at.moments or {}):
        coming = next_update(at, LossGradient(objective).gradient)
        rate = coming_rate(at)
        return {name: -rate * update for name, update in coming.items()}
    is_own = optimiser == training.optimiser and first > 1
    plain = replace(
        training,
        optimiser=optimiser,
        schedule=Schedule.constant,
        warmup=0,
        weight_decay=0.0,
        dtype=at.config.dtype,
        curvature=training.curvature if is_own else Curvature.none,
    )
    config = replace(at.config, training=plain)
    trial = Trial(objective, plain)
    if is_own:
        kept = {key: one.to(trial.like) for key, one in _moments(at).items()}
        trial.rule.restore(kept, first - 1)
    has_examples = config.task.data.facts.is_trainable
    is_followed = at.moments is not None
    sees_measured = optimiser.facts.is_full_batch or is_followed or not has_examples
    if sees_measured and optimiser.facts.divides and objective.more:
        raise UserError(
            f"directions.rules: {optimiser} divides by the curvature of one batch",
            got=f"{len(objective.batches)} batches",
            allowed="one batch, or rules that take gradients alone",
            remedy="join the batches, or leave the rule out",
        )
    batch: Batch | None = None
    for place in range(1 if is_own else gradients):
        if not sees_measured:
            batch = training_batch(config, seed=at.seed, step=first + place)
        trial.restart()
        trial.step(first if is_own else place + 1, batch, seed=at.seed)
    if optimiser != Optimiser.sign:
        return trial.moved
    seen = objective
    if batch is not None:
        seen = replace(objective, batch=batch.to(trial.like.device), more=())
    above = above_rounding(seen)
    return {name: change * above[name] for name, change in trial.moved.items()}


class Trial:
    """A step rule on a copy of a problem's network, in the training's type; `moved` is how far it is from the start.

    Parameters
    ----------
    objective : Objective
        Its network is not changed.
    training : TrainingConfig
    """

    def __init__(self, objective: Objective, training: TrainingConfig) -> None:
        self._problem = objective
        self._at = next(objective.network.parameters())
        copied = copy.deepcopy(objective.network)
        dtype = getattr(torch, training.dtype)
        self.network = copied.to(dtype).requires_grad_(True)
        self._before = {}
        for name, parameter in self.network.named_parameters():
            self._before[name] = parameter.detach().clone()
        self.rule = StepRule(self.network, training)
        self.like = next(iter(self._before.values()))

    def step(self, step: int, batch: Batch | None, *, seed: int) -> None:
        """Take update `step` on a batch of the training; on all measuring batches without one.

        The gradient is taken first, as a refresh of the curvature finds one.
        """
        self.network.zero_grad(set_to_none=True)
        problem = replace(self._problem, network=self.network)
        seen = (batch or problem.batch).to(self.like.device)
        loss = BatchLoss(self.network, problem.loss, seen)
        with torch.enable_grad():
            value = loss() if batch else loss_of(problem)
            value.backward()
            self.rule.refresh_curvature(step, loss, seed=seed)
            self.rule.update(step)

    def restart(self) -> None:
        """Restore the weights; the rule keeps its moments, so that several gradients at one point fill them."""
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(self._before[name])

    @property
    def moved(self) -> Named:
        """w' - w, by the names of the parameters."""
        moved = {}
        for name, parameter in self.network.named_parameters():
            moved[name] = (parameter.detach() - self._before[name]).to(self._at)
        return moved


def factor(training: TrainingConfig) -> float:
    """Return threshold times learning rate (see stability_threshold).

    Examples
    --------
    >>> factor(TrainingConfig(optimiser=Optimiser.gd))
    2.0
    >>> round(factor(TrainingConfig(optimiser=Optimiser.adam, betas=[0.9, 0.99])), 9)
    38.0
    >>> factor(NesterovTraining(optimiser=Optimiser.sgd, momentum=0.5))
    1.5
    """
    if training.optimiser.facts.is_adaptive:
        first = training.betas[0]
        return (2 + 2 * first) / (1 - first)
    if "momentum" not in training.optimiser.facts.reads:
        return 2.0
    heavy_ball = 2 + 2 * training.momentum
    if isinstance(training, NesterovTraining):
        return heavy_ball / (1 + 2 * training.momentum)
    return heavy_ball


def crossing_step(objective: Objective, at: At) -> Estimate:
    """Return the step at which the loss along the next update crosses that of the start, with half its bracket.

    One evaluation of the loss per step that is tried, about ten in all. NaN where the loss at
    the start is not finite.

    Examples
    --------
    Gradient descent on a parabola with g = (9, 9) and H = diag(1, 9), where eta_c = 2 |g|^2 /
    g.H g = 2 / 5:

    >>> import hessfig
    >>> from hessfig.config.schema import Config
    >>> network = torch.nn.Linear(2, 1, bias=False)
    >>> _ = network.weight.data.copy_(torch.tensor([[9.0, 1.0]]))
    >>> inputs, targets = torch.diag(torch.tensor([1.0, 3.0])), torch.zeros(2, 1)
    >>> objective = hessfig.Problem(network, inputs, targets, "mse").objective("float64")
    >>> descent = At(Config(training=TrainingConfig(optimiser=Optimiser.gd)))
    >>> step = crossing_step(objective, descent)
    >>> abs(step.value - 0.4) <= step.error < 0.004
    True
    """
    update = next_update(at, LossGradient(objective).gradient)
    with _moving(objective, update) as loss_at:
        start = loss_at(0.0)
        if not math.isfinite(start):
            return Estimate(math.nan, math.nan, 0)

        def is_higher(step: float) -> bool:
            # A loss that is nan counts as larger than every loss.
            return not loss_at(step) <= start

        # A schedule may have set the rate to 0, from which doubling never leads away.
        return crossing(is_higher, first=at.config.training.learning_rate or 1.0)


def crossing(is_higher: Callable[[float], bool], *, first: float) -> Estimate:
    """Return the middle of a bracket [low, high] with the loss higher at `high` and not at `low`, and half of it.

    From `first` on by doubling or halving, then by bisection: a bracket [low, 2 low] is
    halved _HALVINGS times, to 1 / 64 of its `low`. The error is 0 where there is no such
    place within forty doublings: a line that falls for ever, or rises from the start.

    Of a loss that crosses its start several times this is one of the crossings, not always
    the first.

    Examples
    --------
    >>> found = crossing(lambda step: step > 3, first=1.0)
    >>> found.value, found.error
    (3.015625, 0.015625)
    """
    low, high = _bracket(is_higher, first)
    if low == high:
        return Estimate(low, 0.0, 0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if is_higher(middle):
            high = middle
        else:
            low = middle
    return Estimate((low + high) / 2, (high - low) / 2, 0)


def _bracket(is_higher: Callable[[float], bool], first: float) -> tuple[float, float]:
    """Return (low, high) a factor 2 apart, the loss higher at `high` alone.

    (x, x) with the last step x that was tried if there is no such place.
    """
    step = first
    if is_higher(first):
        for _ in range(_DOUBLINGS):
            step = step / 2
            if not is_higher(step):
                return step, 2 * step
        return step, step
    for _ in range(_DOUBLINGS):
        step = 2 * step
        if is_higher(step):
            return step / 2, step
    return step, step


@contextmanager
def _moving(
    objective: Objective, update: Mapping[str, Tensor]
) -> Iterator[Callable[[float], float]]:
    """Yield the function step -> loss at w - step * update; the weights are restored at the end.

    They are set anew from the start for each step, so that rounding does not add up.
    """
    parameters = dict(objective.network.named_parameters())
    before = {}
    for name, parameter in parameters.items():
        before[name] = parameter.detach().clone()

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
    """Return g.H g / |g|^2 of the problem's own loss; NaN where the gradient vanishes.

    It is the curvature along the gradient, a Rayleigh quotient and so at most the largest
    eigenvalue. On a parabola, gradient descent with the rate eta multiplies the slope along g
    by 1 - eta g.H g / |g|^2, as g' = g - eta H g.

    Examples
    --------
    H = diag(1, 9) and g = H w = (9, 9) at w = (9, 1), half-way between the axes:

    >>> import hessfig
    >>> network = torch.nn.Linear(2, 1, bias=False)
    >>> _ = network.weight.data.copy_(torch.tensor([[9.0, 1.0]]))
    >>> inputs, targets = torch.diag(torch.tensor([1.0, 3.0])), torch.zeros(2, 1)
    >>> along_gradient(hessfig.Problem(network, inputs, targets, "mse").objective("float64"))
    5.0
    """
    slope = LossGradient(objective)
    squared = float(slope.flat.square().sum())
    if squared:
        return float(slope.flat @ slope.product(slope.flat)) / squared
    return math.nan


class Scaled:
    """S A S for a diagonal S, given as a vector: symmetric as A is.

    Its eigenvalues are those of S^2 A: S A S x = lambda x is S^2 A y = lambda y with y = S x.

    Examples
    --------
    H = diag(1, 9) between the factors 3 and 1 is 9 times the identity:

    >>> import hessfig
    >>> from hessfig.curvature import ColumnOperator
    >>> inputs, targets = torch.diag(torch.tensor([1.0, 3.0])), torch.zeros(2, 1)
    >>> problem = hessfig.Problem(torch.nn.Linear(2, 1, bias=False), inputs, targets, "mse")
    >>> column = ColumnOperator(problem.objective("float64"), 0, "weight", ["weight"])
    >>> scaled = Scaled(Square(column, "weight", Part.H), torch.tensor([3.0, 1.0]).double())
    >>> scaled.matmat(torch.eye(2).double()).tolist()
    [[9.0, 0.0], [0.0, 9.0]]
    """

    def __init__(self, operator: Square, scale: Float[Tensor, " n"]) -> None:
        self._operator = operator
        self._scale = scale.to(operator.like)[:, None]
        self.dim = operator.dim
        self.rounding = operator.rounding
        self.products = 0
        self.like = operator.like

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return S A S V."""
        self.products += vectors.shape[1]
        return self._scale * self._operator.matmat(self._scale * vectors)

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Raise if A is not as symmetric as its products allow."""
        self._operator.check_symmetric(asymmetry, size)


def _weights(objective: Objective) -> Named:
    """Return every parameter in float64, by name."""
    weights = {}
    for name, parameter in objective.network.named_parameters():
        weights[name] = parameter.detach().double()
    return weights


def _in_order(objective: Objective, numbers: Named) -> Float[Tensor, " n"]:
    """Return values by parameter as one vector, in the order of the group of all parameters."""
    return entries_of(numbers, objective.layout.side(0, Group.all.value)).cpu()


def next_update(at: At, gradient: Mapping[str, Tensor]) -> Named:
    """Return u of the next step w - eta u, had its batch this `gradient` g; without the weight decay.

    After update t, with the moments m and nu before it (arXiv 1412.6980, algorithm 1)::

        adam, adamw   m' = beta1 m + (1 - beta1) g,  nu' = beta2 nu + (1 - beta2) g^2
                      u = m' / (1 - beta1^t) / (sqrt(nu' / (1 - beta2^t)) + eps)
        sgd           u = momentum * buffer + g
        gd            u = g

    Nesterov's momentum has u = g + momentum * (momentum * buffer + g). With amsgrad, the
    largest nu' so far divides. The divisors undo the bias of averages that start from zero:
    after t steps of a constant g, m' = (1 - beta1^t) g. A parameter that an optimiser of
    torch does not hold has the update 0, and others have a t of their own.

    Examples
    --------
    The first update of adam is the sign of the gradient, whatever the betas are:

    >>> from hessfig.config.schema import Config
    >>> adam = Config(training=TrainingConfig(optimiser=Optimiser.adam))
    >>> start = At(adam, moments={"updates/w": torch.tensor(0)})
    >>> [round(entry, 4) for entry in next_update(start, {"w": torch.tensor([2.0, -0.5])})["w"].tolist()]
    [1.0, -1.0]
    """
    training = at.config.training
    moments = _kept(at, gradient)
    if not training.optimiser.facts.moments:
        return dict(gradient)
    # m of Adam, or the buffer of SGD.
    first_moments = moments[0]
    steps = _steps(at, gradient)
    largest = _largest(at, gradient)
    beta1, beta2 = training.betas
    updates = {}
    for name, g in gradient.items():
        if name not in steps:
            updates[name] = torch.zeros_like(g)
            continue
        if not training.optimiser.facts.is_adaptive:
            u = training.momentum * first_moments[name] + g
            if isinstance(training, NesterovTraining):
                u = g + training.momentum * u
            updates[name] = u
            continue
        t = steps[name] + 1
        m = beta1 * first_moments[name] + (1 - beta1) * g
        nu = beta2 * moments[1][name] + (1 - beta2) * g.square()
        if name in largest:
            nu = torch.maximum(nu, largest[name])
        unbiased = nu / (1 - beta2**t)
        updates[name] = m / (1 - beta1**t) / (unbiased.sqrt() + training.eps)
    return updates


def preconditioner(at: At, like: Mapping[str, Tensor]) -> Named:
    """Return the diagonal of P = (1 - beta1^t) (sqrt(nu_t / (1 - beta2^t)) + eps) after t = at.step > 0 updates.

    So adam's update is P^-1 m_t, with m_t the moment as it is kept, not corrected for its
    bias (arXiv 2207.14484). With amsgrad, nu_t is the largest so far. Of rules without a
    preconditioner P = I. A parameter that an optimiser of torch does not hold does not move:
    there P is infinite, as is adam's of a parameter before its first update.

    Examples
    --------
    After many updates nu is the mean of squared gradients, and P their root:

    >>> from hessfig.config.schema import Config
    >>> adam = Config(training=TrainingConfig(optimiser=Optimiser.adam))
    >>> kept = {"updates/w": torch.tensor(10**6), "exp_avg_sq/w": torch.tensor([4.0, 0.25])}
    >>> diagonal = preconditioner(At(adam, step=10**6, moments=kept), {"w": torch.ones(2)})
    >>> [round(entry, 4) for entry in diagonal["w"].tolist()]
    [2.0, 0.5]
    """
    training = at.config.training
    steps = _steps(at, like)
    is_adaptive = training.optimiser.facts.is_adaptive
    squares: Named = {}
    if is_adaptive:
        _, squares = _kept(at, like)
        squares.update(_largest(at, like))
    diagonal = {}
    for name, tensor in like.items():
        t = steps.get(name)
        if is_adaptive and t:
            first, second = training.betas
            root = (squares[name] / (1 - second**t)).sqrt()
            diagonal[name] = (1 - first**t) * (root + training.eps)
        elif not is_adaptive and t is not None:
            diagonal[name] = torch.ones_like(tensor)
        else:
            diagonal[name] = torch.full_like(tensor, math.inf)
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
    """Return the moments that the rule keeps, each by parameter; zeros before the first update."""
    stored = _moments(at)
    kept = []
    for moment in at.config.training.optimiser.facts.moments:
        by_name = {}
        for name, tensor in like.items():
            zero = torch.zeros_like(tensor)
            by_name[name] = stored.get(f"{moment}/{name}", zero).to(tensor)
        kept.append(by_name)
    return kept


def _largest(at: At, like: Mapping[str, Tensor]) -> Named:
    """Return the largest second moments so far, which amsgrad of torch keeps, of the parameters that have them."""
    stored = at.moments or {}
    largest = {}
    for name, tensor in like.items():
        kept = stored.get(f"{LARGEST}/{name}")
        if kept is not None:
            largest[name] = kept.to(tensor)
    return largest
