"""Functions that somebody minimises and that are no loss(outputs, targets), each with its network and batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset

D = torch.float64


@dataclass
class Case:
    """A network, its batches and compute_loss; `further` arguments of hessfig.Problem."""

    network: nn.Module
    batches: Any
    compute_loss: Callable[[Any, Any], Tensor]
    further: dict[str, Any]

    @property
    def every(self):
        """The batches as a list."""
        given = self.batches
        if isinstance(given, Dataset):
            return [given[number] for number in range(len(given))]
        return list(given) if isinstance(given, list | DataLoader) else [given]


CASES = {}


def case(make):
    def made():
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(D)
        try:
            network, batches, compute_loss, *further = make()
        finally:
            torch.set_default_dtype(before)
        torch.manual_seed(7)
        numpy.random.seed(7)  # noqa: NPY002 - functions draw from the global generator
        return Case(network, batches, compute_loss, further[0] if further else {})

    CASES[make.__name__] = made
    return made


def mlp(*sizes):
    """Return a network of linear maps and tanh."""
    maps = [nn.Linear(*pair) for pair in pairwise(sizes)]
    return nn.Sequential(*(part for one in maps for part in (one, nn.Tanh())))[:-1]


# Autoencoders


class TiedAutoencoder(nn.Module):
    """The decoder is the transposed encoder; `scale` has shape ()."""

    def __init__(self):
        super().__init__()
        self.encoder, self.scale = nn.Linear(5, 3), nn.Parameter(torch.tensor(1.3))

    def forward(self, x):
        return self.scale * F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T)


@case
def denoising_autoencoder():
    batches = [{"x": torch.randn(n, 5), "noise": torch.randn(n, 5)} for n in (3, 6)]

    def loss(network, batch):
        return (network(batch["x"] + 0.1 * batch["noise"]) - batch["x"]).square().mean()

    return (
        TiedAutoencoder(),
        batches,
        loss,
        {"batch_weights": lambda batch: len(batch["x"])},
    )


@case
def sparse_autoencoder_with_a_hook():
    def loss(network, x):
        hidden = []
        handle = network[1].register_forward_hook(
            lambda module, given, made: hidden.append(made)
        )
        try:
            return F.mse_loss(network(x), x) + 0.1 * hidden[0].square().mean().sqrt()
        finally:
            handle.remove()

    return mlp(5, 4, 5), [torch.randn(6, 5), torch.randn(2, 5)], loss


# Contrastive pairs


class Towers(nn.Module):
    """Two towers and a temperature."""

    def __init__(self, width=3):
        super().__init__()
        self.left = mlp(4, width)
        self.right = mlp(5, width)
        self.log_scale = nn.Parameter(torch.tensor(0.5))


def info_nce(network, batch):
    left = F.normalize(network.left(batch[0]))
    right = F.normalize(network.right(batch[1]))
    logits = network.log_scale.exp() * left @ right.T
    classes = torch.arange(len(logits))
    return (F.cross_entropy(logits, classes) + F.cross_entropy(logits.T, classes)) / 2


@case
def contrastive_pairs_over_batches():
    batches = [(torch.randn(n, 4), torch.randn(n, 5)) for n in (4, 5, 3)]
    return Towers(), batches, info_nce, {"batch_weights": [4, 5.0, numpy.float32(3)]}


# Preference losses with a frozen reference


def log_probability(network, tokens):
    logits = network(F.one_hot(tokens[:, :-1], 6).to(next(network.parameters()).dtype))
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).sum((1, 2))


class Preference:
    """A callable with a reference and a counter."""

    def __init__(self):
        self.reference = mlp(6, 4, 6)
        self.beta = torch.tensor(0.4)
        self.calls = 0

    def __call__(self, network, batch):
        self.calls += 1
        chosen, rejected = batch
        with torch.no_grad():
            known = log_probability(self.reference, chosen) - log_probability(
                self.reference, rejected
            )
        own = log_probability(network, chosen) - log_probability(network, rejected)
        return (own - known - 1 / (2 * self.beta)).square().mean()


@case
def preference_of_an_object():
    batches = [
        (torch.randint(0, 6, (n, 4)), torch.randint(0, 6, (n, 4))) for n in (2, 4)
    ]
    return mlp(6, 4, 6), batches, Preference(), {"batch_weights": [2, 4]}


# Policies


@dataclass(frozen=True)
class Rollout:
    """What a policy did."""

    states: Tensor
    actions: Tensor
    old: Tensor
    advantages: Tensor
    returns: Tensor


def rollout(count):
    actions = torch.randint(0, 3, (count,))
    return Rollout(
        torch.randn(count, 4),
        actions,
        -torch.rand(count),
        torch.randn(count),
        torch.randn(count),
    )


class ActorCritic(nn.Module):
    """A tuple of outputs: logits and a value."""

    def __init__(self):
        super().__init__()
        self.body = mlp(4, 5)
        self.actor = nn.Linear(5, 3)
        self.critic = nn.Linear(5, 1)

    def forward(self, states):
        hidden = torch.tanh(self.body(states))
        return self.actor(hidden), self.critic(hidden)[:, 0]


@case
def actor_critic():
    def loss(network, batch):
        logits, values = network(batch.states)
        logs = logits.log_softmax(-1)
        policy = -(
            logs.gather(1, batch.actions[:, None])[:, 0] * batch.advantages
        ).mean()
        return (
            policy
            + 0.5 * F.mse_loss(values, batch.returns)
            + 0.01 * (logs * logs.exp()).sum(-1).mean()
        )

    return ActorCritic(), [rollout(5), rollout(8)], loss, {"batch_weights": [5, 8]}


# Physics-informed networks


@case
def oscillator():
    def loss(network, t):
        t = t.requires_grad_()
        u = network(t)
        (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        (ddu,) = torch.autograd.grad(du.sum(), t, create_graph=True)
        return (ddu + u).square().mean() + (
            network(torch.zeros_like(t[:1])) - 1
        ).square().mean()

    return mlp(1, 6, 1), torch.linspace(0, 1, 8)[:, None], loss


@case
def poisson():
    batches = [
        {"inside": torch.rand(n, 2), "edge": torch.rand(3, 2).round()} for n in (4, 6)
    ]

    def loss(network, batch):
        laplace = torch.func.vmap(
            lambda x: torch.func.hessian(lambda y: network(y)[0])(x).trace()
        )(batch["inside"])
        return (laplace + 1).square().mean() + 10 * network(
            batch["edge"]
        ).square().mean()

    return mlp(2, 5, 1), batches, loss, {"batch_weights": [1, 2]}


# Graphs


class Graph:
    """A graph as an object with slots."""

    __slots__ = ("edges", "nodes", "values")

    def __init__(self, count):
        self.nodes, self.values = torch.randn(count, 4), torch.randn(count)
        self.edges = torch.randint(0, count, (2, 3 * count))


def of_graph(network, graph):
    summed = torch.zeros_like(graph.nodes).index_add(
        0, graph.edges[1], graph.nodes[graph.edges[0]]
    )
    return (
        (network(torch.cat([graph.nodes, summed], 1))[:, 0] - graph.values)
        .square()
        .mean()
    )


class Graphs:
    """Several graphs in one batch, which moves by itself, and knows its own parent."""

    def __init__(self, *counts):
        self.graphs = [Graph(count) for count in counts]
        self.me = self

    def to(self, *args):
        raise AssertionError("hessfig moves the tensors")

    def __iter__(self):
        return iter(self.graphs)


@case
def batch_of_graphs():
    def loss(network, batch):
        return torch.stack([of_graph(network, one) for one in batch.me]).mean()

    return mlp(8, 3, 1), Graphs(4, 7), loss


# Ragged documents


@case
def ragged_documents():
    documents = (
        [torch.randint(0, 6, (length,)) for length in (3, 6, 2)],
        "three documents",
    )

    def loss(network, batch):
        return torch.cat(
            [-log_probability(network, one[None]) / (len(one) - 1) for one in batch[0]]
        ).mean()

    return mlp(6, 4, 6), documents, loss


@case
def ragged_texts():
    network = nn.Sequential(nn.Embedding(128, 3), nn.Tanh(), nn.Linear(3, 128))

    def loss(network, text):
        codes = torch.tensor([*map(ord, text)])
        return F.cross_entropy(network(codes[:-1]), codes[1:])

    return (
        network,
        ["a tale", "of two", "banana"],
        loss,
        {"batch_weights": len, "weights": {"table": "0.weight"}},
    )


class Recurrent(nn.Module):
    """A recurrent network on packed sequences."""

    def __init__(self):
        super().__init__()
        self.inside, self.out = nn.GRU(3, 4), nn.Linear(4, 1)


@case
def packed_sequences():
    def loss(network, packed):
        made, _ = network.inside(packed)
        return network.out(made.data).square().mean()

    return Recurrent(), pack_sequence([torch.randn(n, 3) for n in (4, 2, 1)]), loss


# Distillation


@case
def distillation():
    teacher = mlp(4, 8, 3)

    def loss(network, x):
        with torch.no_grad():
            taught = (teacher(x) / 2).softmax(-1)
        return F.kl_div((network(x) / 2).log_softmax(-1), taught, reduction="batchmean")

    return mlp(4, 5, 3), torch.randn(6, 4), loss


class Distiller:
    """A method of an object, with a projection of its own and a step that it counts."""

    def __init__(self):
        self.teacher = mlp(4, 6, 2)
        self.projection = torch.randn(5, 6)
        self.step = 0
        self.seen = []

    def compute_loss(self, network, batch):
        self.step += 1
        self.seen.append(len(batch["x"]))
        with torch.no_grad():
            features = self.teacher[0](batch["x"])
        return (
            network[0](batch["x"]) @ self.projection - features
        ).square().mean() * self.step


@case
def distillation_of_features():
    return (
        mlp(4, 5, 3),
        [{"x": torch.randn(n, 4)} for n in (3, 4)],
        Distiller().compute_loss,
    )


# Inner steps


@case
def inner_step_of_kept_parameters():
    network = mlp(3, 3, 1)
    kept = dict(network.named_parameters())

    def loss(network, batch):
        value = torch.func.functional_call(network, kept, batch["x"]).square().mean()
        slopes = torch.autograd.grad(value, [*kept.values()], create_graph=True)
        stepped = {}
        for name, slope in zip(kept, slopes, strict=True):
            stepped[name] = kept[name] - 0.2 * slope
        made = torch.func.functional_call(network, stepped, batch["x"])
        return F.mse_loss(made, batch["y"])

    return network, {"x": torch.randn(5, 3), "y": torch.randn(5, 1)}, loss


# Random numbers inside


class Variational(nn.Module):
    """A variational autoencoder with several outputs."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = mlp(5, 4), mlp(2, 5)

    def forward(self, x, noise):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        return {
            "x": self.decoder(mean + (log_variance / 2).exp() * noise),
            "mean": mean,
            "log_variance": log_variance,
        }


def evidence(made, x):
    divergence = (
        made["mean"].square() + made["log_variance"].exp() - made["log_variance"] - 1
    )
    return F.mse_loss(made["x"], x) + 0.1 * divergence.mean()


@case
def variational_autoencoder():
    def loss(network, x):
        return evidence(network(x, torch.randn(len(x), 2, dtype=D).to(x)), x)

    return Variational(), [torch.randn(5, 5), torch.randn(3, 5)], loss


@case
def variational_autoencoder_with_a_generator():
    generator = torch.Generator().manual_seed(3)

    def loss(network, x):
        return evidence(
            network(x, torch.randn(len(x), 2, generator=generator, dtype=D).to(x)), x
        )

    return Variational(), [torch.randn(5, 5), torch.randn(3, 5)], loss


@case
def dropped_entries_of_numpy():
    arrays = numpy.random.default_rng(4)

    def loss(network, x):
        kept = torch.as_tensor(arrays.random(x.shape) > 0.3)
        scale = numpy.random.rand()  # noqa: NPY002
        return (network(x * kept) * scale).square().mean()

    return mlp(4, 3, 2), torch.randn(6, 4), loss


@case
def counted_calls():
    count = 0

    def loss(network, x):
        nonlocal count
        count += 1
        return network(x).exp().mean() * min(1.0, count / 10)

    return mlp(3, 4, 1), [torch.randn(4, 3), torch.randn(5, 3)], loss


@case
def moving_baseline():
    baseline = torch.zeros(())

    def loss(network, x):
        made = network(x)
        baseline.mul_(0.9).add_(0.1 * x.mean())
        return ((made - baseline).square() + made**3).mean()

    return mlp(3, 4, 1), [torch.randn(4, 3), torch.randn(5, 3)], loss


# Gradient penalties


@case
def gradient_penalty():
    def loss(network, between):
        (slope,) = torch.autograd.grad(
            network(between).sum(), between, create_graph=True
        )
        return (slope.norm(dim=1) - 1).square().mean()

    return mlp(4, 6, 1), torch.randn(5, 4).requires_grad_(), loss


# Further functions


class Centres(nn.Module):
    """A loss module with centres of its own."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(3, 2))

    def forward(self, network, batch):
        return (network(batch[0]) - self.centres[batch[1]]).square().sum(1).mean()


@case
def centre_loss():
    return mlp(4, 3, 2), (torch.randn(6, 4), torch.randint(0, 3, (6,))), Centres()


@case
def decay_of_trained_parameters():
    network = mlp(4, 5, 2)
    network[0].requires_grad_(False)

    def loss(network, x):
        decay = sum(
            one.square().sum() for one in network.parameters() if one.requires_grad
        )
        return network(x).square().mean() + 0.1 * decay * decay

    return network, torch.randn(6, 4), loss, {"weights": "trainable"}


@case
def frozen_parameters_are_measured():
    network = mlp(4, 5, 2)
    network[0].requires_grad_(False)
    return network, torch.randn(6, 4), lambda network, x: network(x).sin().mean()


@case
def loader_of_pairs():
    data = [(torch.randn(4), torch.randn(2)) for _ in range(6)]
    return (
        mlp(4, 2),
        DataLoader(data, batch_size=4),
        lambda network, batch: F.huber_loss(network(batch[0]), batch[1]),
    )


@case
def data_set_of_batches():
    data = TensorDataset(torch.randn(2, 3, 4), torch.randn(2, 3, 2))
    return mlp(4, 2), data, lambda network, b: F.huber_loss(network(b[0]), b[1])


@case
def batches_of_weight_zero():
    batches = [torch.randn(3, 4), torch.full((1, 4), torch.nan), torch.randn(2, 4)]
    return (
        mlp(4, 3, 1),
        batches,
        lambda network, x: network(x).cosh().mean(),
        {"batch_weights": [1, 0, 2]},
    )


@case
def batch_changed_in_place():
    def loss(network, batch):
        batch["x"].mul_(2)
        return network(batch.pop("x")).square().mean()

    return mlp(4, 3, 1), {"x": torch.randn(3, 4)}, loss


# Above 65 536 parameters


@case
def large_contrastive_pair():
    class Wide(Towers):
        def __init__(self):
            super().__init__()
            self.left, self.right = mlp(4, 250, 150, 3), mlp(5, 200, 150, 3)

    return Wide(), (torch.randn(6, 4), torch.randn(6, 5)), info_nce


@case
def large_oscillator():
    made = oscillator()
    network = mlp(1, 260, 260, 1)
    return network, made.batches, made.compute_loss
