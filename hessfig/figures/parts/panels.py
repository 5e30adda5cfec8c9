"""Contents of a panel: curves with error bands, guides, text in corners, and matrices of numbers as colours."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage
from matplotlib.transforms import ScaledTranslation
from pandas import DataFrame, Series

from hessfig.analysis.axis import SIGMA, Axis, X
from hessfig.analysis.intervals import band, student_interval
from hessfig.analysis.slopes.printed import Window, window_of, within
from hessfig.figures.parts.colours import DOTTED, GUIDE, ink, lightness
from hessfig.figures.parts.labels import are_few
from hessfig.figures.parts.lettering import BACKING, TINY, width_of
from hessfig.figures.parts.measured import MeasuredCurves
from hessfig.figures.parts.rows import counted
from hessfig.figures.parts.ticks import (
    SUPERSCRIPTS,
    between_decades,
    height_in,
    part_ticks,
    set_decades,
    width_in,
)
from hessfig.predictions.growth_rates import Prediction

_BELOW = 0.06  # distance from a curve to its guide, as a share of the panel
_GAP = 0.05  # inches between words and the line at sigma = 1
_DARK = 0.5  # lightness of a cell below which its words are white
_SPACING = 1.15  # from one line of a text to the next, in heights of a line
_LINE = 0.11  # inches from one line of small words to the next
_DIGITS_OF_HEIGHT = 6  # of the height of a panel: ends closer than these are one
_DASHES = ((0, (4, 2)), (0, (1.5, 1.2)), (0, (5, 1.5, 1, 1.5)))


Ends = tuple[Any, Any, Any]  # x, low and high


def draw_mean(
    ax: Axes,
    x: Any,
    mean: Any,
    ends: Ends,
    *,
    colour: Any,
    alpha: float = 0.2,
    **line: Any,
) -> None:
    """Draw means against x with a band of the same colour."""
    ax.plot(x, mean, **{"marker": "o", "markeredgewidth": 0, "color": colour, **line})
    ax.fill_between(*ends, color=colour, alpha=alpha, linewidth=0)


def draw_curve(
    ax: Axes,
    curve: DataFrame,
    numbers: DataFrame | None = None,
    *,
    colour: Any,
    **line: Any,
) -> None:
    """Draw the mean over seeds against x and the spread of its `numbers`; zeros and missing values are left out."""
    draw_errors(ax, curve[positive(curve)], numbers, colour=colour, **line)


def draw_errors(
    ax: Axes,
    drawn: DataFrame,
    numbers: DataFrame | None = None,
    *,
    colour: Any,
    **line: Any,
) -> None:
    """Draw means over seeds of `numbers`. A few seeds are drawn as thin lines, more as a band, their 95 % interval.

    Intervals use Student's t over seeds. On a logarithmic axis they are symmetric as
    factors.
    """
    if numbers is None:
        seeds = []
    else:
        seeds = [rows for _, rows in counted(numbers).sort_values(X).groupby("seed")]
    known = drawn[(drawn["sem"] > 0) & (not are_few(len(seeds)))]
    ends = band(
        known["mean"], known["sem"], known["count"], logs=ax.get_yscale() == "log"
    )
    draw_mean(
        ax,
        drawn[X],
        drawn["mean"],
        (known[X], *ends),
        colour=colour,
        alpha=0.25,
        **line,
    )
    if are_few(len(seeds)):
        for rows in seeds:
            draw_seed(ax, rows[X], rows["value"], colour=colour)


def reach(points: DataFrame, *, logs: bool) -> np.ndarray:
    """Return an array (2, points): the distances from each mean to the ends of its 95 % interval; nan for one seed."""
    ends = np.array(band(points["mean"], points["sem"], points["count"], logs=logs))
    return np.abs(ends - points["mean"].to_numpy())


def seed_means(
    rows: DataFrame, by: Sequence[str], name: str = "value", *, logs: bool = False
) -> DataFrame:
    """Return mean, low, high (95 %, Student's t over seeds) and count of `name` for each place in `by`.

    With `logs`, mean and interval are geometric, and values that are not positive are
    left out.
    """
    values = rows[name]
    if logs:
        values = np.log10(values.where(values > 0))
    means = []
    keys = [rows[one] for one in by]
    for key, used in values.groupby(keys, sort=True, dropna=False):
        interval = student_interval(used)
        ends = np.array([interval.mean, interval.low, interval.high])
        if logs:
            ends = 10**ends
        means.append((*key, *ends, interval.count))
    return DataFrame(means, columns=[*by, "mean", "low", "high", "count"])


def draw_interval(
    ax: Axes, points: DataFrame, x: str, *, colour: Any, **line: Any
) -> None:
    """Draw `seed_means` against the column `x`; logarithmic axes show positive values only."""
    drawn = points[np.isfinite(points["mean"])].sort_values(x)
    is_log = ax.get_yscale() == "log"
    drawn = drawn[drawn["mean"] > 0] if is_log else drawn
    low, high = drawn["low"], drawn["high"]
    if is_log:  # as factors, so that the interval of a few seeds never reaches zero
        high = np.maximum(high, drawn["mean"])
        low = np.where(low > 0, low, drawn["mean"] ** 2 / high)
    draw_mean(ax, drawn[x], drawn["mean"], (drawn[x], low, high), colour=colour, **line)


def draw_means(
    ax: Axes, rows: DataFrame, *by: str, colour: Any, **line: Any
) -> DataFrame:
    """Draw `seed_means` by the columns `by` against the last of them, and return them. Set the scales before.

    A few seeds are drawn as thin lines, more as the band of their interval. Means are
    geometric on logarithmic axes.
    """
    x = by[-1]
    means = seed_means(rows, by, logs=ax.get_yscale() == "log")
    if not means["mean"].notna().any():
        return means
    seeds = rows.sort_values(x).groupby("seed")
    if not are_few(len(seeds)):
        draw_interval(ax, means, x, colour=colour, **line)
        return means
    for _, of_seed in seeds:
        draw_seed(ax, of_seed[x], of_seed["value"], colour=colour)
    draw_interval(ax, means.assign(low=np.nan, high=np.nan), x, colour=colour, **line)
    return means


def draw_seed(ax: Axes, x: Any, values: Any, *, colour: Any) -> None:
    """Draw the curve of one seed as a thin line, with gaps at values that a logarithmic axis cannot show."""
    if ax.get_yscale() == "log":
        seen = np.where(np.asarray(values) > 0, values, np.nan)
    else:
        seen = values
    ax.plot(x, seen, color=colour, linewidth=0.4, alpha=0.6)


def draw_guide(
    ax: Axes, x: np.ndarray, exponent: float, coefficient: float, *, style: int = 0
) -> None:
    """Draw the grey dashed line coefficient * x^exponent, behind the curves."""
    x = np.asarray(x, dtype=float)
    x = x[x > 0]
    dashes = _DASHES[style % len(_DASHES)]
    ax.plot(
        x,
        coefficient * x**exponent,
        color=GUIDE,
        linestyle=dashes,
        linewidth=0.8,
        zorder=3,
    )


def draw_fit(ax: Axes, measured: MeasuredCurves) -> None:
    """Draw the power law of a single curve on the first window, along the whole grid."""
    exponent = drawn_exponent(measured)
    c = coefficient(measured.curves, exponent, window_of(measured.slopes.iloc[0]))
    draw_guide(ax, measured.curves[X].to_numpy(), exponent, c)


def drawn_exponent(measured: MeasuredCurves) -> float:
    """Return the exponent of a single curve's guide: the predicted one, or else the fitted one."""
    first = measured.slopes.iloc[0]
    if first["prediction"] == Prediction.exponent:
        return float(first["predicted"])
    return float(first["slope"])


def coefficient(curve: DataFrame, exponent: float, window: Window) -> float:
    """Return the c of c * x^exponent that fits the curve's points in the window, by their mean logarithm.

    If the window holds no point, the whole curve is used. The result is nan if no value
    is positive.
    """
    drawn = curve[positive(curve)]
    inside = drawn[within(drawn[X], window)]
    used = drawn if inside.empty else inside
    if used.empty:
        return math.nan
    return float(np.exp((np.log(used["mean"]) - exponent * np.log(used[X])).mean()))


def positive(curves: DataFrame) -> Series:
    """Return which points can be drawn on logarithmic axes."""
    return np.isfinite(curves["mean"]) & (curves["mean"] > 0) & (curves[X] > 0)


def free_corners(curves: DataFrame) -> tuple[str, str]:
    """Return which left and which right corner the curves leave free: upper left and lower right if they rise."""
    drawn = curves[positive(curves)].groupby(X)["mean"].max()
    if drawn.iloc[-1] >= drawn.iloc[0]:
        return "upper", "lower"
    return "lower", "upper"


def set_log_range(axes: Sequence[Axes], curves: DataFrame, axis: Axis = SIGMA) -> None:
    """Set logarithmic scales and limits from the data, so that guides do not stretch the axes."""
    for ax in axes:
        if ax.get_xscale() != "log":
            set_decades(ax, "x")
        if ax.get_yscale() != "log":
            set_decades(ax, "y")
    drawn = curves[positive(curves)]
    if not drawn.empty:
        axes[0].set_xlim(*_padded(drawn[X], 0.04))
        axes[0].set_ylim(*_padded(drawn["mean"], 0.07))
        if drawn["mean"].max() < 30 * drawn["mean"].min():
            between_decades(axes[0], "y")
        if not axis.is_sigma and drawn[X].max() < 30 * drawn[X].min():
            between_decades(axes[0], "x")


def _padded(values: Series, share: float) -> tuple[float, float]:
    low = np.log10(values.min())
    high = np.log10(values.max())
    pad = share * max(high - low, 1.0)
    return float(10 ** (low - pad)), float(10 ** (high + pad))


def make_room(ax: Axes, curves: DataFrame, words: str, at: str) -> None:
    """Move the end of the y axis so that words in the left corner `at` ('upper', 'lower') touch no curve or guide."""
    end = 0.03 + width_of(words) / width_in(ax)
    lines = 1 + words.count("\n")
    high = 0.04 + 2 * _BELOW + lines * _SPACING * TINY / 72 / height_in(ax)
    drawn = curves[positive(curves)].sort_values(X)
    left, right = np.log10(ax.get_xlim())
    x = np.log10(drawn[X])
    y = np.log10(drawn["mean"])
    across = np.append(x[x < left + end * (right - left)], left + end * (right - left))
    heights = np.interp(across, x, y)
    low, top = np.log10(ax.get_ylim())
    if at == "lower":
        low = min(low, (heights.min() - high * top) / (1 - high))
    else:
        top = max(top, (heights.max() - high * low) / (1 - high))
    ax.set_ylim(10**low, 10**top)


def mark_one(ax: Axes, axis: Axis = SIGMA) -> None:
    """Mark sigma = 1, the end of the practical range, by a dotted vertical line. Other axes are left unchanged."""
    if axis.is_sigma:
        ax.axvline(1.0, **DOTTED)


def corner(
    ax: Axes,
    words: str,
    where: str,
    *,
    aside: str = "",
    colour: str = "black",
    left: float = 0.03,
    right: float = 0.97,
) -> None:
    """Write words into a corner: 'upper left', 'lower right', ... (between the shares `left` and `right` of it).

    Words `aside` stand below them, in grey.
    """
    vertical, horizontal = where.split()
    x = {"left": left, "right": right}[horizontal]
    y, va = {"upper": (0.97, "top"), "lower": (0.04, "bottom")}[vertical]
    style: dict[str, Any] = {
        "transform": ax.transAxes,
        "ha": horizontal,
        "va": va,
        "fontsize": TINY,
    }
    style["linespacing"] = _SPACING
    text = ax.text(x, y, words, color=colour, bbox=BACKING, **style)
    if not aside:
        return
    grey = ax.text(x, y, aside, color=GUIDE, **style)
    at_corner, moved, sign = (text, grey, -1) if va == "top" else (grey, text, 1)
    # Inches.
    height = (
        at_corner.get_window_extent().height / ax.figure.dpi
        + (_SPACING - 1) * TINY / 72
    )
    moved.set_transform(
        ax.transAxes + ScaledTranslation(0, sign * height, ax.figure.dpi_scale_trans)
    )


def beside_one(
    ax: Axes, words: Sequence[str], axis: Axis = SIGMA, *, at: str = "lower"
) -> None:
    """Write the words of guides at the lower (or upper) right, on one or more lines, next to the line at sigma = 1."""
    line = ax.transAxes.inverted().transform(
        ax.transData.transform((1.0, ax.get_ylim()[0]))
    )[0]
    lines = "\n".join(words)
    texts = (
        ",  ".join(words),
        lines,
        lines.replace("layers ", "").replace("layer ", ""),
    )
    widths = {text: (width_of(text) + _GAP) / width_in(ax) for text in texts}
    free = not axis.is_sigma or not 0 <= line <= 1
    right = [text for text, wide in widths.items() if free or line + wide <= 0.97]
    left = [text for text, wide in widths.items() if line >= wide]
    shown = (right or left or texts[-1:])[0]
    end = 0.97 if right else line - _GAP / width_in(ax)
    corner(ax, shown, f"{at} right", colour=GUIDE, right=end)


def fitted(slope: float, error: float) -> str:
    """Return 'slope ± error' with two decimals, or three where the error would read as zero."""
    if math.isnan(slope):
        return "too few points"
    digits = 3 if error < 0.005 else 2
    words = f"{slope:.{digits}f}"
    if math.isfinite(error):
        words += f" ± {max(error, 0.001):.{digits}f}"
    return words.replace("-", "−")


def slope_and_half(row: Any) -> str:
    """Return 'slope ± half of its 95 % interval' of a row of slopes."""
    return fitted(row.slope, row.ci_high - row.slope)


def name_ends(ax: Axes, ends: Sequence[tuple[float, str, Any]]) -> None:
    """Write each (y, words, colour) to the right of a panel at its y; words that would overlap are moved apart.

    Lines that end together keep their order, which rounding must not decide.
    """
    if not ends:
        return
    pixels = ax.transData.transform([(ax.get_xlim()[1], y) for y, _, _ in ends])
    heights = ax.transAxes.inverted().transform(pixels)[:, 1]
    upwards = np.argsort(heights.round(_DIGITS_OF_HEIGHT), kind="stable")
    ends = [ends[place] for place in upwards]
    steps = _LINE * np.arange(len(ends))
    free = heights[upwards] * height_in(ax) - steps
    raised = np.maximum.accumulate(free)
    lowered = np.minimum.accumulate(free[::-1])[::-1]
    for height, (_, words, colour) in zip(
        (raised + lowered) / 2 + steps, ends, strict=True
    ):
        place = (1.0, height / height_in(ax))
        ax.annotate(
            words,
            place,
            (4, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            annotation_clip=False,
            va="center",
            fontsize=TINY,
            color=ink(colour),
        )


def in_tens(value: float) -> str:
    """Return a number with two digits, in the form 1.9 × 10⁴ if it is large or small."""
    digits, _, exponent = f"{value:.1e}".partition("e")
    if not exponent or -2 < int(exponent) < 3:
        return f"{float(f'{value:.1e}'):g}".replace("-", "−")
    return f"{digits} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}".replace(
        "-", "−"
    )


def power(exponent: float, axis: Axis = SIGMA) -> str:
    """Return 'σ⁶', or 'x⁻²' along any other axis."""
    base = "σ" if axis.is_sigma else "x"
    return base + f"{exponent:g}".translate(SUPERSCRIPTS)


def dropped(ax: Axes) -> float:
    """Return the factor by which guides run below their curve, so that the slopes can be compared by eye."""
    low, high = ax.get_ylim()
    return float((low / high) ** _BELOW)


def why_empty(measured: MeasuredCurves) -> str:
    """Return in words why the panel has no line."""
    predicted = (measured.slopes["prediction"] == Prediction.structural_zero).all()
    is_zero = not measured.curves.empty and measured.curves["is_zero"].all()
    return "= 0 (theorem)" if is_zero and predicted else why_no_line(measured.curves)


def why_no_line(curves: DataFrame) -> str:
    """Return in words why none of these points can be drawn."""
    if curves.empty:
        return "(not measured)"
    if curves["is_zero"].all():
        return "= 0 (every number)"
    if curves["num_not_converged"].any() and not curves["count"].any():
        return "(not converged)"
    if (curves["mean"] < 0).any():
        return "(negative)"
    return "(some are 0)" if (curves["mean"] == 0).any() else "(not finite)"


def draw_matrix(
    ax: Axes,
    square: np.ndarray,
    scale: Normalize,
    *,
    words: np.ndarray | None = None,
    size: float = TINY,
    missing: str = "",
    **image: Any,
) -> AxesImage:
    """Draw finite numbers as colours, with `words` in the cells. Cells of other numbers are grey.

    With a colour `missing` for these, which may be that of the page, the panel keeps
    its frame. Words are white on dark cells, and black on all others.
    """
    shown = np.where(np.isfinite(square), square, np.nan)
    drawn = ax.imshow(
        shown, norm=scale, **{"cmap": "viridis", "aspect": "auto", **image}
    )
    ax.set_facecolor(missing or "#e6e6e6")
    if words is None:
        words = np.empty((0, 0))
    for (i, j), text in np.ndenumerate(words):
        if text:
            colour = "black"
            value = shown[i, j]
            if np.isfinite(value) and lightness(drawn.cmap(scale(value))) < _DARK:
                colour = "white"
            ax.text(
                j, i, str(text), ha="center", va="center", color=colour, fontsize=size
            )
    if not missing:
        ax.spines[:].set_visible(False)
    return drawn


def name_sides(
    ax: Axes,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    upright: bool = True,
) -> None:
    """Write names next to rows and below columns, without ticks. Names of columns are vertical if `upright`."""
    ax.tick_params(length=0)
    if columns:
        ax.set_xticks(range(len(columns)), columns, rotation=90 if upright else 0)
    if rows:
        ax.set_yticks(range(len(rows)), rows)


def colour_bar(
    ax: Axes,
    drawn: AxesImage,
    *,
    gap: float = 0.08,
    wide: float = 0.08,
    label: str = "",
) -> Colorbar:
    """Draw the colour bar to the right of a panel, with the same gap and width in inches on every page."""
    figure: Any = ax.figure
    box = ax.get_position()
    page = figure.get_figwidth()
    place = figure.add_axes(
        (box.x1 + gap / page, box.y0, wide / page, box.height), label="<colorbar>"
    )
    bar: Colorbar = figure.colorbar(drawn, cax=place, label=label)
    part_ticks(place)
    return bar
