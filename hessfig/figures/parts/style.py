"""One look for every figure: sizes, fonts, colours. Nothing is set at import; draw inside `styled()`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_rgb

from hessfig.terms import Matrix, Part

TEXT_WIDTH = 5.5  # inches: the text of an ICLR page
SMALL, TINY = 6.0, 5.2

_MATRIX_COLOURS: dict[str, str] = {
    Matrix.W_V: "#7570b3",
    Matrix.W_Q: "#1b9e77",
    Matrix.W_K: "#66a61e",
    Matrix.W_QK: "#1b7f9e",
}
_PART_COLOURS = {Part.H_o: "#d95f02", Part.H_f: "#e7298a", Part.H: "#444444"}
_OTHER = "#a6761d"
TONES = ("#d95f02", "#7570b3", "#1b9e77", "#e7298a", "#66a61e", "#a6761d", "#555555")  # of kinds of networks
GUIDE = "#808080"
PUBLISHED = "#222222"
BACKING = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}  # behind words on lines

RC = {
    "font.family": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 7,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7,
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


def styled() -> AbstractContextManager[None]:
    """Return the context in which figures are built and saved; the caller's settings come back after it."""
    settings: dict[Any, Any] = {k: v for k, v in mpl.rcParamsDefault.items() if not k.startswith("backend")}
    return mpl.rc_context(settings | RC)


def matrix_colour(name: str) -> str:
    """Return the colour of a weight (the published ones for W_V and W_Q)."""
    return _MATRIX_COLOURS.get(name, _OTHER)


def part_colour(part: str) -> str:
    """Return the colour of a part of the Hessian, for panels that show several."""
    return _PART_COLOURS[Part(part)]


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
