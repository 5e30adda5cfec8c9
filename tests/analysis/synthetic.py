"""Tables with known exponents and noise, written as a sweep leaves them."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hessfig.analysis.manifest import varied
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import Prediction, growth_rate
from hessfig.record import COLUMNS, FROBENIUS, MANIFEST, TABLE, Status
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


def networks(setting: str, values: Iterable[Any]) -> list[tuple[str, int]]:
    """Return a network of one layer for each value of a setting."""
    return [(f"{setting}={value}", 1) for value in values]


def depths(*numbers: int) -> list[tuple[str, int]]:
    """Return the network of the settings with so many layers."""
    return [("", number) for number in numbers]


def pairs(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the blocks on and above the diagonal."""
    return list(itertools.combinations_with_replacement(names, 2))


def single(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the blocks on the diagonal."""
    return [(name, name) for name in names]


def config(**model: Any) -> dict[str, Any]:
    """Return the settings of a run with some of the model's changed."""
    return {**CONFIG, "model": {**MODEL, **model}}


def predicted_law(
    block: Block, part: Part, architecture: Architecture, sigma: float
) -> float:
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
    sigma: Sequence[float] | None = SIGMA,
    seeds: int = 5,
    law: Law = predicted_law,
    noise: float = 0.02,
    wander: float = 0.2,
    settings: dict[str, Any] = CONFIG,
    steps: Sequence[int] | None = None,
    quantity: str = FROBENIUS,
    indices: Sequence[int] = (0,),
) -> pd.DataFrame:
    """Return a table as `read_table` does. Each seed carries a factor (log sd `wander`), each number its own `noise`.

    `sigma=None`: sigma means nothing here (nan); `steps`, `quantity` and `indices` fill
    the columns of their names. The law is given sigma, the step where there is no
    sigma, 1 where there is neither.
    """
    generator = np.random.default_rng(0)
    factors = np.exp(wander * generator.normal(size=seeds))
    places = itertools.product(sigma or [math.nan], steps or [math.nan], indices)
    known = {
        (variant, depth): Architecture.from_config(
            varied(settings, variant, num_layers=depth)
        )
        for variant, depth in networks
    }
    rows = []
    for (variant, depth), (row, col), part, (s, step, index), k in itertools.product(
        networks, blocks, parts, list(places), range(seeds)
    ):
        for layer in _layers(depth, row, col):
            place = next((x for x in (s, step) if not math.isnan(x)), 1.0)
            value = law(
                Block(layer, row, col), Part(part), known[variant, depth], place
            )
            value *= factors[k] * np.exp(noise * generator.normal())
            rows.append(
                {
                    "sweep": sweep,
                    "variant": variant,
                    "num_layers": depth,
                    "layer": layer,
                    "row_layer": layer,
                    "row": row,
                    "col": col,
                    "part": part,
                    "quantity": quantity,
                    "index": index,
                    "value": value,
                    "error": 0.05 * abs(value),
                    "sigma": s,
                    "step": step,
                    "seed": 1234 + k,
                    "num_probes": 20,
                    "estimator": "hutchinson",
                    "dtype": "float64",
                    "status": str(Status.structural_zero if value == 0 else Status.ok),
                    "seconds": 0.1,
                    "config": f"config{variant}{depth}",
                }
            )
    return pd.DataFrame(rows, columns=COLUMNS)


def write_sweep(
    table: pd.DataFrame,
    outputs: Path,
    *,
    settings: dict[str, Any] | None = CONFIG,
    arrays: Sequence[dict[str, Any]] = (),
) -> Path:
    """Write outputs/<sweep>/table.csv and (unless settings is None) its manifest; return the folder."""
    folder = outputs / "".join(table["sweep"].unique())
    folder.mkdir(parents=True, exist_ok=True)
    as_text(table).to_csv(folder / TABLE, index=False)
    if settings is not None:
        digest = hashlib.sha256((folder / TABLE).read_bytes()).hexdigest()
        manifest = {
            "sweep": folder.name,
            "config": settings,
            "table_sha256": digest,
            "arrays": list(arrays),
        }
        (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def as_text(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table as it is written: what means nothing is empty, a value that is not a number is 'nan'."""
    return pd.DataFrame(
        {name: [_written(name, cell) for cell in table[name]] for name in table}
    )


def _written(column: str, cell: Any) -> Any:
    if isinstance(cell, float) and math.isnan(cell):
        return "nan" if column == "value" else ""
    if column == "index":
        return cell or ""
    return f"{cell:.0f}" if column == "step" and not isinstance(cell, str) else cell


def _layers(depth: int, row: str, col: str) -> range:
    """Return the layers of a block: one number without a layer for embeddings and for networks without layers."""
    embedded = {matrix.value for matrix in Matrix if not matrix.has_layer}
    return range(1) if {row, col} <= embedded or depth == 0 else range(1, depth + 1)
