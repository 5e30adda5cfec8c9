"""Every approximation of a table's blocks, recomputed in plain PyTorch from files alone, without importing hessfig.

    hessfig run --config-dir examples sweep=by_hand workers=1
    hessfig export outputs/by_hand into=network
    python examples/approximations_by_hand.py network outputs/by_hand/table.csv

The formulas are on the page docs/studies/approximations.md, and the network's on
docs/networks.md. The script compares every row NAME_error, NAME_scale_error and
NAME_angle of the table with its own number, prints the rows that differ, and exits with
1 when there are some, or a row is not recomputed. saliencies_by_hand.py does the same
for the quantities pruning and quantisation.
"""

from __future__ import annotations

import csv
import hashlib
import math
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import torch
from ten_numbers import Blocks, Network, Weights, is_named
from torch import Tensor
from torch.nn import functional as F

# Two numbers agree to this share, or where both are rounding to this size.
RELATIVE, ABSOLUTE = 1e-7, 1e-12
# Errors of the nearest Kronecker sums are exact to this share of the block's norm, the
# root of rounding.
KRONECKER = 2e-8
HEADED, TABLES = ("W_Q", "W_K", "W_V", "W_O"), ("W_E", "W_pos")
Key = tuple[str, int, str, str, str]  # quantity, layer, block, part, index
Matrices = dict[str, Tensor]
Recomputed = Callable[["Today", int, str], dict[Key, float]]


class Today(Network):
    """The transformer of ten_numbers.py, with shared keys, RMSNorm, a gated MLP, an output gate, sigmoid attention."""

    KNOWN: ClassVar = {
        **{key: known for key, known in Network.KNOWN.items() if key != "n_kv_heads"},
        **{
            "norm_kind": ("layer", "rms"),
            "gate": ("none", "output"),
            "attention": ("softmax", "sigmoid"),
        },
        **{"mlp": (*Network.KNOWN["mlp"], "swiglu"), "attention_bias": ("none",)},
    }

    watched = ""
    seen: tuple[Tensor, Tensor]

    def linear(self, w: Weights, at: str, x: Tensor) -> Tensor:
        """Return W x + b; of the watched map keep the inputs, and go on from a leaf in place of the outputs."""
        y = super().linear(w, at, x)
        if at == self.watched:
            y = y.detach().requires_grad_()
            self.seen = x.detach(), y
        return y

    def attention(self, w: Weights, at: str, x: Tensor) -> Tensor:
        """Return Att(x): query head h takes keys and values h // (n_heads / n_kv_heads)."""
        length, heads = x.shape[1], self.model["n_heads"]
        shared = heads // (self.model["n_kv_heads"] or heads)
        cut = {one: self.linear(w, f"{at}.{one}", x) for one in "qkv"}
        q = cut["q"].unflatten(2, (heads, -1))
        k, v = (
            cut[one]
            .unflatten(2, (heads // shared, -1))
            .repeat_interleave(shared, dim=2)
            for one in "kv"
        )
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / (
            self.model["temperature"] * math.sqrt(q.shape[-1])
        )
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        masked = scores.masked_fill(later, -math.inf)
        if self.model["attention"] == "sigmoid":
            pattern = masked.sigmoid()
        else:
            pattern = masked.softmax(dim=-1)
        merged = torch.einsum("bhij,bjhd->bihd", pattern, v).flatten(2)
        if self.model["gate"] == "none":
            gated = merged
        else:
            gated = merged * self.linear(w, f"{at}.g", x).sigmoid()
        return self.linear(w, f"{at}.o", gated)

    def mlp(self, w: Weights, at: str, x: Tensor) -> Tensor:
        """Return MLP(x)."""
        if self.model["mlp"] != "swiglu":
            return super().mlp(w, at, x)
        return self.linear(
            w,
            f"{at}.fc_out",
            F.silu(self.linear(w, f"{at}.gate", x)) * self.linear(w, f"{at}.fc_in", x),
        )

    def norm(self, w: Weights, at: str, x: Tensor) -> Tensor:
        """Return LayerNorm, or w x / sqrt(mean x^2 + eps)."""
        if self.model["norm_kind"] == "layer":
            return super().norm(w, at, x)
        return (
            w[f"{at}.weight"]
            * x
            / torch.sqrt(x.square().mean(dim=-1, keepdim=True) + self.model["norm_eps"])
        )

    def stream(self, quantity: str, name: str) -> torch.Generator:
        """Return the random stream of a name (docs/conventions.md)."""
        at = [] if self.about["step"] is None else ["step", self.about["step"]]
        names = ["probes", quantity, self.about["sigma"], 0, name, *at]
        digest = hashlib.sha256(
            repr((self.about["seed"], *map(repr, names))).encode()
        ).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)

    @cached_property
    def chances(self) -> Tensor:
        """p: the softmax of the scored outputs, (samples, scored, tokens)."""
        return self.outputs(self.weights, self.tokens).softmax(-1)

    @property
    def terms(self) -> int:
        """K: the number of terms of the loss, samples times scored positions."""
        return self.targets.numel()

    def shares(self, sent: Tensor) -> dict[str, Tensor]:
        """Return sum_p (d f_p / d w)^T sent_p of every sample, by parameter."""
        w = {name: one.clone().requires_grad_() for name, one in self.weights.items()}
        outputs = self.outputs(w, self.tokens)
        found = [
            torch.autograd.grad((one * to).sum(), list(w.values()), retain_graph=True)
            for one, to in zip(outputs, sent, strict=True)
        ]
        return {
            name: torch.stack(of)
            for name, of in zip(w, zip(*found, strict=True), strict=True)
        }

    @cached_property
    def of_samples(self) -> dict[str, Tensor]:
        """s_n: each sample's share of the gradient."""
        return self.shares(
            (self.chances - F.one_hot(self.targets, self.chances.shape[-1]))
            / self.terms
        )

    @cached_property
    def of_drawn(self) -> dict[str, Tensor]:
        """The same at labels that are drawn, times sqrt(K)."""
        labels = torch.multinomial(
            self.chances.flatten(0, 1),
            1,
            generator=self.stream("approximations", "labels"),
        )
        ones = F.one_hot(labels.view(self.targets.shape), self.chances.shape[-1])
        return self.shares((self.chances - ones) / self.terms**0.5)

    def uses(self, at: str) -> tuple[Tensor, Tensor]:
        """Return inputs x (samples, T, n) of a linear map and vectors g (scored times columns, samples, T, m)."""
        self.watched = at
        outputs = self.outputs(self.weights, self.tokens)
        self.watched = ""
        root = self.chances.sqrt()
        S = (
            root.diag_embed() - self.chances[..., None] * root[..., None, :]
        ) / self.terms**0.5
        x, y = self.seen
        # One number for each position and column.
        sent = (outputs[:, :, None] * S.mT).sum(-1).sum(0).flatten()
        return x, torch.stack(
            [torch.autograd.grad(one, y, retain_graph=True)[0] for one in sent]
        )


class Block(Blocks):
    """A diagonal block of the Hessian, and all that its approximations are made of."""

    network: Today

    def __init__(self, network: Today, layer: int, name: str) -> None:
        named, order = network.about["weights"], network.about["all"]
        here = [
            one
            for one in named
            if one["layer"] == layer and (one["name"] == name or name in one["groups"])
        ]
        self.is_whole = name == "all"
        self.entries = (
            sorted(named, key=lambda one: order.index(one["parameter"]))
            if self.is_whole
            else here
        )
        super().__init__(network, [one["parameter"] for one in self.entries])
        ends = (
            torch.tensor([0, *(one["size"] for one in self.entries)]).cumsum(0).tolist()
        )
        self.places = [torch.arange(a, b) for a, b in pairwise(ends)]
        self.training = network.training

    def vector(self, by_parameter: dict[str, Tensor]) -> Tensor:
        """Return tensors of the block's parameters side by side, a row for every sample."""
        return torch.cat(
            [by_parameter[name].flatten(1) for name in self.parameters], dim=1
        )

    def part(self, name: str) -> Tensor:
        """Return H, H_o or H_f."""
        return {"H": self.full, "H_o": self.outer, "H_f": self.full - self.outer}[name]

    @cached_property
    def shares(self) -> Tensor:
        """s_n, (samples, parameters)."""
        return self.vector(self.network.of_samples)

    @cached_property
    def second_moment(self) -> Tensor:
        """E g_B^2: (sum s)^2 + (N sum s^2 - (sum s)^2) / b."""
        square = self.shares.sum(0) ** 2
        return (
            square
            + (len(self.shares) * (self.shares**2).sum(0) - square)
            / self.training["batch_size"]
        )

    def approximations(self, rank: int) -> Iterator[tuple[str, str, Tensor]]:
        """Yield name, part and matrix of every approximation."""
        fixed = {**self.of_gradients(), **(self.of_matrix() if self.is_matrix else {})}
        fixed |= self.of_map() if self.is_matrix and self.name not in TABLES else {}
        for part in ("H", "H_o", "H_f"):
            B = self.part(part)
            own = {
                "diagonal": B.diagonal().diag(),
                **(self.of_block(B, rank) if self.is_matrix else self.apart(B)),
            }
            for name, A in {**fixed, **own}.items():
                yield name, part, A

    @property
    def is_matrix(self) -> bool:
        """Whether the block is that of one matrix."""
        return len(self.entries) == 1 and len(self.entries[0]["shape"]) == 2

    def of_gradients(self) -> Matrices:
        """Adam, Adam-mini and the Fisher matrices."""
        moment, drawn = self.second_moment, self.vector(self.network.of_drawn)
        mini = torch.cat(
            [moment[one].mean().sqrt().expand(len(one)) for one in self.places]
        )
        return {
            **({"adam": self.stored().diag()} if self.network.moments else {}),
            "adam_expected": moment.sqrt().diag(),
            "adam_mini": mini.diag(),
            "empirical_fisher": self.network.terms * self.shares.T @ self.shares,
            "sampled_fisher": drawn.T @ drawn,
        }

    def stored(self) -> Tensor:
        """Return sqrt(v / (1 - b2^t)) + eps, v the second moment that Adam keeps after t updates."""
        (_, b2), eps, t = (
            self.training["betas"],
            self.training["eps"],
            self.network.about["step"],
        )
        v = self.vector(
            {
                name: self.network.moments[f"exp_avg_sq/{name}"][None]
                for name in self.parameters
            }
        )[0]
        return torch.sqrt(v / (1 - b2**t)) + eps

    def of_matrix(self) -> Matrices:
        """Muon, Shampoo, and Adam-mini by heads."""
        G, (L, R) = self.shares.sum(0).view(self.shape), self.spreads
        U, sizes, _ = torch.linalg.svd(G, full_matrices=False)
        found = {
            "muon": torch.kron(
                U @ sizes.diag() @ U.T, torch.eye(G.shape[1], dtype=G.dtype)
            ),
            "shampoo": torch.kron(root(L), root(R)),
        }
        return {
            **found,
            **(
                {"adam_mini_head": self.by_head().diag()} if self.name in HEADED else {}
            ),
        }

    def of_map(self) -> Matrices:
        """K-FAC, both ways, and EK-FAC."""
        (left, right), (x, g) = self.factors, self.uses
        means, sums = x.mean(1), g.sum(2).flatten(0, 1)
        Q = torch.kron(torch.linalg.eigh(left)[1], torch.linalg.eigh(right)[1])
        return {
            "kfac": torch.kron(left, right),
            "kfac_reduce": torch.kron(sums.T @ sums, means.T @ means / len(means)),
            "ekfac": Q @ (Q.T @ self.outer @ Q).diagonal().diag() @ Q.T,
        }

    def of_block(self, B: Tensor, rank: int) -> Matrices:
        """SOAP and the nearest sums of Kronecker products."""
        Q = torch.kron(*(torch.linalg.eigh(one)[1] for one in self.spreads))
        return {
            "soap": Q @ (Q.T @ B @ Q).diagonal().diag() @ Q.T,
            "kfoc": nearest(B, self.shape, 1),
            "kronecker_sum": nearest(B, self.shape, rank),
        }

    def apart(self, B: Tensor) -> Matrices:
        """Of the whole network: the blocks of each weight, and of each layer."""
        weights = torch.cat(
            [torch.full((one["size"],), k) for k, one in enumerate(self.entries)]
        )
        layers = torch.cat(
            [
                torch.full((one["size"],), one["layer"] or -1 - k)
                for k, one in enumerate(self.entries)
            ]
        )
        if self.is_whole:
            kept = {"block_diagonal": weights, "layer_diagonal": layers}
        else:
            kept = {}
        return {
            name: torch.where(of[:, None] == of, B, 0.0) for name, of in kept.items()
        }

    @property
    def name(self) -> str:
        """The name of the block's first weight."""
        return str(self.entries[0]["name"])

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.entries[0]["shape"])

    @cached_property
    def spreads(self) -> tuple[Tensor, Tensor]:
        """L and R: E G_B G_B^T and E G_B^T G_B."""
        each = self.shares.view(-1, *self.shape)
        count = len(self.shares)
        b = self.training["batch_size"]
        G = each.sum(0)
        L, R = G @ G.T, G.T @ G
        left = torch.einsum("nij,nkj->ik", each, each)
        right = torch.einsum("nij,nik->jk", each, each)
        return L + (count * left - L) / b, R + (count * right - R) / b

    @cached_property
    def uses(self) -> tuple[Tensor, Tensor]:
        """x and g of the map of a weight."""
        return self.network.uses(self.parameters[0].removesuffix(".weight"))

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        """K-FAC's: sum g g^T over samples, positions and columns, and mean x x^T over samples and positions."""
        x, g = self.uses
        return torch.einsum("cnti,cntj->ij", g, g), torch.einsum(
            "nti,ntj->ij", x, x
        ) / (x.shape[0] * x.shape[1])

    def by_head(self) -> Tensor:
        """Return the root of each head's mean second moment: rows of the weight, of W_O columns."""
        model, moment = self.network.model, self.second_moment.view(self.shape)
        if self.name in ("W_K", "W_V"):
            heads = model["n_kv_heads"] or model["n_heads"]
        else:
            heads = model["n_heads"]
        along = moment.T if self.name == "W_O" else moment
        held = torch.cat(
            [one.mean().sqrt().expand(one.shape) for one in along.chunk(heads)]
        )
        return (held.T if self.name == "W_O" else held).flatten()


def root(A: Tensor) -> Tensor:
    """Return the square root of a positive semi-definite matrix."""
    values, vectors = torch.linalg.eigh(A)
    return vectors @ values.clamp(min=0).sqrt().diag() @ vectors.T


def nearest(B: Tensor, shape: torch.Size, rank: int) -> Tensor:
    """Return the sum of Kronecker products nearest to B: singular vectors of B rearranged."""
    m, n = shape
    U, s, V = torch.linalg.svd(
        B.view(m, n, m, n).transpose(1, 2).reshape(m * m, n * n), full_matrices=False
    )
    return sum(
        (
            s[k] * torch.kron(U[:, k].view(m, m), V[k].view(n, n))
            for k in range(min(rank, len(s)))
        ),
        0 * B,
    )


def compared(B: Tensor, A: Tensor) -> dict[str, float]:
    """Return error, scale_error and angle."""
    if A.norm() < 1e-12 * B.norm():
        return {"error": 1.0, "scale_error": 1.0, "angle": 0.0}
    scale = (A * B).sum() / A.norm() ** 2
    found = {
        "error": (B - A).norm(),
        "scale_error": (B - scale * A).norm(),
        "angle": scale * A.norm(),
    }
    return {name: float(one / B.norm()) for name, one in found.items()}


def is_same(quantity: str, own: float, theirs: float) -> bool:
    """Whether two numbers agree."""
    floor = KRONECKER if quantity.startswith(("kfoc", "kronecker_sum")) else ABSOLUTE
    return abs(own - theirs) <= max(floor, RELATIVE * abs(theirs)) or (
        math.isnan(own) and math.isnan(theirs)
    )


def table_of(path: Path, network: Today) -> dict[Key, float]:
    """Return the numbers of the table that are of blocks of this network, by their rows."""
    point = {
        key: network.about[key]
        for key in ("variant", "num_layers", "sigma", "step", "seed")
    }
    with path.open(newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["col"]]
    return {
        (
            row["quantity"],
            int(row["layer"]),
            row["col"],
            row["part"],
            row["index"],
        ): float(row["value"] or "nan")
        for row in rows
        if all(is_named(row[key], value) for key, value in point.items())
    }


def recomputed(network: Today, layer: int, name: str) -> dict[Key, float]:
    """Return the numbers of a block by their rows."""
    block = Block(network, layer, name)
    rank = network.about["settings"]["approximation"]["rank"]
    return {
        (f"{approximation}_{number}", layer, name, part, ""): value
        for approximation, part, A in block.approximations(rank)
        for number, value in compared(block.part(part), A).items()
    }


def compare(
    recomputed: Recomputed, quantities: tuple[str, ...], folder: str, table: str
) -> int:
    """Print how many numbers of each block agree, of quantities with these endings; return 1 when one differs."""
    network = Today(Path(folder))
    asked = {
        key: value
        for key, value in table_of(Path(table), network).items()
        if key[0].endswith(quantities)
    }
    wrong = 0
    for layer, name in dict.fromkeys(key[1:3] for key in asked):
        found = recomputed(network, layer, name)
        rows = {key: value for key, value in asked.items() if key[1:3] == (layer, name)}
        off = [
            key
            for key, value in rows.items()
            if not is_same(key[0], found.get(key, math.inf), value)
        ]
        for key in off:
            print(
                f"{' '.join(map(str, key)):<60} {rows[key]:>24.16g} {found.get(key, math.inf):>24.16g}"
            )
        print(
            f"{name} of layer {layer}: {len(rows) - len(off)} of {len(rows)} numbers agree"
        )
        wrong += len(off)
    print(f"{wrong} of {len(asked)} numbers differ")
    return 1 if wrong or not asked else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python approximations_by_hand.py FOLDER TABLE.csv")
    sys.exit(compare(recomputed, ("_error", "_angle"), *sys.argv[1:]))
