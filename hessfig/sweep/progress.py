"""What a run says while it goes: a bar on a terminal, a few lines elsewhere, failures at once."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hessfig.sweep.launchers.local import Outcome

TELL_EVERY = 20.0  # seconds between two lines about a training, where no bar shows them


class Reporter:
    """Counts outcomes and shows them; use as a context manager."""

    def __init__(self, name: str, total: int, reused: int) -> None:
        self.counts = {"measured": 0, "reused": reused, "failed": 0}
        self.peak = 0
        self._name, self._causes = name, Counter[str]()
        self._told: dict[str, float] = {}
        self._errors = Console(stderr=True, highlight=False)
        self._started = time.perf_counter()
        self._bar = Progress(
            TextColumn(f"[bold]{name}[/]"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(
            name, total=total, completed=reused, note=self._note(), visible=total > 0
        )

    def __enter__(self) -> Reporter:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        for cause, count in self._causes.items():
            if count > 1:
                self._say(
                    f"failed: {count - 1} more cells of {self._name} the same way: {cause.splitlines()[0]}"
                )

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def show(self, outcome: Outcome) -> None:
        """Count one outcome; print a failure with its cause at once, and now and then how trainings go."""
        if outcome.kind in ("training", "trained"):
            self._show_training(outcome)
            return
        self.counts["reused" if outcome.kind == "met" else outcome.kind] += 1
        self.peak = max(self.peak, outcome.peak)
        if outcome.kind == "failed":
            self._causes[outcome.cause] += 1
            if self._causes[outcome.cause] == 1:
                self._say(f"failed: {outcome.cell}: {outcome.cause}")
        self._bar.update(self._task, advance=1, note=self._note())

    def _show_training(self, outcome: Outcome) -> None:
        self.peak = max(self.peak, outcome.peak)
        self._bar.update(self._task, note=outcome.cause if outcome.kind == "training" else self._note())
        told, now = self._told.get(str(outcome.cell), self._started), time.perf_counter()
        if outcome.kind == "trained" or (self._bar.disable and now - told > TELL_EVERY):
            self._told[str(outcome.cell)] = now
            self._say(f"{outcome.cell}: {outcome.cause}")

    def _say(self, words: str) -> None:
        self._errors.print(words, markup=False, soft_wrap=True)

    def _note(self) -> str:
        done, seconds = self.counts["measured"], self.seconds
        rate = f", {done / seconds:.2f} cells/s" if done else ""
        return f"{self.counts['reused']} reused, {self.counts['failed']} failed{rate}"
