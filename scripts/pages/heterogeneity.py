"""Write the tables of docs/studies/constant-term.md from measured sweeps.

    python scripts/pages/heterogeneity.py [--write | --check] outputs     # those whose sweeps have a table in outputs/

A ratio is ||H(Q, Q)|| / ||H(V, V)||, as geometric mean over seeds with its 95 % interval (Student's t of logarithms).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from components import name_of
from leading_sizes import leading_norms

from hessfig.analysis.claims.effects import diagonal_rows
from hessfig.analysis.intervals import geometric_interval
from hessfig.analysis.presented import markdown_table
from hessfig.analysis.table import read_table
from hessfig.config.compose.job import compose
from hessfig.config.enums import Attention
from hessfig.config.schema import Config
from hessfig.models.blocks import components
from hessfig.record import FROBENIUS, TABLE
from hessfig.states.initialised import initialised

PAGE = Path(__file__).parents[2] / "docs" / "studies" / "constant-term.md"
COMMAND = "python scripts/pages/heterogeneity.py --write outputs"
SWEEPS = ("component_ratios", "ratio_scale")
# What the leading terms are written for: mixing weights with known derivatives at equal scores, and soft-capped scores.
_NO_LEADING_TERMS = (Attention.kernel, Attention.differential)
_KNOWN = {"attention", "attention_bias", "softcap"}


def parts(outputs: Path | None) -> Iterator[tuple[Path, str, str]]:
    """Yield the table of every sweep that is measured."""
    folder = outputs or Path("outputs")
    for sweep in SWEEPS:
        if (folder / sweep / TABLE).is_file():
            yield PAGE, sweep, sizes(folder, sweep)
        else:
            print(f"{sweep}: no table in {folder}", file=sys.stderr)


def ratios(outputs: Path, sweep: str) -> pd.Series:
    """Return ||H(Q, Q)|| / ||H(V, V)|| of the first layer by variant, number of layers, sigma and seed."""
    table = read_table(outputs / sweep / TABLE)
    rows = diagonal_rows(table[(table["quantity"] == FROBENIUS) & (table["part"] == "H")])
    first = rows[rows["layer"] == 1].assign(variant=rows["variant"].fillna(""))
    place = ["variant", "num_layers", "sigma", "seed"]
    query, value = (first[first["row"] == name].groupby(place, sort=False)["value"].mean() for name in ("W_Q", "W_V"))
    return query / value


def sizes(outputs: Path, sweep: str) -> str:
    """Return measured ratios by network and sigma, each with that of the leading terms where there is one."""
    found = ratios(outputs, sweep)
    settings = {(name, config.model.n_layers): config for name, config in compose([f"sweep={sweep}"]).variants}
    sigmas = sorted(set(found.index.get_level_values("sigma")))
    lines = []
    for (variant, layers), own in found.groupby(level=["variant", "num_layers"], sort=False):
        config = settings[variant, layers]
        cells = [_cell(own.xs(sigma, level="sigma"), predicted(config, sigma)) for sigma in sigmas]
        depth = f", {layers} layers" if layers > 1 else ""
        lines.append((name_of(str(variant)) + depth, *cells))
    return "\n".join([*markdown_table(("network", *(f"sigma = {sigma:g}" for sigma in sigmas)), lines), ""])


def predicted(config: Config, sigma: float) -> list[float]:
    """Return the ratio of the leading terms for every seed of a sweep; none where the theorem has no constant."""
    model = config.model
    if (model.norm, model.n_layers, model.n_heads) != ("none", 1, 1) or not _is_plain(config):
        return []
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    norms = [leading_norms(initialised(config, sigma=sigma, seed=seed)) for seed in seeds]
    return [one.query / one.value for one in norms]


def _is_plain(config: Config) -> bool:
    other = {key for key in components(config.model) if key not in _KNOWN}
    is_capped = other == {"scores"} and config.model.scores == "softcap"
    return (not other or is_capped) and config.model.attention not in _NO_LEADING_TERMS


def _cell(measured: pd.Series, leading: list[float]) -> str:
    found = geometric_interval(measured)
    said = f"{found.mean:.2g} [{found.low:.2g}, {found.high:.2g}]"
    return f"{said}; leading terms {np.exp(np.log(leading).mean()):.2g}" if leading else said


if __name__ == "__main__":
    from page import keep

    raise SystemExit(keep(__doc__, COMMAND, parts))
