"""The paper a figure is for: its width, what is written beside it, the files, the journal's type (tueplots' door)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

TEXT_WIDTH = 5.5  # inches: the text of an ICLR page
FORMATS = ("pdf", "png", "svg")
SMALLEST, LARGEST = 7.0, 9.0  # points: nothing is set smaller, whatever a style asks for
_BUNDLES = {"iclr": "iclr2024", "neurips": "neurips2024", "icml": "icml2024"}
_SIZES = (
    "font.size",
    "axes.labelsize",
    "axes.titlesize",
    "legend.fontsize",
    "xtick.labelsize",
    "ytick.labelsize",
)
_FAMILIES = ["STIXGeneral", "DejaVu Serif"]


@dataclass(frozen=True)
class Paper:
    """What `figure.width`, `figure.note`, `figure.formats`, `figure.panels` and `style` ask of every layout.

    `width` in inches; None: the style's. Without `note` the words stand in a .txt beside the figure. `panels` are names
    of panels, none: all. `offered` collects the names of the panels that a figure has, as its sheets are laid out.
    `changed`: what is drawn is not of the preset's network, but of one with these settings, as every note then says.
    """

    width: float | None = None
    note: bool = True
    formats: Sequence[str] = FORMATS
    panels: Sequence[str] = ()
    style: str = "default"
    changed: Sequence[str] = ()
    offered: dict[str, None] = field(default_factory=dict)

    @property
    def inches(self) -> float:
        """The width of the page."""
        return self.width or (
            _bundle(self.style)["figure.figsize"][0] if self.style in _BUNDLES else TEXT_WIDTH
        )

    def type_settings(self) -> dict[str, Any]:
        """Return sizes and family of the style as rcParams, sizes held between SMALLEST and LARGEST; no LaTeX."""
        if self.style not in _BUNDLES:
            return {}
        found = _bundle(self.style)
        sizes = {key: min(max(float(found[key]), SMALLEST), LARGEST) for key in _SIZES}
        sizes["legend.title_fontsize"] = sizes["legend.fontsize"]
        return {**sizes, "font.family": [*_installed(found["font.serif"]), *_FAMILIES]}


_PAPER: ContextVar[Paper] = ContextVar("paper", default=Paper())  # noqa: B039 - the default's record is never read


def paper() -> Paper:
    """Return the paper that figures are laid out for, here and now (see style.styled)."""
    return _PAPER.get()


@contextmanager
def laid_out_for(chosen: Paper) -> Iterator[None]:
    """Lay out what is drawn inside for a paper."""
    before = _PAPER.set(chosen)
    try:
        yield
    finally:
        _PAPER.reset(before)


def _bundle(style: str) -> dict[str, Any]:
    from tueplots import bundles

    return dict(getattr(bundles, _BUNDLES[style])(usetex=False))


def _installed(families: Sequence[str]) -> list[str]:
    """Return the families that this machine has; a missing one would be warned of at every letter."""
    from matplotlib.font_manager import fontManager

    known = {font.name for font in fontManager.ttflist}
    return [family for family in families if family in known]
