"""Memory of large products: what is counted, how far the estimate is off, and batches that are split."""

import gc
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import hessfig
from hessfig.config.enums import Products
from hessfig.config.machine import bytes_of
from hessfig.config.science import ModelConfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.curvature.large.large_column import LargeProducts
from hessfig.curvature.large.memory import bound_of, live_bytes
from hessfig.curvature.large.own_column import LargeNetwork, head_of
from hessfig.errors import UserError
from hessfig.models.routes import Engines
from hessfig.terms import PARTS, Block, Part
from tests.curvature.large.large_networks import (
    check_close,
    column_of,
    of_transformers,
    products,
)
from tests.curvature.large.large_networks import problem_of as scored_problem
from tests.daily import daily, thinned
from tests.draws import draws, tanh_network

WIDTH = 260
CLASSES = 4
SAMPLES = 12
ROW = Block(0, "all", "all")


@pytest.mark.parametrize("text", ["lots", "16", "-1GB", "0MB", -3, 2**30])
def test_what_is_no_size_is_refused(text):
    problem = hessfig.Problem(network(), *data(), memory=text)
    with pytest.raises(
        UserError,
        match=f"memory: this is not a size\n.*got: .*{re.escape(str(text))}\n.*a number and KB, MB, GB, TB",
    ):
        problem.operator("all")


def network():
    torch.manual_seed(0)
    return tanh_network(WIDTH, WIDTH, CLASSES).double()


def data():
    draw = torch.Generator().manual_seed(3)
    inputs = torch.randn(SAMPLES, WIDTH, generator=draw, dtype=torch.float64)
    return inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=draw)


def ignored(targets):
    """Samples 1, 2 and a whole micro-batch, 4 to 7, do not count."""
    targets = targets.clone()
    targets[[1, 2, 4, 5, 6, 7]] = -100
    return targets


def memory_of(problem, dtype="float64"):
    objective = problem.objective(dtype)
    memory = LargeNetwork(objective, head_of(objective)).memory()
    assert memory is not None
    return memory


def enough_for(memory, samples):
    return f"{(memory.peak(samples) + memory.each / 2) / 1e3:.3f}KB"


class WithLoss(nn.Module):
    """A network that returns its loss, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.body = network()

    def forward(self, x, labels):
        logits = self.body(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class SumInside(nn.Module):
    """A network that returns a loss of its own, the sum over samples."""

    def __init__(self):
        super().__init__()
        self.body = network()

    def forward(self, x, labels):
        return {"loss": (self.body(x) - labels).pow(4).sum()}


class TwoOutputs(nn.Module):
    """A network whose loss takes two outputs, so that its only output is the loss."""

    def __init__(self, body=None):
        super().__init__()
        self.body = body or network()

    def forward(self, x):
        outputs = self.body(x)
        return {"one": outputs, "two": outputs.sin()}


def cancelling(network, x, numbers):
    """Return a loss that is zero at the weights up to rounding, a mean of samples of both signs."""

    def each(result, targets):
        return result["one"].square().sum(1) + targets.sum(1)

    offset = float(each(network(x), numbers).detach().mean())
    return lambda result, targets: (each(result, targets) - offset).mean()


def of_two(result, targets):
    return (result["one"] - targets).square().sum() + result["two"].pow(4).sum()


of_two.reduction = "sum"


def cases():
    x, y = data()
    two = TwoOutputs().double()
    numbers = draws(SAMPLES, CLASSES, seed=5)
    weighted = nn.CrossEntropyLoss(
        weight=torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
    )

    def case(inputs, targets=None, loss=None, of=None):
        return lambda memory: hessfig.Problem(
            of or network(), inputs, targets, loss, memory=memory
        )

    return {
        "cross-entropy": case(x, y),
        "ignored targets": case(x, ignored(y)),
        "several batches": case([x, x[:7], x[2:5]], [y, ignored(y)[:7], y[2:5]]),
        "class weights": case(x, ignored(y), weighted),
        "mse": case(x, numbers, "mse"),
        "mse_sum": case(x, numbers, "mse_sum"),
        "own loss": case(
            x, y, lambda outputs, targets: 3 * F.cross_entropy(outputs, targets)
        ),
        "loss inside": case({"x": x, "labels": y}, of=WithLoss().double()),
        "sum inside": case({"x": x, "labels": numbers}, of=SumInside().double()),
        "sum of outputs": case({"x": x}, numbers, of_two, TwoOutputs().double()),
        "cancelling terms": case({"x": x}, numbers, cancelling(two, x, numbers), two),
        "sums of batches": case(
            [{"x": x}, {"x": x[:5]}],
            [numbers, numbers[:5]],
            of_two,
            TwoOutputs().double(),
        ),
        "dictionaries": case(
            [{"input": x}, {"input": x[:5]}], [y, y[:5]], "cross_entropy"
        ),
    }


@pytest.mark.parametrize("name", daily(cases(), *[*cases()][::10]))
def test_micro_batches_have_the_products_of_the_whole(name):
    """Four samples at once, in place of all twelve; curvlinops multiplies by the whole."""
    make = cases()[name]
    column = column_of(make(enough_for(memory_of(make(None)), 4)))
    pieces = [len(batch.inputs) for batch in column.network.problem.batches]
    assert len(pieces) > 1
    assert max(pieces) <= 4
    vectors = draws(column.dim, 2, seed=1)
    whole = ColumnOperator(make(None).objective("float64"), 0, "all", {ROW: (0, "all")})
    truth = {part: one for (_, part), one in whole.split_matmat(vectors, PARTS).items()}
    assert all(map(column.network.holds, PARTS))
    check_close(products(column, vectors, *PARTS), truth)


class OverTheBatch(nn.Module):
    """Every sample sees the others."""

    def __init__(self):
        super().__init__()
        self.body = network()

    def forward(self, x):
        hidden = self.body[1](self.body[0](x))
        return self.body[2](hidden * hidden.softmax(0))


class TimeFirst(nn.Module):
    """Samples are the second axis."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.RNN(8, 256)
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


class Gain(nn.Module):
    """Samples see each other once a gain, which starts at zero, is not zero."""

    def __init__(self):
        super().__init__()
        self.body = network()
        self.gain = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x):
        outputs = self.body(x)
        return outputs + self.gain * (outputs - outputs.mean(0))


class OneNumber(nn.Module):
    """A network that returns its loss alone."""

    def __init__(self):
        super().__init__()
        self.body = network()

    def forward(self, x):
        return self.body(x).pow(4).mean()


def pairwise(outputs, targets):
    return (outputs @ outputs.T).square().mean()


def apart():
    x, y = data()
    torch.manual_seed(0)
    over = OverTheBatch().double()
    first = TimeFirst().double()
    steps = torch.randn(12, 3, 8, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (12, 3))
    return {
        "network": lambda memory: hessfig.Problem(over, x, y, memory=memory),
        "loss": lambda memory: hessfig.Problem(
            network(), x, y, pairwise, memory=memory
        ),
        "gain": lambda memory: hessfig.Problem(Gain().double(), x, y, memory=memory),
        "one number": lambda memory: hessfig.Problem(
            OneNumber().double(), x, y, lambda out, _: out, memory=memory
        ),
        "axis": lambda memory: hessfig.Problem(first, steps, labels, memory=memory),
    }


@pytest.mark.parametrize("name", thinned(apart(), 4))
def test_batches_whose_samples_interact_are_not_split(name):
    """They are measured whole while they fit."""
    make = apart()[name]
    memory = memory_of(make(None))
    with pytest.raises(
        UserError,
        match=r"memory: the batch must be split, but its samples [\s\S]*a larger memory=",
    ):
        column_of(make(enough_for(memory, 5)))
    assert len(column_of(make(enough_for(memory, 12))).network) == 1


def test_too_little_for_one_sample_is_refused_with_the_estimate():
    need = memory_of(hessfig.Problem(network(), *data())).peak(1)
    problem = hessfig.Problem(network(), *data(), memory=f"{0.9 * need / 1e3:.3f}KB")
    with pytest.raises(
        UserError, match="memory: too little for the product of one sample"
    ) as caught:
        column_of(problem)
    assert caught.value.allowed == f"at least {need / 1e9:.3g} GB"
    assert "memory=" in caught.value.remedy


def test_bounds_come_from_the_problem_or_the_host():
    plain, bounded = (
        hessfig.Problem(network(), *data(), memory=text) for text in (None, "3MB")
    )
    assert [bound_of(one.objective("float64")) for one in (plain, bounded)] == [
        8e9,
        3e6,
    ]


def test_live_bytes_counts_what_is_created_and_what_stays():
    given = torch.zeros(1000)
    kept = []

    def work():
        first = given + 1  # 4000
        second = first.double()  # 8000
        del first
        kept.append(second[:10] * 2)  # 80
        given.mul_(1)
        return second.sum()

    peak, stays = live_bytes(work, [given])
    assert (peak, stays) == (4000 + 8000, 80)


def test_a_view_is_no_memory_and_neither_is_what_was_there():
    given = torch.zeros(1000)
    assert live_bytes(lambda: given.view(10, 100)[2:].T, [given]) == (0, 0)


def counted(column):
    """Return the bytes of one product with H in all parameters, graphs included."""
    network = column.network
    parameters = column.network._parameters()
    fresh = LargeNetwork(network.problem, network.head, network._kept, network.expected)

    def product():
        vector = [torch.ones_like(one).unsqueeze(-1) for one in parameters.values()]
        LargeProducts(fresh, parameters).of_batches(range(len(fresh)), vector, [Part.H])

    return live_bytes(product, list(parameters.values()))[0]


@pytest.mark.parametrize(
    ("batches", "length"),
    [
        (4, 8),
        *(
            pytest.param(n, m, marks=pytest.mark.long)
            for n, m in [(16, 8), (1, 16), (1, 64), (1, 256), (4, 64)]
        ),
    ],
)
def test_the_estimate_is_that_of_a_product_within_a_fifth(batches, length):
    model, tokens, targets = of_transformers("GPT2LMHeadModel", length)
    problem = scored_problem(model, [tokens] * batches, [targets] * batches)
    column = column_of(problem, "float32")
    expected = column.network.expected
    assert expected is not None
    assert 0.8 < expected / counted(column) < 1.25


@pytest.mark.long
@pytest.mark.parametrize("samples", thinned([1, 2], 2))
def test_products_stay_within_the_bound(samples):
    """Graphs are kept for as many micro-batches as fit, and made again for the others: more batches take no more."""
    model, tokens, targets = of_transformers("GPT2LMHeadModel", 16)
    memory = memory_of(scored_problem(model, tokens, targets), "float32")
    bound = enough_for(memory, samples)
    taken = []
    for batches in (1, 3):
        problem = scored_problem(
            model, [tokens] * batches, [targets] * batches, memory=bound
        )
        column = column_of(problem, "float32")
        assert len(column.network) == batches * 4 // samples
        assert column.network._kept < len(column.network)
        taken.append(counted(column))
    assert max(taken) <= 1.2 * bytes_of(bound)
    assert taken[1] <= 1.05 * taken[0]


def test_an_operator_tells_what_its_products_take():
    make = cases()["cross-entropy"]
    memory = memory_of(make(None))
    assert make(None).operator("all").memory == memory.peak(SAMPLES)
    split = make(enough_for(memory, 4)).operator("all").memory
    assert split is not None
    assert memory.peak(4) <= split <= memory.peak(4) + memory.each / 2
    small = hessfig.Problem(nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1]))
    assert small.operator("all").memory is None


@pytest.mark.parametrize("loss", daily(["cross_entropy", "a sum"], "cross_entropy"))
def test_first_samples_that_do_not_count_bound_memory_too(loss):
    """What a product takes is measured as if every target counted."""
    x, y = data()
    y[:3] = -100

    def summed(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="sum")

    summed.reduction = "sum"
    chosen = summed if loss == "a sum" else loss
    bound = enough_for(
        memory_of(hessfig.Problem(network(), x, y.clamp(min=0), chosen)), 4
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        operator = hessfig.Problem(network(), x, y, chosen, memory=bound).operator(
            "all"
        )
        vector = torch.ones(operator.shape[1], dtype=torch.float64)
        product = operator @ vector
    assert operator.memory is not None
    assert operator.memory <= bytes_of(bound)
    whole = (
        hessfig.Problem(network(), x, y, chosen).operator("all", products="curvlinops")
        @ vector
    )
    assert_close(product, whole, rtol=1e-9, atol=1e-12)


def test_nothing_of_an_operator_waits_for_the_garbage_collector():
    """Graphs, copies and outputs of checks would take the memory of the next operator."""
    problem = hessfig.Problem(network(), *data())
    gc.collect()
    gc.disable()
    try:
        objective = problem.objective("float64")
        kept = [
            *objective.network.parameters(),
            objective.batch.inputs,
            objective.batch.targets,
        ]
        routes = Engines(objective, ModelConfig("python"), Products.linearised)

        def work():
            column = routes.column(0, "all", [ROW])
            column.split_matmat(torch.ones(column.dim, 1, dtype=torch.float64), PARTS)
            routes.__dict__.pop("_large")
            objective.made.clear()

        _, stays = live_bytes(work, kept)
    finally:
        gc.enable()
    # Half a vector; the check alone had left four of them.
    assert stays < 68_904 * 8 / 2
