"""Quantity quantisation: the loss after matrices were rounded to a few bits, plainly or with GPTQ's updates."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hessfig.curvature.brain_surgeon import RowGrids, damped_inverse, gptq
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError
from hessfig.measurements.compression.surrogates import Subject
from hessfig.measurements.eigenvalues import square_columns
from hessfig.measurements.quantity import Measured, Request, Row
from hessfig.measurements.training_dynamics import state_row
from hessfig.terms import Surrogate


def quantisation(problem: Objective, request: Request) -> Measured:
    """Return the true rise of the loss with all matrices of a block rounded: NAME_increase, `index` the bits.

    Rounding is to levels per row (see RowGrids): to the nearest, or weight by weight with the update of GPTQ for each
    of the matrices that stand for the curvature. Biases and gains are not rounded. Raises UserError for a block
    without a matrix.
    """
    rows: list[Row] = []
    for block, column in square_columns(problem, request):
        subject = Subject(problem, request, block, column)
        if not subject.matrices:
            raise UserError(
                f"quantities=[quantisation]: block {block} has no matrix, and only matrices are rounded",
                got=", ".join(one.name for one in subject.side),
                allowed="weights with two axes, or groups with one of them",
                remedy="blocks=[all]",
            )
        rows += _of_block(subject, request)
    return Measured(rows)


def _of_block(subject: Subject, request: Request) -> Iterator[Row]:
    weights, bits = subject.weights.double().cpu(), request.at.config.compression.bits
    places = torch.cat([one for _, _, one in subject.matrices])
    square, damping = (places[:, None], places), request.at.config.compression.damping
    grids = [RowGrids([weights[one].view(shape) for _, shape, one in subject.matrices], count) for count in bits]
    rounded = {"nearest": [grid(weights[places]) for grid in grids]}
    for surrogate, matrix in subject.surrogates(list(Surrogate)).items():
        inverse = damped_inverse(matrix[square], damping)
        rounded[f"gptq_{surrogate}"] = [gptq(weights[places], inverse, grid) for grid in grids]
    before = subject.losses(subject.weights[None])
    for name, found in rounded.items():
        points = _placed(weights, places, torch.stack(found)).to(subject.weights)
        for count, rise in zip(bits, (subject.losses(points) - before).tolist(), strict=True):
            yield state_row(f"{name}_increase", request, rise, block=subject.block, index=count)


def _placed(weights: Tensor, places: Tensor, values: Tensor) -> Tensor:
    found = weights.repeat(len(values), 1)
    found[:, places] = values
    return found
