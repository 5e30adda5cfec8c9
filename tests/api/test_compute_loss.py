"""hessfig.Problem(network, batches, compute_loss=f): any function on any batch, against dense double backward."""

import copy
import re
import secrets
import sys
import threading
import types
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.models.identity import identity
from tests.api.any_functions import CASES, log_probability, mlp
from tests.daily import daily, thinned
from tests.double_backward import hessian
from tests.odd_functions import Cube
from tests.runs import here

SMALL = [name for name in CASES if not name.startswith("large")]
# Each is of the kind of another one.
ALIKE = (
    "packed_sequences",
    "preference",
    "sparse_autoencoder_with_a_hook",
    "contrastive_pair",
    "triplet",
    "loader_of_pairs",
    "spectrum_of_outputs",
    "clipped_ratio",
    "graph",
    "autoencoder",
    "gradient_penalty",
    "denoising_autoencoder",
    "contrastive_pairs_over_batches",
    "preference_of_an_object",
    "poisson",
    "batch_of_graphs",
    "ragged_texts",
    "distillation",
    "two_inner_steps_of_kept_parameters",
    "variational_autoencoder_with_a_generator",
    "counted_calls",
    "numbers_of_numpy",
    "data_set_of_batches",
)
DAILY = [name for name in SMALL if name not in ALIKE]
LARGE = [name for name in CASES if name.startswith("large")]


def problem(case):
    return hessfig.Problem(
        case.network, case.batches, compute_loss=case.compute_loss, **case.further
    )


def parameters(case):
    """Return the measured parameters of the user's own network."""
    named = dict(case.network.named_parameters())
    if case.further.get("weights") == "trainable":
        return {name: one for name, one in named.items() if one.requires_grad}
    return {name: one.requires_grad_() for name, one in named.items()}


def total(make, case):
    """Return sum_b w_b f(network, b) / sum_b w_b; every call of f starts from the state in which it was handed over."""
    weights = case.further.get("batch_weights") or (lambda batch: 1.0)
    every = case.every
    numbers = (
        [float(weights(copy.deepcopy(b))) for b in every]
        if callable(weights)
        else [*map(float, weights)]
    )
    value = torch.zeros(())
    for number, weight in enumerate(numbers):
        fresh = make()
        if weight:
            own = fresh.compute_loss
            _rebind(own, case)
            value = value + weight * own(_at(fresh, case), fresh.every[number]).reshape(
                ()
            )
    return value / sum(numbers)


def _at(fresh, case):
    """Return the fresh network with the parameters of `case`, which derivatives are taken in."""
    theirs = dict(case.network.named_modules())
    for path, module in fresh.network.named_modules():
        module._parameters.update(theirs[path]._parameters)
    return fresh.network


def _rebind(function, case):
    """Give a function that kept the parameters of the fresh network those of `case`."""
    named = dict(case.network.named_parameters())
    for cell in getattr(function, "__closure__", None) or ():
        content = cell.cell_contents
        if isinstance(content, dict) and set(content) == set(named):
            content.update(named)


def dense(make):
    case = make()
    return hessian(lambda: total(make, case), list(parameters(case).values()))


def check(found, truth, case, allowed):
    """Compare two matrices in the rows of every parameter, relative to these, or to a thousandth of the whole."""
    sizes = [one.numel() for one in parameters(case).values()]
    for rows, other in zip(
        found.double().split(sizes), truth.split(sizes), strict=True
    ):
        size = max(float(other.norm()), 1e-3 * float(truth.norm()))
        assert float((rows - other).norm()) <= allowed * size


@pytest.mark.parametrize("name", daily(SMALL, *DAILY[::3]))
def test_every_function_equals_double_backward_by_parameter(name):
    make = CASES[name]
    truth, case = dense(make), make()
    for dtype, allowed in {"float64": 1e-9, "float32": 1e-4}.items():
        check(problem(case).operator("all", dtype=dtype).dense(), truth, case, allowed)


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_measure_and_monitor_agree_with_double_backward(name, tmp_path):
    make = CASES[name]
    truth, case = dense(make), make()
    numbers = {
        "frobenius": float(truth.norm()),
        "trace": float(truth.trace()),
        "largest_eigenvalue": float(torch.linalg.eigvalsh(truth)[-1]),
    }
    size = numbers["frobenius"]
    options = {
        "blocks": ["all"],
        "parts": "H",
        "quantities": [*numbers],
        "estimator": "dense",
    }
    for dtype, allowed in {"float64": 1e-8, "float32": 1e-4}.items():
        table = hessfig.measure(problem(case), **options, dtype=dtype)
        found = dict(zip(table["quantity"], table["value"], strict=True))
        assert found == {
            name: pytest.approx(value, abs=allowed * size)
            for name, value in numbers.items()
        }
    case = make()
    functions = {"compute_loss": case.compute_loss, "weights": None, **case.further}
    monitor = hessfig.Monitor(
        case.network, case.batches, folder=tmp_path, every=1, **functions, **options
    )
    found = {name.partition("/")[0]: value for name, value in monitor(0).items()}
    assert found == {
        name: pytest.approx(value, abs=1e-8 * size) for name, value in numbers.items()
    }
    monitor.close()


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_large_networks_agree_with_double_backward(name, tmp_path):
    make = CASES[name]
    case = make()
    named = parameters(case)
    for dtype, allowed in {"float64": 1e-9, "float32": 1e-4}.items():
        operator = problem(case).operator("all", dtype=dtype)
        vector = torch.randn(
            operator.shape[1],
            generator=torch.Generator().manual_seed(1),
            dtype=torch.float64,
        )
        slopes = torch.autograd.grad(
            total(make, case), [*named.values()], create_graph=True
        )
        along = sum(
            (one * v.view_as(one)).sum()
            for one, v in zip(slopes, vector.split(operator.sizes), strict=True)
        )
        truth = torch.autograd.grad(along, [*named.values()])
        pieces = (
            (operator @ vector.to(getattr(torch, dtype))).double().split(operator.sizes)
        )
        for found, piece in zip(pieces, truth, strict=True):
            assert float((found - piece.flatten()).norm()) <= allowed * float(
                piece.norm()
            )
    (tmp_path / "functions.py").write_text(FACTORY)
    options = {"blocks": ["all"], "parts": "H", "quantities": ["largest_eigenvalue"]}
    (value,) = hessfig.measure(problem(case), **options, seed=1234)["value"]
    words = [
        "model.factory=functions.py:make",
        f"model.options.name={name}",
        "blocks=[all]",
        "parts=[H]",
        "seeds=1",
    ]
    answer = here(
        "run",
        "sweep=network",
        *words,
        "quantities=[largest_eigenvalue]",
        "workers=1",
        folder=tmp_path,
    )
    assert answer.returncode == 0, answer.stderr
    (found,) = hessfig.read(tmp_path / "outputs" / "network").table["value"]
    assert found == pytest.approx(value, rel=1e-6)
    monitor = hessfig.Monitor(
        case.network,
        case.batches,
        compute_loss=case.compute_loss,
        folder=tmp_path / "m",
        weights=None,
        **options,
        **case.further,
    )
    assert [*monitor(0).values()] == [pytest.approx(value, rel=1e-6)]
    monitor.close()


FACTORY = """
import hessfig
from tests.api.any_functions import CASES

def make(name):
    made = CASES[name]()
    return hessfig.Problem(made.network, made.batches, compute_loss=made.compute_loss, **made.further)
"""


@pytest.mark.long
def test_the_command_line_measures_them_all(tmp_path):
    (tmp_path / "functions.py").write_text(FACTORY)
    names = ", ".join(SMALL)
    words = [
        "sweep=network",
        "model.factory=functions.py:make",
        "blocks=[all]",
        "parts=[H]",
        "estimator=dense",
    ]
    words += [
        f"sweep.vary={{model.options.name: [{names}]}}",
        "seeds=1",
        "workers=1",
        "quantities=[frobenius,trace]",
    ]
    answer = here("run", *words, folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    table = hessfig.read(tmp_path / "outputs" / "network").table
    assert len(table) == 2 * len(SMALL)
    for (name, quantity), rows in table.groupby(["variant", "quantity"]):
        truth = dense(CASES[name.rpartition("=")[2]])
        number = float(truth.norm() if quantity == "frobenius" else truth.trace())
        assert rows["value"].item() == pytest.approx(
            number, abs=1e-8 * float(truth.norm())
        ), name


SPLIT = {
    "autoencoder": (lambda network, x: network(x), F.mse_loss),
    "denoising_autoencoder": (
        lambda network, batch: network(batch["x"] + 0.1 * batch["noise"]) - batch["x"],
        lambda outputs, batch: outputs.square().mean(),
    ),
    "distillation": (
        lambda network, x: network(x),
        lambda outputs, x: F.kl_div(
            (outputs / 2).log_softmax(-1), x[:, :3].softmax(-1), reduction="batchmean"
        ),
    ),
    "preference": (
        lambda network, batch: (
            log_probability(network, batch["chosen"])
            - log_probability(network, batch["rejected"])
        ),
        lambda outputs, batch: -F.logsigmoid(0.3 * outputs).mean(),
    ),
    "graph": (
        lambda network, graph: network(torch.cat([graph.nodes, graph.nodes], 1))[:, 0],
        lambda outputs, graph: F.huber_loss(outputs, graph.values),
    ),
    "ragged_documents": (
        lambda network, batch: torch.stack(
            [log_probability(network, one[None])[0] for one in batch[0]]
        ),
        lambda outputs, batch: (-outputs).exp().sum() / len(outputs),
    ),
    "ragged_texts": (
        lambda network, text: network(torch.tensor([*map(ord, text[:-1])])),
        lambda outputs, text: F.cross_entropy(
            outputs, torch.tensor([*map(ord, text[1:])])
        ),
    ),
    "actor_critic": (
        lambda network, batch: torch.cat(
            [network(batch.states)[0].flatten(), network(batch.states)[1]]
        ),
        lambda outputs, batch: (
            F.cross_entropy(
                outputs[: 3 * len(batch.actions)].view(-1, 3), batch.actions
            )
            + 0.5 * F.mse_loss(outputs[3 * len(batch.actions) :], batch.returns)
        ),
    ),
    "oscillator": (
        lambda network, t: (
            torch.autograd.grad(
                network(t.requires_grad_()).sum(), t, create_graph=True
            )[0]
            + network(t)
        ),
        lambda outputs, t: outputs.square().mean(),
    ),
    "large_contrastive_pair": (
        lambda network, batch: (network.left(batch[0]) * network.right(batch[1])).sum(
            1
        ),
        lambda outputs, batch: F.softplus(-outputs).mean(),
    ),
}


@pytest.mark.parametrize("name", daily(SPLIT, "oscillator"))
def test_h_o_and_h_f_are_those_of_the_definition(name):
    """H_o = J^T B J and H_f = sum_i (dl / df_i) d^2 f_i, by products with one vector, of the user's own objects."""
    compute_outputs, compute_loss = SPLIT[name]
    case = CASES[name]()
    weights = {
        name: one for name, one in case.further.items() if name == "batch_weights"
    }
    split = hessfig.Problem(
        case.network,
        case.batches,
        compute_loss=compute_loss,
        compute_outputs=compute_outputs,
        **weights,
    )
    whole = hessfig.Problem(
        case.network,
        case.batches,
        compute_loss=lambda network, batch: compute_loss(
            compute_outputs(network, batch), batch
        ),
        **weights,
    )
    at = [*parameters(case).values()]
    sizes = [one.numel() for one in at]
    given = weights.get("batch_weights") or (lambda batch: 1.0)
    shares = (
        [float(given(one)) for one in case.every]
        if callable(given)
        else [*map(float, given)]
    )
    vector = torch.randn(
        sum(sizes), generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    truth = {"H_o": torch.zeros_like(vector), "H_f": torch.zeros_like(vector)}
    for batch, share in zip(case.every, shares, strict=True):
        outputs = compute_outputs(case.network, batch)
        leaf = outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad(
            compute_loss(leaf, batch), leaf, create_graph=True
        )
        cotangent = torch.zeros_like(outputs).requires_grad_()
        pulled = _flat(
            torch.autograd.grad(
                outputs, at, cotangent, create_graph=True, materialize_grads=True
            )
        )
        (tangent,) = torch.autograd.grad(pulled @ vector, cotangent)
        curved = (
            torch.autograd.grad(slope, leaf, tangent)[0]
            if slope.requires_grad
            else torch.zeros_like(leaf)
        )
        again = compute_outputs(case.network, batch)
        outer = _flat(torch.autograd.grad(again, at, curved, materialize_grads=True))
        along = (compute_outputs(case.network, batch) * slope.detach()).sum()
        first = _flat(
            torch.autograd.grad(along, at, create_graph=True, materialize_grads=True)
        )
        inner = _flat(torch.autograd.grad(first @ vector, at, materialize_grads=True))
        truth["H_o"] += share / sum(shares) * outer
        truth["H_f"] += share / sum(shares) * inner
    size = max(float(one.norm()) for one in truth.values())
    found = split.operator("all", "H_o").split(vector)
    for part, product in truth.items():
        assert float((found[part] - product).norm()) <= 1e-9 * size, part
    h = whole.operator("all") @ vector
    assert float((found["H"] - h).norm()) <= 1e-9 * size


def _flat(pieces):
    return torch.cat([one.flatten() for one in pieces])


X = torch.randn(5, 4, generator=torch.Generator().manual_seed(2))


def small():
    torch.manual_seed(0)
    return mlp(4, 3, 1)


def squares(network, batch):
    return network(batch).square().mean()


def measured(network, batches, compute_loss, dtype="float64", **further):
    return (
        hessfig.Problem(network, batches, compute_loss=compute_loss, **further)
        .operator("all", dtype=dtype)
        .dense()
    )


def _decay(network):
    return sum(one.square().sum() for one in network.parameters()) / 2


def _inner(network, batch, *, keep):
    """Return the mean square of the outputs times their slopes in the inputs."""
    x = batch.detach().requires_grad_()
    outputs = network(x)
    (slope,) = torch.autograd.grad(outputs.sum(), x, create_graph=keep)
    return (outputs * slope).square().mean()


def _adapted(network, x, *, keep):
    """Return the loss after one step of gradient descent."""
    named = dict(network.named_parameters())
    slopes = torch.autograd.grad(
        squares(network, x), [*named.values()], create_graph=keep
    )
    there = {
        name: named[name] - 0.1 * slope
        for name, slope in zip(named, slopes, strict=True)
    }
    return torch.func.functional_call(network, there, (x + 1,)).square().mean()


REFUSED = {
    "a number of Python": (
        "does not return one real number",
        "no .item()",
        lambda: measured(small(), X, lambda network, x: squares(network, x).item()),
        lambda: measured(small(), X, squares),
    ),
    "loss and outputs": (
        "does not return one real number",
        r"f\(network, batch\)\[0\]",
        lambda: measured(
            small(), X, lambda network, x: (squares(network, x), network(x))
        ),
        lambda: measured(
            small(), X, lambda network, x: (squares(network, x), network(x))[0]
        ),
    ),
    "detached": (
        "does not depend on the network's parameters",
        r"remove \.detach\(\)",
        lambda: measured(small(), X, lambda network, x: squares(network, x).detach()),
        lambda: measured(small(), X, squares),
    ),
    "a training step inside": (
        "changes parameters of the network",
        "functional_call",
        lambda: measured(small(), X, _stepped),
        lambda: measured(small(), X, _stepped_as_a_function),
    ),
    "another value at every call": (
        "it changes from call to call",
        "data of the batch",
        lambda: measured(
            small(),
            X,
            lambda network, x: squares(network, x) * secrets.randbelow(10**6),
        ),
        lambda: measured(
            small(),
            (X, 17),
            lambda network, batch: squares(network, batch[0]) * batch[1],
        ),
    ),
    "a target network that is the network": (
        "second derivative does not match differences",
        "give what is detached or rounded as data",
        lambda: measured(
            small(),
            X,
            lambda network, x: (network(x) - network(x + 1).detach()).square().mean(),
        ),
        lambda: measured(
            small(),
            (X, small()(X + 1).detach()),
            lambda network, batch: (network(batch[0]) - batch[1]).square().mean(),
        ),
    ),
    "a penalty that is added as a number": (
        "is not that of its values",
        "give what is detached or rounded as data",
        lambda: measured(
            small(), X, lambda network, x: squares(network, x) + _decay(network).item()
        ),
        lambda: measured(
            small(), X, lambda network, x: squares(network, x) + _decay(network)
        ),
    ),
    "an inner gradient without its graph": (
        "has no gradient in torch",
        "create_graph=True",
        lambda: measured(
            small(),
            X,
            lambda network, x: _inner(network, x, keep=False) + squares(network, x),
        ),
        lambda: measured(
            small(),
            X,
            lambda network, x: _inner(network, x, keep=True) + squares(network, x),
        ),
    ),
    "a first-order inner step": (
        "second derivative does not match differences",
        "create_graph=True",
        lambda: measured(
            small(), X, lambda network, x: _adapted(network, x, keep=False)
        ),
        lambda: measured(
            small(), X, lambda network, x: _adapted(network, x, keep=True)
        ),
    ),
    "a batch with a graph": (
        "a tensor of a batch has a graph",
        r"\.detach\(\) it",
        lambda: measured(
            small(),
            small()(X),
            lambda network, y: (network(X.to(y)) - y).square().mean(),
        ),
        lambda: measured(
            small(),
            small()(X).detach(),
            lambda network, y: (network(X.to(y)) - y).square().mean(),
        ),
    ),
    "a lock in a batch": (
        "a batch cannot be copied",
        "leave files, locks",
        lambda: measured(
            small(),
            {"x": X, "lock": threading.Lock()},
            lambda network, batch: squares(network, batch["x"]),
        ),
        lambda: measured(
            small(), {"x": X}, lambda network, batch: squares(network, batch["x"])
        ),
    ),
    "no batch": (
        "no batch was given",
        "Problem\\(network, batch, compute_loss",
        lambda: measured(small(), [], squares),
        lambda: measured(small(), X, squares),
    ),
    "weights of too few batches": (
        "not one number for each batch",
        "batch_weights=lambda",
        lambda: measured(small(), [X, X[:2]], squares, batch_weights=[1]),
        lambda: measured(
            small(), [X, X[:2]], squares, batch_weights=lambda batch: len(batch)
        ),
    ),
    "float32 inside": (
        "raises RuntimeError",
        "dtype='float32'",
        lambda: measured(
            small(), X, lambda network, x: squares(network, torch.ones(2, 4))
        ),
        lambda: measured(
            small(), X, lambda network, x: squares(network, torch.ones(2, 4)), "float32"
        ),
    ),
    "several outputs": (
        "compute_outputs does not return one tensor",
        r"torch\.cat",
        lambda: measured(
            small(),
            X,
            lambda o, x: o[0].sum(),
            compute_outputs=lambda network, x: (network(x), x),
        ),
        lambda: measured(
            small(),
            X,
            lambda o, x: o.square().sum(),
            compute_outputs=lambda network, x: network(x),
        ),
    ),
    "samples": (
        "compute_loss takes a batch whole",
        r"Problem\(network, inputs, targets, loss\)",
        lambda: hessfig.Problem(small(), X, compute_loss=squares).approximation(
            "shampoo", "0.weight"
        ),
        lambda: hessfig.Problem(small(), X, X[:, :1], "mse").approximation(
            "shampoo", "0.weight"
        ),
    ),
    "K-FAC": (
        "takes batches whole",
        r"leave kfac or",
        lambda: hessfig.Problem(small(), X, compute_loss=squares).approximation(
            "kfac", "0.weight"
        ),
        lambda: hessfig.Problem(small(), X, compute_loss=squares).approximation(
            "diagonal", "0.weight"
        ),
    ),
    "the split of a whole loss": (
        "H_o and H_f are not defined here",
        "compute_outputs",
        lambda: hessfig.Problem(small(), X, compute_loss=squares).operator(
            "all", "H_o"
        ),
        lambda: hessfig.Problem(
            small(),
            X,
            compute_outputs=lambda network, x: network(x),
            compute_loss=lambda o, x: o.square().mean(),
        ).operator("all", "H_o"),
    ),
    "a loss beside": (
        "loss next to compute_loss",
        "the function reads",
        lambda: hessfig.Problem(small(), X, loss="mse", compute_loss=squares),
        lambda: hessfig.Problem(small(), X, compute_loss=squares),
    ),
    "too little memory": (
        "memory: too little",
        "several smaller batches",
        lambda: _large([torch.ones(900, 4)]) @ torch.ones(71200),
        lambda: _large([torch.ones(9, 4)] * 2) @ torch.ones(71200),
    ),
}


def _stepped(network, x):
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    squares(network, x).backward()
    optimiser.step()
    optimiser.zero_grad()
    return squares(network, x)


def _stepped_as_a_function(network, x):
    at = dict(network.named_parameters())
    slopes = torch.autograd.grad(squares(network, x), [*at.values()], create_graph=True)
    updated = {
        name: one - 0.1 * slope
        for (name, one), slope in zip(at.items(), slopes, strict=True)
    }
    return torch.func.functional_call(network, updated, x).square().mean()


def _large(batches):
    given = hessfig.Problem(
        mlp(4, 140, 500), batches, compute_loss=squares, memory="6MB"
    )
    return given.operator("all", dtype="float32")


@pytest.mark.parametrize("name", thinned(REFUSED, 4))
def test_a_refusal_names_a_remedy_that_works(name):
    what, remedy, refused, followed = REFUSED[name]
    with pytest.raises(hessfig.errors.UserError, match=what) as caught:
        refused()
    assert re.search(remedy, str(caught.value.remedy)), caught.value.remedy
    followed()


class KeptSquare(nn.Module):
    """A network whose second derivatives by autograd are wrong, with a parameter under two names."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(Cube.apply(self.first(x)))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "kind",
    [KeptSquare, lambda: nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 4))],
)
def test_derivatives_of_a_loss_in_float32_are_compared(kind, dtype):
    """Models of transformers compute their loss in float32, whatever the type of the weights."""
    torch.manual_seed(0)
    network, batch = kind(), (torch.randn(12, 4), torch.randint(0, 4, (12,)))

    def loss(network, batch):
        return F.cross_entropy(network(batch[0]).float(), batch[1])

    measured = hessfig.Problem(network, batch, compute_loss=loss)
    if isinstance(network, KeptSquare):
        with pytest.raises(
            hessfig.errors.UserError,
            match="second derivative does not match differences",
        ):
            measured.operator("all", dtype=dtype).dense()
        return
    truth = hessian(
        lambda: loss(network, batch), list(network.parameters()), rounding=1e-5
    )
    found = measured.operator("all", dtype=dtype).dense().double()
    assert float((found - truth).norm()) <= 1e-5 * float(truth.norm())


@pytest.mark.parametrize("number", [2, 3])
def test_losses_in_float32_are_added_over_batches(number):
    """Sums of batches have the digits of the parameters: they were taken for a loss that changes."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    batches = [
        (torch.randn(12, 4).double(), torch.randint(0, 4, (12,))) for _ in range(number)
    ]

    def loss(network, batch):
        return F.cross_entropy(network(batch[0]).float(), batch[1])

    found = hessfig.Problem(network, batches, compute_loss=loss).operator("all").dense()
    every = list(network.parameters())
    truth = hessian(
        lambda: torch.stack([loss(network, batch) for batch in batches]).mean(),
        every,
        rounding=1e-5,
    )
    assert float((found - truth).norm()) <= 1e-5 * float(truth.norm())


class Counting(nn.Module):
    """A layer that counts its calls and keeps what it was given last."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls = nn.Linear(3, 3), [0]

    def forward(self, x):
        self.calls[0] += 1
        self.last = x
        return torch.tanh(self.layer(x))


@pytest.mark.parametrize("depth", daily([1, 8, 30], 8))
@pytest.mark.parametrize("form", ["compute_loss", "loss"])
def test_a_network_nested_deeply_keeps_its_own_tensors(depth, form, tmp_path):
    """A network of float32 kept tensors of the measured type where modules were nested more than six deep (BERT)."""
    torch.manual_seed(0)
    inside = Counting()
    network = nn.Sequential(inside, nn.BatchNorm1d(3))
    for _ in range(depth):
        network = nn.Sequential(network)
    network.eval()
    batch, targets = torch.randn(5, 3), torch.zeros(5, 3)

    def loss(network, batch):
        return network(batch).square().mean()

    held = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    numbers = {name: tensor.clone() for name, tensor in held.items()}
    given = (
        {"compute_loss": loss}
        if form == "compute_loss"
        else {"targets": targets, "loss": "mse"}
    )
    problem = hessfig.Problem(network, batch, **given)
    product = problem.operator("all").dense()
    hessfig.measure(problem, blocks=["all"], parts="H", quantities=["trace"])
    arguments = (batch,) if form == "compute_loss" else ("mse", (batch, targets))
    monitor = hessfig.Monitor(
        network,
        *arguments,
        compute_loss=given.get("compute_loss"),
        folder=tmp_path,
        quantities=["loss"],
    )
    monitor(0)
    monitor.close()
    now = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    assert all(
        now[name] is tensor and torch.equal(tensor, numbers[name])
        for name, tensor in held.items()
    )
    assert inside.calls == [0] and not hasattr(inside, "last")
    plain = copy.deepcopy(network).double()
    truth = hessian(lambda: loss(plain, batch.double()), list(plain.parameters()))
    assert float((product - truth).norm()) <= 1e-9 * float(truth.norm())


@pytest.mark.long
def test_what_a_function_reaches_stays_as_it_was():
    names = [
        "preference_of_an_object",
        "moving_baseline",
        "variational_autoencoder_with_a_generator",
    ]
    names += [
        "distillation_of_features",
        "batch_changed_in_place",
        "variational_autoencoder",
    ]
    for name in names:
        case = CASES[name]()
        before = identity(case.network, case.compute_loss, case.batches)
        draws = torch.get_rng_state()
        problem(case).operator("all").dense()
        assert identity(case.network, case.compute_loss, case.batches) == before, name
        assert torch.equal(torch.get_rng_state(), draws)
        assert all(one.grad is None for one in case.network.parameters())


def test_a_table_says_what_was_taken():
    batches = [
        torch.ones(2, 5, dtype=torch.float64),
        torch.zeros(1, 5, dtype=torch.float64),
    ]
    case = CASES["variational_autoencoder"]()
    given = hessfig.Problem(
        case.network, batches, compute_loss=case.compute_loss, batch_weights=len
    )
    assert "batches: 2" in repr(given)
    record = hessfig.measure(given, blocks=["all"]).attrs["witness"]
    assert (record["batches"], record["batch_weights"]) == (2, "2, 1")
    assert "same state" in record["random"]


RAGGED = [X[:2], X[2:], X[:1]]


@pytest.mark.parametrize(
    "batches",
    [RAGGED, [one.numpy() for one in RAGGED], [[1, 2], [3]], ["a", "text"]],
    ids=["torch", "numpy", "ids", "text"],
)
def test_a_list_of_unequal_lengths_warns_that_it_is_several_batches(batches):
    pattern = rf"list of {len(batches)} items .* read as {len(batches)} batches of one item, .* write \[batch\]"
    with pytest.warns(RuntimeWarning, match=pattern):
        hessfig.Problem(small(), batches, compute_loss=squares)
    for batch_weights in (len, lambda batch: 1, [1] * len(batches)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            hessfig.Problem(
                small(), batches, compute_loss=squares, batch_weights=batch_weights
            )


def test_one_ragged_batch_and_equal_batches_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batches in (
            [RAGGED],
            tuple(RAGGED),
            {"documents": RAGGED},
            [RAGGED, RAGGED[:2]],
            [X, X],
            [(X, 1), (X, 2)],
        ):
            hessfig.Problem(small(), batches, compute_loss=squares)


def test_a_monitor_warns_of_a_list_of_unequal_lengths(tmp_path):
    with pytest.warns(RuntimeWarning, match="read as 3 batches of one item,"):
        hessfig.Monitor(small(), RAGGED, compute_loss=squares, folder=tmp_path).close()


def test_a_monitor_follows_the_weights(tmp_path):
    network = small()
    monitor = hessfig.Monitor(
        network,
        X,
        compute_loss=squares,
        folder=tmp_path,
        every=1,
        max_fraction=None,
        quantities=["loss"],
        parts="H",
    )
    for step in range(3):
        assert [*monitor(step).values()] == [
            pytest.approx(float(squares(network, X).detach()), rel=1e-6)
        ]
        with torch.no_grad():
            network[0].weight += 0.1
    monitor.close()


def test_the_loss_of_a_trainer(tmp_path):
    """transformers' Trainer has the convention compute_loss(model, inputs): its bound method is the function."""
    transformers = pytest.importorskip("transformers")

    class Weighted(transformers.Trainer):
        def compute_loss(
            self, model, inputs, return_outputs=False, num_items_in_batch=None
        ):
            return F.mse_loss(model(inputs["x"]), inputs["y"]) * 3

    options = transformers.TrainingArguments(
        str(tmp_path), report_to="none", use_cpu=True
    )
    network, batch = small(), {"x": X, "y": X[:, :1]}
    trainer = Weighted(model=network, args=options)
    given = hessfig.Problem(network, batch, compute_loss=trainer.compute_loss)
    plain = hessfig.Problem(network, X, X[:, :1], "mse")
    assert torch.allclose(
        given.operator("all").dense(), 3 * plain.operator("all").dense(), rtol=1e-9
    )
    monitor = hessfig.Monitor(
        network,
        batch,
        compute_loss=trainer.compute_loss,
        folder=tmp_path / "m",
        quantities=["loss"],
    )
    assert [*monitor(0).values()] == [
        pytest.approx(3 * float(F.mse_loss(network(X), X[:, :1]).detach()), rel=1e-6)
    ]
    monitor.close()


NETS = types.ModuleType("nets_of_a_user")
torch.manual_seed(3)
NETS.teacher = mlp(4, 3, 2).float()
NETS.calls = None
NETS.inner = types.SimpleNamespace()


class Holder:
    """Classes and methods that reach the teacher in several ways."""

    teacher = NETS.teacher

    @property
    def of_property(self):
        return NETS.teacher

    @staticmethod
    def loss(network, x):
        return taught(network, x, NETS.teacher)


class Heir(Holder):
    """Reaches the teacher through its base, and through another method."""

    def helped(self, network, x):
        return self.helper(network, x)

    def helper(self, network, x):
        return taught(network, x, NETS.teacher)


class Student(nn.Module):
    """A network with the loss as a method."""

    def __init__(self):
        super().__init__()
        self.inner = mlp(4, 3, 2).float()

    def forward(self, x):
        return self.inner(x)

    def loss(self, x):
        return taught(self, x, NETS.teacher)


def taught(network, x, teacher):
    return (network(x) - teacher(x).detach()).pow(4).mean()


def imported(network, x):
    import nets_of_a_user

    return taught(network, x, nets_of_a_user.teacher)


NETS.inner.holder = Holder()
REACHED = {
    "a module's attribute": lambda network, x: taught(network, x, NETS.teacher),
    "a module imported inside": imported,
    "a class attribute": lambda network, x: taught(network, x, Holder.teacher),
    "an attribute of the base": lambda network, x: taught(network, x, Heir().teacher),
    "a property, two objects down": lambda network, x: taught(
        network, x, NETS.inner.holder.of_property
    ),
    "a static method": lambda network, x: Holder.loss(network, x),
    "a method of a method": Heir().helped,
    "a method of the network": lambda network, x: network.loss(x),
}


@pytest.mark.parametrize(
    "name",
    daily(
        REACHED,
        "a module imported inside",
        "a property, two objects down",
        "a method of a method",
    ),
)
def test_a_module_is_cast_wherever_the_function_finds_it(name, monkeypatch):
    """Else float32 outputs of the teacher would enter a float64 Hessian, or not fit its inputs."""
    monkeypatch.setitem(sys.modules, "nets_of_a_user", NETS)
    torch.manual_seed(1)
    network, x = Student(), X.float()
    student = copy.deepcopy(network).double()
    teacher = copy.deepcopy(NETS.teacher).double()
    truth = hessian(
        lambda: taught(student, x.double(), teacher), list(student.parameters())
    )
    found = measured(network, x, REACHED[name])
    assert float((found - truth).norm()) <= 1e-12 * float(truth.norm())
    assert {one.dtype for one in NETS.teacher.parameters()} == {torch.float32}
    assert "teacher" not in vars(Heir)


class Mixed(nn.Module):
    """A network of two types, which reads the type of each layer."""

    def __init__(self, first):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)
        self.first.weight = nn.Parameter(self.first.weight.detach().to(first))

    def forward(self, x):
        weight = self.first.weight.to(self.second.weight.dtype)
        return self.second(torch.tanh(nn.functional.linear(x, weight)))


SCALES = torch.tensor([1.0, 3.0])


@pytest.mark.parametrize(
    "first", [torch.float8_e4m3fn, torch.bfloat16, torch.float64], ids=str
)
def test_tensors_of_every_type_of_a_network_are_cast(first):
    """A tensor of the second layer's type fits the measured network, whatever the first one's is."""
    torch.manual_seed(1)
    network = Mixed(first)
    double = copy.deepcopy(network).double()
    weights = [one for one in double.parameters() if one is not double.first.bias]

    def weighed(network, x):
        return (network(x).pow(4) @ SCALES).mean()

    truth = hessian(
        lambda: (double(X.double()).pow(4) @ SCALES.double()).mean(), weights
    )
    names = ["first.weight", "second.weight", "second.bias"]
    given = hessfig.Problem(
        network, X.float(), compute_loss=weighed, weights={"W": names}
    )
    found = given.operator("W").dense()
    assert float((found - truth).norm()) <= 1e-12 * float(truth.norm())


def test_attributes_of_modules_and_classes_are_restored():
    Holder.calls = 0

    def counting(network, x):
        NETS.calls = (NETS.calls or 0) + 1
        Holder.calls += 1
        return network(x).square().mean() * NETS.calls * Holder.calls

    hessfig.Problem(small(), X, compute_loss=counting).operator("all").dense()
    assert (NETS.calls, Holder.calls) == (None, 0)


def test_refusals_name_the_function_that_is_meant():
    with pytest.raises(
        hessfig.errors.UserError,
        match=r"compute_outputs\(network, batch\) that returns one tensor",
    ):
        measured(
            small(),
            X,
            lambda o, x: o.sum(),
            compute_outputs=lambda network, x: network({}[0]),
        )
    with pytest.raises(
        hessfig.errors.UserError,
        match=r"compute_loss\(outputs, batch\) that returns its loss",
    ):
        measured(
            small(),
            X,
            lambda o, x: {}[0],
            compute_outputs=lambda network, x: network(x),
        )
    with pytest.raises(
        hessfig.errors.UserError,
        match=r"compute_loss\(network, batch\) that returns its loss",
    ):
        measured(small(), X, lambda network, x: {}[0])
    with pytest.raises(
        hessfig.errors.UserError, match="by compute_loss, or from several outputs"
    ):
        hessfig.measure(
            hessfig.Problem(small(), X, compute_loss=squares),
            blocks=["all"],
            parts="H_o",
        )


DETACHED = {
    "added": lambda network, x: squares(network, x) + _decay(network).detach(),
    "times itself": lambda network, x: (network(x) * network(x).detach()).mean(),
    "over itself": lambda network, x: (
        squares(network, x) / squares(network, x).detach()
    ),
    "a ratio of probabilities": lambda network, x: (
        (network(x) - network(x).detach()).exp() * x[:, :1]
    ).mean(),
}


@pytest.mark.parametrize("products", ["auto", "differences"])
@pytest.mark.parametrize("name", thinned(DETACHED, 2))
def test_a_gradient_that_is_not_that_of_the_values_is_refused(name, products):
    """Differences of such gradients are symmetric: l * l.detach() has those of l^2 / 2."""
    problem = hessfig.Problem(small(), X, compute_loss=DETACHED[name])
    with pytest.raises(
        hessfig.errors.UserError, match="give what is detached or rounded as data"
    ):
        hessfig.measure(problem, blocks=["all"], products=products)


def _of_zeros():
    """Return a network whose units sit at their kinks: zero weights below a ReLU."""
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        network[0].weight.zero_()
        network[0].bias.zero_()
    return network


def _taught(network, x):
    """Return a loss that is zero at the network's weights, with its gradient."""
    return (network(x) - small().to(x)(x).detach()).square().mean()


def _shifted(network, x):
    """Return a softmax that subtracts its largest score, a number."""
    scores = network[0](x)
    sizes = (scores - scores.max(-1, keepdim=True)[0].detach()).exp()
    return (sizes / sizes.sum(-1, keepdim=True)).square().mean() + squares(network, x)


@pytest.mark.parametrize("dtype", daily(["float64", "float32"], "float32"))
@pytest.mark.parametrize(
    ("kind", "compute_loss"),
    [
        (small, _taught),
        (small, _shifted),
        (_of_zeros, squares),
        (
            _of_zeros,
            lambda network, x: sum(one.abs().sum() for one in network.parameters()),
        ),
        (small, lambda network, x: 1e9 + squares(network, x)),
        (small, lambda network, x: (1e11 + squares(network, x)) - 1e11),
    ],
)
def test_a_gradient_that_is_that_of_the_values_is_measured(kind, compute_loss, dtype):
    """At a minimum, at kinks of zero weights, with constants that are detached, large or cancel."""
    torch.manual_seed(0)
    measured(kind(), X, compute_loss, dtype)
