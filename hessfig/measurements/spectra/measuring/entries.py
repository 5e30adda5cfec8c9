"""What quantities of spectra share: their blocks and parts one by one, as operators, and the label of each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hessfig.curvature.column import Column
from hessfig.curvature.problem import Problem
from hessfig.curvature.routes import Engines
from hessfig.curvature.spectral.lanczos import Square
from hessfig.measurements.blocks import block_row, columns
from hessfig.measurements.estimate import Estimate
from hessfig.measurements.protocol import Arrays, Request, Row
from hessfig.record import Status
from hessfig.terms import Block, Part

_NOTHING = float("nan")


@dataclass(frozen=True)
class Entry:
    """A part of a diagonal block as an operator; `rough` has its products in float32 where these are cheaper."""

    block: Block
    part: Part
    operator: Square
    rough: Square | None = None


class Spectra:
    """Rows and arrays of a cell, entry by entry: array `name_k` belongs to entry k of the list `entries`."""

    def __init__(self, request: Request, estimator: str) -> None:
        self.request, self.estimator = request, estimator
        self.rows: list[Row] = []
        self._labels: list[dict[str, Any]] = []
        self._arrays: Arrays = {}

    def row(
        self,
        quantity: str,
        at: tuple[Block, Part],
        value: float,
        error: float,
        *,
        index: int | None = None,
        num_probes: int = 0,
        status: Status | None = None,
    ) -> None:
        """Add a row; a number that is not finite has that status whatever `status` says."""
        found = Estimate(float(value), float(error), num_probes, self.estimator)
        row = {**block_row(quantity, self.request, *at, found), "index": index}
        if status is not None and row["status"] == Status.ok:
            row["status"] = status.value
        self.rows.append(row)

    def nothing(self, quantities: list[tuple[str, int | None]], at: tuple[Block, Part]) -> None:
        """Add rows without a number, for a block whose products are not finite."""
        for quantity, index in quantities:
            self.row(quantity, at, _NOTHING, _NOTHING, index=index)

    def keep(self, at: tuple[Block, Part], dim: int, label: dict[str, Any], arrays: Arrays) -> None:
        """Add an entry with its arrays."""
        block, part = at
        place = {"layer": block.layer, "row_layer": block.row_layer, "row": block.row, "col": block.col}
        number = len(self._labels)
        self._labels.append({**place, "part": part.value, "dim": dim, **label})
        self._arrays |= {f"{name}_{number}": value for name, value in arrays.items()}

    @property
    def arrays(self) -> Arrays:
        """The arrays of all entries, and the list `entries` of what they are (JSON)."""
        return {"entries": np.array(json.dumps(self._labels)), **self._arrays}


def square_columns(problem: Problem, request: Request) -> Iterator[tuple[Block, Column]]:
    """Yield every diagonal block that is asked for with its column."""
    for block, column, _ in _squares(problem, request):
        yield block, column


def entries(problem: Problem, request: Request) -> Iterator[Entry]:
    """Yield every part of every diagonal block that is asked for."""
    for block, column, _ in _squares(problem, request):
        for part in request.parts:
            yield Entry(block, part, Square(column, block, part))


def paired_entries(problem: Problem, request: Request) -> Iterator[Entry]:
    """Yield every part of every diagonal block that is asked for, with its rough operator."""
    for block, column, engines in _squares(problem, request):
        rough = engines.rough(column, block.layer, block.col, [block])
        for part in request.parts:
            beside = None if rough is None else Square(rough, block, part)
            yield Entry(block, part, Square(column, block, part), beside)


def _squares(problem: Problem, request: Request) -> Iterator[tuple[Block, Column, Engines]]:
    """Yield every diagonal block with its column and the engines, built once, that it is from."""
    engines = Engines(problem, request.model, request.estimator.products)
    for layer, col, blocks in columns(request.blocks):
        for block in blocks:
            yield block, engines.column(layer, col, [block]), engines


def indices(k: int) -> list[int | None]:
    """Return the index of each of the k outermost eigenvalues: 1, 2, ... from the outside; none for a single one."""
    return [None] if k == 1 else [*range(1, k + 1)]
