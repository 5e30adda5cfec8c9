"""Measure one cell: draw its network, estimate the norms of its blocks, return rows of the table."""

from __future__ import annotations

import math
import time
from typing import Any

import torch

from hessfig.config import Config, DType, Method
from hessfig.curvature.problem import Problem
from hessfig.curvature.whole import dense_hessian
from hessfig.measurements.frobenius.estimator import Estimator
from hessfig.measurements.frobenius.norms import BlockNorm
from hessfig.models.build import build_model
from hessfig.models.structure import is_structural_zero
from hessfig.rng import stream
from hessfig.sweep.plan import Cell, columns
from hessfig.tasks.batch import draw_batch
from hessfig.tasks.losses import loss_module
from hessfig.terms import Block, Matrix, Part

Row = dict[str, Any]


def measure(cell: Cell) -> list[Row]:
    """Return one row per block and part of `cell`; the number depends on `cell.science` alone."""
    started = time.perf_counter()
    config = cell.config
    estimator = Estimator(draw_problem(cell), config.model, config.estimator, cell.allotted)
    rows = [
        row
        for layer, col, others in columns(config)
        for row in _column_rows(cell, estimator, layer, col, others)
    ]
    seconds = round(time.perf_counter() - started, 4)
    return [{**row, "seconds": seconds} for row in rows]


def dense(cell: Cell) -> dict[str, Any]:
    """Return the whole Hessian of a `sweep.keep_dense` cell as arrays: hessian (float32), names, sizes."""
    whole = dense_hessian(draw_problem(cell))
    return {"hessian": whole.matrix.cpu().float().numpy(), "names": whole.names, "sizes": whole.sizes}


def draw_problem(cell: Cell) -> Problem:
    """Draw the batch (from the task's seed) and the network (from the cell's seed and sigma)."""
    config = cell.config
    batch = draw_batch(config.task, width=config.model.d_model, dtype=config.dtype)
    network = build_model(
        config.model, sigma=cell.sigma, seed=cell.seed, length=batch.length, dtype=config.dtype
    )
    return Problem(network, batch, loss_module(config.task.loss)).to(torch.device(config.device))


def _column_rows(
    cell: Cell, estimator: Estimator, layer: int, col: Matrix, others: list[Matrix]
) -> list[Row]:
    config = cell.config
    generator = stream(cell.seed, "probes", cell.sigma, layer, col.value)
    norms = estimator.column_norms(layer, col, others, config.parts, generator=generator)
    return [_row(config, Block(layer, row, col), part, norm) for (row, part), norm in norms.items()]


def _row(config: Config, block: Block, part: Part, norm: BlockNorm) -> Row:
    return {
        "num_layers": config.model.n_layers,
        "layer": block.layer,
        "row": block.row.value,
        "col": block.col.value,
        "part": part.value,
        "frob": norm.frob,
        "frob_sem": norm.frob_sem,
        "num_probes": norm.num_probes,
        **_made_by(config, norm),
        "status": _status(config, block, part, norm),
    }


def _made_by(config: Config, norm: BlockNorm) -> dict[str, str]:
    """Say which estimator and type made this number: exact norms are float64 whatever the probes are."""
    method = config.estimator.method
    exact = method == Method.exact or (method == Method.auto and norm.num_probes == 0)
    if exact:
        return {"estimator": Method.exact.value, "dtype": DType.float64.value}
    return {"estimator": method.value, "dtype": config.dtype.value}


def _status(config: Config, block: Block, part: Part, norm: BlockNorm) -> str:
    if not math.isfinite(norm.frob):
        return "nonfinite"
    if not is_structural_zero(config.model, block, part):
        return "ok"
    if norm.frob != 0.0:
        raise ArithmeticError(
            f"{part} of block {block} must vanish by the network's structure but is {norm.frob!r}"
        )
    return "structural_zero"
