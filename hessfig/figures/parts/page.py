"""A page: its width, its type and its style, as the settings ask for it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl

from hessfig.figures.parts.lettering import LARGEST, SMALL, SMALLEST, TINY
from hessfig.figures.parts.relabelled import check_words

TEXT_WIDTH = 5.5  # inches: the text of an ICLR page
FORMATS = ("pdf", "png", "svg")
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


_TICKS = ("xtick", "ytick")
RC = {
    **{"font.family": _FAMILIES, "mathtext.fontset": "stix", "font.size": 7.5},
    **{"axes.titlesize": 8, "axes.labelsize": 7.5, "axes.linewidth": 0.5, "axes.titlepad": 4, "axes.labelpad": 2},
    "axes.titley": 1.0,  # a fixed place: finding one costs a layout of every tick label
    **{"axes.spines.top": False, "axes.spines.right": False},
    **{f"{tick}.labelsize": SMALL for tick in _TICKS},
    **{f"{tick}.major.{key}": value for tick in _TICKS for key, value in (("width", 0.5), ("size", 2.2), ("pad", 2))},
    **{"lines.linewidth": 1.0, "lines.markersize": 2.0, "legend.fontsize": TINY, "legend.title_fontsize": TINY},
    **{"legend.framealpha": 0.8, "legend.edgecolor": "none", "legend.fancybox": False, "legend.handlelength": 1.2},
    **{"legend.labelspacing": 0.15, "legend.borderpad": 0.1, "legend.handletextpad": 0.4, "legend.borderaxespad": 0.2},
    **{"pdf.fonttype": 42, "svg.hashsalt": "hessfig", "savefig.dpi": 300, "figure.dpi": 100},
}


@contextmanager
def styled(paper: Paper | None = None) -> Iterator[None]:
    """The context in which figures are built and saved, for a paper; the caller's settings come back after it."""
    settings: dict[Any, Any] = {k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith("backend")}
    with mpl.rc_context(settings | RC | (paper or Paper()).type_settings()):
        yield
