"""Rules of claims about trained encoders: an ALBERT and a BERT of masked tokens, next to random weights."""

from itertools import pairwise

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges, rule
from hessfig.analysis.claims.rule import Evidence, claim, norms
from hessfig.terms import Part

PATH, RANDOM = "model.path", "model.random"
LEAST_DECADES = 0.1  # a quarter more
LEAST_FAR = 0.5  # decades: a factor of three, for "much less"
_ATTENTION, _FFN = ("W_Q", "W_K", "W_V", "W_O"), ("W_in", "W_out")
_GROUPS = {
    "embeddings": ("W_E+W_U",),
    "query and key": ("W_Q", "W_K"),
    "feed-forward": _FFN,
    "value and output": ("W_V", "W_O"),
    "norms": ("norms",),
}
_FAR = ("query and key", "norms")  # the steps that the source calls "much less" end there
_SCOPE = "in these two networks: the intervals are over draws of test vectors, not over a population of networks"


@claim("values-largest-encoders")
def values_largest(evidence: Evidence) -> judges.Finding:
    """Claim: in trained encoders too the value block is the largest of the attention's blocks.

    Log10 of the Frobenius norm of the full Hessian's (V, V) block over the largest of those of (Q, Q), (K, K) and (O,
    O), averaged over layers, one number per seed; for each network, trained and with random weights. Under a condition
    the claim holds when the interval is above 0 and the mean at least 0.1 decades, and does not when the interval is
    below 0.1. Seeds of trained weights are draws of probes: the interval is that of this one network. The effect is
    that of the first condition that holds, else the largest.
    """
    return _judged(evidence, ("W_V",), _ATTENTION)


@claim("keys-values-encoders")
def keys_values(evidence: Evidence) -> judges.Finding:
    """Claim: in trained encoders too keys and values have the highest Hessian norms among the weights of a layer.

    Log10 of the smaller of the norms of the full Hessian's key and value blocks over the largest of those of the other
    weights of a layer, averaged over layers, one number per seed; for each network, trained and with random weights.
    Under a condition the claim holds when the interval is above 0 and the mean at least 0.1 decades, and does not when
    the interval is below 0.1. Seeds of trained weights are draws of probes. The effect is that of the first condition
    that holds, else the largest.
    """
    return _judged(evidence, ("W_K", "W_V"), (*_ATTENTION, *_FFN))


@claim("block-order-encoders")
def order(evidence: Evidence) -> judges.Finding:
    """Claim: trained encoders have the order embeddings << query and key < feed-forward < value and output << norms.

    The sharpness of a group is the trace of its blocks of the full Hessian over all layers by the number of their
    parameters, one number per seed; the tied embedding counts in both roles. Each step of the order is log10 of the
    later over the earlier; for a trained network the claim holds when every interval is above 0 with a mean of at least
    0.1 decades (0.5 for "much less"), and does not when one is below that. The effect is the first step.
    """
    sizes = {name: np.log10(one.where(one > 0)) for name, one in _sharpness(evidence).items()}
    whole = {name: one for name, one in sizes.items() if set(_GROUPS) <= set(one.columns) and "trained" in name}
    if not whole:
        return judges.missing("traces and numbers of parameters of every group of a trained network")
    conditions = {
        name: {
            f"{after} over {before}": judges.Effect(
                one[after] - one[before], judges.at_least(LEAST_FAR if after in _FAR else LEAST_DECADES)
            )
            for before, after in pairwise(_GROUPS)
        }
        for name, one in whole.items()
    }
    found = "; ".join(f"{name}: {' < '.join(one.mean().sort_values().index)}" for name, one in whole.items())
    return judges.by_conditions(conditions, note=found)


def _judged(evidence: Evidence, ours: tuple[str, ...], among: tuple[str, ...]) -> judges.Finding:
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
    return judges.by_conditions(judges.each(samples, judges.at_least(LEAST_DECADES)), note=_SCOPE)


def _networks(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of every network with its words: the folder's name, and whether its weights are trained."""
    found = []
    for (path, random), one in rows.groupby([PATH, RANDOM], sort=True):
        state = "random weights" if random.lower() == "true" else "trained"
        found.append((f"{path.rpartition('/')[2] or 'network'}, {state}", one))
    return found


def _sharpness(evidence: Evidence) -> dict[str, pd.DataFrame]:
    """Return the mean diagonal entry of every group by network, one row per seed."""
    traces = dict(_networks(evidence.numbers("trace", PATH, RANDOM, part=Part.H.value)))
    counts = dict(_networks(evidence.numbers("num_parameters", PATH, RANDOM)))
    found = {}
    for name in traces.keys() & counts.keys():
        sums, sizes = (
            one.groupby(["seed", "row"])["value"].sum().unstack("row")  # noqa: PD010 - one value a place
            for one in (traces[name], counts[name])
        )
        groups = {group: list(rows) for group, rows in _GROUPS.items() if {*rows} <= {*sums.columns} & {*sizes.columns}}
        found[name] = pd.DataFrame(
            {key: sums[rows].sum(axis=1) / sizes[rows].sum(axis=1) for key, rows in groups.items()}
        )
    return found
