"""Rules of claims about spectra: transformers next to others, the Gauss-Newton part, sinks, condition numbers."""

from collections.abc import Iterable
from functools import partial

import numpy as np
import pandas as pd

from hessfig.analysis.axis import settings_of, with_settings
from hessfig.analysis.claims import judges
from hessfig.analysis.claims.growth_rules import SMALL, least_squares
from hessfig.analysis.claims.rule import Evidence, at_equal_losses, by_seed, claim, diagonal
from hessfig.analysis.intervals import Interval, welch_interval
from hessfig.analysis.slopes.printed import Window, label, within
from hessfig.analysis.stored_spectra import Spectrum, SpectrumKey
from hessfig.studies.spectra.spectral_distances import KERNELS, NOISE, Kernel, is_weight, pair_distances
from hessfig.terms import Part

KIND, ATTENTION, NORM = "model.kind", "model.attention", "model.norm"
SINK, BETA = "model.sink", "model.sink_beta"
WEIGHT, SCALE = "model.scaled_weight", "model.weight_scale"
TRANSFORMER, MLP, CNN, VIT = "transformer", "mlp", "cnn", "vit"
LEAST_DISTANCE = 0.02  # of ln 2 = 0.69
LEAST_MISFIT = 0.05  # in natural logarithms: 5 %
LEAST_SHARE = 0.05
LEAST_DECADES = 0.1  # a quarter more or less
LEAST_EXPONENT = 0.1
MIDDLE: Window = (0.1, 1.0)
UNSATURATED: Window = (1.0, 5.0)
_QUERY_KEY = ("W_Q", "W_K")
_FIRST = "vision transformer, fixed kernel"


@claim("softmax-indefinite")
def indefinite(evidence: Evidence) -> judges.Finding:
    """Claim: softmax makes the diagonal blocks of the attention weights more indefinite.

    The share of negative eigenvalues of H in the blocks of W_Q, W_K and W_V, averaged, with softmax minus with linear
    attention, pair by pair of seeds, by norm of the network. With a norm the claim holds when the interval of this
    effect is above 0 and the mean at least 0.05, and does not when the interval is below 0.05. (Without a norm linear
    attention has H_f = 0 on the diagonal, Remark 4.1, and hence no negative eigenvalues: that half is a theorem's.)
    """
    rows = diagonal(evidence.numbers("share_negative", ATTENTION, NORM, part=Part.H.value))
    shares = by_seed(rows[rows["row"].isin(["W_Q", "W_K", "W_V"])], NORM, ATTENTION)
    if not {"softmax", "linear"} <= set(shares.index.get_level_values(ATTENTION)):
        return judges.missing(f"share_negative of the attention's blocks for {ATTENTION}=softmax and linear")
    more = (shares.xs("softmax", level=ATTENTION) - shares.xs("linear", level=ATTENTION)).dropna()
    kinds = {f"{NORM}={norm or 'none'}": one for norm, one in more.groupby(level=NORM)}
    return judges.by_conditions(judges.each(kinds, judges.at_least(LEAST_SHARE)))


@claim("zhang-heterogeneity")
def heterogeneity(evidence: Evidence) -> judges.Finding:
    """Claim: untrained, the spectra of a transformer's blocks differ more from each other than those of a CNN's.

    The average Jensen-Shannon distance between the spectra of the full Hessian's blocks, of hidden weights alone: of a
    CNN over all pairs of its convolutions but the first, which reads the picture as a transformer's input map does; of
    a transformer over the pairs within a layer, as many for each layer; averaged over the norms that a kind of network
    has. The effect is the mean of a transformer minus that of the CNN (Welch's interval: the networks share nothing
    that would pair their seeds), for the vision transformer and for the language model, under a kernel of one width
    for all networks (fixed) and under the published one. Under a condition the claim holds when the interval is above
    0 and the effect at least 0.02, and does not when the interval is below 0.02. The effect is that of the vision
    transformer under the fixed kernel.
    """
    return _more_than_cnn(evidence.at_step(0), evidence.other("language_spectra").at_step(0))


@claim("zhang-heterogeneity-trained")
def heterogeneity_at_end(evidence: Evidence) -> judges.Finding:
    """Claim: trained, the spectra of a transformer's blocks differ more from each other than those of a CNN's.

    The effect and its rule are those of zhang-heterogeneity (under a condition it holds when the interval is above 0
    and the effect at least 0.02), from the spectra at the last step of the trainings.
    """
    return _more_than_cnn(evidence.at_step(-1), evidence.other("language_spectra").at_step(-1))


@claim("gauss-newton-worse")
def proxy(evidence: Evidence) -> judges.Finding:
    """Claim: the Gauss-Newton part is a worse proxy of the largest eigenvalue for transformers than for MLPs.

    The misfit of a kind of network is the size of the mean of log(largest eigenvalue of H_o / largest eigenvalue of H),
    of the whole network, over seeds and the sigmas of a window (<= 0.1, 0.1 to 1, 1 to 5; beyond 5 softmax saturates).
    Averaged with their signs, ratios that only spread are no misfit. The effect is the misfit of transformers with
    softmax minus that of MLPs (Welch's interval, for either sign). In a window the claim holds when the interval is
    above 0 and the effect at least 0.05 (5 %), and does not when the interval is below 0.05. A pair of which one
    eigenvalue is not positive is left out.
    """
    ratios = _ratios(evidence)
    of: dict[str, judges.Effects] = {}
    for window in (SMALL, MIDDLE, UNSATURATED):
        rows = ratios[within(ratios["sigma"], window)]
        kinds = [by_seed(rows[rows[KIND] == kind]) for kind in (TRANSFORMER, MLP)]
        of |= {label(window): {"": _worse(*kinds)}} if all(map(len, kinds)) else {}
    if not of:
        return judges.missing("largest eigenvalues of H_o and H of the whole network, for transformers and MLPs")
    return judges.by_conditions(of)


@claim("gauss-newton-worse-trained")
def proxy_along(evidence: Evidence) -> judges.Finding:
    """Claim: at equal loss along a training the Gauss-Newton part is the worse proxy for transformers than for MLPs.

    The misfit of gauss-newton-worse along each training, at equal losses: linear in the logarithm of the loss between
    measured steps, at five losses evenly spaced in logarithms over the range that both networks of a seed pass through.
    The effect is the misfit of transformers minus that of MLPs, of ratios averaged over the five; the claim holds when
    the interval is above 0 and the effect at least 0.05, and does not when the interval is below 0.05. (At
    interpolation H_f is 0 for every network, so that the last step alone could tell nothing.)
    """
    ratios = _ratios(evidence)
    losses = with_settings(evidence.numbers("loss"), KIND, ATTENTION)
    key = [KIND, ATTENTION, "seed", "step"]
    both = ratios.merge(losses[[*key, "value"]].rename(columns={"value": "loss"}), on=key) if len(losses) else losses
    kinds = _at_equal_loss(both) if len(both) else [pd.Series(dtype=float)]
    if kinds[0].empty:
        return judges.missing(
            "losses next to largest eigenvalues of H_o and H along trainings that pass through equal losses"
        )
    return judges.single(_worse(*kinds))


@claim("sinks-stretch")
def stretch(evidence: Evidence) -> judges.Finding:
    """Claim: in the attention's Hessian larger sinks shrink the bulk of the spectrum and grow its outliers.

    For each kind of sink, seed by seed, of the attention's group of weights: growth = log10 of the outermost eigenvalue
    of H (in size) at the largest beta over that at beta = 0, shrinkage = log10 of the bulk's width (95 % minus
    5 % quantile) at beta = 0 over that at the largest. A kind holds when the intervals of both are above 0 and both
    means at least 0.1 decades, and does not when one is below 0.1. The effect is growth + shrinkage of the first kind
    that holds, else the largest. Trained networks at the last step. Pre-LN undoes a sink in the embedding.
    """
    last = evidence.at_step(-1)
    both = pd.concat({"outer": _outermost(last), "width": _widths(last)}, axis=1).dropna()
    kinds = list(dict.fromkeys(both.index.get_level_values(SINK)))
    if not kinds:
        return judges.missing("eigenvalues and quantiles of the group `attention` against beta")
    of: dict[str, judges.Effects] = {}
    sums: dict[str, judges.Effect] = {}
    for kind in kinds:
        change = _changes(both.xs(kind, level=SINK))
        parts = {"growth": change["outer"], "shrinkage": -change["width"]}
        of[f"{SINK}={kind}"] = judges.alike(parts, judges.at_least(LEAST_DECADES))
        sums[f"{SINK}={kind}"] = judges.Effect(change["outer"] - change["width"], judges.at_least(LEAST_DECADES))
    return judges.by_conditions(of, sums)


@claim("condition-norms")
def sensitivity(evidence: Evidence) -> judges.Finding:
    """Claim: beyond the scalar model too the condition number depends on the norms of query and key weights.

    The Hessian of a whole network is singular, hence its condition number infinite: judged is the largest over the 5 %
    quantile of the absolute eigenvalues that are not zero (above 1e-10 of the largest), whose share, the rank, is
    reported; where no spectra of the whole are stored, the robust condition number of the query and key blocks. Against
    the scale alpha of W_Q and of W_K, seed by seed, in two contrasts each: the exponent (least squares of log kappa on
    log alpha) and the bend (mean over alpha of log10 of sqrt(kappa(alpha) kappa(1/alpha)) / kappa(1)). The claim holds
    when one of these intervals (95 % for all together) excludes 0 with a mean of at least 0.1 in size, and does not
    when all lie within 0.1 of 0. The effect is the contrast that is largest in size.
    """
    rows = _of_nonzero(evidence)
    words = f"rank {rows['rank'].min():.0%} to {rows['rank'].max():.0%}" if len(rows) else ""
    if rows.empty:
        stored = evidence.numbers("condition_number", WEIGHT, SCALE, part=Part.H.value)
        rows = stored[stored["row"].isin(_QUERY_KEY)]
    rows = rows[rows[WEIGHT].isin(_QUERY_KEY) & (rows["value"] > 0)]
    if rows.empty:
        return judges.missing("spectra of the whole network, or condition numbers, against the scale of W_Q and W_K")
    effects = _contrasts(rows.assign(alpha=rows[SCALE].astype(float), log=np.log10(rows["value"])))
    contrasts = {name: one.interval(len(effects)) for name, one in effects.items()}
    shown = judges.largest(contrasts, abs)
    return judges.found(contrasts[shown], judges.any_of(effects), "; ".join(filter(None, [shown, words])), contrasts)


def _contrasts(logs: pd.DataFrame) -> judges.Effects:
    """Return the exponent and the bend of log10 of the condition number in alpha, by weight and block."""
    samples: dict[str, list[float]] = {}
    for (weight, row, _), one in logs.groupby([WEIGHT, "row", "seed"], sort=True):
        curve = one.groupby("alpha")["log"].mean()
        exponent = least_squares(np.log10(curve.index.to_numpy()), curve.to_numpy())
        samples.setdefault(f"exponent of kappa({row}) in |{weight}|", []).append(exponent)
        samples.setdefault(f"bend of kappa({row}) in |{weight}|", []).append(_bend(curve))
    return judges.alike(samples, partial(judges.departs, least=LEAST_EXPONENT))


def _of_nonzero(evidence: Evidence) -> pd.DataFrame:
    """Return the condition number and the rank, as a share, of the whole network's H from stored spectra."""
    rows = []
    for block in evidence.spectra(lambda place: place.row == "all" and place.part == Part.H):
        if isinstance(block, Spectrum):
            sizes = np.abs(block.eigenvalues)
            kept = sizes[sizes > NOISE * sizes.max()]
            place = {"variant": block.place.variant, "row": "all", "seed": block.place.seed}
            rows.append({**place, "value": kept.max() / np.quantile(kept, 0.05), "rank": len(kept) / len(sizes)})
    return with_settings(pd.DataFrame(rows), WEIGHT, SCALE) if rows else pd.DataFrame()


def _ratios(evidence: Evidence) -> pd.DataFrame:
    """Return log(largest eigenvalue of H_o / of H) of the whole network, of transformers with softmax and of MLPs."""
    rows = evidence.numbers("largest_eigenvalue", KIND, ATTENTION, row="all")
    rows = rows[(rows["index"] <= 1) & rows[ATTENTION].isin(["softmax", ""])].fillna({"step": -1.0, "sigma": 0.0})
    place = [KIND, ATTENTION, "sigma", "step", "seed"]
    wide = rows.pivot_table(index=place, columns="part", values="value")
    if not {Part.H, Part.H_o} <= set(wide.columns):
        return pd.DataFrame(columns=[*place, "value"])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.log(wide[Part.H_o] / wide[Part.H]).rename("value").reset_index()
    return ratios[np.isfinite(ratios["value"])]


def _worse(transformers: pd.Series, mlps: pd.Series) -> judges.Effect:
    """Return the misfit of transformers minus that of MLPs, from mean log ratios by seed."""
    one, other = (ratios * np.sign(ratios.mean()) for ratios in (transformers, mlps))
    return judges.Effect(one, judges.at_least(LEAST_MISFIT), partial(_of_either_sign, other=other))


def _of_either_sign(sample: Iterable[float], other: Iterable[float], *, tests: int = 1) -> Interval:
    """Return Welch's interval for numbers whose sign the numbers themselves chose: two tests in place of one."""
    return welch_interval(sample, other, tests=2 * tests)


def _more_than_cnn(vision: Evidence, language: Evidence) -> judges.Finding:
    """Return the finding of distances of transformers less those of CNNs, by transformer and kernel."""
    of: dict[str, judges.Effects] = {}
    for name, kernel in {"fixed": KERNELS["fixed"], **KERNELS}.items():
        seen, read = _distances(vision, kernel), _distances(language, kernel)
        cnn = by_seed(seen[seen[KIND] == CNN])
        transformers = {"vision transformer": by_seed(seen[seen[KIND] == VIT]), "language model": by_seed(read)}
        for words, one in {**transformers, "CNN": cnn}.items():
            if not len(one):
                return judges.missing(f"spectra of the weights of layers of the {words}")
        for words, one in transformers.items():
            effect = judges.Effect(one, judges.at_least(LEAST_DISTANCE), partial(welch_interval, other=cnn))
            of[f"{words}, {name} kernel"] = {"": effect}
    return judges.by_conditions(of, shown=_FIRST)


def _distances(evidence: Evidence, kernel: Kernel) -> pd.DataFrame:
    """Return the distance of every pair of blocks that counts: of a CNN all, of others those within a layer."""
    pairs, _ = pair_distances(evidence.spectra(_is_hidden), kernel)
    pairs = with_settings(pairs, KIND).rename(columns={"distance": "value"})
    same = (pairs["one"] == pairs["other"]) & (pairs["one_layer"] == pairs["other_layer"])
    within_layer = (pairs[KIND] == CNN) | (pairs["one_layer"] == pairs["other_layer"])
    return pairs[within_layer & ~same & np.isfinite(pairs["value"])]


def _is_hidden(place: SpectrumKey) -> bool:
    """Return whether a place is the block of H of a weight that reads no input: not a CNN's first convolution."""
    first = 1 if settings_of(place.variant).get(KIND) == CNN else 0
    return is_weight(place) and place.part == Part.H and place.layer > first and place.row.startswith("W")


def _at_equal_loss(both: pd.DataFrame) -> list[pd.Series]:
    """Return the log ratios of transformers and of MLPs, each averaged over five equal losses, by seed."""
    found: list[dict[int, float]] = [{}, {}]
    for seed, here in both[both["loss"] > 0].groupby("seed"):
        runs = [here[here[KIND] == kind].sort_values("loss") for kind in (TRANSFORMER, MLP)]
        curves = [pd.Series(run["value"].to_numpy(), index=np.log(run["loss"].to_numpy())) for run in runs]
        for values, ratios in zip(found, at_equal_losses(curves), strict=False):
            values[int(seed)] = float(ratios.mean())
    return [pd.Series(values, dtype=float) for values in found]


def _outermost(evidence: Evidence) -> pd.Series:
    """Return the size of the outermost eigenvalue by (kind, beta, seed)."""
    ends = [
        evidence.numbers(quantity, SINK, BETA, part=Part.H.value, row="attention")
        for quantity in ("largest_eigenvalue", "smallest_eigenvalue")
    ]
    rows = pd.concat([one[one["index"] <= 1] for one in ends])
    return _placed(rows.assign(value=rows["value"].abs())).max()


def _widths(evidence: Evidence) -> pd.Series:
    """Return the 95 % minus the 5 % quantile by (kind, beta, seed)."""
    rows = evidence.numbers("eigenvalue_quantile", SINK, BETA, part=Part.H.value, row="attention")
    low, high = (_placed(rows[rows["index"] == percent]).mean() for percent in (5, 95))
    return high - low


def _placed(rows: pd.DataFrame) -> pd.core.groupby.SeriesGroupBy:
    return rows.assign(**{BETA: rows[BETA].astype(float)}).groupby([SINK, BETA, "seed"])["value"]


def _changes(both: pd.DataFrame) -> pd.DataFrame:
    """Return log10 of each number at the largest beta over that at the smallest, one row per seed."""
    logs = np.log10(both.where(both > 0))
    betas = sorted(logs.index.get_level_values(BETA).unique())
    return logs.xs(betas[-1], level=BETA) - logs.xs(betas[0], level=BETA)


def _bend(curve: pd.Series) -> float:
    """Return the mean of the even part of a curve of log10, measured from alpha = 1; nan without a pair."""
    mirrored = [(curve[alpha] + curve[1 / alpha]) / 2 for alpha in curve.index if alpha > 1 and 1 / alpha in curve]
    return float(np.mean(mirrored) - curve[1.0]) if mirrored and 1.0 in curve else float("nan")
