"""Claims that set transformers beside MLPs: heterogeneity of blocks, and the Gauss-Newton part as a proxy."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hessfig.analysis.arrays.spectra import Place
from hessfig.analysis.claims.evidence import Evidence
from hessfig.analysis.claims.rule import Claim, Finding, exceeds, found, missing
from hessfig.analysis.interval import difference_interval
from hessfig.analysis.spectra.heterogeneity import is_weight, pair_distances
from hessfig.analysis.variants import assignments
from hessfig.terms import Part

KIND, ATTENTION = "model.kind", "model.attention"
TRANSFORMER, MLP = "transformer", "mlp"
LEAST_DISTANCE = 0.02  # of ln 2 = 0.69
LEAST_MISFIT = 0.05  # in natural logarithms: 5 %
_PAIR = [KIND, ATTENTION, "sigma", "seed"]


def heterogeneity(evidence: Evidence) -> Finding:
    """The effect is the mean over seeds of JS^0 (the average Jensen-Shannon distance between the spectra of the
    full Hessian's blocks) of transformers less that of MLPs, with Welch's interval; it holds when the interval is
    above 0 and the effect at least 0.02, and does not when the interval is below 0.02.

    Sigmas and several variants of one kind are averaged within a seed.
    """

    def wanted(place: Place) -> bool:
        return is_weight(place) and place.part == Part.H

    _, every = pair_distances(evidence.spectra(wanted))
    every = every.assign(kind=[assignments(variant).get(KIND, "") for variant in every["variant"]])
    one, other = (_by_seed(every[every["kind"] == kind], "average") for kind in (TRANSFORMER, MLP))
    if one.empty or other.empty:
        return missing(f"spectra of {KIND}={TRANSFORMER} and {KIND}={MLP}")
    interval = difference_interval(one, other)
    return found(interval, exceeds(interval, LEAST_DISTANCE), _means(one, other))


def proxy(evidence: Evidence) -> Finding:
    """The misfit of the proxy is |log(largest eigenvalue of H_o / largest eigenvalue of H)| of the whole network,
    averaged over all sigmas of a seed; the effect is its mean over seeds for transformers with softmax less that for
    MLPs, with Welch's interval; it holds when the interval is above 0 and the effect at least 0.05 (5 %), and does
    not when the interval is below 0.05.

    A pair of which one eigenvalue is not positive has no misfit and is left out.
    """
    rows = evidence.numbers("largest_eigenvalue", KIND, ATTENTION, row="all")
    rows = rows[rows["index"] <= 1]
    wide = rows.pivot_table(index=_PAIR, columns="part", values="value", dropna=False)
    if not {Part.H, Part.H_o} <= set(wide.columns):
        return missing("largest eigenvalues of H_o and H of the whole network")
    with np.errstate(divide="ignore", invalid="ignore"):
        misfits = np.abs(np.log(wide[Part.H_o] / wide[Part.H])).rename("misfit").reset_index()
    is_transformer = (misfits[KIND] == TRANSFORMER) & misfits[ATTENTION].isin(["softmax", ""])
    is_mlp = (misfits[KIND] == MLP) & (misfits[ATTENTION].isin(["softmax", ""]))
    one, other = (_by_seed(misfits[chosen], "misfit") for chosen in (is_transformer, is_mlp))
    if one.empty or other.empty:
        return missing(f"eigenvalues of {KIND}={TRANSFORMER} and {KIND}={MLP}")
    interval = difference_interval(one, other)
    return found(interval, exceeds(interval, LEAST_MISFIT), _means(one, other))


def _by_seed(rows: pd.DataFrame, name: str) -> pd.Series:
    """Return the mean of the finite numbers of each seed."""
    finite = rows[np.isfinite(rows[name])]
    return finite.groupby("seed")[name].mean()


def _means(one: pd.Series, other: pd.Series) -> str:
    return (
        f"{TRANSFORMER} {one.mean():.3g} ({len(one)} seeds), {MLP.upper()} {other.mean():.3g} ({len(other)})"
    )


CLAIMS = (
    Claim(
        "zhang-heterogeneity",
        "arXiv 2402.16788",
        "untrained, the spectra of a transformer's blocks differ more from each other than those of an MLP's",
        sweep="heterogeneity",
        figure="heterogeneity",
        rule=heterogeneity,
    ),
    Claim(
        "gauss-newton-worse",
        "slides",
        "the Gauss-Newton part is a worse proxy of the largest eigenvalue for transformers than for MLPs",
        sweep="gauss_newton",
        figure="gauss_newton",
        rule=proxy,
    ),
)
