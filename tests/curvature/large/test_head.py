"""Where the last linear map of a network is found, and that products are the same without it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.testing import assert_close

import hessfig
from hessfig.curvature.large import own_column, readouts
from hessfig.curvature.large.row_labels import Labels, LabelSearch
from hessfig.curvature.losses import Called
from hessfig.terms import PARTS
from tests.curvature.large.large_networks import check_close, column_of, products
from tests.daily import daily, thinned
from tests.draws import draws

WORDS = 40
WIDTH = 24
HIDDEN = 1400


class Body(nn.Module):
    """An embedding, a wide hidden layer and a head; `forward` is what subclasses change."""

    def __init__(self, *, bias=True):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.into = nn.Linear(WIDTH, HIDDEN)
        self.out = nn.Linear(HIDDEN, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)

    def features(self, tokens):
        x = self.embed(tokens)
        return self.norm(x + self.out(self.into(x).tanh()) + x.cumsum(1))

    def forward(self, tokens):
        return self.head(self.features(tokens))


class Tied(Body):
    def __init__(self, *, bias=True):
        super().__init__(bias=bias)
        self.head.weight = self.embed.weight


class Reshaped(Body):
    def forward(self, tokens):
        return self.head(self.features(tokens).flatten(0, 1)).view(*tokens.shape, WORDS)


class OfFunction(Body):
    def forward(self, tokens):
        return F.linear(self.features(tokens), self.embed.weight)


class ScaledInPlace(Body):
    def forward(self, tokens):
        return super().forward(tokens).mul_(0.5)


class Twice(Body):
    def forward(self, tokens):
        features = self.features(tokens)
        return self.head(features + self.head(features).logsumexp(-1, keepdim=True))


class Reversed(Body):
    def forward(self, tokens):
        return super().forward(tokens).flip(0)


class Adapted(nn.Module):
    """A linear map with a low-rank addition, as LoRA makes it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WORDS, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Branching(Body):
    """The map that is last depends on the batch."""

    def __init__(self):
        super().__init__()
        self.other = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        features = self.features(tokens)
        one = self.head(features)
        other = self.other(features)
        return one if len(tokens) > 2 else other


def changed(change):
    def make():
        body = Body()
        change(body)
        return body

    return make


def half(module, given, made):
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
    "scaled in place": ScaledInPlace,
    "twice": Twice,
    "reversed": Reversed,
    "hook": changed(lambda body: body.head.register_forward_hook(half)),
    "hook of the whole": changed(lambda body: body.register_forward_hook(half)),
    "LoRA": changed(lambda body: setattr(body, "head", Adapted(body.head))),
    "weight norm": changed(lambda body: parametrizations.weight_norm(body.head)),
}


def tokens(count=3):
    draw = torch.Generator().manual_seed(count)
    inputs, targets = (
        torch.randint(0, WORDS, (count, 5), generator=draw) for _ in range(2)
    )
    targets[0, 1:3] = -100
    return inputs, targets


def problem_of(network, loss="cross_entropy", weights=None):
    return hessfig.Problem(network.double(), *tokens(), loss, weights)


def check_same_without(problem, monkeypatch, name="all"):
    """Compare products with those of the outputs as features; neither may fall back."""
    column = column_of(problem, name=name)
    vectors = draws(column.dim, 2, seed=1)
    monkeypatch.setattr(own_column, "head_of", lambda objective: None)
    plain = column_of(problem, name=name)
    assert column.network.head is not None
    assert plain.network.head is None
    assert all(one.network.holds(part) for one in (column, plain) for part in PARTS)
    for parts in (PARTS, *((part,) for part in PARTS)):
        truth = products(plain, vectors, *parts)
        check_close(products(column, vectors, *parts), truth)


@pytest.mark.parametrize("name", thinned(WITH, 4))
def test_products_below_a_head_are_those_without_it(name, monkeypatch):
    check_same_without(problem_of(WITH[name]()), monkeypatch)


@pytest.mark.parametrize(
    "name", daily(["head.weight", "head.bias", "embed.weight"], "embed.weight")
)
def test_columns_of_a_tied_head_are_those_without_it(name, monkeypatch):
    network = Body() if name == "head.weight" else Tied()
    check_same_without(problem_of(network), monkeypatch, name)


@pytest.mark.parametrize(
    "frozen", thinned([["head.weight"], ["head.bias"], ["head.weight", "head.bias"]], 3)
)
def test_a_frozen_head_is_a_constant(frozen, monkeypatch):
    network = Body()
    for path in frozen:
        network.get_parameter(path).requires_grad_(False)
    check_same_without(problem_of(network, weights="trainable"), monkeypatch)


@pytest.mark.parametrize("name", thinned(WITHOUT, 4))
def test_no_head_is_found_where_something_follows_it(name):
    """The outputs themselves are then the features, and every product agrees with plain double backward."""
    column = column_of(problem_of(WITHOUT[name]()))
    assert column.network.head is None
    assert all(map(column.network.holds, PARTS))


def flat(outputs, targets):
    return F.cross_entropy(outputs.view(-1, outputs.size(-1)), targets.view(-1))


def classes_second(outputs, targets):
    return F.cross_entropy(outputs.transpose(1, 2), targets)


def next_token(outputs, targets):
    return F.cross_entropy(
        outputs[:, :-1].reshape(-1, WORDS), targets[:, 1:].reshape(-1)
    )


def padded(outputs, targets):
    return F.cross_entropy(
        outputs.flatten(0, 1), targets.where(targets >= 0, 3).flatten(), ignore_index=3
    )


def masked(outputs, targets):
    each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
    return each.sum() / (targets != -100).sum()


def summed(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="sum")


class OfRows(nn.CrossEntropyLoss):
    """A loss module that flattens what it is given."""

    def forward(self, outputs, targets):
        return super().forward(outputs.flatten(0, -2), targets.flatten())


SPELLINGS = {
    "function of rows": flat,
    "classes second": classes_second,
    "next token": next_token,
    "padding": padded,
    "masked": masked,
    "summed by a function": summed,
    "module of rows": OfRows(),
    "sum": OfRows(reduction="sum"),
    "ignored": OfRows(ignore_index=7),
}
OTHERS = {
    "smoothing": OfRows(label_smoothing=0.1),
    "class weights": OfRows(weight=torch.linspace(0.5, 2, WORDS).double()),
    "weighted rows": lambda outputs, targets: (
        by_rows(outputs, targets) * torch.arange(len(outputs) * 5)
    ).mean(),
    "every row": lambda outputs, targets: by_rows(outputs, targets).mean(),
    "a penalty of outputs": lambda outputs, targets: (
        flat(outputs, targets) + 1e-6 * outputs.square().mean()
    ),
    "scaled": lambda outputs, targets: 3 * flat(outputs, targets),
    "temperature": lambda outputs, targets: flat(outputs / 2, targets),
    "focal": lambda outputs, targets: (
        by_rows(outputs, targets) * (1 - (-by_rows(outputs, targets)).exp())
    ).mean(),
}


def by_rows(outputs, targets):
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")


def of_loss(loss, *, flattened=False):
    """Return the problem of a loss; a loss that ignores 7 is given 7 in place of -100."""
    inputs, targets = tokens()
    targets = targets.where(targets >= 0, getattr(loss, "ignore_index", -100))
    network = nn.Sequential(Body(), nn.Flatten(0, 1)) if flattened else Body()
    return hessfig.Problem(
        network.double(), inputs, targets.flatten() if flattened else targets, loss
    )


@pytest.mark.parametrize("name", daily(SPELLINGS, next(iter(SPELLINGS))))
def test_spellings_of_cross_entropy_have_a_head(name, monkeypatch):
    """Products are those of the user's own function, in chunks and without logits."""
    monkeypatch.setattr(readouts, "CHUNK_BYTES", 8 * WORDS * 2)
    check_same_without(of_loss(SPELLINGS[name]), monkeypatch)


@pytest.mark.parametrize(
    "loss",
    thinned(
        [nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum"), F.cross_entropy],
        3,
    ),
)
def test_a_plain_module_or_function_has_a_head_where_classes_are_the_last_axis(
    loss, monkeypatch
):
    check_same_without(of_loss(loss, flattened=True), monkeypatch)


@pytest.mark.parametrize("name", thinned(OTHERS, 4))
def test_other_losses_of_classes_have_no_head(name):
    column = column_of(of_loss(OTHERS[name]))
    assert column.network.head is None
    assert all(map(column.network.holds, PARTS))


def test_a_target_that_one_batch_ignores_and_another_counts_has_no_labels():
    search = LabelSearch(Called(ignoring_the_first))
    outputs = torch.randn(4, 5, dtype=torch.float64)
    search.see(outputs, torch.tensor([2, 0, 1, 4]))
    assert search.labels == Labels(ignored=(2,))
    search.see(outputs, torch.tensor([3, 0, 2, 4]))
    assert search.labels is None


def ignoring_the_first(outputs, targets):
    return F.cross_entropy(outputs[1:], targets[1:])


def test_a_head_that_is_last_for_some_batches_alone_is_none():
    (first, one), (second, other) = tokens(3), tokens(2)
    problem = hessfig.Problem(Branching().double(), [first, second], [one, other])
    column = column_of(problem)
    vectors = draws(column.dim, 1, seed=1)
    truth = (
        hessfig.Problem.operator(problem, "all", products="curvlinops") @ vectors[:, 0]
    )
    assert column.network.head is None
    assert_close(
        products(column, vectors, *PARTS)[PARTS[-1]][:, 0], truth, rtol=1e-9, atol=1e-12
    )
