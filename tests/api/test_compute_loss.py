"""hessfig.Problem(network, batches, compute_loss=f): any function on any batch, against dense double backward."""

import copy
import random
import re
import secrets
import sys
import types
import warnings
from threading import Lock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.models.identity import identity
from tests.api.any_functions import CASES, log_probability, mlp
from tests.daily import daily, thinned
from tests.double_backward import hessian, jacobian
from tests.odd_functions import Cube
from tests.runs import here

SMALL = [name for name in CASES if not name.startswith("large")]
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
    value = torch.zeros(())
    shares = shares_of(case)
    for number, share in enumerate(shares):
        if share:
            fresh = make()
            _rebind(fresh.compute_loss, case)
            loss = fresh.compute_loss(_at(fresh, case), fresh.every[number])
            value = value + share * loss.reshape(())
    return value / sum(shares)


def shares_of(case):
    """Return the weight of every batch."""
    weights = case.further.get("batch_weights") or [1] * len(case.every)
    if callable(weights):
        weights = [weights(copy.deepcopy(batch)) for batch in case.every]
    return [*map(float, weights)]


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


@pytest.mark.parametrize("name", thinned(SMALL, 5))
def test_every_function_equals_double_backward_by_parameter(name):
    make = CASES[name]
    truth = dense(make)
    case = make()
    for dtype, allowed in {"float64": 1e-9, "float32": 1e-4}.items():
        check(problem(case).operator("all", dtype=dtype).dense(), truth, case, allowed)


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_measure_and_monitor_agree_with_double_backward(name, tmp_path):
    make = CASES[name]
    truth = dense(make)
    case = make()
    numbers = {
        "frobenius": float(truth.norm()),
        "trace": float(truth.trace()),
        "largest_eigenvalue": float(torch.linalg.eigvalsh(truth)[-1]),
    }
    allowed = 1e-8 * numbers["frobenius"]
    numbers = {name: pytest.approx(one, abs=allowed) for name, one in numbers.items()}
    options = {
        "blocks": ["all"],
        "parts": "H",
        "quantities": [*numbers],
        "estimator": "dense",
    }
    table = hessfig.measure(problem(case), **options)
    assert dict(zip(table["quantity"], table["value"], strict=True)) == numbers
    case = make()
    functions = {"compute_loss": case.compute_loss, "weights": None, **case.further}
    monitor = hessfig.Monitor(
        case.network, case.batches, folder=tmp_path, every=1, **functions, **options
    )
    found = {name.partition("/")[0]: value for name, value in monitor(0).items()}
    assert found == numbers
    monitor.close()


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_large_networks_agree_with_double_backward(name, tmp_path):
    make = CASES[name]
    case = make()
    at = [*parameters(case).values()]
    for dtype, allowed in {"float64": 1e-9, "float32": 1e-4}.items():
        operator = problem(case).operator("all", dtype=dtype)
        draws = torch.Generator().manual_seed(1)
        vector = torch.randn(sum(operator.sizes), generator=draws, dtype=torch.float64)
        slopes = torch.autograd.grad(total(make, case), at, create_graph=True)
        truth = torch.autograd.grad(_flat(slopes) @ vector, at)
        product = (operator @ vector.to(getattr(torch, dtype))).double()
        for found, piece in zip(product.split(operator.sizes), truth, strict=True):
            off = (found - piece.flatten()).norm()
            assert float(off) <= allowed * float(piece.norm())
    options = {"blocks": ["all"], "parts": "H", "quantities": ["largest_eigenvalue"]}
    (value,) = hessfig.measure(problem(case), **options, seed=1234)["value"]
    (tmp_path / "functions.py").write_text(FACTORY)
    words = [
        "model.factory=functions.py:make",
        f"model.options.name={name}",
        "blocks=[all]",
        "parts=[H]",
        "quantities=[largest_eigenvalue]",
    ]
    answer = here(
        "run", "sweep=network", *words, "seeds=1", "workers=1", folder=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    (found,) = hessfig.read(tmp_path / "outputs" / "network").table["value"]
    assert found == pytest.approx(value, rel=1e-6)


FACTORY = """
import hessfig
from tests.api.any_functions import CASES

def make(name):
    made = CASES[name]()
    return hessfig.Problem(made.network, made.batches, compute_loss=made.compute_loss, **made.further)
"""


SPLIT = {
    "denoising_autoencoder": (
        lambda network, batch: network(batch["x"] + 0.1 * batch["noise"]) - batch["x"],
        lambda outputs, batch: outputs.square().mean(),
    ),
    "ragged_documents": (
        lambda network, batch: torch.stack(
            [log_probability(network, one[None])[0] for one in batch[0]]
        ),
        lambda outputs, batch: (-outputs).exp().sum() / len(outputs),
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
}


@pytest.mark.parametrize("name", daily(SPLIT, "oscillator"))
def test_h_o_and_h_f_are_those_of_the_definition(name):
    """H_o = J^T B J and H_f = sum_i (dl / df_i) d^2 f_i, of the user's own objects."""
    compute_outputs, compute_loss = SPLIT[name]
    case = CASES[name]()
    at = [*parameters(case).values()]
    shares = shares_of(case)
    truth = {"H_o": 0, "H_f": 0}
    for batch, share in zip(case.every, shares, strict=True):

        def outputs(batch=batch):
            return compute_outputs(case.network, batch)

        leaf = outputs().detach().requires_grad_()
        (slope,) = torch.autograd.grad(compute_loss(leaf, batch), leaf)
        J = jacobian(outputs, at)
        B = hessian(lambda leaf=leaf, batch=batch: compute_loss(leaf, batch), [leaf])
        H_f = hessian(
            lambda outputs=outputs, slope=slope: (outputs() * slope).sum(), at
        )
        truth["H_o"] += share / sum(shares) * J.T @ B @ J
        truth["H_f"] += share / sum(shares) * H_f
    split = hessfig.Problem(
        case.network,
        case.batches,
        compute_loss=compute_loss,
        compute_outputs=compute_outputs,
        **case.further,
    )
    truth["H"] = truth["H_o"] + truth["H_f"]
    for part, matrix in truth.items():
        found = split.operator("all", part).dense()
        assert float((found - matrix).norm()) <= 1e-9 * float(truth["H"].norm()), part


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


def loss_of(compute_loss, batches=X, dtype="float64", **further):
    """Return the arguments of measured() on the small network."""
    return lambda: measured(small(), batches, compute_loss, dtype, **further)


def approximated(name):
    problem = hessfig.Problem(small(), X, compute_loss=squares)
    return lambda: problem.approximation(name, "0.weight")


def split_of(compute_loss, **further):
    problem = hessfig.Problem(small(), X, compute_loss=compute_loss, **further)
    return lambda: problem.operator("all", "H_o")


def itself(network, x):
    return network(x)


def teacher_of(network, batch):
    return (network(batch[0]) - batch[1]).square().mean()


def _of_outputs(network, y):
    return (network(X.to(y)) - y).square().mean()


def _in_float32(network, x):
    return squares(network, torch.ones(2, 4))


# What is wrong, what the remedy says, the call that is refused, and the call that follows the remedy.
REFUSED = {
    "a number of Python": (
        "does not return one real number",
        "no .item()",
        loss_of(lambda network, x: squares(network, x).item()),
        loss_of(squares),
    ),
    "loss and outputs": (
        "does not return one real number",
        r"f\(network, batch\)\[0\]",
        loss_of(lambda network, x: (squares(network, x), network(x))),
        loss_of(squares),
    ),
    "detached": (
        "does not depend on the network's parameters",
        r"remove \.detach\(\)",
        loss_of(lambda network, x: squares(network, x).detach()),
        loss_of(squares),
    ),
    "a training step inside": (
        "changes parameters of the network",
        "functional_call",
        loss_of(lambda network, x: _stepped(network, x)),
        loss_of(lambda network, x: _adapted(network, x, keep=True)),
    ),
    "another value at every call": (
        "it changes from call to call",
        "data of the batch",
        loss_of(lambda network, x: squares(network, x) * secrets.randbelow(10**6)),
        loss_of(lambda network, batch: squares(network, batch[0]) * batch[1], (X, 17)),
    ),
    "a target network that is the network": (
        "second derivative does not match differences",
        "give what is detached or rounded as data",
        loss_of(lambda network, x: teacher_of(network, (x, network(x + 1).detach()))),
        loss_of(teacher_of, (X, small()(X + 1).detach())),
    ),
    "a penalty that is added as a number": (
        "is not that of its values",
        "give what is detached or rounded as data",
        loss_of(lambda network, x: squares(network, x) + _decay(network).item()),
        loss_of(lambda network, x: squares(network, x) + _decay(network)),
    ),
    "an inner gradient without its graph": (
        "has no gradient in torch",
        "create_graph=True",
        loss_of(lambda network, x: _inner(network, x, keep=False)),
        loss_of(lambda network, x: _inner(network, x, keep=True)),
    ),
    "a first-order inner step": (
        "second derivative does not match differences",
        "create_graph=True",
        loss_of(lambda network, x: _adapted(network, x, keep=False)),
        loss_of(lambda network, x: _adapted(network, x, keep=True)),
    ),
    "a batch with a graph": (
        "a tensor of a batch has a graph",
        r"\.detach\(\) it",
        loss_of(_of_outputs, small()(X)),
        loss_of(_of_outputs, small()(X).detach()),
    ),
    "a batch without numbers": (
        "a tensor of a batch is on the device meta",
        "a tensor with numbers, on the CPU or a card",
        loss_of(squares, {"x": X.to("meta")}),
        loss_of(lambda network, batch: squares(network, batch["x"]), {"x": X}),
    ),
    "a lock in a batch": (
        "a batch cannot be copied",
        "leave files, locks",
        loss_of(lambda network, batch: squares(network, batch[0]), (X, Lock())),
        loss_of(squares),
    ),
    "no batch": (
        "no batch was given",
        "Problem\\(network, batch, compute_loss",
        loss_of(squares, []),
        loss_of(squares),
    ),
    "weights of too few batches": (
        "not one number for each batch",
        "batch_weights=lambda",
        loss_of(squares, [X, X[:2]], batch_weights=[1]),
        loss_of(squares, [X, X[:2]], batch_weights=lambda batch: len(batch)),
    ),
    "float32 inside": (
        "raises RuntimeError",
        "dtype='float32'",
        loss_of(_in_float32),
        loss_of(_in_float32, dtype="float32"),
    ),
    "several outputs": (
        "compute_outputs does not return one tensor",
        r"torch\.cat",
        loss_of(
            lambda outputs, x: outputs[0].sum(),
            compute_outputs=lambda network, x: (network(x), x),
        ),
        loss_of(lambda outputs, x: outputs.square().sum(), compute_outputs=itself),
    ),
    "samples": (
        "compute_loss takes a batch whole",
        r"Problem\(network, inputs, targets, loss\)",
        approximated("shampoo"),
        lambda: hessfig.Problem(small(), X, X[:, :1], "mse").approximation(
            "shampoo", "0.weight"
        ),
    ),
    "K-FAC": (
        "takes batches whole",
        r"leave kfac or",
        approximated("kfac"),
        approximated("diagonal"),
    ),
    "the split of a whole loss": (
        "H_o and H_f are not defined here",
        "compute_outputs",
        split_of(squares),
        split_of(lambda outputs, x: outputs.square().mean(), compute_outputs=itself),
    ),
    "a loss beside": (
        "loss next to compute_loss",
        "the function reads",
        loss_of(squares, loss="mse"),
        loss_of(squares),
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


def in_float32(network, batch):
    """Return a loss that is computed in float32, whatever the type of the weights, as models of transformers do."""
    return F.cross_entropy(network(batch[0]).float(), batch[1])


def classes(count):
    """Return batches of random classes."""
    torch.manual_seed(1)
    return [(torch.randn(12, 4), torch.randint(0, 4, (12,))) for _ in range(count)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_wrong_derivatives_of_a_loss_in_float32_are_refused(dtype):
    torch.manual_seed(0)
    with pytest.raises(hessfig.errors.UserError, match="does not match differences"):
        measured(KeptSquare(), classes(1), in_float32, dtype)


@pytest.mark.parametrize(
    ("dtype", "count"), [("float64", 1), ("float32", 1), ("float64", 3)]
)
def test_derivatives_of_losses_in_float32_are_taken(dtype, count):
    """Sums of batches have the digits of the parameters: they were taken for a loss that changes."""
    torch.manual_seed(0)
    network = mlp(4, 6, 4).double()
    batches = classes(count)

    def mean():
        pairs = [(x.double(), y) for x, y in batches]
        return sum(in_float32(network, pair) for pair in pairs) / count

    truth = hessian(mean, [*network.parameters()], rounding=1e-5)
    found = measured(network, batches, in_float32, dtype).double()
    assert float((found - truth).norm()) <= 1e-5 * float(truth.norm())


class Counting(nn.Module):
    """A layer that counts its calls and keeps what it was given last."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.calls = [0]

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
    batch = torch.randn(5, 3)
    targets = torch.zeros(5, 3)
    tensors = network.state_dict(keep_vars=True)
    numbers = copy.deepcopy(tensors)
    if form == "compute_loss":
        problem = hessfig.Problem(network, batch, compute_loss=squares)
        monitor = hessfig.Monitor(network, batch, compute_loss=squares, folder=tmp_path)
    else:
        problem = hessfig.Problem(network, batch, targets, "mse")
        monitor = hessfig.Monitor(network, "mse", (batch, targets), folder=tmp_path)
    product = problem.operator("all").dense()
    hessfig.measure(problem, blocks=["all"], parts="H", quantities=["trace"])
    monitor(0)
    monitor.close()
    for name, tensor in network.state_dict(keep_vars=True).items():
        assert tensor is tensors[name]
        assert torch.equal(tensor, numbers[name])
    assert inside.calls == [0]
    assert not hasattr(inside, "last")
    plain = copy.deepcopy(network).double()
    truth = hessian(lambda: squares(plain, batch.double()), [*plain.parameters()])
    assert float((product - truth).norm()) <= 1e-9 * float(truth.norm())


@pytest.mark.long
def test_what_a_function_reaches_stays_as_it_was():
    for name in (
        "preference_of_an_object",
        "moving_baseline",
        "variational_autoencoder_with_a_generator",
        "distillation_of_features",
        "batch_changed_in_place",
    ):
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


# Functions of the module: a method would have its generator with it, which is restored as an object of the user's.
GLOBAL_DRAWS = {
    "torch": lambda: torch.rand(()),
    "numpy": lambda: np.random.rand(),  # noqa: NPY002
    "python": lambda: random.random(),
}


@pytest.mark.parametrize("draw", GLOBAL_DRAWS.values(), ids=GLOBAL_DRAWS)
def test_what_a_loss_draws_is_the_same_for_every_batch(draw):
    """One draw for all batches, whichever generator it comes from."""

    def loss(network, batch):
        return squares(network, batch) * (1 + float(draw()))

    network, batches = small().double(), [X.double(), X.double() + 1]
    found = hessfig.Problem(network, batches, compute_loss=loss).operator("all").dense()

    def mean():
        return sum(squares(network, batch) for batch in batches) / 2

    truth = hessian(mean, [*network.parameters()])
    scale = found.norm() / truth.norm()
    assert 1 < scale < 2
    assert torch.allclose(found, scale * truth, rtol=1e-10)


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
    network = small()
    batch = {"x": X, "y": X[:, :1]}
    trainer = Weighted(model=network, args=options)
    given = hessfig.Problem(network, batch, compute_loss=trainer.compute_loss)
    plain = hessfig.Problem(network, X, X[:, :1], "mse")
    assert torch.allclose(
        given.operator("all").dense(), 3 * plain.operator("all").dense(), rtol=1e-9
    )


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
    network = Student()
    x = X.float()
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


def _broken(first, batch):
    return {}[0]


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (
            loss_of(lambda outputs, x: outputs.sum(), compute_outputs=_broken),
            r"compute_outputs\(network, batch\) that returns one tensor",
        ),
        (
            loss_of(_broken, compute_outputs=itself),
            r"compute_loss\(outputs, batch\) that returns its loss",
        ),
        (loss_of(_broken), r"compute_loss\(network, batch\) that returns its loss"),
    ],
)
def test_refusals_name_the_function_that_is_meant(call, meant):
    with pytest.raises(hessfig.errors.UserError, match=meant):
        call()


def test_a_quantity_of_a_whole_loss_names_compute_loss():
    problem = hessfig.Problem(small(), X, compute_loss=squares)
    said = "by compute_loss, or from several outputs"
    with pytest.raises(hessfig.errors.UserError, match=said):
        hessfig.measure(problem, blocks=["all"], parts="H_o")


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
