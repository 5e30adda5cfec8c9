"""Simulate how often rules reach each verdict where an effect has the least size that matters, or twice that.

    python scripts/claim_power.py              # heterogeneity-gap at the noise of its pilots, 200 tables per size
    python scripts/claim_power.py --noise 0.01 # at another standard deviation of log10 of a loss
    python scripts/claim_power.py --refuted    # each line of docs/claim-rules.md that does not hold, at its noise
    python scripts/claim_power.py --write      # and write these lines into docs/claim-power.csv

A table of heterogeneity-gap has the networks, optimisers, rates and seeds of the sweep centring_training. In it, every
part of the claim has the same true size: none, the least one that matters, and its doubles; log10 of a loss has
independent noise for each training. Pilots (seeds 2001 to 2003, six pairs of network and optimiser) had standard
deviations of 0.001 to 0.003. Of a refuted line, seeds are drawn with the standard deviation that its printed interval
implies for the number of its seeds; lines of several effects without a printed interval are left out.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hessfig.analysis.claims import core_rules, effects, judges
from hessfig.analysis.claims.judges import ClaimVerdict, Judge
from hessfig.analysis.claims.rule import Evidence
from hessfig.analysis.intervals import deviate, student_interval
from hessfig.record import COLUMNS
from hessfig.studies.components.rules import LEAST_BEHIND, gap

SIZES = (0.0, LEAST_BEHIND, 2 * LEAST_BEHIND, 4 * LEAST_BEHIND)
PARTS = ("raised", "own", "lowered", "removed", "needed")
NETWORKS = {
    "softmax": "",
    "centred 0.9": "model.centring=0.9",
    "centred 1": "model.centring=1.0",
    "rescaled": "model.scaled_weight=query_key,model.weight_scale=0.1,model.temperature=0.01",
    "frozen": "model.scaled_weight=query_key,model.weight_scale=100000.0,model.temperature=10000000000.0",
}
OPTIMISERS = {
    "sgd": "training.optimiser=sgd",
    "sgd, momentum": "training.optimiser=sgd,training.momentum=0.9",
    "adamw": "training.optimiser=adamw",
    "muon": "training.optimiser=muon,training.momentum=0.95",
}
RATES = (0.0147, 0.0215, 0.0316, 0.0464, 0.0681)
PAGE, FILE = (Path(__file__).parents[1] / "docs" / name for name in ("claim-rules.md", "claim-power.csv"))
HEADS = ("line", "least size", "seeds", "standard deviation", "refuted at the least size", "refuted at twice that")
# The judge of each refuted line whose interval is printed: its least size, and how far the least effect is from it.
REFUTED: dict[str, tuple[Judge, float, float]] = {
    "wide-key": (judges.at_least(effects.LEAST_DECADES), 0.0, effects.LEAST_DECADES),
    "layers: exact": (judges.near(1, core_rules.RELATIVE), 1.0, 0.0),
    "heads: norm": (judges.at_least(effects.LEAST_SHARE), 0.0, effects.LEAST_SHARE),
    "dispersed: dispersed: dominates": (judges.at_least(effects.LEAST_DECADES), 0.0, effects.LEAST_DECADES),
}
_DRAWS, _COLUMNS = 2_000, 8  # samples of seeds for each line; columns of the table of verdicts
_BEND = 0.02  # decades of the loss that a sixth of a decade of the rate costs, squared
_LAG = 0.1  # of SGD behind AdamW with softmax


def main() -> None:
    """Print the share of each verdict by size and part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, default=0.003)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--refuted", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.refuted or options.write:
        lines = [HEADS, *map(power, REFUTED)]
        print("\n".join(map(" | ".join, lines)))
        if options.write:
            with FILE.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(lines)
        return
    for size in SIZES:
        found = {part: Counter[str]() for part in PARTS}
        for draw in range(options.tables):
            rows = gap.judged(Evidence(trainings(dict.fromkeys(PARTS, size), noise=options.noise, draw=draw))).rows
            for row in rows:
                if not row.level:
                    found[row.name][row.word] += 1
        for part, words in found.items():
            print(f"{size:g} {part}:", ", ".join(f"{word} {n / options.tables:.1%}" for word, n in words.most_common()))


def power(line: str) -> tuple[str, ...]:
    """Return how often the rule refutes a line with a true effect of the least size, and of twice that."""
    judge, target, least = REFUTED[line]
    low, high, seeds = printed(line)
    spread = (high - low) / 2 / deviate(seeds - 1) * seeds**0.5
    random = np.random.default_rng(list(map(ord, line)))
    shares = [_refuted(judge, target + k * least + spread * random.normal(size=(_DRAWS, seeds))) for k in (1, 2)]
    words = f"{least:g}" if least else "none: equal to 1"
    return line, words, str(seeds), f"{spread:.2g}", *(f"{share:.1%}" for share in shares)


def _refuted(judge: Judge, draws: np.ndarray) -> float:
    found = [judge(student_interval(sample)) for sample in draws]
    return found.count(ClaimVerdict.does_not_hold) / len(found)


def printed(line: str) -> tuple[float, float, int]:
    """Return the interval and the number of seeds that the page prints for a line."""
    text, (claim, _, part) = PAGE.read_text(), line.partition(": ")
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines() if row.startswith("|")]
    whole = next(row for row in cells if row[0] == claim and len(row) == _COLUMNS)
    own = next((row for row in cells if row[0] == claim and row[1] == part), whole) if part else whole
    interval = next(cell for cell in own if cell.startswith("["))
    low, high = map(float, re.findall(r"-?[\d.e-]+", interval))
    return low, high, int(re.findall(r"\d+", whole[-1])[-1])


def trainings(
    sizes: Mapping[str, float], *, noise: float, draw: int, seeds: int = 10, best: int = 2, diverges_from: int = 9
) -> pd.DataFrame:
    """Return a table of losses in which the parts of the claim have these sizes, in decades of the loss.

    `best` is the place of the best rate; from the place `diverges_from` on, runs have no last loss.
    """
    random = np.random.default_rng([draw, *(int(1e6 * (1 + size)) for size in sizes.values())])
    rows = list(_rows(sizes, noise, random, range(seeds), best, diverges_from))
    return pd.DataFrame(rows).reindex(columns=COLUMNS).assign(row="", col="", part="", quantity="held_out_loss")


def _rows(
    sizes: Mapping[str, float], noise: float, random: np.random.Generator, seeds: range, best: int, diverges_from: int
) -> Iterator[dict[str, Any]]:
    for network, words in NETWORKS.items():
        for optimiser, chosen in OPTIMISERS.items():
            if optimiser == "muon" and network in ("rescaled", "frozen"):
                continue
            for place, rate in enumerate(RATES):
                variant = ",".join(filter(None, [words, chosen, f"training.learning_rate={rate}"]))
                for seed in seeds:
                    here = {"variant": variant, "seed": seed, "status": "ok"}
                    yield {**here, "step": 0.0, "value": 4.6}
                    log = _log_loss(network, optimiser, sizes) + _BEND * (place - best) ** 2 + noise * random.normal()
                    if place < diverges_from:
                        yield {**here, "step": 600.0, "value": 2.0 * 10**log}


def _log_loss(network: str, optimiser: str, sizes: Mapping[str, float]) -> float:
    """Return log10 of a loss over that of AdamW with softmax."""
    is_sgd = optimiser.startswith("sgd")
    by_adamw = {"frozen": sizes["needed"], "rescaled": sizes["raised"] - sizes["own"]}.get(network, 0.0)
    less = {"rescaled": "raised", "centred 0.9": "lowered", "centred 1": "removed"}.get(network, "")
    return by_adamw + is_sgd * (_LAG - sizes.get(less, 0.0))


if __name__ == "__main__":
    main()
