"""Quantity along against dense Hessians, singular values and step rules of plain torch, in networks of all kinds."""

import copy
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hessfig
from hessfig.config.enums import Data, DType, NamedDirection
from hessfig.config.of_quantities import DirectionsConfig
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig
from hessfig.curvature.gradients import LossGradient, above_rounding
from hessfig.curvature.problem import Suffix
from hessfig.errors import UserError
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import At, asked_of
from hessfig.models.blocks import blocks_of
from hessfig.rng import probe_stream
from hessfig.states.stored_states import trained
from hessfig.tasks.examples import training_batch
from hessfig.terms import MLP, PARTS, Kind, Norm, Optimiser, Part
from tests.curvature.oracle import places, whole_oracle
from tests.tensors import copies, flat
from tests.toys import toy_problem, toy_task, training_config

DIGITS = {"data": Data.digits, "batch_size": 6}
NETWORKS = {
    "transformer": (
        ModelConfig(d_model=4, d_mlp=4, n_heads=2, norm=Norm.pre, mlp=MLP.gelu),
        {},
    ),
    "vit": (
        ModelConfig(
            kind=Kind.vit,
            d_model=4,
            d_mlp=5,
            n_heads=2,
            norm=Norm.post,
            mlp=MLP.gelu,
            patch=4,
        ),
        DIGITS,
    ),
    "cnn": (ModelConfig(kind=Kind.cnn, d_mlp=2, n_heads=1, mlp=MLP.gelu), DIGITS),
    "mlp": (ModelConfig(kind=Kind.mlp, d_model=4, mlp=MLP.gelu), {}),
}
ONE = {"transformer": "W_V", "vit": "W_in", "cnn": "W@3", "mlp": "W_in"}


def measured(objective, config, at):
    """Return {weight of the column: {(quantity, index, part): value}} of the diagonal blocks that are asked for."""
    asked = asked_of(
        quantity("along"), blocks_of(config.blocks, objective.layout, config.model), at
    )
    found = {}
    for row in quantity("along").measured(objective, asked).rows:
        key = f"{row['col']}@{row['layer']}"
        found.setdefault(key, {})[row["quantity"], row["index"], row["part"]] = row[
            "value"
        ]
    return found


def gradient_of(objective):
    network = copy.deepcopy(objective.network).requires_grad_(True)
    names = [name for name, _ in network.named_parameters()]
    with torch.enable_grad():
        outputs = Suffix(replace(objective, network=network), None)(
            objective.batch.inputs
        )
        loss = objective.loss(outputs, objective.batch.targets)
        slopes = torch.autograd.grad(
            loss, list(network.parameters()), materialize_grads=True
        )
    return dict(zip(names, slopes, strict=True))


def expected_split(matrix, vector, keys, sizes):
    """Return the numbers of one direction and one matrix, by sums over every pair of weights."""
    squared = float(vector @ vector)
    product = matrix @ vector
    found = {
        "curvature": float(vector @ product) / squared,
        "product": float(product.norm()) / squared**0.5,
    }
    found["cosine"] = float(vector @ product) / float(vector.norm() * product.norm())
    if len(keys) > 1:
        rows = torch.arange(len(vector)).split(sizes)
        kinds = (
            ["weights", "layers"] if any(layer for layer, _ in keys) else ["weights"]
        )
        for where, kind in itertools.product(("within", "across"), kinds):
            found[f"{where}_{kind}"] = 0.0
        for a, b in itertools.product(range(len(keys)), repeat=2):
            pair = vector[rows[a]] @ matrix[rows[a]][:, rows[b]] @ vector[rows[b]]
            homes = {"weights": (a, b)}
            homes["layers"] = [keys[k][0] or keys[k][1] for k in (a, b)]
            for kind in kinds:
                one, other = homes[kind]
                where = "within" if one == other else "across"
                found[f"{where}_{kind}"] += float(pair) / squared
    return found


def fitted(x, y):
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


class Dense:
    """The block of some weights of a problem, with its gradient, by dense double backward."""

    def __init__(self, objective, layer, name, whole=None):
        side = objective.layout.side(layer, name)
        at = places(objective, layer, name)
        self.matrices = {
            part: one[at][:, at]
            for part, one in (whole or whole_oracle(objective)).items()
        }
        self.keys = [(one.layer, one.name) for one in side]
        self.sizes = [one.size for one in side]
        self.side, self.gradients = side, gradient_of(objective)
        self.gradient = self.flat(self.gradients)

    def flat(self, named):
        return flat(named[one.parameter] for one in self.side)

    def check(self, found, name, vector, index=None):
        for part in PARTS:
            for number, value in expected_split(
                self.matrices[part], vector, self.keys, self.sizes
            ).items():
                got = found[f"{name}_{number}", index, part.value]
                assert got == pytest.approx(value, rel=1e-8, abs=1e-8), (
                    name,
                    number,
                    part,
                )


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.long
def test_every_number_is_that_of_dense_algebra(kind):
    model, task = NETWORKS[kind]
    settings = DirectionsConfig(named=list(NamedDirection), rules=[Optimiser.gd])
    config = Config(
        model=model,
        task=toy_task(model, **task),
        blocks=["all", ONE[kind]],
        directions=settings,
    )
    config.spectrum.tolerance = 1e-11
    problem = toy_problem(model, config.task)
    found = measured(problem, config, At(config, sigma=0.7, seed=1234))
    assert len(found) >= 2
    whole = whole_oracle(problem)
    for key, numbers in found.items():
        name, layer = key.split("@")
        dense = Dense(problem, int(layer), name, whole)
        _, vectors = torch.linalg.eigh(dense.matrices[Part.H])
        drawn = torch.randn(
            len(vectors),
            dtype=torch.float64,
            generator=probe_stream(1234, "along", 0.7, int(layer), name),
        )
        # B_K's are rounding.
        signs = dense.gradient.sign() * (dense.gradient.abs() > 1e-15)
        named = {"gradient": dense.gradient, "sign": signs, "random": drawn}
        named |= {"largest": vectors[:, -1], "smallest": vectors[:, 0]}
        for one, vector in named.items():
            dense.check(numbers, f"{one}_direction", vector)
            slope = float(dense.gradient @ vector / vector.norm())
            if one not in ("largest", "smallest"):
                assert numbers[f"{one}_direction_slope", None, ""] == pytest.approx(
                    slope, rel=1e-8, abs=1e-12
                )
                assert numbers[f"{one}_direction_length", None, ""] == pytest.approx(
                    float(vector.norm()), rel=1e-8
                )
        dense.check(numbers, "gd_update", -dense.gradient)
        if len(dense.side) == 1:
            check_singular(dense, numbers)


def check_singular(dense, numbers):
    (weight,) = dense.side
    left, values, right = np.linalg.svd(
        dense.gradients[weight.parameter].flatten(1).numpy(), full_matrices=False
    )
    heights = {part: [] for part in PARTS}
    for k, value in enumerate(values):
        assert numbers["singular_direction_value", k + 1, ""] == pytest.approx(
            value, rel=1e-8, abs=1e-12
        )
        vector = torch.from_numpy(np.outer(left[:, k], right[k]).ravel())
        if value > 1e-9:
            dense.check(numbers, "singular_direction", vector, k + 1)
        for part in PARTS:
            heights[part].append(float(vector @ dense.matrices[part] @ vector))
    k = np.arange(1, len(values) + 1)
    for part in PARTS:
        high = np.array(heights[part])
        counts = (values >= 1e-3 * values[0]) & (high > 0)
        if counts.sum() > 2:
            exponent = fitted(values[counts], high[counts])
            decay = -fitted(k[counts], high[counts])
            assert numbers["curvature_exponent", None, part.value] == pytest.approx(
                exponent, rel=1e-6
            )
            assert numbers["curvature_decay", None, part.value] == pytest.approx(
                decay, rel=1e-6
            )
        else:
            assert np.isnan(numbers["curvature_exponent", None, part.value])
        share = float(np.mean(high[values >= 1e-3 * values[0]] > 0))
        assert numbers["curvature_positive", None, part.value] == pytest.approx(share)


def own_problem():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    return hessfig.Problem(
        network, torch.randn(12, 5).double(), torch.randint(0, 3, (12,))
    )


def test_own_networks_by_hessfig_measure():
    """Updates of torch's own optimisers on the measuring batch, at weights that do not move."""
    problem = own_problem()
    table = hessfig.measure(
        problem,
        blocks=["all"],
        quantities=["along"],
        directions={
            "named": ["update", "gradient"],
            "rules": ["adamw", "sgd", "muon"],
            "gradients": 7,
        },
    )
    objective = problem.objective("float64")
    found = {(row.quantity, None, row.part): row.value for row in table.itertuples()}
    dense = Dense(objective, 0, "all")
    network = copy.deepcopy(problem.network)
    made = {
        "adamw": torch.optim.AdamW(
            network.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0
        )
    }
    made["sgd"] = torch.optim.SGD(network.parameters(), lr=1e-3)
    before = copies(network)
    for name, rule in made.items():
        for _ in range(7):
            with torch.no_grad():
                for one, start in zip(network.parameters(), before, strict=True):
                    one.copy_(start)
            rule.zero_grad()
            nn.functional.cross_entropy(
                network(problem.inputs), problem.targets
            ).backward()
            rule.step()
        moved = (flat(network.parameters()) - flat(before)).detach()
        dense.check(found, f"{name}_update", moved)
        assert found[f"{name}_update_length", None, ""] == pytest.approx(
            float(moved.norm()), rel=1e-8
        )
    assert found["muon_update_slope", None, ""] < 0
    # No layers are known.
    assert "gradient_direction_within_layers" not in set(table["quantity"])


class Stacked(nn.Module):
    """Two layers in one parameter, a third map in the second layer, and a readout outside the layers."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Parameter(torch.randn(2, 3, 3))
        self.third, self.readout = nn.Linear(3, 3, bias=False), nn.Linear(3, 2)

    def forward(self, x):
        for one in (*self.maps, self.third.weight):
            x = torch.tanh(x @ one.T)
        return self.readout(x)


def test_layers_of_a_network_of_ones_own_are_those_of_its_named_weights():
    torch.manual_seed(0)
    network = Stacked().double()
    inputs = torch.randn(6, 3).double()
    names = {
        "W@1": ("maps", 0),
        "W@2": ("maps", 1),
        "U@2": "third.weight",
        "out": "readout.weight",
    }
    targets = torch.tensor([0, 1] * 3)
    problem = hessfig.Problem(network, inputs, targets, weights=names)
    table = hessfig.measure(
        problem,
        blocks=["all"],
        parts=["H"],
        quantities=["along"],
        directions={"named": ["gradient"]},
    )
    # Entries of maps, third.weight, readout.weight and readout.bias.
    weights = torch.tensor([0] * 18 + [1] * 9 + [2] * 6 + [3] * 2)
    layers = torch.tensor([1] * 9 + [2] * 18 + [3] * 6 + [4] * 2)
    loss = nn.functional.cross_entropy(network(inputs), targets)
    slopes = torch.autograd.grad(loss, list(network.parameters()))
    gradient = torch.cat([slope.flatten() for slope in slopes])
    terms = gradient[:, None] * problem.operator("all").dense() * gradient
    terms = terms / gradient.square().sum()
    found = table.set_index("quantity")["value"]
    for group, keys in (("weights", weights), ("layers", layers)):
        is_within = keys[:, None] == keys
        within = found[f"gradient_direction_within_{group}"]
        across = found[f"gradient_direction_across_{group}"]
        assert within == pytest.approx(float(terms[is_within].sum()), rel=1e-10)
        assert across == pytest.approx(float(terms[~is_within].sum()), rel=1e-10)


def test_the_update_of_a_training_is_that_of_its_moments(tmp_path):
    """Adam's next update in a loop of our own, from the start of the training on."""
    config = training_config(
        tmp_path, step=5, optimiser=Optimiser.adam, betas=[0.8, 0.9], weight_decay=0.0
    )
    config = replace(
        config,
        training=replace(config.training, dtype=DType.float64),
        blocks=["all"],
        directions=DirectionsConfig(named=[NamedDirection.update]),
    )
    problem = trained(config, sigma=0.3, seed=1, step=5)
    found = measured(problem, config, At(config, sigma=0.3, seed=1, step=5))["all@0"]
    network = trained(config, sigma=0.3, seed=1, step=0).network.requires_grad_(True)
    rule = torch.optim.Adam(network.parameters(), betas=(0.8, 0.9))
    rates = [1e-3 * min(s / 5, 1) for s in range(1, 6)]
    for step in range(1, 7):
        batch = training_batch(config, seed=1, step=step)
        rule.zero_grad()
        with torch.enable_grad():
            problem.loss(
                network(batch.inputs)[:, batch.scored], batch.targets
            ).backward()
        before = copies(network)
        rule.param_groups[0]["lr"] = [*rates, 1e-3][step - 1]
        rule.step()
    names = [name for name, _ in network.named_parameters()]
    steps = [
        one.detach() - old
        for one, old in zip(network.parameters(), before, strict=True)
    ]
    dense = Dense(problem, 0, "all")
    dense.check(found, "adam_update", dense.flat(dict(zip(names, steps, strict=True))))


@pytest.mark.parametrize(
    ("directions", "said"),
    [
        ({"along": ["gradient"]}, "directions: there is no such choice"),
        ({"rules": ["lion"]}, r"directions\.rules: there is no such choice"),
        (["muon"], "directions: no settings by name"),
        ({"gradients": 0}, r"directions\.gradients: a whole number"),
    ],
)
def test_bad_input_by_name(directions, said):
    with pytest.raises(UserError, match=said):
        hessfig.measure(own_problem(), quantities=["along"], directions=directions)


def test_newton_takes_one_batch():
    whole = own_problem()
    pieces = {"inputs": [*whole.inputs.split(6)], "targets": [*whole.targets.split(6)]}
    halves = replace(whole, **pieces)
    asked = {"quantities": ["along"]}
    said = r"directions\.rules: newton divides by the curvature of one batch"
    with pytest.raises(UserError, match=said):
        hessfig.measure(halves, **asked, directions={"rules": ["newton"]})
    assert len(hessfig.measure(halves, **asked, directions={"rules": ["adamw"]}))


class KeyBias(nn.Module):
    """Attention whose keys have a bias, on which a softmax does not depend: its gradient is rounding."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        mixed = (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1) @ self.v(x)
        return mixed.tanh()[:, -1]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_rounding_has_no_sign(dtype):
    """The order of samples moves the rounding, and no number: all of b_K has sign 0, and no other entry."""
    torch.manual_seed(3)
    network = KeyBias()
    x = torch.randn(7, 5, 3)
    y = torch.randn(7, 3)
    asked = {
        "blocks": ["k.bias", "k.weight", "all"],
        "parts": "H",
        "quantities": ["along"],
        "dtype": dtype,
    }
    asked |= {
        "directions": {"named": ["sign", "update"], "rules": ["sign"], "gradients": 1}
    }
    keys = ["col", "quantity", "index"]
    found = []
    for order in (torch.arange(7), torch.arange(6, -1, -1)):
        problem = hessfig.Problem(network, x[order], y[order], "mse")
        found.append(hessfig.measure(problem, **asked).set_index(keys)["value"])
    assert found[0].tolist() == pytest.approx(
        found[1].tolist(), rel=1e-9 if dtype == "float64" else 1e-3, nan_ok=True
    )
    lengths = {
        col: found[0][col, "sign_direction_length", None]
        for col in ("k.bias", "k.weight", "all")
    }
    assert lengths == {"k.bias": 0.0, "k.weight": 3.0, "all": pytest.approx(33**0.5)}
    assert found[0]["k.bias", "sign_update_length", None] == 0.0
    objective = problem.objective(dtype)
    gradient = LossGradient(objective).gradient
    told = above_rounding(objective)
    assert not told["k.bias"].any()
    assert all(bool(told[name].all()) for name in told if name != "k.bias")
    assert bool(gradient["k.bias"].any())


def test_where_float32_says_nothing_every_sign_counts():
    class Doubled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))

        def forward(self, x):
            return x @ self.w @ torch.eye(2, dtype=torch.float64)

    problem = hessfig.Problem(
        Doubled(), torch.eye(2).double(), torch.zeros(2, 2).double(), "mse"
    ).objective("float64")
    assert all(bool(one.all()) for one in above_rounding(problem).values())
