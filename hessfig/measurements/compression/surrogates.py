"""The loss and the matrices behind removing and rounding the weights of a block: exact, at many points at once."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call, vmap

from hessfig.curvature.approximations.named import Material, SampleGradients
from hessfig.curvature.approximations.signals import OutputSide
from hessfig.curvature.column import Column, completed, entries_of, view_of
from hessfig.curvature.problem import Objective
from hessfig.measurements.block_norms import dense_blocks
from hessfig.measurements.quantity import Request
from hessfig.terms import AT_OUTPUTS, Approximation, Block, Part, Surrogate
from hessfig.weights import Weight

AT_ONCE, BYTES = 64, 2**28  # points that the loss is evaluated at together: at most, and of what they may take


class Subject:
    """A diagonal block of a problem: its weights as one vector, the loss as their function, its matrices.

    All is float64 where the network is; matrices are always float64, in the order of the block.
    """

    def __init__(self, problem: Objective, request: Request, block: Block, column: Column) -> None:
        self.problem, self.block, self._column = problem, block, column
        self.side = problem.layout.side(block.layer, str(block.col))
        self._samples = SampleGradients(OutputSide(problem), request.stream(0, "labels"))
        self._suffix = problem.suffix(self.side)
        self.weights = self.flat({name: one.detach() for name, one in problem.network.named_parameters()})

    def flat(self, by_parameter: dict[str, Tensor]) -> Float[Tensor, " dim"]:
        """Return the block's entries of tensors that are shaped as the parameters."""
        return entries_of(by_parameter, self.side)

    @cached_property
    def pieces(self) -> list[tuple[Weight, torch.Size, Tensor]]:
        """Each weight of the block with its shape and the places of its entries in the block's vector."""
        shapes = [view_of(self.problem.network.get_parameter(one.parameter), one).shape for one in self.side]
        places = torch.arange(sum(shape.numel() for shape in shapes)).split([shape.numel() for shape in shapes])
        return list(zip(self.side, shapes, places, strict=True))

    @property
    def matrices(self) -> list[tuple[Weight, torch.Size, Tensor]]:
        """The pieces with two axes: neither biases nor gains."""
        return [piece for piece in self.pieces if len(piece[1]) == 2]

    @torch.no_grad()
    def losses(self, points: Float[Tensor, "k dim"]) -> Float[Tensor, " k"]:
        """Return the loss with the block's weights at each of the points, all others as they are."""
        chunk = max(1, min(AT_ONCE, BYTES // self._suffix.bytes_per_probe))
        return vmap(self._loss, chunk_size=chunk)(points - self.weights).double().cpu()

    def _loss(self, step: Float[Tensor, " dim"]) -> Tensor:
        moved = {f"network.{name}": value for name, value in self._moved(step).items()}
        terms = [scalar(functional_call(self._suffix, moved, (start,))) for start, scalar in self._suffix.terms(Part.H)]
        return torch.stack(terms).sum()

    def _moved(self, step: Tensor) -> dict[str, Tensor]:
        """Return the parameters that the block reaches, moved by a step; in no place is anything written."""
        found: dict[str, Tensor] = {}
        for weight, _, places in self.pieces:
            held = found.get(weight.parameter, self.problem.network.get_parameter(weight.parameter).detach())
            at = view_of(torch.arange(held.numel(), device=held.device).view_as(held), weight).flatten()
            flat = torch.zeros_like(held).flatten().index_put((at,), step[places], accumulate=True)
            found[weight.parameter] = held + flat.view_as(held)
        return found

    def surrogates(self, names: Collection[Surrogate]) -> dict[Surrogate, Float[Tensor, "dim dim"]]:
        """Return the matrices of the block by name."""
        dense = dense_blocks(self._column, AT_OUTPUTS)
        parts = completed(dense, [Part.H, Part.H_o])
        exact = {Surrogate.hessian: Part.H, Surrogate.gauss_newton: Part.H_o}
        found = {name: parts[self.block, part].double().cpu() for name, part in exact.items()}
        outer = found[Surrogate.gauss_newton].diagonal()
        if Surrogate.empirical_fisher in names:
            rows = self._material(self.side, outer.shape).approximation(Approximation.empirical_fisher)
            found[Surrogate.empirical_fisher] = rows.matmat(torch.eye(len(outer), dtype=torch.float64))
        found.update(self._of_maps(names, outer))
        return {name: (found[name] + found[name].T) / 2 for name in names}

    def _of_maps(self, names: Collection[Surrogate], outer: Tensor) -> dict[Surrogate, Tensor]:
        """Return K-FAC and the inputs' matrices: blocks of linear maps, and a diagonal for all other weights.

        That is the diagonal of the Gauss-Newton matrix next to K-FAC, and 1 beside inputs, whose blocks have a mean
        diagonal of 1.
        """
        kfac, inputs = outer.diag(), torch.eye(len(outer), dtype=torch.float64)
        for weight, shape, places in self.pieces:
            if len(shape) == 2 and self._samples.output_side.linear_of(weight) is not None:
                material, eye = self._material([weight], shape), torch.eye(len(places), dtype=torch.float64)
                square = places[:, None], places
                kfac[square] = material.approximation(Approximation.kfac).matmat(eye)
                seen = material.inputs.matmat(eye)
                inputs[square] = seen / (float(seen.diagonal().mean()) or 1.0)
        found = {Surrogate.kfac: kfac, Surrogate.inputs: inputs}
        return {name: one for name, one in found.items() if name in names}

    def _material(self, weights: Collection[Weight], shape: torch.Size) -> Material:
        return Material(self._samples, list(weights), shape)
