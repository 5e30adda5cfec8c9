"""Trainings that cells of trained networks need first: each is carried out once, by workers."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hessfig.config.keys import kept_steps
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.plan import Cell
from hessfig.sweep.pool import Answer, CellOutcome, Here, Listener, Pool, brief
from hessfig.sweep.store import CellStore

if TYPE_CHECKING:
    from hessfig.states.training.loop import Progress


@dataclass(frozen=True)
class TrainingNeed:
    """A training, and the steps whose states must be stored."""

    trajectory: Trajectory
    steps: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.trajectory)


def needs(cells: Iterable[Cell]) -> list[TrainingNeed]:
    """Return the trainings behind `cells`, each once, in the order in which they are first needed."""
    steps_of: dict[str, tuple[Trajectory, set[int]]] = {}
    for cell in cells:
        if cell.step is not None and cell.trajectory is not None:
            _, steps = steps_of.setdefault(
                cell.trajectory.key, (cell.trajectory, set())
            )
            steps.update(
                {
                    cell.step,
                    *(step for step in kept_steps(cell.config) if step <= cell.step),
                }
            )
    return [
        TrainingNeed(trajectory, tuple(sorted(steps)))
        for trajectory, steps in steps_of.values()
    ]


def trained_for(
    cells: list[Cell], store: CellStore, workers: int
) -> Generator[CellOutcome, None, list[Cell]]:
    """Run the trainings that `cells` need; yield progress and cells whose training failed; return the other cells.

    A training that diverges leaves its states up to there: cells beyond fail by
    themselves, with its cause.
    """
    wanted = needs(cells)
    lost = dict[str, str]()
    if not wanted:
        return cells
    if workers:
        pool: Pool | Here = Pool(min(workers, len(wanted)), store, _train)
    else:
        pool = Here(store, _train)
    try:
        for outcome in pool.run(wanted):
            if outcome.kind == "failed":
                lost[outcome.cell.trajectory.key] = outcome.cause
            else:
                yield outcome
    finally:
        pool.stop()
    causes = {}
    for cell in cells:
        if cell.trajectory and cell.trajectory.key in lost:
            causes[cell] = lost[cell.trajectory.key]
    for cell, cause in causes.items():
        yield CellOutcome(cell, "failed", f"its training failed: {cause}")
    return [cell for cell in cells if cell not in causes]


def _train(need: TrainingNeed, store: CellStore, pipe: Listener) -> Answer:
    """Train as far as cells need it; say through the pipe how it goes."""
    from hessfig.states.training.loop import Diverged, ensure

    del store
    started = time.monotonic()
    try:
        updates = ensure(
            need.trajectory,
            need.steps,
            lambda now: pipe.send(("training", words(now), 0)),
        )
    except Diverged as error:
        return "trained", f"diverged: {error}"
    except (BrokenPipeError, ConnectionResetError):
        # The parent ended: so does the worker.
        raise
    except Exception as error:
        return "failed", brief(error)
    if updates:
        done = f"{updates} steps in {time.monotonic() - started:.3g} s"
    else:
        done = "reused"
    return "trained", f"trained to step {need.steps[-1]} ({done})"


def words(now: Progress) -> str:
    """Return the progress of a training in one line."""
    left = (now.until - now.step) / now.rate if now.rate else math.inf
    accuracy = "" if math.isnan(now.accuracy) else f", accuracy {now.accuracy:.4g}"
    return f"step {now.step} of {now.until}, loss {now.loss:.4g}{accuracy}, {now.rate:.3g} steps/s, {left:.0f} s left"
