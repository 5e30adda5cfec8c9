r"""Columns of Hessian blocks on the tape: a batch of probes in, products of H, H_o and H_f out.

One column of blocks shares its tangents. For K probes V in the space of `col`, a
forward pass gives df = J_col V of all of them, and a backward pass per part gives the
rows

.. math:: H_o V = J_{row}^T \frac{\partial^2 \ell}{\partial f^2} J_{col} V, \qquad
          H_f V = \frac{\partial^2 \langle \partial \ell / \partial f, f \rangle}
                       {\partial\,row \; \partial\,col} V

for every row at once: three passes, each about the cost of evaluating the network.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config.science import ModelConfig
from hessfig.curvature.column import (
    SPLIT,
    Products,
    Rows,
    completed,
    rows_of,
    to_multiply,
)
from hessfig.curvature.losses import output_gradient
from hessfig.curvature.problem import Objective, check_same, recurrence_like
from hessfig.models.tape.recording import build_tape
from hessfig.models.tape.steps import Mixing, mixing_of
from hessfig.models.tape.tape import (
    WEIGHT,
    Probes,
    Tangents,
    Tape,
    Weight,
    zeros_like_weight,
)
from hessfig.terms import Part
from hessfig.weights import Weight as NamedWeight


@contextmanager
def flush_denormals(dtype: torch.dtype) -> Iterator[None]:
    """Flush subnormal numbers (below 1e-38) to zero if `dtype` is float32.

    Saturated attention produces many subnormal numbers, which are slow on Intel processors:
    beyond sigma = 2, a cell of five layers took three times as long. In float64 they are
    kept, since norms may be as small. The setting of the process before is restored.
    """
    if dtype != torch.float32:
        yield
        return
    before = _flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _flushes_denormals() -> bool:
    """Whether subnormal numbers are already flushed to zero: 1e-310 is one in float64."""
    return float(torch.full((1,), 1e-310, dtype=torch.float64) * 1.0) == 0.0


class LinearisedNetwork:
    """The tape of a problem and the Hessian of its loss in the outputs, shared by every column.

    Columns with only weight matrices use `tape`; those with biases or norms use `merged`,
    where equal rows of the first layer are evaluated once. The network is evaluated in
    float64 whatever the type of the problem; products are in the type `products`, by
    default that of the problem.

    Parameters
    ----------
    objective : Objective
    model : ModelConfig
    products : dtype, optional
        Of tangents and linear maps (see hessfig.models.tape.tape.narrow).

    Raises
    ------
    OtherNetwork
        If the outputs of a tape differ from those of the network.
    """

    def __init__(
        self,
        objective: Objective,
        model: ModelConfig,
        *,
        products: torch.dtype | None = None,
    ) -> None:
        self.problem = objective.cast(torch.float64)
        self.model = model
        self.dtype = products or objective.dtype
        self.tape = self._tape(merged=False)

    @cached_property
    def merged(self) -> Tape:
        """The tape with equal rows merged, created on first use."""
        return self._tape(merged=True)

    def column(
        self, layer: int, col: str, rows: Sequence[str] | Rows
    ) -> LinearisedColumn:
        """Return the blocks (row, col) of `layer`; a side may be any group of weights on the tape.

        Parameters
        ----------
        layer : int
        col : str
            A weight or a group of them, whose entries are put one after the other.
        rows : names, or keys with their layer and name
        """
        side = self.problem.layout.side
        sides = rows_of(layer, rows)
        weights = [
            *side(layer, col),
            *(weight for at in sides.values() for weight in side(*at)),
        ]
        if all(weight.is_main for weight in weights):
            tape = self.tape
        else:
            tape = self.merged
        cols = [_key(weight) for weight in side(layer, col)]
        row_weights = {
            key: [_key(weight) for weight in side(*at)] for key, at in sides.items()
        }
        return LinearisedColumn(tape, self.dtype, self.problem, cols, row_weights)

    def holds(self, layer: int, name: str) -> bool:
        """Whether every weight of a name belongs to a step of the tape."""
        return all(
            self._is_held(weight) for weight in self.problem.layout.side(layer, name)
        )

    def _tape(self, *, merged: bool) -> Tape:
        """Return a tape with recorded cotangents; dl/df is evaluated in float64 before products are narrowed."""
        problem = self.problem
        with torch.no_grad():
            tape = build_tape(problem.network, problem.batch, self.model, merged=merged)
        check_same(problem, tape.output, "linearised network")
        tape.record(output_gradient(problem.loss, tape.output, problem.batch.targets))
        if self.dtype != problem.dtype:
            tape.narrow(self.dtype)
        return tape

    def _is_held(self, weight: NamedWeight) -> bool:
        """Whether a weight is a whole parameter, and the same one that a step has under this name."""
        if weight.index is not None or _key(weight) not in self.tape.holders:
            return False
        return self.tape.parameter(_key(weight)) is self.problem.network.get_parameter(
            weight.parameter
        )


class LinearisedColumn:
    """The blocks (row, col) of one column as operators on vectors in the space of `col`.

    `dim` is the number of entries of `col`, `shape` that of its weight, or (dim,) for a
    group.

    Parameters
    ----------
    tape : Tape
    dtype : dtype
        Of the products.
    objective : Objective
        Its loss gives d2l/df2, and its network the size of the whole Hessian.
    col : list of weights
    rows : dict
        From the key of a row to its weights.
    """

    def __init__(
        self,
        tape: Tape,
        dtype: torch.dtype,
        objective: Objective,
        col: list[Weight],
        rows: Mapping[Hashable, list[Weight]],
    ) -> None:
        self.tape = tape
        self.dtype = dtype
        self.objective = objective
        self.loss = objective.loss
        self.col = col
        self.rows = rows
        self.weights = [tape.parameter(weight) for weight in col]
        self.dim = sum(weight.numel() for weight in self.weights)
        if len(self.weights) == 1:
            self.shape = self.weights[0].shape
        else:
            self.shape = torch.Size([self.dim])
        self.like = recurrence_like(objective.network, dtype, self.dim)

    @property
    def bytes_per_probe(self) -> int:
        """Upper bound of the memory for the tangents of one probe: every variable once forward and twice backward."""
        entries = sum(value.numel() for value in self.tape.values.values())
        return 3 * entries * self.dtype.itemsize

    @torch.no_grad()
    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V of every row for all columns of `probes`: a forward pass, and a backward pass per part.

        H V is the sum of H_o V and H_f V where both are asked for, and has a backward pass of
        its own otherwise.

        Parameters
        ----------
        probes : (dim, k)
        parts : sequence of Part

        Returns
        -------
        dict
            (n, k) for each row of n entries and each part.
        """
        with flush_denormals(self.dtype):
            tangents = self.tape.push(self._perturbations(probes))
            pulled = {part: self._pulled(tangents, part) for part in to_multiply(parts)}
        self.tape.release(self.col)
        products = {
            (key, part): self._flat([(at, product[at]) for at in row], probes.shape[1])
            for key, row in self.rows.items()
            for part, product in pulled.items()
        }
        return completed(products, parts)

    def _pulled(self, tangents: Tangents, part: Part) -> dict[Weight, Probes | None]:
        """Pull back the tangents of dl/df for H_o, those of the cotangents of steps for H_f, and both for H.

        For H_oT both, except for the second derivative of the scores, which is H_fT.

        Returns
        -------
        dict
            (k, shape of the weight) for each weight of the rows; None where nothing reaches it.
        """
        tape = self.tape
        rows = list(
            dict.fromkeys(weight for row in self.rows.values() for weight in row)
        )
        if part == Part.H_fT:
            return self._bilinear(tangents, rows)
        df = None if part == Part.H_f else tangents[tape.nodes[-1].output]
        df_bar = None if df is None else self._curved(df)
        if part == Part.H_oT:
            instead = {self._scores.output: self._scores.pull_back_scores}
        else:
            instead = None
        return tape.pull_back(
            df_bar, None if part == Part.H_o else tangents, rows, instead
        )

    def _bilinear(
        self, tangents: Tangents, rows: Sequence[Weight]
    ) -> dict[Weight, Probes | None]:
        """Return the products of H_fT: only the scores are differentiated twice, so there is no cancellation.

        With T = x W_Q W_K^T x^T / c, a change dq = x dW_Q gives d(kbar) = Tbar^T dq / c, which is
        pulled back to W_K as x^T d(kbar), and the same with q and k exchanged.
        """
        scores = self._scores
        bars = dict(
            zip(
                scores.inputs,
                scores.bilinear([*map(tangents.get, scores.inputs)], [True] * 3),
                strict=True,
            )
        )
        holders = {row: self.tape.holders[row] for row in rows}
        return {
            row: holder.weight_product(WEIGHT, bars.get(holder.output), None)
            for row, holder in holders.items()
        }

    @cached_property
    def _scores(self) -> Mixing:
        """The attention scores in the layer of the column."""
        return mixing_of(self.tape, self.col[0][0])

    def _curved(
        self, df: Float[Tensor, "batch scored k vocab"]
    ) -> Float[Tensor, "batch scored k vocab"]:
        """Return (d2l/df2) df, in the type of the recorded outputs and then in that of the products.

        The outputs stay in float64 (`Tape.narrow`), because p - p^2 of a saturated softmax is
        lost in float32.
        """
        product: Tensor = self.loss.hessian_product(
            self.tape.output, df.to(self.tape.output.dtype)
        )  # type: ignore[operator]
        return product.to(self.dtype)

    def _perturbations(self, probes: Float[Tensor, "dim k"]) -> dict[Weight, Probes]:
        """Return the probes (dim, k) as perturbations (k, shape of the weight) of each weight of `col`."""
        pieces = probes.to(self.weights[0].device).T.split(
            [weight.numel() for weight in self.weights], dim=1
        )
        shaped = [
            piece.unflatten(1, weight.shape)
            for piece, weight in zip(pieces, self.weights, strict=True)
        ]
        return dict(zip(self.col, shaped, strict=True))

    def _flat(
        self, products: Sequence[tuple[Weight, Probes | None]], k: int
    ) -> Float[Tensor, "n k"]:
        """Return the products of a row's weights as one matrix (n, k); a weight that nothing reaches has zeros."""
        filled = [
            zeros_like_weight(self.tape.parameter(at), k, self.dtype)
            if product is None
            else product
            for at, product in products
        ]
        flat = [product.flatten(1) for product in filled]
        if len(flat) == 1:
            return flat[0].T
        return torch.cat(flat, dim=1).T


def _key(weight: NamedWeight) -> Weight:
    return (weight.layer, weight.name)
