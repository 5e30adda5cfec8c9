"""A page: its width, type and style, and what is written of it."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from hessfig.analysis.axis import as_variant, last_word, settings_of, short_variant
from hessfig.analysis.slopes.fit import ARITHMETIC, RESAMPLES
from hessfig.analysis.slopes.printed import Window
from hessfig.errors import UserError, did_you_mean
from hessfig.figures.parts.relabelled import check_words, page_box, relabel
from hessfig.files import write_bytes
from hessfig.record import FROBENIUS
from hessfig.register import publish
from hessfig.terms import Matrix, Part

TEXT_WIDTH = 5.5  # inches: the text of an ICLR page
FORMATS = ("pdf", "png", "svg")
SMALLEST, LARGEST = 7.0, 9.0  # points: nothing is set smaller, whatever a style asks for
_BUNDLES = {"iclr": "iclr2024", "neurips": "neurips2024", "icml": "icml2024"}
_SIZES = ("font.size", "axes.labelsize", "axes.titlesize", "legend.fontsize", "xtick.labelsize", "ytick.labelsize")
_FAMILIES = ["STIXGeneral", "DejaVu Serif"]


@dataclass(frozen=True)
class Paper:
    """What the settings of a page ask of every layout: figure.width, note, formats, panels, title ..., and `style`.

    `width` in inches; None: the style's. Without `note` the words stand in a .txt next to the figure. `panels` are
    names of panels, none: all. `title`, `xlabel`, `ylabel` and `legend` (a place of matplotlib's, or none) replace the
    layout's where they are given. `changed`: what is drawn is not of the preset's network, but of one with these
    settings, as every note then says.
    """

    width: float | None = None
    note: bool = True
    formats: Sequence[str] = FORMATS
    panels: Sequence[str] = ()
    style: str = "default"
    changed: Sequence[str] = ()
    title: str | None = None
    xlabel: str | None = None
    ylabel: str | None = None
    legend: str | None = None

    def __post_init__(self) -> None:
        for key in ("title", "xlabel", "ylabel"):
            check_words(f"figure.{key}", getattr(self, key) or "")

    @property
    def labels(self) -> dict[str, str | None]:
        """What `relabel` puts in place of the layout's."""
        return {"title": self.title, "xlabel": self.xlabel, "ylabel": self.ylabel, "legend": self.legend}

    @property
    def inches(self) -> float:
        """The width of the page."""
        return self.width or (_bundle(self.style)["figure.figsize"][0] if self.style in _BUNDLES else TEXT_WIDTH)

    def type_settings(self) -> dict[str, Any]:
        """Return sizes and family of the style as rcParams, sizes held between SMALLEST and LARGEST; no LaTeX."""
        if self.style not in _BUNDLES:
            return {}
        found = _bundle(self.style)
        sizes = {key: min(max(float(found[key]), SMALLEST), LARGEST) for key in _SIZES}
        sizes["legend.title_fontsize"] = sizes["legend.fontsize"]
        return {**sizes, "font.family": [*_installed(found["font.serif"]), *_FAMILIES]}


def _bundle(style: str) -> dict[str, Any]:
    from tueplots import bundles

    return dict(getattr(bundles, _BUNDLES[style])(usetex=False))


def _installed(families: Sequence[str]) -> list[str]:
    """Return the families that this machine has; a missing one would be warned of at every letter."""
    from matplotlib.font_manager import fontManager

    known = {font.name for font in fontManager.ttflist}
    return [family for family in families if family in known]


SMALL = TINY = SMALLEST  # points: ticks, legends and words in panels

_MATRIX_COLOURS: dict[str, str] = {
    Matrix.W_V: "#7570b3",
    Matrix.W_Q: "#1b9e77",
    Matrix.W_K: "#66a61e",
    Matrix.W_QK: "#1b7f9e",
    Matrix.W_E: "#525252",
    Matrix.W_U: "#999999",
    Matrix.W_in: "#386cb0",
    Matrix.W_out: "#80b1d3",
    "embeddings": "#525252",
    "norms": "#fb8072",
}
_PART_COLOURS = {
    Part.H_o: "#d95f02",
    Part.H_f: "#e7298a",
    Part.H: "#444444",
    Part.H_oT: "#f4a460",
    Part.H_fT: "#f29ac6",
}
_OTHER = "#a6761d"
# Of kinds of networks and of rules: none of a weight or of a part (blues, yellow, black, browns).
TONES = ("#0072B2", "#E69F00", "#56B4E9", "#000000", "#8c6d1f", "#003f5c", "#8b1a1a")
_DOTS = 300  # per inch, at which words are measured
GUIDE = "#808080"
PUBLISHED = "#222222"
BACKING = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}  # behind words on lines

RC = {
    "font.family": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "axes.linewidth": 0.5,
    "axes.titlepad": 4,
    "axes.titley": 1.0,  # a fixed place: finding one costs a layout of every tick label
    "axes.labelpad": 2,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.2,
    "ytick.major.size": 2.2,
    "xtick.major.pad": 2,
    "ytick.major.pad": 2,
    "lines.linewidth": 1.0,
    "lines.markersize": 2.0,
    "legend.fontsize": TINY,
    "legend.title_fontsize": TINY,
    "legend.framealpha": 0.8,
    "legend.edgecolor": "none",
    "legend.fancybox": False,
    "legend.handlelength": 1.2,
    "legend.labelspacing": 0.15,
    "legend.borderpad": 0.1,
    "legend.handletextpad": 0.4,
    "legend.borderaxespad": 0.2,
    "pdf.fonttype": 42,
    "svg.hashsalt": "hessfig",
    "savefig.dpi": 300,
    "figure.dpi": 100,
}


@contextmanager
def styled(paper: Paper | None = None) -> Iterator[None]:
    """The context in which figures are built and saved, for a paper; the caller's settings come back after it."""
    settings: dict[Any, Any] = {k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith("backend")}
    with mpl.rc_context(settings | RC | (paper or Paper()).type_settings()):
        yield


def points(key: str) -> float:
    """Return a size of the present type, such as axes.titlesize, in points."""
    sizes: Any = mpl.rcParams
    return float(FontProperties(size=sizes[key]).get_size_in_points())


def width_of(words: str, size: float = TINY) -> float:
    """Return how many inches the widest line of some words takes in the present type, `size` in points."""
    family = tuple(mpl.rcParams["font.family"])
    return max((_width(line, size, family) for line in words.split("\n")), default=0.0)


def fitting(candidates: Sequence[str], room: float, size: float = TINY) -> str:
    """Return the first of some words that fit into `room` inches; else the last, cut in its middle if plain."""
    for words in candidates:
        if width_of(words, size) <= room:
            return words
    words = candidates[-1]
    if is_math_text(words):
        return words
    keep = next((n for n in range(len(words) - 1, 2, -1) if width_of(_cut(words, n), size) <= room), 2)
    return _cut(words, keep)


def matrix_colour(name: str) -> str:
    """Return the colour of a weight (the published ones for W_V and W_Q)."""
    return _MATRIX_COLOURS.get(name, _OTHER)


def part_colour(part: str) -> str:
    """Return the colour of a part of the Hessian, for panels that show several."""
    return _PART_COLOURS[Part(part)]


def tone(rank: int) -> str:
    """Return the colour of the `rank`-th line of a panel whose lines are of no weight and no part."""
    return TONES[rank % len(TONES)]


def shades(colour: str, count: int) -> list[tuple[float, float, float]]:
    """Return `count` shades of a colour, light to dark (later layers); a single one is the colour itself."""
    if count == 1:
        return [to_rgb(colour)]
    return [_shade(colour, 0.6 - 1.05 * index / (count - 1)) for index in range(count)]


def _shade(colour: str, lightness: float) -> tuple[float, float, float]:
    """Mix with white (lightness > 0) or black (lightness < 0)."""
    target, weight = (1.0, lightness) if lightness > 0 else (0.0, -lightness)
    red, green, blue = (channel + (target - channel) * weight for channel in to_rgb(colour))
    return red, green, blue


@cache
def _renderer() -> RendererAgg:
    return RendererAgg(1, 1, _DOTS)


@cache
def _width(line: str, size: float, family: tuple[str, ...]) -> float:
    letters = FontProperties(family=list(family), size=size)
    width, *_ = _renderer().get_text_width_height_descent(line, letters, is_math_text(line))
    return float(width) / _DOTS


def _cut(words: str, keep: int) -> str:
    return f"{words[: (keep + 1) // 2]}…{words[len(words) - keep // 2 :]}"


# No dates and no version of the drawing library: they would change the bytes from run to run.
_FORMATS: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": "hessfig"},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "hessfig"},
}

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]")
_LONGEST = 120


@dataclass(frozen=True)
class Page:
    """A drawn sheet: what to add to the figure's name ("" for a single sheet), the figure, its numbers.

    `panels` are the names of its panels, drawn or not; a figure that is not visible has none of those asked for.
    """

    suffix: str
    figure: Figure
    numbers: pd.DataFrame
    panels: Sequence[str] = ()


def save_sheets(pages: Iterable[Page], folder: Path, name: str, paper: Paper) -> list[Path]:
    """Write every sheet of a figure by save_page; return the paths.

    Raises UserError, before anything is written, for panels that no sheet has.
    """
    if paper.panels:
        pages = list(pages)  # what panels there are is known when all sheets are laid out
        _check_panels(paper.panels, list(dict.fromkeys(panel for page in pages for panel in page.panels)))
    return [path for page in pages for path in save_page(page, folder, name, paper)]


def _check_panels(asked: Sequence[str], offered: Sequence[str]) -> None:
    for name in asked:
        if name not in offered:
            raise UserError(
                f"figure.panels: there is no panel {name!r}"
                if offered
                else "figure.panels: no panel can be picked here",
                got=name,
                allowed=", ".join(offered) or "the whole figure",
                remedy=did_you_mean(name, offered)
                or (f"for example figure.panels=[{offered[0]}]" if offered else "leave it out"),
            )


def save_page(page: Page, folder: Path, name: str, paper: Paper) -> list[Path]:
    """Write folder/fig<name><suffix>.{pdf,png,svg,csv}, all or none; return the paths. Call it inside `styled()`.

    The formats are the paper's; the note that a paper leaves out is written to .txt. A sheet without any of the panels
    that the paper asks for is left out. Names are made of plain characters: nothing leads out of `folder`.
    """
    if not page.figure.get_visible():
        return []
    stem = file_words(f"fig{name}{page.suffix}")
    relabel(page.figure, **paper.labels)
    files: dict[Path, str | bytes] = {**_pictures(page.figure, folder / stem, paper.formats)}
    if not paper.note and page.figure.get_label():
        files[folder / f"{stem}.txt"] = f"{page.figure.get_label()}\n"
    files[folder / f"{stem}.csv"] = page.numbers.to_csv(index=False, float_format="%.10g", lineterminator="\n")
    return publish(files, "figure")


def save_figure(figure: Figure, folder: Path, stem: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write folder/<stem>.{pdf,png,svg}, in the formats named; return the paths. Call it inside `styled()`."""
    return [write_bytes(path, content) for path, content in _pictures(figure, folder / stem, formats).items()]


def file_words(text: str) -> str:
    """Return `text` with every character that is not a letter, digit or one of ._=- as _, cut if very long."""
    words = _UNSAFE.sub("_", text)
    return words if len(words) <= _LONGEST else f"{words[:100]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def page_suffix(variant: str, num_layers: int, networks: list[tuple[str, int]]) -> str:
    """Return what tells this network's file name from the others': the variant's values, the depth."""
    variants = list(dict.fromkeys(name for name, _ in networks))
    several_depths = len({depth for _, depth in networks}) > 1
    words = f"_{_distinct(variant, variants)}" if len(variants) > 1 else ""
    return words + (f"_depth{num_layers}" if several_depths else "")


def panel_names(networks: list[tuple[str, int]]) -> list[str]:
    """Return a name for the panels of each network: what its file would be called, 'network' for a single one."""
    return [page_suffix(*one, networks).lstrip("_") or "network" for one in networks]


def variant_names(variants: Sequence[str]) -> list[str]:
    """Return a name for the panels of each variant."""
    return panel_names([(variant, 0) for variant in variants])


def _pictures(figure: Figure, path: Path, formats: Sequence[str]) -> dict[Path, bytes]:
    FigureCanvasAgg(figure)
    return {path.with_name(f"{path.name}.{kind}"): _drawn_as(kind, figure) for kind in _FORMATS if kind in formats}


def _drawn_as(kind: str, figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=_FORMATS[kind], bbox_inches=page_box(figure))
    return buffer.getvalue()


def _distinct(variant: str, variants: list[str]) -> str:
    """Return a variant's words, with a number where another variant has the same ones."""
    words = _words(variant)
    same = [other for other in variants if _words(other) == words]
    return words if len(same) == 1 else f"{words}_{same.index(variant) + 1}"


def _words(variant: str) -> str:
    settings = settings_of(variant)
    named = {key: PurePath(value).name if last_word(key) == "path" else value for key, value in settings.items()}
    return file_words(short_variant(as_variant(named)).replace("=", "_")) or "plain"


@dataclass(frozen=True)
class FigureSpec:
    """A figure's name, the sweep it draws, its layout (see sheets.LAYOUTS), how slopes are fitted, and options.

    `x`, `colour` and `dashes` name sigma, step, layer, num_layers, part or a varied setting. `seed` is that of the
    bootstrap (None: the first seed of the run, as in slopes.csv). `preset` is the shipped sweep whose network and task
    these are, whose published slopes are told, "" for others. `paper`: width, note, formats, panels and style, which
    panel_sheet and save_page obey for every layout.
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
    seed: int | None = None
    resamples: int = RESAMPLES
    preset: str = ""
    paper: Paper = field(default_factory=Paper)

    @property
    def quantity(self) -> str:
        """The quantity to draw, frobenius unless told otherwise (figure.options.quantity)."""
        return str(self.options.get("quantity", FROBENIUS))

    @property
    def index(self) -> int | None:
        """Which of a quantity's several values to draw (figure.options.index); None: the first."""
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
        found = [self._as_number(key, value) for value in (values if isinstance(values, list) else [values])]
        if not all(value > 0 for value in found):
            raise _bad_option(key, values, "numbers > 0", f"for example 'figure.options.{key}=[0.1,1]'")
        return found

    def words(self, key: str) -> list[str] | None:
        """Return an option that is one text or a list of texts, or None."""
        values = self.options.get(key)
        if values is None:
            return None
        return [str(value) for value in (values if isinstance(values, list | tuple) else [values])]

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """Return an option that is one of `choices`. Raises UserError for anything else."""
        value = str(self.options.get(key, default))
        if value not in choices:
            example = f"for example figure.options.{key}={next(iter(choices))}"
            raise _bad_option(key, value, ", ".join(choices), did_you_mean(value, choices) or example)
        return value

    def _as_number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad_option(key, value, "a number", f"for example figure.options.{key}=1")
        return float(value)


def _bad_option(key: str, value: Any, allowed: str, remedy: str) -> UserError:
    return UserError(f"figure.options.{key}", got=value, allowed=allowed, remedy=remedy)
