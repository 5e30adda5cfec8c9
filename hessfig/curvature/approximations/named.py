"""Approximations of a block that correspond to optimisers; each method is named after its approximation.

Approximations that need the block itself (diagonal, soap, kfoc, kronecker_sum and the
two block diagonals) are in hessfig.measurements.approximations.
docs/studies/approximations.md gives formulas and sources.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, prod

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.approximations.maps import UnfoldedMap
from hessfig.curvature.approximations.matrices import (
    Basis,
    Diagonal,
    KroneckerSum,
    LowRank,
    Product,
    Reordered,
    Rotated,
    kronecker_factors_of,
    root,
)
from hessfig.curvature.approximations.signals import OutputSide, Signals, check_bytes
from hessfig.curvature.column import view_of
from hessfig.curvature.problem import Objective
from hessfig.curvature.samples import by_sample
from hessfig.terms import Approximation, Need
from hessfig.weights import Weight


class SampleGradients:
    """Gradients of the single samples of all batches of a problem, computed once for all blocks.

    In the letters of docs/studies/approximations.md: the shares s_i, with g = sum_i s_i
    (`true`), and a_i with E sum_i a_i a_i^T = H_o (`drawn`). They take N gradients each, and
    N times the memory of the parameters.

    Attributes
    ----------
    objective : Objective
        The problem.
    batch_size : float
        The size b of the mini-batches whose second moments optimisers accumulate; inf is
        the whole batch.
    """

    def __init__(
        self, objective: Objective, labels: Generator, batch_size: float = inf
    ) -> None:
        self.objective = objective
        self._labels = labels
        self.batch_size = batch_size

    @cached_property
    def sides(self) -> list[OutputSide]:
        """The term of each batch in the loss."""
        sides = []
        batches, shares = self.objective.batches, self.objective.shares
        for batch, share in zip(batches, shares, strict=True):
            single = replace(self.objective, batch=batch, more=())
            sides.append(OutputSide(single, share))
        return sides

    @property
    def terms(self) -> float:
        """The number K of terms of the loss of all batches: the divisor of its mean, or 1 for a sum.

        A batch with K_1 of the K terms has the share K_1 / K, so that K = K_1 / share.
        """
        return self.sides[0].terms / self.sides[0].share

    def map_of(self, side: Sequence[Weight]) -> UnfoldedMap | None:
        """Return the linear map that the network calls and whose weight, bias, or both are `side`; None without one."""
        return self.sides[0].map_of(side)

    @cached_property
    def true(self) -> dict[str, Tensor]:
        """The share of each sample that counts in the gradient, by parameter; the shares sum to the gradient."""
        counted = torch.cat([side.counted.cpu() for side in self.sides])
        shares = self._of_samples([side.slopes for side in self.sides])
        if bool(counted.all()):
            return shares
        return {name: share[counted] for name, share in shares.items()}

    @cached_property
    def drawn(self) -> dict[str, Tensor]:
        """Gradients at labels drawn from the network, scaled so that the sum of their outer products has mean H_o."""
        return self._of_samples([side.sampled(self._labels) for side in self.sides])

    def _of_samples(self, sent: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the vectors of all batches, pulled back sample by sample."""
        parameters = list(self.objective.network.parameters())
        size = sum(one.numel() * one.element_size() for one in parameters)
        check_bytes(sum(map(len, sent)) * size, "gradients of single samples")
        apart = by_sample(self.objective).network
        pieces = []
        for side, vectors in zip(self.sides, sent, strict=True):
            pieces.append(side.gradients_of_samples(vectors, apart))
        joined = {}
        for name in pieces[0]:
            joined[name] = torch.cat([piece[name] for piece in pieces])
        return joined


class Material:
    """The ingredients of the approximations of one diagonal block.

    `weights` are the weights of the block, and `shape` is the shape of a single weight.
    `stored` is the diagonal by which Adam divides, by parameter. `heads` is the number
    of heads into which the rows of the weight (for W_O: the columns) are divided.
    """

    def __init__(
        self,
        samples: SampleGradients,
        weights: Sequence[Weight],
        shape: Sequence[int],
        *,
        stored: Mapping[str, Tensor] | None = None,
        heads: int = 1,
    ) -> None:
        self.samples = samples
        self.weights = weights
        self.shape = shape
        self.stored = stored
        self.heads = heads

    def approximation(self, name: Approximation) -> Product:
        """Return the approximation called `name`."""
        approximation: Product = getattr(self, f"_{name}")()
        if name.facts.needs != Need.linear or len(self.weights) == 1:
            return approximation
        linear = self.samples.map_of(self.weights)
        assert linear is not None, "other blocks were left out"
        left, right = self._kfac_factors
        return Reordered(approximation, linear.order((len(left), len(right))))

    @cached_property
    def shampoo_basis(self) -> Basis:
        """The eigenvectors of the two factors of Shampoo, in which SOAP runs Adam."""
        return Basis.of(*self._shampoo_factors)

    @property
    def inputs(self) -> KroneckerSum:
        """I (x) sum x x^T over the inputs x of a linear map: half the Hessian of the squared error of its outputs."""
        batches = [signals.expanded[1] for signals in self._signals()]
        right = torch.stack([inputs.T @ inputs for inputs in batches]).sum(dim=0)
        identity = torch.eye(self.shape[0], dtype=right.dtype)
        return KroneckerSum(identity[None], right[None])

    def _flat(self, by_parameter: Mapping[str, Tensor]) -> Float[Tensor, "batch dim"]:
        """Return the gradients of samples, restricted to the block and in its order."""
        pieces = []
        for weight in self.weights:
            samples = by_parameter[weight.parameter]
            entries = [view_of(sample, weight).flatten() for sample in samples]
            pieces.append(torch.stack(entries))
        return torch.cat(pieces, dim=1)

    @cached_property
    def _shares(self) -> Float[Tensor, "batch dim"]:
        """The shares s_i = g_i / N of the N samples in the gradient g = mean g_i, in the block."""
        return self._flat(self.samples.true)

    @property
    def _gradient(self) -> Float[Tensor, "m n"]:
        """The gradient in the block's weight."""
        return self._shares.sum(dim=0).reshape(*self.shape)

    @cached_property
    def _second_moment(self) -> Float[Tensor, " dim"]:
        r"""E g_B^2 over mini-batches B of b samples drawn with replacement, entry by entry.

        g_B is a mean of b independent draws of g_i, with the mean g and the variance
        (mean g_i^2 - g^2) / b:

        .. math:: E g_B^2 = g^2 + \frac{1}{b} \Bigl(N \sum_i s_i^2 - g^2\Bigr), \qquad
                  g = \sum_i s_i, \quad g_i = N s_i.
        """
        square = self._shares.sum(dim=0).square()
        # N sum (g_i / N)^2 is the mean of g_i^2.
        mean_square = len(self._shares) * self._shares.square().sum(dim=0)
        return square + (mean_square - square) / self.samples.batch_size

    @cached_property
    def _shampoo_factors(self) -> tuple[Float[Tensor, "m m"], Float[Tensor, "n n"]]:
        """E G_B G_B^T and E G_B^T G_B over the same mini-batches."""
        single = self._shares.reshape(-1, *self.shape)
        return self._spread(single), self._spread(single.mT)

    def _spread(self, single: Float[Tensor, "batch m n"]) -> Float[Tensor, "m m"]:
        """E G_B G_B^T = G G^T + (mean G_i G_i^T - G G^T) / b, from the shares S_i = G_i / N.

        The same identity as that of `_second_moment`, for the matrix of second moments:
        mean G_i G_i^T = N sum_i S_i S_i^T.
        """
        mean = single.sum(dim=0)
        square = mean @ mean.T
        # All samples side by side: the product sums over them.
        each = single.transpose(0, 1).flatten(1)
        return square + (len(single) * each @ each.T - square) / self.samples.batch_size

    def _signals(self) -> Iterator[Signals]:
        """Yield the signals of every batch; only those of a single batch are kept, others are computed again."""
        sides = self.samples.sides
        if len(sides) == 1:
            yield self._only
            return
        for side in sides:
            yield side.signals(self.weights)

    @cached_property
    def _only(self) -> Signals:
        """The signals of the only batch."""
        return self.samples.sides[0].signals(self.weights)

    @cached_property
    def _kfac_factors(self) -> tuple[Float[Tensor, "m m"], Float[Tensor, "n n"]]:
        return kronecker_factors_of(one.expanded for one in self._signals())

    def _kfac(self) -> KroneckerSum:
        r"""E b b^T (x) E a a^T over the uses of a linear map, with inputs a and gradients b of its outputs.

        .. math:: \Bigl(\sum_{itpc} g_{itpc} \, g_{itpc}^\top\Bigr) \otimes
                  \Bigl(\frac{1}{M} \sum_{it} x_{it} x_{it}^\top\Bigr)

        over the M uses that count: every position is a sample of its own (expand).

        References
        ----------
        R. Eschenhagen, A. Immer, R. E. Turner, F. Schneider and P. Hennig (2023),
        Kronecker-factored approximate curvature for modern neural network architectures,
        arXiv 2311.00636.
        """
        left, right = self._kfac_factors
        return KroneckerSum(left[None], right[None])

    def _kfac_reduce(self) -> KroneckerSum:
        """The same with vectors added up, and inputs averaged, over the uses by a sample.

        g_ipc = sum_t g_itpc and x_i = sum_t x_it / M_i. Where all inputs of a sample are equal,
        sum_t g_t x_t^T = (sum_t g_t) x^T, so that this is K-FAC of a map that is used once.
        """
        left, right = kronecker_factors_of(one.reduced for one in self._signals())
        return KroneckerSum(left[None], right[None])

    def _ekfac(self) -> Rotated:
        """E (U^T G V)^2 in the eigenvectors U, V of the two factors of K-FAC.

        Q diag(Q^T H_o Q) Q^T with Q = U (x) V: the nearest matrix to H_o with these
        eigenvectors (see Rotated), and so never farther from it than K-FAC.

        References
        ----------
        T. George, C. Laurent, X. Bouthillier, N. Ballas and P. Vincent (2018), Fast approximate
        natural gradient descent in a Kronecker-factored eigenbasis, arXiv 1806.03884.
        """
        basis = Basis.of(*self._kfac_factors)
        values = []
        for signals in self._signals():
            values.append(signals.squares(basis.left, basis.right))
        return Rotated(basis, torch.stack(values).sum(dim=0))

    def _shampoo(self) -> KroneckerSum:
        """The roots of L = E G G^T and of R = E G^T G: L^(1/2) (x) R^(1/2).

        Shampoo's step is L^(-1/4) G R^(-1/4), so that it divides by L^(1/4) (x) R^(1/4): this is
        the square, which has the power of a second moment of the gradient.

        References
        ----------
        V. Gupta, T. Koren and Y. Singer (2018), Shampoo: preconditioned stochastic tensor
        optimization, arXiv 1802.09568.
        """
        left, right = self._shampoo_factors
        return KroneckerSum(root(left)[None], root(right)[None])

    def _muon(self) -> KroneckerSum:
        """(G G^T)^(1/2) (x) I = U S U^T (x) I, with the gradient G = U S V^T.

        Muon's step is U V^T = (G G^T)^(-1/2) G: it divides by this matrix (on the range of G).
        """
        left, sizes, _ = torch.linalg.svd(self._gradient, full_matrices=False)
        identity = torch.eye(self.shape[1], dtype=torch.float64)
        return KroneckerSum(((left * sizes) @ left.T)[None], identity[None])

    def _adam(self) -> Diagonal:
        """The diagonal that a training stored."""
        assert self.stored is not None, "names without moments were left out"
        pieces = []
        for weight in self.weights:
            pieces.append(view_of(self.stored[weight.parameter], weight).flatten())
        return Diagonal(torch.cat(pieces))

    def _adam_expected(self) -> Diagonal:
        """(E g_B^2)^(1/2)."""
        return Diagonal(self._second_moment.sqrt())

    def _adam_mini(self) -> Diagonal:
        """One number per weight of the block: the root of its mean second moment."""
        scales = []
        sizes = [weight.size for weight in self.weights]
        for piece in self._second_moment.split(sizes):
            scales.append(piece.mean().sqrt().expand(len(piece)))
        return Diagonal(torch.cat(scales))

    def _adam_mini_head(self) -> Diagonal:
        """One number per head: rows of the weights of queries, keys and values, and columns of W_O."""
        has_columns = self.weights[0].name == "W_O"
        moments = self._second_moment.reshape(*self.shape)
        if has_columns:
            moments = moments.T
        heads = moments.reshape(self.heads, -1).mean(dim=1).sqrt()
        scales = heads.repeat_interleave(prod(self.shape) // self.heads)
        scales = scales.reshape(moments.shape)
        if has_columns:
            scales = scales.T
        return Diagonal(scales.flatten())

    def _empirical_fisher(self) -> LowRank:
        """K sum_i s_i s_i^T with the K terms of the loss; (1 / N) sum_i g_i g_i^T if each of N samples is one term.

        The positions of a sample are added up in s_i before the square.
        """
        return LowRank(self.samples.terms**0.5 * self._shares)

    def _sampled_fisher(self) -> LowRank:
        """sum_i a_i a_i^T at labels drawn from the network: H_o in the mean (OutputSide.sampled)."""
        return LowRank(self._flat(self.samples.drawn))
