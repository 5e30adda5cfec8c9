"""Measure what the claim on the entries of Figure 4 reads, and keep it in docs/studies/entry_medians.csv.

python scripts/pages/entry_medians.py

The whole Hessians of the sweep entries_seeds fill 2 GB. The claim reads two numbers of
each: the medians of the absolute entries, zeros left out, of the diagonal blocks of
W_V and W_Q. This script measures these two blocks of the same networks as dense
matrices (half a second per network).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from hessfig.analysis.axis import settings_of
from hessfig.config.compose.job import compose
from hessfig.measurements.block_norms import dense_parts
from hessfig.measurements.quantity import columns
from hessfig.models.routes import Engines
from hessfig.sweep.measure import draw_problem, request_of
from hessfig.sweep.plan import Cell, Sweep
from hessfig.terms import Part

KEPT = Path(__file__).parents[2] / "docs/studies/entry_medians.csv"
PLAN = ["sweep=entries_seeds", "quantities=[frobenius]", "blocks=[W_V, W_Q]"]


def medians(cell: Cell) -> list[dict[str, Any]]:
    """Return a row per block of the cell's network: the median of |entries| that are not 0, and their number."""
    objective = draw_problem(cell)
    request = request_of(cell, objective)
    engines = Engines(objective, request.model, request.estimator.products)
    rows = []
    for layer, col, blocks in columns(request.blocks):
        dense = dense_parts(engines.column(layer, col, blocks), [Part.H])
        for block in blocks:
            # Stored Hessians are float32.
            sizes = dense[block, Part.H].float().abs()
            sizes = sizes[sizes > 0]
            row = {
                "attention": settings_of(cell.labels["variant"])["model.attention"],
                "seed": cell.seed,
                "row": block.row,
                "num_entries": len(sizes),
                "median": sizes.double().quantile(0.5).item(),
            }
            rows.append(row)
    return rows


if __name__ == "__main__":
    cells = Sweep(compose(PLAN).variants).cells
    table = pd.DataFrame([row for cell in cells for row in medians(cell)])
    table.to_csv(KEPT, index=False)
    print(f"{KEPT.name}: {len(table)} medians of {len(cells)} networks")
