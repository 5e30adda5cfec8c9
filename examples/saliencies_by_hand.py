"""Every saliency and every rounding of a table's blocks, recomputed in plain PyTorch without importing hessfig.

    hessfig run --config-dir examples sweep=by_hand workers=1
    hessfig export outputs/by_hand into=network
    python examples/saliencies_by_hand.py network outputs/by_hand/table.csv

The formulas are on the page docs/studies/removal.md, and those of K-FAC and the
empirical Fisher matrix on docs/studies/approximations.md. The script compares every row
of the quantities pruning and quantisation with its own number, as
approximations_by_hand.py does for approximations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from itertools import chain
from typing import Any

import torch
from approximations_by_hand import HEADED, TABLES, Block, Key, Matrices, Today, compare
from torch import Tensor

OF_CURVES = ("removed_share", "_loss", "_head", "_increase", "_correlation")
Rows = Iterator[tuple[str, str, float]]  # quantity, index, value


class Subject(Block):
    """A block, and the matrices that stand for the curvature of its loss."""

    @property
    def matrices(self) -> list[tuple[dict[str, Any], Tensor]]:
        """The weights with two axes, and the places of their entries in the block's vector, in their shape."""
        both = zip(self.entries, self.places, strict=True)
        return [
            (entry, one.view(entry["shape"]))
            for entry, one in both
            if len(entry["shape"]) == 2
        ]

    @cached_property
    def surrogates(self) -> Matrices:
        """The matrices A of saliencies and roundings; K-FAC and inputs are of each linear map alone."""
        kfac = self.outer.diagonal().diag()
        inputs = torch.eye(len(self.start), dtype=torch.float64)
        fisher = self.network.terms * self.shares.T @ self.shares
        for entry, shaped in self.matrices:
            if entry["name"] not in TABLES:
                left, right = Block(self.network, entry["layer"], entry["name"]).factors
                there = (shaped.reshape(-1, 1), shaped.flatten())
                kfac[there] = torch.kron(left, right)
                inputs[there] = torch.kron(
                    torch.eye(len(left), dtype=left.dtype),
                    right / right.diagonal().mean(),
                )
        exact = {"hessian": self.full, "gauss_newton": self.outer}
        return {**exact, "kfac": kfac, "empirical_fisher": fisher, "inputs": inputs}


def damped(A: Tensor, damping: float) -> Tensor:
    """Return A + s I, or |A| + s I where that is not positive definite; s is damping times mean |A_ii|."""
    A = (A + A.T) / 2
    shift = damping * A.diagonal().abs().mean() * torch.eye(len(A), dtype=A.dtype)
    if torch.linalg.cholesky_ex(A + shift).info == 0:
        return A + shift
    values, vectors = torch.linalg.eigh(A)
    return vectors @ values.abs().diag() @ vectors.T + shift


class Pruned:
    """What saliencies say of a block, and what its loss does."""

    def __init__(self, block: Subject, damping: float, shares: list[float]) -> None:
        self.block, self.w = block, block.start
        size = len(self.w)
        self.counts = sorted({0, *(round(share * size) for share in shares)})
        self.before = float(block.loss(self.w))
        self.singles = self.rises(list(torch.arange(size)[:, None]))
        self.rows = [row for _, shaped in block.matrices for row in shaped]
        self.heads = list(self._heads())
        self.of_rows = self.rises(self.rows)
        self.damped = {
            name: damped(A, damping)
            for name, A in block.surrogates.items()
            if name != "inputs"
        }

    def _heads(self) -> Iterator[Tensor]:
        model = self.block.network.model
        cut = [
            (one["name"], shaped)
            for one, shaped in self.block.matrices
            if one["name"] in HEADED
        ]
        for head in range(0 if model["n_kv_heads"] or not cut else model["n_heads"]):
            rows = [shaped.T if name == "W_O" else shaped for name, shaped in cut]
            yield torch.cat(
                [one.chunk(model["n_heads"])[head].flatten() for one in rows]
            )

    def rises(self, groups: list[Tensor], points: list[Tensor] | None = None) -> Tensor:
        """Return the rise of the loss with each group at zero, from w or from points of their own."""
        starts = points or [self.w] * len(groups)
        both = zip(starts, groups, strict=True)
        found = [
            float(self.block.loss(w.index_fill(0, group, 0.0))) - self.before
            for w, group in both
        ]
        return torch.tensor(found, dtype=torch.float64)

    def numbers(self) -> Rows:
        """Yield quantity, index and value of all rows."""
        yield from along(
            "removed_share", [count / len(self.w) for count in self.counts]
        )
        yield from along("head_increase", self.rises(self.heads).tolist(), first=1)
        for name, one in self.additive().items():
            order = one.argsort(stable=True)
            path = [self.w.index_fill(0, order[:count], 0.0) for count in self.counts]
            yield from self._of(
                name, one, lambda places, one=one: float(one[places].sum()), path
            )
        for name, P in self.damped.items():
            inverse = torch.linalg.inv(P)
            one = self.w**2 / (2 * inverse.diagonal())
            cost = partial(joint, self.w, inverse)
            yield from self._of(f"obs_{name}", one, cost, list(self._surgery(P)))
            moved = list(self.w - (self.w / inverse.diagonal())[:, None] * inverse)
            rises = self.rises(list(torch.arange(len(self.w))[:, None]), moved)
            yield (
                f"obs_{name}_compensated_correlation",
                "",
                self.correlation(one, rises),
            )

    def additive(self) -> Matrices:
        """Return the saliencies of single weights that add up over sets."""
        w, A = self.w, self.block.surrogates
        generator = self.block.network.stream("pruning", "random")
        return {
            "random": torch.rand(len(w), generator=generator, dtype=torch.float64),
            "magnitude": w**2,
            "taylor": w**2 * A["hessian"].diagonal() / 2 - self.block.shares.sum(0) * w,
            **{f"obd_{name}": w**2 * A[name].diagonal() / 2 for name in self.damped},
        }

    def _of(
        self,
        name: str,
        single: Tensor,
        cost: Callable[[Tensor], float],
        path: list[Tensor],
    ) -> Rows:
        rows = torch.tensor([cost(row) for row in self.rows], dtype=torch.float64)
        yield f"{name}_correlation", "", self.correlation(single, self.singles)
        yield f"{name}_row_correlation", "", self.correlation(rows, self.of_rows)
        yield from along(f"{name}_loss", [float(self.block.loss(w)) for w in path])
        yield from along(f"{name}_head", [cost(head) for head in self.heads], first=1)

    def correlation(self, saliencies: Tensor, rises: Tensor) -> float:
        """Return Spearman's correlation; what is rounding of 0 counts as 0."""
        eps = 64 * torch.finfo(rises.dtype).eps
        least = (saliencies.abs().max() * eps, abs(self.before) * eps)
        both = zip((saliencies, rises), least, strict=True)
        return spearman(
            *(torch.where(one.abs() < rounding, 0.0, one) for one, rounding in both)
        )

    def _surgery(self, P: Tensor) -> Iterator[Tensor]:
        """Yield the weights at every count: the least salient go, and those that are left move."""
        w, held = self.w.clone(), torch.arange(len(self.w))
        for count in self.counts:
            inverse = torch.linalg.inv(P[held[:, None], held])
            gone = (w[held] ** 2 / inverse.diagonal()).argsort(stable=True)[
                : len(held) - len(w) + count
            ]
            w[held] -= inverse[:, gone] @ torch.linalg.solve(
                inverse[gone[:, None], gone], w[held[gone]]
            )
            w[held[gone]] = 0.0
            held = held[~torch.isin(torch.arange(len(held)), gone)]
            yield w.clone()


def along(name: str, values: list[float], first: int = 0) -> Rows:
    """Yield the rows of a curve."""
    for place, value in enumerate(values, first):
        yield name, str(place), value


def joint(w: Tensor, inverse: Tensor, places: Tensor) -> float:
    """Return w_S.([A^-1]_SS)^-1 w_S / 2."""
    return (
        float(
            w[places] @ torch.linalg.solve(inverse[places[:, None], places], w[places])
        )
        / 2
    )


def spearman(one: Tensor, other: Tensor) -> float:
    """Return the correlation of ranks; equal numbers share the mean of their ranks."""
    ranks = [
        ((a[:, None] > a).sum(1) + (a[:, None] >= a).sum(1)).double()
        for a in (one, other)
    ]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def roundings(block: Subject, damping: float, bits: list[int]) -> Rows:
    """Yield quantity, index and value of all rows of quantisation."""
    places = torch.cat([shaped.flatten() for _, shaped in block.matrices])
    inverses = {
        name: torch.linalg.inv(damped(A[places[:, None], places], damping))
        for name, A in block.surrogates.items()
    }
    factors = {
        f"gptq_{name}": torch.linalg.cholesky(one).T for name, one in inverses.items()
    }
    for count in bits:
        most = 2**count - 1
        grids = [grid(block.start[shaped], most) for _, shaped in block.matrices]
        scale, zero = (torch.cat(one) for one in zip(*grids, strict=True))
        for name, U in {
            "nearest": torch.eye(len(places), dtype=torch.float64),
            **factors,
        }.items():
            w, found = block.start[places], block.start.clone()
            for i in range(len(w)):
                level = scale[i] * (
                    ((w[i] / scale[i]).round() + zero[i]).clamp(0, most) - zero[i]
                )
                w[i + 1 :] -= (w[i] - level) / U[i, i] * U[i, i + 1 :]
                w[i] = level
            found[places] = w
            yield (
                f"{name}_increase",
                str(count),
                float(block.loss(found) - block.loss(block.start)),
            )


def grid(W: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the step, and the level of zero, of every entry of a matrix: a grid for each row."""
    low = W.amin(1, keepdim=True).clamp(max=0)
    high = W.amax(1, keepdim=True).clamp(min=0)
    scale = (high - low) / most
    scale = torch.where(scale > 0, scale, 1.0)
    return scale.expand_as(W).flatten(), (-low / scale).round().expand_as(W).flatten()


def recomputed(network: Today, layer: int, name: str) -> dict[Key, float]:
    """Return the numbers of a block by their rows: those of the quantities that were measured."""
    settings, block = network.about["settings"], Subject(network, layer, name)
    asked = settings["quantities"]
    compression = settings["compression"]
    rows = []
    if "pruning" in asked:
        rows.append(
            Pruned(block, compression["damping"], compression["shares"]).numbers()
        )
    if "quantisation" in asked and block.matrices:
        rows.append(roundings(block, compression["damping"], compression["bits"]))
    return {
        (quantity, layer, name, "", index): value
        for quantity, index, value in chain(*rows)
    }


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python saliencies_by_hand.py FOLDER TABLE.csv")
    sys.exit(compare(recomputed, OF_CURVES, *sys.argv[1:]))
