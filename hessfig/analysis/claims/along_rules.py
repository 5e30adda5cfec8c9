"""Rules of claims about directions that mean something: singular directions, updates, paths of the gradient, edges."""

from functools import partial

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.rule import Evidence, at_equal_losses, by_seed, claim, in_logs, wide
from hessfig.analysis.intervals import fisher_interval
from hessfig.studies.removal.row_names import INFLUENCES
from hessfig.terms import Part

KIND, OPTIMISER, RATE = "model.kind", "training.optimiser", "training.learning_rate"
LEAST_DECADES = 0.1  # a quarter more
WITHIN = 0.5  # of an exponent
ATTENTION = ("W_Q", "W_K", "W_V", "W_O")
LEAST_RANK = 0.5  # of a rank correlation
NORM_OF = {"gd": "euclidean", "spectral_gd": "spectral", "sign": "largest_entry"}


@claim("curvature-exponent")
def exponents(evidence: Evidence) -> judges.Finding:
    """Claim: curvature along a weight's singular directions goes as s_k to about 2, in attention 1, up-projections < 1.

    Definition ours, after the abstract: s_k u_k v_k^T are the terms of the singular value decomposition of a weight's
    gradient, alpha the slope of the log of the curvature of H along u_k v_k^T on log s_k, over k with s_k at least a
    thousandth of s_1 and positive curvature. At the last step, seed by seed: the median of alpha over the convolutions
    of the CNN, over the attention weights of the vision transformer, and alpha of its W_in. The claim holds when the
    whole intervals lie within 0.5 of 2, within 0.5 of 1, and below 1, and does not when one excludes that. The effect
    is the first; those of H_o are reported and do not enter the verdict.
    """
    alphas = {part: _exponents(evidence.at_step(-1), part) for part in (Part.H, Part.H_o)}
    if any(one.empty for one in alphas[Part.H].values()):
        return judges.missing(f"exponents of convolutions ({KIND}=cnn), attention and W_in ({KIND}=vit)")
    judge: dict[str, judges.Judge] = {
        "convolutions": judges.near(2.0, WITHIN),
        "attention": judges.near(1.0, WITHIN),
        "W_in": partial(judges.stays_below, most=1.0),
    }
    effects = {name: judges.Effect(sample, judge[name]) for name, sample in alphas[Part.H].items()}
    beside = {name: judges.Effect(sample, judge[name]).interval() for name, sample in alphas[Part.H_o].items()}
    words = ", ".join(f"{name} {one.words}" for name, one in beside.items())
    return judges.together(effects, words=f"of H_o: {words}")


@claim("muon-sharpness")
def update_sharpness(evidence: Evidence) -> judges.Finding:
    """Claim: at equal loss the curvature along Muon's updates is smaller than along Adam's.

    The normalised directional sharpness d.H d / |d|^2 of the next update d, without weight decay, of trainings by AdamW
    and by Muon at one learning rate, at equal losses: linear in the logarithm of the loss between measured steps, at
    five losses evenly spaced in logarithms over the range that both trainings of a seed pass through. The effect is
    log10 of AdamW's over Muon's, averaged, seed by seed. The claim holds when the interval is above 0 and the mean at
    least 0.1, and does not when the interval is below 0.1. The share of the curvature within layers is reported.
    """
    sample = _at_equal_losses(evidence, "curvature")
    if sample.empty:
        return judges.missing(
            f"positive curvatures along updates of {OPTIMISER}=adamw and muon at losses that both pass through"
        )
    inside = {rule: _share_within(evidence, rule) for rule in ("adamw", "muon")}
    words = ", ".join(f"{rule} {share:.2f}" for rule, share in inside.items())
    return judges.single(
        judges.Effect(sample, judges.at_least(LEAST_DECADES)), words=f"median share within layers: {words}"
    )


@claim("logit-path")
def paths(evidence: Evidence) -> judges.Finding:
    """Claim: the logit path of the gradient-norm penalty dominates in language, and does not in vision.

    The gradient of |g| is H g / |g| = (H_o g + H_f g) / |g|: the logit path and the functional path. The effect is
    log10 of |H_o g| over |H_f g| in all weights, averaged over the measured steps after 0, seed by seed; for the
    language model trained by AdamW, for the vision transformer and for the CNN. The claim holds when the interval of
    the language model is above 0 with a mean of at least 0.1 and those of both vision networks lie below 0.1, and
    does not when one is on the other side. The effect is that of the language model.
    """
    vision = evidence.other("along_vision")
    samples = {
        "language model": _paths(evidence, OPTIMISER, "adamw"),
        "vision transformer": _paths(vision, KIND, "vit"),
        "CNN": _paths(vision, KIND, "cnn"),
    }
    if any(one.empty for one in samples.values()):
        return judges.missing("products of H_o and H_f with the gradient after step 0, in language and in vision")
    below = partial(judges.stays_below, most=LEAST_DECADES)
    judge: dict[str, judges.Judge] = {
        "language model": judges.at_least(LEAST_DECADES),
        "vision transformer": below,
        "CNN": below,
    }
    return judges.together({name: judges.Effect(sample, judge[name]) for name, sample in samples.items()})


@claim("norm-edge")
def edges(evidence: Evidence) -> judges.Finding:
    """Claim: steepest descent in a norm ends with the largest curvature in its unit ball at or above 2 / eta.

    For gradient descent, spectral descent and sign descent, each at two learning rates a factor of 2 apart, seed by
    seed, with the median over steps from half of the training on: the shortfall log10 of 2 / eta over the largest
    curvature found (a lower bound, so that a shortfall may be the search's), the larger one of both rates; and the
    response, log2 of the curvature at the smaller rate over that at the larger, which is 1 at the edge and 0 where the
    curvature does not know the rate. For a rule the claim holds when the interval of the shortfall lies below 0.1 and
    that of the response within 0.5 of 1, and does not when one excludes that. The effect is the response.
    """
    of = {rule: parts for rule in NORM_OF if (parts := _edge(evidence, rule))}
    if len(of) < len(NORM_OF):
        return judges.missing(
            f"sharpness and sharpness_edge late in trainings of {', '.join(NORM_OF)} at two rates each"
        )
    return judges.by_conditions(of)


@claim("rounding-predictor")
def rounding(evidence: Evidence) -> judges.Finding:
    """Claim: the Fisher trace does not rank the damage of rounding a weight, a second-order prediction does.

    Definition ours: Spearman's correlation over weights, at 4 bits, of the true rise of the loss with tr(F) |delta|^2
    / n (F the empirical Fisher matrix) and with delta^T H delta / 2, by seed of the training, intervals by Fisher's
    z. The claim holds when the first lies below 0.5 and the second is above 0 with a mean of at least 0.5, and does
    not when one is on the other side. The effect is the second. HAWQ's tr(H) |delta|^2 / n is reported.
    """
    samples = {name: _ranks(evidence, name) for name in ("quadratic", "fisher", "hawq")}
    if any(one.empty for one in samples.values()):
        return judges.missing("rank correlations of predictions with the rise at 4 bits")
    judge: dict[str, judges.Judge] = {
        "quadratic": judges.at_least(LEAST_RANK),
        "fisher": partial(judges.stays_below, most=LEAST_RANK),
    }
    effects = {name: judges.Effect(samples[name], one, fisher_interval) for name, one in judge.items()}
    beside = fisher_interval(samples["hawq"])
    return judges.together(effects, words=f"HAWQ's {beside.words}")


def _ranks(evidence: Evidence, name: str) -> pd.Series:
    return by_seed(evidence.numbers(f"{name}_rank_correlation", index=4))


def _exponents(evidence: Evidence, part: Part) -> dict[str, pd.Series]:
    """Return alpha of convolutions, attention and W_in, the median over weights, by seed."""
    rows = evidence.numbers("curvature_exponent", KIND, part=part.value)
    of_vit, of_cnn = rows[rows[KIND] == "vit"], rows[(rows[KIND] == "cnn") & (rows["row"] == "W")]
    chosen = {"convolutions": of_cnn, "attention": of_vit[of_vit["row"].isin(ATTENTION)]}
    chosen["W_in"] = of_vit[of_vit["row"] == "W_in"]
    return {name: one.groupby("seed")["value"].median() for name, one in chosen.items()}


def _at_equal_losses(evidence: Evidence, number: str) -> pd.Series:
    """Return log10 of a number of AdamW's update over that of Muon's at equal losses, averaged, by seed."""
    losses = by_seed(in_logs(evidence.numbers("loss", OPTIMISER, row="")), OPTIMISER, "step")
    logs = {rule: _logs(evidence, rule, number) for rule in ("adamw", "muon")}
    found = {}
    for seed in sorted(set(losses.index.get_level_values("seed"))):
        curves = [_curve(rows[rows["seed"] == seed], losses, rule, seed) for rule, rows in logs.items()]
        if values := at_equal_losses(curves):
            found[seed] = float(np.mean(values[0] - values[1]))
    return pd.Series(found, dtype=float)


def _logs(evidence: Evidence, rule: str, number: str) -> pd.DataFrame:
    """Return log10 of a number of a rule's update along its own training."""
    rows = in_logs(evidence.numbers(f"{rule}_update_{number}", OPTIMISER, row="all", part=Part.H.value))
    return rows[rows[OPTIMISER] == rule]


def _curve(rows: pd.DataFrame, losses: pd.Series, rule: str, seed: int) -> pd.Series:
    """Return the logs of a rule's training of one seed by log10 of the loss, rising."""
    logs = rows.set_index("step")["value"]
    at = pd.Series({step: losses.get((rule, step, seed), np.nan) for step in logs.index}, dtype=float)
    return pd.Series(logs.to_numpy(), index=at.to_numpy())[at.notna().to_numpy()].sort_index()


@claim("influence-error")
def influence(evidence: Evidence) -> judges.Finding:
    """Claim: matrices that are nearer to the Hessian predict better what leaving samples out of a training does.

    At the last step, seed by seed: Spearman's correlation, over the Hessian, the Gauss-Newton matrix, K-FAC, EK-FAC, a
    diagonal and the identity, of the score of a matrix with minus its relative error in the Frobenius norm: the effect;
    interval by Fisher's z. The claim holds when the interval is above 0 and the effect at least 0.5, and does not when
    the interval is below 0.5.
    """
    last = evidence.at_step(-1)
    columns = {
        (name, number): by_seed(last.numbers(f"{name}_influence_{number}"))
        for name in INFLUENCES
        for number in ("score", "error")
    }
    table = pd.DataFrame(columns).dropna()
    if table.empty:
        return judges.missing("influence scores of all matrices")
    ranks = {number: table.xs(number, axis=1, level=1).rank(axis=1) for number in ("score", "error")}
    correlations = -ranks["score"].corrwith(ranks["error"], axis=1)
    means = {name: fisher_interval(table[name, "score"]) for name in INFLUENCES}
    return judges.single(judges.Effect(correlations, judges.at_least(LEAST_RANK), fisher_interval), contrasts=means)


def _share_within(evidence: Evidence, rule: str) -> float:
    """Return the median over seeds and steps of the share of an update's curvature that is within layers."""
    place = ["seed", "step"]
    inside, whole = (
        evidence.numbers(f"{rule}_update_{number}", row="all", part=Part.H.value).set_index(place)["value"]
        for number in ("within_layers", "curvature")
    )
    return float((inside / whole).median())


def _paths(evidence: Evidence, setting: str, value: str) -> pd.Series:
    """Return log10 of |H_o g| over |H_f g|, averaged over steps after 0, by seed."""
    rows = in_logs(evidence.numbers("gradient_direction_product", setting, row="all"))
    rows = rows[(rows[setting] == value) & (rows["step"] > 0)]
    parts = wide(by_seed(rows, "part", "step"), "part") if len(rows) else pd.DataFrame()
    if not {Part.H_o.value, Part.H_f.value} <= set(parts.columns):
        return pd.Series(dtype=float)
    return (parts[Part.H_o.value] - parts[Part.H_f.value]).dropna().groupby("seed").mean()


def _edge(evidence: Evidence, rule: str) -> judges.Effects:
    """Return shortfall and response of a rule, judged; nothing where two rates are not there."""
    late = {name: _late(evidence, name, rule) for name in (f"{NORM_OF[rule]}_sharpness", "sharpness_edge")}
    sharp, edge = late.values()
    if sharp.shape[1] != 2 or edge.shape != sharp.shape:
        return {}
    shortfall, response = (edge - sharp).max(axis=1), (sharp.iloc[:, 0] - sharp.iloc[:, 1]) / np.log10(2)
    return {
        "response": judges.Effect(response.dropna(), judges.near(1.0, WITHIN)),
        "shortfall": judges.Effect(shortfall.dropna(), partial(judges.stays_below, most=LEAST_DECADES)),
    }


def _late(evidence: Evidence, quantity: str, rule: str) -> pd.DataFrame:
    """Return the median log10 of a number over the second half of the steps, a row a seed, a column a rate."""
    rows = in_logs(evidence.numbers(quantity, OPTIMISER, RATE))
    rows = rows[(rows[OPTIMISER] == rule) & (rows["step"] >= rows["step"].max() / 2)]
    rates = rows.assign(rate=pd.to_numeric(rows[RATE], errors="coerce"))
    return wide(rates.groupby(["rate", "seed"])["value"].median(), "rate") if len(rows) else pd.DataFrame()
