"""Why cells failed in another process, as files beside the cells: the run that collects says it."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hessfig.files import is_file, write_text
from hessfig.sweep.plan import Cell
from hessfig.sweep.pool import Outcome
from hessfig.sweep.store import CellStore

FAILURES = "failures"  # the folder, below that of the sweep
_LONGEST = 10_000  # characters of a cause
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
Launch = Callable[[list[Cell], CellStore], Generator[Outcome, None, None]]


def kind_of(cause: str) -> str:
    """Return a cause without its numbers: failures that differ in them alone are told once."""
    return _NUMBER.sub("#", cause)


@dataclass(frozen=True)
class Failures:
    """The causes of failed cells under `folder`, by key. One of a cell that was measured since means nothing."""

    folder: Path

    def cause(self, cell: Cell) -> str | None:
        """Return why the cell failed, if it did."""
        with suppress(OSError), self._path(cell).open(encoding="utf-8", errors="replace") as handle:
            return handle.read(_LONGEST)
        return None

    def reasons(self, cells: Iterable[Cell]) -> list[tuple[str, list[Cell]]]:
        """Return every kind of cause among `cells`, the most frequent first: one such cause, and who failed so."""
        noted = {path.stem for path in self.folder.glob("*.txt") if is_file(path)}
        found: dict[str, tuple[str, list[Cell]]] = {}
        for cell in cells:
            if cell.key in noted and (cause := self.cause(cell)) is not None:
                found.setdefault(kind_of(cause), (cause, []))[1].append(cell)
        return sorted(found.values(), key=lambda one: -len(one[1]))

    def forget(self, cells: Iterable[Cell]) -> None:
        """Forget why these cells failed: they are tried again."""
        for cell in cells:
            self._path(cell).unlink(missing_ok=True)

    def noting(self, launch: Launch) -> Launch:
        """Return the same launch, which writes down why a cell failed."""

        def run(cells: list[Cell], store: CellStore) -> Generator[Outcome, None, None]:
            for outcome in launch(cells, store):
                if outcome.kind == "failed":
                    write_text(self._path(outcome.cell), outcome.cause)
                yield outcome

        return run

    def _path(self, cell: Cell) -> Path:
        return self.folder / f"{cell.key}.txt"
