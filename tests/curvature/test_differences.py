"""Differences of gradients against dense automatic differentiation, and where they fail."""

import math
from functools import cache

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import hessfig
from hessfig.config.enums import Loss, Method, Products
from hessfig.config.science import EstimatorConfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.curvature.differences import DifferencedColumn, step
from hessfig.curvature.gradients import LossGradient, Samples
from hessfig.errors import UserError
from hessfig.measurements.block_norms import Estimator, dense_blocks, differenced
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import Estimate
from hessfig.measurements.requirements import check_differences
from hessfig.models.blocks import matrices_of
from hessfig.models.protocol import kind
from hessfig.models.routes import Engines
from hessfig.rng import stream
from hessfig.terms import PARTS, Block, Matrix, Part
from tests.curvature.oracle import dense_oracle
from tests.daily import daily, thinned
from tests.draws import tanh_network
from tests.toys import ARCHITECTURES, toy_config, toy_problem, toy_task

SMOOTH = ARCHITECTURES["heads"]
COLUMNS = (Matrix.W_Q, Matrix.W_V, Matrix.W_in)


@cache
def oracle():
    return dense_oracle(toy_problem(SMOOTH), 1, matrices_of(SMOOTH))


def norm_of(objective, col, part, method=Method.dense):
    settings = EstimatorConfig(
        method=method, products=Products.differences, num_probes=6
    )
    block = Block(1, col, col)
    found = Estimator(objective, SMOOTH, settings).column_norms(
        1, col, [block], [part], generator=stream(0, "test")
    )
    return found[block, part]


@pytest.mark.parametrize("col", thinned(COLUMNS, 4))
@pytest.mark.parametrize("part", PARTS)
def test_products_are_those_of_the_oracle(col, part):
    rows = matrices_of(SMOOTH)
    column = Engines(toy_problem(SMOOTH), SMOOTH, Products.differences).column(
        1, col, [Block(1, r, col) for r in rows]
    )
    found = dense_blocks(column, [part])
    for row in rows:
        truth = oracle()[part][row, col]
        scale = max(
            float(oracle()[part][col, col].abs().max()), float(truth.abs().max())
        )
        assert_close(found[Block(1, row, col), part], truth, rtol=0, atol=1e-7 * scale)


@pytest.mark.parametrize(
    "dtype", daily([torch.float64, torch.float32, torch.bfloat16], torch.float64)
)
@pytest.mark.parametrize("part", thinned([Part.H, Part.H_o], 2))
def test_the_error_covers_what_the_norm_is_off_by(dtype, part):
    truth = float(oracle()[part][Matrix.W_V, Matrix.W_V].norm())
    found = norm_of(toy_problem(SMOOTH).cast(dtype), Matrix.W_V, part)
    assert 0 < abs(found.value - truth) <= found.error
    assert found.is_unreliable == (found.error > 0.1 * found.value)
    assert not found.is_unreliable or dtype == torch.bfloat16


def test_a_quadratic_loss_leaves_rounding_alone():
    model = ARCHITECTURES["linear mlp"]
    problem = toy_problem(model, toy_task(model, loss=Loss.mse))
    col = matrices_of(model)[-1]
    exact = dense_oracle(problem, 3, [col])[Part.H_o][col, col]
    column = DifferencedColumn(problem, 3, col, [col])
    found = dense_blocks(column, [Part.H_o])[col, Part.H_o]
    assert (found - exact).norm() <= 1e-9 * exact.norm()
    assert column.relative_error(col, Part.H_o) <= 1e-8


def test_a_kink_at_the_weights_is_that_of_double_backward():
    model = ARCHITECTURES["softmax"]
    problem = toy_problem(model)
    with torch.no_grad():
        problem.weight(1, Matrix.W_in)[0] = 0.0
        problem.network.get_parameter("layers.0.mlp.fc_in.bias")[0] = 0.0
    for col, part in ((Matrix.W_in, Part.H), (Matrix.W_V, Part.H_o)):
        truth = float(
            dense_blocks(ColumnOperator(problem, 1, col, [col]), [part])[
                col, part
            ].norm()
        )
        found = norm_of(problem, col, part)
        assert not found.is_unreliable
        assert abs(found.value - truth) <= found.error


@pytest.mark.parametrize("dtype", daily(["float64", "float32"], "float32"))
def test_a_part_that_vanishes_is_zero_within_an_error_that_is_small_beside_h(dtype):
    torch.manual_seed(0)
    network = tanh_network(4, 5, 3)
    problem = hessfig.Problem(network, torch.randn(6, 4), torch.randint(0, 3, (6,)))
    asked = {"products": "differences", "dtype": dtype}
    blocks = ["2.weight", ("2.bias", "0.weight")]
    norms = hessfig.measure(problem, blocks=blocks, quantities=["frobenius"], **asked)
    ends = hessfig.measure(
        problem,
        blocks=["2.weight"],
        quantities=["largest_eigenvalue", "smallest_eigenvalue"],
        spectrum={"tolerance": 1e-2},
        **asked,
    )
    most = {"float64": 1e-7, "float32": 1e-2}[dtype]
    for table in (norms, ends):
        assert (table["status"] == "ok").all()
        for _, of_block in table.groupby("row"):
            lost = of_block[of_block["part"] == "H_f"]
            of_h = of_block.loc[of_block["part"] == "H", "value"]
            assert (lost["value"] == 0.0).all()
            assert lost["error"].between(1e-30, most * of_h.max()).all()
    operator = problem.operator("2.weight", "H", **asked)
    vector = torch.linspace(-1, 1, 15)
    assert not operator.split(vector)["H_f"].any()


class _Towers(nn.Module):
    """Two maps side by side: no output depends on both, and the second is linear in what it is given."""

    def __init__(self):
        super().__init__()
        self.left = tanh_network(4, 5, 3)
        self.right = nn.Linear(4, 3)

    def forward(self, x):
        """Return outputs (batch, 6)."""
        return torch.cat([self.left(x), self.right(x)], dim=1)


@pytest.mark.parametrize("dtype", daily(["float64", "float32"], "float32"))
@pytest.mark.parametrize("is_linear", [False, True], ids=["curved", "linear"])
def test_the_block_of_weights_that_do_not_interact_is_zero_within_its_error(
    dtype, is_linear
):
    """If the loss is linear in the outputs, H of the weights of the column is zero, too."""

    def loss(outputs, targets):
        right = outputs[:, 3:]
        bent = right if is_linear else right.square()
        return (outputs[:, :3] - targets).square().mean() + bent.mean()

    loss.reduction = "mean"
    torch.manual_seed(0)
    problem = hessfig.Problem(_Towers(), torch.randn(6, 4), torch.randn(6, 3), loss)
    pair = ("left.2.weight", "right.weight")
    table = hessfig.measure(
        problem,
        blocks=[pair, "left.2.weight"],
        parts="H",
        products="differences",
        dtype=dtype,
    )
    by_row = table.set_index(["row", "col"])
    lost = by_row.loc[pair]
    beside = by_row.loc["left.2.weight", "left.2.weight"]
    assert lost["value"] == 0.0
    assert lost["status"] == "ok"
    most = {"float64": 1e-7, "float32": 1e-2}[dtype]
    assert 0 < lost["error"] <= most * beside["value"]
    operator = problem.operator(pair, dtype=dtype, products="differences")
    assert not (operator @ torch.linspace(-1, 1, 12)).any()
    assert 0 < float(operator.last_errors) <= most * beside["value"]


def test_eigenvalues_of_zero_without_a_small_error_have_not_converged(monkeypatch):
    monkeypatch.setattr(DifferencedColumn, "most_of_zero", lambda column, row: 0.0)
    torch.manual_seed(0)
    problem = hessfig.Problem(nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1]))
    table = hessfig.measure(
        problem,
        blocks=["weight"],
        quantities=["largest_eigenvalue"],
        products="differences",
    ).set_index("part")
    assert table.loc["H_f", "status"] == "not_converged"
    assert table.loc["H_f", "value"] == 0.0
    assert table.loc["H", "status"] == "ok"


def test_zeros_whose_error_is_not_small_beside_h_are_rough(monkeypatch):
    model = ARCHITECTURES["linear mlp"]
    problem = toy_problem(model, toy_task(model, loss=Loss.mse))
    col = matrices_of(model)[-1]
    column = DifferencedColumn(problem, 3, col, [col])
    dense_blocks(column, [Part.H_f])
    assert column.error_of_zero(col, Part.H_f) > 0
    monkeypatch.setattr(DifferencedColumn, "usual_error", 0.0)
    assert math.isnan(column.error_of_zero(col, Part.H_f))
    lost = Estimate(0.0, 0.0, 1)
    assert differenced(lost, math.inf).is_unreliable
    assert math.isnan(differenced(lost, math.inf).error)
    assert not differenced(lost, math.inf, of_zero=1e-9).is_unreliable


def test_the_step_follows_weights_probe_and_type():
    weights = torch.full((4,), 3.0, dtype=torch.float64)
    probe = torch.ones(4, dtype=torch.float64)
    assert step(weights, probe) == pytest.approx(3 * 2 ** (-53 / 3))
    assert step(weights.float(), 2 * probe) == pytest.approx(1.5 * 2**-8)
    assert step(0 * weights, probe) == pytest.approx(0.5 * 2 ** (-53 / 3))


@pytest.mark.parametrize(
    "settings", [{"quantities": ["density"]}, {"quantities": ["frobenius", "spectrum"]}]
)
def test_numbers_that_would_not_state_the_error_are_refused(settings):
    config = toy_config(
        estimator=EstimatorConfig(Method.hutchinson, Products.differences), **settings
    )
    with pytest.raises(
        UserError, match="products=differences: this number would not state the error"
    ) as refused:
        check_differences(config)
    assert settings["quantities"][-1] in str(refused.value.got)


@pytest.mark.parametrize("method", [Method.auto, Method.exact, Method.xtrace])
def test_estimators_with_other_products_are_refused(method):
    config = toy_config(
        estimator=EstimatorConfig(method, Products.differences), quantities=["trace"]
    )
    with pytest.raises(UserError, match="products=differences"):
        check_differences(config)


def test_numbers_of_the_first_version_are_not_reused():
    """Only keys of products by differences changed."""
    for name in ("frobenius", "trace", "largest_eigenvalue"):
        chosen = quantity(name)
        keys = {}
        for products in Products:
            config = toy_config(
                estimator=EstimatorConfig(Method.hutchinson, products),
                quantities=[name],
            )
            settings = chosen.settings(config, kind(config.model.kind).layout(config))
            keys[products] = settings.get(
                "products", settings.get("estimator", {}).get("products")
            )
        assert keys == {
            one: "differences 2" if one == Products.differences else one.value
            for one in Products
        }


class Recomputed(nn.Module):
    """A checkpoint, whose backward pass calls the network again, and a teacher that autograd does not reach."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.last, self.teacher = (
            nn.Linear(3, width) for width in (3, 3, 2, 3)
        )

    def forward(self, x):
        with torch.no_grad():
            taught = self.teacher(x).tanh()
        hidden = checkpoint(
            lambda one: self.second(one).tanh(), self.first(x), use_reentrant=False
        )
        return self.last(hidden + taught)


def test_checkpoints_and_constants_are_those_of_double_backward():
    network = Recomputed().double()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    problem = hessfig.Problem(network, x, torch.tensor([0, 1, 1, 0, 1]))
    right = problem.operator("all", products="auto")
    by_differences = problem.operator("all", products="differences")
    vector = torch.randn(
        right.shape[0], generator=torch.Generator().manual_seed(1)
    ).double()
    assert_close(by_differences @ vector, right @ vector, rtol=0, atol=1e-8)
    objective = problem.objective("float64")
    samples = Samples(objective, 5)
    slope = LossGradient(objective).flat
    assert_close(
        samples.summed_gradient(torch.arange(5)) / 5, slope, rtol=0, atol=1e-12
    )
