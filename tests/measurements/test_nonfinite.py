"""Where weights, batch, outputs or loss are not finite no number is finite, by any route and for any quantity."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import hessfig
from hessfig.config.enums import Kind, Method, Products
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.errors import UserError
from hessfig.measurements.quantity import Measured, Quantity, row_of
from hessfig.sweep.measure import draw_problem, request_of
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from tests.daily import daily
from tests.toys import toy_task

ROUTES = {
    "tape": EstimatorConfig(Method.hutchinson, num_probes=4),
    "axes": EstimatorConfig(Method.aligned, num_probes=4),
    "dense": EstimatorConfig(Method.dense),
    "exact": EstimatorConfig(Method.exact),
    "auto": EstimatorConfig(Method.auto),
    "curvlinops": EstimatorConfig(Method.hutchinson, Products.curvlinops, 4),
    "differences": EstimatorConfig(Method.hutchinson, Products.differences, 4),
}
MODEL = ModelConfig(kind=Kind.self_attention, d_model=4)
QUANTITIES = (
    *(
        "frobenius",
        "trace",
        "largest_eigenvalue",
        "spectrum",
        "density",
        "zero_share",
        "jacobian_norm",
    ),
    *("loss", "gradient_norm", "score_spread", "moment_2"),
)


def without_value(objective):
    """Return a problem whose loss is NaN, with derivatives that are finite."""
    base = type(objective.loss)

    class NoLoss(base):
        def forward(self, outputs, targets):
            return super().forward(outputs, targets) + math.nan

    lost = copy.copy(objective.loss)
    lost.__class__ = NoLoss
    return replace(objective, loss=lost)


def with_weight(objective, value=math.nan):
    with torch.no_grad():
        next(objective.network.parameters()).view(-1)[0] = value
    return objective


def with_input(objective):
    inputs = objective.batch.inputs.clone()
    inputs.view(-1)[0] = math.nan
    return replace(objective, batch=replace(objective.batch, inputs=inputs))


PLACES = {
    "weight": with_weight,
    "infinite weight": lambda problem: with_weight(problem, math.inf),
    "input": with_input,
    "loss": without_value,
}


def measured(route, quantity, place, model=MODEL):
    task = toy_task(model)
    config = Config(
        model=model,
        task=task,
        estimator=ROUTES[route],
        blocks="each",
        quantities=[quantity],
    )
    cell = Cell(Variant("", config), 0.5, 3, quantity)
    problem = PLACES[place](draw_problem(cell))
    return cell.variant.quantity(quantity).measured(problem, request_of(cell, problem))


def assert_lost(found):
    assert found.rows
    assert not found.arrays
    assert {row["status"] for row in found.rows} == {"nonfinite"}
    for row in found.rows:
        assert not math.isfinite(row["value"])


@pytest.mark.parametrize("place", daily(PLACES, next(iter(PLACES))))
@pytest.mark.parametrize("route", ROUTES)
def test_no_norm_is_finite_by_any_route(route, place):
    assert_lost(measured(route, "frobenius", place))


@pytest.mark.parametrize("place", ["weight", "loss"])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_no_quantity_is_finite(quantity, place):
    assert_lost(
        measured("dense" if quantity == "zero_share" else "auto", quantity, place)
    )


def test_structural_zeros_are_no_zeros_where_weights_are_not_finite():
    assert_lost(measured("tape", "frobenius", "weight", ModelConfig(d_model=4)))


def test_double_backward_of_an_own_network():
    """The weights of the last layer have H_f = 0, which no NaN below reaches."""
    network = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        network[0].weight[0, 0] = math.nan
    inputs = torch.ones(5, 3, dtype=torch.float64)
    targets = torch.tensor([0, 1, 0, 1, 1])
    with pytest.warns(RuntimeWarning, match="numbers are not finite"):
        table = hessfig.measure(
            hessfig.Problem(network, inputs, targets),
            quantities=["frobenius", "approximations"],
        )
    assert len(table) > 12
    assert set(table["status"]) == {"nonfinite"}
    assert table["value"].isna().all()


class Masked(nn.Module):
    """Attention of which one row sees nothing: its softmax is nan, which nan_to_num replaces."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value, self.last = (
            nn.Linear(3, width) for width in (3, 3, 3, 2)
        )

    def forward(self, x):
        seen = torch.ones(4, 4, dtype=torch.bool).tril(-1)
        scores = (self.query(x) @ self.key(x).mT).masked_fill(~seen, -math.inf)
        return self.last(scores.softmax(-1).nan_to_num() @ self.value(x))


def test_wholly_masked_rows_are_said_with_the_products_that_are_finite():
    inputs = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).double()
    problem = hessfig.Problem(
        Masked().double(), inputs, torch.zeros(2, 4, dtype=torch.long)
    )
    with pytest.warns(RuntimeWarning, match="wholly masked.*products='differences'"):
        hessfig.measure(problem, blocks=["all"], parts="H")
    table = hessfig.measure(
        problem, blocks=["value.weight"], parts="H", products="differences"
    )
    assert table["value"].gt(0).all()
    assert set(table["status"]) == {"ok"}


def test_what_no_loss_enters_stands():
    counted = measured("auto", "num_parameters", "weight").rows
    assert {row["status"] for row in counted} == {"ok"}
    for row in counted:
        assert row["value"] > 0
    norms = {
        row["col"]: row["status"]
        for row in measured("auto", "weight_norm", "weight").rows
    }
    assert set(norms.values()) == {"ok", "nonfinite"}


def test_a_quantity_without_rows_there_says_why():
    def fails(objective, request):
        raise RuntimeError("no eigenvalues of nan")

    cell = Cell(Variant("", Config(model=MODEL, task=toy_task(MODEL))), 0.5, 3)
    problem = with_weight(draw_problem(cell))
    own = Quantity("own", fails)
    with pytest.raises(
        UserError,
        match="own has no value here: the weights, the outputs or the loss are not finite",
    ):
        own.measured(problem, request_of(cell, problem))
    known = replace(
        own,
        measure=lambda *_: Measured([row_of(quantity="own", value=1.0, status="ok")]),
        of_loss=False,
    )
    assert known.measured(problem, request_of(cell, problem)).rows[0]["value"] == 1.0
