"""Judge every claim from tables in which nothing is there, and count how often its rule holds all the same.

    python scripts/claim_nulls.py FOLDER               # measure the miniature sweeps in FOLDER, then print the shares
    python scripts/claim_nulls.py FOLDER --tables 200  # so many null tables for every rule (200)
    python scripts/claim_nulls.py FOLDER --seconds 60  # fewer where a rule computes for longer; the line says so
    python scripts/claim_nulls.py FOLDER --write       # and write the shares into docs/claim-nulls.csv
                                                       # (with --only, lines of other claims stay as they are)

A null table is one that `hessfig run` wrote (every variant, block, part, quantity and place as in the claim's own sweep
at miniature size), repeated for the number of seeds of the record, with other values: `constant` (the same for all, 5 %
noise), `noise` (independent draws, a factor of e), `trend` (one power of sigma, k or the step for all, noise), `apart`
(a power for each block) and `factor` (a power that the rule divides out). Which of them are nulls of a claim is in
NULLS.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import beta
from toy_sweeps import read_alone, toy

from hessfig.analysis.axis import with_settings
from hessfig.analysis.claims.judges import FULL, ClaimVerdict
from hessfig.analysis.claims.ledger import all_claims
from hessfig.analysis.claims.rule import Claim, Evidence, evidence_in
from hessfig.record import TABLE

FILE = Path(__file__).parents[1] / "docs" / "claim-nulls.csv"
HEADS = ("claim", "null_tables", "held", "share_95_percent")
HELD = {*FULL, ClaimVerdict.holds_only_if}
EVERY = ("constant", "noise", "trend")
# What is equal, or no larger than something, is so where nothing is there: other tables are the nulls of such claims.
NULLS: dict[str, tuple[str, ...]] = {
    "heterogeneity-turned: removed": ("apart",),
    "single-matrix": ("absent",),
    "dispersed": ("factor",),
}
# Claims of several statements, each of which is judged by itself; their lines are named `claim: part`.
PARTS: dict[str, tuple[str, ...]] = {
    "layers": ("lower", "steeper", "law", "exact"),
    "heads": ("entries", "norm"),
    "heterogeneity-gap": ("raised", "own", "lowered", "removed", "needed"),
    "heterogeneity-turned": ("turned", "removed", "raised"),
}
LEVELS = {"constant": 0.05, "noise": 1.0, "trend": 0.1, "apart": 0.1, "absent": 0.1, "factor": 0.1}
FIXED = ("num_parameters",)
SHARES = ("share_negative", "zero_share", "accuracy")
SIGMAS = {"grid.values": "[0.02,0.05,0.1,1.0,2.0,5.0]"}
STEPS = {
    **{"state.step": "[0,1,3,10,30,100]", "training.steps": 100, "training.evaluation_size": 8},
    **{"training.warmup": 1, "training.batch_size": 4},
}
Values = NDArray[np.float64]

SHORT: dict[str, object] = {"state.step": "[0,1,3]", "training.steps": 3, "grid.values": "[0.1]"}
# What rules need besides: two halves of sizes. Sweeps of many learning rates: few steps.
BESIDE: dict[str, dict[str, object]] = {
    "model_size_width": {"sweep.vary": "{model.d_model: [4, 6, 8, 10, 12]}"},
    "centring_training": SHORT,
    "along_updates": {**SHORT, "task.length": 8},
}


def main() -> None:
    """Measure what is missing, then print or write the shares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    chosen = [one for one in all_claims().values() if not options.only or one.id in options.only]
    for sweep in dict.fromkeys(sweep for one in chosen for sweep in one.sweeps):
        if not (options.folder / sweep / TABLE).is_file():
            print(f"{sweep}: {measured(sweep, options.folder)}", flush=True)
    for one in chosen:
        for line in lines_of(one):
            row = row_of(one, line, evidence_of(one, options.folder), options.tables, options.seconds)
            print(" | ".join(row), flush=True)
            if options.write:
                write(row)


def write(row: tuple[str, ...]) -> None:
    """Put a claim's share into the file, in the place that the ledger gives it."""
    before = {line[0]: line for line in csv.reader(FILE.read_text().splitlines())}
    lines = before | {row[0]: list(row)}
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [name for one in all_claims().values() for name in lines_of(one) if name in lines]
        writer.writerows([HEADS, *(lines[name] for name in names)])


def lines_of(claim: Claim) -> list[str]:
    """Return the names of a claim's lines: its own, or those of its parts."""
    return [f"{claim.id}: {part}" for part in PARTS.get(claim.id, ())] or [claim.id]


def measured(sweep: str, outputs: Path) -> object:
    """Run a sweep of the ledger at miniature size; return the exit code."""
    from hessfig.cli.main import main as hessfig

    words = [f"{key}={value}" for key, value in miniature(sweep).items()]
    try:
        hessfig(["run", f"sweep={sweep}", f"output_dir={outputs}", "workers=1", *words])
    except SystemExit as ended:
        return ended.code
    return 0


def miniature(sweep: str) -> dict[str, object]:
    """Return the settings of a sweep of seconds in which its rules find their numbers."""
    settings = toy(sweep)
    if "state.step" in settings:
        settings |= {key: value for key, value in STEPS.items() if key in settings}
    elif "task.digits" in settings:
        settings |= SIGMAS
    return read_alone(sweep, settings | BESIDE.get(sweep, {}))


def evidence_of(claim: Claim, outputs: Path) -> Evidence:
    """Return the evidence of a claim in a folder of sweeps."""
    beside = {sweep: evidence_in(outputs / sweep) for sweep in claim.beside}
    return replace(evidence_in(outputs / claim.sweep), beside=beside)


def row_of(claim: Claim, line: str, evidence: Evidence, tables: int, seconds: float = math.inf) -> tuple[str, ...]:
    """Return the name of a line of a claim, its null tables, how many of them its rule held on, and their share."""
    kinds = NULLS.get(line, EVERY)
    evidence, held = of_seeds(claim, evidence), list[bool]()
    until = time.process_time() + seconds
    while len(held) < tables and time.process_time() < until:
        held.append(held_on(claim, line, evidence, kinds[len(held) % len(kinds)], len(held)))
    return line, f"{len(held)} ({', '.join(kinds)})", str(sum(held)), share(sum(held), len(held))


def share(held: int, tables: int) -> str:
    """Return a share in per cent with its exact binomial 95 % interval."""
    low = beta.ppf(0.025, held, tables - held + 1) if held else 0.0
    high = beta.ppf(0.975, held + 1, tables - held) if held < tables else 1.0
    return f"{100 * held / tables:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def of_seeds(claim: Claim, evidence: Evidence) -> Evidence:
    """Return the evidence of the first seed as that of as many seeds as the record fixes, read once."""
    found = {
        sweep: _repeated(one, seeds)
        for (sweep, one), seeds in zip({claim.sweep: evidence, **evidence.beside}.items(), claim.seeds, strict=True)
    }
    return replace(found.pop(claim.sweep), beside=found)


def _repeated(evidence: Evidence, seeds: int) -> Evidence:
    first = evidence.table["seed"].min()
    table = evidence.table[evidence.table["seed"] == first]
    hessians = cache(lambda: [one for one in evidence.hessians() if one.seed == first])
    return replace(
        evidence,
        table=pd.concat([table.assign(seed=seed) for seed in range(seeds)], ignore_index=True),
        hessians=lambda: (replace(one, seed=seed) for one in hessians() for seed in range(seeds)),
    )


def held_on(claim: Claim, line: str, evidence: Evidence, kind: str, draw: int) -> bool:
    """Return whether a rule holds, under some condition at least, on one null table made of evidence `of_seeds`."""
    finding = claim.rule(null_of(claim, evidence, kind, draw))
    verdicts = {claim.id: finding.verdict} | {f"{claim.id}: {row.name}": row.counted for row in finding.rows}
    return verdicts[line] in HELD


def null_of(claim: Claim, evidence: Evidence, kind: str, draw: int) -> Evidence:
    """Return the evidence of a claim with values in which nothing is there."""
    random = np.random.default_rng([draw, *map(ord, claim.id + kind)])
    power = float(random.uniform(1.0, 4.0))
    found = {
        sweep: _without_effect(one, kind, power, random)
        for sweep, one in {claim.sweep: evidence, **evidence.beside}.items()
    }
    return replace(found.pop(claim.sweep), beside=found)


def _without_effect(evidence: Evidence, kind: str, power: float, random: np.random.Generator) -> Evidence:
    return replace(
        evidence,
        table=evidence.table.assign(value=_values(evidence.table, kind, power, random), status="ok"),
        hessians=lambda: (
            replace(one, matrix=random.normal(size=one.matrix.shape).astype(np.float32)) for one in evidence.hessians()
        ),
    )


def _values(table: pd.DataFrame, kind: str, power: float, random: np.random.Generator) -> Values:
    """Return values of a kind of null for every row; signs, shares and counts stay what they are."""
    x = _places(table) ** (0.0 if kind in ("constant", "noise") else 1.0)
    powers: Values = np.full(len(table), power)
    if kind == "apart":
        groups = table.groupby(["row", "col", "variant"], dropna=False).ngroup().to_numpy()
        powers = random.uniform(1.0, 4.0, groups.max() + 1)[groups]
    sizes = x**powers * np.exp(LEVELS[kind] * random.normal(size=len(table))) * _common(table, random)
    if kind == "factor":
        sizes /= np.where(table["row"] == "W_Q", _temperatures(table) ** 2, 1.0)
    if kind == "absent":
        sizes = np.where(table["part"].isin(["H_f", "H_fT"]), 1e-6 * sizes, sizes)
    old = table["value"].to_numpy(float)
    bounded = np.clip(0.5 + 0.02 * np.log(sizes), 0.0, 1.0)
    found = np.where(table["quantity"].isin(SHARES), bounded, np.where(old < 0, -sizes, sizes))
    return np.where(table["quantity"].isin(FIXED), old, found)


def _places(table: pd.DataFrame) -> Values:
    """Return sigma or the step of every row, whichever the table is along."""
    steps = table["step"] + 1
    return steps.fillna(table["sigma"]).fillna(1.0).to_numpy(float)


def _temperatures(table: pd.DataFrame) -> Values:
    return pd.to_numeric(with_settings(table, "model.temperature", default="1")["model.temperature"]).to_numpy(float)


def _common(table: pd.DataFrame, random: np.random.Generator) -> Values:
    """Return a factor for each seed, as networks of one seed share weights."""
    found: Values = np.exp(0.2 * random.normal(size=int(table["seed"].max()) + 1))[table["seed"].to_numpy(int)]
    return found


if __name__ == "__main__":
    main()
