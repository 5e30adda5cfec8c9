"""Quantities of a state against dense automatic differentiation, plain torch and closed forms."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import hessfig
from hessfig.config.enums import Curvature, DType, Schedule, State, TrainingData
from hessfig.config.schema import Config
from hessfig.config.science import TaskConfig
from hessfig.curvature.gradients import LossGradient, loss_of
from hessfig.curvature.losses import LOSSES
from hessfig.curvature.problem import Batch, Objective
from hessfig.errors import UserError
from hessfig.measurements import training_dynamics
from hessfig.measurements.catalogue import CATALOGUE
from hessfig.measurements.quantity import At
from hessfig.measurements.stability import (
    along_gradient,
    crossing,
    next_update,
    preconditioner,
)
from hessfig.models.protocol import kind
from hessfig.states.stored_states import moments
from hessfig.sweep.measure import compute_cell, draw_problem
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import Optimiser
from hessfig.weights import every_parameter
from tests.daily import daily
from tests.double_backward import hessian
from tests.draws import draws
from tests.toys import training_config

STEP = 20


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """A training of thirty updates in float64, so that plain torch meets the same numbers."""
    found = training_config(
        tmp_path_factory.mktemp("states"),
        step=[0, STEP],
        blocks=["W_V", ["W_Q", "W_V"], "mlp"],
    )
    return replace(found, training=replace(found.training, dtype=DType.float64))


def cell(config, quantity, step=STEP):
    return Cell(
        Variant("", replace(config, quantities=[quantity])), 0.3, 1, quantity, {}, step
    )


def rows(config, quantity, step=STEP):
    return compute_cell(cell(config, quantity, step)).rows


def values(config, quantity, step=STEP):
    found = {}
    for row in rows(config, quantity, step):
        found[row["quantity"]] = row["value"]
    return found


def dense(objective):
    """Return gradient and Hessian of the loss in all parameters as dense tensors, by torch.autograd alone."""
    held = dict(objective.network.named_parameters())
    at = [one.requires_grad_() for one in held.values()]
    gradient = torch.autograd.grad(cross_entropy(objective), at)
    flat = torch.cat([one.flatten() for one in gradient])
    return flat, hessian(lambda: cross_entropy(objective), at), held


def cross_entropy(objective, rows=slice(None)):
    """Return the mean loss of some sums of a batch, written out."""
    batch = objective.batch
    logits = objective.network(batch.inputs[rows])[:, batch.scored]
    return F.cross_entropy(logits.flatten(0, -2), batch.targets[rows].flatten())


def by_example(objective):
    """Return the gradient of every sum by itself."""
    at = [one.requires_grad_() for one in objective.network.parameters()]
    slopes = []
    for i in range(len(objective.batch.inputs)):
        loss = cross_entropy(objective, slice(i, i + 1))
        pieces = torch.autograd.grad(loss, at, materialize_grads=True)
        slopes.append(torch.cat([piece.flatten() for piece in pieces]))
    return torch.stack(slopes)


@pytest.fixture(scope="module")
def truth(config):
    """Gradient, Hessian and parameters of the trained state."""
    return dense(draw_problem(cell(config, "loss")))


def test_loss_gradient_and_products_are_those_of_dense_differentiation(config, truth):
    problem = draw_problem(cell(config, "loss"))
    gradient, H, _ = truth
    slope = LossGradient(problem)
    assert_close(slope.flat, gradient, rtol=1e-10, atol=1e-14)
    vector = draws(len(gradient))
    assert_close(slope.product(vector), H @ vector, rtol=1e-8, atol=1e-11)
    (row,) = rows(config, "loss")
    assert row["value"] == pytest.approx(slope.loss, rel=1e-14)
    assert (row["error"], row["layer"], row["row"], row["status"]) == (0.0, 0, "", "ok")


def test_norms_are_of_all_parameters_and_of_the_weights_that_are_asked_for(
    config, truth
):
    gradient, _, held = truth
    by_name = dict(
        zip(held, gradient.split([p.numel() for p in held.values()]), strict=True)
    )
    mlp = [name for name in held if ".mlp." in name]
    for quantity, tensors in (("gradient_norm", by_name), ("weight_norm", held)):
        found = {}
        for row in rows(config, quantity):
            found[(row["layer"], row["row"], row["col"])] = row["value"]
        expected = {
            (0, "", ""): math.sqrt(
                sum(float(t.square().sum()) for t in tensors.values())
            ),
            (1, "W_V", "W_V"): float(tensors["layers.0.attn.v.weight"].norm()),
            (1, "mlp", "mlp"): math.sqrt(
                sum(float(tensors[name].square().sum()) for name in mlp)
            ),
        }
        assert found == pytest.approx(expected, rel=1e-9)


def test_the_residual_stream_has_a_length_after_every_layer(config):
    problem = draw_problem(cell(config, "loss"))
    found = {row["layer"]: row["value"] for row in rows(config, "residual_norm")}
    tokens = problem.batch.inputs
    network = problem.network
    embedded = network.tok_embed.weight[tokens] + network.pos.weight[: tokens.shape[1]]
    assert found == pytest.approx(
        {
            0: float(embedded.norm(dim=-1).mean()),
            1: float(network.layers[0](embedded).norm(dim=-1).mean()),
        }
    )


def test_accuracy_counts_whole_answers_and_digits(config):
    found = {row["index"]: row for row in rows(config, "accuracy")}
    assert list(found) == [None, 1, 2, 3]  # two digits: no cascade of three
    for row in found.values():
        assert 0 <= row["value"] <= 1
    assert found[None]["value"] <= min(found[index]["value"] for index in (1, 2, 3))
    share = found[3]["value"]
    assert found[3]["error"] == pytest.approx(math.sqrt(share * (1 - share) / 20))


def test_a_network_that_knows_the_answers_has_no_errors(monkeypatch):
    class Knows(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, tokens):
            following = tokens.roll(-1, dims=1)[:, 7:11].clone()
            following[:, -1] = (
                following[:, -1] + (tokens[:, 0] < 5).long()
            ) % 10  # wrong for half of the sums
            return F.one_hot(following, 12).float()

    from hessfig.states.training.loop import right_in
    from hessfig.tasks.examples import unseen_batch

    batch = unseen_batch(TaskConfig(digits=3), 1500, DType.float32)
    right = right_in(Knows(), batch)
    sums = batch.inputs
    assert right[:, :3].all()
    assert torch.equal(right[:, 3], sums[:, 0] >= 5)


def test_five_digits_have_cascades(tmp_path):
    config = training_config(tmp_path, step=0, task=TaskConfig(digits=3, batch_size=2))
    names = [(row["quantity"], row["index"]) for row in rows(config, "accuracy", 0)]
    indices = [None, 1, 2, 3, 4]
    assert names == [
        (name, index) for name in ("accuracy", "cascade_accuracy") for index in indices
    ]


def test_the_quotient_along_the_gradient_is_that_of_the_dense_hessian(config, truth):
    problem = draw_problem(cell(config, "loss"))
    gradient, H, _ = truth
    expected = float(gradient @ H @ gradient / gradient.square().sum())
    assert along_gradient(problem) == pytest.approx(expected, rel=1e-8)


def test_batch_sharpness_is_a_mean_over_minibatches_with_its_error(config):
    (row,) = rows(config, "batch_sharpness")
    assert row["num_probes"] == config.estimator.num_probes == 20
    assert row["error"] > 0
    assert row["value"] != 0
    full = replace(
        config,
        training=replace(
            config.training, optimiser=Optimiser.gd, data=TrainingData.fixed
        ),
    )
    (whole,) = rows(full, "batch_sharpness")
    problem = draw_problem(cell(full, "loss"))
    assert (whole["value"], whole["error"], whole["num_probes"]) == (
        pytest.approx(along_gradient(problem), rel=1e-12),
        0.0,
        0,
    )


@pytest.mark.parametrize("first", [1e-6, 0.3, 1.0, 1e4])
def test_a_crossing_is_bracketed_from_wherever_it_is_looked_for(first):
    found = crossing(lambda step: step * (step - 0.7) > 0, first=first)
    assert abs(found.value - 0.7) <= found.error <= 0.7 / 64


@pytest.mark.parametrize("rises", [True, False])
def test_a_line_without_a_crossing_has_no_error(rises):
    assert crossing(lambda step: rises, first=1.0).error == 0.0


def quadratic(at, curvatures):
    """Return 1/2 sum c_i w_i^2 at `at` as a problem: a linear map of fixed inputs under a square loss."""
    network = nn.Linear(len(at), 1, bias=False).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([at]))
    inputs = torch.diag(torch.tensor(curvatures, dtype=torch.float64).div(2).sqrt())
    batch = Batch(inputs, torch.zeros(len(at), 1, dtype=torch.float64), slice(None))
    layout = every_parameter(
        (name, p.numel()) for name, p in network.named_parameters()
    )
    return Objective(network, batch, LOSSES["mse_sum"](), layout)


def test_the_critical_step_of_a_quadratic_is_two_over_its_curvature_along_the_gradient(
    config,
):
    from hessfig.measurements.stability import crossing_step

    problem = quadratic([1.0, 2.0, -1.0], [1.0, 3.0, 8.0])
    at = At(
        replace(config, training=replace(config.training, optimiser=Optimiser.gd)),
        0.3,
        1,
        STEP,
    )
    before = float(loss_of(problem))
    found = crossing_step(problem, at)
    g = LossGradient(problem).flat
    h = torch.tensor([1.0, 3.0, 8.0], dtype=torch.float64)
    expected = 2 * float(g @ g) / float(g @ (h * g))
    assert abs(found.value - expected) <= found.error <= expected / 64
    assert float(loss_of(problem)) == before  # the weights are put back


def test_critical_sharpness_is_two_over_the_step(config):
    step, sharpness = rows(config, "critical_step")
    assert sharpness["value"] == pytest.approx(2 / step["value"])
    assert sharpness["error"] / sharpness["value"] == pytest.approx(
        step["error"] / step["value"]
    )
    assert {step["status"], sharpness["status"]} == {"ok"}


@pytest.mark.parametrize("step", [0, STEP])
@pytest.mark.parametrize(
    "optimiser",
    daily(
        [Optimiser.adamw, Optimiser.adam, Optimiser.sgd, Optimiser.gd],
        Optimiser.adamw,
        Optimiser.sgd,
    ),
)
def test_the_next_update_is_torchs_own(config, optimiser, step):
    data = TrainingData.fixed if optimiser == Optimiser.gd else TrainingData.fresh
    changes = {
        "optimiser": optimiser,
        "data": data,
        "weight_decay": 0.0,
        "momentum": 0.7,
    }
    chosen = replace(config, training=replace(config.training, **changes))
    problem = draw_problem(cell(chosen, "loss", step))
    gradient = LossGradient(problem).gradient
    update = next_update(At(chosen, 0.3, 1, step), gradient)
    leaf = nn.Parameter(problem.network.get_parameter("head.weight").detach().clone())
    leaf.grad = gradient["head.weight"]
    rule = torch.optim.SGD([leaf], 1.0, momentum=0.7 * (optimiser == Optimiser.sgd))
    if optimiser in (Optimiser.adamw, Optimiser.adam):
        rule = torch.optim.AdamW([leaf], 1.0, betas=(0.9, 0.98), weight_decay=0.0)
    kept = {}
    for name, tensor in moments(chosen, sigma=0.3, seed=1, step=step).items():
        if name.endswith("/head.weight"):
            kept[name.partition("/")[0]] = tensor
    if kept:
        rule.state[leaf] = {**kept, "step": torch.tensor(float(step))}
    before = leaf.detach().clone()
    rule.step()
    assert_close(before - update["head.weight"], leaf.detach(), rtol=1e-9, atol=1e-11)


def test_the_preconditioned_eigenvalue_is_that_of_the_dense_matrix(config, truth):
    _, H, held = truth
    kept = moments(config, sigma=0.3, seed=1, step=STEP)
    second = torch.cat([kept[f"exp_avg_sq/{name}"].flatten() for name in held])
    diagonal = (1 - 0.9**STEP) * ((second / (1 - 0.98**STEP)).sqrt() + 1e-8)
    expected = torch.linalg.eigvals(H / diagonal[:, None]).real.max()
    (row,) = rows(config, "preconditioned_eigenvalue")
    assert row["value"] == pytest.approx(float(expected), rel=1e-6)
    assert (row["part"], row["row"], row["col"], row["status"]) == (
        "H",
        "all",
        "all",
        "ok",
    )
    assert 0 < row["error"] <= 1e-5 * row["value"]
    found = preconditioner(At(config, 0.3, 1, STEP), held)
    assert_close(torch.cat([found[name].flatten() for name in held]), diagonal)


def test_adaptive_sharpness_is_that_of_the_dense_matrix(config, truth):
    _, H, held = truth
    size = torch.cat([one.detach().flatten() for one in held.values()]).abs()
    (row,) = rows(config, "adaptive_sharpness")
    assert row["value"] == pytest.approx(
        float(torch.linalg.eigvalsh(H * size * size[:, None]).max()), rel=1e-6
    )
    assert (row["part"], row["row"], row["status"]) == ("H", "all", "ok")
    assert 0 < row["error"] <= 1e-5 * row["value"]


def test_adaptive_sharpness_sees_no_rescaling_that_leaves_the_function_as_it_is():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)
    ).double()
    batch = torch.randn(16, 4, dtype=torch.float64), torch.randint(3, (16,))
    found = []
    for factor in (1.0, 5.0):
        with torch.no_grad():
            network[0].weight.mul_(factor)
            network[2].weight.div_(factor)
        asked = ["adaptive_sharpness", "largest_eigenvalue"]
        problem = hessfig.Problem(network, *batch, "cross_entropy")
        table = hessfig.measure(problem, blocks=["all"], parts=["H"], quantities=asked)
        found.append(table.set_index("quantity")["value"])
    assert found[1]["adaptive_sharpness"] == pytest.approx(
        found[0]["adaptive_sharpness"], rel=1e-6
    )
    assert found[1]["largest_eigenvalue"] > 2 * found[0]["largest_eigenvalue"]


def test_there_is_no_preconditioner_before_the_first_update(config):
    assert rows(config, "preconditioned_eigenvalue", 0) == []


REFUSED = {
    "accuracy": ({"task": "gaussian"}, "no examples besides its batch"),
    "batch_sharpness": ({"task": "gaussian"}, "no examples besides its batch"),
    "critical_step": ({"state": "loaded"}, "comes without the moments of adamw"),
    "residual_norm": (
        {"model": "python"},
        "does not expose what is between its layers",
    ),
    "preconditioned_eigenvalue": (
        {"state": "initialised"},
        "that of a training with adam or adamw",
    ),
}


@pytest.mark.parametrize("quantity", REFUSED)
def test_what_cannot_be_had_is_refused_before_anything_runs(quantity):
    from hessfig.config.enums import Data, Kind, State
    from hessfig.measurements.catalogue import quantity as quantity_of
    from hessfig.weights import Layout

    config, (setting, message) = Config(), REFUSED[quantity]
    if "task" in setting:
        config.task.data = Data.gaussian
    if "state" in setting:
        config.state.kind = State(setting["state"])
    if "model" in setting:
        config.model.kind = Kind.python
    with pytest.raises(UserError, match=message) as caught:
        quantity_of(quantity).check_settings(config, Layout(()))
    assert caught.value.got
    assert caught.value.allowed
    assert caught.value.remedy


def test_the_gradients_covariance_is_that_of_the_sums_own_gradients(config):
    covariance = by_example(draw_problem(cell(config, "loss"))).T.cov()
    found = values(config, "gradient_covariance")
    assert found["gradient_covariance"] == pytest.approx(
        float(covariance.trace()), rel=1e-8
    )
    largest = float(torch.linalg.eigvalsh(covariance)[-1])
    assert found["gradient_covariance_eigenvalue"] == pytest.approx(largest, rel=1e-8)


def test_the_noise_scale_is_that_of_every_examples_gradient(config):
    """Signal |G|^2 and noise tr(C), both without bias, from an explicit list of gradients."""
    gradients = by_example(draw_problem(cell(config, "loss")))
    trace = float(gradients.var(dim=0).sum())
    signal = float(gradients.mean(dim=0).square().sum()) - trace / len(gradients)
    (found,) = rows(config, "noise_scale")
    assert signal > 0
    assert found["value"] == pytest.approx(trace / signal, rel=1e-8)
    assert found["error"] is None
    assert found["status"] == "ok"


def test_a_gradient_below_its_noise_has_no_noise_scale(config):
    alone = replace(config, task=replace(config.task, batch_size=1))
    assert [row["status"] for row in rows(alone, "noise_scale")] == ["nonfinite"]


def test_parameters_are_counted_by_block_and_in_all(config):
    network = draw_problem(cell(config, "loss")).network
    found = {row["row"]: row["value"] for row in rows(config, "num_parameters")}
    assert found[""] == sum(one.numel() for one in network.parameters())
    assert found["W_V"] == network.layers[0].attn.v.weight.numel()
    assert found["mlp"] == sum(
        one.numel() for one in network.layers[0].mlp.parameters()
    )


def test_spreads_are_those_of_scores_written_out(config):
    problem = draw_problem(cell(config, "loss"))
    network = problem.network
    tokens = problem.batch.inputs
    layer = network.layers[0]
    seen = layer.ln1(network.hidden(tokens, 0))
    length = tokens.shape[1]
    heads = 2
    query, key = (
        (p(seen).unflatten(-1, (heads, -1)).transpose(1, 2))
        for p in (layer.attn.q, layer.attn.k)
    )
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    allowed = torch.ones(length, length).tril().bool()
    pattern = scores.masked_fill(~allowed, -math.inf).softmax(dim=-1)
    found = {}
    for row in rows(config, "score_spread"):
        found[(row["quantity"], row["layer"])] = row["value"]
    assert found["score_spread", 1] == pytest.approx(
        float(scores[..., allowed].std()), rel=1e-10
    )
    assert found["pattern_spread", 1] == pytest.approx(float(pattern.std()), rel=1e-10)


@pytest.mark.parametrize(
    ("optimiser", "factor"),
    [("adamw", 38.0), ("adam", 38.0), ("sgd", 3.0), ("gd", 2.0)],
)
def test_the_threshold_is_of_the_next_update(config, optimiser, factor):
    data = TrainingData.fixed if optimiser == "gd" else TrainingData.fresh
    chosen = replace(
        config.training,
        optimiser=Optimiser(optimiser),
        momentum=0.5,
        warmup=40,
        data=data,
    )
    changed = replace(config, training=replace(chosen, steps=60, learning_rate=0.4))
    found = values(changed, "stability_threshold", step=9)
    assert found["learning_rate"] == pytest.approx(0.1)
    assert found["stability_threshold"] == pytest.approx(factor / 0.1)


@pytest.mark.parametrize("optimiser", daily(["gd", "newton", "sgd"], "newton"))
def test_the_predicted_decrease_is_that_of_the_next_update(config, optimiser):
    """The states after one more update, and the dense Hessian along their difference."""
    chosen = replace(
        config.training,
        optimiser=Optimiser(optimiser),
        momentum=0.5,
        dtype=DType.float64,
        refresh=4,
    )
    chosen = replace(
        chosen,
        data=TrainingData.fixed,
        batch_size=config.task.batch_size,
        learning_rate=0.02,
    )
    changed = replace(config, dtype=DType.float64, training=chosen)
    found = values(changed, "predicted_decrease", step=6)
    before = draw_problem(cell(changed, "loss", 6))
    after = draw_problem(cell(changed, "loss", 7))
    assert found["true_decrease"] == pytest.approx(
        float(loss_of(before) - loss_of(after)), rel=1e-8
    )
    gradient, H, _ = dense(before)
    ends = []
    for one in (after, before):
        ends.append(torch.cat([p.detach().flatten() for p in one.network.parameters()]))
    update = ends[0] - ends[1]
    predicted = -float(gradient @ update + update @ H @ update / 2)
    assert found["predicted_decrease"] == pytest.approx(predicted, rel=1e-8)
    assert found["decrease_ratio"] == pytest.approx(
        found["true_decrease"] / found["predicted_decrease"]
    )


def test_formulas_of_other_rules_are_refused(config):
    for settings in ({"optimiser": Optimiser.soap}, {"clip_norm": 1.0}):
        changed = replace(config, training=replace(config.training, **settings))
        for quantity in ("critical_step", "stability_threshold"):
            with pytest.raises(UserError, match="there is no formula for this rule"):
                CATALOGUE[quantity].check_settings(
                    changed, kind(changed.model.kind).layout(changed)
                )
    initial = replace(
        config, state=replace(config.state, kind=State.initialised, step=None)
    )
    with pytest.raises(UserError, match="the next update is that of a training"):
        CATALOGUE["predicted_decrease"].check_settings(
            initial, kind(initial.model.kind).layout(initial)
        )


def test_a_constant_schedule_has_no_last_update(config):
    """Its length is in no key, so no number may depend on it: here the warm-up goes on beyond it."""
    chosen = replace(config.training, schedule=Schedule.constant, warmup=100)
    rates = []
    for steps in (50, 60):
        changed = replace(config, training=replace(chosen, steps=steps))
        rates.append(values(changed, "stability_threshold", step=50)["learning_rate"])
    assert rates[0] == rates[1] == pytest.approx(chosen.learning_rate * 51 / 100)


def test_a_trainings_cost_is_its_counts_times_the_time_of_one(config):
    changed = replace(
        config, training=replace(config.training, curvature=Curvature.whole, refresh=8)
    )
    found = values(changed, "training_cost")
    assert (found["looks"], found["hessian_products"]) == (3, 36)
    total = STEP * found["update_seconds"] + 3 * found["look_seconds"]
    assert found["training_cost"] == pytest.approx(total)
    assert found["look_seconds"] > 0


@pytest.mark.parametrize("curvature", [Curvature.whole, Curvature.blocks])
def test_a_cost_is_that_of_the_state_however_far_its_updates_lead(
    config, curvature, monkeypatch
):
    monkeypatch.setattr(training_dynamics, "_LONG", math.inf)
    far = replace(
        config.training,
        curvature=curvature,
        optimiser=Optimiser.sgd,
        learning_rate=1e30,
        dtype=DType.float32,
    )
    found = rows(replace(config, training=far), "training_cost", step=0)
    for row in found:
        assert row["status"] == "ok"
