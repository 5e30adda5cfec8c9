"""Renders the report: what it says of each sweep, as one HTML page that opens from disk."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from hessfig.analysis.slopes import printed
from hessfig.errors import UserError


@dataclass(frozen=True)
class Picture:
    """A drawn page of a figure: its PNG, its title, and the command that draws it."""

    png: bytes
    title: str
    command: str

    @property
    def source(self) -> str:
        """The PNG as a data URI."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


@dataclass(frozen=True)
class SweepSection:
    """What the report says of one sweep.

    Attributes
    ----------
    name, about, state : str
        Name of the sweep, its sentence, and how many of its cells are measured.
    command : str
        The command that measures it.
    changed : sequence of (key, value, value in the preset)
        Settings that differ from the preset.
    pictures : sequence of Picture
        Its figures.
    slopes : DataFrame, optional
        The rows of slopes.csv.
    links : mapping
        Files next to the table by their names, as paths relative to the report.
    problems : sequence of UserError
        What could not be read or drawn.
    """

    name: str
    about: str
    state: str
    command: str
    changed: Sequence[tuple[str, str, str]] = ()
    pictures: Sequence[Picture] = ()
    slopes: pd.DataFrame | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    problems: Sequence[UserError] = ()

    @property
    def verdicts(self) -> str:
        """How many slopes have which verdict, such as "agrees: 6, undecided: 1"."""
        if self.slopes is None:
            return ""
        counts = self.slopes["verdict"].value_counts()
        return ", ".join(f"{verdict}: {count}" for verdict, count in counts.items())

    @property
    def slope_cells(self) -> tuple[list[str], list[list[str]]]:
        """The heads and rows of the table of slopes."""
        _, heads, rows = printed.cells(self.slopes)
        return list(heads), [list(row) for row in rows]


def page(sections: Sequence[SweepSection], version: str) -> str:
    """Return the report as HTML. Nothing in it is loaded from elsewhere, and nothing runs."""
    environment = Environment(
        loader=PackageLoader("hessfig.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        sections=sections, version=version
    )
