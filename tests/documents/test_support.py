"""The tables of docs/own-model.md on what is supported: every cell is tried on a small network."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import hessfig
from hessfig.errors import UserError
from tests.pages import text_of

Case = Callable[[], tuple[hessfig.Problem, Any, dict[str, Any]]]


def _rows():
    """Return the cells of the four tables by what stands in their first column."""
    section = (
        text_of("docs/own-model.md")
        .partition("## What is supported\n")[2]
        .partition("\n## ")[0]
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.+\|$", section, re.M)
    ]
    return {row[0]: row[1:5] for row in rows if row[1] in ("yes", "no")}


class Net(nn.Module):
    """A function of named layers."""

    def __init__(self, forward, **layers):
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x):
        return self.function(self, x)


def _mlp(*middle, act=None):
    return nn.Sequential(nn.Linear(5, 6), *middle, act or nn.GELU(), nn.Linear(6, 3))


def _numbers():
    return torch.randn(8, 3)


class _Sine(nn.Module):
    reduction = "mean"

    def forward(self, outputs, targets):
        return torch.sin(outputs - targets).mean()


def _case(network=_mlp, loss="cross_entropy", targets=None, **more):
    block = more.pop("block", "0.weight")
    keywords = {k: more.pop(k) for k in ("dtype", "products") if k in more}
    shape = more.pop("shape", (8, 5))
    classes = more.pop("classes", (8,))
    inputs = more.pop("inputs", lambda: torch.randn(*shape))

    def make():
        torch.manual_seed(0)
        target = targets() if targets else torch.randint(0, 3, classes)
        return (
            hessfig.Problem(network(), inputs(), target, loss, **more),
            block,
            keywords,
        )

    return make


def _tokens(network, block="q.weight"):
    return _case(network, block=block, shape=(4, 5, 8), classes=(4, 5))


def _attention(mixed):
    def forward(net, x):
        q, k, v = (
            layer(x).unflatten(-1, (2, 4)).transpose(1, 2)
            for layer in (net.q, net.k, net.v)
        )
        return net.head(mixed(q, k, v).transpose(1, 2).flatten(2))

    return lambda: Net(
        forward, **{name: nn.Linear(8, 8) for name in "qkv"}, head=nn.Linear(8, 3)
    )


def _sdpa(**options):
    return _tokens(
        _attention(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options))
    )


def _fused(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v)


def _flex(q, k, v):
    from torch.nn.attention.flex_attention import flex_attention

    out = flex_attention(q, k, v)
    assert isinstance(out, Tensor)
    return out


def _grouped(q, k, v):
    return F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)


def _multihead(**masks):
    layers = lambda: {  # noqa: E731
        "a": nn.MultiheadAttention(8, 2, batch_first=True),
        "head": nn.Linear(8, 3),
    }
    forward = lambda net, x: net.head(net.a(x, x, x, need_weights=False, **masks)[0])  # noqa: E731
    return _tokens(lambda: Net(forward, **layers()), "a.in_proj_weight")


def _pretrained(kind, block, **sizes):
    def make():
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=11, bos_token_id=None, eos_token_id=None, **sizes
        )
        model = getattr(
            transformers, {"GPT2": "GPT2LMHeadModel"}.get(kind, f"{kind}ForCausalLM")
        )(config).eval()
        ids = torch.randint(0, 11, (3, 6))
        mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2, [1] * 5 + [0]])
        return (
            hessfig.Problem(
                model, {"input_ids": ids, "labels": ids, "attention_mask": mask}
            ),
            block,
            {},
        )

    return make


def _recurrent(kind):
    layers = lambda: {"r": kind(8, 4, batch_first=True), "head": nn.Linear(4, 3)}  # noqa: E731
    return _tokens(
        lambda: Net(lambda net, x: net.head(net.r(x)[0]), **layers()), "r.weight_ih_l0"
    )


def _conv(*middle, last=32, **options):
    layers = lambda: (  # noqa: E731
        nn.Conv2d(2, 2, 3, **options),
        *middle,
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(last, 3),
    )
    return _case(lambda: nn.Sequential(*layers()), shape=(8, 2, 6, 6))


def _embedding(kind):
    bag = kind is nn.EmbeddingBag
    ids = lambda: torch.randint(0, 7, (8, 5))  # noqa: E731
    return _case(
        lambda: nn.Sequential(kind(7, 4), nn.GELU(), nn.Linear(4, 3)),
        inputs=ids,
        classes=(8,) if bag else (8, 5),
    )


def _tied():
    net = Net(
        lambda net, ids: net.head(torch.tanh(net.map(net.e(ids)))),
        e=nn.Embedding(3, 4),
        map=nn.Linear(4, 4),
    )
    net.head = nn.Linear(4, 3, bias=False)
    net.head.weight = net.e.weight
    return net


def _checkpointed(reentrant):
    def forward(net, x):
        inner = checkpoint(
            lambda z: torch.tanh(net.a(z)), x.requires_grad_(), use_reentrant=reentrant
        )
        assert isinstance(inner, Tensor)
        return net.b(inner)

    return _case(
        lambda: Net(forward, a=nn.Linear(5, 6), b=nn.Linear(6, 3)), block="a.weight"
    )


def _straight_through(net, x):
    h = torch.tanh(net.a(x))
    return net.b(h + (h.round() - h).detach())


def _experts(net, x):
    gate = net.gate(x).softmax(-1)
    best = gate.argmax(-1, keepdim=True)
    return net.head(
        F.gelu(torch.where(best == 0, net.a(x), net.b(x))) * gate.gather(-1, best)
    )


def _batch_statistics():
    norm = nn.BatchNorm1d(6)
    norm.running_mean = norm.running_var = None
    return _mlp(norm).eval()


def _weight_norm(normed):
    network = _mlp()
    normed(network[0])
    return network


def _two(function, *middle):
    return lambda: function(_mlp(*middle))


def _decayed():
    torch.manual_seed(0)
    network = _mlp()
    weight = network[0].weight
    loss = lambda o, t: F.cross_entropy(o, t) + 0.01 * weight.square().sum()  # noqa: E731
    return (
        hessfig.Problem(network, torch.randn(8, 5), torch.randint(0, 3, (8,)), loss),
        "0.weight",
        {},
    )


def _ctc():
    torch.manual_seed(0)
    sizes = torch.full((3,), 6), torch.full((3,), 2)
    loss = lambda o, t: F.ctc_loss(o.log_softmax(-1).transpose(0, 1), t, *sizes)  # noqa: E731
    problem = hessfig.Problem(
        nn.Linear(4, 5),
        torch.randn(3, 6, 4),
        torch.tensor([[1, 2], [2, 3], [3, 1]]),
        loss,
    )
    return problem, "weight", {}


def _probabilities():
    return _numbers().softmax(-1)


CASES = {
    "`cross_entropy`, `nn.CrossEntropyLoss`": [
        _case(),
        _case(loss=F.cross_entropy),
        _case(loss=nn.CrossEntropyLoss(), targets=_probabilities),
        _case(
            loss=nn.CrossEntropyLoss(),
            targets=lambda: torch.tensor([0, 1, -100, 2, 0, -100, 1, 2]),
        ),
        _case(loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))),
        *(
            _case(loss=nn.CrossEntropyLoss(**o))
            for o in ({"label_smoothing": 0.1}, {"reduction": "sum"})
        ),
    ],
    "`mse`, `mse_sum`, `nn.MSELoss`": [
        _case(loss=loss, targets=_numbers) for loss in ("mse", "mse_sum", nn.MSELoss())
    ],
    "`nn.BCEWithLogitsLoss`, `nn.HuberLoss`, `nn.PoissonNLLLoss`": [
        _case(loss=loss, targets=_probabilities)
        for loss in (nn.BCEWithLogitsLoss(), nn.HuberLoss(), nn.PoissonNLLLoss())
    ],
    "`nn.L1Loss`": [_case(loss=nn.L1Loss(), targets=_numbers)],
    "`nn.NLLLoss` behind `nn.LogSoftmax`": [
        _case(lambda: nn.Sequential(*_mlp(), nn.LogSoftmax(-1)), nn.NLLLoss())
    ],
    "`nn.KLDivLoss`": [
        _case(
            lambda: nn.Sequential(*_mlp(), nn.LogSoftmax(-1)),
            nn.KLDivLoss(reduction="batchmean"),
            _probabilities,
        )
    ],
    "a function or module of your own, convex in the outputs": [
        _case(loss=lambda o, t: (o - t).pow(4).mean(), targets=_numbers),
        _case(
            loss=lambda o, t: F.kl_div(o.log_softmax(-1), t, reduction="batchmean"),
            targets=_probabilities,
        ),
    ],
    "one that is not convex": [
        _case(loss=lambda o, t: torch.sin(o - t).mean(), targets=_numbers),
        _case(loss=_Sine(), targets=_numbers),
    ],
    "a function that reads weights (decay)": [_decayed],
    "the network returns its loss": [
        _case(
            lambda: Net(lambda n, x: n.net(x).square().mean(), net=_mlp()),
            lambda o, t: o,
            _numbers,
            block="net.0.weight",
        )
    ],
    "CTC": [_ctc],
    "written in matrix products, softmax or sigmoid": [
        _tokens(_attention(lambda q, k, v: (q @ k.mT / 2).softmax(-1) @ v)),
        _tokens(_attention(lambda q, k, v: (q @ k.mT / 2).sigmoid() @ v)),
    ],
    "`F.scaled_dot_product_attention`": [
        _sdpa(),
        _sdpa(is_causal=True),
        _sdpa(attn_mask=torch.ones(5, 5).tril().bool()),
        _sdpa(attn_mask=torch.arange(25.0).reshape(5, 5).double() / 25),
        _tokens(_attention(_grouped)),
    ],
    "a fused kernel, chosen in `forward`": [_tokens(_attention(_fused))],
    "`flex_attention` on the CPU": [_tokens(_attention(_flex))],
    "`nn.MultiheadAttention`": [
        _multihead(),
        _multihead(attn_mask=torch.ones(5, 5).triu(1).bool()),
        _multihead(key_padding_mask=torch.tensor([[0, 0, 0, 1, 1]] * 4).bool()),
    ],
    "GPT-2 of transformers": [
        _pretrained(
            "GPT2",
            "transformer.h.0.attn.c_attn.weight",
            n_positions=8,
            n_embd=8,
            n_layer=1,
            n_head=2,
        )
    ],
    "Llama of transformers": [
        _pretrained(
            "Llama",
            "model.layers.0.self_attn.q_proj.weight",
            **{"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1},
            **{"num_attention_heads": 2, "num_key_value_heads": 1},
        )
    ],
    "`nn.Linear`, `nn.Conv2d`": [
        _case(),
        _conv(),
        _case(block="layer", weights={"layer": ["0.weight", "0.bias"]}),
    ],
    "a slice of a weight, a convolution with groups": [
        _case(block="rows", weights={"rows": ("0.weight", slice(0, 2))}),
        _conv(groups=2),
    ],
    "a pair of different weights": [_case(block=("0.weight", "2.weight"))],
    '`"all"`': [_case(block="all")],
    "ReLU, GELU, SiLU, Mish, Tanh, Softplus, ELU": [
        _case(lambda kind=kind: _mlp(act=kind()))
        for kind in (nn.ReLU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Softplus, nn.ELU)
    ],
    "LayerNorm, RMSNorm, GroupNorm, max pooling above the weight": [
        _case(lambda: _mlp(nn.LayerNorm(6))),
        _case(lambda: _mlp(nn.RMSNorm(6))),
        _conv(nn.GroupNorm(2, 2)),
        _conv(nn.MaxPool2d(2), last=8),
    ],
    "gains of a norm, `nn.Embedding`, `nn.EmbeddingBag`, tied embeddings": [
        _case(lambda: _mlp(nn.LayerNorm(6)), block="1.weight"),
        _embedding(nn.Embedding),
        _embedding(nn.EmbeddingBag),
        _case(
            _tied,
            inputs=lambda: torch.randint(0, 3, (4, 5)),
            classes=(4, 5),
            block="e.weight",
        ),
    ],
    "`nn.RNN`, `nn.GRU`, `nn.LSTM`": [
        _recurrent(kind) for kind in (nn.RNN, nn.GRU, nn.LSTM)
    ],
    "batch norm and dropout in evaluation mode": [
        _case(_two(nn.Module.eval, layer))
        for layer in (nn.BatchNorm1d(6), nn.Dropout(0.5))
    ],
    "batch norm and dropout in training mode": [
        _case(_two(nn.Module.train, layer))
        for layer in (nn.BatchNorm1d(6), nn.Dropout(0.5))
    ],
    "batch norm with the statistics of the batch": [_case(_batch_statistics)],
    "weight norm of `parametrizations`": [
        _case(
            lambda: _weight_norm(nn.utils.parametrizations.weight_norm),
            block="0.parametrizations.weight.original1",
        )
    ],
    "`torch.nn.utils.weight_norm`": [
        _case(lambda: _weight_norm(nn.utils.weight_norm), block="0.weight_v")
    ],
    "mixture of experts by `torch.where`": [
        _case(
            lambda: Net(
                _experts,
                gate=nn.Linear(5, 2),
                a=nn.Linear(5, 6),
                b=nn.Linear(5, 6),
                head=nn.Linear(6, 3),
            ),
            block="a.weight",
        )
    ],
    "checkpoints with `use_reentrant=False`": [_checkpointed(reentrant=False)],
    "reentrant checkpoints": [_checkpointed(reentrant=True)],
    "TorchScript": [_case(lambda: torch.jit.script(_mlp()))],
    "straight-through estimators": [
        _case(
            lambda: Net(_straight_through, a=nn.Linear(5, 6), b=nn.Linear(6, 3)),
            block="a.weight",
        )
    ],
    '`dtype="float64"`, `dtype="float32"`': [
        _case(dtype="float64"),
        _case(dtype="float32"),
    ],
    "a network in bfloat16 or float16": [
        _case(lambda: _mlp().bfloat16(), inputs=lambda: torch.randn(8, 5).bfloat16()),
        _case(lambda: _mlp().half(), inputs=lambda: torch.randn(8, 5).half()),
    ],
    '`dtype="bfloat16"`': [_case(dtype="bfloat16")],
    "complex parameters, quantised layers": [
        _case(
            lambda: nn.Linear(5, 3, dtype=torch.complex64),
            lambda o, t: (o - t).abs().square().mean(),
            lambda: torch.randn(8, 3, dtype=torch.complex64),
            inputs=lambda: torch.randn(8, 5, dtype=torch.complex64),
            block="weight",
        ),
        _case(lambda: torch.ao.quantization.quantize_dynamic(_mlp(), {nn.Linear})),
    ],
}


def test_every_row_has_cases():
    assert set(_rows()) == set(CASES)


def _answer(ask):
    try:
        ask()
    except UserError:
        return "no"
    return "yes"


def _answers(problem, block, keywords):
    def measured(part, quantity):
        table = hessfig.measure(
            problem, blocks=[block], parts=part, quantities=[quantity], **keywords
        )
        assert (table["status"] == "ok").all()

    return [
        _answer(lambda: measured("H", "frobenius")),
        _answer(lambda: (measured("H_o", "frobenius"), measured("H_f", "frobenius"))),
        _answer(lambda: measured("H", "largest_eigenvalue")),
        _answer(lambda: problem.approximation("kfac", block, "H_o").dense()),
    ]


@pytest.mark.long
@pytest.mark.parametrize("row", CASES)
@pytest.mark.filterwarnings("ignore")
def test_every_cell_is_what_happens(row):
    told = _rows()[row]
    for make in CASES[row]:
        assert [
            cell if cell == "-" else answer
            for cell, answer in zip(told, _answers(*make()), strict=True)
        ] == told
