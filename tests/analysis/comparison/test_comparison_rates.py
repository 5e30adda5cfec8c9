"""How often a comparison is wrong: equals that differ, and errors of 25 % that are not found.

Networks are drawn with the spread measured for Figure 3a: over seeds a point has a log sd of 0.2 to 0.3, most of it its
own (embeddings are redrawn at every sigma), the rest a seed's along sigma; parts of one weight share most of it.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.comparison import against
from hessfig.analysis.comparison.against import Comparison
from hessfig.analysis.comparison.agreement import AgreementVerdict, Batches
from hessfig.analysis.comparison.references import Reference
from hessfig.predictions.architecture import Architecture
from hessfig.record import COLUMNS

# Of each curve, the log sd of what is its own at a point, beside what the parts of a weight share.
OWN = {("W_V", "H_o"): 0.0, ("W_V", "H"): 0.0, ("W_Q", "H_o"): 0.2, ("W_Q", "H_f"): 0.05, ("W_Q", "H"): 0.05}
SHARED, ALONG_SIGMA = 0.18, 0.05
SIGMA = np.logspace(-2, 1, 20)
ONE_BATCH, TWO_BATCHES = (Batches({("", 1): Architecture()}, scale=scale) for scale in (0.0, 2.0))


def networks(count: int, generator: np.random.Generator, batches: Batches = ONE_BATCH) -> pd.DataFrame:
    """Return a table of `count` networks on one of two batches, which lie apart as on record."""
    size = (count, SIGMA.size)
    shared = {
        block: generator.normal(0, ALONG_SIGMA, (count, 1)) + generator.normal(0, SHARED, size)
        for block in ("W_V", "W_Q")
    }
    places = pd.MultiIndex.from_product([range(count), SIGMA], names=["seed", "sigma"])
    curves = []
    for (block, part), own in OWN.items():
        moved = generator.normal(0, batches.spread(1, block, part).curve / np.sqrt(2))
        logs = 2 * np.log(SIGMA) + shared[block] + generator.normal(0, 1, size) * own + moved
        curve = pd.DataFrame({"value": np.exp(logs).ravel()}, index=places).reset_index()
        curves.append(curve.assign(row=block, col=block, part=part))
    facts = {"sweep": "sigma", "variant": "", "num_layers": 1, "layer": 1, "row_layer": 1, "status": "ok"}
    more = {"quantity": "frobenius", "index": 0, "step": np.nan}
    return pd.concat(curves).assign(**facts, **more).reindex(columns=COLUMNS)


def judged(ours: pd.DataFrame, theirs: pd.DataFrame, batches: Batches) -> Comparison:
    values = theirs.rename(columns={"row": "block", "seed": "repeat"})
    names = ["num_layers", "block", "part", "layer", "repeat", "sigma", "value"]
    return against.compare(ours, Reference(values[names]), batches)


def agreeing(ours: int, theirs: int, batches: Batches, of: int = 100) -> int:
    """Return how many of these many comparisons of equals agree."""
    generator = np.random.default_rng(100 * ours + theirs)
    found = (
        judged(networks(ours, generator, batches), networks(theirs, generator, batches), batches) for _ in range(of)
    )
    return sum(comparison.verdict == AgreementVerdict.agrees for comparison in found)


@pytest.mark.long
def test_three_seeds_agree_with_twenty() -> None:
    assert agreeing(3, 20, ONE_BATCH, of=30) >= 28


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), [(3, 20), (10, 10), (4, 20), (20, 20), (2, 20)])
def test_equals_on_one_batch_agree(ours: int, theirs: int) -> None:
    assert agreeing(ours, theirs, ONE_BATCH) >= 95


@pytest.mark.slow
@pytest.mark.parametrize(("ours", "theirs"), [(3, 20), (4, 20), (20, 20)])
def test_equals_on_two_batches_agree(ours: int, theirs: int) -> None:
    assert agreeing(ours, theirs, TWO_BATCHES) >= 95


def finding(block: str, part: str, factor: float, *, of: int) -> int:
    """Return how many of these many comparisons of 3 seeds with 20, on two batches, find a factor in one curve."""
    generator = np.random.default_rng(5)
    found = 0
    for _ in range(of):
        ours = networks(3, generator, TWO_BATCHES)
        wrong = (ours["row"] == block) & (ours["part"] == part)
        ours["value"] *= np.where(wrong, factor, 1.0)
        found += judged(ours, networks(20, generator, TWO_BATCHES), TWO_BATCHES).verdict == AgreementVerdict.differs
    return found


@pytest.mark.long
def test_an_error_of_a_quarter_in_one_curve_is_found_with_three_seeds() -> None:
    assert finding("W_Q", "H_f", 1.25, of=20) >= 19


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1.25, 0.75])
@pytest.mark.parametrize(("block", "part"), OWN)
def test_an_error_of_a_quarter_is_found_in_every_curve(block: str, part: str, factor: float) -> None:
    assert finding(block, part, factor, of=20) >= 18
