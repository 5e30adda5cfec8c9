"""Measure how far batches lie apart, for data/batch_spread.csv: the same networks on batches of several task seeds.

Runs `hessfig run` with task.seed=1, 2, ... (finished runs are reused) and prints the rows of the record: for each
weight and part the standard deviation over batches, in logs, of a whole curve and of the point that moves most; of
several layers, the largest. A network's own answer to a batch is taken out: the spread over networks holds it already.
Some fifteen minutes on one core.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS = [
    *["network", "num_layers", "block", "part", "curve_sd", "point_sd"],
    *["num_batches", "num_networks", "measured_by"],
]


@dataclass(frozen=True)
class Kind:
    """A kind of network: its name on record, the settings of its runs, and how many batches."""

    name: str
    network: str
    settings: tuple[str, ...]
    num_batches: int


KINDS = [
    Kind("sigma", "softmax", ("sweep=sigma", "estimator=exact", "seeds=4", "grid.points=6"), 12),
    Kind("layernorm", "pre-LN", ("sweep=layernorm", "estimator=exact", "seeds=3", "grid.points=6"), 12),
    Kind("mlp", "linear MLP", ("sweep=mlp", "estimator=exact", "seeds=4", "grid.points=6"), 12),
    Kind(
        "chain", "linear chain", ("sweep=softmax", "model.n_layers=1", "estimator=exact", "seeds=8", "grid.points=4"), 8
    ),
    Kind(
        "two_layers",
        "softmax",
        (
            *("sweep=depth", "model.n_layers=2", "estimator=hutchinson", "dtype=float32"),
            *("seeds=2", "grid.points=4", "grid.high=1.0"),
        ),
        8,
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("outputs/batches"))
    parser.add_argument("--only", nargs="*", choices=[kind.name for kind in KINDS])
    arguments = parser.parse_args()
    chosen = [kind for kind in KINDS if not arguments.only or kind.name in arguments.only]
    rows = pd.concat([record(kind, measured(kind, arguments.output)) for kind in chosen])
    print(rows.to_csv(index=False, float_format="%.4f"), end="")


def measured(kind: Kind, output: Path) -> pd.DataFrame:
    """Run a kind on every batch and return its tables, with the batch as a column."""
    tables = []
    for batch in range(1, kind.num_batches + 1):
        folder = output / kind.name / str(batch)
        command = [str(Path(sys.executable).with_name("hessfig")), "run", *kind.settings]
        own = [f"task.seed={batch}", "workers=1", f"output_dir={folder}"]
        subprocess.run([*command, *own], check=True, stdout=sys.stderr)
        sweep = kind.settings[0].partition("=")[2]
        tables.append(pd.read_csv(folder / sweep / "table.csv").assign(batch=batch))
    return pd.concat(tables)


def record(kind: Kind, tables: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the record: the largest spread over layers, for each depth, weight and part."""
    known = tables[(tables["row"] == tables["col"]) & (tables["value"] > 0)]
    curves = [
        (*names, *spread(cube(curve)))
        for names, curve in known.groupby(["num_layers", "row", "part", "layer"], sort=False)
    ]
    frame = pd.DataFrame(curves, columns=["num_layers", "block", "part", "layer", "curve_sd", "point_sd"])
    rows = frame.groupby(["num_layers", "block", "part"], sort=False)[["curve_sd", "point_sd"]].max()
    facts = {
        "network": kind.network,
        "num_batches": kind.num_batches,
        "num_networks": tables.groupby(["sigma", "seed"]).ngroups,
        "measured_by": f"hessfig run {' '.join(kind.settings)} task.seed=1 to {kind.num_batches}",
    }
    return rows.reset_index().assign(**facts)[COLUMNS]


def cube(curve: pd.DataFrame) -> np.ndarray:
    """Return the logs of one curve as an array (batch, seed, sigma)."""
    sizes = [curve[name].nunique() for name in ("batch", "seed", "sigma")]
    ordered = curve.sort_values(["batch", "seed", "sigma"])["value"].to_numpy()
    return np.asarray(np.log(ordered).reshape(sizes))


def spread(logs: np.ndarray) -> tuple[float, float]:
    """Return the batches' standard deviation of a curve (noisy points count less) and of the point that moves most."""
    noise = own_answers(logs)
    weight = 1 / (noise + np.median(noise))
    curve = (logs @ (weight / weight.sum()))[:, :, None]
    return float(batch_sd(curve)[0]), float(batch_sd(logs).max())


def batch_sd(logs: np.ndarray) -> np.ndarray:
    """Return, for every sigma, the standard deviation of what a batch does to all networks alike (0 if none shows)."""
    variance = logs.mean(axis=1).var(axis=0, ddof=1) - own_answers(logs) / logs.shape[1]
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))


def own_answers(logs: np.ndarray) -> np.ndarray:
    """Return, for every sigma, the variance of one network's own answer to a batch (two-way layout)."""
    rest = logs - logs.mean(axis=0) - logs.mean(axis=1, keepdims=True) + logs.mean(axis=(0, 1))
    return np.asarray((rest**2).sum(axis=(0, 1)) / ((logs.shape[0] - 1) * (logs.shape[1] - 1)))


if __name__ == "__main__":
    main()
