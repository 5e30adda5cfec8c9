"""K-FAC of convolutions, biases and several batches against its definition, written out, and where it is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import hessfig
from hessfig.curvature.problem import hooked
from hessfig.errors import UserError
from tests.daily import daily, thinned
from tests.double_backward import hessian, jacobian
from tests.draws import draws, labels

CLASSES = 3
IGNORED = -100
SIDES = (["weight"], ["bias"], ["weight", "bias"], ["bias", "weight"])
Batches = list[tuple[Tensor, Tensor]]


@dataclass
class Case:
    """A network, its batches, and the loss of all batches as a sum of those of single ones: `plain` of (outputs, y)."""

    network: nn.Module
    path: str
    batches: Batches
    loss: Any
    plain: Callable[[Tensor, Tensor], Tensor]
    positions: Callable[[nn.Module, Tensor], Tensor]
    problems: dict[str, hessfig.Problem] = field(default_factory=dict)

    @property
    def module(self):
        return self.network.get_submodule(self.path)

    def made(self, name, held):
        """Return the approximation of a block, dense; a problem is checked once."""
        key = " and ".join(held)
        if key not in self.problems:
            paths = [f"{self.path}.{one}" for one in held]
            self.problems[key] = hessfig.Problem(
                self.network, self.batches, loss=self.loss, weights={"block": paths}
            )
        return self.problems[key].approximation(name, "block").dense()

    def curvatures(self):
        """Yield the inputs x, what a shift of y changes in the outputs, and the Hessian in the outputs, by sample."""
        for x, y in self.batches:
            outputs = self.network(x).detach()
            seen = list[Tensor]()
            shifts = list[Tensor]()

            def shift(module, given, output, seen=seen, shifts=shifts):
                seen.append(self.positions(module, given[0].detach()))
                shifts.append(torch.zeros_like(output).requires_grad_())
                return output + shifts[-1]

            with hooked([self.module], shift):
                shifted = self.network(x)
            rows = []
            for one in shifted.flatten():
                rows.append(torch.autograd.grad(one, shifts[0], retain_graph=True)[0])
            J = torch.stack(rows).movedim(
                -1 if isinstance(self.module, nn.Linear) else 2, -1
            )
            J = J.reshape(len(x), -1, len(x), *seen[0].shape[1:2], J.shape[-1])[
                range(len(x)), :, range(len(x))
            ]
            leaf = outputs.requires_grad_()
            H = hessian(lambda leaf=leaf, y=y: self.plain(leaf, y), [leaf])
            H = H.view(len(x), leaf[0].numel(), len(x), leaf[0].numel())[
                range(len(x)), :, range(len(x))
            ]
            yield seen[0], J, H

    def factors(self, held, *, reduce):
        """Return sum g g^T and mean x x^T by loops over the samples that count, of all batches, and their positions."""
        left = 0
        right = 0
        count = 0
        for x, J, H in self.curvatures():
            x = torch.cat(
                [x] * ("weight" in held)
                + [torch.ones_like(x[..., :1])] * ("bias" in held),
                dim=-1,
            )
            x, J = (
                (x.mean(1, keepdim=True), J.sum(2, keepdim=True)) if reduce else (x, J)
            )
            for sample, t in product(
                [one for one in range(len(x)) if H[one].any()], range(x.shape[1])
            ):
                left = left + J[sample, :, t].T @ H[sample] @ J[sample, :, t]
                right = right + torch.outer(x[sample, t], x[sample, t])
                count = count + 1
        return left, right / count

    def places(self, held, columns):
        """Return for every entry of the block its row in kron(left, right), whose last column is the bias."""
        width = columns - ("bias" in held and "weight" in held)
        rows = range(len(self.module.weight))
        of = {
            "weight": [row * columns + at for row in rows for at in range(width)],
            "bias": [row * columns + columns - 1 for row in rows],
        }
        return torch.tensor([place for name in held for place in of[name]])

    def kfac(self, held, *, reduce=False):
        left, right = self.factors(held, reduce=reduce)
        places = self.places(held, len(right))
        return torch.kron(left, right)[places][:, places]

    def gauss_newton(self, held):
        """Return H_o of the block, by the Jacobian of the outputs in the parameters."""
        at = [self.module.get_parameter(one) for one in held]
        total = 0
        for x, y in self.batches:
            J = jacobian(lambda x=x: self.network(x), at)
            leaf = self.network(x).detach().requires_grad_()
            total = (
                total
                + J.T @ hessian(lambda leaf=leaf, y=y: self.plain(leaf, y), [leaf]) @ J
            )
        return total

    def hessian(self, held):
        at = [self.module.get_parameter(one) for one in held]
        return hessian(
            lambda: sum(self.plain(self.network(x), y) for x, y in self.batches), at
        )

    def ekfac(self, held):
        left, right = self.factors(held, reduce=False)
        places = self.places(held, len(right))
        Q = torch.kron(torch.linalg.eigh(left)[1], torch.linalg.eigh(right)[1])[places]
        return Q @ (Q.T @ self.gauss_newton(held) @ Q).diagonal().diag() @ Q.T


def windows(module, given):
    """Return the patches of a convolution (samples, positions, n) by cutting the padded input at every position."""
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    widths = [width for pad in reversed(module.padding) for width in (pad, pad)]
    padded = F.pad(given, widths, mode=mode)
    spans = [
        d * (k - 1) + 1
        for d, k in zip(module.dilation, module.kernel_size, strict=True)
    ]
    starts = [
        range(0, length - span + 1, stride)
        for length, span, stride in zip(
            padded.shape[2:], spans, module.stride, strict=True
        )
    ]
    cuts = []
    for place in product(*starts):
        cuts.append(
            padded[
                (
                    ...,
                    *(
                        slice(at, at + span, d)
                        for at, span, d in zip(
                            place, spans, module.dilation, strict=True
                        )
                    ),
                )
            ].flatten(1)
        )
    return torch.stack(cuts, dim=1)


def as_rows(module, given):
    return given.flatten(1, -2) if given.ndim > 2 else given[:, None]


def drawn(network):
    torch.manual_seed(0)
    for parameter in network.double().parameters():
        nn.init.normal_(parameter, std=0.6)
    return network


def classified(sizes, *shape):
    """Return batches of unequal sizes, some of whose targets are ignored, and the share of a batch in the mean."""
    targets = [labels(size, seed=seed) for seed, size in enumerate(sizes)]
    targets[-1][0] = IGNORED
    count = sum(int((y != IGNORED).sum()) for y in targets)
    batches = [
        (draws(size, *shape, seed=seed), y)
        for seed, (size, y) in enumerate(zip(sizes, targets, strict=True))
    ]
    return batches, lambda f, y: F.cross_entropy(f, y, reduction="sum") / count


def pictures(*sizes, **settings):
    """A convolution with a map before it and a read-out behind it."""
    ends = nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten(), nn.Linear(6, CLASSES)
    between = nn.Conv2d(2, 3, (2, 3), **settings)
    network = drawn(
        nn.Sequential(nn.Conv2d(1, 2, 1), nn.Tanh(), between, nn.Tanh(), *ends)
    )
    batches, plain = classified(sizes, 1, 5, 6)
    return Case(network, "2", batches, "cross_entropy", plain, windows)


def sounds(*sizes):
    ends = nn.Tanh(), nn.Flatten(), nn.Linear(6, CLASSES)
    batches, plain = classified(sizes, 2, 7)
    network = drawn(nn.Sequential(nn.Conv1d(2, 2, 3, stride=2), *ends))
    return Case(network, "0", batches, "cross_entropy", plain, windows)


def films(*sizes):
    ends = nn.Tanh(), nn.Flatten(), nn.Linear(8, CLASSES)
    batches, plain = classified(sizes, 1, 3, 3, 4)
    network = drawn(nn.Sequential(nn.Conv3d(1, 1, (2, 2, 3)), *ends))
    return Case(network, "0", batches, "cross_entropy", plain, windows)


class Read(nn.Module):
    """A map of positions, whose sums are read out: sequences of any length."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.outer = nn.Linear(4, CLASSES)

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)).mean(dim=-2))


def sequences(*sizes):
    """Sequences of another length in every batch, with a loss that is a sum of squares."""
    batches = []
    for at, size in enumerate(sizes):
        batches.append((draws(size, 2 + at, 3, seed=at), draws(size, CLASSES, seed=9)))
    loss = nn.MSELoss(reduction="sum")
    return Case(drawn(Read()), "inner", batches, loss, loss, as_rows)


CASES = {
    "patches": lambda: pictures(3),
    "padded": lambda: pictures(3, padding=(1, 2), stride=(2, 1)),
    "circular, dilated": lambda: pictures(
        2, 3, padding=1, padding_mode="circular", dilation=2
    ),
    "one axis": lambda: sounds(2, 3),
    "three axes": lambda: films(1, 2),
    "sequences": lambda: sequences(2, 3, 1),
}


@pytest.mark.parametrize("held", daily(SIDES, SIDES[3]), ids=" and ".join)
@pytest.mark.parametrize("name", thinned(CASES, 2))
def test_kfac_is_what_its_definition_says(name, held):
    case = CASES[name]()
    assert_close(case.made("kfac", held), case.kfac(held), rtol=1e-10, atol=1e-13)
    assert_close(
        case.made("kfac_reduce", held),
        case.kfac(held, reduce=True),
        rtol=1e-10,
        atol=1e-13,
    )
    assert_close(case.made("ekfac", held), case.ekfac(held), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("held", SIDES, ids=" and ".join)
@pytest.mark.parametrize("path", thinned(["0", "2", "4"], 3))
def test_it_is_exact_for_a_deep_linear_network_at_one_sample(path, held):
    """Squared errors, a convolution over the whole picture and two linear maps: every block is one product."""
    network = drawn(
        nn.Sequential(
            nn.Conv2d(2, 4, (3, 2)),
            nn.Flatten(),
            nn.Linear(4, 3),
            nn.Identity(),
            nn.Linear(3, 2),
        )
    )
    batches = [(draws(1, 2, 3, 2), draws(1, 2, seed=5))]
    positions = windows if path == "0" else as_rows
    case = Case(network, path, batches, "mse", F.mse_loss, positions)
    for name in ("kfac", "kfac_reduce", "ekfac"):
        assert_close(case.made(name, held), case.hessian(held), rtol=1e-10, atol=1e-13)


NAMES = [
    "kfac",
    "kfac_reduce",
    "ekfac",
    "empirical_fisher",
    "sampled_fisher",
    "adam_expected",
    "adam_mini",
    "diagonal",
]


LOSSES = ["cross_entropy", "weighted", "sum", "own"]


@pytest.mark.parametrize("loss", daily(LOSSES, LOSSES[1]))
def test_several_batches_are_one(loss):
    """Batches cut from one, with ignored targets, class weights, a sum, and a function of one's own."""
    cost = torch.tensor([1.0, 5.0, 0.5], dtype=torch.float64)
    chosen = {
        "cross_entropy": "cross_entropy",
        "weighted": nn.CrossEntropyLoss(weight=cost),
        "sum": nn.CrossEntropyLoss(reduction="sum"),
        "own": lambda f, y: F.cross_entropy(f, y.clamp(min=0)),
    }[loss]
    case = pictures(7, stride=3)
    (x, y), names = (
        case.batches[0],
        [name for name in NAMES if (loss, name) != ("own", "empirical_fisher")],
    )
    y[3:5] = IGNORED
    cut = [(x[:2], y[:2]), (x[2:4], y[2:4]), (x[4:], y[4:])]
    single, several = (
        hessfig.Problem(case.network, batches, loss=chosen)
        for batches in ([(x, y)], cut)
    )
    for block, name in [
        *product(["2.weight"], names),
        *product(["6.weight"], ["shampoo", "soap", "muon", "kfoc"]),
    ]:
        one = single.approximation(name, block).dense()
        other = several.approximation(name, block).dense()
        assert float(one.norm()) > 1e-3
        assert_close(other, one, rtol=1e-8, atol=1e-9)


class Tagged(nn.Module):
    """Attention between the words of a sentence that are not padding (word 0), then an output for every word."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 4)
        self.key = nn.Linear(4, 4)
        self.value = nn.Linear(4, 4)
        self.inner = nn.Linear(4, 2)
        self.out = nn.Linear(2, CLASSES)

    def forward(self, words):
        x = self.words(words)
        scores = (x @ self.key(x).mT).masked_fill((words == 0)[:, None], -torch.inf)
        y = x + scores.softmax(-1) @ self.value(x)
        return self.out(torch.relu(self.inner(y)))  # both units of some words are off


WORDS = torch.tensor(
    [[3, 1, 4, 1, 5], [2, 6, 0, 0, 0], [5, 3, 5, 8, 0], [7, 7, 2, 3, 0]]
)
TAGS = labels(4, 5).where(WORDS != 0, IGNORED)


@pytest.mark.parametrize("name", daily(["kfac", "kfac_reduce", "ekfac"], "kfac"))
def test_padding_has_no_part_in_kfac(name):
    """As much as one likes of it changes nothing; nor does a sentence without a target, or cutting the batch."""
    network = drawn(Tagged())
    loss = "cross_entropy"
    wide = [(F.pad(WORDS, (0, 3)), F.pad(TAGS, (0, 3), value=IGNORED))]
    more = [
        (
            torch.cat([WORDS, WORDS[:1]]),
            torch.cat([TAGS, torch.full_like(TAGS[:1], IGNORED)]),
        )
    ]
    cut = [(WORDS[:3], TAGS[:3]), (WORDS[3:], TAGS[3:])]
    short = [
        (WORDS[[0]], TAGS[[0]]),
        (WORDS[[1], :2], TAGS[[1], :2]),
        (WORDS[2:, :4], TAGS[2:, :4]),
    ]
    plain = hessfig.Problem(network, WORDS, TAGS, loss)
    others = []
    for batches in (wide, more, cut, short):
        others.append(hessfig.Problem(network, batches, loss=loss))
    for block in ("key.weight", "value.weight", "inner.weight", "out.weight"):
        first = plain.approximation(name, block).dense()
        # A shift of all keys changes no attention.
        is_zero = (name, block) == ("kfac_reduce", "key.weight")
        assert (float(first.norm()) > 1e-4) != is_zero
        for other in others:
            again = other.approximation(name, block).dense()
            assert_close(again, first, rtol=1e-8, atol=1e-10)


def test_rows_whose_targets_are_ignored_and_units_that_are_off():
    """Twenty rows that count and twenty that do not: those alone. A row that sends nothing back still counts."""
    network = drawn(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, CLASSES)))
    x = draws(40, 3) * 2
    y = labels(40)
    y[20:] = IGNORED
    off = int((torch.relu(network[0](x[:20])) == 0).all(dim=1).sum())
    assert off
    made, alone = (
        hessfig.Problem(network, *some).approximation("kfac", "0.weight").dense()
        for some in ((x, y), (x[:20], y[:20]))
    )
    assert_close(made, alone, rtol=1e-10, atol=1e-13)
    case = Case(
        network, "0", [(x[:20], y[:20])], "cross_entropy", F.cross_entropy, as_rows
    )
    assert_close(alone, case.kfac(["weight"]), rtol=1e-10, atol=1e-13)


def test_systems_of_a_map_with_its_bias_are_solved():
    case = CASES["padded"]()
    problem = hessfig.Problem(
        case.network,
        case.batches,
        loss=case.loss,
        weights={"map": ["2.weight", "2.bias"]},
    )
    for name in ("kfac", "ekfac"):
        made = problem.approximation(name, "map")
        b = draws(made.shape[0])
        x, residual = made.solve(b, damping=1e-2)
        assert residual < 1e-12
        assert_close(
            case.made(name, ["weight", "bias"]) @ x + 1e-2 * x, b, rtol=1e-9, atol=1e-9
        )


class Upsampled(nn.Module):
    """A grouped, a transposed and a plain convolution whose weight also acts without a call."""

    def __init__(self):
        super().__init__()
        self.grouped = nn.Conv2d(2, 4, 2, groups=2)
        self.back = nn.ConvTranspose2d(4, 2, 2)
        self.plain = nn.Conv2d(2, 2, 1)
        self.out = nn.Linear(2, CLASSES)

    def forward(self, x):
        y = self.plain(self.back(torch.tanh(self.grouped(x)))) + F.conv2d(
            x, self.plain.weight
        )
        return self.out(input=y.mean(dim=(2, 3)))


@pytest.mark.parametrize(
    ("paths", "match"),
    [
        (["grouped.weight"], "convolution with groups=1, holds"),
        (["grouped.weight", "grouped.bias"], "convolution with groups=1, holds"),
        (["back.weight"], "convolution with groups=1, holds"),
        (["plain.weight"], "plain.weight is also used outside its linear map"),
        (["out.weight"], "with its input by keyword"),
        (["plain.weight", "out.bias"], "of the weight of one matrix"),
        (["plain.bias", "out.bias"], "of the weight of one matrix"),
    ],
)
def test_what_is_no_linear_map_is_refused(paths, match):
    problem = hessfig.Problem(
        drawn(Upsampled()), draws(4, 2, 3, 3), labels(4), weights={"block": paths}
    )
    with pytest.raises(UserError, match=match):
        problem.approximation("kfac", "block")


def test_the_bias_of_a_grouped_convolution_has_its_own_factor():
    network = drawn(Upsampled())
    x = draws(4, 2, 3, 3)
    y = labels(4)
    case = Case(network, "grouped", [(x, y)], "cross_entropy", F.cross_entropy, windows)
    assert_close(
        case.made("kfac_reduce", ["bias"]),
        case.gauss_newton(["bias"]),
        rtol=1e-10,
        atol=1e-13,
    )
