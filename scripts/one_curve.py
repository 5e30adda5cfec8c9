"""One curve of Figure 3a on one screen, as a witness: plain torch, dense Hessians, nothing from hessfig.

A one-layer GPT-2-style transformer (one head, ReLU, no LayerNorm, causal mask) reads
two-digit sums; the loss is the mean cross-entropy of the answer's digits. Weights are
N(0, 0.64 / d); both embeddings are N(0, sigma^2). For each sigma the outer-product
Hessian of the value weights, J^T (d2l/df2) J, is formed entry by entry and its
Frobenius norm averaged over seeds. Theory says sigma^2. Takes seconds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.func import jacrev

DIGITS = 2
BATCH = 16
D = 8
SEEDS = 5
SIGMAS = [10 ** (-2 + i / 4) for i in range(9)]  # 0.01 to 1
# Positions whose next token is a digit of the answer.
SCORED = slice(2 * DIGITS + 1, 3 * DIGITS + 2)


def sums(generator: torch.Generator) -> Tensor:
    """Return tokens of `x + y = answer`, most significant digit first; + is 10 and = is 11."""
    numbers = torch.randint(0, 10**DIGITS, (BATCH, 2), generator=generator).tolist()
    texts = [f"{x:0{DIGITS}}+{y:0{DIGITS}}={x + y:0{DIGITS + 1}}" for x, y in numbers]
    return torch.tensor(
        [["0123456789+=".index(letter) for letter in text] for text in texts]
    )


def logits(W_V: Tensor, tokens: Tensor, w: dict[str, Tensor]) -> Tensor:
    x = w["E"][tokens] + w["pos"]
    scores = (x @ w["Q"]) @ (x @ w["K"]).transpose(1, 2) / math.sqrt(D)
    future = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
    x = x + scores.masked_fill(future, -math.inf).softmax(-1) @ x @ W_V @ w["O"]
    x = x + (x @ w["in"]).relu() @ w["out"]
    return (x @ w["U"])[:, SCORED]


def outer_norm(sigma: float, seed: int) -> float:
    """Return ||H_o(W_V, W_V)||_F of one network."""
    generator = torch.Generator().manual_seed(seed)
    tokens = sums(generator)
    length = 3 * DIGITS + 3
    shapes = {
        "Q": (D, D),
        "K": (D, D),
        "V": (D, D),
        "O": (D, D),
        "in": (D, 4 * D),
        "out": (4 * D, D),
    }
    w = {
        name: torch.randn(*s, generator=generator) * 0.8 / D**0.5
        for name, s in (shapes | {"U": (D, 12)}).items()
    }
    w |= {
        name: sigma * torch.randn(n, D, generator=generator)
        for name, n in (("E", 12), ("pos", length))
    }
    jacobian = jacrev(logits)(w["V"], tokens, w).flatten(0, 1).flatten(2)
    p = logits(w["V"], tokens, w).softmax(-1).flatten(0, 1)
    curvature = (torch.diag_embed(p) - p[:, :, None] * p[:, None, :]) / len(p)
    return torch.einsum("nia,nij,njb->ab", jacobian, curvature, jacobian).norm().item()


def slope(xs: list[float], ys: list[float]) -> float:
    x, y = (torch.tensor([math.log(v) for v in values]) for values in (xs, ys))
    return (
        ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    ).item()


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    means = [
        sum(outer_norm(sigma, seed) for seed in range(SEEDS)) / SEEDS
        for sigma in SIGMAS
    ]
    for sigma, mean in zip(SIGMAS, means, strict=True):
        print(f"sigma {sigma:7.4f}   ||H_o(W_V)|| {mean:.4e}")
    print(f"slope {slope(SIGMAS, means):.3f} for sigma <= 1 (theory: 2)")
