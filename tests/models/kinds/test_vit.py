"""The vision transformer: patches in their order, no mask, and products that are those of dense differentiation."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from hessfig.config.enums import MLP, Attention, Data, DType, Kind, Method, Norm
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.models.networks import VisionTransformer
from hessfig.rng import stream
from hessfig.states.initialised import build_network
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.variant import Variant
from tests.double_backward import hessian
from tests.toys import toy_problem

VIT = ModelConfig(
    kind=Kind.vit, d_model=4, d_mlp=5, n_heads=2, norm=Norm.post, mlp=MLP.gelu, patch=4
)
TASK = TaskConfig(data=Data.digits, batch_size=4)
SHAPES = [
    VIT,
    replace(VIT, norm=Norm.pre, n_layers=2),
    replace(VIT, norm=Norm.none, mlp=MLP.relu),
    replace(VIT, norm=Norm.none, attention=Attention.linear, mlp=MLP.none),
]
shape = pytest.mark.parametrize(
    "model", SHAPES, ids=lambda model: f"{model.norm} {model.mlp} {model.n_layers}"
)


def built(model, *, sigma=0.7):
    network = build_network(
        Config(model=model, task=TASK, dtype=DType.float64), sigma=sigma, seed=1
    )
    assert isinstance(network, VisionTransformer)
    return network


def images(count=3):
    return torch.rand(count, 8, 8, dtype=torch.float64, generator=stream(0, "images"))


def logits(network, pictures):
    return network.from_hidden(network.hidden(pictures, 0), 0, slice(0, 1))


def test_patches_are_squares_row_by_row():
    network = built(replace(VIT, patch=2))
    picture = images(1)
    patches = network.patches(picture)
    assert patches.shape == (1, 16, 4)
    assert torch.equal(patches[0, 6], picture[0, 2:4, 4:6].flatten())


@shape
def test_every_token_sees_every_other_and_their_order_is_told_by_positions_alone(model):
    network = built(model)
    hidden = network.hidden(images(), 0)
    turned = network.from_hidden(hidden.flip(1), 0, slice(0, 1))
    assert torch.allclose(
        network.from_hidden(hidden, 0, slice(0, 1)), turned, rtol=1e-12, atol=1e-14
    )
    moved = hidden.clone()
    moved[:, -1] = moved[:, -1].flip(-1)
    first = [network.layers[0](rows)[:, 0] for rows in (hidden, moved)]
    assert not torch.allclose(*first), "the first token sees the last"


def test_the_shipped_network_is_the_follow_ups_in_small():
    network = built(ModelConfig(kind=Kind.vit, d_model=16, n_heads=2, norm=Norm.post))
    sizes = {name: tuple(p.shape) for name, p in network.named_parameters()}
    assert sizes["patch.weight"] == (16, 4)
    assert sizes["pos.weight"] == (16, 16)
    assert sizes["layers.0.mlp.fc_in.weight"] == (64, 16)
    assert sizes["head.weight"] == (10, 16)


def test_sigma_scales_patches_and_positions():
    wide = ModelConfig(kind=Kind.vit, d_model=64, n_heads=2)
    small = built(wide, sigma=0.1)
    large = built(wide, sigma=3.0)
    for name in ("patch.weight", "pos.weight"):
        assert small.get_parameter(name).std().item() == pytest.approx(0.1, rel=0.15)
        assert large.get_parameter(name).std().item() == pytest.approx(3.0, rel=0.15)
    assert torch.equal(small.head.weight, large.head.weight)


def config(**settings):
    chosen = {"model": VIT, "task": TASK, "blocks": ["W_V"], "seeds": 1, **settings}
    return Config(**chosen)


@pytest.mark.filterwarnings("ignore:H_f. curvlinops' product is off:RuntimeWarning")
def test_the_whole_hessian_is_that_of_double_backward_norms_and_biases_with_it():
    cell = Cell(Variant("", config(quantities=["hessian"])), 0.5, 1, "hessian")
    arrays = compute_cell(cell).arrays
    problem = toy_problem(VIT, TASK, sigma=0.5, seed=1)
    parameters = dict(problem.network.named_parameters())
    assert arrays["names"] == [weight.name for weight in problem.layout.weights]
    assert arrays["sizes"] == [weight.size for weight in problem.layout.weights]
    ordered = [
        parameters[weight.parameter].requires_grad_()
        for weight in problem.layout.weights
    ]
    assert isinstance(problem.network, VisionTransformer)
    network = problem.network
    batch = problem.batch
    truth = hessian(
        lambda: problem.loss(logits(network, batch.inputs), batch.targets), ordered
    )
    assert np.abs(arrays["hessian"] - truth.numpy()).max() <= 1e-6 * float(
        truth.abs().max()
    )


BAD = {
    "patch": (
        {"model": replace(VIT, patch=3)},
        r"does not divide the pictures' side of 8",
    ),
    "exact": (
        {"estimator": replace(Config().estimator, method=Method.exact)},
        r"no exact H_o(.|\n)*model.kind=trans",
    ),
    "file": (
        {"task": replace(TASK, path="nowhere.npz")},
        "task.path: there is no such file",
    ),
}


@pytest.mark.parametrize(("settings", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_built_is_refused_before_anything_is_measured(settings, message):
    with pytest.raises(UserError, match=message):
        Sweep([("", config(**settings))])


def test_pictures_of_ones_own_count_by_their_content(tmp_path):
    def key():
        return Cell(Variant("", config(task=replace(TASK, path=str(path)))), 0.5, 1).key

    path = tmp_path / "own.npz"
    keys = []
    for brightness in (0.2, 0.3):
        np.savez(path, images=np.full((10, 8, 8), brightness), labels=np.arange(10))
        keys.append(key())
        path = tmp_path / "other.npz"
    assert len({*keys, Cell(Variant("", config()), 0.5, 1).key}) == 3
