"""Random problems for the statements: Gaussian data and weights of order one, float64, from the generator
given.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix
from hessfig.theory.formulas.attention.softmax import AttentionPoint
from hessfig.theory.formulas.matrix_calculus import DTYPE
from hessfig.theory.verify.statement import Dims


def normal(*shape: int, generator: torch.Generator, scale: float = 1.0) -> Float[Tensor, ...]:
    """Independent N(0, scale^2) entries."""
    return scale * torch.randn(*shape, dtype=DTYPE, generator=generator)


def attention_weights(dims: Dims, generator: torch.Generator) -> dict[Matrix, Tensor]:
    """W_Q, W_K, W_V, scaled so that scores are of order one and attention is neither uniform nor one-hot."""
    query_key = {
        m: normal(dims.d_V, dims.d_K, generator=generator, scale=0.5) for m in (Matrix.W_Q, Matrix.W_K)
    }
    return {**query_key, Matrix.W_V: normal(dims.d_V, dims.d_V, generator=generator)}


def attention_point(dims: Dims, generator: torch.Generator) -> AttentionPoint:
    """Tokens, targets and weights of one attention layer."""
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    return AttentionPoint(X, Y, attention_weights(dims, generator))


def block_weights(dims: Dims, generator: torch.Generator) -> dict[Matrix, Tensor]:
    """Attention weights and the two of the feed-forward sublayer."""
    W_in = normal(dims.d_V, dims.d_ff, generator=generator)
    W_out = normal(dims.d_ff, dims.d_V, generator=generator)
    return {**attention_weights(dims, generator), Matrix.W_in: W_in, Matrix.W_out: W_out}
