"""What stands in a report: every sweep read, every figure drawn, the ledgers, and what is not there yet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hessfig.report.asked import Asked
from hessfig.report.folders import State
from hessfig.report.ledgers import Ledger, claims, theory
from hessfig.report.pictures import Drawn, draw
from hessfig.report.sweeps import SweepFound, read_sweep

GROUPS = {
    "paper": "The paper",
    "beyond": "Beyond the paper",
    "follow_up": "Follow-ups",
    "study": "Studies of the theory",
    "own": "Your own",
}


@dataclass(frozen=True)
class ToDo:
    """A command that would fill a gap, and which one."""

    command: str
    why: str


@dataclass(frozen=True)
class Contents:
    """Everything that the pages show."""

    asked: Asked
    sweeps: Sequence[SweepFound]
    figures: Sequence[Drawn]
    theory: Ledger
    claims: Ledger

    def figures_of(self, sweep: str) -> list[Drawn]:
        """Return the figures of a sweep that are there to show."""
        return [drawn for drawn in self.figures if drawn.asked.sweep == sweep]

    def groups(self) -> list[tuple[str, list[Drawn]]]:
        """Return the figures that are there, or could not be drawn, by group, the paper's first; none is empty."""
        found = [
            (
                title,
                [one for one in self.figures if one.asked.group == group and (one.pictures or one.problem)],
            )
            for group, title in GROUPS.items()
        ]
        return [(title, figures) for title, figures in found if figures]

    def label(self, sweep: str) -> str:
        """Return what a reader calls a sweep: its figures, or its name."""
        labels = [drawn.asked.label for drawn in self.figures_of(sweep)]
        return ", ".join(labels) or sweep

    def todo(self) -> list[ToDo]:
        """Return the commands for what is not there, in the order of the figures."""
        return list({todo.command: todo for todo in self._gaps()}.values())

    def _gaps(self) -> Iterator[ToDo]:
        for sweep in self.sweeps:
            if sweep.state != State.complete:
                yield ToDo(sweep.asked.command, f"{sweep.name}: {sweep.words}")
        known = {sweep.name for sweep in self.sweeps}
        for drawn in self.figures:
            if not drawn.pictures and drawn.asked.sweep not in known:
                yield ToDo(drawn.asked.command, f"{drawn.asked.label}: not measured yet")
        for ledger in (self.theory, self.claims):
            if ledger.frame is None and (ledger is self.theory or ledger.problem):
                yield ToDo(
                    ledger.command, ledger.problem or "the statements of the theory are not checked yet"
                )


def gather(asked: Asked, root: Path) -> Contents:
    """Read everything and draw every figure into the folder `root`."""
    sweeps = [read_sweep(asked, name) for name in asked.sweeps]
    figures = [draw(figure, asked.outputs, root) for figure in asked.figures]
    return Contents(asked, sweeps, figures, theory(asked.outputs), claims(asked.outputs))
