"""A bar for a call of more than two seconds, on a terminal or in a notebook; elsewhere nothing is printed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any

from hessfig.measurements.quantity import Request, columns

if TYPE_CHECKING:
    from torch import Generator

PATIENCE = 2.0  # seconds until the bar appears
LOST = "hessfig.measure keeps nothing of a call that is interrupted; hessfig.run keeps every finished cell"


@contextmanager
def waiting() -> Iterator[Waiting]:
    """Show what is being done from the third second on, and remove the bar at the end."""
    watched = Waiting()
    try:
        yield watched
    except KeyboardInterrupt as stopped:
        stopped.add_note(LOST)
        raise
    finally:
        watched.stop()


class Waiting:
    """Counts the columns of blocks of each quantity: requests ask for a column's random stream when it begins."""

    def __init__(self) -> None:
        self._note, self._begun = "checking the function", set[tuple[str, int, str]]()
        self._total: int | None = None  # of columns, once they are known
        self._bar: Any = None
        self._task: Any = None
        self._lock = Lock()
        self._is_over = False
        self._timer = Timer(PATIENCE, self._show)
        self._timer.daemon = True
        if _may_be_watched():
            self._timer.start()

    def of(self, asked: Mapping[str, Request]) -> dict[str, Request]:
        """Return the same requests, whose columns are counted."""
        total = sum(len(columns(request.blocks)) for request in asked.values())
        self._tell(total=total)
        return {name: self._counted(name, request) for name, request in asked.items()}

    def stop(self) -> None:
        """Remove the bar, and show none from now on."""
        self._timer.cancel()
        with self._lock:
            self._is_over = True
            if self._bar is not None:
                self._bar.stop()

    def _counted(self, name: str, request: Request) -> Request:
        def stream(layer: int, col: str) -> Generator:
            self._begun.add((name, layer, col))
            self._tell(note=f"{name} of {col}@{layer}" if layer else f"{name} of {col}")
            return request.stream(layer, col)

        return replace(request, stream=stream)

    def _tell(self, *, note: str | None = None, total: int | None = None) -> None:
        self._note, self._total = note or self._note, total or self._total
        with self._lock:
            if self._bar is not None and not self._is_over:
                done = max(len(self._begun) - 1, 0)  # the last one has only begun
                self._bar.update(
                    self._task, note=self._note, total=self._total, completed=done
                )

    def _show(self) -> None:
        from hessfig.sweep.progress import NotebookBar, in_notebook, terminal_bar

        is_notebook = in_notebook()
        with self._lock:
            if self._is_over or not (is_notebook or sys.stderr.isatty()):
                return
            self._bar = (
                NotebookBar("columns", is_transient=True)
                if is_notebook
                else terminal_bar("measure", is_transient=True)
            )
            done = max(len(self._begun) - 1, 0)
            self._task = self._bar.add_task(
                "measure",
                total=self._total,
                completed=done,
                note=self._note,
                visible=True,
            )
            self._bar.start()


def _may_be_watched() -> bool:
    """Whether a bar could be seen, as far as that is known without an import."""
    return "IPython" in sys.modules or (sys.stderr is not None and sys.stderr.isatty())
