"""Colours of weights, of parts of the Hessian, and of all other lines."""

from matplotlib.colors import to_rgb

from hessfig.terms import Matrix, Part

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
# Colours of networks and of update rules (blues, yellow, black, browns). No weight and no part has one of them.
TONES = ("#0072B2", "#E69F00", "#56B4E9", "#000000", "#8c6d1f", "#003f5c", "#8b1a1a")
GUIDE = "#808080"
PUBLISHED = "#222222"


def matrix_colour(name: str) -> str:
    """Return the colour of a weight; W_V and W_Q have the colours of the paper."""
    return _MATRIX_COLOURS.get(name, _OTHER)


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


def _shade(colour: str, lightness: float) -> tuple[float, float, float]:
    """Mix a colour with white (lightness > 0) or black (lightness < 0)."""
    target, weight = (1.0, lightness) if lightness > 0 else (0.0, -lightness)
    red, green, blue = (channel + (target - channel) * weight for channel in to_rgb(colour))
    return red, green, blue
