"""Predicted exponents of a configuration, by counting powers: hessfig.predict, and the rows of `hessfig predict`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd

from hessfig.config.keys import as_plain
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import (
    GrowthRate,
    Prediction,
    growth_rate,
    regimes,
)
from hessfig.predictions.network_series import SIGMA, Regime
from hessfig.sweep.variant import Variant
from hessfig.terms import Block, Part
from hessfig.verbs import VERBS

if TYPE_CHECKING:
    from hessfig.config.compose.job import Job

COLUMNS_PREDICTED = (
    "variant",
    "row",
    "col",
    "layer",
    "part",
    "regime",
    "exponent",
    "zero",
    "reason",
)


def predict(*words: str) -> pd.DataFrame:
    """Return the predicted exponents of a configuration, one row per variant, block, part and regime.

    The prediction is norm(block) ~ sigma^exponent as sigma -> 0 or infinity, by
    counting powers (docs/studies/components.md).

    Parameters
    ----------
    *words : str
        Settings as those of `hessfig predict`: "model.scores=qk_norm", "blocks=all".

    Returns
    -------
    pandas.DataFrame
        `exponent` is nan if there is none; `zero` tells that the block vanishes
        identically; `reason` names the monomials that dominate, or the theorem.

    Raises
    ------
    UserError
        For settings that cannot be run.

    Examples
    --------
    >>> import hessfig
    >>> table = hessfig.predict("blocks=[W_V]")
    >>> table[["row", "part", "regime", "exponent", "zero"]].values.tolist()[0]
    ['W_V', 'H_o', 'sigma -> 0', 2.0, 'false']
    """
    frame = pd.DataFrame(
        predicted_rows(VERBS["predict"].job(words)), columns=COLUMNS_PREDICTED
    )
    return frame.assign(exponent=pd.to_numeric(frame["exponent"], errors="coerce"))


def predicted_rows(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the predictions, in the order of variants, blocks, parts and regimes."""
    axis = job.config.powers_of
    for name, config in job.variants:
        architecture = Architecture.from_config(as_plain(config))
        several = "model.n_layers" in job.config.sweep.vary
        label = ",".join(
            [name] * bool(name) + [f"model.n_layers={config.model.n_layers}"] * several
        )
        for block in Variant(name, config).blocks:
            for part in config.parts:
                yield from _predicted(label, block, part, architecture, axis)


def _predicted(
    label: str, block: Block, part: Part, architecture: Architecture, axis: str
) -> Iterator[dict[str, Any]]:
    """Yield a row per regime; one that holds at every sigma stands for all."""
    named = {
        "variant": label,
        "row": block.row,
        "col": block.col,
        "layer": block.layer,
        "part": part.value,
    }
    for regime in regimes(architecture):
        rate = growth_rate(block, part, architecture, regime, axis)
        yield {**named, **_described(rate, axis)}
        if rate.regime == Regime.every_sigma:
            return


def _described(rate: GrowthRate, axis: str) -> dict[str, Any]:
    texts = {"regime": rate.regime.value, "reason": rate.reason or rate.reference}
    exponent = "" if rate.exponent is None else f"{rate.exponent:g}"
    is_zero = str(rate.prediction == Prediction.structural_zero).lower()
    return {
        **{key: text.replace(SIGMA, axis) for key, text in texts.items()},
        "exponent": exponent,
        "zero": is_zero,
    }
