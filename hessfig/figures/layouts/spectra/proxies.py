"""How well the outer-product part knows the largest eigenvalue of the full Hessian, network by network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.axis import Axis, X, along, check_places, fixed_words
from hessfig.analysis.curves import of_quantity
from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError
from hessfig.figures.layouts.spectra.changes import draw_line, seed_means, tone
from hessfig.figures.parts.grid import Margins, panel_grid
from hessfig.figures.parts.looks import set_x_scale
from hessfig.figures.parts.numbers import as_written
from hessfig.figures.parts.panels import mark_one, set_decades
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.words import estimator_words, left_out_words, seeds_words, variant_words
from hessfig.record import LEFT_OUT
from hessfig.terms import Part

_LARGEST = "largest_eigenvalue"
_PLACE = ["variant", "num_layers", X, "seed"]


def gauss_newton(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the ratio of the largest eigenvalues of H_o and H along the axis, a line a network, above both of them.

    How to read it: where the ratio is 1 the Gauss-Newton part stands for the Hessian; below, the functional part adds
    curvature that it misses, above, one that cancels. Ratios are taken seed by seed; means are geometric, bands 95 %
    intervals over seeds (Student's t). In the lower panel H is solid and H_o dashed.
    Requires: the sweep's table.csv with `largest_eigenvalue` (or `spectrum`) of one block, parts H_o and H (option
    `block`: all by default).
    """
    run = read_run(folder)
    block = str(spec.options.get("block", "all"))
    table = along(of_quantity(run.table, _LARGEST), run.axis)
    table = table[(table["row"] == block) & (table["col"] == block) & (table["index"] <= 1)]
    _check(table, block)
    check_places(table, run.axis)
    yield _draw_page(table, run.axis)


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Return H_o's largest eigenvalue over H's by network, place and seed; none where H's is not positive."""
    counted = table[~table["status"].isin(LEFT_OUT)]
    wide = counted.pivot_table(index=_PLACE, columns="part", values="value").reset_index()
    return wide.assign(ratio=(wide[Part.H_o.value] / wide[Part.H.value]).where(wide[Part.H.value] > 0))


def _draw_page(table: pd.DataFrame, axis: Axis) -> Page:
    found = ratios(table)
    note = (
        f"Geometric mean over {seeds_words(table)}, band: 95% interval (Student's t). Below: solid {Part.H.label},"
        f" dashed {Part.H_o.label}.{fixed_words(table, axis)} {estimator_words(table)}.{left_out_words(table)}"
    )
    figure, axes = panel_grid(
        2, 1, note=note, panel_height=1.5, margins=Margins(right=0.1, top=0.12), share_y=False
    )
    upper, lower = axes[:, 0]
    set_x_scale(lower, found[X])
    for ax in (upper, lower):
        set_decades(ax, "y")
    ratio = seed_means(found, ["variant", "num_layers", X], "ratio", logs=True)
    numbers = [ratio.assign(shown="ratio", part="")]
    sizes = [
        seed_means(found, ["variant", "num_layers", X], part.value, logs=True).assign(
            shown=_LARGEST, part=part.value
        )
        for part in (Part.H, Part.H_o)
    ]
    for rank, (network, words) in enumerate(_named(table).items()):
        draw_line(upper, _of(ratio, network), X, colour=tone(rank), label=words)
        for one, dashes in zip(sizes, ("-", (0, (3, 1.5))), strict=True):
            draw_line(lower, _of(one, network), X, colour=tone(rank), linestyle=dashes)
    upper.axhline(1, color="black", linewidth=0.5, linestyle=(0, (4, 1.5)))
    upper.legend(loc="best")
    for ax in (upper, lower):
        mark_one(ax, axis)
    upper.set_ylabel(r"$\lambda_1(H_\mathrm{o})\,/\,\lambda_1(H)$")
    lower.set_ylabel("largest eigenvalue")
    lower.set_xlabel(axis.symbol)
    figure.align_ylabels([upper, lower])
    return Page("", figure, as_written(pd.concat([*numbers, *sizes], ignore_index=True), axis))


def _named(table: pd.DataFrame) -> dict[tuple[str, int], str]:
    """Return {network: words}; networks that read alike are one (an MLP has no kind of attention) and drawn once."""
    networks = table[["variant", "num_layers"]].drop_duplicates().itertuples(index=False, name=None)
    several = len(set(table["num_layers"])) > 1
    named: dict[str, tuple[str, int]] = {}
    for variant, depth in networks:
        words = variant_words(variant) + (f", {depth} layers" if several else "")
        named.setdefault(words or "network", (variant, depth))
    return {network: words for words, network in named.items()}


def _of(points: pd.DataFrame, network: tuple[str, int]) -> pd.DataFrame:
    return points[(points["variant"] == network[0]) & (points["num_layers"] == network[1])]


def _check(table: pd.DataFrame, block: str) -> None:
    parts = sorted(set(table["part"]))
    if not {Part.H, Part.H_o} <= set(parts):
        raise UserError(
            f"figure.options.block: no largest eigenvalues of H_o and H of the block {block}",
            got=f"parts {', '.join(parts) or 'none'}",
            allowed="a block measured with parts=[H_o,H]",
            remedy="figure.options.block=all, or run the sweep with parts=[H_o,H]",
        )
    if not np.isfinite(table["value"]).any():
        raise UserError(
            f"no largest eigenvalue of the block {block} is finite",
            got=f"{len(table)} rows",
            allowed="finite numbers",
            remedy="measure it at other sigmas: grid.values=[0.1,1]",
        )
