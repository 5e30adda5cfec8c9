"""Statements about ranks of blocks and bounds on their norms."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory import attention_formulas as qk
from hessfig.theory import further_formulas as bounds
from hessfig.theory.attention_claims import score_split
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.further_formulas import Spread
from hessfig.theory.statement import Dims, Measure, Statement, Values, Verdict, attention_point, normal

Q = Matrix.W_Q


def _pairs_oracle(point: AttentionPoint) -> Values:
    eigenvalues = torch.linalg.eigvalsh(score_split(point, Part.H_f))
    d_K = point.weights[Q].shape[1]
    return {
        "eigenvalues": eigenvalues,
        "minus the reversed eigenvalues": eigenvalues,
        "multiplicities modulo d_K": torch.tensor([size % d_K for size in qk.multiplicities(eigenvalues)]),
        "smallest multiplicity": torch.tensor(min(qk.multiplicities(eigenvalues))),
    }


def _pairs_printed(point: AttentionPoint) -> Values:
    eigenvalues = qk.score_functional_eigenvalues(point)
    groups = len(qk.multiplicities(eigenvalues))
    return {
        "eigenvalues": eigenvalues,
        "minus the reversed eigenvalues": -torch.linalg.eigvalsh(score_split(point, Part.H_f)).flip(0),
        "multiplicities modulo d_K": torch.zeros(groups, dtype=torch.int64),
        "smallest multiplicity": torch.tensor(point.weights[Q].shape[1]),
    }


def _lemma_d1_draw(dims: Dims, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Pairs of every rank up to full."""
    full = [(normal(dims.L, dims.d_V, generator=generator), normal(dims.d_K, dims.d_ff, generator=generator))]
    ranks = [(a, b) for a in range(1, min(full[0][0].shape) + 1) for b in range(1, min(full[0][1].shape) + 1)]
    return [(_truncate(full[0][0], a), _truncate(full[0][1], b)) for a, b in ranks]


def _truncate(matrix: Tensor, rank: int) -> Tensor:
    U, values, Vh = torch.linalg.svd(matrix, full_matrices=False)
    return U[:, :rank] @ torch.diag(values[:rank]) @ Vh[:rank]


def _lemma_d2_draw(dims: Dims, generator: torch.Generator) -> list[AttentionPoint]:
    """A short sequence, where tokens limit the rank, and a long one, where the weights do."""
    lengths = (dims.L, dims.d_V + 3)
    return [attention_point(Dims(L, dims.d_V, dims.d_K, dims.d_ff), generator) for L in lengths]


def _exceeding(points: list[AttentionPoint], *bounds: Callable[[int, int, int], int]) -> Tensor:
    excess = []
    for point in points:
        (L, d_V), d_K = point.X.shape, point.weights[Q].shape[1]
        rank = qk.numerical_rank(score_split(point, Part.H_o))
        excess.append(max(0, rank - min(bound(L, d_V, d_K) for bound in bounds)))
    return torch.tensor(excess)


def _lemma_bound(L: int, d_V: int, d_K: int) -> int:
    return qk.rank_bound(d_V, d_K)


def _token_bound(L: int, d_V: int, d_K: int) -> int:
    return qk.token_rank_bound(L, d_V)


RANKS = [
    Statement(
        "D-pairs",
        "Appendix D, p. 27",
        "Eigenvalues of H_f^T come in pairs ±λ, each with multiplicity d_K.",
        Verdict.yes,
        attention_point,
        oracle=_pairs_oracle,
        printed=_pairs_printed,
        note="They are ±c/sqrt(d_K) times the singular values of B. Multiplicities are exact; zero occurs 2 "
        "d_K times for every "
        "rank B lacks, and rk B <= min(L - 1, d_V).",
    ),
    Statement(
        "lemD1",
        "Lemma D.1, p. 27",
        "rk [I_q ⊗ A; B ⊗ I_n] = q rk A + n rk B - rk A rk B.",
        Verdict.yes,
        _lemma_d1_draw,
        oracle=lambda d: {"rank": torch.tensor([qk.numerical_rank(qk.stacked_kronecker(*pair)) for pair in d])},
        printed=lambda d: {"rank": torch.tensor([qk.stacked_kronecker_rank(*pair) for pair in d])},
        measure=Measure.integer,
        note="For A and B of every rank.",
    ),
    Statement(
        "lemD2",
        "Lemma D.2, p. 27",
        "rk H_o^T <= 2 d_K d_V - d_K² if d_K < d_V, and d_V² otherwise.",
        Verdict.yes,
        _lemma_d2_draw,
        oracle=lambda d: {"excess": torch.zeros(len(d), dtype=torch.int64)},
        printed=lambda d: {"excess": _exceeding(d, _lemma_bound)},
        corrected=lambda d: {"excess": _exceeding(d, _lemma_bound, _token_bound)},
        measure=Measure.integer,
        error_is="by how much the rank exceeds the bound",
        correction="Sharper for short sequences: also rk H_o^T <= min(L, d_V) min(L - 1, d_V).",
    ),
]


SCALES = (0.1, 1.0, 10.0)
SLACK = 1 + 1e-12
RESCALING = 1e4
VIOLATIONS = "violations over all blocks and the whole, on all draws"


def _draw(dims: Dims, generator: torch.Generator) -> list[AttentionPoint]:
    """Every combination of small, plain and large tokens, query-key weights and targets."""
    points = [(attention_point(dims, generator), scales) for scales in product(SCALES, repeat=3)]
    return [scaled(point, *scales) for point, scales in points]


def scaled(point: AttentionPoint, tokens: float, query_key: float, targets: float) -> AttentionPoint:
    """The same point with X, (W_Q, W_K) and Y multiplied by these factors."""
    weights = {m: w if m == Matrix.W_V else query_key * w for m, w in point.weights.items()}
    return AttentionPoint(tokens * point.X, targets * point.Y, weights)


def _none(points: list[AttentionPoint]) -> Values:
    return {"violations": torch.tensor(0)}


def _violations(spread: Callable[[AttentionPoint], Spread]) -> Callable[[list[AttentionPoint]], Values]:
    return lambda points: {"violations": torch.tensor(sum(_violated(point, spread(point)) for point in points))}


def _violated(point: AttentionPoint, spread: Spread) -> int:
    """How many of the nine blocks of each part, and of the wholes, exceed their bound."""
    count = 0
    for part in Part:
        claimed, (blocks, whole) = bounds.block_bounds(point, spread, part), bounds.true_norms(point, part)
        count += sum(blocks[pair] > claimed[pair] * SLACK for pair in blocks)
        count += whole > bounds.whole_bound(claimed) * SLACK
    return count


def _published(points: list[AttentionPoint]) -> Values:
    exceeded = [bounds.true_norms(point)[1] > bounds.published_bound(point) * SLACK for point in points]
    return {"violations": torch.tensor(sum(exceeded))}


def _published_step(points: list[AttentionPoint]) -> Values:
    return {"violations": torch.tensor(sum(bounds.softmax_jacobian_excess(point) > SLACK for point in points))}


def _rescaled_draw(dims: Dims, generator: torch.Generator) -> list[AttentionPoint]:
    """The same network written with a large W_Q and a small W_K."""
    point = attention_point(dims, generator)
    factors = {Matrix.W_Q: RESCALING, Matrix.W_K: 1 / RESCALING, Matrix.W_V: 1.0}
    return [AttentionPoint(point.X, point.Y, {m: factors[m] * w for m, w in point.weights.items()})]


BOUNDS = [
    Statement(
        "bound",
        "blog post on arXiv 2510.16927, Section 4.3 (formula lost)",
        "A bound on the spectral norm of every block, and of the whole Hessian.",
        Verdict.left_out,
        _draw,
        oracle=_none,
        printed=None,
        corrected=_violations(bounds.spread_from_norm),
        measure=Measure.integer,
        error_is=VIOLATIONS,
        correction="VV: c L x². QQ: (c/(4 d_K)) x⁶ k² v² + (√6 c/(9 d_K)) x⁵ k² v ρ. VQ: (c √L/(2 √d_K)) x⁴ v k + "
        "(c/(2 √d_K)) x³ k ||D||. QK: (c/(4 d_K)) x⁶ q k v² + (√6 c/(9 d_K)) x⁵ q k v ρ + (c/(2 √d_K)) x³ v ||D||_F. "
        "KK and VK: q for k. x, q, k, v are the spectral norms of X, W_Q, W_K, W_V; ρ = max |d_i|. The whole: the "
        "spectral norm of the 3 x 3 matrix of these.",
        note=f"{len(SCALES) ** 3} scales of tokens, weights and targets per draw.",
    ),
    Statement(
        "bound-diameter",
        "blog post on arXiv 2510.16927, Section 4.3 (formula lost)",
        "Such a bound from the token diameter R = max |x_j - x_k|.",
        Verdict.left_out,
        _draw,
        oracle=_none,
        printed=None,
        corrected=_violations(bounds.spread_from_diameter),
        measure=Measure.integer,
        error_is=VIOLATIONS,
        correction="As `bound`, with R²/4 for x²/2, R³/(6 √3) for √6 x³/9, and ||A X|| for √L x.",
    ),
    Statement(
        "bound-2510",
        "arXiv 2510.16927, Theorem 1",
        "Three times the largest of four block terms bounds the spectral norm of the Hessian.",
        Verdict.yes,
        _draw,
        oracle=_none,
        printed=_published,
        measure=Measure.integer,
        error_is=VIOLATIONS,
        note="On random draws with W_Q and W_K of similar size; far looser than `bound`.",
    ),
    Statement(
        "bound-2510-keys",
        "arXiv 2510.16927, Theorem 1",
        "The bound of Theorem 1 also holds for a large W_Q and a small W_K.",
        Verdict.no,
        _rescaled_draw,
        oracle=_none,
        printed=_published,
        corrected=_violations(bounds.spread_from_norm),
        measure=Measure.integer,
        error_is=VIOLATIONS,
        correction="Blocks with W_K need ||W_Q|| where those with W_Q have ||W_K||, as in `bound`.",
        note=f"No term covers (K,K) and (V,K): W_Q → t W_Q, W_K → W_K/t (t = {RESCALING:g}) leaves the network as "
        "it is and all four terms bounded, while H grows like t². Judged by the four terms as quoted in this "
        "project's notes.",
    ),
    Statement(
        "bound-2510-step",
        "arXiv 2510.16927, proof of Theorem 1",
        "||dA/dT||_2 <= 1/L.",
        Verdict.no,
        _draw,
        oracle=_none,
        printed=_published_step,
        measure=Measure.integer,
        error_is=f"violations among {len(SCALES) ** 3} points",
        correction="||dA/dT||_2 <= 1/2, reached when two tokens share the attention equally.",
        note="1/L is the value at uniform attention.",
    ),
]
