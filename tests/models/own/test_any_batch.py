"""Models and batches of any kind: those of transformers, loaders, several inputs, losses as functions, LoRA."""

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

import hessfig
from hessfig.errors import UserError
from tests.daily import daily
from tests.double_backward import hessian
from tests.draws import tanh_network

pytestmark = pytest.mark.filterwarnings("ignore:.*curvlinops:RuntimeWarning")
SMALL = {
    "hidden_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 5,
}
WORDS = 9


def dense(loss, *parameters):
    """Return the Hessian of a loss in some parameters."""
    with sdpa_kernel([SDPBackend.MATH]):
        return hessian(loss, parameters)


def dense_by_rows(loss, parameter):
    """Return the Hessian a row at a time: what computes in float32 inside rounds otherwise in a batched pass."""
    with sdpa_kernel([SDPBackend.MATH]):
        (slope,) = torch.autograd.grad(loss(), parameter, create_graph=True)
        rows = []
        for one in slope.flatten():
            (row,) = torch.autograd.grad(one, parameter, retain_graph=True)
            rows.append(row.flatten())
        return torch.stack(rows)


def norms(problem, name, **settings):
    table = hessfig.measure(problem, blocks=[name], estimator="dense", **settings)
    return dict(zip(table["part"], table["value"], strict=True))


def tokens(*shape, seed=0):
    return torch.randint(3, WORDS, shape, generator=torch.Generator().manual_seed(seed))


def made(kind, config):
    torch.manual_seed(0)
    return kind(config).double().eval()


def causal():
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=8,
        n_embd=6,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = made(transformers.GPT2LMHeadModel, config)
    ids = tokens(3, 5)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]])
    batch = {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill(mask == 0, -100),
    }

    def loss():
        logits = model(input_ids=ids, attention_mask=mask).logits
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten()
        )

    return model, batch, "transformer.h.0.attn.c_proj.weight", loss


def masked():
    model = made(
        transformers.BertForMaskedLM, transformers.BertConfig(vocab_size=WORDS, **SMALL)
    )
    ids = tokens(2, 4)
    labels = tokens(2, 4, seed=1)
    labels[:, 1:3] = -100
    batch = {"input_ids": ids, "labels": labels}
    name = "bert.encoder.layer.0.attention.output.dense.weight"
    return (
        model,
        batch,
        name,
        lambda: F.cross_entropy(
            model(input_ids=ids).logits.flatten(0, 1), labels.flatten()
        ),
    )


def classes():
    config = transformers.BertConfig(vocab_size=WORDS, num_labels=3, **SMALL)
    model = made(transformers.BertForSequenceClassification, config)
    ids = tokens(4, 4)
    labels = torch.tensor([0, 2, 1, 1])
    return (
        *(model, {"input_ids": ids, "labels": labels}, "bert.pooler.dense.weight"),
        lambda: F.cross_entropy(model(input_ids=ids).logits, labels),
    )


def regression():
    config = transformers.BertConfig(vocab_size=WORDS, num_labels=1, **SMALL)
    model = made(transformers.BertForSequenceClassification, config)
    ids = tokens(4, 4)
    labels = torch.tensor([0.5, 2.0, -1.0, 1.0], dtype=torch.float64)
    return (
        *(model, {"input_ids": ids, "labels": labels}, "bert.pooler.dense.weight"),
        lambda: F.mse_loss(model(input_ids=ids).logits[:, 0], labels),
    )


def translation():
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=6,
        d_kv=3,
        d_ff=5,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model = made(transformers.T5ForConditionalGeneration, config)
    ids = tokens(2, 4)
    labels = tokens(2, 3, seed=1)
    return (
        *(
            model,
            {"input_ids": ids, "labels": labels},
            "encoder.block.0.layer.0.SelfAttention.o.weight",
        ),
        lambda: F.cross_entropy(
            model(input_ids=ids, labels=labels).logits.flatten(0, 1), labels.flatten()
        ),
    )


@pytest.mark.parametrize(
    "case",
    daily([causal, masked, classes, regression, translation], causal, regression),
)
def test_models_of_transformers_need_no_wrapper(case):
    """Their batches are dictionaries, their outputs objects, their losses their own; the split is at the logits."""
    model, batch, name, loss = case()
    before = {key: one.clone() for key, one in model.state_dict().items()}
    found = norms(hessfig.Problem(model, batch), name)
    # T5 takes its softmax in float32, whatever its weights are.
    rounding = 1e-7 if case is translation else 1e-10
    truth = dense_by_rows(loss, model.get_parameter(name))
    assert found["H"] == pytest.approx(truth.norm().item(), rel=rounding)
    assert {*found} == {"H", "H_o", "H_f"}
    assert found["H_o"] > 0
    for key, one in model.state_dict().items():
        assert torch.equal(one, before[key])


def test_a_loader_of_padded_batches_is_the_loss_on_all_tokens():
    model, batch, name, loss = causal()
    rows = [{key: one[at] for key, one in batch.items()} for at in range(3)]
    found = norms(
        hessfig.Problem(model, DataLoader(rows, batch_size=2)), name, parts="H"
    )
    assert found["H"] == pytest.approx(
        dense(loss, model.get_parameter(name)).norm().item(), rel=1e-10
    )


class Two(nn.Module):
    """A network of two inputs and two outputs."""

    def __init__(self, returns):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 2).double()
        self.b = nn.Linear(2, 2).double()
        self.returns = returns

    def forward(self, x, y):
        hidden = torch.tanh(self.a(x)) + y
        return self.returns(hidden, self.b(hidden))


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1)).double()
Y = torch.ones(4, 2).double()
GOAL = torch.tensor([0, 1, 1, 0])


def test_several_inputs_and_a_declared_output():
    plain = Two(lambda hidden, out: out)
    tupled = Two(lambda hidden, out: {"hidden": hidden, "scores": out})
    truth = norms(hessfig.Problem(plain, (X, Y), GOAL), "a.weight")
    assert (
        norms(hessfig.Problem(tupled, (X, Y), GOAL, outputs="scores"), "a.weight")
        == truth
    )
    assert (
        norms(
            hessfig.Problem(
                tupled, {"x": X, "y": Y, "goal": GOAL}, "goal", outputs="scores"
            ),
            "a.weight",
        )
        == truth
    )
    assert norms(hessfig.Problem(plain, [((X, Y), GOAL)]), "a.weight") == truth
    exact = dense(lambda: F.cross_entropy(plain(X, Y), GOAL), plain.a.weight)
    assert truth["H"] == pytest.approx(exact.norm().item(), rel=1e-10)
    with pytest.raises(UserError, match=r"not clear which tensor(.|\n)*outputs='NAME'"):
        norms(hessfig.Problem(tupled, (X, Y), GOAL), "a.weight")


def test_a_loss_of_all_outputs_has_a_hessian_and_no_split():
    network = Two(lambda hidden, out: {"hidden": hidden, "scores": out})

    def loss(outputs, targets):
        return (
            F.cross_entropy(outputs["scores"], targets)
            + outputs["hidden"].square().mean()
        )

    problem = hessfig.Problem(network, (X, Y), GOAL, loss)
    found = norms(problem, "a.weight")
    exact = dense(lambda: loss(network(X, Y), GOAL), network.a.weight)
    assert found == {"H": pytest.approx(exact.norm().item(), rel=1e-10)}
    with pytest.raises(UserError, match="no outputs are declared"):
        norms(problem, "a.weight", parts=["H_o"])


def test_a_function_is_split_where_it_is_convex():
    network = nn.Sequential(nn.Linear(3, 2), nn.Tanh()).double()
    target = Y
    convex = norms(
        hessfig.Problem(network, X, target, lambda f, y: (f - y).square().mean()),
        "0.weight",
    )
    assert convex == {**norms(hessfig.Problem(network, X, target, "mse"), "0.weight")}
    dip = hessfig.Problem(network, X, target, lambda f, y: f.cos().mean())
    assert {*norms(dip, "0.weight")} == {"H"}
    with pytest.raises(
        UserError,
        match="not convex in the outputs: its Hessian there has the eigenvalue -",
    ):
        norms(dip, "0.weight", parts=["H_o", "H_f"])


class LoRA(nn.Module):
    """A fixed linear map with a trained update of low rank."""

    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False).double()
        self.up = nn.Linear(rank, linear.out_features, bias=False).double()

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


def test_adapters_are_the_weights_where_they_alone_are_trained():
    torch.manual_seed(0)
    network = nn.Sequential(
        LoRA(nn.Linear(3, 4).double(), 1),
        nn.Tanh(),
        nn.Linear(4, 2).double().requires_grad_(False),
    )
    problem = hessfig.Problem(network, X, GOAL, weights="trainable")
    table = hessfig.measure(problem, blocks=["0.down.weight", "0.up.weight", "all"])
    assert {*table["row"]} == {"0.down.weight", "0.up.weight", "all"}
    whole = dense(
        lambda: F.cross_entropy(network(X), GOAL),
        network[0].down.weight,
        network[0].up.weight,
    )
    assert value_of(table, "all") == pytest.approx(whole.norm().item(), rel=1e-10)
    assert {name for name, one in network.named_parameters() if one.requires_grad} == {
        "0.down.weight",
        "0.up.weight",
    }
    with pytest.raises(
        UserError, match="no parameter of the network requires a gradient"
    ):
        hessfig.measure(
            hessfig.Problem(network.requires_grad_(False), X, GOAL, weights="trainable")
        )


def value_of(table, row):
    return float(table[(table["row"] == row) & (table["part"] == "H")]["value"].iloc[0])


def test_lora_of_peft():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    model, batch, _, _ = causal()
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=1, target_modules=["c_attn"], fan_in_fan_out=True)
    ).eval()
    table = hessfig.measure(
        hessfig.Problem(adapted, batch, weights="trainable"), blocks="each", parts="H"
    )
    assert len(table) == 2
    for row in table["row"]:
        assert "lora_" in row


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": {"given": X}}, "cannot take the batch: it raises TypeError"),
        ({"inputs": {"given": X}, "targets": None}, "no entry 'labels'"),
        ({"inputs": 3, "targets": None}, "inputs and targets are of another kind"),
        ({"inputs": {"x": 3}}, "without a tensor"),
        (
            {"inputs": [(X, GOAL), (X, GOAL), (X, GOAL)], "targets": [GOAL]},
            "3 batches and 1 targets",
        ),
        (
            {"inputs": [(X, GOAL)], "targets": F.cross_entropy},
            "a function stands in the place of the targets",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    network = nn.Linear(3, 2).double()
    given = {"inputs": X, "targets": GOAL, "loss": None, **changes}
    with pytest.raises(UserError, match=message):
        hessfig.measure(hessfig.Problem(network, **given))


def net():
    return tanh_network(3, 4, 2)


def test_what_computed_from_parameters_beforehand_is_used_is_refused_by_name():
    """A copy holds it as a constant; pruned and normalised weights are computed at every call (tests/odd_functions)."""
    network = net()
    network[0].halves = [network[2].weight / 2]
    # Nothing reads it.
    hessfig.measure(hessfig.Problem(network, X, GOAL), blocks=["0.weight"])
    network[0].register_forward_hook(
        lambda module, given, found: found + module.halves[0].sum()
    )
    with pytest.raises(
        UserError,
        match=r"not the user's function(.|\n)*0.halves(.|\n)*read self.NAME in forward",
    ):
        hessfig.measure(hessfig.Problem(network, X, GOAL), blocks=["0.weight"])
