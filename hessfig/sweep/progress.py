"""What a run says while it goes: a bar on a terminal, a line now and then elsewhere, each kind of failure once."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from threading import Event, Thread
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hessfig.errors import plain_lines
from hessfig.sweep.pool import Outcome

EVERY = 30.0  # seconds between lines where no bar is drawn
TELL_EVERY = 20.0  # seconds between two lines about a training, where no bar shows them
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def kind_of(cause: str) -> str:
    """Return a cause without its numbers: failures that differ in them alone are told once."""
    return _NUMBER.sub("#", cause)


class Reporter:
    """Counts outcomes and shows them; use as a context manager.

    Elsewhere than on a terminal: a line when measuring starts, one every `every` seconds, and one when it ends.
    """

    def __init__(self, name: str, total: int, reused: int, *, every: float = EVERY) -> None:
        self.counts = {"measured": 0, "reused": reused, "failed": 0}
        self.peak = 0
        self._name, self._total, self._every = name, total, every
        self._causes, self._first = Counter[str](), dict[str, str]()
        self._told: dict[str, float] = {}
        self._errors = Console(stderr=True, highlight=False)
        self._started, self._reused_before = time.perf_counter(), reused
        self._is_watched, self._ended = sys.stderr.isatty(), Event()
        self._bar = Progress(
            TextColumn(f"[bold]{name}[/]"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._is_watched,
        )
        note = "starting workers" if total > reused else self._note()
        self._task = self._bar.add_task(name, total=total, completed=reused, note=note, visible=total > 0)

    def __enter__(self) -> Reporter:
        self._bar.start()
        if self._todo and not self._is_watched:
            self._say(f"{self._name}: starting workers; {self._todo} of {self._total} cells to measure")
            Thread(target=self._tell, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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

    def show(self, outcome: Outcome) -> None:
        """Count one outcome; print a failure, the first of its kind, at once; now and then how trainings go."""
        if outcome.kind in ("training", "trained"):
            self._show_training(outcome)
            return
        self.counts["reused" if outcome.kind == "met" else outcome.kind] += 1
        self.peak = max(self.peak, outcome.peak)
        if outcome.kind == "failed":
            cause = kind_of(outcome.cause)
            self._causes[cause] += 1
            self._first.setdefault(cause, outcome.cause)
            if self._causes[cause] == 1:
                self._say(f"failed: {outcome.cell}: {outcome.cause}")
        self._bar.update(self._task, advance=1, note=self._note())

    @property
    def _todo(self) -> int:
        return self._total - self._reused_before

    def _tell(self) -> None:
        while not self._ended.wait(self._every):
            self._say(f"{self._name}: {self._progress()}{self._left()}")

    def _progress(self) -> str:
        return f"{sum(self.counts.values())} of {self._total} cells, {self._note()}"

    def _left(self) -> str:
        """Return the time that is left, if what was done so far took any."""
        done = sum(self.counts.values()) - self._reused_before
        seconds = self.seconds / done * (self._todo - done) if done else 0.0
        words = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else ""
        return f", about {words or f'{seconds / 3600:.1f} h'} left" if done else ""

    def _show_training(self, outcome: Outcome) -> None:
        self.peak = max(self.peak, outcome.peak)
        self._bar.update(self._task, note=outcome.cause if outcome.kind == "training" else self._note())
        told, now = self._told.get(str(outcome.cell), self._started), time.perf_counter()
        if outcome.kind == "trained" or (self._bar.disable and now - told > TELL_EVERY):
            self._told[str(outcome.cell)] = now
            self._say(f"{outcome.cell}: {outcome.cause}")

    def _say(self, words: str) -> None:
        self._errors.print(plain_lines(words), markup=False, soft_wrap=True)

    def _note(self) -> str:
        done, seconds = self.counts["measured"], self.seconds
        rate = f", {done / seconds:.2f} cells/s" if done else ""
        return f"{self.counts['reused']} reused, {self.counts['failed']} failed{rate}"
