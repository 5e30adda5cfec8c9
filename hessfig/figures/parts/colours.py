"""Colours of weights, of parts of the Hessian, and of all other lines."""

from collections.abc import Sequence
from typing import Any, TypeVar

from matplotlib.colors import to_rgb

from hessfig.terms import Matrix, Part

# Chosen with simulations of two kinds of colour blindness:
# tests/figures/test_artists.py holds all pairs apart.
_MATRIX_COLOURS: dict[str, str] = {
    Matrix.W_V: "#7570b3",
    Matrix.W_Q: "#1b9e77",
    Matrix.W_K: "#a6c84c",
    Matrix.W_O: "#7a4526",
    Matrix.W_in: "#1f2fb0",
    Matrix.W_out: "#6f95ee",
    Matrix.W_E: "#5e6a73",
    Matrix.W_U: "#b3a1bb",
    Matrix.W_pos: "#6b2f70",
    Matrix.W_QK: "#0c2d33",
    Matrix.W_patch: "#5c1515",
    Matrix.W_G: "#c1c181",
    Matrix.W_gate: "#28bfe0",
    "norms": "#f0aeb2",
}
_MATRIX_COLOURS["embeddings"] = _MATRIX_COLOURS[Matrix.W_E]
_MARKS = dict(zip(_MATRIX_COLOURS, "^osDvPX<>p*dhHX", strict=True))
_PART_COLOURS = {
    Part.H_o: "#d95f02",
    Part.H_f: "#d64492",
    Part.H: "#444444",
    Part.H_oT: "#d9985c",
    Part.H_fT: "#ffbad7",
}
_OTHER = "#b5794a"
# Colours of networks and of update rules (blues, yellow, black, browns). No weight and
# no part has one of them.
TONES = ("#0072B2", "#E69F00", "#56B4E9", "#000000", "#8c6d1f", "#003f5c", "#8b1a1a")
_LIGHTEST = 0.55  # of words; white is 1
GUIDE = "#808080"
# Lines at a value to compare with, and at half or at one.
DASHED: dict[str, Any] = {"color": GUIDE, "linestyle": "--", "linewidth": 0.8}
DOTTED: dict[str, Any] = {
    "color": "#333333",
    "linestyle": (0, (1, 2)),
    "linewidth": 0.6,
    "zorder": 1,
}
T = TypeVar("T")
PUBLISHED = "#222222"


def matrix_colour(name: str) -> str:
    """Return the colour of a weight; W_V and W_Q have the colours of the paper."""
    return _MATRIX_COLOURS.get(name, _OTHER)


def matrix_mark(name: str) -> str:
    """Return the marker of a weight in panels with several weights; "" for names that are not the paper's."""
    return _MARKS.get(name, "")


def part_colour(part: str) -> str:
    """Return the colour of a part of the Hessian, for panels that show several."""
    return _PART_COLOURS[Part(part)]


def tone(rank: int) -> str:
    """Return the colour of line number `rank` in a panel whose lines show neither weights nor parts of the Hessian."""
    return TONES[rank % len(TONES)]


def shades(colour: str, count: int) -> list[tuple[float, float, float]]:
    """Return `count` shades of a colour from light to dark (later layers); a single shade is the colour itself."""
    if count == 1:
        return [to_rgb(colour)]
    return [_shade(colour, 0.6 - 1.05 * index / (count - 1)) for index in range(count)]


def shaded(colour: str, items: Sequence[T]) -> list[tuple[Any, T]]:
    """Return each item with its shade of a colour, from light to dark."""
    return list(zip(shades(colour, len(items)), items, strict=True))


def ink(colour: Any) -> tuple[float, float, float]:
    """Return a colour for words on white: itself, or darker if it is too light to be read."""
    light = lightness(colour)
    if light > _LIGHTEST:
        return _shade(colour, min(0.0, _LIGHTEST / light - 1))
    return to_rgb(colour)


def lightness(colour: Any) -> float:
    """Return how light a colour is, from 0 (black) to 1 (white)."""
    red, green, blue = to_rgb(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _shade(colour: Any, lightness: float) -> tuple[float, float, float]:
    """Mix a colour with white (lightness > 0) or black (lightness < 0)."""
    target, weight = (1.0, lightness) if lightness > 0 else (0.0, -lightness)
    red, green, blue = (
        channel + (target - channel) * weight for channel in to_rgb(colour)
    )
    return red, green, blue
