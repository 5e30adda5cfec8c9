"""Time one cell by every engine in one run: seconds, peak memory, error, and cost at the published recipe's error.

The published recipe makes six separate 20-probe estimates a layer (H, H_o and H_o - H of W_V and W_Q) with
curvlinops' own estimator on the whole model in float32. Each engine runs in a fresh process, all in turn, several
rounds (every round with a network of its own), so that drifts of the machine hit all; the ratios are what counts.

    python scripts/bench_norms.py [--n-layers 1] [--norm none] [--rounds 3] [--output outputs/benchmarks/norms.json]

writes the JSON and, next to it, the figure. Errors: relative_sem is the mean of standard error / norm over numbers
and rounds, an exact number counting as zero; rms_deviation is that of norm / exact norm - 1 (one layer only).
cost_at_equal_error is seconds * (relative_sem / published relative_sem)^2: the time the engine would take for the
published recipe's error; cost_at_equal_error_sampled is the same over the numbers alone which the engine samples.
Blocks that vanish identically are left out of both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import benchmarking
from bench_engines import ENGINES, EXACT, PROBES, PUBLISHED_2, measure_engine
from bench_summary import Runs, print_table, summaries

from hessfig.config.enums import Method, Norm
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant

FIRST_SEED = 1234
TOY = {"d_model": 8, "digits": 1, "batch_size": 4, "rounds": 1}
SETTINGS = ("n_layers", "norm", "d_model", "digits", "batch_size", "sigma", "rounds")


def main(words: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the table, draw the figure."""
    options = benchmarking.parse(__doc__, _add_options, TOY, words)
    rounds = _rounds(options)
    benchmarking.prepare(options.allocator)
    report = {**benchmarking.heading(options), "settings": _settings(options)}
    runs, rates = measure_rounds(rounds, 0.02 if options.quick else 0.5)
    report |= {"product_gflops": rates, "engines": summaries(runs), "runs": runs}
    output = options.output or _default_output(options)
    benchmarking.write_report(output, report)
    print_table(report)
    _draw(report, output)


def measure_rounds(rounds: list[dict[str, Cell]], seconds: float) -> tuple[Runs, dict[str, float]]:
    """Return every engine's runs, one a round, and the machine's rates (GFLOP/s, median over the rounds)."""
    runs: Runs = {name: [] for name in rounds[0]}
    rates = []
    for number, cells in enumerate(rounds, 1):
        rates.append(benchmarking.in_fresh_process(benchmarking.product_rates, seconds))
        for name, cell in cells.items():
            runs[name].append(benchmarking.in_fresh_process(measure_engine, name, cell))
            print(f"round {number}/{len(rounds)}: {name}, {runs[name][-1]['seconds']:.3g} s", file=sys.stderr)
    return runs, {name: median(rate[name] for rate in rates) for name in rates[0]}


def _rounds(options: argparse.Namespace) -> list[dict[str, Cell]]:
    """Return the cell of every engine, round by round."""
    left_out = {EXACT} if options.n_layers > 1 else set()
    left_out |= {PUBLISHED_2} if options.quick else set()
    names = [name for name in ENGINES if name not in left_out]
    seeds = range(FIRST_SEED, FIRST_SEED + options.rounds)
    return [{name: _cell(options, name, seed) for name in names} for seed in seeds]


def _cell(options: argparse.Namespace, name: str, seed: int) -> Cell:
    engine = ENGINES[name]
    config = Config(
        task=TaskConfig(digits=options.digits, batch_size=options.batch_size),
        model=ModelConfig(n_layers=options.n_layers, norm=Norm(options.norm), d_model=options.d_model),
        estimator=EstimatorConfig(engine.method or Method.hutchinson, engine.products, PROBES),
        dtype=engine.dtype,
    )
    return Cell(Variant("", benchmarking.checked(config)), options.sigma, seed)


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(options, name) for name in SETTINGS} | {"num_probes": PROBES, "seed": FIRST_SEED}


def _default_output(options: argparse.Namespace) -> Path:
    name = "norms" if options.n_layers == 1 else f"norms_{options.n_layers}_layers"
    return Path("outputs/benchmarks") / f"{name}.json"


def _draw(report: dict[str, Any], output: Path) -> None:
    from bench_figures import draw_norms

    draw_norms(report, output)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n-layers", type=int, default=1, help="all layers' W_V and W_Q are measured (1)")
    parser.add_argument("--norm", choices=list(Norm), default="none", help="LayerNorm (none)")
    parser.add_argument("--sigma", type=float, default=0.5, help="scale of the embeddings (0.5)")
    parser.add_argument("--d-model", type=int, default=128, help="width (128)")
    parser.add_argument("--digits", type=int, default=5, help="digits of the summands (5)")
    parser.add_argument("--batch-size", type=int, default=64, help="sequences (64)")


if __name__ == "__main__":
    main()
