"""No loss is guessed: labels go through wrappers, and a network's own loss is a known one only if it is the same."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.errors import UserError
from tests.daily import daily
from tests.double_backward import hessian
from tests.draws import tanh_network

IDS = torch.randint(0, 5, (3, 6), generator=torch.Generator().manual_seed(0))
BATCH = {"input_ids": IDS, "labels": IDS}


def shifted(logits, labels):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Model(nn.Module):
    """A language model with the manners of transformers: a loss for labels, and logits."""

    def __init__(self, loss=shifted):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(5, 4).double()
        self.head = nn.Linear(4, 5).double()
        self.loss_of = loss

    def forward(self, input_ids, labels=None):
        logits = self.head(torch.tanh(self.embed(input_ids).cumsum(1)))
        return (
            {"logits": logits}
            if labels is None
            else {"loss": self.loss_of(logits, labels), "logits": logits}
        )


class OfTransformers(Model):
    """A model whose loss is compared with known ones, since its class is one of transformers."""

    __module__ = "transformers.models.toy"


class Wrapper(nn.Module):
    """Hands on whatever it is given, as adapters and compilers do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *arguments, **words):
        return self.inner(*arguments, **words)


class Deaf(Wrapper):
    """Takes labels among other words, and returns logits alone."""

    def forward(self, input_ids, **words):
        return self.inner(input_ids)["logits"]


class Strict(Wrapper):
    """Takes any words, and fails at labels."""

    def forward(self, *arguments, **words):
        if "labels" in words:
            raise TypeError("unexpected keyword labels")
        return self.inner(*arguments, **words)["logits"]


class Tupled(Wrapper):
    def forward(self, input_ids):
        return self.inner(input_ids)["logits"]


def numbers(network, **given):
    problem = hessfig.Problem(network, given.pop("batch", BATCH), **given)
    table = hessfig.measure(
        problem,
        blocks=["all"],
        parts="H",
        quantities=["loss", "largest_eigenvalue", "frobenius"],
    )
    return dict(zip(table["quantity"], table["value"], strict=True))


def compiled(network):
    return torch.compile(network, backend="eager")


@pytest.mark.parametrize(
    "wrapped",
    [
        Wrapper,
        compiled,
        lambda network: compiled(Wrapper(network)),
        lambda network: Wrapper(Wrapper(network)),
    ],
)
@pytest.mark.long
def test_wrappers_hand_labels_on(wrapped, tmp_path):
    truth = numbers(Model())
    network = Model()
    assert truth["loss"] == pytest.approx(float(network(**BATCH)["loss"]), rel=1e-14)
    assert numbers(wrapped(network)) == pytest.approx(truth, rel=1e-9)
    watching = hessfig.Monitor(
        wrapped(network), None, BATCH, folder=tmp_path / "mine", quantities=["loss"]
    )
    assert watching(0)["loss"] == pytest.approx(truth["loss"], rel=1e-14)


def test_a_declared_output_does_not_change_whose_loss_it_is():
    assert (
        numbers(Model(), outputs="logits")
        == numbers(Model())
        == numbers(Wrapper(Model()), outputs="logits")
    )


@pytest.mark.parametrize("network", daily([Deaf, Strict, Tupled], Strict))
@pytest.mark.parametrize("given", [{}, {"targets": "labels"}])
def test_labels_without_a_loss_are_refused(network, given):
    with pytest.raises(
        UserError,
        match=r"labels, and the network returns no loss(.|\n)*loss='cross_entropy'",
    ):
        numbers(network(Model()), **given)
    found = numbers(network(Model()), loss=shifted)
    assert found == pytest.approx(numbers(Model()), rel=1e-9)


def test_a_monitor_refuses_them_too(tmp_path):
    with pytest.raises(UserError, match="the network returns no loss for them"):
        hessfig.Monitor(Deaf(Model()), None, BATCH, folder=tmp_path / "mine")


def nearly(logits, labels):
    return shifted(logits, labels) * (1 + 1e-7)


def smoothed(logits, labels):
    return shifted(logits, labels) + 1e-6 * logits.logsumexp(-1).square().mean()


def stopped(logits, labels):
    """The value of cross-entropy, and half of its gradient."""
    found = shifted(logits, labels)
    return found.detach() / 2 + found / 2


@pytest.mark.parametrize("loss", [nearly, smoothed])
def test_a_loss_that_is_nearly_a_known_one_is_the_networks_own(loss):
    """Value and gradient decide: the loss is the network's output then, with H and without a split."""
    network = OfTransformers(loss)
    held = [*network.parameters()]
    dense = hessian(lambda: network(**BATCH)["loss"], held)
    found = numbers(network)
    assert found["loss"] == pytest.approx(float(network(**BATCH)["loss"]), rel=1e-15)
    assert found["largest_eigenvalue"] == pytest.approx(
        float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-6
    )
    words = "the loss is computed inside the network"
    with pytest.raises(UserError, match=words):
        hessfig.measure(hessfig.Problem(network, BATCH), blocks=["all"], parts=["H_o"])


def test_a_loss_with_the_value_of_a_known_one_and_another_gradient_is_refused():
    """Neither the Hessian of the known loss nor that of autograd's gradient is that of its values."""
    with pytest.raises(
        UserError, match="gradient of this loss is not that of its values"
    ):
        numbers(OfTransformers(stopped))


def test_an_own_loss_in_float32_is_compared_in_float32():
    network = OfTransformers(lambda logits, labels: shifted(logits.float(), labels))
    assert numbers(network) == numbers(OfTransformers())


def test_the_loss_of_another_class_is_not_read_from_its_value():
    """Only for models of transformers is a loss of this value taken for cross-entropy; others hand theirs over."""
    assert numbers(Model())["largest_eigenvalue"] == pytest.approx(
        numbers(OfTransformers())["largest_eigenvalue"]
    )
    parts = {"blocks": ["all"], "parts": ["H_o"]}
    of_own = hessfig.Problem(
        Model(),
        {"input_ids": IDS},
        compute_outputs=lambda network, batch: network(**batch)["logits"],
        compute_loss=lambda outputs, _: shifted(outputs, IDS),
    )
    with pytest.raises(UserError, match=r"compute_outputs=g\(network, batch\)"):
        hessfig.measure(hessfig.Problem(Model(), BATCH), **parts)
    found, known = (
        hessfig.measure(one, **parts)["value"].item()
        for one in (of_own, hessfig.Problem(OfTransformers(), BATCH))
    )
    assert found == pytest.approx(known, rel=1e-9)


def test_cross_entropy_by_name_of_a_network_with_a_shifted_loss_says_so():
    with pytest.warns(
        RuntimeWarning, match="is that of the next token: leave loss out"
    ):
        found = numbers(Model(), loss="cross_entropy")
    unshifted = F.cross_entropy(Model()(IDS)["logits"].flatten(0, 1), IDS.flatten())
    assert found["loss"] == pytest.approx(float(unshifted.detach()))


@pytest.mark.parametrize(("length", "is_said"), [(4, False), (5, True)])
def test_where_classes_may_be_along_two_axes_it_says_which_it_reads(length, is_said):
    x = torch.randn(3, length, 2, generator=torch.Generator().manual_seed(0))
    problem = hessfig.Problem(
        nn.Linear(2, 5), x, torch.zeros(3, length, dtype=torch.long), "cross_entropy"
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        problem.objective("float64")
    assert (
        any("reads classes along the last axis" in str(one.message) for one in said)
        == is_said
    )


def gradient_penalty(network, out, y, *, by_backward):
    """Return cross-entropy plus the squared length of its gradient in the parameters."""
    loss = F.cross_entropy(out, y)
    held = [*network.parameters()]
    if not by_backward:
        return loss + 0.1 * sum(
            g.square().sum() for g in torch.autograd.grad(loss, held, create_graph=True)
        )
    loss.backward(create_graph=True)
    penalty = sum(p.grad.square().sum() for p in held if p.grad is not None)
    for p in held:
        p.grad = None
    return loss + 0.1 * penalty


@pytest.mark.parametrize("by_backward", [False, True])
def test_a_penalty_of_the_gradient_of_the_loss_itself_is_measured(by_backward):
    """It differentiates the graph of the outputs, which outputs alone do not have."""
    torch.manual_seed(0)
    network = tanh_network(3, 4, 2).double()
    x = torch.randn(6, 3).double()
    y = torch.arange(6) % 2
    of = partial(gradient_penalty, network, by_backward=by_backward)
    problem = hessfig.Problem(network, x, y, lambda out, target: of(out, target))
    held = [*network.parameters()]
    slopes = torch.autograd.grad(
        gradient_penalty(network, network(x), y, by_backward=False),
        held,
        create_graph=True,
    )
    product = torch.autograd.grad(sum(one.sum() for one in slopes), held)
    found = problem.operator("all") @ torch.ones(sum(p.numel() for p in held)).double()
    torch.testing.assert_close(
        found, torch.cat([one.flatten() for one in product]), rtol=1e-9, atol=1e-12
    )


def test_a_loss_that_frees_the_graph_it_needs_is_refused_in_words():
    """Its own backward pass fails; torch.autograd.grad without create_graph frees what cross-entropy needs."""
    network = tanh_network(3, 4, 2).double()

    def loss(out, y):
        value = F.cross_entropy(out, y)
        return value + sum(
            g.square().sum()
            for g in torch.autograd.grad(value, [*network.parameters()])
        )

    problem = hessfig.Problem(
        network, torch.randn(6, 3).double(), torch.arange(6) % 2, loss
    )
    with (
        pytest.warns(RuntimeWarning, match="was not compared"),
        pytest.raises(UserError, match="a second time"),
    ):
        problem.operator("all").dense()


def test_mixtures_of_experts_are_measured_in_float64_and_keep_their_kernels():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "max_position_embeddings": 8,
    }
    sizes = {
        "vocab_size": 5,
        "hidden_size": 8,
        "intermediate_size": 6,
        "num_local_experts": 3,
    }
    config = transformers.MixtralConfig(**heads, **sizes, num_experts_per_tok=2)
    network = transformers.MixtralForCausalLM(config).double().eval()
    before = network.config._experts_implementation
    operator = hessfig.Problem(network, BATCH).operator(
        "model.layers.0.mlp.experts.down_proj"
    )
    found = operator @ torch.ones(operator.shape[0]).double()
    assert network.config._experts_implementation == before != "eager"
    network.set_experts_implementation("eager")
    network.set_attn_implementation("eager")
    weight = network.model.layers[0].mlp.experts.down_proj
    (slope,) = torch.autograd.grad(network(**BATCH).loss, weight, create_graph=True)
    (truth,) = torch.autograd.grad(slope.sum(), weight)
    torch.testing.assert_close(found, truth.flatten(), rtol=1e-5, atol=1e-7)
