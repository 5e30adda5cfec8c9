"""Rules about components: how they change the gap of exponents, and whether the ratio of two blocks hampers SGD."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hessfig.analysis.axis import with_settings
from hessfig.analysis.claims import judges
from hessfig.analysis.claims.effects import LEAST_GAP, SMALL, diagonal_rows, gaps, in_logs, norms
from hessfig.analysis.claims.rule import Evidence, claim
from hessfig.analysis.training_runs import MOMENTUM, OPTIMISER, RATE, tuned_rates

REMOVED = ("model.attention=linear", "model.norm=pre", "model.norm=sandwich")
TURNED = ("model.scores=qk_norm", "model.scores=cosine")
RAISED = ("model.attention=sigmoid", "model.attention=sparsemax", "model.norm=post")
_RAISED_BY = 0.5
CENTRING, SCALE = "model.centring", "model.weight_scale"
LEAST_BEHIND = 0.01  # decades of the held-out loss, or 2.3 %
SOFTMAX, RESCALED, FROZEN = "softmax", "rescaled", "frozen"
CENTRED = ("centred 0.9", "centred 1")
ADAMW, SGD, MOMENTUM_SGD, MUON = "adamw", "sgd", "sgd, momentum", "muon"
_BEHIND = (SGD, MOMENTUM_SGD)  # the optimisers of the claim
_PLACE = ["network", "optimiser", "seed"]


@claim("heterogeneity-turned")
def turned(evidence: Evidence) -> judges.Finding:
    """Claim: normalised queries and keys turn the heterogeneity of value and query blocks round, linear attention and
    norms before or around sublayers remove it, and sigmoid, sparsemax and post-norm raise it.

    Three statements, each with a verdict, about the gap: the exponent of ||H(Q, Q)||_F in sigma minus that of
    ||H(V, V)||_F, sigma <= 0.1, seed by seed. (turned) with scores of normalised queries and keys it lies within
    0.25 of -1. (removed) with linear attention, pre- and sandwich norm it lies within 0.25 of 0. (raised) with
    sigmoid attention without bias, sparsemax and post-norm it exceeds that of the base network of the same seed by at
    least 0.5. A statement holds when the intervals of all its networks do, and does not when one is on the other side;
    the claim holds when all three do. The effect is that of the first network.
    """
    return judges.in_parts(
        {
            "turned": _of_variants(evidence, TURNED, judges.near(-1, LEAST_GAP)),
            "removed": _of_variants(evidence, REMOVED, judges.near(0, LEAST_GAP)),
            "raised": _of_variants(evidence, RAISED, judges.at_least(_RAISED_BY), less=""),
        }
    )


def _of_variants(
    evidence: Evidence, variants: tuple[str, ...], judge: judges.Judge, *, less: str | None = None
) -> judges.Finding:
    """Judge the gaps of exponents of some variants, each minus that of another of the same seed if one is named."""
    by_variant = gaps(norms(evidence), "variant", window=SMALL)
    known = dict(list(by_variant.groupby(level="variant"))) if len(by_variant) else {}
    if not {*variants, *([] if less is None else [less])} <= set(known):
        return judges.missing(f"norms of the blocks of W_Q and W_V for {', '.join(variants)} and the base")
    of = {name: gap.droplevel("variant") for name, gap in known.items()}
    samples = {name: of[name] if less is None else (of[name] - of[less]).dropna() for name in variants}
    return judges.together(judges.effects_by_name(samples, judge))


@claim("heterogeneity-gap")
def gap(evidence: Evidence) -> judges.Finding:
    """Claim: SGD is behind AdamW because query blocks are flatter than value blocks, and less so where they are closer.

    A network's lag is log10 of SGD's held-out loss over AdamW's after equally many updates, each at the rate whose loss
    is least in the mean of the other seeds; a network for which one is an end of the grid is missing. Five statements,
    each of SGD and of SGD with momentum, and each about differences of at least 0.01 decades of the loss, seed by seed.
    (raised) The lag of softmax is larger than with W_Q and W_K a tenth as large at temperature 0.01: the same function,
    with query and key blocks 100 times as large. (own) SGD's own loss is smaller there. (lowered) The lag of softmax is
    larger than that of softmax centred with lambda = 0.9, whose value block is 100 times as small. (removed) It is
    larger than with lambda = 1, without a constant. (needed) Freezing W_Q and W_K costs AdamW as much: otherwise the
    losses do not depend on these weights. The claim holds when all five do, and 'only if' names those that do. The
    effect is that of the first.
    """
    losses = tuned_losses(evidence)
    lags = {optimiser: behind(losses, optimiser) for optimiser in _BEHIND}
    own = {optimiser: _of(losses, optimiser) for optimiser in _BEHIND}
    parts = {"raised": (lags, RESCALED), "own": (own, RESCALED)}
    parts |= {word: (lags, network) for word, network in zip(("lowered", "removed"), CENTRED, strict=True)}
    findings = {word: _falls(values, network) for word, (values, network) in parts.items()}
    ratios = log_ratios(evidence).groupby("network").mean()
    words = ", ".join(f"{network} {decades:.1f}" for network, decades in ratios.items())
    finding = judges.in_parts(findings | {"needed": _of_freezing(_of(losses, ADAMW))})
    return finding.saying(f"log10 of the untrained ratio: {words}" if words else "")


def _falls(values: dict[str, pd.Series], network: str) -> judges.Finding:
    """Judge by how much a value is smaller for a network than for softmax, by optimiser."""
    samples = {optimiser: difference(one, SOFTMAX, network) for optimiser, one in values.items()}
    if not all(map(len, samples.values())):
        return judges.missing(f"losses of softmax and {network} at rates inside the grid")
    return judges.together(judges.effects_by_name(samples, judges.at_least(LEAST_BEHIND)))


def _of_freezing(losses: pd.Series) -> judges.Finding:
    sample = difference(losses, FROZEN, SOFTMAX)
    if not len(sample):
        return judges.missing("losses of frozen and trained queries and keys at rates inside the grid")
    return judges.single(judges.Effect(sample, judges.at_least(LEAST_BEHIND)))


def difference(values: pd.Series, network: str, other: str) -> pd.Series:
    """Return the values of a network minus those of another one, seed by seed; empty where one has none."""
    known = values.index.get_level_values("network")
    if not {network, other} <= set(known):
        return pd.Series(dtype=float)
    return (values[network] - values[other]).dropna()


def behind(losses: pd.Series, optimiser: str) -> pd.Series:
    """Return log10 of an optimiser's tuned loss over AdamW's, by network and seed."""
    return (_of(losses, optimiser) - _of(losses, ADAMW)).dropna()


def _of(losses: pd.Series, optimiser: str) -> pd.Series:
    return losses[losses.index.get_level_values("optimiser") == optimiser].droplevel("optimiser")


def tuned_losses(evidence: Evidence) -> pd.Series:
    """Return log10 of the last held-out loss at the tuned rate by network, optimiser and seed; none at its ends.

    A rate at which every run diverged counts as tried if the table has any of its steps.
    """
    rows = _named(evidence.numbers("held_out_loss", CENTRING, SCALE, OPTIMISER, MOMENTUM, RATE))
    last = rows[rows["step"] == rows["step"].max()]
    losses = last.pivot_table(index=[*_PLACE[:2], "rate"], columns="seed", values="value")
    tried = _rates(evidence.table)
    numbers = {
        (*place, seed): loss
        for place, own in losses.groupby(level=_PLACE[:2])
        for seed, loss in _at_tuned_rate(own.droplevel(_PLACE[:2]).reindex(tried[place])).items()
    }
    index = (
        pd.MultiIndex.from_tuples(list(numbers), names=_PLACE)
        if numbers
        else pd.MultiIndex.from_arrays([[]] * 3, names=_PLACE)
    )
    return pd.Series(list(numbers.values()), index=index, dtype=float)


def _rates(table: pd.DataFrame) -> dict[tuple[str, str], list[float]]:
    """Return the rates that were tried by network and optimiser, those at which every run diverged included."""
    runs = _named(with_settings(table, CENTRING, SCALE, OPTIMISER, MOMENTUM, RATE))
    return {place: sorted(own["rate"].unique()) for place, own in runs.groupby(_PLACE[:2])}


def _at_tuned_rate(losses: pd.DataFrame) -> dict[int, float]:
    """Return log10 of the loss at the tuned rate by seed, if that is inside the grid; inf for runs that diverged."""
    losses = losses.fillna(np.inf)
    rates = tuned_rates(losses)
    inside = rates[(rates > losses.index.min()) & (rates < losses.index.max())]
    return {seed: float(np.log10(losses.loc[rate, seed])) for seed, rate in inside.items()}


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with `network`, `optimiser` (with its momentum in words) and `rate`."""
    networks = [_network(*words) for words in zip(rows[CENTRING], rows[SCALE], strict=True)]
    optimisers = [
        MOMENTUM_SGD if rule == SGD and momentum else rule
        for rule, momentum in zip(rows[OPTIMISER], rows[MOMENTUM], strict=True)
    ]
    rate = pd.to_numeric(rows[RATE], errors="coerce")
    return rows.assign(network=networks, optimiser=optimisers, rate=rate)


def _network(centring: str, scale: str) -> str:
    if scale:
        return RESCALED if float(scale) < 1 else FROZEN
    return f"centred {float(centring):g}" if centring else SOFTMAX


def log_ratios(evidence: Evidence) -> pd.Series:
    """Return log10 of the untrained ||H(Q, Q)|| / ||H(V, V)|| by network and seed, from the sweep centring_initial."""
    rows = norms(evidence.other("centring_initial"), CENTRING, SCALE)
    networks = [_network(*words) for words in zip(rows[CENTRING], rows[SCALE], strict=True)]
    logs = in_logs(diagonal_rows(rows.assign(network=networks)))
    query, value = (logs[logs["row"] == name].groupby(["network", "seed"])["value"].mean() for name in ("W_Q", "W_V"))
    return (query - value).dropna()
