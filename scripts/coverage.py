"""How often the stated 95 % interval of a probed norm holds the exact value.

Intervals are those of the package (`probe_interval`). Either two tables of one sweep are compared, number by number:

hessfig run sweep=sigma estimator=exact output_dir=exact
hessfig run sweep=sigma estimator=aligned estimator.num_probes=4 output_dir=probed
python scripts/coverage.py exact/sigma/table.csv probed/sigma/table.csv

or the networks of the sweep `components` that have a component beyond the paper's are made with two heads:

python scripts/coverage.py --components [--d-model 8] [--numbers 2000] [--output FILE.json]

Every block is multiplied out once, checked by a plain double backward, and then estimated again and again from these
matrices by the package's own estimators, `numbers` times for each weight and part. A group is a weight and part, or a
component; its coverage is the mean over its blocks that are sampled. Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch

from hessfig.analysis.intervals import probe_interval
from hessfig.config.compose.job import compose
from hessfig.config.enums import Method, Products
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig
from hessfig.curvature.column import SPLIT, SidedColumn, completed
from hessfig.curvature.double_backward import DoubleBackward
from hessfig.curvature.problem import Objective
from hessfig.files import write_text
from hessfig.measurements.block_norms import Estimator, dense_blocks
from hessfig.measurements.quantity import Estimate, columns
from hessfig.models.blocks import components
from hessfig.models.routes import Engines
from hessfig.rng import stream
from hessfig.sweep.measure import draw_problem
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import Block, Part

NUMBER = ["variant", "num_layers", "layer", "row", "col", "part", "sigma", "seed"]
PARTS = (*SPLIT, Part.H)
METHODS = ((Method.auto, 4), (Method.auto, 12), (Method.hutchinson, 20))
LOWEST, HIGHEST, ROUNDING = 93.0, 97.0, 1e-9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exact", type=Path, nargs="?")
    parser.add_argument("probed", type=Path, nargs="?")
    parser.add_argument("--components", action="store_true")
    parser.add_argument("--d-model", type=int, default=8)
    parser.add_argument("--numbers", type=int, default=2000)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    if arguments.components:
        of_components(arguments.d_model, arguments.numbers, arguments.output)
    elif arguments.probed:
        numbers = paired(pd.read_csv(arguments.exact), pd.read_csv(arguments.probed))
        print(coverage(numbers).to_string())
    else:
        parser.error("two tables, or --components")


def paired(exact: pd.DataFrame, probed: pd.DataFrame) -> pd.DataFrame:
    """Return the probed numbers that are not zero next to the exact ones, with their error in standard errors."""
    both = probed[probed["value"] > 0].merge(exact, on=NUMBER, suffixes=("", "_exact"), validate="1:1")
    error = both["value"] - both["value_exact"]
    both = both[both["error"] > 0]  # what `auto` found exactly has no interval
    found = [
        probe_interval(*numbers)
        for numbers in zip(both["value"], both["error"], both["num_probes"].astype(int), strict=True)
    ]
    inside = [one.low <= exact <= one.high for one, exact in zip(found, both["value_exact"], strict=True)]
    return both.assign(relative=error / both["value_exact"], inside=inside)


def coverage(numbers: pd.DataFrame) -> pd.DataFrame:
    """Return a row per block and part, number of probes, and one for all: numbers, coverage, bias and errors."""
    groups = {f"{row} {part}": group for (row, part), group in numbers.groupby(["row", "part"], sort=False)}
    groups |= {f"{probes} probes": group for probes, group in numbers.groupby("num_probes")}
    return pd.DataFrame({name: _summary(group) for name, group in (*groups.items(), ("all", numbers))}).T


def _summary(group: pd.DataFrame) -> dict[str, float]:
    inside = group["inside"]
    return {
        "numbers": len(group),
        "coverage %": round(100 * inside.mean(), 2),
        "its standard error %": round(100 * (inside.mean() * (1 - inside.mean()) / len(group)) ** 0.5, 2),
        "bias %": round(100 * group["relative"].mean(), 2),
        "rms error %": round(100 * group["relative"].pow(2).mean() ** 0.5, 2),
        "stated error %": round(100 * (group["error"] / group["value"]).pow(2).mean() ** 0.5, 2),
    }


def of_components(d_model: int, numbers: int, output: Path | None) -> None:
    """Print and write the coverage on networks with components, by method and group, and the seconds of each."""
    warnings.simplefilter("ignore")
    networks = [Variant(name, config) for name, config in _networks(d_model)]
    blocks = Counter(str(col) for one in networks for _, col, _ in columns(one.blocks))
    rows: list[dict] = []
    seconds: defaultdict[tuple[str, int], float] = defaultdict(float)
    for variant in networks:
        for row, spent in _of_network(variant, {col: math.ceil(numbers / count) for col, count in blocks.items()}):
            rows.append(row)
            seconds[row["method"], row["probes"]] += spent
    found = pd.DataFrame(rows)
    sampled = found[found["exact"] < 100]
    groups = pd.concat([_by_group(sampled, ["col", "part"]), _by_group(sampled, ["component"])])
    print(_overview(found, groups, seconds).to_string(index=False))
    print(groups[~groups["coverage"].between(LOWEST, HIGHEST)].to_string(index=False))
    if output:
        kept = {"d_model": d_model, "numbers": numbers, "groups": groups.to_dict("records")}
        write_text(output, json.dumps({**kept, "seconds": {" ".join(map(str, k)): s for k, s in seconds.items()}}))


def _networks(d_model: int) -> Iterator[tuple[str, Config]]:
    sizes = [f"model.d_model={d_model}", "model.n_heads=2", "task.batch_size=4", "grid.values=[1.0]"]
    for name, config in compose(["sweep=components", "blocks=each", *sizes]).variants:
        if components(config.model):
            yield name, config


def _of_network(variant: Variant, repeats: dict[str, int]) -> Iterator[tuple[dict, float]]:
    """Yield a row for each column, part that is not zero and method, and its share of the seconds of one estimate."""
    problem = draw_problem(Cell(variant, 1.0, 0))
    settings = {one: EstimatorConfig(one[0], num_probes=one[1]) for one in METHODS}
    own = {one: Estimator(problem, variant.config.model, chosen) for one, chosen in settings.items()}
    for layer, col, blocks in columns(variant.blocks):
        exact = _Matrices(problem, variant.config, layer, col, blocks)
        parts = [part for part in PARTS if exact.norms[part] > 0]
        place = {"component": variant.name.removeprefix("model."), "layer": layer, "col": str(col)}
        for (method, probes), chosen in settings.items():
            started = time.process_time()
            own[method, probes].column_norms(layer, col, blocks, PARTS, generator=stream(0, "time"))
            spent = (time.process_time() - started) / len(parts)
            estimator, draws = _FromMatrices(problem, variant.config.model, chosen), []
            estimator.matrices = exact
            for repeat in range(repeats[str(col)]):
                generator = stream(repeat, "coverage", *place.values(), probes)
                draws.append(estimator.column_norms(layer, col, blocks, parts, generator=generator))
                if all(one.num_probes == 0 for one in draws[0].values()):
                    break  # without probes every draw is this one
            for part in parts:
                judged = [_judged(draw[blocks[0], part], exact.norms[part]) for draw in draws]
                yield {**place, "part": part.value, "method": method.value, "probes": probes, **_means(judged)}, spent


def _judged(found: Estimate, exact: float) -> dict[str, float]:
    """Return whether the interval holds the exact value, and how many errors the estimate is from it."""
    away = abs(found.value - exact)
    if away <= ROUNDING * exact:
        return {"inside": 1.0, "away": 0.0, "exact": float(found.num_probes == 0), "relative": 0.0}
    interval = probe_interval(found.value, found.error, found.num_probes)
    away_in_errors = away / found.error if found.error else math.inf
    inside = float(interval.low <= exact <= interval.high)
    return {"inside": inside, "away": away_in_errors, "exact": 0.0, "relative": away / exact}


def _means(judged: Sequence[dict[str, float]]) -> dict[str, float]:
    one = pd.DataFrame(judged)
    return {
        "draws": len(one),
        "coverage": 100 * one["inside"].mean(),
        "variance": 1e4 * one["inside"].mean() * (1 - one["inside"].mean()) / len(one),
        "exact": 100 * one["exact"].mean(),
        "beyond four": 100 * (one["away"] > 4).mean(),
        "worst": one["away"].max(),
        "rms": 100 * one["relative"].pow(2).mean() ** 0.5,
    }


def _by_group(found: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    """Return the coverage of every group and method, the mean over its blocks, with its standard error."""
    grouped = found.groupby(["method", "probes", *names], sort=False)
    table = grouped[["coverage", "beyond four", "rms"]].mean().reset_index()
    table["se"] = (grouped["variance"].sum() ** 0.5 / grouped.size()).to_numpy()
    table["numbers"] = grouped["draws"].sum().to_numpy()
    return table.assign(group=table[names].agg(" ".join, axis=1)).drop(columns=names)


def _overview(found: pd.DataFrame, groups: pd.DataFrame, seconds: dict) -> pd.DataFrame:
    """Return a row per method: coverage, its range over groups, groups outside 93 to 97 %, and seconds."""
    rows = []
    for (method, probes), every in found.groupby(["method", "probes"], sort=False):
        here = groups[(groups["method"] == method) & (groups["probes"] == probes)]
        row = {"method": method, "probes": probes, "blocks": len(every), "exact %": every["exact"].mean()}
        row |= {"coverage %": every.loc[every["exact"] < 100, "coverage"].mean(), "groups": len(here)}
        row |= {"least": here["coverage"].min(), "most": here["coverage"].max()}
        row["outside"] = int((~here["coverage"].between(LOWEST, HIGHEST)).sum())
        row |= {"beyond four %": every["beyond four"].mean(), "worst": every["worst"].max()}
        rows.append(row | {"rms error %": every["rms"].mean(), "seconds": seconds[method, probes]})
    return pd.DataFrame(rows).round(2)


class _Matrices:
    """A column of one diagonal block as dense matrices, checked by one product of a plain double backward."""

    def __init__(self, objective: Objective, config: Config, layer: int, col: str, blocks: Sequence[Block]) -> None:
        column = Engines(objective, config.model, Products.linearised).column(layer, col, blocks)
        self.dim, self.shape, self.dtype, self.bytes_per_probe = column.dim, column.shape, column.dtype, 1
        self.like = column.like
        made = completed(dense_blocks(column), PARTS)
        self.blocks = {part: made[blocks[0], part] for part in PARTS}
        self.norms = {part: float(block.norm()) for part, block in self.blocks.items()}
        self.row = blocks[0]
        self._check(objective, layer, col)

    def split_matmat(self, probes: torch.Tensor, parts: Sequence[Part] = SPLIT) -> dict:
        """Return A V."""
        return {(self.row, part): self.blocks[part] @ probes for part in parts}

    def _check(self, objective: Objective, layer: int, col: str) -> None:
        side, vector = SidedColumn(objective, layer, col, [col]), torch.ones(self.dim, 1, dtype=self.dtype)
        suffix, scale = objective.suffix(side.weights), self.norms[Part.H] + self.norms[Part.H_o]
        for part, block in self.blocks.items():
            plain = side.gathered({part: DoubleBackward(suffix, part, side.parameters) @ side.spread(vector)})
            off = float((plain[col, part] - block @ vector).norm()) / scale
            if off > ROUNDING:
                raise ArithmeticError(f"{part} of {self.row} differs from double backward by {off:.1g}")


class _FromMatrices(Estimator):
    """The package's estimator with its products from matrices that are there already."""

    matrices: _Matrices

    def column(self, asked: object) -> _Matrices:
        """Return the column."""
        del asked
        return self.matrices


if __name__ == "__main__":
    main()
