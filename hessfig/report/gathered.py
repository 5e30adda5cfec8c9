"""Finds what an outputs folder holds for a report: sweeps and their state, failures, and tables of claims."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pandas as pd

from hessfig.analysis.slopes.printed import Window
from hessfig.errors import UserError
from hessfig.figures.sheets import FigureSpec
from hessfig.record import MANIFEST, TABLE, entry_of

STUDY = "study"


@dataclass(frozen=True)
class FigureAsked:
    """A figure that the settings know: `spec` draws it where its sweep was measured, `command` makes it.

    `problem` says why it cannot be asked for. A study has no sweep and no spec; it is `ready` with whole tables.
    """

    name: str
    title: str
    group: str
    sweep: str
    command: str
    spec: FigureSpec | None = None
    problem: UserError | None = None
    ready: bool = False

    @property
    def is_study(self) -> bool:
        """Whether it is computed without a sweep."""
        return self.group == STUDY

    @property
    def label(self) -> str:
        """Its name for readers."""
        return f"Figure {self.name}" if self.name[:1].isdigit() else self.name.replace("_", " ")


@dataclass(frozen=True)
class Departure:
    """A setting whose value in a run, `made`, is not the preset's, `usual`."""

    key: str
    made: str
    usual: str


@dataclass(frozen=True)
class SweepAsked:
    """A sweep as the settings have it: how slopes are fitted, what departs from the preset, how it is made again.

    `preset` is the sweep its command named; `departures` is None where the manifest does not tell. `other`: those in
    which it is another network, task or state, next to which nothing published of the preset's may stand.
    """

    name: str
    about: str
    windows: Sequence[Window]
    average: str
    command: str
    departures: Sequence[Departure] | None = None
    is_known: bool = True
    preset: str = ""
    other: Sequence[Departure] = ()


@dataclass(frozen=True)
class FigureRequests:
    """The requests of a report; `help` has a line for each setting, `library` draws charts.

    None: pictures alone.
    """

    outputs: Path
    figures: Sequence[FigureAsked]
    sweeps: Mapping[str, SweepAsked]
    help: Mapping[str, str]
    tolerance: float
    resamples: int
    version: str
    elsewhere: Sequence[str] = ()
    library: Path | None = None

    def figures_of(self, sweep: str) -> list[FigureAsked]:
        """Return the figures of a sweep in their order."""
        return [figure for figure in self.figures if figure.sweep == sweep]


CELLS, FAILURES = "cells", "failures"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_LONGEST = 2000  # letters of a cause that are shown


class SweepState(StrEnum):
    """How far a sweep is."""

    complete = "complete"
    incomplete = "incomplete"
    unfinished = "no table yet"
    unreadable = "cannot be read"
    bare = "no manifest"
    missing = "not measured"


@dataclass(frozen=True)
class Failure:
    """Why cells failed, and how many of them."""

    cause: str
    count: int


def find_sweeps(outputs: Path) -> list[str]:
    """Return the sorted names of the folders of sweeps; empty if the outputs folder does not exist."""
    with suppress(OSError):
        folders = [path for path in outputs.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()]
        return sorted(path.name for path in folders if any((path / file).exists() for file in (TABLE, CELLS)))
    return []


def failures_in(folder: Path) -> list[Failure]:
    """Return the stored causes of failed cells, the most frequent first.

    One of a cell that was measured since means nothing.
    """
    done = {path.stem for path in (folder / CELLS).glob("*/*.json")}
    causes: Counter[str] = Counter()
    for path in sorted((folder / FAILURES).glob("*.txt")):
        if path.stem not in done:
            with suppress(OSError):
                causes[path.read_text("utf-8", errors="replace").strip()[:_LONGEST]] += 1
    return [Failure(cause, count) for cause, count in causes.most_common()]


def state_of_sweep(folder: Path, manifest: Mapping[str, Any] | None, *, is_readable: bool) -> tuple[SweepState, str]:
    """Return the state of a sweep, and its description."""
    if not (folder / TABLE).is_file():
        count = sum(1 for _ in (folder / CELLS).glob("*/*.json"))
        return SweepState.unfinished, f"no table yet; cells stored: {count}"
    if not is_readable:
        return SweepState.unreadable, "the table or its manifest cannot be read"
    if manifest is None:
        return SweepState.bare, "no manifest next to the table: its settings are not known"
    return _counted(manifest)


def made_by(folder: Path) -> str:
    """Return the version of hessfig that wrote the manifest; empty if it does not say."""
    return str(entry_of(folder / MANIFEST, "hessfig") or "")[:40]


def _counted(manifest: Mapping[str, Any]) -> tuple[SweepState, str]:
    missing, cells = manifest.get("missing_cells", 0), manifest.get("cells", {})
    counts = cells if isinstance(cells, Mapping) else {}
    done = sum(counts.get(name, 0) for name in ("measured", "reused") if isinstance(counts.get(name), int))
    if isinstance(missing, int) and missing > 0:
        failed = counts.get("failed", 0)
        words = f"{missing} cells are missing" + (f", {failed} of them failed" if failed else "")
        return SweepState.incomplete, words
    return SweepState.complete, f"{done} cells"


VERIFY, CLAIMS = "hessfig verify", "hessfig claims"
_VERDICTS = ("holds_as_printed", "verdict")
_SWEEPS = "sweeps"  # names with a space between them
# In the order of a reader's questions; the rule is last, because it is long.
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
        """Return the rows about a sweep; None if there are none."""
        if self.frame is None or _SWEEPS not in self.frame:
            return None
        rows = self.frame[[sweep in str(names).split() for names in self.frame[_SWEEPS]]]
        return None if rows.empty else rows


def theory(outputs: Path) -> Ledger:
    """Return the table of statements that `hessfig verify` checked."""
    return _read(outputs / "verify" / "statements.csv", VERIFY)


def judged_claims(outputs: Path) -> Ledger:
    """Return the table of judged claims, with columns in a reader's order."""
    ledger = _read(outputs / "claims.csv", CLAIMS)
    if ledger.frame is None:
        return ledger
    first = [name for name in _CLAIM if name in ledger.frame]
    rest = [name for name in ledger.frame if name not in first]
    return replace(ledger, frame=ledger.frame[[*first, *rest]])


def _read(path: Path, command: str) -> Ledger:
    if not path.exists():
        return Ledger(None, path, command)
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=["nan"])
    except (OSError, ValueError) as error:  # what pandas raises for broken text are ValueErrors
        return Ledger(None, path, command, f"{path.name} cannot be read ({type(error).__name__}: {error})")
    return Ledger(frame, path, command)
