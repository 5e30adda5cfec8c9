"""Where the last linear map of a network is found, and that products are the same without it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import hessfig
from hessfig.curvature.large import own_column
from hessfig.curvature.large.own_column import head_of
from hessfig.terms import PARTS
from tests.curvature.large.large_networks import column_of, products

WORDS, WIDTH, HIDDEN = 40, 24, 1400


class Body(nn.Module):
    """An embedding, a wide hidden layer and a head; `forward` is what subclasses change."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.into = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, HIDDEN)
        self.out, self.norm = nn.Linear(HIDDEN, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)

    def features(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.norm(x + self.out(self.into(x).tanh()) + x.cumsum(1))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.features(tokens))


class Tied(Body):
    def __init__(self, *, bias: bool = True) -> None:
        super().__init__(bias=bias)
        self.head.weight = self.embed.weight


class Reshaped(Body):
    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.features(tokens).flatten(0, 1)).view(*tokens.shape, WORDS)


class OfFunction(Body):
    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.features(tokens), self.embed.weight)


class Scaled(Body):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens) * 0.5


class ScaledInPlace(Body):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).mul_(0.5)


class Softcapped(Body):
    def forward(self, tokens: Tensor) -> Tensor:
        return 3 * (super().forward(tokens) / 3).tanh()


class Twice(Body):
    def forward(self, tokens: Tensor) -> Tensor:
        features = self.features(tokens)
        return self.head(features + self.head(features).logsumexp(-1, keepdim=True))


class Reversed(Body):
    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens).flip(0)


class Adapted(nn.Module):
    """A linear map with a low-rank addition, as LoRA makes it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base, self.down, self.up = base, nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Branching(Body):
    """The map that is last depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.features(tokens)
        one, other = self.head(features), self.other(features)
        return one if len(tokens) > 2 else other


def changed(change: Callable[[Body], object]) -> Callable[[], Body]:
    def make() -> Body:
        body = Body()
        change(body)
        return body

    return make


def half(module: nn.Module, given: object, made: Tensor) -> Tensor:
    return made * 0.5


WITH = {
    "bias": Body,
    "no bias": lambda: Body(bias=False),
    "tied": lambda: Tied(bias=False),
    "tied with bias": Tied,
    "reshaped": Reshaped,
}
WITHOUT = {
    "function": OfFunction,
    "scaled": Scaled,
    "scaled in place": ScaledInPlace,
    "softcapped": Softcapped,
    "twice": Twice,
    "reversed": Reversed,
    "hook": changed(lambda body: body.head.register_forward_hook(half)),
    "hook of the whole": changed(lambda body: body.register_forward_hook(half)),
    "LoRA": changed(lambda body: setattr(body, "head", Adapted(body.head))),
    "weight norm": changed(lambda body: parametrizations.weight_norm(body.head)),
}


def tokens(count: int = 3) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(count)
    inputs, targets = (torch.randint(0, WORDS, (count, 5), generator=draw) for _ in range(2))
    targets[0, 1:3] = -100
    return inputs, targets


def problem_of(network: nn.Module, loss: object = "cross_entropy", weights: object = None) -> hessfig.Problem:
    return hessfig.Problem(network.double(), *tokens(), loss, weights)  # type: ignore[arg-type]


def check_same_without(problem: hessfig.Problem, monkeypatch: pytest.MonkeyPatch, name: str = "all") -> None:
    """Compare products with those of the outputs as features; neither may fall back."""
    column = column_of(problem, name=name)
    vectors = torch.randn(column.dim, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    monkeypatch.setattr(own_column, "head_of", lambda objective: None)
    plain = column_of(problem, name=name)
    assert column.network.head is not None and plain.network.head is None
    assert all(one.network.holds(part) for one in (column, plain) for part in PARTS)
    for parts in (PARTS, *((part,) for part in PARTS)):
        truth = products(plain, vectors, *parts)
        for part, one in products(column, vectors, *parts).items():
            torch.testing.assert_close(one, truth[part], rtol=1e-9, atol=1e-12 * float(truth[part].norm()))


@pytest.mark.parametrize("name", WITH)
def test_products_below_a_head_are_those_without_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_same_without(problem_of(WITH[name]()), monkeypatch)


@pytest.mark.parametrize("name", ["head.weight", "head.bias", "embed.weight"])
def test_columns_of_a_tied_head_are_those_without_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = Body() if name == "head.weight" else Tied()
    check_same_without(problem_of(network), monkeypatch, name)


@pytest.mark.parametrize("frozen", [["head.weight"], ["head.bias"], ["head.weight", "head.bias"]])
def test_a_frozen_head_is_a_constant(frozen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    network = Body()
    for path in frozen:
        network.get_parameter(path).requires_grad_(False)
    check_same_without(problem_of(network, weights="trainable"), monkeypatch)


@pytest.mark.parametrize("name", WITHOUT)
def test_no_head_is_found_where_something_follows_it(name: str) -> None:
    """The outputs themselves are then the features, and every product agrees with plain double backward."""
    column = column_of(problem_of(WITHOUT[name]()))
    assert column.network.head is None and all(map(column.network.holds, PARTS))


@pytest.mark.parametrize("loss", ["mse", nn.CrossEntropyLoss(label_smoothing=0.1), nn.CrossEntropyLoss()])
def test_losses_other_than_cross_entropy_by_name_have_no_head(loss: object) -> None:
    inputs, targets = tokens()
    given = F.one_hot(targets.clamp(0), WORDS).double() if loss == "mse" else targets.flatten()
    network = Body().double() if loss == "mse" else nn.Sequential(Body(), nn.Flatten(0, 1)).double()
    objective = hessfig.Problem(network, inputs, given, loss).objective("float64")  # type: ignore[arg-type]
    assert head_of(objective) is None


def test_a_head_that_is_last_for_some_batches_alone_is_none() -> None:
    (first, one), (second, other) = tokens(3), tokens(2)
    problem = hessfig.Problem(Branching().double(), [first, second], [one, other])
    column = column_of(problem)
    vectors = torch.randn(column.dim, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    truth = hessfig.Problem.operator(problem, "all", products="curvlinops") @ vectors[:, 0]
    assert column.network.head is None
    torch.testing.assert_close(products(column, vectors, *PARTS)[PARTS[-1]][:, 0], truth, rtol=1e-9, atol=1e-12)
