"""The first hour with a network of one's own: compiled, scripted, checkpointed, sparse and padded modules, CTC."""

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import hessfig
from hessfig.errors import UserError
from tests.daily import daily
from tests.double_backward import hessian

X = torch.linspace(-1, 1, 24).sin().double().view(6, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2])
Change = Callable[[nn.Sequential], nn.Module]


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def truth():
    network = plain()
    return hessian(lambda: F.cross_entropy(network(X), Y), list(network.parameters()))


def norm(network, loss="cross_entropy", **settings):
    problem = hessfig.Problem(network, X, Y, loss)
    table = hessfig.measure(
        problem, blocks=["all"], **{"parts": "H", "estimator": "dense", **settings}
    )
    return float(table["value"][0])


class WithFunction(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.inside, self.bend = inside, torch.compile(torch.tanh, backend="aot_eager")

    def forward(self, x):
        return self.inside[2](self.bend(self.inside[0](x)))


def whole(network):
    return torch.compile(network, backend="aot_eager")


def twice(network):
    return torch.compile(nn.Sequential(whole(network)), backend="aot_eager")


def part(network):
    network[0], network[1] = (
        torch.compile(one, backend="aot_eager") for one in network[:2]
    )
    return network


def in_place(network):
    network.compile(backend="aot_eager")
    return network


def part_in_place(network):
    network[2].compile(backend="aot_eager")
    return network


@pytest.mark.parametrize(
    "change", daily([whole, twice, part, in_place, part_in_place, WithFunction], whole)
)
@pytest.mark.parametrize("has_run", daily([False, True], True))
def test_what_is_compiled_is_measured_as_its_original(change, has_run, tmp_path):
    network = change(plain())
    dense = truth()
    if has_run:
        F.cross_entropy(network(X), Y).backward()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert norm(network) == pytest.approx(float(dense.norm()), rel=1e-12)
        torch.testing.assert_close(
            hessfig.Problem(network, X, Y).operator("all").dense(), dense
        )
    assert any("compiled" in str(one.message) for one in said) == (
        change in (whole, twice)
    )
    wanted = hessfig.Measure(
        blocks=["all"], parts="H", quantities=["largest_eigenvalue"]
    )
    monitor = hessfig.Monitor(
        network, "cross_entropy", (X, Y), folder=tmp_path, measure=wanted, every=1
    )
    (value,) = monitor(0).values()
    monitor.close()
    assert value == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-6)


class Checkpointed(nn.Module):
    def __init__(self, inside, *, use_reentrant):
        super().__init__()
        self.inside, self.use_reentrant = inside, use_reentrant

    def forward(self, x):
        return self.inside[1:](
            checkpoint(self.inside[0], self.given(x), use_reentrant=self.use_reentrant)
        )

    def given(self, x):
        return x


class OfLeaf(Checkpointed):
    def given(self, x):
        return x.detach().requires_grad_()


class OfLater(Checkpointed):
    def forward(self, x):
        return self.inside[2](
            checkpoint(
                self.inside[1], self.inside[0](x), use_reentrant=self.use_reentrant
            )
        )


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("kind", daily([Checkpointed, OfLeaf, OfLater], OfLater))
@pytest.mark.parametrize("products", ["auto", "differences"])
def test_reentrant_checkpoints_are_refused_for_the_other_kind(kind, products):
    with pytest.raises(UserError, match="use_reentrant=False"):
        norm(kind(plain(), use_reentrant=True), products=products)
    found = norm(kind(plain(), use_reentrant=False), products=products)
    assert found == pytest.approx(float(truth().norm()), rel=1e-8)


def ctc(outputs, targets):
    del targets
    chances = outputs.log_softmax(-1)[:, None].contiguous()
    return F.ctc_loss(
        chances, torch.tensor([[1, 2]]), torch.tensor([6]), torch.tensor([2])
    )


def elementary(outputs, targets):
    """CTC of the labels 1, 2 with the blank 0: minus the log of the sum over all paths, over the labels' number."""
    del targets
    chances = outputs.log_softmax(-1).exp()
    labels = [0, 1, 0, 2, 0]
    reached = [chances[0, 0], chances[0, 1], *[chances.new_zeros(())] * 3]
    for row in chances[1:]:
        before = [*[row.new_zeros(())] * 2, *reached]
        skips = [0, 0, 0, 1, 0]
        sums = [
            before[at + 2] + before[at + 1] + skips[at] * before[at] for at in range(5)
        ]
        reached = [
            total * row[label] for total, label in zip(sums, labels, strict=True)
        ]
    return -(reached[3] + reached[4]).log() / 2


def test_a_loss_without_a_second_derivative_has_differences():
    with pytest.raises(UserError, match='products="differences" with parts="H"'):
        norm(plain(), ctc, parts=None)
    with pytest.raises(
        UserError,
        match="H_o and H_f are not defined here: the loss has no second derivative",
    ):
        norm(plain(), ctc, parts="H_o")
    network = plain()
    dense = hessian(lambda: elementary(network(X), Y), list(network.parameters()))
    problem = hessfig.Problem(plain(), X, Y, ctc)
    for estimator in ("auto", "dense", "hutchinson"):
        row = hessfig.measure(
            problem,
            blocks=["all"],
            parts="H",
            estimator=estimator,
            products="differences",
            num_probes=40,
        ).iloc[0]
        assert row["error"] > 0
        assert abs(row["value"] - float(dense.norm())) <= 4 * row["error"]
        assert (
            row["error"] < (0.2 if estimator == "hutchinson" else 1e-7) * row["value"]
        )
    operator = problem.operator("all", products="differences")
    torch.testing.assert_close(operator.dense(), dense, rtol=1e-7, atol=1e-9)


def test_products_by_name():
    values = {}
    for name in ("auto", "curvlinops", "differences"):
        values[name] = norm(plain(), products=name)
        assert values[name] == pytest.approx(float(truth().norm()), rel=1e-8)
    assert values["auto"] != values["differences"]
    with pytest.raises(UserError, match="allowed: auto, curvlinops, differences"):
        norm(plain(), products="linearised")
    with pytest.raises(UserError, match="this number would not state the error"):
        norm(plain(), products="differences", quantities=["spectrum"])


class Words(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.words, self.last = embedding, nn.Linear(3, 3)

    def forward(self, x):
        return self.last(self.words(x).tanh())


class Scaled(nn.Embedding):
    def forward(self, input):
        return 2 * super().forward(input)


IDS = torch.tensor([[1, 0], [2, 3], [0, 0], [4, 1], [3, 2], [1, 1]])
EMBEDDINGS = {
    "sparse and padded": lambda: nn.Embedding(5, 3, padding_idx=1, sparse=True),
    "from weights": lambda: nn.Embedding.from_pretrained(
        torch.randn(5, 3), freeze=False, padding_idx=2, sparse=True
    ),
    "class of its own": lambda: Scaled(5, 3, padding_idx=0, sparse=True),
    "counted": lambda: nn.Embedding(5, 3, sparse=True, scale_grad_by_freq=False),
}
BAGS = {
    "sparse sum": lambda: nn.EmbeddingBag(5, 3, mode="sum", sparse=True),
    "padded mean": lambda: nn.EmbeddingBag(5, 3, padding_idx=1),
    "sparse and padded": lambda: nn.EmbeddingBag(
        5, 3, mode="sum", padding_idx=1, sparse=True
    ),
}


def gathered(bag):
    def outputs(ids):
        counts = (
            (ids != bag.padding_idx).double()
            if bag.padding_idx is not None
            else torch.ones(ids.shape).double()
        )
        total = (bag.weight[ids] * counts[..., None]).sum(1)
        return (
            total / counts.sum(1).clamp(min=1)[:, None] if bag.mode == "mean" else total
        )

    return outputs


@pytest.mark.parametrize(
    "name",
    daily(
        [*EMBEDDINGS, *(f"bag: {name}" for name in BAGS)],
        "sparse and padded",
        "counted",
        "bag: padded mean",
    ),
)
def test_embeddings_have_the_derivatives_of_what_they_compute(name):
    """Every row of an embedding counts, the padding's too; a bag leaves its padding out of the sum itself."""
    torch.manual_seed(0)
    is_bag = name.startswith("bag: ")
    network = Words(
        (BAGS[name.removeprefix("bag: ")] if is_bag else EMBEDDINGS[name])()
    ).double()
    with torch.no_grad():
        network.words.weight.normal_()
    before = copy.deepcopy(vars(network.words))
    targets = torch.arange(6) % 3 if is_bag else torch.arange(12).view(6, 2) % 3
    scale = 2 if isinstance(network.words, Scaled) else 1
    look_up = (
        gathered(network.words)
        if is_bag
        else lambda ids: scale * network.words.weight[ids]
    )

    def loss():
        return F.cross_entropy(
            network.last(look_up(IDS).tanh()).flatten(0, -2), targets.flatten()
        )

    problem = hessfig.Problem(network, IDS, targets)
    table = hessfig.measure(
        problem, blocks=["words.weight", "all"], parts="H", estimator="dense"
    )
    dense = [
        hessian(loss, [network.words.weight]),
        hessian(loss, list(network.parameters())),
    ]
    assert list(table["value"]) == pytest.approx(
        [float(one.norm()) for one in dense], rel=1e-11
    )
    for key in ("padding_idx", "sparse"):
        assert vars(network.words)[key] == before[key]
    assert network.words.weight.grad is None


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.seen = []
        self.facts = {"calls": 0}

    def forward(self, x):
        self.calls += 1
        self.facts["calls"] += 1
        self.last = x
        self.seen.append(x)
        return x


class Shifting(nn.Module):
    """A network that changes its input: not to the same at every call."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        return self.inside(x.sub_(1.0))


def in_place_loss(outputs, targets):
    targets[targets == 2] = -100
    return F.cross_entropy(outputs, targets)


CHANGING = {
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)),
        nn.InstanceNorm1d(2, affine=True, track_running_stats=True),
        nn.Flatten(),
        plain(),
    ),
    "counting": lambda: nn.Sequential(plain(), Counting()),
    "shifting": lambda: Shifting(plain()),
    "relu": lambda: nn.Sequential(nn.ReLU(inplace=True), plain()),
    "max norm": lambda: nn.Sequential(
        Rounded(), nn.Embedding(5, 3, max_norm=0.1), nn.Flatten(), nn.Linear(12, 3)
    ),
}


class Rounded(nn.Module):
    def forward(self, x):
        return (2 * x).round().long() + 2


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("loss", daily(["cross_entropy", in_place_loss], in_place_loss))
def test_nothing_of_the_user_changes(name, loss):
    torch.manual_seed(0)
    network = CHANGING[name]().double()
    x = X.clone()
    y = Y.clone()
    if name == "max norm":
        with torch.no_grad():
            network[1].weight.normal_()
    before = {key: one.clone() for key, one in network.state_dict().items()}
    facts = [sorted(vars(module)) for module in network.modules()]
    fresh = copy.deepcopy(network)
    problem = hessfig.Problem(network, x, y, loss)
    table = hessfig.measure(problem, blocks=["all"], parts="H", estimator="dense")
    fresh(X.clone())  # norms kept small are so from the first call on
    used = in_place_loss if callable(loss) else F.cross_entropy
    dense = hessian(lambda: used(fresh(X.clone()), Y.clone()), list(fresh.parameters()))
    assert table["value"][0] == pytest.approx(float(dense.norm()), rel=1e-9)
    found = problem.operator("all") @ torch.ones(len(dense), dtype=torch.float64)
    torch.testing.assert_close(found, dense.sum(1), rtol=1e-9, atol=1e-11)
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert not x.requires_grad
    assert all(
        torch.equal(one, before[key]) for key, one in network.state_dict().items()
    )
    assert [sorted(vars(module)) for module in network.modules()] == facts
    assert not any(
        one.seen or one.facts["calls"]
        for one in network.modules()
        if isinstance(one, Counting)
    )


@pytest.mark.parametrize(
    "kind",
    daily(
        [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8],
        torch.int32,
        torch.uint8,
    ),
)
def test_class_numbers_of_any_type(kind):
    for targets in (Y.to(kind), [Y[:4].to(kind), Y[4:].to(kind)]):
        inputs = X if isinstance(targets, Tensor) else [X[:4], X[4:]]
        table = hessfig.measure(
            hessfig.Problem(plain(), inputs, targets), blocks=["all"], estimator="dense"
        )
        assert table["value"][0] == pytest.approx(float(truth().norm()), rel=1e-12)
