"""A folder of result files as the authors publish them, made from toy tables of every sweep with published numbers."""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hessfig.config.compose.job import compose
from hessfig.config.keys import as_plain
from hessfig.predictions.architecture import Architecture
from hessfig.terms import Block, Matrix, Part
from tests.analysis.synthetic import make_table, predicted_law, write_sweep

GRIDS = {
    "log": np.logspace(-2, 1, 20),
    "log_short": np.logspace(-1, 0, 20),
    "linear": np.linspace(0.1, 10, 20),
    "linear_short": np.linspace(0.1, 1, 20),
}
SOFTMAX = "residual_scaling=1.0_linear_attention=False_loss=ce"
STEMS = {
    "sigma": f"norm=none_num_layers={{}}_scale=log_{SOFTMAX}",
    "layernorm": f"norm=pre_num_layers={{}}_scale=log_{SOFTMAX}",
    "linear_axis_short": f"norm=none_num_layers={{}}_scale=linear_short_{SOFTMAX}",
    "linear_axis": f"norm=none_num_layers={{}}_scale=linear_{SOFTMAX}",
    "depth": f"norm=none_num_layers={{}}_scale=log_{SOFTMAX}",
    "softmax": "norm=none_num_layers={}_scale=log_short_residual_scaling=0.0_linear_attention=True_loss=mse",
    "mlp": "mlp_num_layers={}",
}
_SUFFIXES = {"H_o": "_outer", "H_f": "_func", "H": ""}


def as_reference(table: pd.DataFrame, *, factor: float = 1.0, seed: int = 1) -> pd.DataFrame:
    """Return a table's values as a published file, redrawn: other seeds' factors and other noise."""
    generator = np.random.default_rng(seed)
    repeat = table["seed"] - 1234
    tilt = np.exp(0.2 * generator.normal(size=repeat.nunique()))[repeat]
    value = table["value"] * tilt * np.exp(0.02 * generator.normal(size=len(table))) * factor
    names = {"block": table["row"], "part": table["part"], "layer": table["layer"], "repeat": repeat}
    return pd.DataFrame({**names, "sigma": table["sigma"], "value": value, "num_layers": table["num_layers"]})


@cache
def settings(sweep: str, *words: str) -> dict[str, Any]:
    """Return what the manifest of a shipped sweep holds."""
    return as_plain(compose([f"sweep={sweep}", *words]).variants[0][1])


def plateau(block: Block, part: Part, architecture: Architecture, sigma: float) -> float:
    """Return what a LayerNorm leaves: flat, then falling."""
    return 1.0 / (1.0 + sigma)


def toy_table(sweep: str, *, seeds: int = 8) -> pd.DataFrame:
    """Return a table of `sweep` on the published grid that follows the predictions."""
    return _made(sweep, seeds).copy()


@cache
def _made(sweep: str, seeds: int) -> pd.DataFrame:
    scale = STEMS[sweep].partition("scale=")[2].partition("_residual")[0] or "log"
    return make_table(
        sweep=sweep,
        networks=[("", depth) for depth in ((1, 2) if sweep in ("depth", "softmax", "mlp") else (1,))],
        blocks=[("W", "W")] if sweep == "mlp" else [("W_V", "W_V"), ("W_Q", "W_Q")],
        parts=["H"] if sweep == "mlp" else ["H_o", "H_f", "H"],
        sigma=[float(f"{sigma:.12g}") for sigma in GRIDS[scale]],
        seeds=seeds,
        wander=0.0,
        law=plateau if sweep == "layernorm" else predicted_law,
        settings=settings(sweep),
    )


def write_toy_sweep(sweep: str, outputs: Path) -> Path:
    """Write the toy table of `sweep` and its manifest under `outputs`."""
    return write_sweep(toy_table(sweep), outputs, settings=settings(sweep))


def publish(sweep: str, folder: Path, *, factor: float = 1.0) -> list[Path]:
    """Write the result files of `sweep`, its toy table redrawn and times `factor`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    values = as_reference(toy_table(sweep), factor=factor)
    return [
        write_result(folder / file_name(sweep, *name), quantity)
        for name, quantity in values.groupby(["num_layers", "block", "part"])
    ]


def file_name(sweep: str, num_layers: int, block: str, part: str) -> str:
    """Return the authors' name for one quantity, spelt out here so that the reader's own spelling is tested."""
    letter = "mlp" if block == Matrix.W else block.removeprefix("W_").lower()
    return f"{STEMS[sweep].format(num_layers)}_frob_{letter}{_SUFFIXES[part]}.pickle"


def write_result(path: Path, values: pd.DataFrame) -> Path:
    """Write dict[layer][repeat] -> list of float32 along sigma, layers and repeats counted from 0."""
    ordered = values.sort_values("sigma")
    content = {
        int(layer) - 1: {int(k): [np.float32(v) for v in one["value"]] for k, one in here.groupby("repeat")}
        for layer, here in ordered.groupby("layer")
    }
    path.write_bytes(pickle.dumps(content, protocol=5))
    return path
