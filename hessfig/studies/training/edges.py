"""Trainings against their limits: thresholds of stability, and surviving heterogeneity."""

from collections.abc import Iterator

from matplotlib.axes import Axes
from pandas import DataFrame, concat

from hessfig.analysis.intervals import Interval
from hessfig.analysis.training_runs import (
    EDGE_TOLERANCE,
    THRESHOLD,
    late_shares,
    of_whole,
    shares,
)
from hessfig.errors import UserError
from hessfig.figures.layouts.courses import how, scale, variant_titles
from hessfig.figures.parts import (
    BY_COLUMN,
    DASHED,
    TINY,
    FigureSpec,
    Page,
    Sheet,
    Source,
    counted,
    draw_means,
    labels,
    part_colour,
    parts_of,
    say,
    tone,
    variant_names,
    where,
)

_OVER = ("W_V", "W_Q")
_PLACE = ("variant", "layer", "part", "step")


def heterogeneity_trained(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw ||V|| / ||Q|| of H, H_o and H_f along the steps, one column per network, one row per layer.

    How to read it: at 1 (dashed) the blocks of values and queries are as large;
    geometric means over seeds, up to five of them as thin lines, more as the band of
    their 95 % interval. Requires: the sweep's table.csv with the diagonal blocks of W_V
    and W_Q along `state.step` (option `quantity`: by default frobenius).
    """
    table = source.table
    rows = where(counted(table), quantity=spec.quantity)
    ratios = _ratios(rows[(rows["row"] == rows["col"]) & (rows["index"] <= 1)])
    if ratios.empty:
        raise UserError(
            f"figure.layout={spec.layout} draws {_OVER[0]} over {_OVER[1]}, and the table has not both",
            got=", ".join(table["row"].unique()),
            allowed=f"diagonal blocks of {' and '.join(_OVER)}",
            remedy=f"hessfig run sweep={source.folder.name} 'blocks=[{','.join(_OVER)}]'",
        )
    drawn_at = set(ratios["variant"])
    variants = [name for name in table["variant"].unique() if name in drawn_at]
    layers = sorted(ratios["layer"].unique())
    note = how(
        table,
        "Geometric means of the ratio of the two blocks' norms; dashed: as large.",
    )
    columns = variant_names(variants)
    names = [[f"{variant}:{layer}" for variant in columns] for layer in layers]
    sheet = Sheet.grid(spec.paper, names, note, BY_COLUMN.replace(height=1.5))
    drawn = []
    for row, column, ax in sheet:
        scale(ax, [ratios])
        here = where(ratios, variant=variants[column], layer=layers[row])
        drawn.append(_draw_survival_panel(ax, here))
    sheet.first.legend(loc="best")
    words = f"{_OVER[0][2:]} / {_OVER[1][2:]}: {labels.quantity_name(spec.quantity)}"
    short = [f"layer {layer}" for layer in layers]
    if len(layers) == 1:
        short = [""]
    sheet.label("step", variant_titles(variants), [words] * len(layers), short, words)
    yield sheet.page("", *drawn)


def _ratios(rows: DataFrame) -> DataFrame:
    place = ["variant", "num_layers", "layer", "part", "seed", "step"]
    above, below = (where(rows, row=name).groupby(place)["value"] for name in _OVER)
    return (above.mean() / below.mean()).rename("value").dropna().reset_index()


def _draw_survival_panel(ax: Axes, ratios: DataFrame) -> DataFrame:
    ax.axhline(1, **DASHED, zorder=0)
    if ratios.empty:
        say(ax, "(no ratio)")
    drawn = [DataFrame()]
    for part in parts_of(ratios):
        style = {"colour": part_colour(part), "label": labels.symbol(part)}
        drawn.append(draw_means(ax, where(ratios, part=part), *_PLACE, **style))
    return concat(drawn, ignore_index=True)


# Its own words are longer than a panel is high.
_PRECONDITIONED = {"preconditioned_eigenvalue": "eigenvalue of P⁻¹H"}
_QUANTITIES = (
    "largest_eigenvalue",
    "preconditioned_eigenvalue",
    "batch_sharpness",
    "critical_sharpness",
)


def edge(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw loss and sharpness over its threshold along the steps, one column per variant.

    How to read it: at 1 (dashed) a step of this size just settles in a quadratic: 2 /
    learning rate for gradient descent, 38 / learning rate for AdamW's preconditioned
    Hessian (beta1 = 0.9). Words in a panel: the mean over the last third of the steps,
    with its 95 % interval over seeds; `at the edge` where all of it is within 10 % of
    1. All eigenvalues are of iterates, not of points half way between two. Requires:
    the sweep's table.csv with stability_threshold (option `quantity`: which sharpness
    to draw, or a list).
    """
    table = source.table
    measured = set(table["quantity"])
    wanted = spec.words("quantity") or [
        name for name in _QUANTITIES if name in measured
    ]
    missing = [name for name in (*wanted, THRESHOLD) if name not in measured]
    if missing or not wanted:
        raise UserError(
            "figure.options.quantity: the table has no such sharpness, or no threshold next to it",
            got=", ".join(missing) or "no sharpness",
            allowed=", ".join(sorted(measured)),
            remedy=f"hessfig run sweep={source.folder.name} quantities=[largest_eigenvalue,{THRESHOLD}]",
        )
    variants = list(dict.fromkeys(table["variant"]))
    note = how(
        table,
        "Dashed: the threshold. Numbers: mean of the last third of the steps ± its 95% interval.",
    )
    rows = [*wanted, "loss"] if (table["quantity"] == "loss").any() else wanted
    columns = variant_names(variants)
    names = [[f"{name}:{variant}" for variant in columns] for name in rows]
    sheet = Sheet.grid(
        spec.paper, names, note, BY_COLUMN.replace(height=1.3, down=0.16)
    )
    values = [_values(table, name) for name in rows]
    drawn = []
    for row, column, ax in sheet:
        scale(ax, [values[row]])
        ax.set_xscale("linear")  # measured at regular steps
        here = where(values[row], variant=variants[column])
        if here.empty:
            say(ax, "(no number)")
        points = draw_means(ax, here, "step", colour=tone(row))
        drawn.append(points.assign(quantity=rows[row], variant=variants[column]))
    ends = {name: late_shares(table, name) for name in rows if name != "loss"}
    for row, column, ax in sheet:
        # After the curves: lines at 1 widen the range of the axis.
        if rows[row] != "loss":
            _mark(ax, ends[rows[row]].get(variants[column]))
    words = []
    for name in rows:
        named = labels.quantity_name(name)
        named = _PRECONDITIONED.get(name, named)
        words.append(named if name == "loss" else f"{named} / threshold")
    sheet.label("step", variant_titles(variants), words)
    yield sheet.page("", *drawn)


def _values(table: DataFrame, name: str) -> DataFrame:
    if name == "loss":
        return of_whole(counted(table), name)
    every = shares(table, name)
    return every.assign(value=every["share"])


def _mark(ax: Axes, end: Interval | None) -> None:
    ax.axhline(1, **DASHED, zorder=0)
    if end is not None:
        half = (end.high - end.low) / 2
        form = ".3f" if end.mean < 100 else ".3g"
        words = f"{end.mean:{form}}"
        if half == half:
            words += f" ± {half:{form}}"
        if end.low > 1 - EDGE_TOLERANCE and end.high < 1 + EDGE_TOLERANCE:
            words += "\nat the edge"
        box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
        ax.text(
            0.97,
            0.98,
            words,
            transform=ax.transAxes,
            ha="right",
            va="top",
            fontsize=TINY,
            bbox=box,
        )
