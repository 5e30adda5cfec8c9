"""The CNN: convolutions written out by hand, and products that are those of dense differentiation."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from hessfig.config.enums import MLP, Data, DType, Kind, Norm
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.models.networks import ConvolutionalNetwork
from hessfig.states.initialised import build_network
from hessfig.sweep.plan import Sweep

CNN = ModelConfig(kind=Kind.cnn, d_model=4, n_heads=2)
TASK = TaskConfig(data=Data.digits, batch_size=3)
SHAPES = [
    CNN,
    replace(CNN, norm=Norm.post),
    replace(CNN, norm=Norm.post, mlp=MLP.gelu),
    replace(CNN, mlp=MLP.gelu),
]
shape = pytest.mark.parametrize(
    "model", SHAPES, ids=lambda model: f"{model.norm} {model.mlp}"
)


def built(model):
    network = build_network(
        Config(model=model, task=TASK, dtype=DType.float64), sigma=1.0, seed=1
    )
    assert isinstance(network, ConvolutionalNetwork)
    return network


def by_hand(network, model, images):
    """Return the logits of a network of torch's own layers with the same parameters."""
    act = {MLP.relu: nn.ReLU, MLP.gelu: nn.GELU}[model.mlp]
    modules = []
    for rank, layer in enumerate(network.layers):
        weight = layer.conv.weight
        conv = nn.Conv2d(
            weight.shape[1] // 9, len(weight), 3, padding=1, dtype=weight.dtype
        )
        conv.load_state_dict(
            {"weight": weight.reshape(conv.weight.shape), "bias": layer.conv.bias}
        )
        norm = (
            nn.GroupNorm(model.n_heads, len(weight), dtype=weight.dtype)
            if model.norm == Norm.post
            else nn.Identity()
        )
        modules += [nn.AvgPool2d(2)] * (rank in (2, 4)) + [conv, norm, act()]
    pixels = nn.Sequential(*modules)(images.unsqueeze(1))
    return network.head(pixels.mean(dim=(2, 3)))


@shape
def test_it_is_the_network_of_torchs_own_layers(model):
    network = built(model)
    images = torch.rand(3, 8, 8, dtype=torch.float64)
    assert len(network.layers) == 6
    ours = network.from_hidden(network.hidden(images, 0), 0, slice(0, 1)).squeeze(1)
    assert torch.allclose(ours, by_hand(network, model, images), rtol=1e-12, atol=1e-14)
    for depth in range(7):
        cut = network.from_hidden(
            network.hidden(images, depth), depth, slice(0, 1)
        ).squeeze(1)
        assert torch.allclose(cut, ours, rtol=1e-12, atol=1e-14)


def config(**settings):
    chosen = {"model": CNN, "task": TASK, "blocks": ["W"], "seeds": 1, **settings}
    return Config(**chosen)


BAD = {
    "file": (
        {"task": replace(TASK, path="nowhere.npz")},
        "task.path: there is no such file",
    ),
    "weight": ({"blocks": ["W_Q"]}, r"no weight W_Q \(model.kind=cnn\)"),
}


@pytest.mark.parametrize(("settings", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_built_is_refused_before_anything_is_measured(settings, message):
    with pytest.raises(UserError, match=message):
        Sweep([("", config(**settings))])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mlp": MLP.none}, "an activation behind"),
        ({"norm": Norm.pre}, "GroupNorm"),
        ({"n_heads": 4}, "4, 2 channels"),
    ],
)
def test_settings_of_other_networks_are_refused(settings, message):
    from hessfig.models.network_checks import check_model

    with pytest.raises(UserError, match=message):
        check_model(replace(CNN, **settings))
