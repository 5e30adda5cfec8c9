"""Quantity influence: the effect of leaving samples out of a training, by retraining and by curvature matrices."""

import math
import statistics
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessfig.config.enums import DType
from hessfig.curvature.approximations.named import SampleGradients
from hessfig.curvature.column import entries_of
from hessfig.curvature.losses import per_sample
from hessfig.curvature.problem import Objective, scored_outputs
from hessfig.measurements.eigenvalues import square_columns
from hessfig.measurements.quantity import (
    Estimate,
    Measured,
    Request,
    exact,
    state_row,
    state_rows,
)
from hessfig.measurements.stability import Trial
from hessfig.rng import one_thread
from hessfig.states.initialised import initialised
from hessfig.studies.removal.compression import PerturbedBlock, spearman
from hessfig.studies.removal.row_names import INFLUENCES, Surrogate
from hessfig.tasks.examples import training_batch, unseen_batch
from hessfig.terms import Approximation

SUBSETS = "subsets"
Changes = Float[Tensor, "tests subsets"]


def influence(objective: Objective, request: Request) -> Measured:
    """Return how well curvature matrices A of a block predict the effect of training without some samples.

    There are approximation.subsets random sets R, each a share approximation.left_out
    of the N samples. For each R, the training of the state is repeated without R; the
    true effect is the change of the loss of each held-out example. The prediction is
    g_test . (A + damping I)^-1 sum over R of g_i / (N - |R|), with gradients and A at
    the state. `NAME_influence_score`: Spearman's correlation over the sets, in the mean
    over the unseen examples (linear datamodelling score, arXiv 2303.14186), with a
    jackknife's standard error over the sets. `NAME_influence_error`:
    ||A - H|| / ||H|| in the Frobenius norm. NAME: hessian, gauss_newton; kfac, ekfac of the weights of linear maps,
    with the diagonal of the Gauss-Newton matrix elsewhere; that diagonal; identity, A =
    0. The damping, the same for all, is compression.damping times the mean of this
    diagonal. `influence_spread`: the root mean square of the true changes.
    """
    config = request.at.config
    count = len(objective.batch.inputs)
    unseen = unseen_batch(config.task, config.training.evaluation_size, config.dtype)
    tests = replace(objective, batch=unseen.to(objective.batch.inputs.device), more=())
    left_out = _subsets(request, count)
    before = _losses(objective.network, tests)
    with one_thread():
        networks = (retrained(request, _others(subset, count)) for subset in left_out)
        ends = [
            _losses(network.to(tests.batch.inputs.device, objective.dtype), tests)
            for network in networks
        ]
    true = torch.stack([end - before for end in ends], dim=1)
    rows = [state_row("influence_spread", request, float(true.square().mean().sqrt()))]
    for block, column in square_columns(objective, request):
        subject = PerturbedBlock(objective, request, block, column)
        each = _gradients(subject, objective)
        seen = _gradients(subject, tests)
        removed = torch.stack(
            [each[subset].sum(dim=0) / (count - len(subset)) for subset in left_out],
            dim=1,
        )
        for name, (matrix, error) in _matrices(
            subject, config.compression.damping
        ).items():
            scored = score(seen @ torch.linalg.solve(matrix, removed), true)
            numbers = {
                f"{name}_influence_score": scored,
                f"{name}_influence_error": exact(error),
            }
            rows += state_rows(request, numbers, block=block)
    return Measured(rows, {"true": true.numpy()})


def score(predicted: Changes, true: Changes) -> Estimate:
    """Return the mean over tests of Spearman's correlation over subsets, with a jackknife error over subsets."""
    count = true.shape[1]
    kept = ~torch.eye(count, dtype=torch.bool)
    folds = torch.tensor(
        [_mean_correlation(predicted[:, one], true[:, one]) for one in kept],
        dtype=torch.float64,
    )
    error = float((folds - folds.mean()).square().sum() * (count - 1) / count) ** 0.5
    return Estimate(_mean_correlation(predicted, true), error, count, SUBSETS)


def _mean_correlation(predicted: Changes, true: Changes) -> float:
    return statistics.fmean(
        spearman(*pair) for pair in zip(predicted, true, strict=True)
    )


def _matrices(
    subject: PerturbedBlock, damping: float
) -> dict[str, tuple[Tensor, float]]:
    """Return each matrix with damping, and its error, by name."""
    surrogates = subject.surrogates(
        [Surrogate.hessian, Surrogate.gauss_newton, Surrogate.kfac]
    )
    outer = surrogates[Surrogate.gauss_newton].diagonal()
    others = (
        subject.of_maps(Approximation.ekfac, outer),
        outer.diag(),
        torch.zeros(len(outer), len(outer)).double(),
    )
    shift = torch.eye(len(outer), dtype=torch.float64) * outer.mean() * damping
    hessian = surrogates[Surrogate.hessian]
    every = zip(INFLUENCES, (*surrogates.values(), *others), strict=True)
    return {
        name: (one + shift, float((one - hessian).norm() / hessian.norm()))
        for name, one in every
    }


def _subsets(request: Request, count: int) -> list[Int[Tensor, " k"]]:
    settings = request.at.config.approximation
    drawn = request.stream(0, SUBSETS)
    size = max(1, math.floor(settings.left_out * count))
    return [
        torch.randperm(count, generator=drawn)[:size] for _ in range(settings.subsets)
    ]


def _others(left: Int[Tensor, " k"], count: int) -> Int[Tensor, " m"]:
    kept = torch.ones(count, dtype=torch.bool)
    kept[left] = False
    return kept.nonzero().flatten()


def retrained(request: Request, kept: Int[Tensor, " m"]) -> nn.Module:
    """Return the network after training as for the state, but on some of the samples only."""
    at = request.at
    start = initialised(
        replace(at.config, dtype=DType.float64), sigma=at.sigma, seed=at.seed
    )
    whole = training_batch(at.config, seed=at.seed, step=1)
    part = whole.samples(kept)
    trial = Trial(start, at.config.training)
    for step in range(1, (at.step or 0) + 1):
        trial.step(step, part, seed=at.seed)
    return trial.network


def _losses(network: nn.Module, tests: Objective) -> Float[Tensor, " tests"]:
    batch = tests.batch
    with torch.no_grad():
        return (
            per_sample(
                tests.loss,
                scored_outputs(network, batch.inputs, batch.scored),
                batch.targets,
            )
            .double()
            .cpu()
        )


def _gradients(
    subject: PerturbedBlock, objective: Objective
) -> Float[Tensor, "samples dim"]:
    """Return the gradients of single samples with respect to the entries of the block."""
    shares = SampleGradients(objective, torch.Generator()).true
    count = len(objective.batch.inputs)
    each = [
        entries_of({name: one[sample] for name, one in shares.items()}, subject.side)
        for sample in range(count)
    ]
    return torch.stack(each) * count
