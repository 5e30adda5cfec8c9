"""Products of large networks of others: rows of every parameter next to plain double backward."""

import numpy
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import hessfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.curvature.large.graphs import Totals
from hessfig.curvature.large.large_column import LargeProducts
from hessfig.curvature.large.own_column import OwnColumn
from hessfig.curvature.large.readouts import OutputReadout, VocabularyReadout, _Slope
from hessfig.errors import UserError
from hessfig.terms import PARTS, Block, Part
from tests.curvature.large.large_networks import (
    CASES,
    Plain,
    check_close,
    column_of,
    engines,
    off_by_parameter,
    problem_of,
    products,
)
from tests.daily import daily, thinned
from tests.draws import draws, tanh_network

EVERY_DAY = ("GPT2LMHeadModel",)
OF_SOFTMAX_IN_FLOAT32 = (
    "GPTNeoXForCausalLM",
    "OPTForCausalLM",
    "LlamaForCausalLM",
    "ViT",
)
BOUNDS = {"float64": 1e-9, "float32": 1e-4}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in EVERY_DAY else pytest.mark.long) for n in CASES],
)
def test_rows_of_every_parameter_are_those_of_plain_double_backward(name, dtype):
    """For a random vector and along the gradient, and a constant one in float64; no part falls back.

    Some models evaluate their softmax in float32, so that their float64 has fewer
    digits. In float32 the constant vector has rows in which everything cancels.
    """
    network, inputs, targets = case = CASES[name]()
    truth = Plain(case, torch.float64)
    count = len(truth.gradient)
    assert count > 65_536
    bound = (
        1e-5 if dtype == "float64" and name in OF_SOFTMAX_IN_FLOAT32 else BOUNDS[dtype]
    )
    random = draws(count, seed=1)
    vectors = [random, truth.gradient / truth.gradient.norm()]
    if dtype == "float64":
        vectors.append(torch.ones_like(random))
    column = column_of(problem_of(network, inputs, targets), dtype)
    assert all(map(column.network.holds, PARTS))
    mine = products(column, torch.stack(vectors, dim=1), *PARTS)
    wrong = {}
    for k, vector in enumerate(vectors):
        real = truth.products(vector)
        longest = max(float(one.norm()) for one in real.values())
        for part, one in real.items():
            found = off_by_parameter(network, mine[part][:, k], one, longest)
            for parameter, off in found.items():
                if off > bound:
                    wrong[part, k, parameter] = off
    assert wrong == {}


class Changing(nn.Module):
    """A network that reads a number from elsewhere."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.read = READ

    def forward(self, x):
        return self.head(self.body(x).tanh() * self.read["factor"])

    def __deepcopy__(self, memo):
        twin = Changing()
        twin.load_state_dict(self.state_dict())
        return twin.to(next(self.parameters()).dtype)


READ = {"factor": 1.0}
WIDTH = 260
CLASSES = 4


def data(count=6):
    draw = torch.Generator().manual_seed(3)
    return torch.randn(count, WIDTH, generator=draw), torch.randint(
        0, CLASSES, (count,), generator=draw
    )


def mlp():
    torch.manual_seed(0)
    return tanh_network(WIDTH, WIDTH, CLASSES)


def vectors_of(column, count=2):
    return draws(column.dim, count, seed=1)


def test_a_function_that_changes_is_noticed_when_graphs_are_made_again(monkeypatch):
    x, y = data()
    column = column_of(
        hessfig.Problem(Changing(), [x, x[:3]], [y, y[:3]], "cross_entropy")
    )
    monkeypatch.setattr(column.network, "_kept", 0)
    products(column, vectors_of(column), Part.H)
    monkeypatch.setitem(READ, "factor", 1.001)
    with pytest.raises(
        UserError, match="the function has changed since this operator was created"
    ):
        products(column, vectors_of(column), Part.H)


def test_kept_graphs_are_those_of_the_function_as_it_was(monkeypatch):
    column = column_of(hessfig.Problem(Changing(), *data(), "cross_entropy"))
    before = products(column, vectors_of(column), Part.H)[Part.H]
    monkeypatch.setitem(READ, "factor", 1.001)
    assert_close(
        products(column, vectors_of(column), Part.H)[Part.H], before, rtol=0, atol=0
    )


def scaled(function):
    def wrong(*given, **named):
        made = function(*given, **named)
        return (made[0] * 1.001, made[1]) if isinstance(made, tuple) else made * 1.001

    return wrong


def without_unembedding(ctx, tangent):
    """Return the derivative of the gradient, but not that of the unembedding."""
    ctx.direction.unembedding = None
    return RIGHT(ctx, tangent)


RIGHT = _Slope.backward
PLANTED = {
    "scaled products": (
        VocabularyReadout,
        "products",
        scaled(VocabularyReadout.products),
        PARTS,
        r"\S+",
    ),
    "scaled gradient": (
        VocabularyReadout,
        "cotangent",
        scaled(VocabularyReadout.cotangent),
        (Part.H_f,),
        r"\S+",
    ),
    "no direction of the head": (
        _Slope,
        "backward",
        staticmethod(without_unembedding),
        (Part.H,),
        r"\S+",
    ),
    "rows of the head": (
        LargeProducts,
        "_add_to_head",
        lambda *_: None,
        (Part.H, Part.H_o),
        r"2\.(weight|bias)",
    ),
    "outputs": (
        OutputReadout,
        "products",
        scaled(OutputReadout.products),
        (Part.H_o,),
        r"\S+",
    ),
}


@pytest.mark.parametrize("name", thinned(PLANTED, 2))
def test_a_wrong_engine_is_noticed_and_replaced(name, monkeypatch):
    """The warning names engine and parameter; the products are then those of ColumnOperator."""
    owner, method, wrong, parts, parameter = PLANTED[name]
    x, y = data()
    loss = (
        nn.CrossEntropyLoss(label_smoothing=0.1)
        if owner is OutputReadout
        else "cross_entropy"
    )
    problem = hessfig.Problem(mlp(), x, y, loss)
    truth = {
        part: problem.operator("all", str(part), products="curvlinops")
        @ torch.ones(68_904)
        for part in parts
    }
    monkeypatch.setattr(owner, method, wrong)
    column = column_of(problem)
    assert (column.network.head is None) == (owner is OutputReadout)
    for part in parts:
        said = rf"{part}: hessfig.curvature.large's product is off by \d\S* % here, in the rows of {parameter}; plain"
        with pytest.warns(RuntimeWarning, match=said):
            made = products(column, torch.ones(68_904, 1), part)[part][:, 0]
        assert_close(made, truth[part].to(made), rtol=1e-12, atol=0)


LINEAR = {
    "exp log": lambda out: out.exp().log().mean(),
    "log-sum-exp": lambda out: (
        (out.log_softmax(-1) - out + out.logsumexp(-1, keepdim=True)).sum() + out.mean()
    ),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("dtype", thinned(BOUNDS, 2))
@pytest.mark.parametrize("name", thinned(LINEAR, 2))
@pytest.mark.parametrize("width", daily([8, 260], 260))
def test_parts_that_are_zero_up_to_rounding_are_no_fault(name, dtype, width):
    """H_o of a loss that is linear in the outputs, up to rounding; every part, where the network is linear too."""
    torch.manual_seed(0)
    x = torch.randn(5, width, dtype=torch.float64)
    y = torch.zeros(5, 1, dtype=torch.float64)
    for network in (nn.Linear(width, width), tanh_network(width, width, width)):
        problem = hessfig.Problem(
            network.double(), x, y, lambda out, y: LINEAR[name](out)
        )
        column = engines(problem, dtype).column(0, "all", [Block(0, "all", "all")])
        assert isinstance(column, OwnColumn) == (width == 260)
        column.split_matmat(torch.ones(column.dim, 1, dtype=column.dtype), PARTS)
        network_of = getattr(column, "network", None) or getattr(
            column, "_network", None
        )
        assert all(map(network_of.holds, PARTS))


def test_a_wrong_part_beside_one_that_is_rounding_is_noticed(monkeypatch):
    torch.manual_seed(0)
    problem = hessfig.Problem(mlp(), *data(), lambda out, y: LINEAR["exp log"](out))
    monkeypatch.setattr(OutputReadout, "cotangent", scaled(OutputReadout.cotangent))
    column = column_of(problem)
    with pytest.warns(
        RuntimeWarning,
        match=r"H_f: hessfig.curvature.large's product is off by \S+ % here",
    ):
        assert not column.network.holds(Part.H_f)


class Late(nn.Module):
    """A network with a layer that the first samples do not reach."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.late = nn.Linear(3, 3)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        hidden = self.body(x).tanh()
        late = (x[:, :1] > 0) * self.late(hidden[:, :3]).tanh()
        return self.head(hidden + torch.nn.functional.pad(late, (0, WIDTH - 3)))


def test_rows_that_the_first_samples_do_not_reach_are_compared_on_all(monkeypatch):
    torch.manual_seed(0)
    x, y = data(16)
    x[:, 0] = torch.where(torch.arange(16) < 8, -1.0, 1.0)
    right = Totals.tensors
    monkeypatch.setattr(
        Totals,
        "tensors",
        lambda self: [(1 + (k == 2)) * one for k, one in enumerate(right(self))],
    )
    column = column_of(hessfig.Problem(Late(), x, y, "cross_entropy"))
    with pytest.warns(
        RuntimeWarning, match=r"in the rows of late\.weight; plain double backward"
    ):
        assert not column.network.holds(Part.H)


def test_an_engine_that_fails_is_replaced(monkeypatch):
    monkeypatch.setattr(
        LargeProducts,
        "_add_whole",
        lambda *_: (_ for _ in ()).throw(ValueError("planted")),
    )
    column = column_of(hessfig.Problem(mlp(), *data(), "cross_entropy"))
    said = r"H: hessfig.curvature.large cannot differentiate this network \(ValueError: planted\); plain"
    with pytest.warns(RuntimeWarning, match=said):
        assert products(column, vectors_of(column), Part.H)[Part.H].isfinite().all()
    assert column.network.holds(Part.H_o)


class Catching(nn.Module):
    """A network that handles every exception, also the one that ends a call at the head."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        hidden = self.body(x).tanh()
        try:
            return self.head(hidden)
        except:  # noqa: E722
            return self.head(2 * hidden)


@pytest.mark.filterwarnings(
    "ignore:.*plain double backward is used instead:RuntimeWarning"
)
def test_a_network_that_catches_everything_is_measured_without_its_head():
    problem = hessfig.Problem(Catching(), *data(), "cross_entropy")
    column = column_of(problem)
    assert not column.network.holds(Part.H)
    truth = problem.operator("all", products="curvlinops") @ vectors_of(column, 1)[:, 0]
    assert_close(
        products(column, vectors_of(column, 1), Part.H)[Part.H][:, 0],
        truth,
        rtol=1e-12,
        atol=0,
    )


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(16, 140, batch_first=True)
        self.head = nn.Linear(140, CLASSES)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.body(x.mul_(2)).tanh_())


class Pooled(nn.Module):
    """Outputs have no axis of samples, one parameter has shape (), and another one is never read."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.factor = nn.Parameter(torch.tensor(0.7))
        self.unread = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.head(self.factor * self.body(x).tanh().mean(0))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Linear(WIDTH, WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(
            checkpoint(
                lambda one: self.body(one).tanh(), self.into(x), use_reentrant=False
            )
        )


class Differentiating(nn.Module):
    """A network that returns the gradient of an energy."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(
            self.out(self.body(x).tanh()).sum(), x, create_graph=True
        )[0]


def frozen():
    network = mlp()
    network[0].weight.requires_grad_(False)
    return network


def pictures():
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.GroupNorm(4, 16),
        nn.AvgPool2d(2),
        nn.Flatten(),
    ]
    network = nn.Sequential(*layers, nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10))
    return hessfig.Problem(network, torch.randn(3, 3, 8, 8), torch.tensor([1, 9, 4]))


VIEWS = {"rows": ("0.weight", numpy.s_[:3, :]), "head": ("2.weight", numpy.s_[1:, 5:9])}
ODD = {
    "frozen": lambda: hessfig.Problem(frozen(), *data(), "cross_entropy"),
    "views": lambda: hessfig.Problem(mlp(), *data(), "cross_entropy", VIEWS),
    "group": lambda: hessfig.Problem(
        mlp(), *data(), "cross_entropy", {"both": ["0.bias", "2.bias", VIEWS["head"]]}
    ),
    "LSTM": lambda: hessfig.Problem(
        Recurrent(), torch.randn(3, 5, 16), torch.tensor([1, 0, 3])
    ),
    "pictures": pictures,
    "in place": lambda: hessfig.Problem(InPlace(), *data(), "cross_entropy"),
    "no axis": lambda: hessfig.Problem(Pooled(), data()[0], torch.arange(4.0), "mse"),
    "checkpoint": lambda: hessfig.Problem(Checkpointed(), *data(), "cross_entropy"),
    "derivative inside": lambda: hessfig.Problem(
        Differentiating(), data()[0], data()[0].flip(0), "mse"
    ),
    "compiled": lambda: hessfig.Problem(
        torch.compile(mlp(), backend="eager"), *data(), "cross_entropy"
    ),
}


@pytest.mark.parametrize("name", daily(ODD, "views", "in place", "derivative inside"))
@pytest.mark.filterwarnings(
    "ignore:.*curvlinops.*plain double backward is used instead:RuntimeWarning"
)
def test_odd_networks_have_the_products_of_plain_double_backward(name):
    """Along all pairs of their weights (of views and groups), next to ColumnOperator; the engine itself holds."""
    routes = engines(ODD[name]())
    objective = routes.problem
    names = {"views": ["all", *VIEWS], "group": ["both"]}.get(name, ["all"])
    for col in names:
        rows = {Block(0, row, col): (0, row) for row in names}
        column = routes.column(0, col, [*rows])
        plain = ColumnOperator(objective, 0, col, rows)
        assert isinstance(column, OwnColumn)
        assert all(map(column.network.holds, PARTS))
        truth = plain.split_matmat(vectors_of(column), PARTS)
        check_close(column.split_matmat(vectors_of(column), PARTS), truth)


def test_reentrant_checkpoints_are_refused_with_a_remedy():
    network = Checkpointed()
    network.forward = lambda x: checkpoint(network.into, x, use_reentrant=True)
    with pytest.raises(UserError, match="use_reentrant=False"):
        column_of(
            hessfig.Problem(network, data()[0].requires_grad_(), data()[0], "mse")
        )
