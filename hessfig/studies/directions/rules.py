"""Rules about the curvature along directions: the updates of optimisers at equal losses."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.effects import LEAST_DECADES, by_seed, in_logs
from hessfig.analysis.claims.rule import Evidence, claim
from hessfig.terms import Part

OPTIMISER = "training.optimiser"
LOSSES = 5  # at which trainings are compared


@claim("muon-sharpness")
def update_sharpness(evidence: Evidence) -> judges.Finding:
    """Claim: at equal loss the curvature along Muon's updates is smaller than along Adam's.

    The normalised directional sharpness d.H d / |d|^2 of the next update d, without weight decay, of trainings by AdamW
    and by Muon at one learning rate, at equal losses: linear in the logarithm of the loss between measured steps, at
    five losses evenly spaced in logarithms over the range that both trainings of a seed pass through. The effect is
    log10 of AdamW's over Muon's, averaged, seed by seed. The claim holds when the interval is above 0 and the mean at
    least 0.1, and does not when the interval is below 0.1. The share of the curvature within layers is reported.
    """
    sample = _of_updates(evidence, "curvature")
    if sample.empty:
        return judges.missing(
            f"positive curvatures along updates of {OPTIMISER}=adamw and muon at losses that both pass through"
        )
    shares = ", ".join(f"{rule} {_share_within(evidence, rule):.2f}" for rule in ("adamw", "muon"))
    return judges.single(judges.Effect(sample, judges.at_least(LEAST_DECADES)), f"median share within layers: {shares}")


def _of_updates(evidence: Evidence, number: str) -> pd.Series:
    """Return log10 of a number of AdamW's update over that of Muon's at equal losses, averaged, by seed."""
    losses = by_seed(in_logs(evidence.numbers("loss", OPTIMISER, row="")), OPTIMISER, "step")
    logs = {rule: _logs(evidence, rule, number) for rule in ("adamw", "muon")}
    differences = {}
    for seed in sorted(set(losses.index.get_level_values("seed"))):
        curves = [_curve(rows[rows["seed"] == seed], losses, rule, seed) for rule, rows in logs.items()]
        if values := _at_equal_losses(curves):
            differences[seed] = float(np.mean(values[0] - values[1]))
    return pd.Series(differences, dtype=float)


def _logs(evidence: Evidence, rule: str, number: str) -> pd.DataFrame:
    """Return log10 of a number of a rule's update along its own training."""
    rows = in_logs(evidence.numbers(f"{rule}_update_{number}", OPTIMISER, row="all", part=Part.H.value))
    return rows[rows[OPTIMISER] == rule]


def _curve(rows: pd.DataFrame, losses: pd.Series, rule: str, seed: int) -> pd.Series:
    """Return the logs of a rule's training of one seed by log10 of the loss, rising."""
    logs = rows.set_index("step")["value"]
    at = pd.Series({step: losses.get((rule, step, seed), np.nan) for step in logs.index}, dtype=float)
    return pd.Series(logs.to_numpy(), index=at.to_numpy())[at.notna().to_numpy()].sort_index()


def _at_equal_losses(curves: Sequence[pd.Series]) -> list[NDArray[np.float64]]:
    """Return the values of curves (index: log losses, rising) at five losses evenly spaced, which all pass through.

    Nothing where they have no losses in common.
    """
    if not all(len(curve) > 1 for curve in curves):
        return []
    low, high = max(curve.index[0] for curve in curves), min(curve.index[-1] for curve in curves)
    if not low < high:
        return []
    places = np.linspace(low, high, LOSSES)
    return [np.interp(places, curve.index.to_numpy(float), curve.to_numpy(float)) for curve in curves]


def _share_within(evidence: Evidence, rule: str) -> float:
    """Return the median over seeds and steps of the share of an update's curvature that is within layers."""
    place = ["seed", "step"]
    inside, whole = (
        evidence.numbers(f"{rule}_update_{number}", row="all", part=Part.H.value).set_index(place)["value"]
        for number in ("within_layers", "curvature")
    )
    return float((inside / whole).median())
