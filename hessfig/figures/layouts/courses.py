"""Figures of quantities along trainings."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator, NullLocator
from pandas import DataFrame, Series, concat

from hessfig.analysis.axis import Axis, along, settings_of
from hessfig.analysis.intervals import student_interval
from hessfig.analysis.training_runs import of_whole
from hessfig.figures.parts import (
    APART,
    GUIDE,
    SHARED,
    FigureSpec,
    Page,
    Sheet,
    Source,
    between_decades,
    by_network,
    colour_bar,
    counted,
    draw_matrix,
    draw_means,
    file_words,
    in_rows,
    label_side,
    labels,
    matrix_colour,
    name_ends,
    name_sides,
    part_colour,
    say,
    seed_means,
    set_decades,
    set_x_scale,
    set_y_scale,
    tone,
    wanted_quantities,
    where,
)
from hessfig.terms import Part, name_order

STEP = "step"
_FEW = 3  # largest number of quantities of which a note names the estimators


def scale(ax: Axes, rows: Sequence[DataFrame], steps: Series | None = None) -> None:
    """Set both scales of a panel so that they fit all of its rows; `steps` are those of panels that share an axis."""
    every = concat([frame[[STEP, "value"]] for frame in rows])
    if every.empty:
        return
    set_x_scale(ax, every[STEP] if steps is None else steps)
    if not set_y_scale(ax, every["value"]):
        ax.ticklabel_format(axis="y", scilimits=(-3, 5))


def how(table: DataFrame, words: str, spread: str = "") -> str:
    """Return the note of a sheet: `words`, then repeats, how their spread is drawn, estimators, excluded numbers.

    Estimators are named for a few quantities only: of more, the table tells which
    number has which.
    """
    table = along(table, Axis(STEP))
    spread = spread or labels.spread_words(table["seed"].nunique())
    means = f"{words} Mean over {labels.seeds_words(table)}, {spread}."
    if table["quantity"].nunique() <= _FEW:
        means += f" {labels.estimator_words(table)}."
    return f"{means}{labels.left_out_words(table)}".strip()


def variant_titles(variants: Sequence[str]) -> list[tuple[str, ...]]:
    """Return titles of columns for variants: their settings, or only the values if there is less room."""
    titles: list[tuple[str, ...]] = []
    for variant in variants:
        words = labels.variant_words(variant)
        values = labels.plain(", ".join(settings_of(variant).values()))
        titles.append((words, values) if words else ("as configured",))
    return titles


_SHARE, _THRESHOLD = "Share of unseen examples right", "Preconditioned, and threshold"
_HEADROOM = 30  # times the largest value that a threshold is drawn for
_NEGATIVE = "−"  # in front of a line's name: of numbers below zero, drawn by their size
# What the y axis is, by title; the title says it where none is here.
_UNITS = {
    "Loss": "loss",
    _SHARE: "share",
    "Norms": "norm",
    "Outermost eigenvalues": "eigenvalue",
    _THRESHOLD: "eigenvalue",
    "Sharpness along the steps": "eigenvalue",
    "Noise of gradients": "squared gradient",
    "Noise scale tr C / |G|²": "examples",
    "Spread of attention": "standard deviation",
    "Trace": "trace",
}
# By title of a panel: the lines in it, name: quantity/part. A page draws the first
# panels that were measured.
_PANELS = {
    "Loss": {
        "measured batch": "loss",
        "held out": "held_out_loss",
        "unigram model": "unigram_loss",
    },
    _SHARE: {"all": "accuracy", "three carries": "cascade_accuracy"},
    "Outermost eigenvalues": {
        "largest, H": "largest_eigenvalue/H",
        "largest, H_o": "largest_eigenvalue/H_o",
        f"{_NEGATIVE}smallest, H": "smallest_eigenvalue/H",
    },
    _THRESHOLD: {
        "of P⁻¹H": "preconditioned_eigenvalue/H",
        "threshold": "stability_threshold",
    },
    "Sharpness along the steps": {
        "of batches": "batch_sharpness",
        "2 / critical step": "critical_sharpness",
    },
    "Trace": {"H": "trace/H", "H_o": "trace/H_o"},
    "Norms": {"gradient": "gradient_norm", "weights": "weight_norm"},
    "Noise of gradients": {
        "tr C": "gradient_covariance",
        "largest of C": "gradient_covariance_eigenvalue",
    },
    "Noise scale tr C / |G|²": {"": "noise_scale"},
    "Spread of attention": {"scores": "score_spread", "weights": "pattern_spread"},
}
_COLUMNS, _MOST = 2, 6  # of panels on a page
_NAMES = 0.85  # inches to the right of a panel for the names of its lines


def training(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw loss and curvature along a training, one page per network, at most six panels of what was measured.

    How to read it: means over seeds along the steps (geometric on logarithmic axes); up
    to five seeds are thin lines, more the band of their 95 % interval. Scales are
    logarithmic where the numbers span them, and for eigenvalues, the smallest of which
    is drawn by its size. The dashed line is the sharpness from which on a step of that
    size does not settle in a quadratic, as far as it is near. The CSV file also has
    norms, noise and the spread of attention. Requires: the sweep's table.csv along
    `state.step`.
    """
    for suffix, _, table in by_network(source.table):
        every = []
        for title, lines in _PANELS.items():
            found = _found(counted(table), lines)
            if found:
                every.append((title, found))
        panels, others = every[:_MOST], every[_MOST:]
        style = SHARED.replace(
            share_y=False,
            height=1.1,
            right=_NAMES + 0.05,
            across=_NAMES + 0.5,
            down=0.3,
        )
        columns = min(_COLUMNS, style.columns(spec.paper))
        names = [file_words(title.lower()) for title, _ in panels] or ["nothing"]
        note = how(
            table,
            "",
            f"geometric on logarithmic axes; {labels.spread_words(table['seed'].nunique())}",
        )
        sheet = Sheet.grid(
            spec.paper, in_rows(names, columns), note, style.replace(most=columns)
        )
        steps = counted(table)[STEP].dropna()
        drawn = []
        if panels:
            for row, column, ax in sheet:
                drawn.append(_draw_panel(ax, *panels[row * columns + column], steps))
        else:
            sheet.first.set_axis_off()
            say(sheet.first, "(nothing of the whole network)")
        for title, filled in others:
            for quantity, name, rows in filled:
                drawn.append(_means(rows, title, quantity, name))
        sheet.label_below("step")
        yield sheet.page(suffix, *drawn)


def _means(rows: DataFrame, title: str, quantity: str, name: str) -> DataFrame:
    return seed_means(rows, [STEP]).assign(panel=title, quantity=quantity, line=name)


def _found(
    table: DataFrame, lines: Mapping[str, str]
) -> list[tuple[str, str, DataFrame]]:
    found = []
    for name, words in lines.items():
        quantity, _, part = words.partition("/")
        rows = of_whole(table, quantity, part)
        if name.startswith(_NEGATIVE):
            rows = rows.assign(value=-rows["value"])
        if len(rows):
            found.append((quantity, name, _one_a_seed(rows)))
    return found


def _one_a_seed(rows: DataFrame) -> DataFrame:
    """Return one number per seed and step: the first of several (digits, eigenvalues), the mean over layers."""
    first = rows[rows["index"] == rows["index"].min()]
    return first.groupby(["seed", "step"], as_index=False)["value"].mean()


def _draw_panel(
    ax: Axes, title: str, lines: list[tuple[str, str, DataFrame]], steps: Series
) -> DataFrame:
    """Draw the lines of a panel, named where they end; `steps` are those of all panels."""
    every = [rows for _, _, rows in lines]
    are_positive = all((rows["value"] > 0).any() for rows in every)
    scale(ax, every, steps)
    if title == _SHARE:
        ax.set_yscale("linear")
    elif _UNITS.get(title) == "eigenvalue" and are_positive:
        set_decades(ax, "y")
    means_of = []
    ends = []
    for rank, (quantity, name, rows) in enumerate(lines):
        style = {"linestyle": "--" if name.startswith(_NEGATIVE) else "-"}
        if quantity == "stability_threshold":
            colour = GUIDE
            style = {"linestyle": "--", "marker": ""}
        else:
            part = name.rpartition(" ")[2]
            colour = part_colour(part) if part in list(Part) else tone(rank)
        means = draw_means(ax, rows, STEP, colour=colour, **style)
        means_of.append(means.assign(panel=title, quantity=quantity, line=name))
        for y in means["mean"].dropna().tail(1):
            ends.append((float(y), _words(name), colour))
    if title == _SHARE:
        ax.set_ylim(-0.02, 1.02)
    if title == _THRESHOLD:
        near = [rows for name, _, rows in lines if name != "stability_threshold"]
        _keep_in_sight(ax, concat(near))
    ax.set_title(title)
    label_side(ax, _UNITS.get(title, ""))
    if len(lines) > 1:
        limits = ax.get_ylim()
        inside = [
            (float(np.clip(y, *limits)), words, colour) for y, words, colour in ends
        ]
        name_ends(ax, inside)
    return concat(means_of)


def _keep_in_sight(ax: Axes, rows: DataFrame) -> None:
    """End the axis above the curves that are compared with a threshold, which diverges if the rate falls to zero."""
    if len(rows) and ax.get_ylim()[1] > _HEADROOM * rows["value"].max() > 0:
        ax.set_ylim(top=_HEADROOM * rows["value"].max())


def _words(name: str) -> str:
    """Return the name of a line with its part, if it ends with one, as a symbol."""
    before, _, part = name.rpartition(" ")
    return f"{before} {labels.symbol(part)}".strip() if part in list(Part) else name


_QUANTITIES = (
    "frobenius",
    "largest_eigenvalue",
    "gradient_norm",
    "weight_norm",
    "residual_norm",
)
_RESIDUAL = "residual_norm"
_PLACE_HEIGHT = 0.115  # inches, of a weight in a heat map of many
_BAR = 0.6  # inches to the right of a heat map for its colour bar
_MORE = 0.25  # how much wider a heat map is than half of the page
_SHORT = 30  # ratio below which powers of ten are too far apart for ticks


def curvature_flow(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw weights (layers, for the residual stream) against steps as heat maps, with the last step as dots beside.

    How to read it: colour is log10 of the geometric mean over seeds, each row of panels
    with its own scale; white: nothing positive. Steps stand side by side, whatever lies
    between them. Dots: the last step, with 95 % intervals over seeds, in the order of
    the map. Requires: the sweep's table.csv along `state.step` (option `quantity`: a
    list; by default norms and largest eigenvalues of blocks of H, norms of gradient and
    weights, lengths of the residual stream, whichever are there; option `parts`: a page
    for each of these parts of the Hessian, by default H alone).
    """
    table = source.table
    parts = spec.words("parts") or [Part.H.value]
    wanted = wanted_quantities(
        table,
        spec.words("quantity"),
        _QUANTITIES,
        found="none that has a place in the network",
    )
    for suffix, _, rows in by_network(table):
        for part in parts:
            here = rows[rows["part"].isin(["", part])]
            end = suffix + f"_{part}" * (len(parts) > 1)
            yield _draw_flow(here, wanted, spec, end, part)


def _draw_flow(
    table: DataFrame, wanted: list[str], spec: FigureSpec, suffix: str, part: str
) -> Page:
    words = f"{labels.part_words(part)}. Colour: all steps; dots: the last step."
    note = how(table, words, "geometric; bars: 95% interval (Student's t)")
    names = [[name, f"{name}:last"] for name in wanted]
    points = [_points(counted(table), name) for name in wanted]
    tallest = max((rows["place"].nunique() for rows in points), default=0)
    style = SHARED.replace(
        share_x=False, left=0.6, across=_BAR + 0.1, down=0.3, bottom=0.5, right=0.5
    )
    style = style.replace(right=_BAR) if style.columns(spec.paper) == 1 else style
    sheet = Sheet.grid(
        spec.paper,
        names,
        note,
        style.replace(height=max(1.15, _PLACE_HEIGHT * tallest)),
    )
    for row, column, ax in sheet:
        rows = points[row]
        last = column == 0 and (sheet.is_folded or row == len(wanted) - 1)
        if column == 0 and not sheet.is_folded:
            _widen(ax, sheet.panels.get((row, 1)))
        if rows.empty:
            say(ax, "(nothing positive)")
        elif column == 0:
            _heat(ax, rows, wanted[row], named=last)
        else:
            _dots(ax, where(rows, step=rows["step"].max()))
            ax.set_title(
                f"{labels.quantity_name(wanted[row])} at step {rows['step'].max():g}"
            )
    shown = []
    for name, frame in zip(wanted, points, strict=True):
        if len(frame):
            shown.append(frame.drop(columns="colour").assign(quantity=name))
    return sheet.page(suffix, *shown)


def _widen(heat: Axes, dots: Axes | None) -> None:
    """Make a heat map wider, so that every step has room for its name, and the panel of dots next to it narrower."""
    if dots is None:
        return
    left = heat.get_position()
    right = dots.get_position()
    more = _MORE * left.width
    heat.set_position((left.x0, left.y0, left.width + more, left.height))
    dots.set_position((right.x0 + more, right.y0, right.width - more, right.height))


def _points(table: DataFrame, name: str) -> DataFrame:
    """Return the geometric mean with its interval by place (weight or layer) and step, in the order of places."""
    rows = table[(table["quantity"] == name) & (table["index"] <= 1)]
    if name == _RESIDUAL:
        rows = rows.assign(
            place=rows["layer"].map("after layer {:d}".format), colour="W_O"
        )
    else:
        rows = rows[(rows["row"] == rows["col"]) & rows["row"].str.startswith("W_")]
        layers = rows["layer"] if table["num_layers"].max() > 1 else [0] * len(rows)
        rows = rows.assign(
            place=list(map(labels.weight_words, rows["row"], layers)),
            colour=rows["row"],
        )
        rank = name_order(rows["row"].unique())
        rows = rows.sort_values("row", key=lambda names: names.map(rank), kind="stable")
    rows = rows[rows["value"] > 0].sort_values("layer", kind="stable")
    means = []
    keys = ["place", "colour", "step"]
    for key, group in rows.groupby(keys, sort=False):
        found = student_interval(np.log10(group["value"])).found
        means.append((*key, *found.values()))
    return DataFrame(means, columns=[*keys, "log10", "low", "high", "count"])


def _decades(low: float, high: float) -> dict[float, str]:
    """Return ticks and labels of a scale of logarithms: whole decades, or both ends if fewer than two decades fit."""
    ticks = MaxNLocator(4, integer=True).tick_values(low, high)
    whole = {
        tick: f"$10^{{{tick:.0f}}}$"
        for tick in ticks
        if low <= tick <= high and tick == round(tick)
    }
    if len(whole) > 1:
        return whole
    return {low: f"{10**low:.2g}", high: f"{10**high:.2g}"}


def _heat(ax: Axes, points: DataFrame, name: str, *, named: bool) -> None:
    """Draw a heat map with its colour bar; `named`: all steps have their numbers below."""
    wide = points.pivot_table(index="place", columns="step", values="log10").loc[
        points["place"].unique()
    ]
    low = np.nanmin(wide.to_numpy())
    high = np.nanmax(wide.to_numpy())
    scale = Normalize(low, high)
    image = draw_matrix(
        ax, wide.to_numpy(), scale, missing="white", interpolation="nearest"
    )
    ticks = _decades(low, high)
    colour_bar(ax, image).set_ticks([*ticks], labels=[*ticks.values()])
    name_sides(ax, rows=list(wide.index))
    if named:
        name_sides(ax, columns=[f"{step:g}" for step in wide.columns])
        ax.set_xlabel("step")
    else:
        ax.set_xticks([])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_title(labels.quantity_name(name))


def _dots(ax: Axes, last: DataFrame) -> None:
    mean = 10 ** last["log10"]
    below = mean - 10 ** last["low"].fillna(last["log10"])
    above = 10 ** last["high"].fillna(last["log10"]) - mean
    colours = [matrix_colour(name) for name in last["colour"]]
    ax.errorbar(
        mean,
        range(len(last)),
        xerr=[below, above],
        fmt="none",
        ecolor="#888888",
        elinewidth=0.7,
    )
    ax.scatter(mean, range(len(last)), c=colours, s=9, zorder=3)
    name_sides(ax, rows=list(last["place"]))
    # The names on the left are far away, and those of the map.
    ax.tick_params(axis="y", labelleft=False, labelright=True)
    ax.set_ylim(len(last) - 0.5, -0.5)
    set_decades(ax, "x")
    low, high = ax.get_xlim()
    if high < _SHORT * low:
        between_decades(ax, "x")


_SINK, _KEY = "sink_mass", "key_mass"


def attention_mass(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw where attention goes: on the first key by layer and head, along the steps, and by key; one page per network.

    How to read it: the map and the curves over keys are of the last step. A head whose
    weight on the first key is far above what uniform attention gives (said in the note)
    has a sink there. Over keys, 1 is what uniform attention gives to that key. Means
    over seeds; bands are 95 % intervals. Requires: the sweep's table.csv with
    `sink_mass` along `state.step`.
    """
    for suffix, _, table in by_network(counted(source.table)):
        sink, key = (table[table["quantity"] == name] for name in (_SINK, _KEY))
        length = int(key["index"].max())
        uniform = sum(1 / query for query in range(2, length + 1)) / (length - 1)
        note = how(
            sink, f"Uniform attention gives the first of {length} keys {uniform:.3f}."
        )
        style = APART.replace(left=0.45, across=0.6, down=0.5, right=0.12, height=1.3)
        sheet = Sheet.grid(spec.paper, [["first_key", "steps", "keys"]], note, style)
        last = sink["step"].max()
        by_layer = where(sink, step=last).groupby(["layer", "index"], as_index=False)
        maps = by_layer["value"].mean()
        curves = []
        for _, column, ax in sheet:
            if column == 0:
                _mass_map(ax, maps, last)
                continue
            if column == 1:
                rows = sink
                place = STEP
                panel = "steps"
                title, below = "mean over heads", "step"
            else:
                rows = where(key, step=last)
                place = "index"
                panel = "keys"
                title, below = "relative to uniform attention", "position of the key"
            set_x_scale(ax, rows[place].astype(float))
            for layer, of_layer in rows.groupby("layer"):
                heads = of_layer.groupby(["seed", place], as_index=False)[
                    "value"
                ].mean()
                means = draw_means(
                    ax,
                    heads,
                    place,
                    colour=tone(int(layer) - 1),
                    label=f"layer {layer}",
                )
                named = means.rename(columns={place: "place"})
                curves.append(named.assign(layer=layer, panel=panel))
            ax.set_title(title)
            ax.set_xlabel(below)
            ax.legend(loc="best")
        yield sheet.page(suffix, maps.assign(panel="first_key"), *curves)


def _mass_map(ax: Axes, maps: DataFrame, step: float) -> None:
    square = maps.pivot_table(index="layer", columns="index", values="value")
    words = np.vectorize("{:.2f}".format)(square.to_numpy())
    draw_matrix(ax, square.to_numpy(), Normalize(0, 1), words=words, missing="#e6e6e6")
    ax.set_xticks(range(square.shape[1]), [f"{head:g}" for head in square.columns])
    ax.set_yticks(range(square.shape[0]), [f"{layer:g}" for layer in square.index])
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.set_title(f"weight of the first key, step {step:g}")
