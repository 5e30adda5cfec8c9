"""Our transformer is TransformerLens's, and what is cut off before the loss is truly of no effect."""

import itertools

import pytest
import torch
from torch.testing import assert_close
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge.sources.native import NativeModel

from hessfig.config.enums import MLP, DType, Norm
from hessfig.config.schema import with_defaults
from hessfig.config.science import ModelConfig
from hessfig.models.networks import Transformer
from hessfig.rng import stream
from tests.toys import ARCHITECTURES, build_model, toy_problem

LENGTH = 9
VOCABULARY = 12
TRANSFORMERS = [
    name for name, model in ARCHITECTURES.items() if model.kind == "transformer"
]


def tokens():
    return torch.randint(0, VOCABULARY, (5, LENGTH), generator=stream(0, "tokens"))


def randomised(model):
    """Return a transformer whose biases and LayerNorms are drawn too, so that no parameter goes untested."""
    network = build_model(model, sigma=0.7, seed=1, length=LENGTH, dtype=DType.float64)
    for name, parameter in network.named_parameters():
        if parameter.ndim == 1:
            parameter += torch.randn(
                parameter.shape, dtype=torch.float64, generator=stream(1, "bias", name)
            )
    assert isinstance(network, Transformer)
    return network


def native_twin(network, model):
    full = with_defaults(model)
    config = TransformerBridgeConfig(
        n_layers=full.n_layers,
        n_heads=full.n_heads,
        n_key_value_heads=full.n_kv_heads,
        d_model=full.d_model,
        d_head=full.d_head,
        d_mlp=full.d_mlp,
        d_vocab=VOCABULARY,
        n_ctx=LENGTH,
        act_fn="gelu" if full.mlp == MLP.gelu else "relu",
        attn_only=full.mlp == MLP.none,
        normalization_type=None if full.norm == Norm.none else "LN",
    )
    native = NativeModel(config).double()
    native.head = torch.nn.Linear(model.d_model, VOCABULARY, bias=True).double()
    native.load_state_dict(network.state_dict())
    return native


@pytest.mark.parametrize(
    ("norm", "n_heads", "n_layers", "mlp"),
    list(
        itertools.product(
            [Norm.none, Norm.pre], [1, 2], [1, 3], [MLP.relu, MLP.gelu, MLP.none]
        )
    ),
)
def test_logits_equal_transformer_lens(norm, n_heads, n_layers, mlp):
    model = ModelConfig(
        norm=norm, n_heads=n_heads, n_layers=n_layers, mlp=mlp, d_model=8, d_mlp=11
    )
    network = randomised(model)
    logits = network(tokens())
    native = native_twin(network, model)(tokens())
    assert (logits - native).abs().max() <= 1e-14 * max(1.0, native.abs().max())


def test_heads_need_not_fill_the_model():
    model = ModelConfig(d_model=8, n_heads=2, d_head=3)
    network = randomised(model)
    assert (
        network(tokens()) - native_twin(network, model)(tokens())
    ).abs().max() <= 1e-13


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_suffix_gives_the_full_forwards_outputs(name):
    problem = toy_problem(ARCHITECTURES[name])
    network = problem.network
    batch = problem.batch
    full = network(batch.inputs)[:, batch.scored]
    for depth in range(len(network.layers) + 1):
        cut = network.from_hidden(
            network.hidden(batch.inputs, depth), depth, batch.scored
        )
        assert (cut - full).abs().max() <= 1e-14 * max(1.0, full.abs().max())


def test_no_position_sees_the_future():
    network = randomised(ModelConfig(d_model=8, n_layers=2))
    changed = tokens()
    changed[:, 5:] = (changed[:, 5:] + 1) % VOCABULARY
    assert torch.equal(network(tokens())[:, :5], network(changed)[:, :5])


def test_post_norm_normalises_each_residual_sum():
    model = ModelConfig(d_model=8, norm=Norm.post)
    network = build_model(model, sigma=0.7, seed=1, length=LENGTH, dtype=DType.float64)
    hidden = network.hidden(tokens(), 1)
    assert_close(hidden.mean(-1), torch.zeros(5, LENGTH).double(), rtol=0, atol=1e-12)
    assert_close(
        hidden.var(-1, unbiased=False),
        torch.ones(5, LENGTH).double(),
        rtol=0,
        atol=1e-3,
    )


def test_without_skip_and_mlp_only_the_attention_output_is_left():
    model = ModelConfig(d_model=8, attention_skip=False, mlp=MLP.none)
    network = randomised(model)
    layer = network.layers[0]
    hidden = network.hidden(tokens(), 0)
    assert_close(network.hidden(tokens(), 1), layer.attn(hidden))


def test_residual_scale_zero_keeps_the_skip_around_the_mlp():
    """The notebook as shipped: no skip around attention, ReLU MLP with its own."""
    model = ModelConfig(d_model=8, attention_skip=False)
    network = randomised(model)
    layer = network.layers[0]
    hidden = network.hidden(tokens(), 0)
    attended = layer.attn(hidden)
    assert_close(network.hidden(tokens(), 1), attended + layer.mlp(attended))
