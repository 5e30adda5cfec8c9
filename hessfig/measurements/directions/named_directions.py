"""Directions that mean something at a state: gradient, its signs, updates, singular directions, eigenvectors."""

from collections.abc import Iterator
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config.enums import Heading
from hessfig.curvature.column import Column, entries_of, view_of
from hessfig.curvature.gradients import LossGradient
from hessfig.curvature.problem import Objective
from hessfig.curvature.spectral.extremes import End, extremes
from hessfig.curvature.spectral.lanczos import NotFinite, Square
from hessfig.measurements.quantity import Request
from hessfig.measurements.stability import Named, update_of
from hessfig.terms import Block, Optimiser, Part

Vector = Float[Tensor, " n"]


class NamedDirections:
    """The directions of a state, and their restrictions to the weights of any block; float64, on the CPU."""

    def __init__(self, problem: Objective, request: Request) -> None:
        self._problem, self._request = problem, request
        settings = request.at.config.directions
        self.headings = settings.named
        self.rules = settings.rules or [request.at.config.training.optimiser]

    @cached_property
    def gradient(self) -> Named:
        """The gradient of the loss of the measuring batch, by parameter."""
        return LossGradient(self._problem).gradient

    @cached_property
    def _updates(self) -> dict[Optimiser, Named]:
        at = self._request.at
        return {rule: update_of(self._problem, at, rule, at.config.directions.gradients) for rule in self.rules}

    def of(self, block: Block, column: Column) -> Iterator[tuple[str, Vector, bool]]:
        """Yield name, direction and whether it was found to the tolerance, for each but the singular directions."""
        for heading in self.headings:
            if heading in list(End):
                vector, is_found = self._eigenvector(End(heading.value), block, column)
                yield f"{heading}_direction", vector, is_found
            elif heading == Heading.update:
                yield from ((f"{rule}_update", self.entries(one, block), True) for rule, one in self._updates.items())
            elif heading != Heading.singular:
                yield f"{heading}_direction", self._plain(heading, block), True

    def entries(self, named: Named, block: Block) -> Vector:
        """Return the entries of a block's weights of tensors by parameter."""
        side = self._problem.layout.side(block.layer, block.col)
        return entries_of(named, side).detach().double().cpu()

    def singular(self, block: Block) -> tuple[Float[Tensor, " k"], Float[Tensor, "n k"]] | None:
        """Return singular values of the gradient of a block of one matrix, and u_k v_k^T as columns; None for others.

        A tensor of more axes (the kernels of a convolution) is a matrix with a row for each entry of the first.
        """
        side = self._problem.layout.side(block.layer, block.col)
        if Heading.singular not in self.headings or len(side) > 1:
            return None
        gradient = view_of(self.gradient[side[0].parameter], side[0])
        if gradient.ndim < 2:
            return None
        matrix = gradient.flatten(1).double().cpu()
        if not bool(matrix.isfinite().all()):
            return None
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return values, torch.einsum("ik,kj->ijk", left, right).flatten(0, 1)

    def _plain(self, heading: Heading, block: Block) -> Vector:
        if heading == Heading.random:
            dim, generator = self._problem.layout.size(block.layer, block.col), self._stream(block)
            return torch.randn(dim, dtype=torch.float64, generator=generator)
        slope = self.entries(self.gradient, block)
        return slope.sign() if heading == Heading.sign else slope

    def _eigenvector(self, end: End, block: Block, column: Column) -> tuple[Vector, bool]:
        settings, square, drawn = self._request.spectrum, Square(column, block, Part.H), self._stream(block)
        try:
            found = extremes(square, end, tolerance=settings.tolerance, steps=settings.steps, generator=drawn)
        except NotFinite:
            return torch.full((square.dim,), torch.nan, dtype=torch.float64), False
        return found.vectors[:, 0].cpu(), found.converged

    def _stream(self, block: Block) -> torch.Generator:
        return self._request.stream(block.layer, block.col)
