"""Rules of claims about sublayers, of encoders too: the largest blocks, how weights couple, the order of groups."""

import operator
from collections.abc import Iterable
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd

from hessfig.analysis.arrays import StoredHessian
from hessfig.analysis.claims import judges, rule
from hessfig.analysis.claims.rule import Evidence, claim, norms, wide
from hessfig.terms import Part

AFTER, BEFORE, ADDITION = "vision transformer, trained", "vision transformer, untrained", "addition, trained"
LEAST_DECADES = 0.1  # a quarter more
EARLY = 0.1  # of the training
LEAST_FAR = 0.5  # decades: a factor of three, for "much less"
MOST_RATIO = 0.5  # across over within
_SAME_SIZE = ("W_Q", "W_K", "W_O")
_ATTENTION, _FFN = ("W_Q", "W_K", "W_V", "W_O"), ("W_in", "W_out")
_GROUPS = {
    "embeddings": ("W_E", "W_patch", "b_patch", "W_pos"),
    "query and key": ("W_Q", "W_K"),
    "feed-forward": _FFN,
    "value and output": ("W_V", "W_O"),
    "norms": ("ln1_gain", "ln1_shift", "ln2_gain", "ln2_shift", "ln_out_gain", "ln_out_shift"),
}
_FAR = ("query and key", "norms")  # the steps that the source calls "much less" end there


@claim("values-trained")
def values_trained(evidence: Evidence) -> judges.Finding:
    """Claim: after training the (V, V) block is the largest of the attention's query, key and value blocks.

    At the last step, seed by seed: log10 of the Frobenius norm of the full Hessian's (V, V) block over the larger of
    those of (Q, Q) and (K, K), which are of the same size, averaged over layers; for the vision transformer, of which
    the source speaks, and second for the transformer trained on addition. For a network the claim holds when the
    interval is above 0 and the mean at least 0.1 decades, and does not when the interval is below 0.1. The effect is
    that of the vision transformer.
    """
    ends = {AFTER: evidence.at_step(-1), ADDITION: evidence.other("curvature_flow").at_step(-1)}
    samples = _values_over({name: _norms(one) for name, one in ends.items()})
    if lacking := [name for name in ends if name not in samples]:
        return judges.missing(f"norms of the blocks of W_Q, W_K and W_V after a training: {', '.join(lacking)}")
    return judges.by_conditions(judges.each(samples, judges.at_least(LEAST_DECADES)), shown=AFTER)


@claim("values-largest")
def values_largest(evidence: Evidence) -> judges.Finding:
    """Claim: the value block has the largest entries among the attention's blocks.

    Seed by seed, after and before training: log10 of the 99 % quantile of |entries| of the full Hessian's (V, V) block
    over the largest of those of (Q, Q), (K, K) and (O, O). Under a condition the claim holds when the interval is above
    0 and the mean at least 0.1 decades, and does not when the interval is below 0.1. The effect is that after training.
    """
    found = {AFTER: _largest_entries(evidence.at_step(-1)), BEFORE: _largest_entries(evidence.at_step(0))}
    samples = _values_over({name: one for name, one in found.items() if len(one)}, _SAME_SIZE)
    if not samples:
        return judges.missing("stored Hessians with the blocks of W_Q, W_K, W_V and W_O (quantities=[hessian])")
    return judges.by_conditions(judges.each(samples, judges.at_least(LEAST_DECADES)), shown=next(iter(samples)))


@claim("keys-values-highest")
def keys_values(evidence: Evidence) -> judges.Finding:
    """Claim: keys and values have the highest Hessian norms among the parameter groups of a vision transformer.

    Seed by seed, after and before training: log10 of the smaller of the norms of the full Hessian's key and value
    blocks over the largest of those of every other block within the layer. Under a condition the claim holds when the
    interval is above 0 and the mean at least 0.1 decades, and does not when the interval is below 0.1. The effect is
    that after training.
    """
    samples = {}
    for name, one in {AFTER: evidence.at_step(-1), BEFORE: evidence.at_step(0)}.items():
        sizes = _norms(one)
        others = [column for column in sizes.columns if column not in ("W_K", "W_V")]
        if {"W_K", "W_V", "W_Q"} <= set(sizes.columns):
            samples[name] = np.log10(sizes[["W_K", "W_V"]].min(axis=1) / sizes[others].max(axis=1))
    if not samples:
        return judges.missing("norms of the blocks of a layer at steps of a training")
    conditions = judges.each(samples, judges.at_least(LEAST_DECADES))
    return judges.by_conditions(conditions, shown=next(iter(samples))).saying("at this scale, width 16")


@claim("block-independence")
def coupling(evidence: Evidence) -> judges.Finding:
    """Claim: attention and feed-forward curvature are relatively independent.

    The coupling of two weights is ||H(a, b)||_F / sqrt(||H(a, a)||_F ||H(b, b)||_F). The effect is the ratio of the
    mean coupling across (an attention weight with a feed-forward weight) to that within the two groups (pairs of
    different weights), seed by seed. At a sigma (and step, where there are several) the claim holds when the interval
    of the ratio is below 1/2; it holds by less than the factor asked for when the interval is below 1 and above 1/2;
    and it does not hold when the interval is above 1/2 and reaches 1. At small sigma couplings of W_Q and W_K with all
    others are small because their own blocks are.
    """
    ratios = {place: _across_over_within(rows) for place, rows in _at_places(norms(evidence))}
    samples = {place: one for place, one in ratios.items() if len(one)}
    if not samples:
        return judges.missing("norms of every pair of attention and feed-forward weights")
    return judges.by_conditions(judges.each(samples, partial(judges.stays_below, most=MOST_RATIO, nothing=1.0)))


@claim("block-independence-trained")
def coupling_trained(evidence: Evidence) -> judges.Finding:
    """Claim: attention and feed-forward curvature are relatively independent, after a training too.

    The effect and its rule are those of block-independence, at the last step of the training: it holds when the
    interval of the ratio is below 1/2, by less than the factor asked for between 1/2 and 1, and does not hold when it
    is above 1/2 and reaches 1.
    """
    return coupling.rule(evidence.at_step(-1))


@claim("block-order")
def order(evidence: Evidence) -> judges.Finding:
    """Claim: sharpness by group, from early in training on: embeddings << query and key < feed-forward < value and
    output << norms.

    The sharpness of a group of weights is the trace of its block of the full Hessian over its number of parameters, in
    the language model at the first measured step from a tenth of its training on, and at the last, seed by seed. Each
    step of the order (embeddings much less than query and key, less than feed-forward, less than value and output, much
    less than norms) is log10 of the later over the earlier. At a step of the training the claim holds when every
    interval is above 0 with a mean of at least 0.1 decades (0.5 for "much less"), and does not when one is below
    that. The effect is the smallest step of the order at the end. Each step of the order at the end is reported with a
    verdict of its own, and so is the order in the vision transformer.
    """
    steps = [step for step in evidence.steps() if step >= EARLY * max(evidence.steps())]
    tables = {f"step {step:g}": _traces(evidence.of_step(step)) for step in sorted({*steps[:1], *steps[-1:]})}
    logs = {name: np.log10(one.where(one > 0)) for name, one in tables.items() if set(_GROUPS) <= set(one.columns)}
    if not logs:
        return judges.missing("traces and numbers of parameters of all groups of weights along a training")
    of = {name: _rises(one) for name, one in logs.items()}
    last = list(of)[-1]
    least = judges.largest(of[last], operator.neg)
    finding = judges.by_conditions(of, {name: parts[least] for name, parts in of.items()}, last)
    apart = [f"{name}: {one.verdict()}" for name, one in of[last].items()]
    seen = {last: logs[last], "vision transformer": _seen(evidence.other("sublayers"))}
    told = [f"{name}: {' < '.join(one.mean().sort_values().index)}" for name, one in seen.items() if len(one)]
    return finding.saying(f"smallest: {least}", *apart, *told)


def _rises(logs: pd.DataFrame) -> judges.Effects:
    """Return the steps of the order of groups, log10 of the later over the earlier."""
    least = {name: LEAST_FAR if name in _FAR else LEAST_DECADES for name in _GROUPS}
    return {
        f"{after} over {before}": judges.Effect(logs[after] - logs[before], judges.at_least(least[after]))
        for before, after in pairwise(_GROUPS)
    }


def _traces(evidence: Evidence) -> pd.DataFrame:
    """Return the trace over the number of parameters of every group, one row per seed."""
    sums = []
    for quantity, part in (("trace", {"part": Part.H.value}), ("num_parameters", {})):
        rows = rule.diagonal(evidence.numbers(quantity, **part))
        groups = {member: name for name, members in _GROUPS.items() for member in (*members, name)}
        known = rows.assign(group=rows["row"].map(groups)).dropna(subset="group")
        sums.append(known.groupby(["seed", "group"])["value"].sum())
    return wide((sums[0] / sums[1]).dropna(), "group") if len(sums[0]) else pd.DataFrame()


def _seen(evidence: Evidence) -> pd.DataFrame:
    """Return log10 of the sharpness of every group in stored Hessians at the last step, where there are any."""
    table = _sharpness(evidence.hessians(), evidence.steps()[-1:])
    return np.log10(table.where(table > 0)) if len(table) else table


def _values_over(networks: dict[str, pd.DataFrame], others: tuple[str, ...] = _SAME_SIZE[:2]) -> dict[str, pd.Series]:
    """Return log10 of the size of (V, V) over the largest of the others by network, one number per seed."""
    return {
        name: np.log10(sizes["W_V"] / sizes[list(others)].max(axis=1)).dropna()
        for name, sizes in networks.items()
        if {"W_V", *others} <= set(sizes.columns)
    }


def _largest_entries(evidence: Evidence) -> pd.DataFrame:
    """Return the 99 % quantile of |entries| of every weight's block of stored Hessians, one row per seed."""
    found = {
        one.seed: {name: float(np.quantile(np.abs(one.block(name)), 0.99)) for name in _ATTENTION if name in one.names}
        for one in evidence.hessians()
    }
    return pd.DataFrame.from_dict(found, orient="index")


def _at_places(rows: pd.DataFrame) -> Iterable[tuple[str, pd.DataFrame]]:
    """Yield the rows within layers at every sigma and step, with their words."""
    inside = rows[rows["row_layer"] == rows["layer"]]
    for (sigma, step), one in inside.groupby(["sigma", "step"], dropna=False):
        yield f"sigma = {sigma:g}" + (f", step = {step:g}" if step == step else ""), one


def _across_over_within(rows: pd.DataFrame) -> pd.Series:
    """Return the mean coupling across groups over that within them, by seed."""
    sides = {**dict.fromkeys(_ATTENTION, "attention"), **dict.fromkeys(_FFN, "mlp")}
    known = rows[rows["row"].isin(sides) & rows["col"].isin(sides)]
    own = known[known["row"] == known["col"]].set_index(["seed", "layer", "row"])["value"]
    pairs = known[known["row"] != known["col"]]
    if own.empty or pairs.empty:
        return pd.Series(dtype=float)
    sizes = [pairs.set_index(["seed", "layer", name]).index.map(own).to_numpy(float) for name in ("row", "col")]
    coupling = pairs.assign(
        strength=pairs["value"] / np.sqrt(sizes[0] * sizes[1]),
        across=pairs["row"].map(sides) != pairs["col"].map(sides),
    )
    means = wide(coupling.groupby(["seed", "across"])["strength"].mean(), "across")
    return (means[True] / means[False]).dropna() if {True, False} <= set(means.columns) else pd.Series(dtype=float)


def _norms(evidence: Evidence) -> pd.DataFrame:
    """Return the norm of every diagonal block of a layer, averaged over layers in its logarithm: one row per seed."""
    rows = rule.diagonal(norms(evidence))
    logs = rule.in_logs(rows[rows["layer"] > 0], np.log)
    return np.exp(logs.pivot_table(index="seed", columns="row", values="value"))


def _sharpness(hessians: Iterable[StoredHessian], steps: list[float]) -> pd.DataFrame:
    """Return the mean diagonal entry of every group, one row per seed; all states count where there are no steps."""
    found: dict[int, dict[str, float]] = {}
    for hessian in hessians:
        if not steps or hessian.step in steps:
            owners = np.repeat(hessian.names, hessian.sizes)
            diagonal = np.diag(hessian.matrix).astype(float)
            kept = {name: diagonal[np.isin(owners, members)] for name, members in _GROUPS.items()}
            found[hessian.seed] = {name: float(one.mean()) for name, one in kept.items() if one.size}
    return pd.DataFrame.from_dict(found, orient="index")


PATH, RANDOM = "model.path", "model.random"
_OF_ENCODERS = {
    "embeddings": ("W_E+W_U",),
    "query and key": ("W_Q", "W_K"),
    "feed-forward": _FFN,
    "value and output": ("W_V", "W_O"),
    "norms": ("norms",),
}
_SCOPE = "in these two networks: the intervals are over draws of test vectors, not over a population of networks"


@claim("values-largest-encoders")
def encoder_values(evidence: Evidence) -> judges.Finding:
    """Claim: in trained encoders too the value block is the largest of the attention's blocks.

    Log10 of the Frobenius norm of the full Hessian's (V, V) block over the largest of those of (Q, Q), (K, K) and (O,
    O), averaged over layers, one number per seed; for each network, trained and with random weights. Under a condition
    the claim holds when the interval is above 0 and the mean at least 0.1 decades, and does not when the interval is
    below 0.1. Seeds of trained weights are draws of probes: the interval is that of this one network. The effect is
    that of the first condition that holds, else the largest.
    """
    return _smallest_over(evidence, ("W_V",), _ATTENTION)


@claim("keys-values-encoders")
def encoder_keys_values(evidence: Evidence) -> judges.Finding:
    """Claim: in trained encoders too keys and values have the highest Hessian norms among the weights of a layer.

    Log10 of the smaller of the norms of the full Hessian's key and value blocks over the largest of those of the other
    weights of a layer, averaged over layers, one number per seed; for each network, trained and with random weights.
    Under a condition the claim holds when the interval is above 0 and the mean at least 0.1 decades, and does not when
    the interval is below 0.1. Seeds of trained weights are draws of probes. The effect is that of the first condition
    that holds, else the largest.
    """
    return _smallest_over(evidence, ("W_K", "W_V"), (*_ATTENTION, *_FFN))


@claim("block-order-encoders")
def encoder_order(evidence: Evidence) -> judges.Finding:
    """Claim: trained encoders have the order embeddings << query and key < feed-forward < value and output << norms.

    The sharpness of a group is the trace of its blocks of the full Hessian over all layers by the number of their
    parameters, one number per seed; the tied embedding counts in both roles. Each step of the order is log10 of the
    later over the earlier; for a trained network the claim holds when every interval is above 0 with a mean of at least
    0.1 decades (0.5 for "much less"), and does not when one is below that. The effect is the first step.
    """
    sizes = {name: np.log10(one.where(one > 0)) for name, one in _mean_entries(evidence).items()}
    whole = {name: one for name, one in sizes.items() if set(_OF_ENCODERS) <= set(one.columns) and "trained" in name}
    if not whole:
        return judges.missing("traces and numbers of parameters of every group of a trained network")
    found = "; ".join(f"{name}: {' < '.join(one.mean().sort_values().index)}" for name, one in whole.items())
    return judges.by_conditions({name: _rises(one) for name, one in whole.items()}).saying(found)


def _smallest_over(evidence: Evidence, ours: tuple[str, ...], among: tuple[str, ...]) -> judges.Finding:
    """Return the finding on log10 of the smallest norm of `ours` over the largest of the others `among` the weights."""
    others = [name for name in among if name not in ours]
    samples = {}
    for name, rows in _networks(rule.diagonal(norms(evidence, PATH, RANDOM))):
        logs = rule.in_logs(rows).pivot_table(index=["layer", "seed"], columns="row", values="value")
        whole = logs if set(among) <= set(logs.columns) else logs.iloc[:0].reindex(columns=list(among))
        each = whole[list(ours)].min(axis=1) - whole[others].max(axis=1)
        samples[name] = each.groupby(level="seed").mean()
    if not any(len(one) for one in samples.values()):
        return judges.missing("norms of the blocks of a layer's weights")
    return judges.by_conditions(judges.each(samples, judges.at_least(LEAST_DECADES))).saying(_SCOPE)


def _networks(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of every network with its words: the folder's name, and whether its weights are trained."""
    found = []
    for (path, random), one in rows.groupby([PATH, RANDOM], sort=True):
        state = "random weights" if random.lower() == "true" else "trained"
        found.append((f"{path.rpartition('/')[2] or 'network'}, {state}", one))
    return found


def _mean_entries(evidence: Evidence) -> dict[str, pd.DataFrame]:
    """Return the mean diagonal entry of every group by network, one row per seed."""
    traces = dict(_networks(evidence.numbers("trace", PATH, RANDOM, part=Part.H.value)))
    counts = dict(_networks(evidence.numbers("num_parameters", PATH, RANDOM)))
    found = {}
    for name in traces.keys() & counts.keys():
        both = [wide(one.groupby(["seed", "row"])["value"].sum(), "row") for one in (traces[name], counts[name])]
        known = {*both[0].columns} & {*both[1].columns}
        groups = {group: list(rows) for group, rows in _OF_ENCODERS.items() if {*rows} <= known}
        sums, sizes = ({key: one[rows].sum(axis=1) for key, rows in groups.items()} for one in both)
        found[name] = pd.DataFrame(sums) / pd.DataFrame(sizes)
    return found
