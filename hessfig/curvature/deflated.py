"""Hutchinson's estimator with the block's dominant range taken out exactly: fewer products for the same error."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.hutchinson import PROBES_AT_ONCE, Column, chunks
from hessfig.curvature.norms import Norm
from hessfig.curvature.probes import rademacher
from hessfig.terms import Matrix, Part

SPLIT = (Part.H_o, Part.H_f)
Products = dict[Part, Float[Tensor, "n k"]]


def deflated(
    column: Column, block: Matrix, parts: Sequence[Part], num_probes: int, *, generator: Generator
) -> dict[tuple[Matrix, Part], Norm]:
    """Estimate ||.||_F of a diagonal block's parts with `num_probes` products: a third sketches, two thirds exact.

    A third of the products, A w_i with Rademacher w_i, are sketches of the range; Q is an orthonormal basis of the
    sketches of H_o and H_f together, and A Q takes the rest. For each i, with Q_i the basis without sketch i,

        t_i = ||A Q_i||_F^2 + ||A (I - Q_i Q_i^T) w_i||^2,    E t_i = ||A||_F^2,

    because w_i is independent of Q_i; all of it follows from the products already made. This is XTrace's
    leave-one-out scheme (Epperly, Tropp and Webber 2024) for tr(A A^T) of a symmetric A. The standard error is the
    jackknife's over sketches (conservative on average, Efron and Stein 1981), taken through the root.
    """
    count = num_probes // 3
    probes = rademacher(column.dim, count, generator=generator, dtype=column.dtype)
    sketches = _products(column, block, probes)
    basis, mixing = _basis(sketches)
    if basis.shape[1] == 0:
        return {(block, part): Norm(0.0, 0.0, num_probes) for part in parts}
    images = _products(column, block, basis.to(column.dtype))
    inside = basis.T @ probes.double().to(basis.device)
    small = {part: _Small(images[part], sketches[part], inside, mixing) for part in parts}
    return {(block, part): _norm(small[part], count, num_probes) for part in parts}


class _Small:
    """One part's products, reduced to their inner products; `mixing` holds the sketches in Q's coordinates."""

    def __init__(self, image: Tensor, sketch: Tensor, inside: Tensor, mixing: Tensor) -> None:
        self.gram, self.cross, self.lengths = image.T @ image, image.T @ sketch, sketch.square().sum(0)
        self.inside, self.mixing = inside, mixing

    def estimate(self, index: int, left_out: frozenset[int]) -> float:
        """Return t_index with Q spanned by the sketches of all probes not in `left_out`."""
        kept = [i for i in range(self.mixing.shape[1]) if i % len(self.lengths) not in left_out]
        columns = self.mixing[:, [i for i in kept if self.mixing[:, i].any()]]
        basis = torch.linalg.qr(columns)[0]
        taken = basis @ (basis.T @ self.inside[:, index])
        captured = ((basis.T @ self.gram) * basis.T).sum()
        rest = self.lengths[index] - 2 * taken @ self.cross[:, index] + taken @ self.gram @ taken
        return float(captured + rest)


def _products(column: Column, block: Matrix, vectors: Float[Tensor, "dim k"]) -> Products:
    pieces = [column.split_matmat(chunk) for chunk in chunks(vectors, column, PROBES_AT_ONCE)]
    split = {part: torch.cat([piece[block, part] for piece in pieces], dim=1).double() for part in SPLIT}
    return {**split, Part.H: split[Part.H_o] + split[Part.H_f]}


def _basis(sketches: Products) -> tuple[Float[Tensor, "dim q"], Float[Tensor, "q twice"]]:
    """Return Q and the sketches' coordinates in it; sketches that vanish have coordinates 0."""
    both = torch.cat([sketches[part] for part in SPLIT], dim=1)
    lengths = both.norm(dim=0)
    scaled = both / lengths.where(lengths > 0, 1.0)
    basis, _ = torch.linalg.qr(scaled[:, lengths > 0])
    return basis, basis.T @ scaled


def _norm(small: _Small, count: int, num_probes: int) -> Norm:
    mean = sum(small.estimate(i, frozenset([i])) for i in range(count)) / count
    if mean == 0.0:
        return Norm(0.0, 0.0, num_probes)
    pairs = {
        pair: (small.estimate(pair[0], frozenset(pair)), small.estimate(pair[1], frozenset(pair)))
        for pair in itertools.combinations(range(count), 2)
    }
    without = [
        sum(t[j == pair[0]] for pair, t in pairs.items() if j in pair) / (count - 1) for j in range(count)
    ]
    centre = sum(without) / count
    variance = (count - 1) / count * sum((value - centre) ** 2 for value in without)
    frob = max(mean, 0.0) ** 0.5
    return Norm(frob, variance**0.5 / (2 * frob), num_probes)
