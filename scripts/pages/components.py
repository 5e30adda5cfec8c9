"""Write the tables of predicted growth rates by component, to which docs/studies/components.md links.

    python scripts/pages/components.py             # without measured slopes
    python scripts/pages/components.py outputs     # with the slopes.csv that `hessfig slopes` left

A test compares the part without measured numbers.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from hessfig.analysis.axis import settings_of
from hessfig.api.predicted import predicted_rows as rows
from hessfig.config.compose.job import compose

REGIMES = ("sqrt(eps) < sigma < 1", "sigma -> 0")  # what the sweep's small sigmas are, the first that a network has
FOLDER = Path(__file__).parents[2] / "docs" / "studies"
TABLES = {sweep: FOLDER / f"exponents_{sweep}.csv" for sweep in ("components", "components_norms")}
NEAR = 0.1
Slopes = dict[tuple[str, str, str, str], str]


def predicted(sweep: str, found: Slopes | None = None) -> list[list[str]]:
    """Return a line per network and part, a column per block: the predicted exponent, and the slope where there is one.

    The exponents are those of the sweep's small sigmas; after a comma those of sigma -> infinity, where the sweep goes
    there and they differ.
    """
    lines: dict[tuple[str, str], dict[str, str]] = {}
    every = list(rows(compose([f"sweep={sweep}"])))
    for row in every:
        block = row["row"] if row["row"] == row["col"] else f"{row['row']}, {row['col']}"
        lines.setdefault((row["variant"], row["part"]), {}).setdefault(block, _cell(every, row, found or {}))
    blocks = list(next(iter(lines.values())))
    body = [[name_of(v), part, *(cells.get(block, "") for block in blocks)] for (v, part), cells in lines.items()]
    return [["network", "part", *blocks], *body]


def _cell(every: list[dict[str, str]], row: dict[str, str], found: Slopes) -> str:
    """Return what is predicted of a block and part at small and at large sigma, and its slope."""
    keys = ("variant", "row", "col", "part")
    same = {one["regime"]: one for one in every if all(one[key] == row[key] for key in keys)}
    eps = settings_of(row["variant"]).get("model.norm_eps")
    regimes = REGIMES[::-1] if eps and float(eps) >= 1 else REGIMES
    small = next((same[name] for name in regimes if name in same), row)
    large = small if eps else same.get("sigma -> infinity", small)
    ends = list(dict.fromkeys(_shown(one) for one in (small, large)))
    slope = found.get((row["variant"], row["row"], row["col"], row["part"]), "")
    return ", ".join(ends) + f" ({slope})" * bool(slope)


def _shown(row: dict[str, str]) -> str:
    return "= 0" if row["zero"] == "true" else row["exponent"] or "?"


def measured(path: Path) -> Slopes:
    """Return the fitted slopes on the first window of slopes.csv, with their errors."""
    slopes: Slopes = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = (row["variant"], row["row"], row["col"], row["part"])
            text = f"{float(row['slope']):.2f} ± {float(row['slope_se'] or 'nan'):.2f}" if row["slope"] else ""
            slopes.setdefault(key, text)
    return slopes


def counted(path: Path) -> str:
    """Return how many slopes of the first window are near their prediction, and by how much the others are off."""
    off: dict[tuple[str, ...], float] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            key = tuple(row[name] for name in ("variant", "row", "col", "part"))
            if row["predicted"] and row["slope"]:
                off.setdefault(key, abs(float(row["slope"]) - float(row["predicted"])))
    near, most = sum(one <= NEAR for one in off.values()), max(off.values())
    found = f"Of {len(off)} predicted slopes {near} are within {NEAR} of the prediction"
    return f"{found}; the largest deviation is {most:.2f}."


def name_of(variant: str) -> str:
    """Return what a network changes; the base changes nothing."""
    return ", ".join(f"{key}={value.lower()}" for key, value in settings_of(variant).items()) or "base"


def main() -> None:
    """Write the table of every sweep, the first with measured slopes, where a folder of results has them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", type=Path, nargs="?", help="the folder of measured sweeps")
    outputs = parser.parse_args().outputs
    for sweep, path in TABLES.items():
        slopes = outputs / sweep / "slopes.csv" if outputs else None
        has_slopes = slopes is not None and slopes.exists()
        found = measured(slopes) if slopes and has_slopes and sweep == "components" else None
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(predicted(sweep, found))
        print(path, counted(slopes) if slopes and has_slopes else "")


if __name__ == "__main__":
    main()
