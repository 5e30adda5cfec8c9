"""An identity for every approximation, asked of networks, batches and losses in which samples do not count alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import hessfig
from hessfig.config.schema import Config
from hessfig.curvature.approximations.signals import OutputSide
from hessfig.curvature.problem import hooked
from hessfig.errors import UserError
from hessfig.terms import Approximation
from tests.daily import daily
from tests.double_backward import hessian, jacobian
from tests.draws import draws, labels, tanh_network

A = Approximation
# Need a training's moments, or heads of the package: test_approximations.py.
ELSEWHERE = {A.adam, A.adam_mini_head}
CLASSES = 3
WORDS = 7
IGNORED = -100
Loss = Callable[[Tensor], Tensor]


@dataclass
class Case:
    """A problem as its user writes it: outputs (samples, ..., width), the loss of these, and what its mean divides by.

    `weight` is that of a linear map; `uses` are its calls' inputs as (samples, uses,
    width). `counting`: how many samples count. `rounding`: what a network that computes
    in float32 inside needs.
    """

    network: nn.Module
    inputs: Any
    targets: Any
    loss: Any
    outputs: Callable[[], Tensor]
    plain: Loss
    terms: float | None
    weight: str
    counting: int
    rounding: float = 1e-9
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def problem(self):
        return hessfig.Problem(
            self.network, self.inputs, self.targets, self.loss, **self.settings
        )

    @property
    def at(self):
        return self.network.get_parameter(self.weight)

    @cached_property
    def jacobian(self):
        """(samples, entries of a sample's outputs, entries of the weight)."""
        rows = jacobian(self.outputs, [self.at], self.rounding)
        return rows.view(len(self.outputs()), -1, self.at.numel())

    @cached_property
    def curvature(self):
        """The Hessian of the loss in all outputs, (samples, entries, samples, entries)."""
        leaf = self.outputs().detach().requires_grad_()
        found = hessian(lambda: self.plain(leaf), [leaf])
        return found.view(*[len(leaf), leaf[0].numel()] * 2)

    @cached_property
    def shares(self):
        """The samples' shares of the gradient, (samples, entries of the weight)."""
        leaf = self.outputs().detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.plain(leaf), leaf)
        return torch.einsum("ie,iew->iw", slope.flatten(1), self.jacobian)

    @cached_property
    def gauss_newton(self):
        return torch.einsum(
            "iev,iejf,jfw->vw", self.jacobian, self.curvature, self.jacobian
        )

    @cached_property
    def hessian(self):
        return hessian(lambda: self.plain(self.outputs()), [self.at], self.rounding)

    @cached_property
    def moment(self):
        """E u u^T over mini-batches, u the gradient of one: entry by entry, with what it divides by."""
        return self.expected(lambda one, other: one * other)

    def expected(self, product):
        """Return E u_B v_B of docs/studies/approximations.md over the samples that count."""
        single = self.shares.view(-1, *self.at.shape)
        whole = single.sum(0)
        size = Config().training.batch_size
        square = product(whole, whole)
        return (
            square
            + (self.counting * sum(product(one, one) for one in single) - square) / size
        )

    @cached_property
    def signals(self):
        """Inputs (samples, uses, n), derivatives of outputs in outputs of the map at every use, uses of each call."""
        count = len(self.outputs())
        given = list[Tensor]()
        added = list[Tensor]()

        def add(module, inputs, output):
            given.append(
                inputs[0].detach().clone().reshape(count, -1, inputs[0].shape[-1])
            )
            added.append(torch.zeros_like(output).requires_grad_())
            return output + added[-1]

        module = self.network.get_submodule(self.weight.rpartition(".")[0])
        with hooked([module], add):
            outputs = self.outputs()
        rows = [
            torch.autograd.grad(one, added, retain_graph=True, materialize_grads=True)
            for one in outputs.flatten()
        ]
        derivatives = torch.stack(
            [
                torch.cat([p.reshape(count, -1, p.shape[-1]) for p in row], dim=1)
                for row in rows
            ]
        )
        own = derivatives.view(count, -1, *derivatives.shape[1:])[
            range(count), :, range(count)
        ]
        return torch.cat(given, dim=1), own, [one.shape[1] for one in given]

    def factors(self, *, reduce):
        """Return K-FAC by its definition, from the Hessian in the outputs itself."""
        inputs, own, calls = self.signals
        blocks = self.curvature[range(len(own)), :, range(len(own))]
        rows = [
            one[used]
            for one, used in zip(inputs, self.used(own, blocks, calls), strict=True)
            if used.any()
        ]
        rows, own = (
            ([one.mean(0, keepdim=True) for one in rows], own.sum(2, keepdim=True))
            if reduce
            else (rows, own)
        )
        left = torch.einsum("ietm,ief,iftn->mn", own, blocks, own)
        right = sum(one.T @ one for one in rows) / sum(map(len, rows))
        return torch.kron(left.contiguous(), right.contiguous())

    def used(self, own, blocks, calls):
        """Return which uses count (samples, uses), by docs/studies/approximations.md."""
        by_position = (
            blocks.any(-1).view(len(own), -1, self.outputs().shape[-1]).any(-1)
        )
        of_sample = by_position.any(1, keepdim=True)
        pieces = []
        for one in calls:
            pieces.append(
                by_position
                if one == by_position.shape[1]
                else of_sample.expand(-1, one)
            )
        sends = torch.einsum("ief,iftm->itm", blocks.abs(), own.abs()).any(-1)
        return torch.cat(pieces, dim=1) | sends

    def made(self, name, block=None):
        found = self.problem.approximation(name, block or self.weight)
        return found @ torch.eye(found.shape[0], dtype=torch.float64)


def off(found, truth):
    size = float(truth.norm())
    return float((found - truth).norm()) / (size or 1.0)


def is_projection(case, name, whole, trace):
    """How far A is from a projection of B, <B - A, A> = 0, and in a basis of the whole space its trace from B's."""
    made = case.made(name)
    size = float(whole.norm()) or 1.0
    left = abs(float(((whole - made) * made).sum())) / size**2
    return max(left, abs(float(made.trace() - whole.trace())) / size if trace else 0.0)


def best(case, name, rank):
    """How far ||B - A||^2 is from what the leading singular values of the rearranged block leave."""
    m, n = case.at.shape
    rearranged = case.hessian.view(m, n, m, n).transpose(1, 2).reshape(m * m, n * n)
    least = float(torch.linalg.svdvals(rearranged)[rank:].square().sum())
    size = float(case.hessian.square().sum()) or 1.0
    return abs(float((case.hessian - case.made(name)).square().sum()) - least) / size


def sampled(case):
    """The matrix is that of the gradients at the labels drawn, and what is drawn has the mean H_o: by all labels."""
    drawn = list[Tensor]()
    draw = OutputSide.sampled
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            OutputSide,
            "sampled",
            lambda *given: drawn.append(draw(*given)) or drawn[-1],
        )
        made = case.made(A.sampled_fisher)
    rows = torch.einsum("ie,iew->iw", drawn[0].flatten(1), case.jacobian)
    found = expectation(case)
    count = len(case.jacobian)
    truth = case.curvature[range(count), :, range(count)]
    return max(off(made, rows.T @ rows), off(found, truth))


def expectation(case):
    """Return E u u^T of every sample, exactly: over all classes of each position, or over the axes of normal draws."""
    side = OutputSide(case.problem.objective("float64"))
    found = list[Tensor]()
    means = list[Tensor]()
    samples, positions, width = side.outputs.shape

    def one_class(chances, count, *, generator, label):
        means.append(chances[:, label] / chances.sum(dim=1))
        return torch.full((len(chances), count), label)

    def one_axis(shape, *, axis, **settings):
        means.append(torch.ones(samples * positions, dtype=torch.float64))
        return F.one_hot(torch.full((samples, positions), axis), width).double()

    with pytest.MonkeyPatch.context() as patched:
        for one in range(width):
            patched.setattr(torch, "multinomial", partial(one_class, label=one))
            patched.setattr(torch, "randn", partial(one_axis, axis=one))
            found.append(side.sampled(torch.Generator()))
    chances = torch.stack(means).view(width, samples, positions)
    each = torch.einsum(
        "lip,lipc,lipd->ipcd", chances, torch.stack(found), torch.stack(found)
    )
    whole = torch.zeros(
        samples, positions, width, positions, width, dtype=torch.float64
    )
    whole[:, range(positions), :, range(positions)] = each.transpose(0, 1)
    return whole.view(samples, positions * width, positions * width)


def apart(case, name):
    """The blocks of single weights (of no layer) are those of the Hessian, and nothing else is there."""
    names = [one for one, _ in case.network.named_parameters()]
    held = [case.network.get_parameter(one) for one in names]
    whole = hessian(lambda: case.plain(case.outputs()), held, case.rounding)
    mask = torch.block_diag(*(torch.ones(one.numel(), one.numel()) for one in held))
    return off(case.made(name, "all"), whole * mask)


def kron_identity(left, case):
    return torch.kron(left, torch.eye(case.at.shape[1], dtype=torch.float64))


def shampoo(case):
    made = case.made(A.shampoo)
    left = case.expected(lambda a, b: a @ b.T)
    right = case.expected(lambda a, b: a.T @ b)
    return off(made @ made, torch.kron(left, right))


def empirical(case):
    """K times the sum of outer products of shares, whose sum is the gradient."""
    (slope,) = torch.autograd.grad(case.plain(case.outputs()), case.at)
    assert case.terms is not None
    adds_up = off(case.shares.sum(0), slope.flatten())
    return max(
        adds_up,
        off(case.made(A.empirical_fisher), case.terms * case.shares.T @ case.shares),
    )


def muon(case):
    made = case.made(A.muon)
    gradient = case.shares.sum(0).view(case.at.shape)
    return off(made @ made, kron_identity(gradient @ gradient.T, case))


def adam_mini(case):
    return off(
        case.made(A.adam_mini),
        case.moment.mean().sqrt() * torch.eye(case.at.numel(), dtype=torch.float64),
    )


IDENTITIES = {
    A.diagonal: lambda case: off(case.made(A.diagonal), case.hessian.diagonal().diag()),
    A.adam_expected: lambda case: off(
        case.made(A.adam_expected), case.moment.sqrt().flatten().diag()
    ),
    A.adam_mini: adam_mini,
    A.empirical_fisher: empirical,
    A.sampled_fisher: sampled,
    A.muon: muon,
    A.shampoo: shampoo,
    A.soap: lambda case: is_projection(case, A.soap, case.hessian, trace=True),
    A.kfac: lambda case: off(case.made(A.kfac), case.factors(reduce=False)),
    A.kfac_reduce: lambda case: off(
        case.made(A.kfac_reduce), case.factors(reduce=True)
    ),
    A.ekfac: lambda case: is_projection(case, A.ekfac, case.gauss_newton, trace=True),
    A.kfoc: lambda case: best(case, A.kfoc, 1),
    A.kronecker_sum: lambda case: best(case, A.kronecker_sum, 3),
    A.block_diagonal: lambda case: apart(case, A.block_diagonal),
    A.layer_diagonal: lambda case: apart(case, A.layer_diagonal),
}


def mlp(width=CLASSES):
    torch.manual_seed(0)
    return tanh_network(3, 4, width).double()


X = draws(5, 3)
Y = labels(5, seed=1)
SOME = torch.tensor([0, IGNORED, 2, 1, IGNORED])
COST = torch.tensor([1.0, 5.0, 0.5], dtype=torch.float64)
LONG = draws(4, 3, 3)
TAGS = torch.tensor(
    [[0, 1, IGNORED], [IGNORED, IGNORED, IGNORED], [2, 2, 1], [IGNORED, 0, IGNORED]]
)


def flat(target, **settings):
    """Cross-entropy over all positions, as torch has it."""
    return lambda out: F.cross_entropy(out.flatten(0, -2), target.flatten(), **settings)


def of_mlp(loss, plain, terms, *, x=X, y=Y, counting=5):
    network = mlp()
    return Case(
        network, x, y, loss, lambda: network(x), plain, terms, "0.weight", counting
    )


def smoothed():
    settings = {"weight": COST, "label_smoothing": 0.2}
    terms = float(COST[SOME[SOME >= 0]].sum())
    return of_mlp(
        nn.CrossEntropyLoss(**settings),
        flat(SOME, **settings),
        terms,
        y=SOME,
        counting=3,
    )


def soft():
    chances = draws(5, 3, seed=4).softmax(-1)
    return of_mlp(
        nn.CrossEntropyLoss(), lambda out: F.cross_entropy(out, chances), 5.0, y=chances
    )


def numbers(loss, plain, terms, target):
    return of_mlp(
        loss, lambda out: plain(out, target), terms, x=LONG, y=target, counting=4
    )


def squares_of_classes(out, target):
    return (out - F.one_hot(target, CLASSES)).square().mean()


def masked(out, target):
    """A padding of the user's own: the mean over positions that count."""
    kept = target != IGNORED
    return (
        F.cross_entropy(
            out.flatten(0, 1), target.clamp(min=0).flatten(), reduction="none"
        )
        * kept.flatten()
    ).sum() / (kept.sum())


class Positioned(nn.Module):
    """Attention over tokens with positions (length,) and a mask (length, length) handed in by the user."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 3)
        self.places = nn.Embedding(4, 3)
        self.query = nn.Linear(3, 3)
        self.value = nn.Linear(3, 3)
        self.out = nn.Linear(3, CLASSES)

    def forward(self, mask, position_ids, input_ids):
        x = self.words(input_ids) + self.places(position_ids)
        scores = (self.query(x) @ x.mT).masked_fill(~mask, -1e9)
        return self.out(x + torch.tanh(scores.softmax(-1) @ self.value(x)))


def positioned(samples, *, by_sample=False):
    """Length 4: with four samples, positions and mask could be cut by sample."""
    torch.manual_seed(3)
    network = Positioned().double()
    ids = labels(samples, 4, classes=WORDS)
    mask = torch.ones(4, 4).tril().bool()
    places = torch.arange(4)
    target = labels(samples, 4, seed=2)
    if by_sample:  # an encoder's mask, one of padding by sample
        mask = (
            (torch.arange(4) < torch.tensor([4, 2, 3, 4])[:, None])[:, None]
            .expand(4, 4, 4)
            .contiguous()
        )
        target = target.masked_fill(~mask[:, 0], IGNORED)
    batch = {"mask": mask, "position_ids": places, "input_ids": ids}
    terms = float((target != IGNORED).sum())
    run = partial(network, **batch)
    return Case(
        network,
        batch,
        target,
        "cross_entropy",
        run,
        flat(target),
        terms,
        "query.weight",
        samples,
    )


class Repeated(nn.Module):
    """One map twice in sequence, its outputs changed in place."""

    def __init__(self, *, beside):
        super().__init__()
        self.twice = nn.Linear(3, 3)
        self.out = nn.Linear(3, CLASSES)
        self.beside = beside

    def forward(self, x):
        first = self.twice(x).tanh_()
        second = self.twice(first).tanh_()
        return self.out(second + first if self.beside else second)


class Recurrent(nn.Module):
    """A cell of maps that every step of a sequence calls."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.outer = nn.Linear(4, 4)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x):
        state = x.new_zeros(len(x), 4)
        found = []
        for step in x.unbind(1):
            state = torch.tanh(self.inner(step) + self.outer(state))
            found.append(self.out(state))
        return torch.stack(found, dim=1)


def of_network(network, weight, x, y):
    torch.manual_seed(1)
    for parameter in network.double().parameters():
        nn.init.normal_(parameter, std=0.7)
    kept = y != IGNORED
    counting = int(kept.flatten(1).any(1).sum()) if y.ndim > 1 else int(kept.sum())
    return Case(
        network,
        x,
        y,
        "cross_entropy",
        lambda: network(x),
        flat(y),
        float(kept.sum()),
        weight,
        counting,
    )


def language(kind):
    """Next tokens of padded sequences by a model's own loss: the last position of every sequence is ignored."""
    torch.manual_seed(2)
    if kind == "gpt":
        config = transformers.GPT2Config(
            vocab_size=WORDS, n_positions=8, n_embd=4, n_layer=1, n_head=2, n_inner=3
        )
        network = transformers.GPT2LMHeadModel(config)
        weight = "lm_head.weight"
        # Untied.
        network.lm_head.weight = nn.Parameter(network.lm_head.weight.detach().clone())
        network.transformer.wte.weight.data.normal_()
    else:
        config = transformers.LlamaConfig(
            vocab_size=WORDS,
            hidden_size=4,
            intermediate_size=3,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
        network = transformers.LlamaForCausalLM(config)
        weight = "model.layers.0.mlp.up_proj.weight"
        for parameter in network.parameters():
            nn.init.normal_(parameter, std=0.6)
    network = network.double().eval()
    ids = labels(3, 4, classes=WORDS)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]])
    batch = {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, IGNORED),
    }
    following = F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)
    run = lambda: network(input_ids=ids, attention_mask=mask, use_cache=False).logits  # noqa: E731
    rounding = 1e-9 if kind == "gpt" else 3e-6
    return Case(
        network, batch, None, None, run, flat(following), 6.0, weight, 3, rounding
    )


PADDED = labels(4, 3).masked_fill(
    torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 0, 0]]).bool(), IGNORED
)
CASES = {
    "classes": lambda: of_mlp("cross_entropy", flat(Y), 5.0),
    "one sample": lambda: of_mlp(
        "cross_entropy", flat(Y[:1]), 1.0, x=X[:1], y=Y[:1], counting=1
    ),
    "ignored": lambda: of_mlp("cross_entropy", flat(SOME), 3.0, y=SOME, counting=3),
    "another ignored": lambda: of_mlp(
        nn.CrossEntropyLoss(ignore_index=1),
        flat(Y, ignore_index=1),
        float((Y != 1).sum()),
        counting=int((Y != 1).sum()),
    ),
    "class weights": lambda: of_mlp(
        nn.CrossEntropyLoss(weight=COST), flat(Y, weight=COST), float(COST[Y].sum())
    ),
    "weighted, ignored, smoothed": smoothed,
    "summed": lambda: of_mlp(
        nn.CrossEntropyLoss(reduction="sum"),
        flat(SOME, reduction="sum"),
        1.0,
        y=SOME,
        counting=3,
    ),
    "soft labels": soft,
    "positions": lambda: of_mlp(
        "cross_entropy",
        flat(PADDED.clamp(min=0)),
        12.0,
        x=LONG,
        y=PADDED.clamp(min=0),
        counting=4,
    ),
    "positions ignored": lambda: of_mlp(
        "cross_entropy", flat(TAGS), 6.0, x=LONG, y=TAGS, counting=3
    ),
    "positions by a function": lambda: of_mlp(
        lambda out, target: flat(target)(out),
        flat(PADDED),
        9.0,
        x=LONG,
        y=PADDED,
        counting=4,
    ),
    "targets flattened": lambda: of_mlp(
        lambda out, target: flat(target)(out),
        flat(PADDED),
        9.0,
        x=LONG,
        y=PADDED.flatten(),
        counting=4,
    ),
    "a mask of one's own": lambda: of_mlp(
        masked, partial(masked, target=TAGS), 6.0, x=LONG, y=TAGS, counting=3
    ),
    "squares": lambda: numbers("mse", F.mse_loss, 36.0, draws(4, 3, 3, seed=5)),
    "sums of squares": lambda: numbers(
        "mse_sum", partial(F.mse_loss, reduction="sum"), 1.0, draws(4, 3, 3, seed=5)
    ),
    "yes or no": lambda: numbers(
        nn.BCEWithLogitsLoss(),
        F.binary_cross_entropy_with_logits,
        36.0,
        draws(4, 3, 3, seed=5).sigmoid(),
    ),
    "squares of classes": lambda: of_mlp(
        squares_of_classes, partial(squares_of_classes, target=Y), None
    ),
    "mask and positions": lambda: positioned(3),
    "as many samples as positions": lambda: positioned(4),
    "a mask by sample": lambda: positioned(4, by_sample=True),
    "twice in sequence": lambda: of_network(
        Repeated(beside=False), "twice.weight", X, Y
    ),
    "twice, beside and in sequence": lambda: of_network(
        Repeated(beside=True), "twice.weight", LONG, TAGS
    ),
    "recurrent": lambda: of_network(Recurrent(), "outer.weight", LONG, PADDED),
    "recurrent inputs": lambda: of_network(Recurrent(), "inner.weight", LONG, TAGS),
    "causal, padded": lambda: language("gpt"),
    "causal, float32 inside": lambda: language("llama"),
}


def deviation(case, name):
    with warnings.catch_warnings(), sdpa_kernel([SDPBackend.MATH]):
        warnings.filterwarnings(
            "ignore", ".*plain double backward is used", RuntimeWarning
        )
        return IDENTITIES[name](case)


def test_every_approximation_has_an_identity():
    assert {*IDENTITIES} | ELSEWHERE == {*Approximation}


DAILY = (
    "classes",
    "weighted, ignored, smoothed",
    "positions ignored",
    "squares",
    "squares of classes",
    "recurrent inputs",
)


@pytest.mark.parametrize("name", daily(CASES, *DAILY))
def test_identities_hold(name):
    case = CASES[name]()
    names = [
        one for one in IDENTITIES if one != A.empirical_fisher or case.terms is not None
    ]
    found = {str(one): deviation(case, one) for one in names}
    assert {
        one: value for one, value in found.items() if not value < case.rounding
    } == {}
    if case.terms is None:
        with pytest.raises(UserError, match="number of terms is not known"):
            case.made(A.empirical_fisher)
