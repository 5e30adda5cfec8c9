"""A sweep's Slurm job: its tasks measure shares of the cells in a shared folder, where they are watched appearing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path

from hessfig.files import check_writable, write_text
from hessfig.sweep.engine import sweep_folder, unfinished
from hessfig.sweep.launchers import queue
from hessfig.sweep.launchers.failures import Failures
from hessfig.sweep.launchers.local import Outcome
from hessfig.sweep.launchers.one_shard import FAILURES
from hessfig.sweep.launchers.script import LOGS, sbatch_script
from hessfig.sweep.launchers.shard import Shard
from hessfig.sweep.manifest import config_hash
from hessfig.sweep.pilots import allocations, pilot_cells, settled_by
from hessfig.sweep.plan import Cell, Setup, plan
from hessfig.sweep.store import CellStore, CorruptCell

_SHORTEST, _LONGEST, _GROWTH = 1.0, 20.0, 1.3  # seconds between two looks
_LATE = (0.0, 2.0, 10.0)  # seconds after which a file that another machine wrote is looked for again


class SlurmJob:
    """The job array of one sweep with its settings: submitted by this command, or by an earlier one that is over.

    The cells on disk are the truth; the number of the job is kept beside them only so that nobody submits it twice.
    """

    def __init__(self, setups: list[Setup], words: Sequence[str]) -> None:
        self._setups, self._words, self._config = setups, words, setups[0].config
        self.folder = sweep_folder(self._config)
        self._store, self._failures = CellStore(self.folder / "cells"), Failures(self.folder / FAILURES)
        self._record = self.folder / LOGS / f"job-{config_hash(setups)[:12]}.json"
        self.number, self._measured, self._told = _recorded(self._record), 0, ""

    def script(self) -> str:
        """Return what would be submitted."""
        return self._script(self.shards())

    def shards(self) -> list[int]:
        """Return which shares have cells to measure: of each, those that wait for pilots too."""
        pilots, (cells, todo) = unfinished(pilot_cells(self._setups), self._store), self._planned()
        waiting, count = set(cells if pilots else todo), self._config.launcher.tasks
        return [at for at in range(1, count + 1) if not waiting.isdisjoint(Shard(at, count).cells(cells))]

    def is_alive(self) -> bool:
        """Whether a task may still measure; so it is taken to be while Slurm does not answer."""
        return self.number is not None and _may_measure(queue.states(self.number))

    def submit(self) -> None:
        """Hand the job in. Raises UserError in Slurm's words when it is refused."""
        check_writable(self.folder / LOGS)
        shards, (_, todo) = self.shards(), self._planned()
        self._failures.forget([*pilot_cells(self._setups), *todo])
        self.number, self._measured = queue.submit(self._script(shards)), 0
        write_text(self._record, json.dumps({"job": self.number}) + "\n")
        tasks = f"{len(shards)} task{'s' * (len(shards) > 1)} for {len(todo)} cells"
        _say(f"slurm job {self.number} submitted: {tasks}; `scancel {self.number}` ends it, Ctrl-C does not")

    def forget(self) -> None:
        """Forget the job's number: it is over, and what it did is known."""
        self._record.unlink(missing_ok=True)

    def run(self, cells: list[Cell], store: CellStore) -> Generator[Outcome, None, None]:
        """Yield the outcome of every cell as it appears; submit the job unless it is at it, again if tasks were lost.

        Tasks that ran out of time, or whose node was lost, are submitted again as long as that brings cells;
        cancelled ones are not.
        """
        if not self.is_alive():
            self.submit()
        yield from self.watched(cells, store, again=True)

    def collected(self, cells: list[Cell], store: CellStore) -> Generator[Outcome, None, None]:
        """Yield what became of cells whose job is over."""
        yield from self.watched(cells, store, again=False)

    def watched(self, cells: list[Cell], store: CellStore, *, again: bool) -> Generator[Outcome, None, None]:
        """Yield outcomes until every cell has one."""
        waiting, pause = dict.fromkeys(cells), _SHORTEST
        while waiting:
            found = (
                queue.states(self.number) if self.number else {}
            )  # before the disk: what ended has written
            self._tell(found)
            for outcome in self._ended(list(waiting), store, looks=(0.0,) if _may_measure(found) else _LATE):
                del waiting[outcome.cell]
                yield outcome
            if waiting and not _may_measure(found):
                if not (again and self._deserves_another(found or {})):
                    yield from (Outcome(cell, "failed", self._loss(found or {})) for cell in waiting)
                    return
                self.submit()
            time.sleep(pause if waiting else 0.0)
            pause = min(_LONGEST, _GROWTH * pause)

    def _ended(
        self, waiting: list[Cell], store: CellStore, *, looks: Sequence[float]
    ) -> Generator[Outcome, None, None]:
        for look in looks:
            time.sleep(look if waiting else 0.0)
            outcomes = [outcome for cell in waiting if (outcome := self._outcome(cell, store)) is not None]
            self._measured += sum(outcome.kind == "measured" for outcome in outcomes)
            yield from outcomes
            known = {id(outcome.cell) for outcome in outcomes}
            waiting = [cell for cell in waiting if id(cell) not in known]

    def _outcome(self, cell: Cell, store: CellStore) -> Outcome | None:
        with suppress(CorruptCell):
            if store.is_finished(cell.key):
                return Outcome(cell, "measured")
        cause = self._failures.cause(cell)
        return None if cause is None else Outcome(cell, "failed", cause)

    def _deserves_another(self, found: queue.States) -> bool:
        return self._measured > 0 and "CANCELLED" not in found.values()

    def _loss(self, found: queue.States) -> str:
        how = f" ({queue.counted(found)})" if found else ""
        logs = self.folder / LOGS / f"{self.number}_*.log"
        return f"every task has ended without it{how}: run the same command again; the tasks' words: {logs}"

    def _planned(self) -> tuple[list[Cell], list[Cell]]:
        """Return the cells of the plan as far as it is settled, and those that are not finished."""
        cells = plan(self._setups, settled_by(self._setups, allocations(self._setups, self._store)))
        return cells, unfinished(cells, self._store)

    def _script(self, shards: Sequence[int]) -> str:
        return sbatch_script(self._config, self._words, folder=self.folder, shards=shards)

    def _tell(self, found: queue.States | None) -> None:
        words = queue.counted(found) if found else "Slurm does not answer; asked again" * (found is None)
        if words and words != self._told:
            _say(f"slurm job {self.number}: {words}")
            self._told = words


def is_expected(folder: Path) -> bool:
    """Whether a job that was submitted for the sweep in `folder` may still measure, as far as Slurm says."""
    jobs = filter(None, map(_recorded, (folder / LOGS).glob("job-*.json")))
    return any(_may_measure(queue.states(job)) for job in jobs)


def said_of(folder: Path) -> list[str]:
    """Return a line a job that was submitted for the sweep in `folder` and not seen ending: what its tasks do."""
    jobs = filter(None, map(_recorded, sorted((folder / LOGS).glob("job-*.json"))))
    answers = ((job, queue.states(job)) for job in jobs)
    return [f"slurm job {job}: {_in_words(found)}" for job, found in answers]


def _in_words(found: queue.States | None) -> str:
    if found is None:
        return "Slurm does not answer here"
    return queue.counted(found) or "over"


def _recorded(path: Path) -> str | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(path.read_text())["job"])
    return None


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _may_measure(found: queue.States | None) -> bool:
    return found is None or not queue.ALIVE.isdisjoint(found.values())
