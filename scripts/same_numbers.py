"""Compare two outputs folders number by number: the largest relative difference, and what only one of them has.

Run it on the outputs of two versions of hessfig, the older one's columns `frob` and `frob_sem` included:

    python scripts/same_numbers.py old/outputs new/outputs [SWEEP ...]

Prints a line per sweep, and one for the stored arrays and one for the pictures, which are compared byte by byte; exits
with 1 when something differs or is missing.
"""

from __future__ import annotations

import argparse
import csv
import math
from pathlib import Path

NUMBER = (
    *("variant", "num_layers", "layer", "row_layer", "row", "col", "part"),
    *("quantity", "index", "sigma", "step", "seed"),
)
FILES = {"arrays": "*/cells/*/*.npz", "pictures": "figures/*.png"}
Numbers = dict[tuple[str, ...], tuple[float, float, str]]


def main() -> None:
    """Compare every sweep that both folders hold, or those named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("sweeps", nargs="*")
    options = parser.parse_args()
    sweeps = options.sweeps or sorted(path.parent.name for path in options.old.glob("*/table.csv"))
    sound = [report(sweep, options.old / sweep, options.new / sweep) for sweep in sweeps]
    if not options.sweeps:
        sound += [report_files(what, options.old, options.new) for what in FILES]
    raise SystemExit(0 if sound and all(sound) else 1)


def report(sweep: str, old: Path, new: Path) -> bool:
    """Print how far the numbers of one sweep are apart; return whether they are the same."""
    before, after = read(old / "table.csv"), read(new / "table.csv")
    shared = before.keys() & after.keys()
    values = max((distance(before[key][0], after[key][0]) for key in shared), default=math.nan)
    errors = max((distance(before[key][1], after[key][1]) for key in shared), default=math.nan)
    statuses = sum(before[key][2] != after[key][2] for key in shared)
    alone = len(before.keys() ^ after.keys())
    print(
        f"{sweep}: {len(shared)} numbers; largest difference {values:g} of a value, {errors:g} of an error; "
        f"{statuses} statuses differ; {alone} numbers in one table only"
    )
    return bool(shared) and values == errors == 0 and not statuses and not alone


def report_files(what: str, old: Path, new: Path) -> bool:
    """Print which files of a kind are not the same in both folders; return whether all are."""
    names = sorted({path.relative_to(root) for root in (old, new) for path in root.glob(FILES[what])})
    alone = [name for name in names if not ((old / name).exists() and (new / name).exists())]
    other = [name for name in names if name not in alone and (old / name).read_bytes() != (new / name).read_bytes()]
    print(f"{what}: {len(names)} files; {len(other)} differ; {len(alone)} in one folder only")
    for name in (*other, *alone):
        print(f"  {name}")
    return not other and not alone


def read(path: Path) -> Numbers:
    """Return value, error and status of every number of a table, old or new."""
    with path.open(newline="") as handle:
        return {tuple(row.get(name, "") for name in NUMBER): _number(row) for row in csv.DictReader(handle)}


def distance(one: float, other: float) -> float:
    """Return the relative difference; 0 for the same bits, two NaNs or equal infinities."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    return abs(one - other) / max(abs(one), abs(other))


def _number(row: dict[str, str]) -> tuple[float, float, str]:
    value, error = row.get("value", row.get("frob", "")), row.get("error", row.get("frob_sem", ""))
    return float(value or "nan"), float(error or "nan"), row["status"]


if __name__ == "__main__":
    main()
