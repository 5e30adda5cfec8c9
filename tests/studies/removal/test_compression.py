"""Pruning and quantisation against plain autograd: dense Hessians, networks changed weight by weight, loops."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from hessfig.config.of_quantities import CompressionConfig
from hessfig.config.schema import Config
from hessfig.curvature.gradients import loss_of
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import At, asked_of
from hessfig.models.blocks import blocks_of
from hessfig.studies.removal import compression
from hessfig.studies.removal.brain_surgeon import compensated, damped_inverse
from hessfig.studies.removal.compression import spearman
from hessfig.studies.removal.row_names import ROUNDINGS, SALIENCIES, Surrogate
from hessfig.terms import Approximation, Part
from tests.curvature.oracle import dense_oracle
from tests.daily import daily
from tests.measurements.test_approximations import as_ones_own
from tests.toys import ARCHITECTURES, toy_problem, toy_task

DAMPING = 0.05
HEADS = ARCHITECTURES["heads"]


def measured(name, model, blocks, *, biases=False, **compression):
    """Return a toy problem, with `biases` of random size instead of 0, and what a quantity gives of it."""
    given = CompressionConfig(damping=DAMPING, **compression)
    config = Config(model=model, task=toy_task(model), blocks=blocks, compression=given)
    problem = toy_problem(model)
    with torch.no_grad():
        for place, one in enumerate(problem.network.parameters()):
            if biases and one.ndim == 1:
                one.copy_(
                    torch.randn(
                        one.shape, generator=torch.Generator().manual_seed(place)
                    )
                )
    asked = asked_of(
        quantity(name),
        blocks_of(blocks, problem.layout, model),
        At(config, sigma=0.7, seed=1234),
    )
    return problem, quantity(name).measured(problem, asked)


def values(found, name):
    return [row["value"] for row in found.rows if row["quantity"] == name]


def loss_at(objective, name, matrix):
    """Return the loss of a copy of the network with another matrix in place of a weight of layer 1."""
    network = copy.deepcopy(objective.network)
    (weight,) = objective.layout.side(1, name)
    with torch.no_grad():
        network.get_parameter(weight.parameter).copy_(matrix)
        return float(
            loss_of(
                Objective(network, objective.batch, objective.loss, objective.layout)
            )
        )


def rises(objective, name, matrices):
    before = float(loss_of(objective).detach())
    return [loss_at(objective, name, one) - before for one in matrices]


def without(held, *groups):
    """Return copies of a matrix, each with the entries at an index at zero."""
    found = []
    for group in groups:
        one = held.clone()
        one[group] = 0.0
        found.append(one)
    return found


@pytest.mark.parametrize(
    "model",
    daily([HEADS, ARCHITECTURES["post"], ARCHITECTURES["bare"]], HEADS),
    ids=["heads", "post", "bare"],
)
def test_rises_and_saliencies_are_those_of_plain_autograd(model):
    problem, found = measured("pruning", model, ["W_V"], shares=[0.5])
    held = problem.weight(1, "W_V").detach()
    m, n = held.shape
    oracle = {
        part: blocks["W_V", "W_V"]
        for part, blocks in dense_oracle(problem, 1, ["W_V"]).items()
    }
    parameter = problem.weight(1, "W_V").requires_grad_()
    (slope,) = torch.autograd.grad(loss_of(problem), parameter)
    arrays = {key.removeprefix("1_W_V_"): one for key, one in found.arrays.items()}
    flat = held.flatten()

    singles = rises(
        problem, "W_V", without(held, *((i, j) for i in range(m) for j in range(n)))
    )
    np.testing.assert_allclose(arrays["increase"], singles, atol=1e-12)
    curved = flat**2 * oracle[Part.H].diagonal() / 2
    np.testing.assert_allclose(
        arrays["taylor"], curved - flat * slope.flatten(), atol=1e-10
    )
    np.testing.assert_allclose(arrays["magnitude"], flat**2)
    for name, part in (("hessian", Part.H), ("gauss_newton", Part.H_o)):
        block = oracle[part]
        np.testing.assert_allclose(
            arrays[f"obd_{name}"], flat**2 * block.diagonal() / 2, atol=1e-10
        )
        inverse = damped_inverse(block, DAMPING)
        np.testing.assert_allclose(
            arrays[f"obs_{name}"],
            flat**2 / (2 * inverse.diagonal()),
            rtol=1e-7,
            atol=1e-10,
        )
        moved = rises(
            problem, "W_V", [one.view(m, n) for one in compensated(flat, inverse)]
        )
        (given,) = values(found, f"obs_{name}_compensated_correlation")
        assert given == pytest.approx(
            spearmanr(arrays[f"obs_{name}"], moved).statistic, abs=1e-9
        )
    for name in SALIENCIES:
        (given,) = values(found, f"{name}_correlation")
        assert given == pytest.approx(
            spearmanr(arrays[name], singles).statistic, abs=1e-12
        )
    of_rows = rises(problem, "W_V", without(held, *range(m)))
    (given,) = values(found, "obd_hessian_row_correlation")
    assert given == pytest.approx(
        spearmanr(curved.view(m, n).sum(1), of_rows).statistic, abs=1e-12
    )


@pytest.mark.long
def test_other_matrices_are_those_of_their_definitions():
    """K-FAC and the empirical Fisher matrix of one's own network; in a whole one, K-FAC is apart by weight."""
    problem, found = measured("pruning", HEADS, ["W_V", "all"], shares=[0.5])
    flat = problem.weight(1, "W_V").detach().flatten()
    own = as_ones_own(problem, ["W_V"])
    for name in (Approximation.kfac, Approximation.empirical_fisher):
        matrix = own.approximation(name, "W_V").dense()
        arrays = [found.arrays[f"1_W_V_{rule}_{name}"] for rule in ("obd", "obs")]
        np.testing.assert_allclose(
            arrays[0], flat**2 * matrix.diagonal() / 2, atol=1e-12
        )
        np.testing.assert_allclose(
            arrays[1], flat**2 / (2 * torch.linalg.inv(damped(matrix)).diagonal())
        )
    ends = np.cumsum([0, *found.arrays["0_all_sizes"]])
    places = {
        name: slice(*ends[k : k + 2])
        for k, name in enumerate(found.arrays["0_all_weights"])
    }
    whole = {
        name: found.arrays[f"0_all_obd_{name}"] for name in ("kfac", "gauss_newton")
    }
    np.testing.assert_allclose(
        whole["kfac"][places["W_V"]], found.arrays["1_W_V_obd_kfac"]
    )
    np.testing.assert_allclose(
        whole["kfac"][places["W_E"]], whole["gauss_newton"][places["W_E"]]
    )


def test_curves_are_losses_of_networks_without_these_weights():
    shares = [0.25, 0.5, 1.0]
    problem, found = measured("pruning", HEADS, ["W_V"], shares=shares)
    held = problem.weight(1, "W_V").detach()
    counts = [round(share * held.numel()) for share in (0.0, *shares)]
    np.testing.assert_allclose(
        values(found, "removed_share"), [one / held.numel() for one in counts]
    )
    for name in ("magnitude", "random", "obd_kfac"):
        order = np.argsort(found.arrays[f"1_W_V_{name}"], kind="stable")
        expected = [
            loss_at(problem, "W_V", without(held.flatten(), order[:k])[0].view_as(held))
            for k in counts
        ]
        np.testing.assert_allclose(values(found, f"{name}_loss"), expected, atol=1e-12)
    assert values(found, "obs_hessian_loss")[-1] == pytest.approx(
        expected[-1], abs=1e-12
    )


def test_a_head_is_rows_of_three_weights_and_columns_of_one():
    problem, found = measured("pruning", HEADS, ["all"], shares=[0.5])
    expected = []
    for head in range(2):
        network = copy.deepcopy(problem.network)
        with torch.no_grad():
            for name in ("W_Q", "W_K", "W_V", "W_O"):
                (weight,) = problem.layout.side(1, name)
                parameter = network.get_parameter(weight.parameter)
                (parameter.T if name == "W_O" else parameter)[
                    3 * head : 3 * head + 3
                ] = 0.0
            expected.append(
                float(
                    loss_of(
                        Objective(network, problem.batch, problem.loss, problem.layout)
                    )
                )
            )
    before = float(loss_of(problem).detach())
    np.testing.assert_allclose(
        values(found, "head_increase"), [one - before for one in expected], atol=1e-12
    )
    sizes = sum(found.arrays["0_all_sizes"])
    assert (
        len(found.arrays["0_all_increase"])
        == sizes
        == sum(p.numel() for p in problem.network.parameters())
    )


def grid_of(held, levels):
    """Return the distance of the levels of every row, and the level of zero."""
    low = held.min(1, keepdim=True).values.clamp(max=0)
    high = held.max(1, keepdim=True).values.clamp(min=0)
    scale = (high - low) / levels
    return scale, (-low / scale).round()


def on_grid(values, scale, zero, levels):
    """Return the nearest levels."""
    return ((values / scale).round() + zero).clamp(0, levels).sub(zero) * scale


def test_rounded_matrices_are_on_their_grid_and_the_loss_is_that_of_the_network():
    problem, found = measured("quantisation", HEADS, ["W_V"], bits=[3])
    held = problem.weight(1, "W_V").detach()
    scale, zero = grid_of(held, 7)
    nearest = on_grid(held, scale, zero, 7)
    (given,) = values(found, "nearest_increase")
    assert given == pytest.approx(rises(problem, "W_V", [nearest])[0], abs=1e-12)

    block = dense_oracle(problem, 1, ["W_V"])[Part.H_o]["W_V", "W_V"]
    upper = torch.linalg.cholesky(torch.linalg.inv(damped(block))).T
    left = held.flatten().clone()
    rounded = torch.zeros(held.numel(), dtype=torch.float64)
    scales = scale.expand_as(held).flatten()
    zeros = zero.expand_as(held).flatten()
    for place in range(len(left)):
        rounded[place] = on_grid(left[place], scales[place], zeros[place], 7)
        left -= (left[place] - rounded[place]) / upper[place, place] * upper[place]
    (given,) = values(found, "gptq_gauss_newton_increase")
    assert given == pytest.approx(
        rises(problem, "W_V", [rounded.view_as(held)])[0], abs=1e-10
    )


def damped(matrix):
    return matrix + DAMPING * matrix.diagonal().abs().mean() * torch.eye(
        len(matrix), dtype=torch.float64
    )


def test_gptq_of_inputs_is_that_of_the_inputs_second_moment():
    """The inputs of W_in by a hook of its own; every row rounded column by column."""
    problem, found = measured("quantisation", HEADS, ["W_in"], bits=[4])
    (weight,) = problem.layout.side(1, "W_in")
    module = problem.network.get_submodule(weight.parameter.removesuffix(".weight"))
    seen = []
    handle = module.register_forward_hook(
        lambda _, given, out: seen.append(given[0].detach().flatten(0, -2))
    )
    problem.network(problem.batch.inputs)
    handle.remove()
    gram = seen[-1].T @ seen[-1]
    held = problem.weight(1, "W_in").detach()
    scale, zero = grid_of(held, 15)
    upper = torch.linalg.cholesky(torch.linalg.inv(damped(gram))).T
    left = held.clone()
    rounded = torch.zeros_like(held)
    for column in range(held.shape[1]):
        one = left[:, column : column + 1]
        rounded[:, column : column + 1] = on_grid(one, scale, zero, 15)
        error = (one - rounded[:, column : column + 1]) / upper[column, column]
        left[:, column:] -= error * upper[column, column:]
    (given,) = values(found, f"gptq_{Surrogate.inputs}_increase")
    assert given == pytest.approx(rises(problem, "W_in", [rounded])[0], abs=1e-10)


def test_all_ways_of_rounding_have_rows_and_sixteen_bits_cost_nearly_nothing():
    _, found = measured("quantisation", HEADS, ["all"], bits=[16, 2])
    assert {row["quantity"] for row in found.rows} == {
        f"{name}_increase" for name in ROUNDINGS
    }
    assert max(abs(row["value"]) for row in found.rows if row["index"] == 16) < 1e-3


def test_a_block_without_a_matrix_is_not_rounded():
    with pytest.raises(UserError, match=r"block \(biases, biases\) .*has no matrix"):
        measured("quantisation", ARCHITECTURES["post"], ["biases"])


def test_weights_that_change_nothing_have_equal_ranks(monkeypatch):
    """A shift of all keys moves no pattern: what removing b_K changes is rounding, and has no rank correlation.

    How much rounding there is, if any, depends on the processor: some roundings of the
    loss are added to every rise.
    """
    plain = compression._Pruned._rise

    def rounded(self, points):
        found = plain(self, points)
        roundings = torch.randn(found.shape, generator=torch.Generator().manual_seed(0))
        return (
            found
            + 4
            * torch.finfo(torch.float64).eps
            * self.subject.before
            * roundings.double()
        )

    monkeypatch.setattr(compression._Pruned, "_rise", rounded)
    _, found = measured("pruning", HEADS, ["b_K", "biases"], biases=True, shares=[0.5])
    assert 0 < np.abs(found.arrays["1_b_K_increase"]).max() < 1e-14
    correlations = [
        row
        for row in found.rows
        if row["quantity"].endswith("_correlation") and row["row"] == "b_K"
    ]
    assert correlations
    assert all(np.isnan(row["value"]) for row in correlations)
    whole = found.arrays["1_biases_increase"]
    names = found.arrays["1_biases_weights"]
    ends = np.cumsum([0, *found.arrays["1_biases_sizes"]])
    place = slice(*ends[names.index("b_K") : names.index("b_K") + 2])
    saliencies = {
        name: found.arrays[f"1_biases_{name}"].copy()
        for name in ("magnitude", "obs_kfac")
    }
    for name, one in saliencies.items():
        given = next(
            row["value"]
            for row in found.rows
            if row["quantity"] == f"{name}_correlation" and row["row"] == "biases"
        )
        rises = whole.copy()
        rises[place] = 0.0
        assert given == pytest.approx(spearmanr(one, rises).statistic, abs=1e-12)


def test_ties_share_their_rank():
    generator = np.random.default_rng(0)
    one = generator.integers(0, 4, 30)
    other = generator.integers(0, 4, 30)
    found = spearman(
        torch.tensor(one, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    )
    assert found == pytest.approx(spearmanr(one, other).statistic, abs=1e-12)


def test_predictions_of_rounding_are_those_of_dense_matrices():
    """Rises, traces and quadratic forms of four weights by plain autograd, and their rank correlations by SciPy."""
    names = ["W_Q", "W_K", "W_V", "W_O"]
    problem, found = measured("rounding", HEADS, names, bits=[3])
    oracle = dense_oracle(problem, 1, names)[Part.H]
    seen = {}
    network = copy.deepcopy(problem.network).requires_grad_(True)
    moving = Objective(network, problem.batch, problem.loss, problem.layout)
    with torch.enable_grad():
        loss_of(moving).backward()
    for name in names:
        held = problem.weight(1, name).detach()
        matrix = oracle[name, name]
        rounded = on_grid(held, *grid_of(held, 7), 7)
        step = (rounded - held).flatten()
        (rise,) = rises(problem, name, [rounded])
        bent = float(step @ matrix @ step) / 2
        mean = float(step.square().mean())
        slope = moving.weight(1, name).grad
        assert slope is not None
        seen[name] = {
            "rounding_increase": rise,
            "hawq_prediction": float(matrix.trace()) * mean,
        }
        seen[name] |= {
            "quadratic_prediction": bent,
            "taylor_prediction": float(slope.flatten() @ step) + bent,
        }
    for quantity_name in seen["W_Q"]:
        expected = [seen[name][quantity_name] for name in names]
        np.testing.assert_allclose(
            values(found, quantity_name), expected, rtol=1e-8, atol=1e-10
        )
        if quantity_name != "rounding_increase":
            ranks = spearmanr(
                expected, [seen[name]["rounding_increase"] for name in names]
            ).statistic
            got = values(found, quantity_name.replace("prediction", "rank_correlation"))
            np.testing.assert_allclose(got, [ranks], atol=1e-12)
    assert all(value > 0 for value in values(found, "fisher_prediction"))
