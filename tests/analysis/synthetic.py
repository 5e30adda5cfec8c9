"""Tables with known exponents and noise, written as a sweep leaves them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hessfig.analysis.manifest import varied
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import Prediction, growth_rate
from hessfig.terms import Block, Matrix, Part

MODEL = {
    "kind": "transformer",
    "n_layers": 1,
    "n_heads": 1,
    "d_model": 128,
    "attention": "softmax",
    "attention_skip": True,
    "norm": "none",
    "mlp": "relu",
    "query_key": "separate",
    "temperature": 1.0,
}
CONFIG: dict[str, Any] = {
    "model": MODEL,
    "task": {"loss": "cross_entropy", "seed": 0, "batch_size": 64, "digits": 5},
}
VALUE_AND_QUERY = [("W_V", "W_V"), ("W_Q", "W_Q")]
SIGMA = [float(f"{s:.12g}") for s in np.logspace(-2, 1, 10)]
Law = Callable[[Block, Part, Architecture, float], float]


def config(**model: Any) -> dict[str, Any]:
    """Return the settings of a run with some of the model's changed."""
    return {**CONFIG, "model": {**MODEL, **model}}


def predicted_law(block: Block, part: Part, architecture: Architecture, sigma: float) -> float:
    """Return a norm that follows the prediction exactly: 3 sigma^p, 0 for a structural zero."""
    rate = growth_rate(block, part, architecture)
    if rate.prediction == Prediction.structural_zero:
        return 0.0
    return 3.0 * sigma ** (rate.exponent or 0.0)


def make_table(
    *,
    sweep: str = "sigma",
    networks: Sequence[tuple[str, int]] = (("", 1),),
    blocks: Sequence[tuple[str, str]] = VALUE_AND_QUERY,
    parts: Sequence[str] = ("H_o", "H_f", "H"),
    sigma: Sequence[float] = SIGMA,
    seeds: int = 5,
    law: Law = predicted_law,
    noise: float = 0.02,
    wander: float = 0.2,
    settings: dict[str, Any] = CONFIG,
) -> pd.DataFrame:
    """Return a table. Each seed carries a factor (log sd `wander`) along sigma, each number its own `noise`."""
    generator = np.random.default_rng(0)
    factors = np.exp(wander * generator.normal(size=seeds))
    rows = []
    for (variant, depth), (row, col), part, s, k in itertools.product(
        networks, blocks, parts, sigma, range(seeds)
    ):
        architecture = Architecture.from_config(varied(settings, variant, num_layers=depth))
        for layer in _layers(depth, row, col):
            value = law(Block(layer, Matrix(row), Matrix(col)), Part(part), architecture, s)
            value *= factors[k] * np.exp(noise * generator.normal())
            status = "structural_zero" if value == 0 else "ok"
            measured = (
                value,
                0.05 * value,
                20,
                "hutchinson",
                "float64",
                status,
                0.1,
                f"config{variant}{depth}",
            )
            rows.append((sweep, variant, depth, layer, row, col, part, s, 1234 + k, *measured))
    names = "sweep variant num_layers layer row col part sigma seed frob frob_sem num_probes estimator dtype"
    return pd.DataFrame(rows, columns=[*names.split(), "status", "seconds", "config"])


def write_sweep(table: pd.DataFrame, outputs: Path, *, settings: dict[str, Any] | None = CONFIG) -> Path:
    """Write outputs/<sweep>/table.csv and (unless settings is None) its manifest; return the folder."""
    folder = outputs / "".join(table["sweep"].unique())
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "table.csv", index=False, na_rep="nan")
    if settings is not None:
        digest = hashlib.sha256((folder / "table.csv").read_bytes()).hexdigest()
        manifest = {"sweep": folder.name, "config": settings, "table_sha256": digest}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _layers(depth: int, row: str, col: str) -> range:
    return range(1, depth + 1) if Matrix(row).has_layer or Matrix(col).has_layer else range(1)
