"""Why cells failed in another process, as files beside the cells: the run that collects says it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hessfig.files import write_text
from hessfig.sweep.launchers.local import Outcome
from hessfig.sweep.plan import Cell
from hessfig.sweep.store import CellStore

FAILURES = "failures"  # the folder, below that of the sweep
Launch = Callable[[list[Cell], CellStore], Generator[Outcome, None, None]]


@dataclass(frozen=True)
class Failures:
    """The causes of failed cells under `folder`, by key. One of a cell that was measured since means nothing."""

    folder: Path

    def cause(self, cell: Cell) -> str | None:
        """Return why the cell failed, if it did."""
        with suppress(OSError):
            return self._path(cell).read_text("utf-8", errors="replace")
        return None

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
