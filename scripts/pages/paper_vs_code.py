"""Measure what each reading of the paper changes: ratios of curves, other reading over ours, for docs/paper-vs-code.md.

Runs `hessfig run` for ours and for the other reading on the same networks (same seeds and sigmas), so the ratios are
paired, and prints a table. Finished runs are reused. About ten minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

BLOCK = ["num_layers", "layer", "row", "part"]


@dataclass(frozen=True)
class Reading:
    """One difference: the sweep it shows in, what both runs share, and the overrides of the other reading."""

    name: str
    sweep: str
    shared: tuple[str, ...]
    others: tuple[tuple[str, ...], ...]


SIGMA = ("grid.values=[0.01,0.1,0.3,1,3]", "seeds=20")
LAYERNORM = ("grid.values=[0.03,0.3,3]", "seeds=8")
CHAIN = ("grid.values=[0.1,0.3,1]", "seeds=10", "model.n_layers=2")
OTHER_BATCHES = tuple((f"task.seed={seed}",) for seed in range(1, 9))
READINGS = [
    Reading("scored", "sigma", SIGMA, (("task.scored=all",),)),
    Reading("embeddings", "sigma", SIGMA, (("model.sigma_scales=tokens",),)),
    Reading("loss", "softmax", CHAIN, (("task.loss=mse",),)),
    Reading("shipped_mlp_1", "softmax", (*CHAIN[:2], "model.n_layers=1"), (("model.mlp=relu",),)),
    Reading("shipped_mlp_2", "softmax", CHAIN, (("model.mlp=relu",),)),
    Reading("batch", "sigma", SIGMA, OTHER_BATCHES),
    Reading("batch_layernorm", "layernorm", LAYERNORM, OTHER_BATCHES),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("outputs/readings"))
    parser.add_argument("--only", nargs="*", choices=[reading.name for reading in READINGS])
    arguments = parser.parse_args()
    for reading in READINGS:
        if not arguments.only or reading.name in arguments.only:
            print(f"\n## {reading.name}: {describe(reading)}\n")
            print(summary(reading, arguments.output).to_string(index=False), flush=True)


def describe(reading: Reading) -> str:
    """Return the overrides of the runs compared."""
    others = " | ".join(" ".join(other) for other in reading.others)
    return f"sweep={reading.sweep} {' '.join(reading.shared)}; other: {others}"


def summary(reading: Reading, output: Path) -> pd.DataFrame:
    """Return per block the ratio of the mean curves (other / ours) over sigma and, where there are several, batches."""
    ours = curves(measured(reading, (), output))
    ratios = pd.concat([curves(measured(reading, other, output)) / ours for other in reading.others])
    summary = ratios.groupby(level=BLOCK, sort=False).agg(["min", "mean", "max", "std"])
    return summary.map(lambda value: f"{value:.3g}").reset_index()


def measured(reading: Reading, other: tuple[str, ...], output: Path) -> pd.DataFrame:
    """Run one side and return its table."""
    folder = output / "_".join([reading.name, *(word.replace("=", "-") for word in other)])
    hessfig = str(Path(sys.executable).with_name("hessfig"))
    command = [hessfig, "run", f"sweep={reading.sweep}"]
    subprocess.run([*command, *reading.shared, *other, f"output_dir={folder}"], check=True, stdout=sys.stderr)
    return pd.read_csv(folder / reading.sweep / "table.csv")


def curves(table: pd.DataFrame) -> pd.Series:
    """Return the mean over seeds of the diagonal blocks' norms by block, part and sigma."""
    kept = table[(table["row"] == table["col"]) & (table["status"] == "ok")]
    return kept.groupby([*BLOCK, "sigma"], sort=False)["value"].mean()


if __name__ == "__main__":
    main()
