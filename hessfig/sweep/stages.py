"""What cells need first: pilots and trainings."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from hessfig.config import Config, State, sigma_values
from hessfig.config.keys import kept_steps
from hessfig.measurements.allocation import PILOT_PROBES, PILOT_REPEATS, Allocation, allocation, few, needs_pilots
from hessfig.record import FROBENIUS
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.plan import Cell, Settled, Setup
from hessfig.sweep.pool import Answer, Outcome, Pool, answer_all, brief
from hessfig.sweep.store import CellStore, CorruptCell

if TYPE_CHECKING:
    from hessfig.states.training.loop import Progress


def pilot_cells(setups: list[Setup]) -> list[Cell]:
    """Return the cells that say how the probes' error compares with the spread over seeds, for variants that probe.

    A few values of the grid, at each PILOT_REPEATS networks of their own. Their seeds are negative, which no sweep's
    are. A network that does not change with sigma and seed has no such spread, and no pilots; nor has a trained state,
    for which every pilot would be a training.
    """
    return [cell for setup in setups if _has_pilots(setup) for cell in _of_setup(setup)]


def allocations(setups: list[Setup], store: CellStore) -> list[Allocation]:
    """Return the probes that the pilots of each variant call for; without a pilot, none."""
    return [_allocation(setup, store) for setup in setups]


def settled_by(setups: list[Setup], chosen: list[Allocation]) -> Settled:
    """Return what a plan asks: the probes of a variant's columns at a sigma."""
    by_setup = dict(zip(map(id, setups), chosen, strict=True))
    return lambda setup, sigma: by_setup[id(setup)].at(sigma)


def _has_pilots(setup: Setup) -> bool:
    config = setup.config
    spreads = {"sigma", "seed"} <= setup.axes and config.state.kind != State.trained
    return FROBENIUS in config.quantities and spreads and needs_pilots(config, setup.layout)


def _of_setup(setup: Setup) -> list[Cell]:
    count = min(PILOT_PROBES, setup.config.estimator.num_probes)
    pilot = dataclasses.replace(setup, config=_with_probes(setup.config, count), _sciences={})
    return [
        Cell(pilot, sigma, seed)
        for index, sigma in enumerate(few(sigma_values(setup.config.grid)))
        for seed in range(-1 - index * PILOT_REPEATS, -1 - (index + 1) * PILOT_REPEATS, -1)
    ]


def _allocation(setup: Setup, store: CellStore) -> Allocation:
    found: dict[float, list[Mapping[str, Any]]] = {}
    for cell in pilot_cells([setup]):
        assert cell.sigma is not None
        found.setdefault(cell.sigma, []).extend(_rows(cell, store))
    return allocation(found, setup.config)


def _rows(cell: Cell, store: CellStore) -> list[dict[str, Any]]:
    try:
        return store.read(cell.key) or []
    except CorruptCell:
        return []


def _with_probes(config: Config, count: int) -> Config:
    return dataclasses.replace(config, estimator=dataclasses.replace(config.estimator, num_probes=count))


_LOST = (BrokenPipeError, ConnectionResetError)  # the parent ended: so does the worker


@dataclass(frozen=True)
class Need:
    """A training, and the steps whose states are to be there."""

    trajectory: Trajectory
    steps: tuple[int, ...]

    def __str__(self) -> str:
        return str(self.trajectory)


def needs(cells: Iterable[Cell]) -> list[Need]:
    """Return the trainings behind `cells`, each once, in the order in which they are first needed."""
    found: dict[str, tuple[Trajectory, set[int]]] = {}
    for cell in cells:
        if cell.step is not None:
            trajectory = Trajectory(cell.config, cell.sigma, cell.seed)
            _, steps = found.setdefault(trajectory.key, (trajectory, set()))
            steps.update({cell.step, *(step for step in kept_steps(cell.config) if step <= cell.step)})
    return [Need(trajectory, tuple(sorted(steps))) for trajectory, steps in found.values()]


def trained_for(cells: list[Cell], store: CellStore, workers: int) -> Generator[Outcome, None, list[Cell]]:
    """Train what `cells` need; yield how it goes, and cells whose training failed; return the others.

    A training that diverges leaves its states up to there: cells beyond fail by themselves, with its cause.
    """
    wanted, lost = needs(cells), dict[str, str]()
    if not wanted:
        return cells
    pool = Pool(min(workers, len(wanted)), store, serve_trainings)
    try:
        for outcome in pool.run(wanted):
            if outcome.kind == "failed":
                lost[outcome.cell.trajectory.key] = outcome.cause
            else:
                yield outcome
    finally:
        pool.stop()
    causes = {cell: lost.get(_key(cell), "") for cell in cells}
    for cell, cause in causes.items():
        if cause:
            yield Outcome(cell, "failed", f"its training failed: {cause}")
    return [cell for cell in cells if not causes[cell]]


def serve_trainings(pipe: Connection, store: CellStore) -> None:
    """Train what comes through `pipe` until it closes; say how it goes on the way."""
    del store
    answer_all(pipe, lambda need: _train(need, pipe))


def _train(need: Need, pipe: Connection) -> Answer:
    import hessfig.sweep.worker  # noqa: F401  (torch on one thread)
    from hessfig.states.training.loop import Diverged, ensure

    started = time.monotonic()
    try:
        updates = ensure(need.trajectory, need.steps, lambda now: pipe.send(("training", words(now), 0)))
    except Diverged as error:
        return "trained", f"diverged: {error}"
    except _LOST:
        raise
    except Exception as error:
        return "failed", brief(error)
    done = f"{updates} steps in {time.monotonic() - started:.3g} s" if updates else "reused"
    return "trained", f"trained to step {need.steps[-1]} ({done})"


def words(now: Progress) -> str:
    """Return how far a training is, in a line."""
    left = (now.until - now.step) / now.rate if now.rate else math.inf
    accuracy = "" if math.isnan(now.accuracy) else f", accuracy {now.accuracy:.4g}"
    return f"step {now.step} of {now.until}, loss {now.loss:.4g}{accuracy}, {now.rate:.3g} steps/s, {left:.0f} s left"


def _key(cell: Cell) -> str:
    return "" if cell.step is None else Trajectory(cell.config, cell.sigma, cell.seed).key
