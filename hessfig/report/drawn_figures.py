"""Draws the figures of a report with their texts, and collects everything that its pages show."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageChops

from hessfig.errors import UserError
from hessfig.figures import sheets
from hessfig.figures.parts.chart_encoding import ChartEncoding, MapEncoding
from hessfig.figures.parts.page import Paper
from hessfig.figures.parts.saving import file_words
from hessfig.files import write_bytes
from hessfig.report.charts import chart_of
from hessfig.report.gathered import FigureAsked, FigureRequests, Ledger, SweepState, judged_claims, theory
from hessfig.report.readings import SweepFound, of_numbers, read_sweep

LARGEST_SVG = 800_000  # bytes: a larger SVG is shown more slowly than its PNG, and is left out
_SMALL = (420, 300)
_COLOURS = 256
_SEEN, _FEW = 4, 0.02  # the largest invisible error of a colour (of 255), and its share of a picture


@dataclass(frozen=True)
class Picture:
    """A drawn page: paths below the report's folder, size in pixels, text, numbers and chart (as JSON)."""

    title: str
    alt: str
    png: str
    small: str
    numbers_file: str
    width: int
    height: int
    small_size: tuple[int, int]
    numbers: pd.DataFrame
    svg: str = ""
    chart: str = ""


@dataclass(frozen=True)
class DrawnFigure:
    """A figure of the report: its pictures, what it shows and how to read it, or why it could not be drawn."""

    asked: FigureAsked
    pictures: tuple[Picture, ...] = ()
    about: str = ""
    how: str = ""
    problem: UserError | None = None


def draw_for_report(asked: FigureAsked, outputs: Path, root: Path, *, interactive: bool = False) -> DrawnFigure:
    """Draw a figure into the folder `root` of a report; if it cannot be drawn, return the reason.

    An `interactive` one has charts of its numbers as well.
    """
    if asked.problem is not None or (asked.spec is None and not asked.ready):
        return DrawnFigure(asked, problem=asked.problem)
    about, how = layout_docstring(asked)
    folder = root / ("studies" if asked.is_study else Path("sweeps", asked.sweep))
    try:
        pages = _draw(asked, outputs, folder)
    except UserError as error:
        return DrawnFigure(asked, about=about, how=how, problem=error)
    pictures = tuple(
        _picture(asked, encoding, path, root, interactive=interactive)
        for encoding, paths in pages
        for path in paths
        if path.suffix == ".png"
    )
    return DrawnFigure(asked, pictures, about, how)


def layout_docstring(asked: FigureAsked) -> tuple[str, str]:
    """Return what a layout (or study) shows and how to read it, from its docstring."""
    if asked.spec is None:
        return "", about_and_how(cleandoc(_study(asked.name).__doc__ or ""))[1]
    return about_and_how(cleandoc(sheets.LAYOUTS[asked.spec.layout].pages.__doc__ or ""))


def about_and_how(text: str) -> tuple[str, str]:
    """Return the first paragraph of a docstring, and what follows its words 'How to read it:'."""
    about = " ".join(text.partition("\n\n")[0].split())
    how = re.split(r"\n\s*\n|\n\s*Requires", text.partition("How to read it:")[2])[0]
    return about, " ".join(how.split())


def _draw(asked: FigureAsked, outputs: Path, folder: Path) -> list[tuple[ChartEncoding | MapEncoding, list[Path]]]:
    if asked.spec is None:
        paths = _study(asked.name)(outputs, Paper(formats=("png", "svg")), into=folder)
        return [(import_module("hessfig.figures.study_figures").ENCODINGS[asked.name], paths)]
    return sheets.draw_charted(asked.spec, outputs, into=folder)


def _study(name: str) -> Callable[..., list[Path]]:
    draw_study: Callable[..., list[Path]] = import_module("hessfig.figures.study_figures").DRAWN[name]
    return draw_study


def _picture(
    asked: FigureAsked, encoding: ChartEncoding | MapEncoding, png: Path, root: Path, *, interactive: bool
) -> Picture:
    numbers = _numbers(png.with_suffix(".csv"))
    title = _title(asked, png.stem)
    width, height = _shrink(png, png)
    small = png.parent / "small" / png.name
    return Picture(
        title=title,
        alt=f"{title}. {of_numbers(numbers)}",
        png=png.relative_to(root).as_posix(),
        small=small.relative_to(root).as_posix(),
        numbers_file=png.with_suffix(".csv").relative_to(root).as_posix(),
        width=width,
        height=height,
        small_size=_shrink(png, small, _SMALL),
        numbers=numbers,
        svg=_kept_svg(png.with_suffix(".svg"), root),
        chart=chart_of(numbers, encoding) if interactive else "",
    )


def _numbers(path: Path) -> pd.DataFrame:
    """Return what was drawn; nothing for a page whose panels have no numbers, and whose CSV has no columns."""
    if not path.read_text("utf-8").strip():
        return pd.DataFrame()
    return pd.read_csv(path, keep_default_na=False, na_values=["", "nan"])


def _title(asked: FigureAsked, stem: str) -> str:
    """Return the name of the figure, and which of its pages this is: 'Figure 6: depth 3'."""
    page = stem.removeprefix(file_words(f"fig{asked.name}")).strip("_").replace("_", " ")
    words = re.sub(r"\bdepth(\d+)", lambda match: "1 layer" if match[1] == "1" else f"{match[1]} layers", page)
    return f"{asked.label}: {re.sub(r'(?<=H) (?=[of]$)', '_', words)}" if page else asked.label


def _shrink(source: Path, to: Path, most: tuple[int, int] | None = None) -> tuple[int, int]:
    """Write a PNG with a palette, of limited size; return its size. Pictures of few colours lose nothing."""
    with Image.open(source) as image:
        flat = image.convert("RGB")
    if most:
        flat.thumbnail(most, Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    in_few_colours(flat).save(buffer, "PNG", optimize=True)
    write_bytes(to, buffer.getvalue())
    return flat.size


def in_few_colours(picture: Image.Image) -> Image.Image:
    """Return an RGB picture with a palette, a third of the size; unchanged if colours would suffer (heat maps)."""
    small = picture.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    off = np.asarray(ImageChops.difference(picture, small.convert("RGB"))).max(axis=2)
    return small if (off > _SEEN).mean() < _FEW else picture


def _kept_svg(path: Path, root: Path) -> str:
    """Return the path of the SVG; an SVG too large for a page is removed from the report."""
    if path.stat().st_size <= LARGEST_SVG:
        return path.relative_to(root).as_posix()
    path.unlink()
    return ""


GROUPS = {
    "paper": "The paper",
    "beyond": "Beyond the paper",
    "follow_up": "Follow-ups",
    "study": "Studies of the theory",
    "own": "Your own",
}


@dataclass(frozen=True)
class ToDo:
    """A command that would fill a gap of the report, and the gap."""

    command: str
    why: str


@dataclass(frozen=True)
class Contents:
    """Everything that the pages show."""

    asked: FigureRequests
    sweeps: Sequence[SweepFound]
    figures: Sequence[DrawnFigure]
    theory: Ledger
    claims: Ledger

    def figures_of(self, sweep: str) -> list[DrawnFigure]:
        """Return the figures of a sweep that can be shown."""
        return [drawn for drawn in self.figures if drawn.asked.sweep == sweep]

    def groups(self) -> list[tuple[str, list[DrawnFigure]]]:
        """Return the figures, drawn or with a problem, by group, the paper's first; without empty groups."""
        shown = [figure for figure in self.figures if figure.pictures or figure.problem]
        by_group = [
            (title, [figure for figure in shown if figure.asked.group == group]) for group, title in GROUPS.items()
        ]
        return [(title, figures) for title, figures in by_group if figures]

    def label(self, sweep: str) -> str:
        """Return a reader's name of a sweep: its figures, or its own name."""
        labels = [drawn.asked.label for drawn in self.figures_of(sweep)]
        return ", ".join(labels) or sweep

    def todo(self) -> list[ToDo]:
        """Return the commands for what is missing, in the order of the figures."""
        return list({todo.command: todo for todo in self._gaps()}.values())

    def _gaps(self) -> Iterator[ToDo]:
        for sweep in self.sweeps:
            if sweep.state != SweepState.complete:
                yield ToDo(sweep.asked.command, f"{sweep.name}: {sweep.words}")
        known = {sweep.name for sweep in self.sweeps}
        for drawn in self.figures:
            if not drawn.pictures and drawn.asked.sweep not in known:
                yield ToDo(drawn.asked.command, f"{drawn.asked.label}: not measured yet")
        for ledger in (self.theory, self.claims):
            if ledger.frame is None and (ledger is self.theory or ledger.problem):
                yield ToDo(ledger.command, ledger.problem or "the statements of the theory are not checked yet")


def gather_contents(asked: FigureRequests, root: Path) -> Contents:
    """Read everything and draw every figure into the folder `root`."""
    sweeps = [read_sweep(asked, name) for name in asked.sweeps]
    figures = [
        draw_for_report(figure, asked.outputs, root, interactive=bool(asked.library)) for figure in asked.figures
    ]
    return Contents(asked, sweeps, figures, theory(asked.outputs), judged_claims(asked.outputs))
