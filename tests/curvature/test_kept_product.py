"""Products with one vector: the bits of the first one, in every mode, and no trace of the code of users in them."""

import random
import sys
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import hessfig
from tests.daily import daily, thinned
from tests.runs import script

DRAWN_FROM = {"torch": False}


def draw():
    """Draw a number from global generators; small networks multiply several vectors at once, where torch draws none."""
    random.random()
    np.random.standard_normal()  # noqa: NPY002 - the caller's
    if DRAWN_FROM["torch"]:
        torch.rand(())


class Drawing(torch.autograd.Function):
    """The square, whose derivative draws."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, slope):
        draw()
        return 2 * ctx.saved_tensors[0] * slope


def plain(x):
    return x * x


def hooked(x):
    y = x * x
    y.register_hook(lambda slope: draw())
    return y


def hooked_node(x):
    y = x * x
    y.grad_fn.register_prehook(lambda slopes: draw())
    return y


def unpacked(x):
    def unpack(held):
        draw()
        return held

    with torch.autograd.graph.saved_tensors_hooks(lambda held: held, unpack):
        return x * x


KINDS = {
    "a hook": hooked,
    "a hook of a node": hooked_node,
    "a Function": Drawing.apply,
    "saved tensors": unpacked,
}


class Network(nn.Module):
    """A network with one layer that may run code of its own in the backward pass."""

    def __init__(self, square, width=5):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.last = nn.Linear(width, 2)
        self.square = square

    def forward(self, x):
        """Return outputs (batch, 2)."""
        return self.last(self.square(torch.tanh(self.first(x))))


def problem(square=plain, width=5, batches=1):
    torch.manual_seed(0)
    network = Network(square, width).double()
    given = [
        (torch.randn(6, 3).double(), torch.randint(2, (6,))) for _ in range(batches)
    ]
    weights = {name: name for name, _ in network.named_parameters()}
    named = {
        **weights,
        "row": ("first.weight", [1]),
        "both": ["first.bias", "last.weight"],
    }
    return hessfig.Problem(network, given, loss="cross_entropy", weights=named)


def states():
    """Return the states of NumPy and torch; what checks the types here draws from Python's generator."""
    arrays = np.random.get_state()  # noqa: NPY002
    return arrays[1].tolist(), arrays[2:], torch.get_rng_state().tolist()


def of_double_backward(given, rows, columns, vector):
    network = given.network
    total = torch.stack(
        [nn.functional.cross_entropy(network(x), y) for x, y in given.inputs]
    ).mean()
    parameters = dict(network.named_parameters())
    at = [parameters[name] for name in rows]
    along = [parameters[name] for name in columns]
    slopes = torch.autograd.grad(total, along, create_graph=True)
    pieces = vector.split([one.numel() for one in along])
    vectors = [piece.view_as(one) for piece, one in zip(pieces, along, strict=True)]
    found = torch.autograd.grad(slopes, at, vectors, materialize_grads=True)
    return torch.cat([one.flatten() for one in found])


EVERY = ["first.weight", "first.bias", "last.weight", "last.bias"]
BLOCKS = {
    "first": ("first.weight", ["first.weight"], ["first.weight"]),
    "last": ("last.weight", ["last.weight"], ["last.weight"]),
    "the last bias": ("last.bias", ["last.bias"], ["last.bias"]),
    "a pair": (("first.weight", "last.bias"), ["first.weight"], ["last.bias"]),
    "a group": ("both", ["first.bias", "last.weight"], ["first.bias", "last.weight"]),
    "all": ("all", EVERY, EVERY),
}


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("width", daily([5, 20_000], 5))
@pytest.mark.parametrize("block", thinned(BLOCKS, 4))
def test_every_product_has_the_bits_of_the_first(block, width, batches):
    given = problem(width=width, batches=batches)
    name, rows, columns = BLOCKS[block]
    operator = given.operator(name)
    many = torch.randn(operator.shape[1], 6, dtype=torch.float64)
    many[:, 3] = 0.0
    for part in ("H", "H_o", "H_f"):
        of_part = given.operator(name, part)
        # No operator has a product before.
        alone = [given.operator(name, part) @ vector for vector in many.T]
        for vector, first in zip(many.T, alone, strict=True):
            assert torch.equal(of_part @ vector, first)
    for vector in many.T:
        truth = of_double_backward(given, rows, columns, vector)
        assert_close(operator @ vector, truth, rtol=1e-9, atol=1e-12)


def test_views_and_vectors_of_other_kinds_are_multiplied_as_before():
    given = problem()
    operator = given.operator("all")
    row = given.operator("row")
    vector = torch.linspace(-1, 2, operator.shape[1], dtype=torch.float64)
    product = [operator @ vector for _ in range(5)][-1]
    assert torch.equal(row @ vector[:3], given.operator("row") @ vector[:3])
    assert torch.equal(operator @ vector.repeat_interleave(2)[::2], product)
    assert np.array_equal(operator @ vector.numpy(), product.numpy())
    assert torch.equal(operator @ vector[:, None], product[:, None])
    assert (operator @ vector.float()).dtype == torch.float64
    with pytest.raises(hessfig.UserError, match="does not fit"):
        operator @ vector[1:]
    followed = vector.clone().requires_grad_()
    (operator @ followed).sum().backward()
    assert_close(followed.grad, operator @ torch.ones_like(vector))
    pushed = torch.func.jvp(lambda one: operator @ one, (vector,), (vector,))[1]
    assert_close(pushed, product)


MODES = {
    "none": nullcontext,
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "another device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("mode", thinned(MODES, 2))
@pytest.mark.parametrize("width", [5, 20_000])
def test_modes_of_the_caller_change_nothing(mode, width):
    operator = problem(width=width).operator("all", dtype="float32")
    vector = torch.linspace(-1, 2, operator.shape[1])
    products = [operator @ vector for _ in range(5)]
    with MODES[mode]():
        inside = operator @ vector
    assert torch.equal(inside, products[0])
    assert not inside.requires_grad
    assert not inside.is_inference()


@pytest.mark.parametrize("width", [5, 20_000])
@pytest.mark.parametrize("kind", thinned(KINDS, 2))
def test_what_the_code_of_users_draws_in_a_product_is_put_back(
    kind, width, monkeypatch
):
    monkeypatch.setitem(DRAWN_FROM, "torch", width > 5)
    operator = problem(KINDS[kind], width).operator("first.weight")
    vector = torch.ones(operator.shape[1])
    np.random.standard_normal()  # noqa: NPY002 - the next one is kept in the generator
    before = states()
    products = [operator @ vector for _ in range(6)]
    assert states() == before
    for one in products:
        assert torch.equal(one, products[0])
    assert operator._kept is not None
    assert not operator._kept._is_alone


class Stepping(nn.Module):
    """A network whose product draws in the backward pass of one weight alone."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.last = nn.Linear(5, 2)

    def forward(self, x):
        """Return outputs (batch, 2)."""
        return self.last(hooked(self.first(x)))


def test_another_block_of_the_same_graphs_is_decided_by_itself():
    torch.manual_seed(0)
    given = hessfig.Problem(
        Stepping().double(),
        torch.randn(6, 3).double(),
        torch.randint(2, (6,)),
        "cross_entropy",
    )
    late = given.operator("last.weight")
    first = given.operator("first.weight")
    for _ in range(5):
        late @ torch.ones(10)
    before = states()
    for _ in range(5):
        first @ torch.ones(15)
    assert states() == before


def test_with_a_profiler_at_work_nothing_is_decided():
    operator = problem().operator("all")
    vector = torch.ones(operator.shape[1])
    seen = list[str]()

    def note(frame, event, argument):
        seen.append(event)

    operator @ vector
    sys.setprofile(note)
    try:
        [operator @ vector for _ in range(5)]
        assert sys.getprofile() is note
        assert not operator._kept._is_alone
    finally:
        sys.setprofile(None)
    assert seen


_ALONE = """
import numpy, random, torch, hessfig
torch.manual_seed(0)
for width, threads in ((5, 2), (20_000, 2), (5, 1)):
    torch.set_num_threads(threads)
    network = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
    given = hessfig.Problem(network, torch.randn(6, 3), torch.randint(2, (6,)), "cross_entropy")
    for block in ("all", "0.weight", "2.bias"):
        operator = given.operator(block)
        vector = torch.linspace(-1, 1, operator.shape[1], dtype=torch.float64)
        products = [operator @ vector for _ in range(5)]
        assert operator._kept._is_alone, (width, block)
        assert operator._kept.needs_no_context(vector) and not products[-1].requires_grad
        assert all(torch.equal(one, products[0]) for one in products), (width, block)
        assert torch.get_num_threads() == threads

def hooked(module, given, made):
    made.register_hook(lambda slope: [random.random(), numpy.random.standard_normal()].clear())

for width in (5, 20_000):
    network = torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.Tanh(), torch.nn.Linear(width, 2))
    network[1].register_forward_hook(hooked)
    operator = hessfig.Problem(network, torch.randn(6, 3), torch.randint(2, (6,)), "cross_entropy").operator("0.weight")
    numpy.random.standard_normal()
    python, arrays = random.getstate(), numpy.random.get_state()
    for _ in range(6):
        operator @ torch.ones(3 * width)
        assert random.getstate() == python and repr(numpy.random.get_state()) == repr(arrays)
    assert operator._kept is not None and not operator._kept._is_alone
print("alone")
"""


@pytest.mark.usefixtures("workers")
def test_products_of_torch_alone_enter_no_context(tmp_path):
    """Of what users add, nothing is lost: in another process, since checks of types are code of others, which draws."""
    (tmp_path / "alone.py").write_text(_ALONE)
    assert script("alone.py", folder=tmp_path) == "alone\n"
