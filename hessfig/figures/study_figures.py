"""The two figures of the theory: bounds, and the scalar model."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from pandas import DataFrame, Series, concat, read_csv

from hessfig.errors import UserError
from hessfig.figures.parts import (
    APART,
    DASHED,
    GUIDE,
    OWN_Y,
    TINY,
    Paper,
    Sheet,
    draw_mean,
    label_side,
    matrix_colour,
    save_sheets,
    shades,
    styled,
    tone,
    where,
)
from hessfig.terms import Matrix


def read_study(path: Path) -> DataFrame:
    """Return outputs/<study>/<table>.csv as a table. Raises UserError if it is missing or invalid."""
    try:
        return read_csv(path)
    except (OSError, ValueError) as error:
        # What pandas raises for broken text are ValueErrors.
        what = "is not a study's table" if path.exists() else "is missing"
        raise UserError(
            f"{path} {what}",
            got=f"{type(error).__name__}: {error}",
            allowed="a table that `hessfig plot` computed",
            remedy=f"`hessfig plot figure={path.parent.name}` computes it and draws",
        ) from error


WHOLE = {
    "arXiv 2510.16927": ("#b2182b", "arXiv 2510.16927"),
    "norm": ("#444444", r"from $\|X\|$"),
    "diameter": ("#e08214", "from the diameter"),
}
BLOCKS = {
    "W_Q W_Q": (matrix_colour(Matrix.W_Q), "Q, Q"),
    "W_Q W_K": (matrix_colour(Matrix.W_K), "Q, K"),
    "W_Q W_V": (tone(0), "Q, V"),
    "W_V W_V": (matrix_colour(Matrix.W_V), "V, V"),
}


def draw_bounds(
    outputs: Path, paper: Paper | None = None, *, into: Path | None = None
) -> list[Path]:
    """Read outputs/bounds/looseness.csv and write outputs/figures (or `into`)/figbounds.{pdf,png,svg,csv}.

    How to read it: a bound divided by the true spectral norm, median and quartiles over
    problems with tokens of size sigma; one is tight, below one would be a violation.
    (a) The whole Hessian. (b, c) Its blocks, bounded from the norm of X alone and from
    the token diameter; blocks with W_K in place of W_Q look alike and are in the CSV.

    Requires the table of hessfig.theory.studies. Raises UserError when it is missing.
    """
    table = read_study(outputs / "bounds" / "looseness.csv")
    paper = paper or Paper()
    with styled(paper):
        page = bounds_sheet(table, paper).page("", table)
        return save_sheets([page], into or outputs / "figures", "bounds", paper)


def bounds_sheet(table: DataFrame, paper: Paper | None = None) -> Sheet:
    """Draw three panels; those of the blocks share their y axis."""
    problems = int(table["count"].max())
    note = (
        f"Median over {problems} random problems at each token scale; "
        "band: quartiles. Dashed: tight."
    )
    sheet = Sheet.grid(
        paper or Paper(), [["a", "b", "c"]], note, OWN_Y.replace(down=0.56, height=1.45)
    )
    table = table.assign(block=table["row"] + " " + table["col"])
    kinds = [
        ("(a) whole Hessian", table[table["row"] == "whole"], "bound", WHOLE),
        (r"(b) blocks, from $\|X\|$", table[table["bound"] == "norm"], "block", BLOCKS),
        (
            "(c) blocks, from the diameter",
            table[table["bound"] == "diameter"],
            "block",
            BLOCKS,
        ),
    ]
    for _, column, ax in sheet:
        title, *kind = kinds[column]
        draw_looseness(ax, *kind)
        ax.set_title(title, loc="left")
        # Room for the legend above the curves.
        ax.set_ylim(top=ax.get_ylim()[1] * (300 if column == 0 else 20))
        ax.legend(loc="upper left", ncols=1 + (column > 0))
    blocks = [ax for (_, column), ax in sheet.panels.items() if column > 0]
    if blocks:
        blocks[-1].sharey(blocks[0])
    sheet.label_sides(["bound / spectral norm"])
    return sheet


def draw_looseness(
    ax: Axes, table: DataFrame, key: str, series: dict[str, tuple[str, str]]
) -> None:
    """Draw one curve with a band of quartiles per entry of `series`; the dashed line is a tight bound."""
    for name, (colour, label) in series.items():
        curve = table[table[key] == name]
        band = curve["sigma"], curve["q25"], curve["q75"]
        draw_mean(ax, curve["sigma"], curve["median"], band, colour=colour, label=label)
    ax.axhline(1, **DASHED)
    ax.set(xscale="log", yscale="log", xlabel=r"token scale $\sigma$")
    ax.minorticks_off()


BULK, OUTLIER, PLAIN = "#2166ac", "#b2182b", "#444444"
TABLES = ("spectrum", "condition", "ggn", "sinks")
SINKS = {
    "input": "sink in the input",
    "score": "sink in the score",
    "value": "sink in score and value",
}
MODELS = {
    "attention": "softmax\nattention",
    "linear attention": "linear\nattention",
    "linear MLP": "linear\nMLP",
}
PLACES = {"random weights": "#444444", "critical points": "#e08214"}
FLOOR = 2e-3
_SCALAR_NOTE = (
    "Networks of one scalar per token with random weights. (a) One of them; median over {condition} networks in (b),"
    " {ggn} in (c), {sinks} in (d) to (f), with quartiles. Exact: zero up to rounding. Dotted: without a sink."
)


def draw_scalar(
    outputs: Path, paper: Paper | None = None, *, into: Path | None = None
) -> list[Path]:
    """Read outputs/scalar/*.csv and write outputs/figures (or `into`)/figscalar.{pdf,png,svg,csv}.

    How to read it: (a) every eigenvalue of one problem, computed and from the closed
    form: 2 (d_K - 1) of them sit at +-b, three stand out. (b) The same network with
    unbalanced query and key weights is ever worse conditioned. (c) The GGN's top
    eigenvalue is exact at critical points of networks linear in s; at random weights
    attention fares no worse. (d-f) Three ways to make the first token a sink: dotted
    lines mark the sizes without a sink. Bands: quartiles.

    Requires the tables of hessfig.theory.studies. Raises UserError when one is missing.
    """
    tables = {name: read_study(outputs / "scalar" / f"{name}.csv") for name in TABLES}
    paper = paper or Paper()
    with styled(paper):
        page = scalar_sheet(tables, paper).page("", numbers(tables))
        return save_sheets([page], into or outputs / "figures", "scalar", paper)


def numbers(tables: dict[str, DataFrame]) -> DataFrame:
    """Return every drawn number: panel, series, x, median (or value) y, quartiles."""
    spectrum, condition, ggn, sinks = (tables[name] for name in TABLES)
    kind, rank = spectrum["kind"], spectrum["index"]
    number = "condition number"
    N = condition["norm_squared"]
    of_models = ggn["model"] + ", " + ggn["where"]
    frames = [
        _tidy("spectrum", kind + ", autodiff", rank, spectrum["autodiff"]),
        _tidy("spectrum", kind + ", closed form", rank, spectrum["closed_form"]),
        _tidy(number, "autodiff", N, condition["median"], condition),
        _tidy(number, "closed form", N, condition["closed_form"]),
        _tidy(number, "limit", N, condition["limit"]),
        _tidy("GGN", of_models, np.nan, ggn["median"], ggn),
        _tidy(
            "sink: " + sinks["sink"],
            sinks["quantity"],
            sinks["beta"],
            sinks["median"],
            sinks,
        ),
    ]
    return concat(frames, ignore_index=True)


def scalar_sheet(tables: dict[str, DataFrame], paper: Paper | None = None) -> Sheet:
    """Draw two rows of three panels."""
    note = _SCALAR_NOTE.format(
        **{name: int(tables[name]["count"].max()) for name in TABLES[1:]}
    )
    sheet = Sheet.grid(
        paper or Paper(),
        [list("abc"), list("def")],
        note,
        APART.replace(across=0.62, down=0.56),
    )
    upper = (draw_spectrum, draw_condition, draw_ggn)
    for row, column, ax in sheet:
        if row == 0:
            upper[column](ax, tables[TABLES[column]])
            label_side(ax, ax.get_ylabel())
        else:
            sink, title = list(SINKS.items())[column]
            draw_sink(ax, where(tables["sinks"], sink=sink))
            ax.set_title(f"({'def'[column]}) {title}", loc="left")
    _share_sink_axes(sheet.row(1))
    return sheet


def draw_spectrum(ax: Axes, spectrum: DataFrame) -> None:
    """Draw eigenvalues in ascending order: rings are computed, dots are from the closed form."""
    ring: dict[str, Any] = {"mfc": "none", "mew": 0.7, "ms": 4.5}
    dot: dict[str, Any] = {"mew": 0, "ms": 1.8}
    for kind, colour in (("bulk", BULK), ("outlier", OUTLIER)):
        part = spectrum[spectrum["kind"] == kind]
        ax.plot(part["index"], part["autodiff"], "o", mec=colour, **ring)
        ax.plot(part["index"], part["closed_form"], "o", color=colour, **dot)
    ax.plot([], [], "o", mec=PLAIN, label="automatic differentiation", **ring)
    ax.plot([], [], "o", color=PLAIN, label="closed form", **dot)
    b = float(spectrum.loc[spectrum["kind"] == "bulk", "closed_form"].max())
    for size, name in ((b, "$+b$"), (-b, "$-b$")):
        level = spectrum[(spectrum["closed_form"] - size).abs() < 1e-9]
        ax.annotate(
            name,
            (level["index"].mean(), size),
            (0, 4),
            textcoords="offset points",
            color=BULK,
            ha="center",
        )
    ax.set(xlabel="eigenvalue number, ascending", ylabel="eigenvalue")
    ax.margins(x=0.08)
    low, high = ax.get_ylim()
    # Room for the legend above the dots.
    ax.set_ylim(low - 0.04 * (high - low), high + 0.35 * (high - low))
    ax.set_title("(a) spectrum of one problem", loc="left")
    ax.legend(loc="upper left")


def draw_condition(ax: Axes, condition: DataFrame) -> None:
    """Draw the condition number against |w_Q|^2 + |w_K|^2 at fixed w_Q . w_K."""
    N = condition["norm_squared"]
    ax.fill_between(
        N, condition["q25"], condition["q75"], color=PLAIN, alpha=0.18, linewidth=0
    )
    ax.plot(
        N,
        condition["limit"],
        "--",
        color=GUIDE,
        linewidth=0.8,
        label=r"limit, $\propto N^2$",
    )
    ax.plot(N, condition["closed_form"], color=PLAIN, label="closed form")
    ax.plot(
        N,
        condition["median"],
        "o",
        mfc="none",
        mec=PLAIN,
        mew=0.7,
        ms=4,
        label="automatic diff.",
    )
    ax.set(xscale="log", yscale="log", ylabel="condition number")
    ax.set_xlabel(
        r"$N = |w_\mathrm{Q}|^2 + |w_\mathrm{K}|^2$ at fixed $w_\mathrm{Q} \cdot w_\mathrm{K}$"
    )
    ax.set_title("(b) conditioning", loc="left")
    ax.minorticks_off()
    ax.legend(loc="upper left")


def draw_ggn(ax: Axes, ggn: DataFrame) -> None:
    """Draw the relative error of the GGN's top eigenvalue: median and quartiles; zeros are written as text."""
    for offset, (weights, colour) in zip((-0.14, 0.14), PLACES.items(), strict=True):
        for place, model in enumerate(MODELS):
            row = where(ggn, where=weights, model=model).iloc[0]
            _draw_quartiles(ax, place + offset, row, colour)
        ax.plot([], [], "o", color=colour, ms=3, mew=0, label=weights)
    ax.set(
        yscale="log",
        ylim=(FLOOR, 2.2),
        xlim=(-0.6, 2.6),
        ylabel="GGN: error of the largest",
    )
    ax.set_xticks(range(len(MODELS)), list(MODELS.values()))
    ax.tick_params(axis="x", length=0)
    ax.set_title("(c) GGN as a proxy", loc="left")
    ax.minorticks_off()
    ax.legend(loc="upper right", handlelength=0.6)


def draw_sink(ax: Axes, sink: DataFrame) -> None:
    """Draw bulk and outliers against the size of the sink; dotted lines are bulk and largest outlier without it."""
    ranks = [f"outlier {rank}" for rank in (1, 2, 3)]
    colours = dict(
        zip(["bulk", *ranks], [BULK, *reversed(shades(OUTLIER, 3))], strict=True)
    )
    for quantity, colour in colours.items():
        curve = sink[sink["quantity"] == quantity]
        ax.plot(curve["beta"], curve["median"], color=colour, label=quantity)
        if quantity in ("bulk", "outlier 1"):
            ax.fill_between(
                curve["beta"],
                curve["q25"],
                curve["q75"],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
            ax.axhline(
                curve["median"].iloc[0], color=colour, linestyle=":", linewidth=0.7
            )
    ax.set(yscale="log", xlabel=r"size of the sink, $\beta$")


def _share_sink_axes(axes: list[Axes]) -> None:
    if not axes:
        return
    low = min(ax.get_ylim()[0] for ax in axes)
    high = max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set_ylim(max(low, 1e-5), high)
        ax.set(xlim=(0, 12), xticks=range(0, 13, 3))
    label_side(axes[0], "size of eigenvalue")
    axes[len(axes) // 2].legend(loc="lower left")


def _draw_quartiles(ax: Axes, x: float, row: Series, colour: str) -> None:
    if row["q75"] < FLOOR:
        ax.text(
            x,
            FLOOR * 1.15,
            "exact",
            color=colour,
            fontsize=TINY,
            ha="center",
            va="bottom",
            rotation=90,
        )
        return
    ax.plot(
        [x, x],
        [max(row["q25"], FLOOR), row["q75"]],
        color=colour,
        linewidth=1.2,
        solid_capstyle="butt",
    )
    ax.plot([x], [row["median"]], "o", color=colour, ms=3.2, mew=0)


def _tidy(
    panel: object, series: object, x: object, y: object, spread: DataFrame | None = None
) -> DataFrame:
    quartiles: dict[str, Any] = {"q25": np.nan, "q75": np.nan}
    if spread is not None:
        quartiles = {"q25": spread["q25"], "q75": spread["q75"]}
    return DataFrame({"panel": panel, "series": series, "x": x, "y": y, **quartiles})


DRAWN = {"bounds": draw_bounds, "scalar": draw_scalar}
