"""Rules of claims about approximations: which is nearest to which block, and what that says of a race."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.rule import Evidence, claim, in_logs, wide
from hessfig.analysis.intervals import fisher_interval
from hessfig.terms import Approximation, Part

KIND, ATTENTION = "model.kind", "model.attention"
OPTIMISER, CURVATURE = "training.optimiser", "training.curvature"
LEAST_NEARER = 0.05  # decades: 12 %
LEAST_CORRELATION, FEWEST = 0.5, 4  # optimisers of a rank correlation
OTHERS = ("adam_expected", "adam_mini", "empirical_fisher", "muon", "shampoo", "kfac", "kfac_reduce")
# The approximation that each optimiser of a race divides by.
RACERS = {name: name for name in ("kfac", "ekfac", "shampoo", "soap", "muon", "adam_mini")} | {
    "adam": "adam_expected",
    "adamw": "adam_expected",
}


@claim(
    *("nearest-approximation", "hessfig", "approximations"),
    here="one layer with softmax, d_model 16, untrained, 5 seeds",
)
def nearest(evidence: Evidence) -> judges.Finding:
    """Claim: of the approximations that optimisers compute from gradients, EK-FAC is the nearest to every block.

    By weight of the transformer with softmax, seed by seed, of H, averaged over sigma <= 1: the effect is log10 of the
    error after the best scalar of the nearest of adam_expected, adam_mini, empirical_fisher, muon, shampoo, kfac and
    kfac_reduce over that of ekfac. For a block the claim holds when the interval is above 0 and the mean at least 0.05
    decades, and does not when the interval is below 0.05.
    """
    errors = {name: _by_block(evidence, name) for name in ("ekfac", *OTHERS)}
    own, rest = errors.pop("ekfac"), [one for one in errors.values() if len(one)]
    if own.empty or not rest:
        return judges.missing("scale errors of ekfac and of other approximations with softmax")
    more = (pd.concat(rest, axis=1).min(axis=1) - own).dropna()
    samples = {str(row): one for row, one in more.groupby("row")}
    return judges.by_conditions(judges.each(samples, judges.at_least(LEAST_NEARER)), note="every block")


@claim(
    *("error-explains-race", "hessfig", "approximations_after", "race"),
    figure="race",
    here="d_model 16, addition: errors with an MLP on batches of Adam's training, race without, full batch",
)
def explains(evidence: Evidence) -> judges.Finding:
    """Claim: the nearer an optimiser's approximation is to the Hessian's blocks, the better its place in a race.

    The effect is Spearman's correlation over optimisers, by seed of the race: of the mean over blocks, steps and seeds
    of log10 of the error after the best scalar (part H, softmax), with log10 of the loss at the last step at the rate
    or damping, of those that reach it with every seed, whose mean log10 loss is smallest. At least four optimisers that
    divide by an approximation are needed. The claim holds when the interval by Fisher's z is above 0 and the mean at
    least 0.5, and does not when the interval is below 0.5.
    """
    errors = {name: float(_by_block(evidence, of).mean()) for name, of in RACERS.items() if of in _measured(evidence)}
    losses = _tuned(evidence.other("race"))
    common = [name for name in errors if name in losses.columns]
    if len(common) < FEWEST:
        return judges.missing(f"losses of {FEWEST} optimisers ({', '.join(RACERS)}) next to the errors of theirs")
    ranks = pd.Series({name: errors[name] for name in common}).rank()
    sample = [float(ranks.corr(one.rank())) for _, one in losses[common].dropna().iterrows()]
    return judges.single(judges.Effect(sample, judges.at_least(LEAST_CORRELATION), fisher_interval))


def _measured(evidence: Evidence) -> set[str]:
    there = set(evidence.table["quantity"])
    return {name.value for name in Approximation if f"{name}_scale_error" in there}


def _by_block(evidence: Evidence, name: str) -> pd.Series:
    """Return the mean of log10 of the error after the best scalar, by (weight, seed), of transformers with softmax."""
    rows = evidence.numbers(f"{name}_scale_error", KIND, ATTENTION, part=Part.H.value)
    rows = rows[rows[KIND].isin(["transformer", ""]) & rows[ATTENTION].isin(["softmax", ""]) & ~(rows["sigma"] > 1)]
    return in_logs(rows).groupby(["row", "seed"])["value"].mean()


def _tuned(race: Evidence) -> pd.DataFrame:
    """Return log10 of the last loss by seed, one column per optimiser, each at its best learning rate or damping."""
    rows = race.at_step(-1).numbers("loss", OPTIMISER, CURVATURE)
    plain = in_logs(rows[rows[CURVATURE].isin(["none", ""])]) if len(rows) else rows
    found = {}
    for name, one in plain.groupby(OPTIMISER):
        logs = wide(one.groupby(["seed", "variant"])["value"].mean(), "variant").dropna(axis=1)
        if len(logs.columns):
            found[name] = logs[logs.mean().idxmin()]
    return pd.DataFrame(found).replace([np.inf, -np.inf], np.nan)


APPROXIMATIONS = (nearest, explains)
