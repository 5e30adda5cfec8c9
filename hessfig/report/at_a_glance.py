"""The paper at a glance: each of its figures with measured and published slopes and verdicts, as a page and a PDF."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from hessfig.errors import UserError
from hessfig.figures.summary_page import SHOWN, SummaryEntry, save_summary
from hessfig.files import check_writable
from hessfig.register import check_replaceable, publish
from hessfig.report import readings
from hessfig.report.drawn_figures import Contents, DrawnFigure, Picture, gather_contents
from hessfig.report.gathered import FigureRequests
from hessfig.report.readings import ReadingVerdict, SweepFound

PAPER, GLANCE = "paper", "results-at-a-glance.pdf"
_PRODUCER, _KIND = b"hessfig report: ", "page of results"


@dataclass(frozen=True)
class Slope:
    """A fitted slope in words, next to what is published and what is predicted ("" where there is none)."""

    block: str
    own: str
    published: str
    predicted: str


@dataclass(frozen=True)
class Glance:
    """A figure of the paper: its picture (the overview of several), slopes, and both verdicts: theory, paper."""

    drawn: DrawnFigure
    picture: Picture
    slopes: Sequence[Slope]
    theory: ReadingVerdict
    paper: ReadingVerdict


def glances(contents: Contents) -> list[Glance]:
    """Return the figures of the paper that are drawn, in its order."""
    sweeps = {sweep.name: sweep for sweep in contents.sweeps}
    tolerance = contents.asked.tolerance
    return [
        Glance(
            drawn,
            next((picture for picture in drawn.pictures if "overview" in picture.png), drawn.pictures[0]),
            list(_slopes(sweep)),
            readings.on_theory(sweep, tolerance),
            readings.on_paper(sweep, tolerance),
        )
        for drawn in contents.figures
        if drawn.asked.group == PAPER and drawn.pictures and (sweep := sweeps.get(drawn.asked.sweep))
    ]


def _slopes(sweep: SweepFound) -> Iterator[Slope]:
    """Yield the slopes on the first window with published values, one per block and part."""
    if sweep.slopes is None:
        return
    known = sweep.slopes[sweep.slopes["published"].notna()]
    windows = known.groupby(["window_low", "window_high"], sort=False, dropna=False)
    first = next((rows for _, rows in windows), known)
    for row in first.drop_duplicates(["row", "col", "part"]).to_dict("records"):
        block = row["row"] if row["row"] == row["col"] else f"({row['row']}, {row['col']})"
        published = _number(row["published"], row["published_se"])
        predicted = "" if pd.isna(row["predicted"]) else f"{row['predicted']:g}"
        yield Slope(f"{block} {row['part']}", _number(row["slope"], row["slope_se"]), published, predicted)


def _number(value: float, error: float) -> str:
    return f"{value:.2f}" + (f" ± {error:.2f}" if pd.notna(error) else "")


def write_glance(asked: FigureRequests) -> tuple[Path, Contents]:
    """Write outputs/results-at-a-glance.pdf, one A4 page; return its path and its contents.

    Raises UserError for a file of that name that hessfig did not write, for a place that cannot be written, and where
    no figure of the paper is measured.
    """
    path = asked.outputs / GLANCE
    check_replaceable([path], _KIND)
    check_writable(asked.outputs)
    with tempfile.TemporaryDirectory() as folder:
        contents = gather_contents(asked, Path(folder))
        shown = glances(contents)
        if not shown:
            raise UserError(
                "format=pdf: no figure of the paper is measured here",
                got=f"output_dir={asked.outputs}",
                allowed="a folder with at least one sweep of the paper's figures",
                remedy=f"hessfig run sweep=sigma output_dir={asked.outputs}",
            )
        compared = sorted(shown, key=lambda glance: not glance.slopes)  # those with published slopes first
        entries = [_entry(glance, Path(folder)) for glance in compared[:SHOWN]]
        drawn = save_summary(f"hessfig {asked.version}", entries, _judged(contents), Path(folder))
        publish({path: drawn.read_bytes() + b"%" + _PRODUCER + asked.version.encode() + b"\n"}, _KIND)
    return path, contents


def _entry(glance: Glance, folder: Path) -> SummaryEntry:
    title = f"{glance.drawn.asked.label}: {glance.drawn.asked.title}"
    lines = [f"{s.block}: {s.own} ({s.published}; {s.predicted or 'no prediction'})" for s in glance.slopes]
    return SummaryEntry(
        title, folder / glance.picture.png, [*lines, f"theory: {glance.theory.word}; paper: {glance.paper.word}"]
    )


def _judged(contents: Contents) -> list[str]:
    """Return every judged claim with its verdict."""
    frame = contents.claims.frame
    rows = [] if frame is None else frame.to_dict("records")
    return [f"{row['id']}: {row['verdict']}" for row in rows if row["verdict"] != "not run"]
