"""Specification of a figure: its settings, the sweep that it draws, and what its layout requires of the sweep."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from hessfig.analysis.axis import DEPTHS, varied_key, with_settings
from hessfig.analysis.manifest import RecordedRun, read_run
from hessfig.analysis.slopes.fit import ARITHMETIC
from hessfig.analysis.slopes.printed import Window
from hessfig.errors import UserError, did_you_mean, run_command
from hessfig.figures.parts.page import Paper
from hessfig.figures.parts.panel_sheet import Page
from hessfig.record import FROBENIUS


@dataclass(frozen=True)
class FigureSpec:
    """The name of a figure, its sweep, its layout (see sheets.LAYOUTS), the settings of its fits, and its options.

    `x`, `colour` and `dashes` name sigma, step, layer, num_layers, part or a varied
    setting; so does `where`, with the values to draw. `preset` names the shipped sweep
    with this network and task, whose published slopes are printed; "" for other sweeps.
    `paper` holds width, note, formats, panels and style, which panel_sheet and
    save_page apply to every layout.
    """

    name: str
    sweep: str
    layout: str
    windows: Sequence[Window] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    average: str = ARITHMETIC
    x: str | None = None
    colour: str | None = None
    dashes: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    paper: Paper = field(default_factory=Paper)

    @property
    def quantity(self) -> str:
        """The quantity to draw (figure.options.quantity); frobenius by default."""
        return str(self.options.get("quantity", FROBENIUS))

    @property
    def index(self) -> int | None:
        """Index of the value to draw, for quantities with several values (figure.options.index); None: the first."""
        wanted = self.number("index")
        return None if wanted is None else int(wanted)

    def number(self, key: str) -> float | None:
        """Return an option that is a number, or None. Raises UserError for anything else."""
        value = self.options.get(key)
        return None if value is None else self._as_number(key, value)

    def numbers(self, key: str) -> list[float] | None:
        """Return an option that is a list of positive numbers, or None. Raises UserError for anything else."""
        values = self.options.get(key)
        if values is None:
            return None
        every = values if isinstance(values, list) else [values]
        numbers = [self._as_number(key, value) for value in every]
        if not all(value > 0 for value in numbers):
            raise _bad_option(
                key,
                values,
                "numbers > 0",
                f"for example 'figure.options.{key}=[0.1,1]'",
            )
        return numbers

    def words(self, key: str) -> list[str] | None:
        """Return an option that is one text or a list of texts, or None."""
        values = self.options.get(key)
        if values is None:
            return None
        if isinstance(values, list | tuple):
            return list(map(str, values))
        return [str(values)]

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """Return an option that is one of `choices`. Raises UserError for anything else."""
        value = str(self.options.get(key, default))
        if value not in choices:
            example = f"for example figure.options.{key}={next(iter(choices))}"
            raise _bad_option(
                key, value, ", ".join(choices), did_you_mean(value, choices) or example
            )
        return value

    def switch(self, key: str, default: bool) -> bool:
        """Return an option that is true or false. Raises UserError for anything else."""
        value = self.options.get(key, default)
        if not isinstance(value, bool):
            raise _bad_option(
                key, value, "true or false", f"for example figure.options.{key}=true"
            )
        return value

    def _as_number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad_option(
                key, value, "a number", f"for example figure.options.{key}=1"
            )
        return float(value)


def _bad_option(key: str, value: Any, allowed: str, remedy: str) -> UserError:
    return UserError(f"figure.options.{key}", got=value, allowed=allowed, remedy=remedy)


@dataclass(frozen=True)
class Source:
    """The folder of a sweep. Its table and manifest are read on first use, and `where` selects rows."""

    folder: Path
    where: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def run(self) -> RecordedRun:
        """The sweep. Raises UserError if it was not run, if its table is invalid, or if `where` selects no rows."""
        run = read_run(self.folder)
        return replace(run, table=_picked(run.table, self.where))

    @property
    def table(self) -> DataFrame:
        """The sweep's table."""
        return self.run.table


_COLUMNS = (
    "sigma",
    "step",
    "seed",
    "num_layers",
    "layer",
    "row",
    "col",
    "part",
    "quantity",
    "index",
)


def _picked(table: DataFrame, where: Mapping[str, Any]) -> DataFrame:
    """Return the rows that have these values (one value or a list) in columns of the table or in varied settings.

    Raises UserError for a name that is neither, and for values that no row has.
    """
    for word, wanted in where.items():
        if word in _COLUMNS:
            key = word
        elif word in DEPTHS:
            key = "num_layers"
        else:
            variants = table["variant"].unique()
            key = varied_key(word, variants, asked="figure.where", others=_COLUMNS)
        named = table if key in _COLUMNS else with_settings(table, key)
        values = list(map(_as_text, named[key]))
        asked = wanted if isinstance(wanted, list | tuple) else [wanted]
        for item in asked:
            if _as_text(item) not in values:
                raise UserError(
                    f"figure.where: no number has this {word}",
                    got=f"{word}: {item}",
                    allowed=", ".join(filter(None, dict.fromkeys(values))) or "nothing",
                    remedy=f"for example 'figure.where={{{word}: {values[0]}}}'",
                )
        table = table[[item in set(map(_as_text, asked)) for item in values]]
    return table


def _as_text(value: Any) -> str:
    """Return a value as text that is the same for 1, 1.0 and '1', and for a sigma to six digits."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return str(value)
    return "" if np.isnan(number) else f"{number:.6g}"


@dataclass(frozen=True)
class Requires:
    """Requirement of a layout: the table has finite numbers of the quantity `name` in rows of one of the `quantities`.

    `quantities` is `name` by default, or follows from the figure's options. `sweep`
    names the shipped sweep that measures the quantity (by default the message suggests
    the same sweep with this quantity); `what` describes the numbers in words.
    """

    name: str
    quantities: Collection[str] | Callable[[FigureSpec], Collection[str]] = ()
    sweep: str = ""
    what: str = ""

    def check(self, spec: FigureSpec, source: Source) -> None:
        """Raise UserError if the table of the sweep does not meet the requirement."""
        if callable(self.quantities):
            wanted = self.quantities(spec)
        else:
            wanted = self.quantities or (self.name,)
        table = source.table
        if not (table["quantity"].isin(wanted) & np.isfinite(table["value"])).any():
            if self.what:
                lacks = f": the table has no {self.what}"
            else:
                lacks = f" draws {self.name}, and the table has none"
            again = f"{run_command(source.folder)} 'quantities=[{self.name}]'"
            if self.sweep:
                again = f"hessfig run sweep={self.sweep}"
            raise UserError(
                f"figure.layout={spec.layout}{lacks}",
                got=", ".join(table["quantity"].unique()),
                allowed=f"a sweep with quantities=[{self.name}]",
                remedy=again,
            )


class RequiresSteps(Requires):
    """Requirement of a layout: the table has numbers at steps of a training."""

    def check(self, spec: FigureSpec, source: Source) -> None:
        """Raise UserError if no number of the table has a step."""
        if source.table["step"].isna().all():
            raise UserError(
                f"{source.table['sweep'].iloc[0]}: no number of this table has a step",
                got="initialised or loaded states",
                allowed="a sweep along a training",
                remedy="hessfig run sweep=training",
            )


STEPS = RequiresSteps("steps")


@dataclass(frozen=True)
class FigureLayout:
    """A way of drawing a sweep: a row of hessfig.figures.layouts.core_layouts, or of a study.

    Attributes
    ----------
    drawn_by : str
        "MODULE:FUNCTION" of the function that yields its pages, imported when a figure
        is drawn.
    options : tuple of str
        The names of figure.options that it accepts.
    requires : tuple of Requires
        The requirements that the table must meet.
    takes : tuple of str
        Which of x, colour and dashes it accepts.
    """

    drawn_by: str
    options: tuple[str, ...] = ("quantity", "index")
    requires: tuple[Requires, ...] = ()
    takes: tuple[str, ...] = ()

    def draw(self, spec: FigureSpec, folder: Path) -> Iterator[Page]:
        """Yield the pages of a sweep. Raises UserError if the sweep does not meet the layout's requirements."""
        source = Source(folder, spec.where)
        for requirement in self.requires:
            requirement.check(spec, source)
        yield from self.pages(spec, source)

    @property
    def pages(self) -> Callable[[FigureSpec, Source], Iterator[Page]]:
        """The function behind `drawn_by`."""
        module, _, name = self.drawn_by.partition(":")
        function: Callable[[FigureSpec, Source], Iterator[Page]] = getattr(
            import_module(module), name
        )
        return function
