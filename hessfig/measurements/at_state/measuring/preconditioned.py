"""The preconditioned Hessian of all parameters as a symmetric operator, and its largest eigenvalue."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.curvlinops import view_of
from hessfig.curvature.problem import Problem
from hessfig.curvature.routes import Engines
from hessfig.curvature.spectral.extremes import End, extremes
from hessfig.curvature.spectral.lanczos import NotFinite, Square
from hessfig.measurements.at_state.measuring.rows import state_row
from hessfig.measurements.at_state.measuring.update import preconditioner
from hessfig.measurements.protocol import Measured, Request
from hessfig.record import Status
from hessfig.terms import Block, Group, Part

NAME = "preconditioned_eigenvalue"


class Scaled:
    """S A S for a diagonal S, given as a vector: symmetric as A is."""

    def __init__(self, operator: Square, scale: Float[Tensor, " n"]) -> None:
        self._operator, self._scale = operator, scale.double()[:, None]
        self.dim, self.rounding, self.products = operator.dim, operator.rounding, 0

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return S A S V."""
        self.products += vectors.shape[1]
        return self._scale * self._operator.matmat(self._scale * vectors)

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Ask what the operator inside allows."""
        self._operator.check_symmetric(asymmetry, size)


def measure(problem: Problem, request: Request) -> Measured:
    """Return one row, of the block of all parameters."""
    block = Block(0, Group.all.value, Group.all.value)
    engines = Engines(problem, request.model, request.estimator.products)
    square = Square(engines.column(0, Group.all.value, [block]), block, Part.H)
    operator, settings = Scaled(square, _scale(problem, request)), request.spectrum
    try:
        found = extremes(
            operator,
            End.largest,
            tolerance=settings.tolerance,
            steps=settings.steps,
            generator=request.stream(0, Group.all.value),
        )
    except NotFinite:
        nothing = float("nan")
        row = state_row(NAME, request, nothing, error=nothing, block=block, estimator="lanczos")
        return Measured([{**row, "part": Part.H.value}])
    row = state_row(
        NAME,
        request,
        float(found.values[0]),
        error=float(found.residuals[0]),
        block=block,
        estimator="lanczos",
        status=Status.ok if found.converged else Status.not_converged,
    )
    return Measured([{**row, "part": Part.H.value}])


def _scale(problem: Problem, request: Request) -> Float[Tensor, " n"]:
    """Return P^-1/2 in the order of the group of all parameters."""
    held = {name: parameter.detach().double() for name, parameter in problem.network.named_parameters()}
    diagonal = preconditioner(request.at, held)
    side = problem.layout.side(0, Group.all.value)
    pieces = [view_of(diagonal[one.parameter], one) for one in side]
    return torch.cat([piece.flatten() for piece in pieces]).rsqrt().cpu()
