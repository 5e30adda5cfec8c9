"""The training loop: updates up to the requested steps, starting from the latest stored state."""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from hessfig.config.enums import Data, DType, Loss, Scored
from hessfig.config.science import TaskConfig
from hessfig.curvature.problem import Batch, scored_outputs
from hessfig.rng import one_thread
from hessfig.states.initialised import initialised
from hessfig.states.training.checkpoints import COLUMNS, Folder, TrainingState
from hessfig.states.training.second_order import BatchLoss
from hessfig.states.training.step_rules import StepRule
from hessfig.states.training.trajectory import Trajectory
from hessfig.tasks.examples import training_batch, unseen_batch

AT_ONCE = 1000  # sums per forward pass; the bits of their logits depend on it


def right_answers(
    network: nn.Module,
    task: TaskConfig,
    size: int,
    examples: Callable[..., Batch] = unseen_batch,
) -> Bool[Tensor, "examples places"]:
    """Return which answers to held-out examples are right: `size` sums, digit by digit, or the test pictures.

    Each digit of a sum, starting with the most significant, is predicted from the true
    ones before it. For text, each scored character of `size` windows of held-out text
    counts as an example.
    """
    answers = replace(task, loss=Loss.cross_entropy, scored=Scored.answer)
    right = right_in(network, examples(answers, size, DType.float64))
    if task.data == Data.text:
        return right.reshape(-1, 1)
    return right


@torch.no_grad()
def right_in(network: nn.Module, batch: Batch) -> Bool[Tensor, "examples places"]:
    """Return at which scored positions the most likely output is the target class."""
    parameter = next(network.parameters())
    inputs = batch.cast(parameter.dtype).inputs.split(AT_ONCE)
    outputs = [
        scored_outputs(network, piece.to(parameter.device), batch.scored).cpu()
        for piece in inputs
    ]
    return torch.cat(outputs).argmax(dim=-1) == batch.targets


SAVE_EVERY, REPORT_EVERY = 5.0, 0.5  # seconds


class Diverged(ArithmeticError):
    """Raised for a training whose loss or weights are not finite: it has no state at `step` and beyond."""

    def __init__(self, step: int, cause: str) -> None:
        super().__init__(
            f"the training has no state at step {step} and beyond: {cause}"
        )
        self.step, self.cause = step, cause


@dataclass(frozen=True)
class Progress:
    """Progress of a training: updates done and planned, loss, latest accuracy (NaN: none yet), updates per second."""

    step: int
    until: int
    loss: float
    accuracy: float
    rate: float


def ensure(
    trajectory: Trajectory,
    steps: Iterable[int],
    report: Callable[[Progress], None] = lambda progress: None,
) -> int:
    """Train until the states at `steps` are stored; return the number of updates that this call made.

    The bits of a state depend on trajectory.science only, not on where the training
    resumed or on other stored states. Raises Diverged if a state cannot be reached;
    those before it are stored.
    """
    folder = Folder(trajectory)
    missing = folder.missing(steps)
    known = folder.divergence()
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
    """A network in training; `until` is the last step."""

    def __init__(
        self, folder: Folder, until: int, report: Callable[[Progress], None]
    ) -> None:
        self.folder = folder
        self.until = until
        self.report = report
        self.config, self.seed = folder.trajectory.config, folder.trajectory.seed
        drawn = initialised(
            replace(self.config, dtype=DType.float64),
            sigma=folder.trajectory.sigma,
            seed=self.seed,
        )
        self.drawn_weights = {
            name: p.detach().clone() for name, p in drawn.network.named_parameters()
        }
        self.network = drawn.network.to(
            getattr(torch, self.config.training.dtype)
        ).requires_grad_(True)
        self.loss, self.rule = drawn.loss, StepRule(self.network, self.config.training)
        self.step, self.updates, self.log = 0, 0, list[list[float]]()
        self.started = self.saved = self.reported = time.monotonic()

    def to(self, step: int) -> None:
        """Train to `step` from the current state or from the latest stored state before it, and store the result."""
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
        of_batch = BatchLoss(self.network, self.loss, batch)
        with torch.enable_grad():
            loss = of_batch()
            loss.backward()
        value = float(loss.detach())
        if not math.isfinite(value):
            self._diverge(step, f"the loss at step {self.step} is {value}")
        norm = get_total_norm(
            [p.grad for p in self.network.parameters() if p.grad is not None]
        )
        self.rule.refresh_curvature(step, of_batch, seed=self.seed)
        rate = self.rule.update(step)
        self.step = step
        self.updates = self.updates + 1
        self.log.append([step, value, rate, float(norm), self._accuracy()])

    def _accuracy(self) -> float:
        """Return the share of held-out examples whose whole answer is right, at the steps of tests."""
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
        return Progress(
            self.step, self.until, self.log[-1][1], next(tests, math.nan), rate
        )

    def _check_finite(self) -> None:
        if not all(bool(p.isfinite().all()) for p in self.network.parameters()):
            self._diverge(self.step, f"weights at step {self.step} are not finite")

    def _diverge(self, step: int, cause: str) -> None:
        self.folder.log(self._now())
        self.folder.note_divergence(step, cause)
        raise Diverged(step, cause)

    def _now(self) -> TrainingState:
        """Return the current state without copies, as it is written at once. At step 0 weights are unrounded draws."""
        if self.step:
            weights: dict[str, Tensor] = dict(self.network.named_parameters())
        else:
            weights = self.drawn_weights
        log = torch.tensor(self.log, dtype=torch.float64).reshape(-1, len(COLUMNS))
        return TrainingState(
            self.step,
            {name: p.detach() for name, p in weights.items()},
            self.rule.moments(),
            log,
        )

    def _restore(self, kept: TrainingState) -> None:
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                parameter.copy_(kept.weights[name])
        self.rule.restore(kept.moments, kept.step)
        self.step, self.log = kept.step, kept.log.tolist()
