"""Time largest eigenvalues and densities of H of the whole built-in network, each cell as `hessfig run` measures it.

The cells are those of docs/performance.md: the largest eigenvalue to 1e-3 and to 1e-6
from two starts, and a density in both types, of one layer (80 steps, 10 probes) and of
two (60 steps, 3 probes). Every cell runs in a fresh process with one thread; the
warm-up, which is not timed, is the eigenvalue to 1e-3.

    python scripts/benchmarks/spectra.py [--n-layers 1] [--rounds 1] [--output FILE.json]

writes the JSON (outputs/benchmarks/spectra_1_layers.json).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import runner
from runner import Run

from hessfig.config.enums import DType
from hessfig.config.science import SpectrumConfig
from hessfig.sweep.plan import Cell
from hessfig.terms import Part

DENSITIES = {1: SpectrumConfig(steps=80, num_probes=10)}
DEEP = SpectrumConfig(steps=60, num_probes=3)
WARM_UP = "largest eigenvalue to 1e-3"
TOY = {"d_model": 8, "digits": 1, "batch_size": 4, "rounds": 1}


def main(words: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the table."""
    options = runner.parse(__doc__, _options, TOY, words, rounds=1)
    runner.prepare(options.allocator)
    cells = _cells(options)
    work = {name: (measure, cells[WARM_UP], cell) for name, cell in cells.items()}
    report = runner.heading(options, ("n_layers", "d_model", "digits", "batch_size"))
    report["runs"] = runner.in_turn([work] * options.rounds)
    runner.write_report(options, f"spectra_{options.n_layers}_layers", report)
    rows = [_row(name, runs) for name, runs in report["runs"].items()]
    runner.print_table(("cell", "seconds", "peak GiB"), rows)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n-layers", type=int, default=1, help="depth (1)")
    runner.add_sizes(parser)


def _cells(options: argparse.Namespace) -> dict[str, Cell]:
    """Return the cell of every row by its name."""

    def cell(quantity: str, spectrum: SpectrumConfig, dtype: DType) -> Cell:
        drawn = runner.cell_of(
            options,
            options.n_layers,
            quantities=[quantity],
            blocks=["all"],
            parts=[Part.H],
            spectrum=spectrum,
            dtype=dtype,
        )
        return replace(drawn, quantity=quantity)

    density = DENSITIES.get(options.n_layers, DEEP)
    return {
        WARM_UP: cell(
            "largest_eigenvalue", SpectrumConfig(tolerance=1e-3), DType.float64
        ),
        "largest eigenvalue to 1e-6": cell(
            "largest_eigenvalue", SpectrumConfig(), DType.float64
        ),
        "density": cell("density", density, DType.float64),
        "density, float32": cell("density", density, DType.float32),
    }


def measure(warm_up: Cell, cell: Cell) -> dict[str, Any]:
    """Measure one cell after the warm-up; return its times, this process's memory and the states of its rows."""
    import torch

    from hessfig.sweep.measure import compute_cell

    torch.set_num_threads(1)
    compute_cell(warm_up)
    found, cost = runner.timed(lambda: compute_cell(cell))
    states = sorted({row["status"] for row in found.rows})
    quantities = sorted({row["quantity"] for row in found.rows})
    return {
        **cost,
        "peak_gib": runner.peak_gib(),
        "states": states,
        "quantities": quantities,
    }


def _row(name: str, runs: list[Run]) -> tuple[str, ...]:
    seconds = median(run["seconds"] for run in runs)
    peak = max(run["peak_gib"] for run in runs)
    return name, f"{seconds:.3g}", f"{peak:.2f}"


if __name__ == "__main__":
    main()
