"""W_Q, W_K and W_QK below the last layer: exact through the causal scores of a sequence.

Either weight enters the loss through the scores s alone, and linearly: ds = Phi dW. With P_b = d2l/ds2 of sequence b,
H = sum_b Phi_b^T P_b Phi_b and ||H||_F^2 = sum_bc tr(P_b G_bc P_c G_bc^T), G_bc = Phi_b Phi_c^T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessfig.curvature.exact.lower.outer import Rows
from hessfig.curvature.exact.lower.passes import pull_to, push_from
from hessfig.curvature.products.linearised.mixing import Mixing
from hessfig.curvature.products.linearised.tape import Tape
from hessfig.curvature.products.linearised.weights import LinearMap
from hessfig.terms import Matrix, Part

_AT_ONCE = 5


@dataclass(frozen=True)
class Scores:
    """The scores s_hij listed: heads, queries i, keys j <= i."""

    head: Int[Tensor, " p"]
    query: Int[Tensor, " p"]
    key: Int[Tensor, " p"]


class LowerScores:
    """The scores of one layer below the last, up to the last scored position, and the loss's curvature in them."""

    def __init__(self, tape: Tape, layer: int, length: int) -> None:
        self.tape, self.name = tape, f"m{layer}"
        self.mixing = next(
            node for node in tape.nodes if isinstance(node, Mixing) and node.output == self.name
        )
        self.inputs = _inputs(tape, layer)[:, :length]
        self.scores, self.length = _causal_scores(self.mixing.heads, length, self.inputs.device), length

    def squared_norms(self, matrix: Matrix, rows: Rows, parts: Sequence[Part]) -> dict[Part, float]:
        """Return ||H||_F^2 and ||H_f||_F^2 of `matrix`; `rows` are R df/dz of the mixed values z."""
        curvatures = {Part.H_f: self.functional} if Part.H_f in parts else {}
        if Part.H in parts:
            jacobian = self._by_score(rows[:, :, : self.length].transpose(1, 2))
            curvatures[Part.H] = self.functional + jacobian @ jacobian.mT
        totals = dict.fromkeys(curvatures, 0.0)
        for b in range(len(self.inputs)):
            gram = self._gram(matrix, b)
            for part, curvature in curvatures.items():
                products = ((curvature[b] @ gram) * (gram @ curvature[b:])).sum(dim=(1, 2))
                totals[part] += float(2 * products.sum() - products[0])
        return totals

    @cached_property
    def functional(self) -> Float[Tensor, "batch p p"]:
        """P_f: what follows the mixed values, column by column, and softmax's own diag(g) - g A^T - A g^T."""
        columns = [
            self._columns(chosen)
            for chosen in torch.arange(len(self.scores.head), device=self.inputs.device).split(_AT_ONCE)
        ]
        behind = torch.cat(columns, dim=2)
        if self.mixing.is_linear:
            return behind
        at = self.scores
        assert self.mixing.cotangent is not None
        gradient = self._by_score(self.mixing.cotangent[:, : self.length, None])
        pattern = self.mixing.pattern[:, at.head, at.query, at.key, None]
        same_query = (at.head[:, None] == at.head) & (at.query[:, None] == at.query)
        own = torch.diag_embed(gradient[..., 0]) - same_query * (
            gradient @ pattern.mT + pattern @ gradient.mT
        )
        return behind + own

    @cached_property
    def _slopes(self) -> Float[Tensor, "batch heads query key d_head"]:
        """dz_hi/ds_hij: A_hij (v_hj - z_hi), or v_hj for linear attention."""
        mixing, known = self.mixing, slice(self.length)
        values = mixing.v[:, :, None, known]
        if mixing.is_linear:
            return mixing.allowed[known, known, None] * values
        pattern = mixing.pattern[:, :, known, known]
        return pattern[..., None] * (values - (pattern @ mixing.v[:, :, known])[:, :, :, None])

    def _columns(self, chosen: Int[Tensor, " k"]) -> Float[Tensor, "batch p k"]:
        """Return the columns of d2<dl/df, f>/ds2 that belong to `chosen` scores, softmax itself left out."""
        at, mixing = self.scores, self.mixing
        head, query, key = at.head[chosen], at.query[chosen], at.key[chosen]
        seeds = mixing.value.new_zeros(*mixing.value.shape[:2], len(chosen), mixing.heads, mixing.v.shape[-1])
        seeds[:, query, torch.arange(len(chosen), device=chosen.device), head] = self._slopes[
            :, head, query, key
        ]
        tangents = push_from(self.tape, {self.name: seeds.flatten(3)})
        bar = pull_to(self.tape, [self.name], None, tangents)[self.name]
        if bar is None:
            return mixing.value.new_zeros(len(mixing.value), len(at.head), len(chosen))
        return self._by_score(bar[:, : self.length])

    def _by_score(self, rows: Float[Tensor, "batch length k mixed"]) -> Float[Tensor, "batch p k"]:
        """Return dz/ds^T rows."""
        by_head = rows.unflatten(3, (self.mixing.heads, -1)).permute(0, 3, 1, 4, 2)
        products = self._slopes @ by_head
        return products[:, self.scores.head, self.scores.query, self.scores.key]

    def _gram(self, matrix: Matrix, b: int) -> Float[Tensor, "later p p"]:
        """G_bc for every c >= b: a score's feature is x_i (x) k_hj / scale for W_Q, x_j (x) q_hi / scale for W_K."""
        at, mixing, known = self.scores, self.mixing, slice(self.length)
        outer, inner = (at.key, at.query) if matrix == Matrix.W_K else (at.query, at.key)
        vectors = (mixing.q if matrix == Matrix.W_K else mixing.k)[:, :, known] / mixing.scale
        of_inputs = self.inputs[b] @ self.inputs[b:].mT
        of_vectors = vectors[b] @ vectors[b:].mT
        same_head = at.head[:, None] == at.head
        picked = of_vectors[:, at.head[:, None], inner[:, None], inner] * same_head
        return picked * of_inputs[:, outer[:, None], outer]


def _inputs(tape: Tape, layer: int) -> Tensor:
    holder = tape.holders[layer, Matrix.W_V]
    assert isinstance(holder, LinearMap)
    return holder.x


def _causal_scores(heads: int, length: int, device: torch.device) -> Scores:
    query, key = torch.tril_indices(length, length, device=device)
    head = torch.arange(heads, device=device).repeat_interleave(len(query))
    return Scores(head, query.repeat(heads), key.repeat(heads))
