"""Drawing a network: the right scales, and streams that never shift one another."""

import math

import pytest
import torch

from hessfig.config.enums import (
    MLP,
    DType,
    Initialisation,
    Kind,
    Norm,
    ScaledWeight,
    SigmaScales,
)
from hessfig.config.science import ModelConfig
from tests.toys import build_model

EMBEDDINGS = {"tok_embed.weight", "pos.weight"}


def built(model, *, sigma=0.3, seed=1234, dtype=DType.float64):
    return build_model(model, sigma=sigma, seed=seed, length=9, dtype=dtype)


def parameters(model, **settings):
    return dict(built(model, **settings).named_parameters())


def test_weights_biases_and_layer_norms_at_the_papers_scales():
    for name, weight in parameters(ModelConfig(d_model=64, norm=Norm.pre)).items():
        if weight.ndim == 2:
            scale = 0.3 if name in EMBEDDINGS else 0.8 / math.sqrt(64)
            assert abs(weight.std() / scale - 1) < 4 / math.sqrt(2 * weight.numel())
            assert abs(weight.mean()) < 4 * scale / math.sqrt(weight.numel())
        else:
            assert (
                weight == (1.0 if "ln" in name and name.endswith("weight") else 0.0)
            ).all(), name


def test_the_output_projections_are_not_rescaled_with_depth():
    weights = parameters(ModelConfig(d_model=64, n_layers=4))
    assert weights["layers.3.attn.o.weight"].std().item() == pytest.approx(
        0.1, rel=0.05
    )


def test_the_linear_mlp_has_pytorchs_uniform_weights_and_no_bias():
    weights = parameters(ModelConfig(kind=Kind.linear_mlp, d_model=64, n_layers=3))
    for weight in weights.values():
        assert weight.ndim == 2
    inner = weights["layers.0.weight"]
    assert inner.abs().max() <= 1 / 8
    assert inner.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.05)
    assert weights["tok_embed.weight"].std().item() == pytest.approx(0.3, rel=0.15)


def test_sigma_redraws_the_embeddings_and_nothing_else():
    one, other = (
        parameters(ModelConfig(d_model=8), sigma=sigma) for sigma in (0.3, 0.6)
    )
    for name, weight in one.items():
        if name in EMBEDDINGS:
            assert not torch.equal(2 * weight, other[name]), (
                "embeddings are redrawn, not rescaled"
            )
        else:
            assert torch.equal(weight, other[name])


def test_positions_keep_the_scale_of_the_weights_when_sigma_scales_tokens_alone():
    model = ModelConfig(d_model=64, sigma_scales=SigmaScales.tokens)
    small = parameters(model, sigma=0.01)
    large = parameters(model, sigma=10.0)
    assert torch.equal(small["pos.weight"], large["pos.weight"])
    assert small["pos.weight"].std().item() == pytest.approx(0.1, rel=0.1)
    assert large["tok_embed.weight"].std().item() == pytest.approx(10.0, rel=0.1)


def test_the_seed_redraws_every_matrix():
    one, other = (parameters(ModelConfig(d_model=8), seed=seed) for seed in (1, 2))
    for name, w in one.items():
        if w.ndim == 2:
            assert not torch.equal(w, other[name])


@pytest.mark.parametrize(
    "larger",
    [
        ModelConfig(d_model=8, n_layers=3),
        ModelConfig(d_model=8, norm=Norm.pre),
        ModelConfig(d_model=8, mlp=MLP.none),
        ModelConfig(d_model=8, n_heads=2),
        ModelConfig(d_model=8, d_mlp=5),
    ],
)
def test_no_setting_shifts_the_draws_of_a_weight_it_keeps(larger):
    plain = parameters(ModelConfig(d_model=8))
    changed = parameters(larger)
    kept = {
        name
        for name in plain.keys() & changed.keys()
        if plain[name].shape == changed[name].shape
    }
    assert {
        "tok_embed.weight",
        "pos.weight",
        "head.weight",
        "layers.0.attn.q.weight",
    } <= kept
    for name in kept:
        assert torch.equal(plain[name], changed[name])


def test_float32_weights_are_the_float64_ones_rounded():
    double, single = (
        parameters(ModelConfig(d_model=8), dtype=dtype) for dtype in DType
    )
    for name, weight in double.items():
        assert torch.equal(weight.float(), single[name])


def test_nothing_asks_for_gradients_and_the_global_generator_does_not_matter():
    first = parameters(ModelConfig(d_model=8))
    torch.manual_seed(99)
    second = parameters(ModelConfig(d_model=8))
    for name, weight in first.items():
        assert torch.equal(weight, second[name])
        assert not weight.requires_grad


def test_gpt2_draws_everything_at_a_fiftieth_and_the_residual_maps_smaller():
    settings = {"d_model": 32, "n_layers": 3, "norm": Norm.pre}
    paper = parameters(ModelConfig(**settings))
    gpt2 = parameters(ModelConfig(initialisation=Initialisation.gpt2, **settings))
    for name, weight in gpt2.items():
        if weight.ndim == 1 or name in EMBEDDINGS:
            assert torch.equal(weight, paper[name]), name
        else:
            residual = name.endswith(("attn.o.weight", "mlp.fc_out.weight"))
            ratio = 0.02 / (0.8 / 32**0.5) / (6**0.5 if residual else 1.0)
            assert torch.allclose(weight, ratio * paper[name], rtol=1e-14), (
                "the same draws at another scale"
            )


def test_gpt2_leaves_embeddings_to_sigma_and_takes_positions_where_sigma_means_tokens():
    model = ModelConfig(
        d_model=64, initialisation=Initialisation.gpt2, sigma_scales=SigmaScales.tokens
    )
    found = parameters(model, sigma=3.0)
    assert found["pos.weight"].std().item() == pytest.approx(0.02, rel=0.1)
    assert found["tok_embed.weight"].std().item() == pytest.approx(3.0, rel=0.1)


@pytest.mark.parametrize(
    ("scaled", "paths"),
    [
        (ScaledWeight.W_Q, ("attn.q.weight",)),
        (ScaledWeight.W_out, ("mlp.fc_out.weight",)),
        (ScaledWeight.mlp, ("mlp.fc_in.weight", "mlp.fc_out.weight")),
        (ScaledWeight.query_key, ("attn.q.weight", "attn.k.weight")),
    ],
)
def test_a_scaled_weight_is_its_draw_times_alpha_in_every_layer(scaled, paths):
    plain = parameters(ModelConfig(d_model=8, n_layers=2))
    found = parameters(
        ModelConfig(d_model=8, n_layers=2, scaled_weight=scaled, weight_scale=0.25)
    )
    assert sum(name.endswith(paths) for name in plain) == 2 * len(paths)
    for name, weight in plain.items():
        assert torch.equal(
            found[name], 0.25 * weight if name.endswith(paths) else weight
        )
