r"""Exact norms for weights below the last layer: outer-product blocks, and functional blocks of the scores.

Below the last layer an output depends on the vectors of many positions, so a block is
no sum over items. Two structures are left.

Outer product. H_o = sum_b F_b^T F_b over the sequences b, where F_b = R df/dtheta has one
row per scored output of the sequence. There are fewer rows than weights, and

.. math:: \|H_o(\theta, \theta')\|_F^2 = \sum_{b, c} \langle F_b F_c^T, F'_b F_c'^T \rangle

takes only Gram matrices of rows.

Scores. W_Q and W_K enter the loss through the causal scores s = Phi theta alone (the
linear-bottleneck identity), so that H = Phi^T P Phi with P = d2l/ds2, and

.. math:: \|H\|_F^2 = \sum_{b, c} \operatorname{tr}(P_b G_{bc} P_c G_{bc}^T), \qquad G_{bc} = \Phi_b \Phi_c^T.
"""

from collections.abc import Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hessfig.curvature.problem import Objective
from hessfig.models.exact.scored_layer import loss_rows
from hessfig.models.tape.steps import mixing_of
from hessfig.models.tape.tape import LinearMap, Tape
from hessfig.terms import Matrix, Part

_ATTENTION = (Matrix.W_Q, Matrix.W_K, Matrix.W_QK, Matrix.W_V, Matrix.W_O)
_MLP = (Matrix.W_in, Matrix.W_out)

Rows = Float[Tensor, "batch rank length m"]


class OutputRows:
    """R df/dy for the weights of one layer at a time, with R^T R = d2l/df2.

    F_b has scored times outputs rows: 72 per sequence for five-digit addition (6 scored
    positions of 12 tokens). The rows are pulled back once for all weights of the attention,
    or of the MLP, of a layer; one backward pass takes the rows of one scored position of
    all sequences.

    Parameters
    ----------
    objective : Objective
    tape : Tape
        Recorded on the same batch, without merged rows.
    """

    def __init__(self, objective: Objective, tape: Tape) -> None:
        self.tape = tape
        batch, scored = tape.output.shape[:2]
        root = loss_rows(objective, tape.output)[1].expand(batch * scored, -1, -1)
        self.root: Float[Tensor, "batch scored outputs outputs"] = root.unflatten(
            0, (batch, scored)
        )
        self._held: tuple[int, tuple[Matrix, ...]] = (0, ())
        self._rows: dict[str, Rows] = {}

    def outer_squared_norm(self, layer: int, row: Matrix, col: Matrix) -> float:
        r"""Return ||H_o(row, col)||_F^2 of `layer`.

        .. math:: \Big\|\sum_b F_b^T F'_b\Big\|_F^2 = \sum_{b, c} \langle F_b F_c^T, \; F'_b F_c'^T \rangle,

        by tr(F_b'^T F_b F_c^T F'_c) = <F_b F_c^T, F'_b F'_c^T>. The summand is symmetric in (b,
        c): pairs with c > b count twice, the pair (b, b) once.
        """
        first = self.factor(layer, row)
        second = self.factor(layer, col)
        total = 0.0
        for b in range(len(self.root)):
            gram = _gram(*first, b)
            other = gram if row == col else _gram(*second, b)
            products = (gram * other).sum(dim=(1, 2))
            total += float(2 * products.sum() - products[0])
        return total

    def mixed(self, layer: int) -> Rows:
        """Return the rows R df/dz of the mixed values z of `layer`, (batch, rank, length, heads d_head)."""
        return self._at(layer, Matrix.W_V)[f"m{layer}"]

    def factor(
        self, layer: int, matrix: Matrix
    ) -> tuple[Float[Tensor, "batch length v"], Rows]:
        """Return the inputs x of `matrix` and the rows R df/dy of its outputs y.

        F_b = sum_i x_i (x) (R df/dy_i) over the positions i of sequence b.
        """
        holder = self.tape.holders[layer, matrix]
        assert isinstance(holder, LinearMap)
        return holder.x, self._at(layer, matrix)[holder.output]

    def _at(self, layer: int, matrix: Matrix) -> dict[str, Rows]:
        """Pull the rows back to all weights of the attention or of the MLP of `layer` at once; keep the last result."""
        group = _MLP if matrix in _MLP else _ATTENTION
        if self._held != (layer, group):
            self._held = (layer, group)
            self._rows = {}
            self._rows = self._pulled(self._names(layer, group))
        return self._rows

    def _pulled(self, names: list[str]) -> dict[str, Rows]:
        """Return the rows, written in place: they are the largest tensors, (positions times outputs) per variable.

        One scored position at a time keeps the cotangents of the backward pass at `outputs`
        rows per position.
        """
        scored, outputs = self.root.shape[1:3]
        shapes = {name: self.tape.values[name].shape for name in names}
        rows = {
            name: self.root.new_zeros(b, scored, outputs, length, m)
            for name, (b, length, m) in shapes.items()
        }
        for position in range(scored):
            for name, piece in self.tape.pull_to(
                names, self._seed(position), None
            ).items():
                if piece is not None:
                    rows[name][:, position] = piece.transpose(1, 2)
        return {name: filled.flatten(1, 2) for name, filled in rows.items()}

    def _names(self, layer: int, group: tuple[Matrix, ...]) -> list[str]:
        names = [
            self.tape.holders[layer, m].output
            for m in group
            if (layer, m) in self.tape.holders
        ]
        if group == _MLP:
            return names
        return [*names, f"m{layer}"]

    def _seed(self, position: int) -> Float[Tensor, "batch scored outputs outputs"]:
        """Return R at one scored position and zero at the others, the cotangent of the outputs."""
        seed = torch.zeros_like(self.root)
        seed[:, position] = self.root[:, position]
        return seed


def _gram(
    inputs: Float[Tensor, "batch length v"], rows: Rows, b: int
) -> Float[Tensor, "later rank rank"]:
    """Return F_b F_c^T for every c >= b, in pieces of 16 sequences."""
    pieces = zip(inputs[b:].split(16), rows[b:].split(16), strict=True)
    return torch.cat([_products(inputs[b], rows[b], *piece) for piece in pieces])


def _products(x: Tensor, rows: Tensor, others: Tensor, other_rows: Rows) -> Tensor:
    r"""Return F_b F_c^T of some sequences c, without forming F_b.

    .. math:: F_b F_c^T = \sum_{i, j} (x_{bi} \cdot x_{cj}) \, r_{bi} r_{cj}^T,

    as a product over positions (the inputs' Gram matrix times the rows of b) and one over
    positions and numbers: rank L^2 m + rank^2 L m multiplications per pair of sequences,
    instead of the rank^2 v m of F_b itself.
    """
    mixed = (others @ x.T)[:, None] @ rows
    return other_rows.flatten(2) @ mixed.flatten(2).mT


_AT_ONCE = 5


class LowerScores:
    """The scores of one layer below the last, up to the last scored position, and the curvature of the loss in them.

    The scores s_hij are listed: `head` h, `query` i, `key` j <= i; p = heads L (L + 1) / 2
    of them per sequence, for L positions. Later positions are read by no scored output.

    Parameters
    ----------
    tape : Tape
    layer : int
        From 1, below the last.
    length : int
        L, the number of positions up to the last scored one.
    """

    def __init__(self, tape: Tape, layer: int, length: int) -> None:
        self.tape = tape
        self.name = f"m{layer}"
        self.mixing = mixing_of(tape, layer)
        values = tape.holders[layer, Matrix.W_V]
        assert isinstance(values, LinearMap)
        self.inputs = values.x[:, :length]
        self.length = length
        heads = self.mixing.heads
        device = self.inputs.device
        query, key = torch.tril_indices(length, length, device=device)
        self.head = torch.arange(heads, device=device).repeat_interleave(len(query))
        self.query, self.key = query.repeat(heads), key.repeat(heads)

    def squared_norms(
        self, matrix: Matrix, rows: Rows, parts: Sequence[Part]
    ) -> dict[Part, float]:
        r"""Return ||H||_F^2 and ||H_f||_F^2 of `matrix`, by the linear-bottleneck identity.

        .. math:: \|H\|_F^2 = \sum_{b, c} \operatorname{tr}(P_b G_{bc} P_c G_{bc}^T), \qquad
                  P = P_f + J^T J, \quad J = R \frac{\partial f}{\partial s},

        with P_f alone for H_f. P is block diagonal in the sequences, and the sum over (b, c) is
        symmetric, so that c > b counts twice. Each pair takes 4 p^3 operations.

        Parameters
        ----------
        matrix : Matrix
            W_Q, W_QK or W_K.
        rows : (batch, rank, length, heads d_head)
            R df/dz of the mixed values z of the layer.
        parts : sequence of Part
            H, H_f or both.
        """
        curvatures = {Part.H_f: self.functional} if Part.H_f in parts else {}
        if Part.H in parts:
            jacobian = self._by_score(rows[:, :, : self.length].transpose(1, 2))
            curvatures[Part.H] = self.functional + jacobian @ jacobian.mT
        totals = dict.fromkeys(curvatures, 0.0)
        for b in range(len(self.inputs)):
            gram = self._gram(matrix, b)
            for part, curvature in curvatures.items():
                products = ((curvature[b] @ gram) * (gram @ curvature[b:])).sum(
                    dim=(1, 2)
                )
                totals[part] += float(2 * products.sum() - products[0])
        return totals

    @cached_property
    def functional(self) -> Float[Tensor, "batch p p"]:
        """P_f = d2<dl/df, f>/ds2 of every sequence: the curvature of the later layers plus that of softmax.

        The first is computed column by column on the tape (`_columns`), the second is diag(g) -
        g A^T - A g^T in each head and query with g = dl/ds (Lemma C.1). Linear attention has
        the first only.
        """
        every = torch.arange(len(self.head), device=self.inputs.device)
        behind = torch.cat(
            [self._columns(chosen) for chosen in every.split(_AT_ONCE)], dim=2
        )
        if self.mixing.is_linear:
            return behind
        assert self.mixing.cotangent is not None
        gradient = self._by_score(self.mixing.cotangent[:, : self.length, None])
        pattern = self.mixing.pattern[:, self.head, self.query, self.key, None]
        same_query = (self.head[:, None] == self.head) & (
            self.query[:, None] == self.query
        )
        own = torch.diag_embed(gradient[..., 0]) - same_query * (
            gradient @ pattern.mT + pattern @ gradient.mT
        )
        return behind + own

    @cached_property
    def _slopes(self) -> Float[Tensor, "batch heads query key d_head"]:
        """dz_hi/ds_hij = A_hij (v_hj - z_hi), or v_hj where the key is allowed for linear attention."""
        mixing = self.mixing
        known = slice(self.length)
        values = mixing.v[:, :, None, known]
        if mixing.is_linear:
            return mixing.allowed[known, known, None] * values
        pattern = mixing.pattern[:, :, known, known]
        return pattern[..., None] * (
            values - (pattern @ mixing.v[:, :, known])[:, :, :, None]
        )

    def _columns(self, chosen: Int[Tensor, " k"]) -> Float[Tensor, "batch p k"]:
        """Return the columns of d2<dl/df, f>/ds2 for `chosen` scores, without the curvature of softmax itself.

        A unit change of s_hij changes z_hi by A_hij (v_hj - z_hi) and nothing else of the layer.
        That tangent is pushed to the outputs, pulled back to z with the second-order terms of
        the later layers, and contracted with dz/ds: a pass up and one down per score, `_AT_ONCE`
        of them together.
        """
        mixing = self.mixing
        head = self.head[chosen]
        query = self.query[chosen]
        key = self.key[chosen]
        seeds = mixing.value.new_zeros(
            *mixing.value.shape[:2], len(chosen), mixing.heads, mixing.v.shape[-1]
        )
        seeds[:, query, torch.arange(len(chosen), device=chosen.device), head] = (
            self._slopes[:, head, query, key]
        )
        tangents = self.tape.push_from(
            {self.name: seeds.flatten(3)}, self.tape.descendants([self.name])
        )
        bar = self.tape.pull_to([self.name], None, tangents)[self.name]
        if bar is None:
            return mixing.value.new_zeros(
                len(mixing.value), len(self.head), len(chosen)
            )
        return self._by_score(bar[:, : self.length])

    def _by_score(
        self, rows: Float[Tensor, "batch length k mixed"]
    ) -> Float[Tensor, "batch p k"]:
        """Return dz/ds^T rows, for the listed scores."""
        by_head = rows.unflatten(3, (self.mixing.heads, -1)).permute(0, 3, 1, 4, 2)
        products = self._slopes @ by_head
        return products[:, self.head, self.query, self.key]

    def _gram(self, matrix: Matrix, b: int) -> Float[Tensor, "later p p"]:
        r"""Return G_bc = Phi_b Phi_c^T for all c >= b.

        The feature of the score (h, i, j) is x_i (x) k_hj / scale for W_Q and x_j (x) q_hi /
        scale for W_K, in the entries of head h; so

        .. math:: (G_{bc})_{(h,i,j),(h',i',j')} = \delta_{hh'} \, (x_{bi} \cdot x_{ci'}) \,
                  \frac{k_{b,hj} \cdot k_{c,hj'}}{\text{scale}^2}

        for W_Q, which is picked from Gram matrices of positions: the features themselves, p
        rows of d d_head numbers, are never formed.
        """
        mixing = self.mixing
        known = slice(self.length)
        outer, inner = (
            (self.key, self.query) if matrix == Matrix.W_K else (self.query, self.key)
        )
        vectors = (mixing.q if matrix == Matrix.W_K else mixing.k)[
            :, :, known
        ] / mixing.scale
        of_inputs = self.inputs[b] @ self.inputs[b:].mT
        of_vectors = vectors[b] @ vectors[b:].mT
        same_head = self.head[:, None] == self.head
        picked = of_vectors[:, self.head[:, None], inner[:, None], inner] * same_head
        return picked * of_inputs[:, outer[:, None], outer]
