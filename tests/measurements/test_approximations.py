"""Approximations of blocks against their definitions, computed densely by other code; probes; theorem; refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import hessfig
from hessfig.config.enums import Data, Kind, Method
from hessfig.config.of_quantities import ApproximationConfig
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.curvature.approximations.matrices import best_kronecker_sum
from hessfig.curvature.approximations.named import Material, SampleGradients
from hessfig.errors import UserError
from hessfig.measurements.approximable import check_approximations
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import At, asked_of
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import kind
from hessfig.rng import probe_stream
from hessfig.states.stored_states import moments
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from hessfig.terms import MLP, PARTS, Approximation, Attention, Matrix, Need, Norm, Part
from tests.curvature.oracle import dense_oracle, whole_oracle
from tests.daily import daily
from tests.draws import draws
from tests.toys import ARCHITECTURES, toy_problem, toy_task, training_config

A = Approximation
VIT = ModelConfig(
    kind=Kind.vit, d_model=4, n_heads=2, d_mlp=5, patch=4, norm=Norm.post, mlp=MLP.gelu
)
SHARED = ModelConfig(d_model=4, n_heads=4, n_kv_heads=2, d_mlp=5, mlp=MLP.gelu)
PICTURES = TaskConfig(data=Data.digits, batch_size=4)
NETWORKS = {
    "bare": (
        ARCHITECTURES["bare"],
        toy_task(ARCHITECTURES["bare"]),
        [Matrix.W_Q, Matrix.W_V],
    ),
    "transformer": (
        ARCHITECTURES["heads"],
        toy_task(ARCHITECTURES["heads"]),
        [Matrix.W_Q, Matrix.W_O, Matrix.W_in],
    ),
    "shared keys": (SHARED, toy_task(SHARED), [Matrix.W_K, Matrix.W_V]),
    "vit": (VIT, PICTURES, [Matrix.W_K, Matrix.W_V, Matrix.W_out]),
    "mlp": (
        ModelConfig(kind=Kind.mlp, d_model=2, d_mlp=4, mlp=MLP.gelu),
        toy_task(ARCHITECTURES["softmax"]),
        [Matrix.W_in],
    ),
}


def rows(objective, config, *, seed=1234):
    """Return (value, error) of every number by (weight, part, quantity)."""
    asked = asked_of(
        quantity("approximations"),
        blocks_of(config.blocks, objective.layout, config.model),
        At(config, sigma=0.7, seed=seed),
    )
    found = quantity("approximations").measured(objective, asked).rows
    made = {}
    for row in found:
        made[(row["row"], row["part"], row["quantity"])] = (row["value"], row["error"])
    return made


def settings(model, task, blocks, *names, **more):
    """Return the settings of a run."""
    return Config(
        model=model,
        task=task,
        blocks=blocks,
        approximation=ApproximationConfig(names=list(names)),
        **{"estimator": EstimatorConfig(Method.auto), **more},
    )


class Scored(nn.Module):
    """The network's outputs at its scored positions, evaluated at all of them."""

    def __init__(self, objective):
        super().__init__()
        self.network = objective.network
        self.scored = objective.batch.scored

    def forward(self, inputs):
        return self.network.from_hidden(self.network.hidden(inputs, 0), 0, slice(None))[
            :, self.scored
        ]


def numbers(block, made):
    """Return the three numbers by their definitions."""
    size = block.norm()
    overlap = (block * made).sum()
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


def by_head(moment, name, heads):
    """Return the root of each head's mean second moment (m, n) at the places of its entries."""
    along = moment.T if name == Matrix.W_O else moment
    held = [one.mean().sqrt().expand(one.shape) for one in along.chunk(heads)]
    return (torch.cat(held).T if name == Matrix.W_O else torch.cat(held)).reshape(-1)


def as_ones_own(objective, names):
    """Return the problem of a network of the package, with weights of layer 1, as a user would give it."""
    of = {name: objective.layout.side(1, name)[0].parameter for name in names}
    return hessfig.Problem(
        Scored(objective),
        objective.batch.inputs,
        objective.batch.targets,
        loss=objective.loss,
        weights={name: f"network.{path}" for name, path in of.items()},
    )


# Made of the block itself, and so of every part anew.
OF_THE_BLOCK = {A.diagonal, A.soap, A.kfoc, A.kronecker_sum}


@pytest.mark.parametrize("network", daily(NETWORKS, "mlp"))
def test_every_number_is_that_of_the_matrices(network):
    """The matrices are those of the same network as one's own; test_identities compares these with definitions."""
    model, task, matrices = NETWORKS[network]
    problem = toy_problem(model, task)
    found = rows(problem, settings(model, task, [str(one) for one in matrices]))
    own = as_ones_own(problem, matrices)
    labels = probe_stream(1234, "approximations", 0.7, 0, "labels", step=None)
    drawn = SampleGradients(problem, labels)
    checked = set()

    def made(name, matrix, part):
        shape = problem.weight(1, matrix).shape
        if name == A.sampled_fisher:
            found = Material(
                drawn, list(problem.layout.side(1, matrix)), shape
            ).approximation(name)
            return found.matmat(torch.eye(shape.numel(), dtype=torch.float64))
        if name == A.adam_mini_head:
            root = own.approximation(A.adam_expected, matrix).dense().diagonal()
            is_shared = model.n_kv_heads and matrix in (Matrix.W_K, Matrix.W_V)
            heads = (model.n_kv_heads if is_shared else model.n_heads) or 1
            return by_head(root.square().view(shape), matrix, heads).diag()
        return own.approximation(name, matrix, part).dense()

    for matrix in matrices:
        whole = dict[Approximation, Tensor]()
        for part, blocks in dense_oracle(problem, 1, [matrix]).items():
            block = blocks[matrix, matrix]
            names = {
                A(name[:-6])
                for at, of, name in found
                if (at, of) == (matrix, part) and name.endswith("_angle")
            }
            # A structural zero has no relative error.
            assert names or float(block.abs().max()) < 1e-14
            for name in names:
                if name in OF_THE_BLOCK or name not in whole:
                    whole[name] = made(name, matrix, part)
                for number, value in numbers(block, whole[name]).items():
                    key = (matrix, part, f"{name}_{number}")
                    close = pytest.approx(value, rel=1e-9, abs=1e-9)
                    assert found.pop(key) == (close, 0.0), key
            checked |= names
    assert found == {}
    wanted = {
        one for one in A if one.facts.needs in (Need.any, Need.matrix, Need.linear)
    }
    assert checked >= wanted


class Transposed(nn.Module):
    """A network that puts positions before samples inside, as torch's own attention does."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, rows):
        return self.last(torch.tanh(self.first(rows.transpose(0, 1))).mean(0))


def test_inputs_that_are_not_sample_by_sample_are_refused():
    rows = draws(4, 5, 3)
    problem = hessfig.Problem(Transposed().double(), rows, torch.tensor([0, 1, 1, 0]))
    with pytest.raises(
        UserError,
        match=r"the first axis of first\.weight.s inputs does not run over samples",
    ):
        hessfig.measure(
            problem, blocks=["first.weight"], quantities="approximations", parts="H_o"
        )
    table = hessfig.measure(
        problem, blocks=["last.weight"], quantities="approximations", parts="H_o"
    )
    assert "ekfac_error" in set(table["quantity"])


def test_a_map_whose_weight_is_used_without_a_call_has_no_kfac():
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


@pytest.mark.parametrize("attention", [Attention.softmax, Attention.linear])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_the_value_block_is_one_kronecker_product_and_kfac_is_another(
    attention, batch_size
):
    model = replace(ARCHITECTURES["bare"], attention=attention)
    task = toy_task(model, batch_size=batch_size)
    found = rows(
        toy_problem(model, task), settings(model, task, ["W_V", "W_Q"], A.kfoc, A.kfac)
    )
    errors = {}
    for key in found:
        if key[1:] == ("H_o", "kfoc_error"):
            errors[key[0]] = found[key][0]
    assert errors["W_V"] < 1e-12
    assert (errors["W_Q"] > 1e-3) == (attention == Attention.softmax or batch_size > 1)
    assert found["W_V", "H_o", "kfac_scale_error"][0] > 0.05


class Stacked(nn.Module):
    """Two layers in one parameter, a third one of its own, and a readout outside the layers."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Parameter(torch.randn(2, 3, 3))
        self.third = nn.Linear(3, 3, bias=False)
        self.readout = nn.Linear(3, 2)

    def forward(self, x):
        for one in (*self.maps, self.third.weight):
            x = torch.tanh(x @ one.T)
        return self.readout(x)


def test_layers_of_a_network_of_ones_own_are_those_of_its_named_weights():
    """The whole consists of parameters, which have no layers: their entries have those of the weights named in them."""
    torch.manual_seed(0)
    network = Stacked().double()
    inputs = torch.randn(6, 3, dtype=torch.float64)
    weights = {
        "W@1": ("maps", 0),
        "W@2": ("maps", 1),
        "U@2": "third.weight",
        "out": "readout.weight",
    }
    targets = torch.tensor([0, 1] * 3)
    problem = hessfig.Problem(network, inputs, targets, weights=weights)
    # maps, third.weight, readout.weight, readout.bias
    keys = torch.tensor([1] * 9 + [2] * 9 + [2] * 9 + [3] * 6 + [4] * 2)
    whole = problem.operator("all").dense()
    apart = whole * (keys[:, None] == keys)
    found = problem.approximation("layer_diagonal", "all").dense()
    assert_close(found, apart, rtol=1e-12, atol=1e-14)
    table = hessfig.measure(problem, blocks=["all"], quantities="approximations")
    error = table[table["quantity"] == "layer_diagonal_error"]["value"].iloc[0]
    assert error == pytest.approx(float((whole - apart).norm() / whole.norm()))


@pytest.mark.long
def test_the_whole_taken_apart_by_weight_and_by_layer():
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
    whole = whole_oracle(problem)[Part.H]
    sizes = torch.tensor([weight.size for weight in side])
    by_weight = torch.arange(len(side))
    # Weights outside of the layers are apart from all others.
    by_layer = torch.tensor([weight.layer or -1 - at for at, weight in enumerate(side)])
    for name, of_weights in zip(chosen, (by_weight, by_layer), strict=True):
        keys = of_weights.repeat_interleave(sizes)
        apart = whole * (keys[:, None] == keys)
        for number, value in numbers(whole, apart).items():
            assert found["all", "H", f"{name}_{number}"][0] == pytest.approx(
                value, abs=1e-10
            )
    assert (
        found["all", "H", "layer_diagonal_error"][0]
        < found["all", "H", "block_diagonal_error"][0]
    )


@pytest.mark.long
def test_errors_of_probes_are_calibrated():
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
    off = {}
    for seed in range(40):
        for key, (value, error) in rows(problem, probed, seed=seed).items():
            if not key[2].startswith("sampled"):
                off.setdefault(key[2], []).append(
                    (value - exact[key][0]) / (error or math.nan)
                )
    for key, deviations in off.items():
        assert abs(np.median(deviations)) < 0.5, key
        assert 0.6 < np.sqrt(np.mean(np.square(deviations))) < 1.7, key


def test_a_fitted_sum_finds_a_kronecker_product_and_beats_no_best_one():
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


def test_a_sum_of_as_many_kronecker_products_as_there_are_is_the_matrix():
    matrix = draws(12, 12)
    for shape in ((3, 4), (4, 3), (1, 12)):
        made = best_kronecker_sum(matrix, shape, 16).matmat(
            torch.eye(12, dtype=torch.float64)
        )
        assert_close(made, matrix, rtol=0, atol=1e-12)


def test_adam_is_the_root_of_the_stored_moment(tmp_path):
    config = training_config(
        tmp_path,
        step=[0, 20],
        quantities=["approximations"],
        approximation=ApproximationConfig(names=[A.adam]),
    )
    before, after = Sweep([("", config)]).cells[:2]
    assert compute_cell(before).rows == []
    found = {}
    for row in compute_cell(after).rows:
        found[(row["part"], row["quantity"])] = row["value"]
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
def test_what_a_block_cannot_have_is_refused_by_name(blocks, name, match):
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
def test_estimators_that_do_not_serve_are_refused(estimator, match):
    model = ARCHITECTURES["softmax"]
    config = settings(model, toy_task(model), ["W_V"], estimator=estimator)
    with pytest.raises(UserError, match=match):
        quantity("approximations").check_settings(
            config, kind(model.kind).layout(config)
        )


def test_a_module_that_is_no_linear_map_is_refused_at_its_measurement():
    network = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 4))
    tokens = torch.randint(0, 5, (4, 2), generator=torch.Generator().manual_seed(0))
    problem = hessfig.Problem(network.double(), tokens, torch.tensor([0, 1, 2, 3]))
    table = hessfig.measure(problem, quantities="approximations", parts="H_o")
    named = {tuple(pair) for pair in table[["row", "quantity"]].itertuples(index=False)}
    assert ("2.weight", "kfac_error") in named
    assert ("0.weight", "kfoc_error") in named
    assert ("0.weight", "kfac_error") not in named
    assert ("2.bias", "muon_error") not in named
    assert table["value"].notna().all()
