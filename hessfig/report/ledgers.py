"""The two ledgers beside the sweeps: statements of the theory, checked, and claims of the literature, judged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

VERIFY, CLAIMS = "hessfig verify", "hessfig claims"
_VERDICTS = ("holds_as_printed", "verdict")
_SWEEPS = "sweeps"  # names with a space between them
# As a reader asks: which claim, is it so, by how much, who says it; the rule last, for it is long.
_CLAIM = ("id", "verdict", "statement", "effect", "low", "high", "words", "source", "figure", "sweeps", "run")


@dataclass(frozen=True)
class Ledger:
    """A table on disk, or why there is none, and the command that makes it."""

    frame: pd.DataFrame | None
    path: Path
    command: str
    problem: str = ""

    @property
    def counts(self) -> list[tuple[str, int]]:
        """How many rows have which verdict."""
        name = next((name for name in _VERDICTS if self.frame is not None and name in self.frame), None)
        if self.frame is None or name is None:
            return []
        return [(str(verdict), int(count)) for verdict, count in self.frame[name].value_counts().items()]

    def of_sweep(self, sweep: str) -> pd.DataFrame | None:
        """Return the rows that speak of a sweep; None if there are none."""
        if self.frame is None or _SWEEPS not in self.frame:
            return None
        rows = self.frame[[sweep in str(names).split() for names in self.frame[_SWEEPS]]]
        return None if rows.empty else rows


def theory(outputs: Path) -> Ledger:
    """Return the statements that `hessfig verify` checked."""
    return _read(outputs / "verify" / "statements.csv", VERIFY)


def claims(outputs: Path) -> Ledger:
    """Return the claims that were judged from tables, columns in a reader's order."""
    found = _read(outputs / "claims.csv", CLAIMS)
    if found.frame is None:
        return found
    first = [name for name in _CLAIM if name in found.frame]
    rest = [name for name in found.frame if name not in first]
    return replace(found, frame=found.frame[[*first, *rest]])


def _read(path: Path, command: str) -> Ledger:
    if not path.exists():
        return Ledger(None, path, command)
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=["nan"])
    except (OSError, ValueError) as error:  # what pandas raises for broken text are ValueErrors
        return Ledger(None, path, command, f"{path.name} cannot be read ({type(error).__name__}: {error})")
    return Ledger(frame, path, command)
