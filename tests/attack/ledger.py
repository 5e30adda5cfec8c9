"""What the attack tried and what came of it: the counts that `make test-attack` prints at its end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MOST_MEMORY = 500 * 2**20


@dataclass
class Ledger:
    """Faults by kind, those that were survived, and the lists that must be empty."""

    tried: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    tracebacks: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    peak: int = 0
    peak_of: str = ""

    def note(self, kind, *, traceback="", silent="", unclear=""):
        """Count one fault; the other arguments say what went wrong, if anything did."""
        self.tried[kind] += 1
        if traceback:
            self.tracebacks.append(f"{kind}: {traceback}")
        elif silent:
            self.silent.append(f"{kind}: {silent}")
        elif unclear:
            self.unclear.append(f"{kind}: {unclear}")
        else:
            self.survived[kind] += 1

    def weigh(self, reader, peak):
        """Note the most memory that a reader of a foreign file held, in bytes."""
        if peak > self.peak:
            self.peak, self.peak_of = peak, reader

    def wrong(self, kind):
        """Return what went wrong with one kind of fault."""
        return [
            line
            for line in (*self.tracebacks, *self.silent, *self.unclear)
            if line.startswith(f"{kind}: ")
        ]

    def lines(self):
        """Return the summary."""
        kinds = [
            f"  {kind:<44} {self.survived[kind]:>6} of {self.tried[kind]:>6}"
            for kind in self.tried
        ]
        memory = (
            f"{self.peak / 2**20:.0f} MiB ({self.peak_of})"
            if self.peak
            else "not measured"
        )
        return [
            *kinds,
            f"faults tried: {self.tried.total()}, survived: {self.survived.total()}",
            f"tracebacks: {len(self.tracebacks)}, silent readings of damaged data: {len(self.silent)}, "
            f"refusals that lack a word: {len(self.unclear)}",
            f"peak memory of a reader: {memory}, at most {MOST_MEMORY / 2**20:.0f} MiB",
            *(f"  {line}" for line in (*self.tracebacks, *self.silent, *self.unclear)),
        ]


LEDGER = Ledger()
