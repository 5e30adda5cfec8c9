"""The training itself: update by update to the steps that are asked for, from the latest point that is kept."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from hessfig.config import Curvature, Data, DType, Optimiser, Schedule, Scored, TaskConfig, TrainingConfig
from hessfig.models.layered import scored_outputs
from hessfig.rng import one_thread, stream
from hessfig.states.initialised import initialised
from hessfig.states.training.checkpoints import COLUMNS, Folder, TrainingState
from hessfig.states.training.trajectory import Trajectory
from hessfig.tasks import text
from hessfig.tasks.addition import scored_positions
from hessfig.tasks.digits import split
from hessfig.tasks.examples import training_batch, unseen_sums

AT_ONCE = 1000  # sums a forward pass; part of what the bits of their logits depend on


def right_answers(network: nn.Module, task: TaskConfig, size: int) -> Bool[Tensor, "examples places"]:
    """Return where answers to unseen examples are right: `size` sums, digit by digit, or the test pictures.

    Of text each scored character of `size` windows of held-out text is an example of its own.
    """
    if task.data == Data.digits:
        return right_classes(network, task)
    if task.data == Data.text:
        return right_characters(network, task, size)
    return right_digits(network, unseen_sums(task, size), task.digits)


def right_classes(network: nn.Module, task: TaskConfig) -> Bool[Tensor, "pictures 1"]:
    """Return which test pictures (tasks.digits.split) have their own class as the likeliest."""
    held, test = next(network.parameters()), split(task.path, task.sha256)[1]
    found = _likeliest(network, torch.from_numpy(test.images).to(held), slice(0, 1))
    return found == torch.from_numpy(test.labels).unsqueeze(1)


def right_characters(network: nn.Module, task: TaskConfig, size: int) -> Bool[Tensor, "characters 1"]:
    """Return where the likeliest character is the next one, in `size` windows of held-out text."""
    tokens = torch.from_numpy(text.held_out(task, size))
    found = _likeliest(network, tokens, slice(task.first_scored, task.num_tokens - 1))
    return (found == tokens[:, task.first_scored + 1 :]).reshape(-1, 1)


def right_digits(
    network: nn.Module, tokens: Int[Tensor, "sums length"], digits: int
) -> Bool[Tensor, "sums digits_plus_1"]:
    """Return where the likeliest token is the answer's digit, most significant first, each given those before it."""
    places = scored_positions(digits, Scored.answer)
    return _likeliest(network, tokens, places) == tokens[:, places.start + 1 : places.stop + 1]


@torch.no_grad()
def _likeliest(network: nn.Module, inputs: Tensor, places: slice) -> Int[Tensor, "examples places"]:
    """Return the likeliest output at each of `places`."""
    device = next(network.parameters()).device
    outputs = [scored_outputs(network, some.to(device), places).cpu() for some in inputs.split(AT_ONCE)]
    return torch.cat(outputs).argmax(dim=-1)


PRODUCTS = 12  # Hessian products of a largest eigenvalue: enough for a few per cent
FLATTEST = 1e-3  # of the largest: no block counts as flatter
_EXPONENT = -0.25  # of the blog's rule
_TINY = 1e-8

Loss = Callable[[], Tensor]
Product = Callable[[Tensor], Tensor]


def products_of_a_refresh(kind: Curvature, parameters: int) -> int:
    """Return how many Hessian products one refresh takes in a network of so many parameters (tensors)."""
    return {Curvature.whole: PRODUCTS, Curvature.blocks: PRODUCTS * parameters}.get(kind, 0)


def factors(
    kind: Curvature, named: Mapping[str, Tensor], loss: Loss, *, seed: int, step: int
) -> Float[Tensor, " groups"]:
    """Return the factor of the learning rate of each group of parameters.

    whole: 1 / largest eigenvalue of the Hessian. blocks: the same of each parameter's own block, divided by their
    geometric mean; a block counts as no flatter than FLATTEST of the steepest. gradient_norm: the blog's stand-in,
    min(1, (largest / smallest norm of a parameter's gradient)^(-1/4)), from gradients that are there.
    """
    if kind == Curvature.gradient_norm:
        return _stand_in([one.grad for one in named.values() if one.grad is not None])
    held = list(named.values())
    groups = [[one] for one in held] if kind == Curvature.blocks else [held]
    with torch.enable_grad():
        slopes = torch.autograd.grad(loss(), held, create_graph=True, materialize_grads=True)
    at = dict(zip(held, slopes, strict=True))
    steepest = [
        _largest(group, [at[one] for one in group], seed=seed, step=step, number=number)
        for number, group in enumerate(groups)
    ]
    found = torch.tensor(steepest, dtype=torch.float64)
    found = found.clamp(min=max(FLATTEST * float(found.max()), _TINY))
    return 1 / found if kind == Curvature.whole else found.log().mean().exp() / found


def largest_ritz(product: Product, start: Float[Tensor, " n"], products: int) -> float:
    """Return the largest Ritz value of a symmetric operator after some products (Lanczos, re-orthogonalised)."""
    basis = (start / start.norm())[None]
    images: list[Tensor] = []
    for _ in range(min(products, len(start))):
        images.append(product(basis[-1]))
        rest = images[-1] - basis.T @ (basis @ images[-1])
        rest = rest - basis.T @ (basis @ rest)
        if float(rest.norm()) <= _TINY * float(images[-1].norm()):
            break
        basis = torch.cat([basis, (rest / rest.norm())[None]])
    small = (basis[: len(images)] @ torch.stack(images).T).double()
    return float(torch.linalg.eigvalsh((small + small.T) / 2)[-1])


def _largest(group: list[Tensor], slopes: list[Tensor], *, seed: int, step: int, number: int) -> float:
    sizes = [one.numel() for one in group]
    start = torch.randn(sum(sizes), generator=stream(seed, "steepest", step, number)).to(slopes[0])
    if not any(slope.requires_grad for slope in slopes):
        return 0.0

    def product(vector: Tensor) -> Tensor:
        pieces = zip(slopes, vector.split(sizes), strict=True)
        along = torch.stack([slope.flatten() @ piece for slope, piece in pieces]).sum()
        found = torch.autograd.grad(along, group, retain_graph=True, materialize_grads=True)
        return torch.cat([piece.flatten() for piece in found])

    return largest_ritz(product, start, PRODUCTS)


def _stand_in(slopes: list[Tensor]) -> Float[Tensor, "1"]:
    norms = torch.stack([slope.norm() for slope in slopes]).double()
    ratio = norms.max() / (norms.min() + _TINY)
    return (ratio**_EXPONENT).clamp(max=1.0).reshape(1)


MOMENTS = {
    Optimiser.adamw: ("exp_avg", "exp_avg_sq"),
    Optimiser.adam: ("exp_avg", "exp_avg_sq"),
    Optimiser.sgd: ("momentum_buffer",),
    Optimiser.gd: (),
}
FACTORS = "rate_factors"
_ADAPTIVE = {Optimiser.adamw: torch.optim.AdamW, Optimiser.adam: torch.optim.Adam}


def learning_rate(training: TrainingConfig, step: int) -> float:
    """Return the learning rate of update `step` (1 to training.steps).

    Linear over the warm-up, reaching training.learning_rate at its last update; then constant, or half a cosine that
    would be zero at the update after the last.
    """
    done, warmup = step - 1, training.warmup
    if done < warmup:
        return training.learning_rate * step / warmup
    if training.schedule == Schedule.constant:
        return training.learning_rate
    share = (done - warmup) / (training.steps - warmup)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def refreshes_curvature(training: TrainingConfig, step: int) -> bool:
    """Whether the curvature is estimated anew before update `step`."""
    return (step - 1) % training.refresh == 0


def _by_block(training: TrainingConfig) -> bool:
    return training.curvature == Curvature.blocks


class Rule:
    """torch.optim's optimiser of the configured name over the parameters of `network`; its kernels are fused."""

    def __init__(self, network: nn.Module, training: TrainingConfig) -> None:
        self._training, self._named = training, dict(network.named_parameters())
        parameters, kind = list(self._named.values()), training.optimiser
        groups = [{"params": [one]} for one in parameters] if _by_block(training) else parameters
        self._optimiser: torch.optim.Optimizer
        rate, decay = training.learning_rate, training.weight_decay
        if kind in _ADAPTIVE:
            first, second = training.betas
            self._optimiser = _ADAPTIVE[kind](
                groups, rate, betas=(first, second), eps=training.eps, weight_decay=decay, fused=True
            )
        else:
            momentum = training.momentum if kind == Optimiser.sgd else 0.0
            self._optimiser = torch.optim.SGD(groups, rate, momentum=momentum, weight_decay=decay, fused=True)
        self._factors = torch.ones(len(self._optimiser.param_groups), dtype=torch.float64)

    def refresh_curvature(self, step: int, loss: Callable[[], Tensor], *, seed: int) -> None:
        """Estimate the curvature before update `step` if due: at the first, and every training.refresh after it.

        The gradients of `loss` are there; they stay.
        """
        kind = self._training.curvature
        if kind != Curvature.none and refreshes_curvature(self._training, step):
            self._factors = factors(kind, self._named, loss, seed=seed, step=step)

    def update(self, step: int) -> float:
        """Take update `step` along the gradients that are there; return its learning rate (geometric mean)."""
        rate = learning_rate(self._training, step)
        for group, factor in zip(self._optimiser.param_groups, self._factors.tolist(), strict=True):
            group["lr"] = rate * factor
        self._optimiser.step()
        return rate * (1.0 if _by_block(self._training) else float(self._factors[0]))

    def moments(self) -> dict[str, Tensor]:
        """Return {moment/parameter: tensor}; none before the first update, or where the rule keeps none.

        A rule that uses the curvature adds FACTORS: by what it multiplies each group's learning rate.
        """
        looked = {} if self._training.curvature == Curvature.none else {FACTORS: self._factors}
        return looked | {
            f"{moment}/{name}": self._optimiser.state[parameter][moment]
            for name, parameter in self._named.items()
            for moment in MOMENTS[self._training.optimiser]
            if self._optimiser.state[parameter].get(moment) is not None
        }

    def restore(self, moments: Mapping[str, Tensor], step: int) -> None:
        """Put back what `moments` returned after `step` updates."""
        self._factors = moments.get(FACTORS, self._factors)
        for key, tensor in moments.items():
            if key == FACTORS:
                continue
            moment, _, name = key.partition("/")
            state = self._optimiser.state[self._named[name]]
            state[moment] = tensor.clone()
            if self._training.optimiser in _ADAPTIVE:
                state["step"] = torch.tensor(float(step))


SAVE_EVERY, REPORT_EVERY = 5.0, 0.5  # seconds


class Diverged(ArithmeticError):
    """A training whose loss or weights are not finite: it has no state at `step` and beyond."""

    def __init__(self, step: int, cause: str) -> None:
        super().__init__(f"the training has no state at step {step} and beyond: {cause}")
        self.step, self.cause = step, cause


@dataclass(frozen=True)
class Progress:
    """How far a training is: updates done of those to do, loss, latest accuracy (NaN: none yet), updates a second."""

    step: int
    until: int
    loss: float
    accuracy: float
    rate: float


def ensure(
    trajectory: Trajectory, steps: Iterable[int], report: Callable[[Progress], None] = lambda progress: None
) -> int:
    """Train until the states at `steps` are kept; return how many updates that took here.

    The bits of a state depend on trajectory.science alone: not on where it went on from, nor on what else is kept.
    Raises Diverged when one of them cannot be reached; those before it are kept.
    """
    folder = Folder(trajectory)
    missing, known = folder.missing(steps), folder.divergence()
    if not missing:
        return 0
    folder.describe()
    with one_thread():
        run = _Run(folder, missing[-1], report)
        for step in missing:
            if known is not None and step >= known[0]:
                raise Diverged(*known)
            run.to(step)
    folder.forget_resuming(missing[-1])
    return run.updates


class _Run:
    """A network on its way; `until` is where it will end."""

    def __init__(self, folder: Folder, until: int, report: Callable[[Progress], None]) -> None:
        self.folder, self.until, self.report = folder, until, report
        self.config, self.seed = folder.trajectory.config, folder.trajectory.seed
        drawn = initialised(replace(self.config, dtype=DType.float64), sigma=folder.trajectory.sigma, seed=self.seed)
        self.drawn_weights = {name: p.detach().clone() for name, p in drawn.network.named_parameters()}
        self.network = drawn.network.to(getattr(torch, self.config.training.dtype)).requires_grad_(True)
        self.loss, self.rule = drawn.loss, Rule(self.network, self.config.training)
        self.step, self.updates, self.log = 0, 0, list[list[float]]()
        self.started = self.saved = self.reported = time.monotonic()

    def to(self, step: int) -> None:
        """Go on to `step`, from where it is or from the latest point kept before it, and keep the state there."""
        nearest = self.folder.nearest(step)
        if nearest is not None and nearest.step > self.step:
            self._restore(nearest)
        while self.step < step:
            self._update()
            self._save_and_report()
        self._check_finite()
        self.folder.keep(self._now())
        self.folder.log(self._now())

    def _update(self) -> None:
        step = self.step + 1
        batch = training_batch(self.config, seed=self.seed, step=step)
        self.network.zero_grad(set_to_none=True)

        def of_batch() -> Tensor:
            return self.loss(scored_outputs(self.network, batch.inputs, batch.scored), batch.targets)

        with torch.enable_grad():
            loss = of_batch()
            loss.backward()
        value = float(loss.detach())
        if not math.isfinite(value):
            self._diverge(step, f"the loss at step {self.step} is {value}")
        norm = get_total_norm([p.grad for p in self.network.parameters() if p.grad is not None])
        self.rule.refresh_curvature(step, of_batch, seed=self.seed)
        rate = self.rule.update(step)
        self.step, self.updates = step, self.updates + 1
        self.log.append([step, value, rate, float(norm), self._accuracy()])

    def _accuracy(self) -> float:
        """Return the share of whole answers right on unseen examples, at the steps where that is looked at."""
        training, task = self.config.training, self.config.task
        if self.step % training.evaluate_every and self.step != training.steps:
            return math.nan
        right = right_answers(self.network, task, training.evaluation_size)
        return float(right.all(dim=1).double().mean())

    def _save_and_report(self) -> None:
        now = time.monotonic()
        if now - self.saved > SAVE_EVERY:
            self._check_finite()
            self.folder.keep_for_resuming(self._now())
            self.folder.log(self._now())
            self.saved = time.monotonic()
        if now - self.reported > REPORT_EVERY:
            self.reported = now
            self.report(self._progress(now))

    def _progress(self, now: float) -> Progress:
        tests = (row[-1] for row in reversed(self.log) if not math.isnan(row[-1]))
        rate = self.updates / (now - self.started)
        return Progress(self.step, self.until, self.log[-1][1], next(tests, math.nan), rate)

    def _check_finite(self) -> None:
        if not all(bool(p.isfinite().all()) for p in self.network.parameters()):
            self._diverge(self.step, f"weights at step {self.step} are not finite")

    def _diverge(self, step: int, cause: str) -> None:
        self.folder.log(self._now())
        self.folder.note_divergence(step, cause)
        raise Diverged(step, cause)

    def _now(self) -> TrainingState:
        """Return copies of nothing: what is written is read at once. At step 0 weights are those drawn, unrounded."""
        weights = dict(self.network.named_parameters()) if self.step else self.drawn_weights
        log = torch.tensor(self.log, dtype=torch.float64).reshape(-1, len(COLUMNS))
        return TrainingState(self.step, {name: p.detach() for name, p in weights.items()}, self.rule.moments(), log)

    def _restore(self, kept: TrainingState) -> None:
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(kept.weights[name])
        self.rule.restore(kept.moments, kept.step)
        self.step, self.log = kept.step, kept.log.tolist()
