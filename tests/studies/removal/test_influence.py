"""Influence against trainings and dense matrices by hand: the truth, its predictions, and the score."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from hessfig.config.enums import DType, Schedule, TrainingData
from hessfig.config.of_quantities import ApproximationConfig
from hessfig.curvature.losses import per_sample
from hessfig.errors import UserError
from hessfig.rng import probe_stream
from hessfig.states.initialised import initialised
from hessfig.studies.removal.influence import retrained, score
from hessfig.studies.removal.row_names import INFLUENCES
from hessfig.sweep.measure import compute_cell, draw_problem, request_of
from hessfig.sweep.plan import Sweep
from hessfig.tasks.examples import unseen_batch
from hessfig.terms import Optimiser, Part
from tests.curvature.oracle import whole_oracle
from tests.tensors import flat
from tests.toys import training_config

COUNT = 8
RATE = 0.3
STEPS = 7
SUBSETS = 5
LEFT = 3


def config(folder, **settings):
    chosen = {
        "optimiser": Optimiser.gd,
        "data": TrainingData.fixed,
        "learning_rate": RATE,
        "warmup": 0,
        "schedule": Schedule.constant,
        **settings,
    }
    made = training_config(
        folder, step=[STEPS], steps=STEPS, evaluation_size=4, weight_decay=0.0, **chosen
    )
    made.task.batch_size = COUNT
    made.training.dtype = DType.float64
    made.blocks = ["all"]
    made.approximation = ApproximationConfig(subsets=SUBSETS, left_out=0.4)
    made.quantities = ["influence"]
    return made


def cell_of(made):
    return Sweep([("", made)]).cells[0]


def losses(objective, batch):
    network = objective.network
    return per_sample(
        objective.loss, network(batch.inputs)[:, batch.scored], batch.targets
    )


def descended(request, kept):
    """Return the problem after plain gradient descent on some of its samples."""
    start = initialised(request.at.config, sigma=request.at.sigma, seed=request.at.seed)
    batch = start.batch
    network = start.network.requires_grad_(True)
    for _ in range(STEPS):
        with torch.enable_grad():
            outputs = network(batch.inputs[kept])[:, batch.scored]
            slopes = torch.autograd.grad(
                start.loss(outputs, batch.targets[kept]), list(network.parameters())
            )
        with torch.no_grad():
            for parameter, slope in zip(network.parameters(), slopes, strict=True):
                parameter -= RATE * slope
    return start


def slopes_of(objective, batch):
    """Return the gradients of single samples in the layout's order."""
    held = dict(objective.network.requires_grad_(True).named_parameters())
    at = [held[weight.parameter] for weight in objective.layout.weights]
    rows = []
    with torch.enable_grad():
        for one in losses(objective, batch):
            rows.append(flat(torch.autograd.grad(one, at, retain_graph=True)))
    return torch.stack(rows)


def mean_rank_correlation(predicted, true):
    pairs = zip(predicted, true, strict=True)
    return float(np.mean([spearmanr(one, other).statistic for one, other in pairs]))


def test_scores_are_those_of_trainings_and_matrices_by_hand(tmp_path):
    cell = cell_of(config(tmp_path))
    found = compute_cell(cell)
    problem = draw_problem(cell)
    request = request_of(cell, problem)
    tests = unseen_batch(cell.config.task, 4, DType.float64)
    drawn = probe_stream(cell.seed, "influence", cell.sigma, 0, "subsets", step=STEPS)
    left = [torch.randperm(COUNT, generator=drawn)[:LEFT] for _ in range(SUBSETS)]
    assert len({frozenset(some.tolist()) for some in left}) == SUBSETS  # no ties
    kept = [
        torch.tensor([one for one in range(COUNT) if one not in some.tolist()])
        for some in left
    ]
    with torch.no_grad():
        before = losses(problem, tests)
        true = torch.stack(
            [losses(descended(request, one), tests) - before for one in kept], dim=1
        )
    assert found.arrays["true"] == pytest.approx(true.numpy(), rel=1e-8, abs=1e-12)
    each = slopes_of(problem, problem.batch)
    seen = slopes_of(problem, tests)
    whole = whole_oracle(problem)
    outer = whole[Part.H_o].diagonal()
    matrices = {
        "hessian": whole[Part.H],
        "gauss_newton": whole[Part.H_o],
        "diagonal": outer.diag(),
    }
    matrices["identity"] = torch.zeros_like(whole[Part.H])
    by_name = {row["quantity"]: row for row in found.rows}
    for name, matrix in matrices.items():
        shift = (
            torch.eye(len(matrix)).double()
            * outer.mean()
            * cell.config.compression.damping
        )
        removed = torch.stack(
            [each[some].sum(dim=0) / (COUNT - LEFT) for some in left], dim=1
        )
        predicted = seen @ torch.linalg.solve(matrix + shift, removed)
        assert by_name[f"{name}_influence_score"]["value"] == pytest.approx(
            mean_rank_correlation(predicted, true), rel=1e-8
        )
        error = float((matrix - whole[Part.H]).norm() / whole[Part.H].norm())
        assert by_name[f"{name}_influence_error"]["value"] == pytest.approx(
            error, rel=1e-8, abs=1e-8
        )
    assert by_name["influence_spread"]["value"] == pytest.approx(
        float(true.square().mean().sqrt()), rel=1e-8
    )
    assert {f"{name}_influence_score" for name in INFLUENCES} < set(by_name)


def test_with_all_samples_the_training_is_that_of_the_state(tmp_path):
    cell = cell_of(config(tmp_path, optimiser=Optimiser.adamw, batch_size=COUNT))
    problem = draw_problem(cell)
    again = retrained(request_of(cell, problem), torch.arange(COUNT))
    for one, other in zip(
        problem.network.parameters(), again.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_the_jackknife_of_a_score():
    torch.manual_seed(2)
    true = torch.randn(3, 9).double()
    predicted = true + torch.randn(3, 9).double()
    kept = [[one for one in range(9) if one != left] for left in range(9)]
    single = [mean_rank_correlation(predicted[:, k], true[:, k]) for k in kept]
    found = score(predicted, true)
    values = torch.tensor(single)
    assert found.error == pytest.approx(
        float((values - values.mean()).square().sum() * 8 / 9) ** 0.5
    )
    assert score(true, true).value == pytest.approx(1)


@pytest.mark.parametrize(
    "setting",
    [{"data": TrainingData.fresh, "optimiser": Optimiser.adamw}, {"batch_size": 2}],
)
def test_trainings_that_do_not_see_all_samples(tmp_path, setting):
    with pytest.raises(UserError, match=r"influence[\s\S]*training.data=fixed"):
        cell_of(config(tmp_path, **{"optimiser": Optimiser.adamw, **setting}))
