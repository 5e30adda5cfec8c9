"""Calibrate products by differences: their error against step and type, by block, next to what they say of themselves.

    python scripts/calibrate_differences.py [--d-model 16] [--rounds 3] [--output outputs/benchmarks/differences.json]

writes the JSON and, next to it, the figure. The truth is H v by double backward in float64, with the weights as they
are in float64; a network in a smaller type is rounded first, which is part of its error. `error` is |D_h - H v| / |H v|
and `estimate` what `estimator.products=differences` puts into its rows, |D_h - D_2h| / |D_h|, both Frobenius norms over
the probes; every round has a network of its own. `move` is the step relative to the weights, h |v| / |w|; the rule's is
u^(1/3), u the unit roundoff. One network has a smooth activation, the other the kinks of ReLU.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import benchmarking
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessfig.config.enums import MLP, DType
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.curvature.differences import DifferencedColumn
from hessfig.curvature.problem import rademacher
from hessfig.figures.parts.colours import GUIDE, TONES
from hessfig.figures.parts.labels import weight_words
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.parts.panel_sheet import ONE_SCALE, Sheet
from hessfig.figures.parts.saving import save_figure
from hessfig.measurements.block_norms import ROUGHEST
from hessfig.rng import stream
from hessfig.states.point import drawn
from hessfig.terms import Matrix, Part

BLOCKS = (Matrix.W_Q, Matrix.W_V, Matrix.W_in)
TITLES = {MLP.gelu: "GELU", MLP.relu: "ReLU"}
COLOURS = {torch.float64: TONES[3], torch.float32: TONES[0], torch.bfloat16: TONES[1]}
STRETCHES = tuple(4.0**power for power in range(-5, 6))
FIRST_SEED, SIGMA, PROBES = 1234, 0.5, 5
TOY = {"d_model": 4, "digits": 1, "batch_size": 3, "rounds": 1}
Rows = list[dict[str, Any]]


def main(words: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the errors at the rule's step, draw the figure."""
    options = benchmarking.parse(__doc__, _add_options, TOY, words)
    configs = {mlp: benchmarking.checked(_config(options, mlp)) for mlp in TITLES}
    seeds = range(FIRST_SEED, FIRST_SEED + options.rounds)
    rows = [
        {"mlp": mlp, **row} for mlp, config in configs.items() for seed in seeds for row in calibrated(config, seed)
    ]
    output = options.output or Path("outputs/benchmarks/differences.json")
    settings = {name: getattr(options, name) for name in TOY} | {"num_probes": PROBES, "sigma": SIGMA}
    benchmarking.write_report(output, {**benchmarking.heading(options), "settings": settings, "rows": rows})
    middle = medians(rows)
    print(middle[middle["stretch"] == 1].drop(columns="stretch").to_string(index=False, float_format="%.2g"))
    with styled():
        save_figure(calibration_sheet(middle, settings), output.parent, output.stem)


def calibrated(config: Config, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the errors of one network: by block, type and step."""
    problem = drawn(config, sigma=SIGMA, seed=seed)
    for name in BLOCKS:
        exact = ColumnOperator(problem, 1, name, [name])
        probes = rademacher(exact.dim, PROBES, generator=stream(seed, "calibration"), dtype=torch.float64)
        truth = exact.split_matmat(probes, [Part.H])[name, Part.H]
        for dtype in COLOURS:
            for stretch in STRETCHES:
                column = DifferencedColumn(problem.cast(dtype), 1, name, [name], stretch=stretch)
                found = column.split_matmat(probes, [Part.H])[name, Part.H].double()
                estimate = column.relative_error(name, Part.H)
                yield {
                    "block": name,
                    "dtype": str(dtype).removeprefix("torch."),
                    "stretch": stretch,
                    "move": stretch * (torch.finfo(dtype).eps / 2) ** (1 / 3),
                    "error": float((found - truth).norm() / truth.norm()),
                    "estimate": estimate if math.isfinite(estimate) else None,
                }


def medians(rows: Rows) -> pd.DataFrame:
    """Return the medians over rounds."""
    labels = ["mlp", "block", "dtype", "stretch", "move"]
    return pd.DataFrame(rows).groupby(labels, sort=False, as_index=False)[["error", "estimate"]].median()


def calibration_sheet(middle: pd.DataFrame, settings: dict[str, Any]) -> Figure:
    """A row per activation, a column per block; dot: the rule's step; numbers above the dashed line are flagged."""
    names = [[f"{name}, {mlp}" for name in BLOCKS] for mlp in TITLES]
    note = (
        f"Solid: relative error of H v by differences; dotted: the estimate that they give of it; dots: the step that "
        f"is taken. Above the dashed line numbers are marked as not converged. One layer of width "
        f"{settings['d_model']}, batch {settings['batch_size']}, {PROBES} probes, σ = {SIGMA}, median over "
        f"{settings['rounds']} networks."
    )
    sheet = Sheet.grid(Paper(), names, note, ONE_SCALE.but(down=0.3))
    for row, column, ax in sheet:
        name, mlp = BLOCKS[column], tuple(TITLES)[row]
        _draw(ax, middle[(middle["block"] == name) & (middle["mlp"] == mlp)])
        ax.set_title(f"{weight_words(name)}, {TITLES[mlp]}", loc="left")
        if row == len(TITLES) - 1:
            ax.set_xlabel("size of the step / size of the weights")
    for line in sheet.lines:
        sheet.panels[line[0]].set_ylabel("relative error")
    sheet.first.legend(loc="lower right")
    return sheet.figure


def _draw(ax: Axes, rows: pd.DataFrame) -> None:
    for dtype, colour in COLOURS.items():
        name = str(dtype).removeprefix("torch.")
        curve = rows[rows["dtype"] == name]
        ax.plot(curve["move"], curve["error"], color=colour, label=name)
        ax.plot(curve["move"], curve["estimate"], ":", color=colour)
        rule = curve[curve["stretch"] == 1]
        ax.plot(rule["move"], rule["error"], "o", color=colour, markersize=3.5)
    ax.axhline(ROUGHEST, color=GUIDE, linestyle="--", linewidth=0.8)
    ax.set(xscale="log", yscale="log")
    ax.minorticks_off()


def _config(options: argparse.Namespace, mlp: MLP) -> Config:
    return Config(
        task=TaskConfig(digits=options.digits, batch_size=options.batch_size),
        model=ModelConfig(d_model=options.d_model, n_heads=2, mlp=mlp),
        dtype=DType.float64,
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--d-model", type=int, default=16, help="width (16)")
    parser.add_argument("--digits", type=int, default=2, help="digits of the summands (2)")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences (16)")


if __name__ == "__main__":
    main()
