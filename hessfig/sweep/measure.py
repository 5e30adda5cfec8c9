"""Measure one cell: take its network to its state, ask for its quantity, return rows and arrays."""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Generator

from hessfig.curvature.problem import Problem
from hessfig.measurements.protocol import At, Measured, Request
from hessfig.models.blocks import blocks_of
from hessfig.record import FROBENIUS
from hessfig.rng import stream
from hessfig.states.point import drawn
from hessfig.sweep.plan import Cell


def measure(cell: Cell) -> Measured:
    """Return what was measured of `cell`; the numbers depend on `cell.science` alone."""
    started = time.perf_counter()
    problem = draw_problem(cell)
    found = cell.setup.quantity(cell.quantity).measure(problem, request_of(cell, problem))
    seconds = round(time.perf_counter() - started, 4)
    shared = {"num_layers": problem.layout.num_layers, "seconds": seconds}
    return Measured([{**shared, **row} for row in found.rows], found.arrays)


def draw_problem(cell: Cell) -> Problem:
    """Return the network at the cell's state with its data and loss, on the configured device."""
    problem = Problem.of(drawn(cell.config, sigma=cell.sigma, seed=cell.seed, step=cell.step))
    return problem.to(torch.device(cell.config.device))


def request_of(cell: Cell, problem: Problem) -> Request:
    """Return what a cell asks of its problem."""
    config, blocks = cell.config, blocks_of(cell.config.blocks, problem.layout, cell.config.model)
    return Request(
        blocks=[block for block in blocks if cell.setup.quantity(cell.quantity).serves(block)],
        parts=config.parts,
        estimator=config.estimator,
        model=config.model,
        dtype=config.dtype,
        stream=partial(probe_stream, cell.seed, cell.quantity, cell.sigma, step=cell.step),
        settled=cell.settled,
        at=At(config, cell.sigma, cell.seed, cell.step),
        spectrum=config.spectrum,
    )


def probe_stream(
    seed: int, name: str, sigma: float | None, layer: int, col: str, *, step: int | None = None
) -> Generator:
    """Return the generator of a column's probes: every quantity, state and column has its own."""
    names = ("probes",) if name == FROBENIUS else ("probes", name)
    steps = () if step is None else ("step", step)
    return stream(seed, *names, sigma, layer, str(col), *steps)
