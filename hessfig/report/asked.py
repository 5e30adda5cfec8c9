"""What a report is asked to show: the figures and sweeps that the settings know. All numbers come from disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hessfig.analysis.windows import Window
from hessfig.errors import UserError
from hessfig.figures.sheets import FigureSpec

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
        """Its name as a reader says it."""
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
    which it is another network, task or state, beside which nothing published of the preset's may stand.
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
class Asked:
    """Everything a report is asked for; `help` has a line for each setting."""

    outputs: Path
    figures: Sequence[FigureAsked]
    sweeps: Mapping[str, SweepAsked]
    help: Mapping[str, str]
    tolerance: float
    resamples: int
    version: str
    elsewhere: Sequence[str] = ()

    def figures_of(self, sweep: str) -> list[FigureAsked]:
        """Return the figures of a sweep in their order."""
        return [figure for figure in self.figures if figure.sweep == sweep]
