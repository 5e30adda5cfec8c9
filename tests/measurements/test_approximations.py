"""Approximations of blocks against their definitions, computed densely by other code; probes; theorem; refusals."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from curvlinops import EKFACLinearOperator, KFACLinearOperator
from scipy.linalg import polar
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev

from hessfig.config.enums import Data, Kind, Method
from hessfig.config.of_quantities import ApproximationConfig
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.config.training_settings import TrainingConfig
from hessfig.curvature.approximations.matrices import best_kronecker_sum
from hessfig.curvature.approximations.named import Material, SampleGradients
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError
from hessfig.measurements.approximable import check_approximations
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import At, asked_of
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import kind
from hessfig.rng import probe_stream, stream
from hessfig.states.stored_states import moments
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from hessfig.terms import MLP, PARTS, Approximation, Attention, Matrix, Need, Norm, Part
from tests.curvature.oracle import dense_oracle
from tests.toys import ARCHITECTURES, toy_problem, toy_task, training_config

A = Approximation
BATCH_SIZE = 5
VIT = ModelConfig(
    kind=Kind.vit, d_model=4, n_heads=2, d_mlp=5, patch=4, norm=Norm.post, mlp=MLP.gelu
)
SHARED = ModelConfig(d_model=4, n_heads=4, n_kv_heads=2, d_mlp=5, mlp=MLP.gelu)
PICTURES = TaskConfig(data=Data.digits, batch_size=4)
NETWORKS: dict[str, tuple[ModelConfig, TaskConfig, list[Matrix]]] = {
    "bare": (
        ARCHITECTURES["bare"],
        toy_task(ARCHITECTURES["bare"]),
        [Matrix.W_Q, Matrix.W_V],
    ),
    "transformer": (
        ARCHITECTURES["heads"],
        toy_task(ARCHITECTURES["heads"]),
        [Matrix.W_Q, Matrix.W_V, Matrix.W_O, Matrix.W_in],
    ),
    "shared keys": (
        SHARED,
        toy_task(SHARED),
        [Matrix.W_Q, Matrix.W_K, Matrix.W_V, Matrix.W_O],
    ),
    "vit": (VIT, PICTURES, [Matrix.W_K, Matrix.W_V, Matrix.W_out]),
    "mlp": (
        ModelConfig(kind=Kind.mlp, d_model=2, d_mlp=4, mlp=MLP.gelu),
        toy_task(ARCHITECTURES["softmax"]),
        [Matrix.W_in],
    ),
}
HEADED = (Matrix.W_Q, Matrix.W_K, Matrix.W_V, Matrix.W_O)
Values = dict[tuple[str, str, str], tuple[float, float | None]]


def rows(objective: Objective, config: Config, *, seed: int = 1234) -> Values:
    """Return (value, error) of every number by (weight, part, quantity)."""
    asked = asked_of(
        quantity("approximations"),
        blocks_of(config.blocks, objective.layout, config.model),
        At(config, sigma=0.7, seed=seed),
    )
    found = quantity("approximations").measured(objective, asked).rows
    return {
        (row["row"], row["part"], row["quantity"]): (row["value"], row["error"])
        for row in found
    }


def settings(
    model: ModelConfig,
    task: TaskConfig,
    blocks: Any,
    *names: Approximation,
    **more: Any,
) -> Config:
    """Return the settings of a run."""
    return Config(
        model=model,
        task=task,
        blocks=blocks,
        approximation=ApproximationConfig(names=list(names)),
        training=TrainingConfig(batch_size=BATCH_SIZE),
        **{"estimator": EstimatorConfig(Method.auto), **more},
    )


class Scored(nn.Module):
    """The network's outputs at its scored positions, evaluated at all of them."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.network, self.scored = objective.network, objective.batch.scored

    def forward(self, inputs: Tensor) -> Tensor:
        return self.network.from_hidden(self.network.hidden(inputs, 0), 0, slice(None))[
            :, self.scored
        ]


class Oracle:
    """All approximations of one block by definition: dense Jacobians and Hessians of torch.func, loops over samples."""

    def __init__(self, objective: Objective, name: Matrix, heads: int) -> None:
        self.problem, self.name, self.heads = objective, name, heads
        self.body = Scored(objective)
        (self.weight,) = objective.layout.side(1, name)
        self.path = f"network.{self.weight.parameter}"
        self.at = objective.weight(1, name).detach().clone()
        self.m, self.n = self.at.shape
        self.block = {
            part: blocks[name, name]
            for part, blocks in dense_oracle(objective, 1, [name]).items()
        }
        self.outputs = self.of(self.at).detach()
        self.terms = (
            self.outputs.numel()
            if objective.batch.targets.is_floating_point()
            else self.outputs[..., 0].numel()
        )

    def of(self, weight: Tensor) -> Tensor:
        """Return the outputs (batch, scored, width) at a weight."""
        return functional_call(
            self.body, {self.path: weight}, (self.problem.batch.inputs,)
        )

    def matrices(self) -> dict[Approximation, Tensor]:
        """Return every approximation that is not made of the block itself, as a matrix."""
        shares = self.shares()
        mean, count = shares.sum(0), len(shares)
        moment = mean**2 + (count * (shares**2).sum(0) - mean**2) / BATCH_SIZE
        G, each = mean.view(self.m, self.n), shares.view(-1, self.m, self.n) * count
        spread_left, spread_right = (
            g @ g.T
            + (sum(one @ one.T for one in singles) / count - g @ g.T) / BATCH_SIZE
            for g, singles in ((G, each), (G.T, each.mT))
        )
        self.factors = spread_left, spread_right
        left, right, reduced = self.kfac()
        Q = torch.kron(torch.linalg.eigh(left)[1], torch.linalg.eigh(right)[1])
        drawn = self.drawn()
        return {
            A.adam_expected: moment.sqrt().diag(),
            A.adam_mini: moment.mean().sqrt()
            * torch.eye(len(moment), dtype=torch.float64),
            A.adam_mini_head: self.by_head(moment).diag(),
            A.empirical_fisher: self.terms * shares.T @ shares,
            A.sampled_fisher: drawn.T @ drawn,
            A.muon: torch.kron(
                torch.from_numpy(polar(G.numpy(), "left")[1]),
                torch.eye(self.n, dtype=torch.float64),
            ),
            A.shampoo: torch.kron(power(spread_left, 0.5), power(spread_right, 0.5)),
            A.kfac: torch.kron(left, right),
            A.kfac_reduce: reduced,
            A.ekfac: Q @ (Q.T @ self.block[Part.H_o] @ Q).diagonal().diag() @ Q.T,
        }

    def of_block(self, block: Tensor, rank: int) -> dict[Approximation, Tensor]:
        """Return the approximations that are made of the block."""
        Q = torch.kron(*(torch.linalg.eigh(one)[1] for one in self.factors))
        return {
            A.diagonal: block.diagonal().diag(),
            A.soap: Q @ (Q.T @ block @ Q).diagonal().diag() @ Q.T,
            A.kfoc: self.nearest(block, 1),
            A.kronecker_sum: self.nearest(block, rank),
        }

    def nearest(self, block: Tensor, rank: int) -> Tensor:
        """Return the nearest sum of Kronecker products by the singular vectors of the rearranged matrix, in a loop."""
        size = self.n
        cut = [
            block[i * size : (i + 1) * size, j * size : (j + 1) * size].reshape(-1)
            for i in range(self.m)
            for j in range(self.m)
        ]
        U, S, Vh = torch.linalg.svd(torch.stack(cut), full_matrices=False)
        terms = [
            S[k] * torch.kron(U[:, k].view(self.m, self.m), Vh[k].view(size, size))
            for k in range(min(rank, len(S)))
        ]
        return torch.stack(terms).sum(0)

    def shares(self) -> Tensor:
        """Return each sample's part of the gradient, from the Jacobian of all outputs."""
        J = jacrev(self.of)(self.at).flatten(-2)
        leaf = self.outputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(
            self.problem.loss(leaf, self.problem.batch.targets), leaf
        )
        return torch.einsum("bpcd,bpc->bd", J, slope)

    def drawn(self) -> Tensor:
        """Return gradients at labels of the run's stream."""
        J = jacrev(self.of)(self.at).flatten(-2)
        generator = probe_stream(1234, "approximations", 0.7, 0, "labels", step=None)
        if self.problem.batch.targets.is_floating_point():
            z = torch.randn(
                self.outputs.shape, dtype=torch.float64, generator=generator
            )
            return torch.einsum("bpcd,bpc->bd", J, z * (2 / self.terms) ** 0.5)
        p = self.outputs.softmax(-1)
        labels = torch.multinomial(p.flatten(0, 1), 1, generator=generator).view(
            p.shape[:2]
        )
        slope = p - torch.eye(p.shape[-1], dtype=torch.float64)[labels]
        return torch.einsum("bpcd,bpc->bd", J, slope) / self.terms**0.5

    def kfac(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return both factors and K-FAC-reduce, from the Gauss-Newton matrix of shifts of the map's outputs."""
        module = self.problem.network.get_submodule(
            self.weight.parameter.removesuffix(".weight")
        )
        seen: dict[str, Tensor] = {}

        def shifted(shift: Tensor) -> Tensor:
            handle = module.register_forward_hook(
                lambda m, given, out: seen.update(x=given[0]) or out + shift
            )
            try:
                return self.body(self.problem.batch.inputs)
            finally:
                handle.remove()

        out = []
        probe = module.register_forward_hook(
            lambda m, given, found: out.append(found.shape)
        )
        self.body(self.problem.batch.inputs)
        probe.remove()
        J = torch.autograd.functional.jacobian(
            shifted, torch.zeros(out[0], dtype=torch.float64)
        )
        J = J.reshape(self.outputs.numel(), -1)
        targets = self.problem.batch.targets
        H = hessian(lambda f: self.problem.loss(f, targets))(self.outputs).reshape(
            len(J), len(J)
        )
        batch, size = out[0][0], out[0][-1]
        whole = (J.T @ H @ J).reshape(
            batch, -1, size, batch, out[0][1:-1].numel(), size
        )
        x = seen["x"].detach().reshape(batch, -1, self.n)
        uses = x.shape[1]
        left = sum(whole[b, t, :, b, t] for b in range(batch) for t in range(uses))
        together = sum(
            whole[b, t, :, b, s]
            for b in range(batch)
            for t in range(uses)
            for s in range(uses)
        )
        tokens, means = x.reshape(-1, self.n), x.mean(1)
        right = tokens.T @ tokens / len(tokens)
        return left, right, torch.kron(together, means.T @ means / batch)

    def by_head(self, moment: Tensor) -> Tensor:
        """Return the root of each head's mean second moment at the places of its entries."""
        square = moment.view(self.m, self.n)
        along = square.T if self.name == Matrix.W_O else square
        held = torch.cat(
            [
                piece.mean().sqrt().expand(piece.shape)
                for piece in along.chunk(self.heads)
            ]
        )
        return (held.T if self.name == Matrix.W_O else held).reshape(-1)


def power(matrix: Tensor, exponent: float) -> Tensor:
    """Return a power of a semi-definite matrix, by its singular values."""
    U, S, Vh = torch.linalg.svd(matrix)
    return U @ (S**exponent).diag() @ (U.T if exponent else Vh)


def numbers(block: Tensor, made: Tensor) -> dict[str, float]:
    """Return the three numbers by their definitions."""
    size, overlap = block.norm(), (block * made).sum()
    # Shifts of all keys move no pattern: K-FAC-reduce of W_K is 0.
    if made.norm() < 1e-12 * size:
        return {"error": 1.0, "scale_error": 1.0, "angle": 0.0}
    return {
        "error": float((block - made).norm() / size),
        "scale_error": float(
            (block - overlap / (made * made).sum() * made).norm() / size
        ),
        "angle": float(overlap / size / made.norm()),
    }


@pytest.mark.parametrize("network", NETWORKS)
def test_every_approximation_is_what_its_definition_says(network: str) -> None:
    model, task, matrices = NETWORKS[network]
    problem = toy_problem(model, task)
    found = rows(problem, settings(model, task, [str(one) for one in matrices]))
    names = set()
    for matrix in matrices:
        is_shared = matrix in (Matrix.W_K, Matrix.W_V)
        oracle = Oracle(
            problem, matrix, (is_shared and model.n_kv_heads) or model.n_heads
        )
        given = oracle.matrices()
        for part in PARTS:
            if (matrix, part, "diagonal_error") not in found:
                # A structural zero has no relative error.
                assert float(oracle.block[part].abs().max()) < 1e-14
                continue
            for name, made in {
                **given,
                **oracle.of_block(oracle.block[part], 3),
            }.items():
                if name == A.adam_mini_head and (
                    network == "mlp" or matrix not in HEADED
                ):
                    continue
                for number, value in numbers(oracle.block[part], made).items():
                    measured, error = found.pop(
                        (str(matrix), part.value, f"{name}_{number}")
                    )
                    assert measured == pytest.approx(value, rel=1e-10, abs=1e-10), (
                        matrix,
                        part,
                        name,
                        number,
                    )
                    assert error == 0.0
                names.add(name)
    assert found == {}
    assert names >= {
        one for one in A if one.facts.needs in (Need.any, Need.matrix, Need.linear)
    }


@pytest.mark.parametrize("name", ["softmax", "two layers", "post"])
def test_kfac_sees_every_position_whether_it_is_scored_or_not(name: str) -> None:
    """Inputs are those that a plain call of the network gives each map; only outputs that are scored send back."""
    problem = toy_problem(ARCHITECTURES[name])
    (side,), seen = SampleGradients(problem, torch.Generator()).sides, {}
    maps = {
        path: one
        for path, one in problem.network.named_modules()
        if isinstance(one, nn.Linear)
    }
    for path, one in maps.items():
        one.register_forward_hook(
            lambda _, given, out, path=path: seen.update({path: given[0].detach()})
        )
    problem.network(problem.batch.inputs)
    given, checked = dict(seen), set()
    for weight in problem.layout.weights:
        if weight.is_main and (found := side.map_of([weight])) is not None:
            path = weight.parameter.removesuffix(".weight")
            signals = side.signals([weight])
            assert maps[path] is found.module
            torch.testing.assert_close(signals.inputs, given[path])
            assert signals.counts.all()
            assert not signals.sent_back[
                :, :, -1
            ].any()  # no scored output depends on the last position
            block = dense_oracle(problem, weight.layer, [weight.name])[Part.H_o][
                weight.name, weight.name
            ]
            J = (signals.sent_back.mT @ signals.inputs).flatten(0, 1).flatten(1)
            torch.testing.assert_close(J.T @ J, block, rtol=1e-10, atol=1e-12)
            checked.add(path)
    assert checked == set(maps)


class Called(nn.Module):
    """A network of the package as one's own: called whole, and cut to its scored positions afterwards."""

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.net, self.scored = objective.network, objective.batch.scored

    def forward(self, tokens: Tensor) -> Tensor:
        return self.net(tokens)[:, self.scored]


def test_the_same_network_as_one_s_own_has_the_same_approximations() -> None:
    import hessfig.api.interface as interface

    model, names = ARCHITECTURES["heads"], ["W_Q", "W_V", "W_O", "W_U"]
    problem = toy_problem(model)
    found = rows(problem, settings(model, toy_task(model), names))
    paths = {
        name: problem.layout.side(name != "W_U", name)[0].parameter for name in names
    }
    weights = {name: f"net.{path}" for name, path in paths.items()}
    own = interface.Problem(
        Called(problem),
        problem.batch.inputs,
        problem.batch.targets,
        loss=problem.loss,
        weights=weights,
    )
    table = interface.measure(
        own, blocks=names, quantities="approximations", parts=["H", "H_o"]
    )
    known = [
        row
        for row in table.itertuples()
        if not row.quantity.startswith(("sampled", "adam", "shampoo", "soap"))
    ]
    assert {row.quantity for row in known} >= {
        "kfac_error",
        "kfac_reduce_error",
        "ekfac_error",
        "kfoc_error",
    }
    for row in known:  # without labels of a stream and mini-batches of a training
        assert row.value == pytest.approx(
            found[row.row, row.part, row.quantity][0], rel=1e-9, abs=1e-9
        )


class Transposed(nn.Module):
    """A network that puts positions before samples inside, as torch's own attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, rows: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(rows.transpose(0, 1))).mean(0))


def test_inputs_that_are_not_sample_by_sample_are_refused() -> None:
    import hessfig.api.interface as interface

    rows = torch.randn(
        4, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    problem = interface.Problem(Transposed().double(), rows, torch.tensor([0, 1, 1, 0]))
    with pytest.raises(
        UserError,
        match=r"the first axis of first\.weight.s inputs does not run over samples",
    ):
        interface.measure(
            problem, blocks=["first.weight"], quantities="approximations", parts="H_o"
        )
    table = interface.measure(
        problem, blocks=["last.weight"], quantities="approximations", parts="H_o"
    )
    assert "ekfac_error" in set(table["quantity"])


def test_a_map_whose_weight_is_used_without_a_call_has_no_kfac() -> None:
    """The convolutions hold their weights in linear maps that are never called."""
    model = ModelConfig(kind=Kind.cnn, n_heads=1, d_mlp=2, mlp=MLP.gelu)
    task = replace(PICTURES, batch_size=2)
    found = rows(toy_problem(model, task), settings(model, task, ["W@1", "W_U"]))
    names = {
        (weight, name.removesuffix("_error"))
        for weight, part, name in found
        if name.endswith("_error")
    }
    assert {weight for weight, name in names if name == "kfac"} == {"W_U"}
    assert ("W", "shampoo") in names
    with pytest.raises(
        UserError,
        match="Linear that the network calls, and no convolution with groups=1, holds W whole",
    ):
        rows(toy_problem(model, task), settings(model, task, ["W@1"], A.kfac))


@pytest.mark.parametrize("approximation", ["expand", "reduce", "eigenvalues"])
@pytest.mark.parametrize("name", [Matrix.W_Q, Matrix.W_in, Matrix.W_U])
def test_factors_are_those_of_curvlinops(name: Matrix, approximation: str) -> None:
    """With one scored position curvlinops' factors are exact too; with several it adds them up before it squares."""
    problem = toy_problem(VIT, PICTURES)

    (weight,) = problem.layout.side(1, name)
    parameter = problem.network.get_parameter(weight.parameter).requires_grad_()
    logits = nn.Sequential(Scored(problem), nn.Flatten())
    kind_of = (
        EKFACLinearOperator if approximation == "eigenvalues" else KFACLinearOperator
    )
    theirs = kind_of(
        logits,
        nn.CrossEntropyLoss(),
        [parameter],
        [(problem.batch.inputs, problem.batch.targets.flatten())],
        fisher_type="type-2",
        kfac_approx="reduce" if approximation == "reduce" else "expand",
        check_deterministic=False,
    )
    chosen = {"expand": A.kfac, "reduce": A.kfac_reduce, "eigenvalues": A.ekfac}[
        approximation
    ]
    ours = Material(
        SampleGradients(problem, stream(0, "labels")), [weight], parameter.shape
    ).approximation(chosen)
    identity = torch.eye(parameter.numel(), dtype=torch.float64)
    torch.testing.assert_close(
        ours.matmat(identity), theirs @ identity, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("attention", [Attention.softmax, Attention.linear])
@pytest.mark.parametrize(("seed", "batch_size"), [(0, 1), (1, 4), (2, 9)])
def test_the_value_block_is_one_kronecker_product_and_kfac_is_another(
    attention: Attention, seed: int, batch_size: int
) -> None:
    model = replace(ARCHITECTURES["bare"], attention=attention)
    task = toy_task(model, seed=seed, batch_size=batch_size)
    found = rows(
        toy_problem(model, task), settings(model, task, ["W_V", "W_Q"], A.kfoc, A.kfac)
    )
    errors = {
        key[0]: found[key][0] for key in found if key[1:] == ("H_o", "kfoc_error")
    }
    assert errors["W_V"] < 1e-12
    assert (errors["W_Q"] > 1e-3) == (attention == Attention.softmax or batch_size > 1)
    assert found["W_V", "H_o", "kfac_scale_error"][0] > 0.05


def test_the_whole_taken_apart_by_weight_and_by_layer() -> None:
    model = replace(ARCHITECTURES["pre"], d_model=2, d_mlp=3)
    task = toy_task(model)
    problem = toy_problem(model, task)
    chosen = [A.block_diagonal, A.layer_diagonal]
    found = rows(
        problem,
        settings(
            model, task, ["all"], *chosen, estimator=EstimatorConfig(Method.dense)
        ),
    )
    side = problem.layout.side(0, "all")
    whole = quantity_matrix(problem)
    at, places = 0, {}
    for number, weight in enumerate(side):
        places[number] = range(at, at + weight.size)
        at += weight.size
    for name in chosen:
        keys = [
            w.layer if w.layer and name == A.layer_diagonal else -1 - number
            for number, w in enumerate(side)
        ]
        mask = torch.zeros_like(whole)
        for i, first in enumerate(keys):
            for j, second in enumerate(keys):
                if first == second:
                    mask[
                        places[i].start : places[i].stop,
                        places[j].start : places[j].stop,
                    ] = 1
        for number, value in numbers(whole, whole * mask).items():
            assert found["all", "H", f"{name}_{number}"][0] == pytest.approx(
                value, abs=1e-10
            )
    assert (
        found["all", "H", "layer_diagonal_error"][0]
        < found["all", "H", "block_diagonal_error"][0]
    )


def quantity_matrix(objective: Objective) -> Tensor:
    """Return H of all parameters, by plain double backward, a column at a time."""
    from hessfig.curvature.gradients import LossGradient

    slope = LossGradient(objective)
    order = dict(
        zip(dict(objective.network.named_parameters()), range(10_000), strict=False)
    )
    sizes = [one.numel() for one in objective.network.parameters()]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    index = torch.cat(
        [
            torch.arange(
                starts[order[w.parameter]], starts[order[w.parameter]] + w.size
            )
            for w in objective.layout.side(0, "all")
        ]
    )
    columns = [
        slope.product(one) for one in torch.eye(int(starts[-1]), dtype=torch.float64)
    ]
    return torch.stack(columns)[index][:, index]


@pytest.mark.long
def test_errors_of_probes_are_calibrated() -> None:
    model = ARCHITECTURES["heads"]
    task = toy_task(model)
    problem = toy_problem(model, task)
    names = [A.kfac, A.diagonal, A.soap, A.shampoo, A.empirical_fisher]
    exact = rows(problem, settings(model, task, ["W_V"], *names))
    probed = settings(
        model,
        task,
        ["W_V"],
        *names,
        estimator=EstimatorConfig(Method.hutchinson, num_probes=40),
    )
    off: dict[str, list[float]] = {}
    for seed in range(40):
        for key, (value, error) in rows(problem, probed, seed=seed).items():
            if not key[2].startswith("sampled"):
                off.setdefault(key[2], []).append(
                    (value - exact[key][0]) / (error or math.nan)
                )
    for key, deviations in off.items():
        assert abs(np.median(deviations)) < 0.5, key
        assert 0.6 < np.sqrt(np.mean(np.square(deviations))) < 1.7, key


def test_a_fitted_sum_finds_a_kronecker_product_and_beats_no_best_one() -> None:
    model = ARCHITECTURES["bare"]
    task = toy_task(model)
    problem = toy_problem(model, task)
    config = settings(
        model,
        task,
        ["W_V", "W_Q"],
        A.kfoc,
        estimator=EstimatorConfig(Method.hutchinson, num_probes=30),
    )
    found = rows(problem, config)
    exact = rows(problem, settings(model, task, ["W_V", "W_Q"], A.kfoc))
    assert found["W_V", "H_o", "kfoc_error"][0] < 1e-6
    for key in (("W_Q", "H_o", "kfoc_error"), ("W_Q", "H", "kfoc_error")):
        value, error = found[key]
        assert exact[key][0] - 3 * (error or 0) < value < 2 * exact[key][0]


def test_a_sum_of_as_many_kronecker_products_as_there_are_is_the_matrix() -> None:
    matrix = torch.randn(
        12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    for shape in ((3, 4), (4, 3), (1, 12)):
        made = best_kronecker_sum(matrix, shape, 16).matmat(
            torch.eye(12, dtype=torch.float64)
        )
        torch.testing.assert_close(made, matrix, rtol=0, atol=1e-12)


def test_adam_is_the_root_of_the_stored_moment(tmp_path: Path) -> None:
    config = training_config(
        tmp_path,
        step=[0, 20],
        quantities=["approximations"],
        approximation=ApproximationConfig(names=[A.adam]),
    )
    before, after = Sweep([("", config)]).cells[:2]
    assert compute_cell(before).rows == []
    found = {
        (row["part"], row["quantity"]): row["value"] for row in compute_cell(after).rows
    }
    kept = moments(config, sigma=after.sigma, seed=after.seed, step=20)[
        "exp_avg_sq/layers.0.attn.v.weight"
    ].double()
    made = (
        ((kept / (1 - config.training.betas[1] ** 20)).sqrt() + config.training.eps)
        .flatten()
        .diag()
    )
    from hessfig.sweep.measure import draw_problem

    block = dense_oracle(draw_problem(after), 1, [Matrix.W_V])
    for part in PARTS:
        for number, value in numbers(block[part][Matrix.W_V, Matrix.W_V], made).items():
            assert found[part.value, f"adam_{number}"] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("blocks", "name", "match"),
    [
        (["ln1_gain"], A.kfac, "of the weight of one matrix"),
        (["W_E"], A.ekfac, "a table of embeddings"),
        (["attention"], A.shampoo, "of the weight of one matrix"),
        (["W_in"], A.adam_mini_head, "not cut into heads"),
        (["W_V"], A.adam, "a training with adam or adamw"),
        (["W_V"], A.block_diagonal, "the whole network"),
        (["all"], A.kfoc, "of the weight of one matrix"),
    ],
)
def test_what_a_block_cannot_have_is_refused_by_name(
    blocks: list[str], name: Approximation, match: str
) -> None:
    model = replace(ARCHITECTURES["pre"], n_layers=1)
    config = settings(model, toy_task(model), blocks, name)
    with pytest.raises(UserError, match=match) as caught:
        check_approximations(config, kind(model.kind).layout(config))
    assert f"{name} of block" in str(caught.value)


@pytest.mark.parametrize(
    ("estimator", "match"),
    [
        (EstimatorConfig(Method.xtrace), "norms alone"),
        (EstimatorConfig(Method.hutchinson, num_probes=2), "too few"),
    ],
)
def test_estimators_that_do_not_serve_are_refused(
    estimator: EstimatorConfig, match: str
) -> None:
    model = ARCHITECTURES["softmax"]
    config = settings(model, toy_task(model), ["W_V"], estimator=estimator)
    with pytest.raises(UserError, match=match):
        quantity("approximations").check_settings(
            config, kind(model.kind).layout(config)
        )


def test_a_module_that_is_no_linear_map_is_refused_at_its_measurement() -> None:
    import hessfig.api.interface as interface

    network = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 4))
    tokens = torch.randint(0, 5, (4, 2), generator=torch.Generator().manual_seed(0))
    problem = interface.Problem(network.double(), tokens, torch.tensor([0, 1, 2, 3]))
    table = interface.measure(problem, quantities="approximations", parts="H_o")
    named = {tuple(pair) for pair in table[["row", "quantity"]].itertuples(index=False)}
    assert ("2.weight", "kfac_error") in named and ("0.weight", "kfoc_error") in named
    assert ("0.weight", "kfac_error") not in named and (
        "2.bias",
        "muon_error",
    ) not in named
    assert table["value"].notna().all()
