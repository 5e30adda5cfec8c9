"""Rules about spectra: negative eigenvalues with softmax, and both ends of the spectrum against the network's size."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.effects import ATTENTION, LEAST_SHARE, NORM, by_seed, diagonal_rows, exponents, numbered
from hessfig.analysis.claims.rule import Evidence, claim
from hessfig.analysis.slopes.printed import WHOLE
from hessfig.terms import Part

LEAST_EXPONENT = 0.1
WIDTH = "model.d_model"
_ENDS = ("largest_eigenvalue", "smallest_eigenvalue")


@claim("softmax-indefinite")
def indefinite(evidence: Evidence) -> judges.Finding:
    """Claim: softmax makes the diagonal blocks of the attention weights more indefinite.

    The share of negative eigenvalues of H in the blocks of W_Q, W_K and W_V, averaged, with softmax minus with linear
    attention, pair by pair of seeds, by norm of the network. With a norm the claim holds when the interval of this
    effect is above 0 and the mean at least 0.05, and does not when the interval is below 0.05. (Without a norm linear
    attention has H_f = 0 on the diagonal, Remark 4.1, and hence no negative eigenvalues: that half is a theorem's.)
    """
    rows = diagonal_rows(evidence.numbers("share_negative", ATTENTION, NORM, part=Part.H.value))
    shares = by_seed(rows[rows["row"].isin(["W_Q", "W_K", "W_V"])], NORM, ATTENTION)
    if not {"softmax", "linear"} <= set(shares.index.get_level_values(ATTENTION)):
        return judges.missing(f"share_negative of the attention's blocks for {ATTENTION}=softmax and linear")
    more = (shares.xs("softmax", level=ATTENTION) - shares.xs("linear", level=ATTENTION)).dropna()
    kinds = {f"{NORM}={norm or 'none'}": sample for norm, sample in more.groupby(level=NORM)}
    return judges.by_conditions(judges.each(kinds, judges.at_least(LEAST_SHARE)))


@claim("size-spectrum")
def size_spectrum(evidence: Evidence) -> judges.Finding:
    """Claim: the spectrum of the Hessian widens with the size of the network: larger and smaller eigenvalues.

    Exponents of the largest eigenvalue of the whole H, and of the size of the smallest (negative) one, in the width and
    in the number of layers, seed by seed, over the smaller half of the sizes and over the larger half (a curve that
    turns is no power). Along the width or the depth the claim holds when every interval is above 0 and its mean at
    least 0.1, and does not when one is below 0.1. The effect is the exponent of the largest eigenvalue over all sizes,
    along the first that holds, else where it is largest.
    """
    deep = evidence.other("model_size_depth")
    tables = {
        "along the width": {end: numbered(evidence.numbers(end, WIDTH), WIDTH) for end in _ENDS},
        "along the depth": {end: (rows := deep.numbers(end)).assign(size=rows["num_layers"]) for end in _ENDS},
    }
    of = {name: _widening(ends) for name, ends in tables.items()}
    known = {name: effects for name, effects in of.items() if len(effects)}
    if not known:
        return judges.missing("largest eigenvalues of the whole network against width or depth")
    lacking = [f"{end.replace('_', ' ')} {name}" for name in of for end in _ENDS if f"{end}, all sizes" not in of[name]]
    finding = judges.by_conditions(known).saying(f"missing: {', '.join(lacking)}" if lacking else "")
    return replace(finding, is_lacking=finding.is_lacking or bool(lacking))


def _widening(ends: Mapping[str, pd.DataFrame]) -> judges.Effects:
    """Return the exponents of both ends of the whole spectrum in a size; of one that is missing, an empty effect."""
    logs = {end: _whole(rows) for end, rows in ends.items()}
    samples = {
        f"{end}{words}": sample
        for end, rows in logs.items()
        for words, sample in (_of_sizes(rows) if len(rows) else {"": pd.Series(dtype=float)}).items()
    }
    is_measured = any(len(exponents) for exponents in samples.values())
    return judges.effects_by_name(samples, judges.at_least(LEAST_EXPONENT)) if is_measured else {}


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the outermost eigenvalue of one end of the whole network's H, in size."""
    whole = rows[(rows["row"] == "all") & (rows["part"] == Part.H.value) & (rows["index"] <= 1)]
    return whole.assign(value=whole["value"].abs())


def _of_sizes(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the exponents over all sizes, over the smaller half and over the larger half, by seed."""
    sizes = np.sort(rows["size"].unique())
    half = (len(sizes) + 1) // 2
    windows = {", all sizes": WHOLE, ", smaller half": (None, sizes[half - 1]), ", larger half": (sizes[-half], None)}
    return {words: exponents(rows, "size", window=window) for words, window in windows.items()}
