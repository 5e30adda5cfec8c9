"""Ten numbers of a table, and three more, recomputed in plain PyTorch from files alone, without importing hessfig.

    hessfig run --config-dir examples sweep=ten_numbers workers=1
    hessfig export outputs/ten_numbers into=network
    python examples/ten_numbers.py network outputs/ten_numbers/table.csv

The formulas are on docs/conventions.md and docs/networks.md; those of `kfoc_error` and
`obd_hessian_correlation` on docs/studies/approximations.md and docs/studies/removal.md
too. The script prints the table's number, its own, and their relative difference, and
exits with 1 when one is above 1e-8. It knows sums, cross-entropy, and transformers
without the components of docs/networks.md.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.autograd.functional import hessian, jacobian
from torch.nn import functional as F

TOLERANCE = 1e-8
Weights = dict[str, Tensor]


class Network:
    """A transformer as docs/networks.md writes it, with its loss, from the files of `hessfig export`."""

    KNOWN: Mapping[str, tuple[object, ...]] = {
        **{
            "kind": ("transformer",),
            "attention": ("softmax",),
            "attention_skip": (True,),
            "query_key": ("separate",),
        },
        **{
            "scores": ("plain",),
            "positions": ("learned",),
            "norm_kind": ("layer",),
            "n_kv_heads": (None,),
        },
        **{
            "sink": ("none",),
            "gate": ("none",),
            "tied": (False,),
            "window": (None,),
            "residual_scale": (1.0,),
        },
        **{"norm": ("none", "pre", "post"), "mlp": ("relu", "gelu", "linear", "none")},
    }

    def __init__(self, folder: Path) -> None:
        self.about = json.loads((folder / "network.json").read_text())
        self.model, self.training = (
            self.about["settings"][group] for group in ("model", "training")
        )
        self.weights = load_file(folder / "weights.safetensors")
        moments = folder / "optimiser.safetensors"
        self.moments = (
            {name: one.double() for name, one in load_file(moments).items()}
            if moments.exists()
            else {}
        )
        self.batch, self.held_out = (
            {**np.load(folder / name)} for name in ("batch.npz", "held_out.npz")
        )
        self.tokens, self.targets = (
            torch.from_numpy(self.batch[f"{one}_0"]) for one in ("inputs", "targets")
        )
        self.scored = slice(*map(int, self.batch["scored_0"]))
        self._check()

    def _check(self) -> None:
        """Exit where the settings ask for something that is not written below."""
        task, rule = self.about["settings"]["task"], self.training["optimiser"]
        found = [
            f"model.{key}={self.model[key]}"
            for key, known in self.KNOWN.items()
            if self.model[key] not in known
        ]
        found += [
            f"task.{key}={task[key]}"
            for key in ("label_smoothing", "weight_decay")
            if task[key]
        ]
        found += [f"task.loss={task['loss']}"] * (task["loss"] != "cross_entropy")
        found += [f"task.data={task['data']}"] * (task["data"] != "addition")
        found += [f"training.optimiser={rule}"] * (rule not in ("adam", "adamw"))
        if found:
            sys.exit(f"this example does not know {', '.join(found)}")

    def outputs(self, w: Weights, tokens: Tensor) -> Tensor:
        """Return the logits at the scored positions, (samples, scored, tokens)."""
        h = w["tok_embed.weight"][tokens] + w["pos.weight"][: tokens.shape[1]]
        for layer in range(self.model["n_layers"]):
            h = self._layer(w, f"layers.{layer}", h)
        h = self.norm(w, "ln_out", h) if self.model["norm"] == "pre" else h
        return self.linear(w, "head", h)[:, self.scored]

    def _layer(self, w: Weights, at: str, h: Tensor) -> Tensor:
        norm, has_mlp = self.model["norm"], self.model["mlp"] != "none"
        first, second = (
            lambda x, name=name: self.norm(w, f"{at}.{name}", x)
            for name in ("ln1", "ln2")
        )
        if norm == "post":
            a = first(h + self.attention(w, f"{at}.attn", h))
            return second(a + self.mlp(w, f"{at}.mlp", a)) if has_mlp else a
        a = h + self.attention(w, f"{at}.attn", first(h) if norm == "pre" else h)
        if has_mlp:
            return a + self.mlp(w, f"{at}.mlp", second(a) if norm == "pre" else a)
        return a

    def linear(self, w: Weights, at: str, x: Tensor) -> Tensor:
        """Return W x + b."""
        return x @ w[f"{at}.weight"].T + w[f"{at}.bias"]

    def attention(self, w: Weights, at: str, x: Tensor) -> Tensor:
        """Return Att(x)."""
        length, heads = x.shape[1], self.model["n_heads"]
        q, k, v = (
            self.linear(w, f"{at}.{one}", x).unflatten(2, (heads, -1)).transpose(1, 2)
            for one in "qkv"
        )
        scores = (
            q @ k.transpose(2, 3) / (self.model["temperature"] * math.sqrt(q.shape[-1]))
        )
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        pattern = scores.masked_fill(later, -math.inf).softmax(dim=-1)
        return self.linear(w, f"{at}.o", (pattern @ v).transpose(1, 2).flatten(2))

    def mlp(self, w: Weights, at: str, x: Tensor) -> Tensor:
        """Return MLP(x)."""
        act: dict[str, Callable[[Tensor], Tensor]] = {
            "relu": torch.relu,
            "gelu": F.gelu,
            "linear": lambda z: z,
        }
        return self.linear(
            w, f"{at}.fc_out", act[self.model["mlp"]](self.linear(w, f"{at}.fc_in", x))
        )

    def norm(self, w: Weights, at: str, x: Tensor) -> Tensor:
        """Return the LayerNorm of x."""
        centred = x - x.mean(dim=-1, keepdim=True)
        scaled = centred / torch.sqrt(
            centred.square().mean(dim=-1, keepdim=True) + self.model["norm_eps"]
        )
        return w[f"{at}.weight"] * scaled + w[f"{at}.bias"]

    def loss(self, w: Weights) -> Tensor:
        """Return the loss on the measuring batch."""
        return _cross_entropy(self.outputs(w, self.tokens), self.targets)

    def gradients(self) -> Iterator[Tensor]:
        """Yield the gradient of each sample's loss in all parameters, as one vector."""
        w = {name: one.clone().requires_grad_() for name, one in self.weights.items()}
        for tokens, target in zip(
            self.tokens.split(1), self.targets.split(1), strict=True
        ):
            found = torch.autograd.grad(
                _cross_entropy(self.outputs(w, tokens), target), list(w.values())
            )
            yield torch.cat([one.flatten() for one in found])

    def side(self, layer: int, name: str) -> list[str]:
        """Return the parameters of a weight or group of a layer, in the order of its vector."""
        here = [one for one in self.about["weights"] if one["layer"] == layer]
        return [
            one["parameter"]
            for one in here
            if one["name"] == name or name in one["groups"]
        ]


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return -outputs.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).mean()


class Blocks:
    """H, H_o and H_f of some parameters, dense, by double backward: matrices over their joint vector."""

    def __init__(self, network: Network, parameters: list[str]) -> None:
        self.network, self.parameters = network, parameters
        self.start = torch.cat([network.weights[name].flatten() for name in parameters])

    def _at(self, vector: Tensor) -> Weights:
        shapes = [self.network.weights[name].shape for name in self.parameters]
        pieces = vector.split([shape.numel() for shape in shapes])
        named = {
            name: one.view(shape)
            for name, one, shape in zip(self.parameters, pieces, shapes, strict=True)
        }
        return {**self.network.weights, **named}

    def loss(self, vector: Tensor) -> Tensor:
        """Return the loss with these entries of the parameters."""
        return self.network.loss(self._at(vector))

    def outputs(self, vector: Tensor) -> Tensor:
        """Return all scored outputs as one vector."""
        return self.network.outputs(self._at(vector), self.network.tokens).flatten()

    def loss_of(self, outputs: Tensor) -> Tensor:
        """Return the loss as a function of all scored outputs."""
        targets = self.network.targets
        return _cross_entropy(outputs.view(*targets.shape, -1), targets)

    @cached_property
    def full(self) -> Tensor:
        """H."""
        return hessian(self.loss, self.start)

    @cached_property
    def outer(self) -> Tensor:
        """H_o = J^T (d2L / df2) J."""
        return (
            self.jacobian.T
            @ hessian(self.loss_of, self.outputs(self.start))
            @ self.jacobian
        )

    @cached_property
    def functional(self) -> Tensor:
        """H_f: the Hessian of the outputs times dL/df, held fixed."""
        slope = jacobian(self.loss_of, self.outputs(self.start))
        return hessian(lambda vector: self.outputs(vector) @ slope, self.start)

    @cached_property
    def jacobian(self) -> Tensor:
        """J: the derivative of all scored outputs."""
        return jacobian(self.outputs, self.start)


def accuracy(network: Network) -> float:
    """Return the share of unseen sums of which all digits of the answer are right."""
    tokens = torch.from_numpy(network.held_out["inputs_0"])
    count = network.about["settings"]["task"]["digits"] + 1
    found = network.outputs(network.weights, tokens)[:, -count:].argmax(dim=-1)
    return float((found == tokens[:, -count:]).all(dim=1).double().mean())


def noise_scale(network: Network) -> float:
    """Return tr C / |G|^2, both without bias."""
    each = torch.stack(list(network.gradients()))
    n, mean = len(each), each.mean(dim=0).square().sum()
    trace = (each.square().sum() - n * mean) / (n - 1)
    return float(trace / (mean - trace / n))


def critical_step(network: Network) -> float:
    """Return the step along the next update of Adam at which the loss is back at its start."""
    training, t = network.training, (network.about["step"] or 0) + 1
    (b1, b2), eps = training["betas"], training["eps"]
    w = {name: one.clone().requires_grad_() for name, one in network.weights.items()}
    slopes = dict(
        zip(w, torch.autograd.grad(network.loss(w), list(w.values())), strict=True)
    )
    update = {}
    for name, slope in slopes.items():
        zeros = torch.zeros_like(slope)
        m = b1 * network.moments.get(f"exp_avg/{name}", zeros) + (1 - b1) * slope
        v = (
            b2 * network.moments.get(f"exp_avg_sq/{name}", zeros)
            + (1 - b2) * slope.square()
        )
        update[name] = (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)

    def is_higher(eta: float) -> bool:
        moved = {
            name: network.weights[name] - eta * one for name, one in update.items()
        }
        return not bool(network.loss(moved) <= network.loss(network.weights))

    low = high = training["learning_rate"]
    if is_higher(high):
        while is_higher(low):
            low, high = low / 2, low
    else:
        while not is_higher(high):
            low, high = high, 2 * high
    for _ in range(6):
        middle = (low + high) / 2
        low, high = (low, middle) if is_higher(middle) else (middle, high)
    return (low + high) / 2


def kronecker_error(block: Tensor, shape: torch.Size) -> float:
    """Return the distance of a block from the nearest Kronecker product, over its norm."""
    m, n = shape
    sizes = torch.linalg.svdvals(
        block.view(m, n, m, n).transpose(1, 2).reshape(m * m, n * n)
    )
    return float(sizes[1:].norm() / sizes.norm())


def saliency_correlation(blocks: Blocks) -> float:
    """Return Spearman's correlation of w_i^2 H_ii / 2 with the true rise of the loss without weight i."""
    w, start = blocks.start, float(blocks.loss(blocks.start))
    rises = [
        float(blocks.loss(torch.where(torch.arange(len(w)) == i, 0.0, w))) - start
        for i in range(len(w))
    ]
    saliency = w.square() * blocks.full.diagonal() / 2
    ranks = [
        one.argsort().argsort().double()
        for one in (saliency, torch.tensor(rises, dtype=torch.float64))
    ]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def recomputed(network: Network) -> Iterator[tuple[dict[str, Any], float]]:
    """Yield what tells a row of the table from the others, and its number recomputed."""
    layer = network.model["n_layers"]

    def blocks_of(*names: str) -> Blocks:
        return Blocks(
            network,
            [parameter for name in names for parameter in network.side(layer, name)],
        )

    def row(
        quantity: str, row: str = "", col: str = "", part: str = ""
    ) -> dict[str, Any]:
        return {
            "quantity": quantity,
            "layer": layer if row else 0,
            "row": row,
            "col": col or row,
            "part": part,
        }

    query, value, both, group = (
        blocks_of(*one) for one in (("W_Q",), ("W_V",), ("W_Q", "W_V"), ("attention",))
    )
    n, eigenvalues = len(query.start), torch.linalg.eigvalsh(query.full)
    cut = network.about["settings"]["spectrum"]["cut"] * eigenvalues.abs().max()
    yield row("loss"), float(network.loss(network.weights))
    yield row("accuracy"), accuracy(network)
    yield row("frobenius", "W_Q", part="H"), float(query.full.norm())
    yield row("frobenius", "W_V", part="H_o"), float(value.outer.norm())
    yield row("frobenius", "W_Q", "W_V", "H_f"), float(both.functional[:n, n:].norm())
    yield row("trace", "attention", part="H_o"), float(group.outer.trace())
    yield (
        row("largest_eigenvalue", "attention", part="H"),
        float(torch.linalg.eigvalsh(group.full)[-1]),
    )
    yield (
        row("share_negative", "W_Q", part="H"),
        float((eigenvalues < -cut).double().mean()),
    )
    yield row("jacobian_norm", "W_Q"), float(query.jacobian.norm())
    yield row("noise_scale"), noise_scale(network)
    yield row("critical_step"), critical_step(network)
    shape = network.weights[value.parameters[0]].shape
    yield row("kfoc_error", "W_V", part="H"), kronecker_error(value.full, shape)
    yield row("obd_hessian_correlation", "W_V"), saliency_correlation(value)


def number_of(
    rows: list[dict[str, str]], network: Network, wanted: dict[str, Any]
) -> float:
    """Return the table's number of this network; exits where the table has none, or several."""
    point = {
        key: network.about[key]
        for key in ("variant", "num_layers", "sigma", "step", "seed")
    }
    asked = {**point, **wanted, "index": ""}
    found = [
        one
        for one in rows
        if all(is_named(one[key], value) for key, value in asked.items())
    ]
    if len(found) != 1:
        sys.exit(f"the table has {len(found)} rows of {asked}")
    return float(found[0]["value"])


def is_named(text: str, value: Any) -> bool:
    """Whether a text of the table is a value of network.json."""
    if isinstance(value, int | float):
        return float(text or "nan") == value
    return text == (value or "")


def main(folder: str, table: str) -> int:
    """Print every number beside the table's; return 1 when one differs."""
    network = Network(Path(folder))
    with Path(table).open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    print(f"{'number':<42} {'table':>24} {'plain torch':>24} {'difference':>11}")
    wrong = 0
    for wanted, own in recomputed(network):
        theirs = number_of(rows, network, wanted)
        difference = abs(own - theirs) / max(abs(theirs), 1e-300)
        wrong += not difference <= TOLERANCE
        block = f"({wanted['row']}, {wanted['col']})" if wanted["row"] else ""
        name = " ".join(filter(None, [wanted["quantity"], wanted["part"], block]))
        print(f"{name:<42} {theirs:>24.16g} {own:>24.16g} {difference:>11.1e}")
    print(f"{wrong} numbers differ by more than {TOLERANCE:g}")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python ten_numbers.py FOLDER TABLE.csv")
    sys.exit(main(*sys.argv[1:]))
