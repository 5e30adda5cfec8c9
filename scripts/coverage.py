"""How often Hutchinson's 95 % interval holds the exact value: compares two tables of one sweep, number by number.

Intervals are those of the package (`probe_interval`): Student's t with one degree of freedom less than there are
test vectors, symmetric as factors.

hessfig run sweep=sigma estimator=exact output_dir=exact
hessfig run sweep=sigma estimator=aligned estimator.num_probes=4 output_dir=probed
python scripts/coverage.py exact/sigma/table.csv probed/sigma/table.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd

from hessfig.analysis.intervals import probe_interval

NUMBER = ["variant", "num_layers", "layer", "row", "col", "part", "sigma", "seed"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exact", type=Path)
    parser.add_argument("probed", type=Path)
    arguments = parser.parse_args()
    numbers = paired(pd.read_csv(arguments.exact), pd.read_csv(arguments.probed))
    print(coverage(numbers).to_string())


def paired(exact: pd.DataFrame, probed: pd.DataFrame) -> pd.DataFrame:
    """Return the probed numbers that are not zero next to the exact ones, with their error in standard errors."""
    both = probed[probed["value"] > 0].merge(exact, on=NUMBER, suffixes=("", "_exact"), validate="1:1")
    error = both["value"] - both["value_exact"]
    both = both[both["error"] > 0]  # what `auto` found exactly has no interval
    found = [
        probe_interval(*numbers)
        for numbers in zip(both["value"], both["error"], both["num_probes"].astype(int), strict=True)
    ]
    inside = [one.low <= exact <= one.high for one, exact in zip(found, both["value_exact"], strict=True)]
    return both.assign(relative=error / both["value_exact"], inside=inside)


def coverage(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return a row per block and part, number of probes, and one for all: numbers, coverage, bias and errors."""
    groups = {f"{row} {part}": group for (row, part), group in numbers.groupby(["row", "part"], sort=False)}
    groups |= {f"{probes} probes": group for probes, group in numbers.groupby("num_probes")}
    return pd.DataFrame({name: _summary(group) for name, group in (*groups.items(), ("all", numbers))}).T


def _summary(group: pd.DataFrame) -> dict[str, float]:
    inside = group["inside"]
    return {
        "numbers": len(group),
        "coverage %": round(100 * inside.mean(), 2),
        "its standard error %": round(100 * (inside.mean() * (1 - inside.mean()) / len(group)) ** 0.5, 2),
        "bias %": round(100 * group["relative"].mean(), 2),
        "rms error %": round(100 * group["relative"].pow(2).mean() ** 0.5, 2),
        "stated error %": round(100 * (group["error"] / group["value"]).pow(2).mean() ** 0.5, 2),
    }


if __name__ == "__main__":
    main()
