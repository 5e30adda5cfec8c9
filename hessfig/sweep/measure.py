"""Measures one cell: brings its network to its state, measures the quantity, and returns rows and arrays."""

import time
import warnings

import torch

from hessfig.config.machine import card_of
from hessfig.curvature.problem import Objective
from hessfig.files import check_pin
from hessfig.measurements.catalogue import source_of_quantity, walks
from hessfig.measurements.quantity import At, Measured, Request, asked_of
from hessfig.models.blocks import blocks_of
from hessfig.states.point import drawn
from hessfig.sweep.plan import Cell

# TransformerLens's, not the user's.
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.jit")


def compute_cell(cell: Cell) -> Measured:
    """Measure `cell`; the numbers depend on `cell.science` only."""
    started = time.perf_counter()
    problem = draw_problem(cell)
    quantity = cell.variant.quantity(cell.quantity)
    own = source_of_quantity(cell.quantity, cell.config.config_dir)
    check_pin(
        cell.quantity, "quantities", found=own, planned=cell.science["version"][1]
    )
    measured = quantity.measured(problem, request_of(cell, problem))
    seconds = round(time.perf_counter() - started, 4)
    shared = {"num_layers": problem.layout.num_layers, "seconds": seconds}
    return Measured([{**shared, **row} for row in measured.rows], measured.arrays)


def draw_problem(cell: Cell) -> Objective:
    """Return the network at the cell's state with its data and loss, on the configured device."""
    network = drawn(cell.config, sigma=cell.sigma, seed=cell.seed, step=cell.step)
    if content := cell.science.get("content"):
        from hessfig.sweep.own_content import check_planned

        check_planned(
            cell.config, network, content, is_far=walks(cell.quantity, cell.config)
        )
    return network.to(torch.device(card_of(cell.config.device)))


def request_of(cell: Cell, objective: Objective) -> Request:
    """Return the request of a cell: blocks, parts, estimator, stream and settings."""
    blocks = blocks_of(cell.config.blocks, objective.layout, cell.config.model)
    at = At(cell.config, cell.sigma, cell.seed, cell.step)
    return asked_of(cell.variant.quantity(cell.quantity), blocks, at, cell.probe_counts)
