"""Operators and quantities by differences of gradients, against double backward in float64, on concentrated vectors."""

from functools import cache
from itertools import product

import numpy as np
import pytest
import scipy.sparse.linalg as sparse
import torch
from torch import nn

import hessfig
from hessfig.errors import UserError
from tests.daily import daily

transformers = pytest.importorskip("transformers")
DTYPES = ("float64", "float32")


class Logits(nn.Module):
    """A language model of transformers as a function from tokens to logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(tokens).logits.flatten(0, 1)


class Encoder(nn.Module):
    """An encoder layer of torch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        return self.last(self.layer(x).mean(1))


@cache
def problem(name):
    torch.manual_seed(0)
    if name == "encoder":
        return hessfig.Problem(
            Encoder(), torch.randn(6, 4, 8), torch.randint(0, 4, (6,))
        )
    config = transformers.GPT2Config(
        vocab_size=20,
        use_cache=False,
        attn_implementation="eager",
        n_layer=1,
        n_head=2,
        n_embd=16,
        n_positions=8,
        bos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    tokens = torch.randint(0, 20, (3, 6))
    return hessfig.Problem(Logits(model.eval()), tokens, tokens.roll(-1, 1).flatten())


@cache
def exact(name):
    """Return H by double backward, its largest eigenvalue and the vector."""
    operator = problem(name).operator("all")
    return operator, *sparse.eigsh(
        operator.to_scipy(), k=1, which="LA", v0=np.ones(operator.shape[0])
    )


@pytest.mark.parametrize(
    ("name", "dtype"), daily(product(["gpt2", "encoder"], DTYPES), ("gpt2", "float32"))
)
def test_an_error_is_stated_for_every_vector(name, dtype):
    """The step for random vectors is too long for eigenvectors: their products were off by a third in float32."""
    truth, _, top = exact(name)
    size = truth.shape[0]
    operator = problem(name).operator("all", dtype=dtype, products="differences")
    rows = torch.zeros(size)
    rows[:8] = 1.0
    for vector in (
        torch.from_numpy(top[:, 0]),
        torch.ones(size),
        rows,
        torch.randn(size),
    ):
        right = truth @ vector
        off = float((operator @ vector - right).norm())
        assert operator.last_errors is not None
        assert operator.last_errors.shape == (1,)
        assert off <= float(operator.last_errors)
        assert off <= (5e-3 if dtype == "float32" else 1e-4) * float(right.norm())
    assert truth.last_errors is None


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_solution_states_a_residual_that_covers_the_true_one(dtype):
    truth, value, _ = exact("encoder")
    operator = problem("encoder").operator("all", dtype=dtype, products="differences")
    b = torch.ones(truth.shape[0], dtype=torch.float64)
    damping = 2 * float(value[0])
    x, residual = operator.solve(b, damping=damping, tolerance=1e-2)
    left = b - truth @ x - damping * x.double()
    assert float(left.norm() / b.norm()) <= residual <= 1e-2
    with pytest.warns(RuntimeWarning, match="above the tolerance"):
        assert operator.solve(b, damping=damping, tolerance=1e-14).residual > 1e-14


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["gpt2", "encoder"])
def test_quantities_state_errors_that_cover_the_true_ones(name, dtype):
    asked = {
        "blocks": ["all"],
        "parts": "H",
        "estimator": "hutchinson",
        "num_probes": 4,
    }
    asked["quantities"] = [
        "frobenius",
        "trace",
        "largest_eigenvalue",
        "smallest_eigenvalue",
        "loss",
    ]
    asked["spectrum"] = {"tolerance": 0.02}
    truth = hessfig.measure(problem(name), **asked).set_index("quantity")
    table = hessfig.measure(
        problem(name), **asked, dtype=dtype, products="differences"
    ).set_index("quantity")
    assert (table["status"] == "ok").all()
    off = (table["value"] - truth["value"]).abs()
    assert (off.drop("loss") <= table["error"].drop("loss")).all()
    assert (
        off <= 2e-3 * truth["value"].abs() + 1e-3 * truth.loc["frobenius", "value"]
    ).all()
    asked |= {"quantities": ["largest_eigenvalue"], "spectrum": None}
    strict = hessfig.measure(
        problem(name), **asked, dtype="float32", products="differences"
    )
    assert (strict["status"] == "not_converged").all()
    assert (strict["error"] > 1e-6 * strict["value"]).all()


@pytest.mark.parametrize(
    ("block", "dtype"),
    daily(
        [
            ("last.weight", "float64"),
            ("last.weight", "float32"),
            ("last.bias", "float32"),
        ],
        ("last.bias", "float32"),
    ),
)
def test_dense_traces_have_the_error_of_their_products(block, dtype):
    asked = {
        "blocks": [block],
        "parts": ["H", "H_o", "H_f"],
        "quantities": ["trace"],
        "estimator": "dense",
    }
    truth = hessfig.measure(problem("encoder"), **asked)
    table = hessfig.measure(
        problem("encoder"), **asked, dtype=dtype, products="differences"
    )
    off = (table["value"] - truth["value"]).abs()
    shown = table["part"] != "H_f"  # zero for the last layer: rounding alone
    assert (off <= table["error"])[shown].all()
    assert (table["error"] > 0).all()
    assert (table["error"] <= 1e-3 * truth["value"])[shown].all()


class Cubed(torch.autograd.Function):
    """x^3 with a gradient that has no derivative."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * slope


class Once(nn.Module):
    """A network with a cube, which may be `Cubed`."""

    def __init__(self, *, is_elementary):
        super().__init__()
        self.first = nn.Linear(4, 5)
        self.last = nn.Linear(5, 3)
        self.is_elementary = is_elementary

    def forward(self, x):
        hidden = self.first(x)
        return self.last(hidden**3 if self.is_elementary else Cubed.apply(hidden))


def test_networks_without_second_derivatives_have_eigenvalues_and_traces():
    torch.manual_seed(1)
    elementary = Once(is_elementary=True)
    once = Once(is_elementary=False)
    once.load_state_dict(elementary.state_dict())
    x = torch.randn(8, 4)
    y = torch.randint(0, 3, (8,))
    asked = {
        "blocks": ["all"],
        "parts": "H",
        "quantities": ["frobenius", "trace", "largest_eigenvalue"],
    }
    truth = hessfig.measure(hessfig.Problem(elementary, x, y), **asked)
    with pytest.raises(UserError, match="differences"):
        hessfig.measure(hessfig.Problem(once, x, y), **asked)
    table = hessfig.measure(
        hessfig.Problem(once, x, y), **asked, products="differences"
    )
    assert (table["status"] == "ok").all()
    assert ((table["value"] - truth["value"]).abs() <= table["error"] + 1e-12).all()
    np.testing.assert_allclose(table["value"], truth["value"], rtol=1e-6)


class ReluInNumPy(torch.autograd.Function):
    """A ReLU whose kink torch does not see."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, slope):
        (x,) = ctx.saved_tensors
        return slope * torch.from_numpy(x.detach().numpy() > 0)


class AtAKink(nn.Module):
    """A network with a ReLU of weights that are zero, where no second derivative exists."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)
        nn.init.zeros_(self.first.weight)
        nn.init.zeros_(self.first.bias)

    def forward(self, x):
        return self.last(ReluInNumPy.apply(self.first(x)))


def test_a_product_without_an_accurate_step_is_refused():
    torch.manual_seed(0)
    kinked = hessfig.Problem(AtAKink(), torch.randn(5, 3), torch.randint(0, 2, (5,)))
    operator = kinked.operator("first.weight", products="differences")
    with pytest.raises(
        UserError,
        match=r"cannot be computed by differences of gradients[\s\S]*at most 10 %",
    ):
        operator @ torch.ones(12)
    row = hessfig.measure(
        kinked,
        blocks=["first.weight"],
        parts="H",
        products="differences",
        estimator="hutchinson",
        num_probes=2,
    ).iloc[0]
    assert row["status"] == "not_converged"


@pytest.mark.long
def test_vectors_that_are_mapped_to_zero_are_not_refused():
    """The key's bias adds one number to all scores of a query; the softmax ignores it, and products are rounding."""
    operator = problem("encoder").operator(
        "all", dtype="float32", products="differences"
    )
    vector = torch.zeros(operator.shape[1])
    start = operator.names.index("layer.self_attn.in_proj_bias")
    vector[sum(operator.sizes[:start]) + 8 : sum(operator.sizes[:start]) + 16] = 1.0
    product = operator @ vector
    assert operator.last_errors is not None
    assert float(product.norm()) <= float(operator.last_errors) <= 1e-2
    assert not bool((operator @ (0 * vector)).any())
    assert float(operator.last_errors) == 0.0
