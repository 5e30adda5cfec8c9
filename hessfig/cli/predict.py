"""What hessfig predict does: the exponents of a configuration's blocks by counting powers; nothing is measured."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hessfig.cli.flags import check_format
from hessfig.config.compose import Job
from hessfig.config.enums import Printed
from hessfig.config.keys import as_plain
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import GrowthRate, Prediction, growth_rate, regimes
from hessfig.predictions.network_series import SIGMA, Regime
from hessfig.sweep.variant import Variant
from hessfig.terms import Block, Part

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("variant", "row", "col", "layer", "part", "regime", "exponent", "zero", "reason")


def run(job: Job) -> int:
    """Print the predictions of every variant, as a table or as CSV."""
    check_format(job.config.format, Printed.table, Printed.csv)
    found = list(rows(job))
    if job.config.format == Printed.csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
        return 0
    from hessfig.analysis.presented import terminal_table
    from hessfig.cli.terminal import show

    cells = [[str(row[name]) for name in COLUMNS if name != "zero"] for row in found]
    title = f"Predicted: ||block||_F ~ {job.config.powers_of}^exponent"
    names = [name for name in COLUMNS if name != "zero"]
    show(terminal_table(names, cells, title=title, wrapped=("variant", "reason")))
    return 0


def predict(*words: str) -> pd.DataFrame:
    """Return the predicted exponents of a configuration, one row per variant, block, part and regime.

    `words` are those of `hessfig predict`: predict("model.scores=qk_norm", "blocks=all"). `exponent` is nan if there
    is none; `zero` tells that the block vanishes identically. Raises UserError for settings that cannot be run.
    """
    import pandas as pd

    from hessfig.config.compose import compose
    from hessfig.config.compose.overrides import check_words
    from hessfig.verbs import VERBS

    check_words(words, None, several=False)
    VERBS["predict"].check(words)
    frame = pd.DataFrame(rows(compose(words)), columns=COLUMNS)
    return frame.assign(exponent=pd.to_numeric(frame["exponent"], errors="coerce"))


def rows(job: Job) -> Iterator[dict[str, Any]]:
    """Yield the predictions, in the order of variants, blocks, parts and regimes."""
    axis = job.config.powers_of
    for name, config in job.variants:
        architecture, several = Architecture.from_config(as_plain(config)), "model.n_layers" in job.config.sweep.vary
        label = ",".join([name] * bool(name) + [f"model.n_layers={config.model.n_layers}"] * several)
        for block in Variant(name, config).blocks:
            for part in config.parts:
                yield from _rows(label, block, part, architecture, axis)


def _rows(label: str, block: Block, part: Part, architecture: Architecture, axis: str) -> Iterator[dict[str, Any]]:
    """Yield a row per regime; one that holds at every sigma stands for all."""
    named = {"variant": label, "row": block.row, "col": block.col, "layer": block.layer, "part": part.value}
    for regime in regimes(architecture):
        rate = growth_rate(block, part, architecture, regime, axis)
        yield {**named, **_said(rate, axis)}
        if rate.regime == Regime.every_sigma:
            return


def _said(rate: GrowthRate, axis: str) -> dict[str, Any]:
    exponent = "" if rate.exponent is None else f"{rate.exponent:g}"
    words = rate.reason or rate.reference
    along = {"regime": rate.regime.value, "reason": words}
    if axis != SIGMA:
        along = {key: text.replace(SIGMA, axis) for key, text in along.items()}
    return {**along, "exponent": exponent, "zero": str(rate.prediction == Prediction.structural_zero).lower()}
