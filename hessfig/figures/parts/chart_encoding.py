"""What a chart of a page shows: which columns of the page's numbers are places, values, panels and curves."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ChartEncoding:
    """The columns behind the curves of a page.

    `x` runs along the panels ("": the axis of the sweep, or the names of what was measured at one place), `y` is the
    value, `low` and `high` are the ends of its interval, called `spread`; a page without these columns has intervals
    by `sem` and `count`. `panels` have axes of their own, `series` tell curves apart next to the columns of a table;
    of both, only the columns that vary are used. `is_whole`: all that the page draws is in the curves.
    """

    x: str = ""
    y: str = "mean"
    low: str = "low"
    high: str = "high"
    spread: str = "95 % interval"
    panels: tuple[str, ...] = ("block", "quantity")
    series: tuple[str, ...] = ()
    is_whole: bool = True


@dataclass(frozen=True)
class MapEncoding:
    """The columns behind the maps of a page: names of rows and columns, each with its layer ("": none), and values."""

    down: tuple[str, str]
    across: tuple[str, str]
    value: str
    title: str


CURVES_OF_TABLE = ChartEncoding()
