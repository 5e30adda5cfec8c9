"""Shows the progress of a run: a bar on a terminal and in a notebook, else a line at intervals; each kind of failure
once."""

from __future__ import annotations

import html
import re
import sys
import time
from collections import Counter
from threading import Event, Thread
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from hessfig.errors import plain_lines
from hessfig.sweep.pool import CellOutcome

EVERY = 30.0  # seconds between lines where no bar is drawn
TELL_EVERY = 20.0  # seconds between two lines about a training, where no bar shows them
REDRAWN = 0.2  # seconds between two states of a notebook's bar, at least
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def kind_of(cause: str) -> str:
    """Return a cause without its numbers: failures that differ only in numbers are reported once."""
    return _NUMBER.sub("#", cause)


def in_notebook() -> bool:
    """Whether a Jupyter kernel runs this process (Colab and editors have one too)."""
    module = sys.modules.get("IPython")
    return module is not None and hasattr(module.get_ipython(), "kernel")


class NotebookBar:
    """A bar of HTML that is redrawn in its place, without widgets; its methods are those of rich.progress.Progress."""

    def __init__(self, unit: str = "cells", *, is_transient: bool = False) -> None:
        self._text = ""
        self._done = 0
        self._note = ""
        self._is_visible = False
        self._is_transient = is_transient
        self._unit = unit
        self._total: int | None = 0
        self._handle: Any = None
        self._drawn = 0.0

    def add_task(
        self, name: str, *, total: int | None, completed: int, note: str, visible: bool
    ) -> TaskID:
        """Set the description of the bar's only task."""
        self._text = name
        self._total = total
        self._done = completed
        self._note = note
        self._is_visible = visible
        return TaskID(0)

    def start(self) -> None:
        """Show the bar, where there is something to count."""
        if self._is_visible:
            from IPython.display import display

            self._handle = display(self._form(), raw=True, display_id=True)

    def update(
        self,
        task: TaskID,
        *,
        note: str,
        advance: int = 0,
        total: int | None = None,
        completed: int | None = None,
    ) -> None:
        """Count, and redraw the bar unless that was done a moment ago."""
        if completed is not None:
            self._done = completed
        self._done += advance
        self._note = note
        self._total = self._total if total is None else total
        if time.perf_counter() - self._drawn > REDRAWN:
            self._draw()

    def stop(self) -> None:
        """Leave the bar as it stands, or remove one that is transient."""
        if not self._is_transient:
            self._draw()
        elif self._handle is not None:
            self._handle.update({"text/plain": "", "text/html": ""}, raw=True)

    def _draw(self) -> None:
        self._drawn = time.perf_counter()
        if self._handle is not None:
            self._handle.update(self._form(), raw=True)

    def _form(self) -> dict[str, str]:
        words = f"{self._text}: {self._note}"
        size = ""
        if self._total is not None:
            count = f"{self._done} of {self._total} {self._unit}"
            words = f"{self._text}: {count}, {self._note}"
            size = f' max="{self._total}" value="{self._done}"'
        bar = f"<progress{size}></progress> {html.escape(words)}"
        return {"text/plain": words, "text/html": bar}


class Reporter:
    """Counts outcomes and shows them; use as a context manager.

    Elsewhere than on a terminal or in a notebook: a line when measuring starts, one
    every `every` seconds, and one when it ends.
    """

    def __init__(
        self, name: str, total: int, reused: int, *, every: float = EVERY
    ) -> None:
        self.counts = {"measured": 0, "reused": reused, "failed": 0}
        self.peak = 0
        self._name = name
        self._total = total
        self._every = every
        self._causes, self._first = Counter[str](), dict[str, str]()
        self._told: dict[str, float] = {}
        self._errors = Console(stderr=True, highlight=False)
        self._started = time.perf_counter()
        self._reused_before = reused
        # Or the end of the last training before it: rates are those of cells alone.
        self._first_cell = self._started
        self._before_first = reused  # cells that were counted until then
        self._in_notebook, self._ended = in_notebook(), Event()
        self._is_watched = self._in_notebook or sys.stderr.isatty()
        self._bar = (
            NotebookBar()
            if self._in_notebook
            else terminal_bar(name, is_drawn=self._is_watched)
        )
        note = "starting" if total > reused else self._note()
        self._task = self._bar.add_task(
            name, total=total, completed=reused, note=note, visible=total > 0
        )

    def __enter__(self) -> Reporter:
        self._bar.start()
        if self._todo and not self._is_watched:
            self._say(f"{self._name}: {self._todo} of {self._total} cells to measure")
            Thread(target=self._tell, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._bar.stop()
        for cause, count in self._causes.items():
            if count > 1:
                self._say(
                    f"failed: {count - 1} more cells of {self._name} the same way: {self._first[cause].splitlines()[0]}"
                )
        if self._todo and not self._is_watched and kind is None:
            self._say(f"{self._name}: done: {self._progress()}")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def show(self, outcome: CellOutcome) -> None:
        """Count one outcome; print a failure, the first of its kind, at once; now and then how trainings go."""
        if outcome.kind in ("training", "trained"):
            self._show_training(outcome)
            return
        self.counts["reused" if outcome.kind == "raced" else outcome.kind] += 1
        self.peak = max(self.peak, outcome.peak)
        if outcome.kind == "failed":
            cause = kind_of(outcome.cause)
            self._causes[cause] += 1
            self._first.setdefault(cause, outcome.cause)
            if self._causes[cause] == 1:
                self._say(f"failed: {outcome.cell}: {outcome.cause}")
        # A terminal's bar has a column for it.
        left = self._left() if self._in_notebook else ""
        self._bar.update(self._task, advance=1, note=f"{self._note()}{left}")

    @property
    def _measuring(self) -> float:
        return time.perf_counter() - self._first_cell

    @property
    def _todo(self) -> int:
        return self._total - self._reused_before

    def _tell(self) -> None:
        while not self._ended.wait(self._every):
            self._say(f"{self._name}: {self._progress()}{self._left()}")

    def _progress(self) -> str:
        return f"{sum(self.counts.values())} of {self._total} cells, {self._note()}"

    def _left(self) -> str:
        """Return the estimated remaining time, if any time was spent so far."""
        counted = sum(self.counts.values())
        done, left = counted - self._before_first, self._total - counted
        if not (done and left):
            return ""
        seconds = self._measuring / done * left
        words = f"{seconds / 3600:.1f} h"
        if seconds < 90:
            words = f"{seconds:.0f} s"
        elif seconds < 5400:
            words = f"{seconds / 60:.0f} min"
        return f", about {words} left"

    def _show_training(self, outcome: CellOutcome) -> None:
        self.peak = max(self.peak, outcome.peak)
        note = outcome.cause if outcome.kind == "training" else self._note()
        self._bar.update(self._task, note=note)
        last_line = self._told.get(str(outcome.cell), self._started)
        now = time.perf_counter()
        if not self.counts["measured"]:
            self._first_cell, self._before_first = now, sum(self.counts.values())
        if outcome.kind == "trained" or (
            not self._is_watched and now - last_line > TELL_EVERY
        ):
            self._told[str(outcome.cell)] = now
            self._say(f"{outcome.cell}: {outcome.cause}")

    def _say(self, words: str) -> None:
        self._errors.print(plain_lines(words), markup=False, soft_wrap=True)

    def _note(self) -> str:
        done = self.counts["measured"]
        seconds = self._measuring
        rate = f", {done / seconds:.2f} cells/s" if done else ""
        return f"{self.counts['reused']} reused, {self.counts['failed']} failed{rate}"


def terminal_bar(
    name: str, *, is_drawn: bool = True, is_transient: bool = False
) -> Progress:
    """Return a bar on the standard error: name, count, note and the time left."""
    return Progress(
        TextColumn(f"[bold]{name}[/]"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not is_drawn,
        transient=is_transient,
    )
