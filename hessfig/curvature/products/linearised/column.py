"""Columns of blocks on the tape: one pass up and two down serve H_o and H_f of every row, for all probes at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config import ModelConfig
from hessfig.curvature.column import SPLIT, Products, Rows, completed, rows_of, to_multiply
from hessfig.curvature.problem import Problem
from hessfig.curvature.products.linearised.network import build_tape
from hessfig.curvature.products.linearised.tape import Tangents, Tape, Weight, zeros_like_weight
from hessfig.curvature.products.linearised.weights import Probes
from hessfig.curvature.same_network import check_same
from hessfig.models.protocol import Weight as NamedWeight
from hessfig.tasks.losses import output_gradient
from hessfig.terms import Matrix, Part


class LinearisedNetwork:
    """The tape of a problem and the Hessian of its loss in the outputs, shared by every column.

    Raises OtherNetwork when the tape does not give the network's own outputs.
    """

    def __init__(self, problem: Problem, model: ModelConfig) -> None:
        with torch.no_grad():
            self.tape: Tape = build_tape(problem.network, problem.batch, model)
        check_same(problem, self.tape.output, "linearised network")
        self.problem, self.dtype = problem, problem.dtype
        self.tape.record(output_gradient(problem.loss, self.tape.output, problem.batch.targets))

    def column(self, layer: int, col: str, rows: Sequence[str] | Rows) -> LinearisedColumn:
        """Return the blocks (row, col) of `layer`; a side may be a group of weights that the tape holds."""
        return LinearisedColumn(self, layer, col, rows_of(layer, rows))

    def holds(self, layer: int, name: str) -> bool:
        """Whether every weight behind a name is a step of the tape."""
        side = self.problem.layout.side(layer, name)
        return all(weight.is_main and _key(weight) in self.tape.holders for weight in side)

    def side(self, layer: int, name: str) -> list[Weight]:
        """Return the tape's weights behind a name."""
        return [_key(weight) for weight in self.problem.layout.side(layer, name)]

    def output_hessian(
        self, df: Float[Tensor, "batch scored k vocab"]
    ) -> Float[Tensor, "batch scored k vocab"]:
        """Multiply by d2l/df2, which couples the outputs of one position only."""
        return self.problem.loss.hessian_product(self.tape.output, df)  # type: ignore[operator]


class LinearisedColumn:
    """The blocks (row, col) of one column as operators on vectors in col's space."""

    def __init__(self, network: LinearisedNetwork, layer: int, col: str, rows: Rows) -> None:
        self.network = network
        self.rows = {key: network.side(*at) for key, at in rows.items()}
        self.col = network.side(layer, col)
        self.weights = [network.tape.holders[weight].weight for weight in self.col]
        self.dim, self.dtype = sum(weight.numel() for weight in self.weights), network.dtype
        self.shape = self.weights[0].shape if len(self.weights) == 1 else torch.Size([self.dim])

    @property
    def bytes_per_probe(self) -> int:
        """Memory of one probe's tangents, counted from above: every variable up and twice down."""
        entries = sum(value.numel() for value in self.network.tape.values.values())
        return 3 * entries * self.weights[0].element_size()

    @torch.no_grad()
    def split_matmat(self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V of every row for all columns of `probes`: one pass up, then one down for each of `parts`."""
        tape = self.network.tape
        tangents = tape.push(self._perturbations(probes))
        found = {part: self._pulled(tangents, part) for part in to_multiply(parts)}
        tape.release(self.col)
        products = {
            (key, part): self._flat([(at, product[at]) for at in row], probes.shape[1])
            for key, row in self.rows.items()
            for part, product in found.items()
        }
        return completed(products, parts)

    def _pulled(self, tangents: Tangents, part: Part) -> dict[Weight, Probes | None]:
        """Pull back the tangents of dl/df for H_o, those of the steps' own cotangents for H_f, both at once for H."""
        tape = self.network.tape
        rows = list(dict.fromkeys(weight for row in self.rows.values() for weight in row))
        df = None if part == Part.H_f else tangents[tape.nodes[-1].output]
        df_bar = None if df is None else self.network.output_hessian(df)
        return tape.pull_back(df_bar, None if part == Part.H_o else tangents, rows)

    def _perturbations(self, probes: Float[Tensor, "dim k"]) -> dict[Weight, Probes]:
        pieces = probes.to(self.weights[0].device).T.split([weight.numel() for weight in self.weights], dim=1)
        return {
            name: piece.unflatten(1, weight.shape)
            for name, weight, piece in zip(self.col, self.weights, pieces, strict=True)
        }

    def _flat(self, products: Sequence[tuple[Weight, Probes | None]], k: int) -> Float[Tensor, "n k"]:
        holders = self.network.tape.holders
        filled = [
            zeros_like_weight(holders[at].weight, k) if product is None else product
            for at, product in products
        ]
        flat = [product.flatten(1).T for product in filled]
        return flat[0] if len(flat) == 1 else torch.cat(flat)


def _key(weight: NamedWeight) -> Weight:
    return (weight.layer, Matrix(weight.name))
