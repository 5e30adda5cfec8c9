"""Networks of a user's own whose names say one thing and do another: a name is given after a use, or asked for."""

import copy

import pytest
import torch
from torch import nn

from hessfig import Problem, find_weights
from hessfig.errors import UserError
from tests.daily import thinned
from tests.draws import labels

WIDTH = 8
HEADS = 2
HALF = 4
INNER = 12
WORDS = 11
_QKVO = ("W_Q", "W_K", "W_V", "W_O")


class Attention(nn.Module):
    """Attention by x @ W with W of shape (in, out); the entries of a head beside each other, or every other one."""

    def __init__(self, keys=HEADS, *, interleaved=False):
        super().__init__()
        self.num_heads = HEADS
        self.keys = keys
        self.interleaved = interleaved
        for name, outputs in zip(
            "qkvo", (WIDTH, keys * HALF, keys * HALF, WIDTH), strict=True
        ):
            self.register_parameter(name, nn.Parameter(torch.randn(WIDTH, outputs)))

    def split(self, vectors, heads):
        if self.interleaved:
            return vectors.unflatten(-1, (-1, heads)).permute(0, 3, 1, 2)
        return vectors.unflatten(-1, (heads, -1)).transpose(1, 2)

    def forward(self, hidden, beside=None):
        beside = hidden if beside is None else beside
        query = self.split(hidden @ self.q, HEADS)
        key = self.split(beside @ self.k, self.keys)
        value = self.split(beside @ self.v, self.keys)
        key, value = (
            one.repeat_interleave(HEADS // self.keys, 1) for one in (key, value)
        )
        mixed = (query @ key.mT / 2).softmax(-1) @ value
        joined = (
            mixed.permute(0, 2, 3, 1) if self.interleaved else mixed.transpose(1, 2)
        )
        return joined.flatten(2) @ self.o


class Fused(nn.Module):
    """Attention of one fused map, whose thirds follow each other in any order."""

    def __init__(self, order):
        super().__init__()
        self.order = order
        self.num_heads = HEADS
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out_proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        thirds = (
            one.unflatten(-1, (HEADS, HALF)).transpose(1, 2)
            for one in self.qkv(hidden).chunk(3, -1)
        )
        held = dict(zip(self.order, thirds, strict=True))
        mixed = (held["q"] @ held["k"].mT / 2).softmax(-1) @ held["v"]
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Gated(Attention):
    """Attention whose map of queries holds output gates, too, as in qwen3_next."""

    def __init__(self):
        super().__init__()
        self.q = nn.Parameter(torch.randn(WIDTH, 2 * WIDTH))

    def forward(self, hidden, beside=None):
        query, gate = (hidden @ self.q).unflatten(-1, (HEADS, 2, HALF)).unbind(-2)
        key = self.split(hidden @ self.k, HEADS)
        value = self.split(hidden @ self.v, HEADS)
        mixed = (query.transpose(1, 2) @ key.mT / 2).softmax(-1) @ value
        return (mixed.transpose(1, 2) * gate.sigmoid()).flatten(2) @ self.o


class Maps(nn.Module):
    """Three maps w1, w2, w3: `kind` says which is what."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        down = "w3" if kind == "w3 leads out" else "w2"
        for name in ("w1", "w2", "w3"):
            ends = (INNER, WIDTH) if name == down else (WIDTH, INNER)
            setattr(self, name, nn.Linear(*ends, bias=False))

    def forward(self, hidden):
        silu = nn.functional.silu
        if self.kind == "w3 leads out":
            return self.w3(silu(self.w1(hidden)) * self.w2(hidden))
        first = self.w1(hidden)
        third = self.w3(hidden)
        inner = {
            "w1 gates": lambda: silu(first) * third,
            "w1 gates by sigmoid": lambda: first.sigmoid() * third,
            "w3 gates": lambda: first * silu(third),
            "none gates": lambda: first * third,
        }[self.kind]
        return self.w2(inner())


class GateUp(nn.Module):
    """A gated MLP of one fused map, the gate before or behind."""

    def __init__(self, *, gate_first):
        super().__init__()
        self.gate_first = gate_first
        self.fc1 = nn.Linear(WIDTH, 2 * INNER)
        self.fc2 = nn.Linear(INNER, WIDTH)

    def forward(self, hidden):
        one, two = self.fc1(hidden).chunk(2, -1)
        gate, up = (one, two) if self.gate_first else (two, one)
        return self.fc2(nn.functional.silu(gate) * up)


class Experts(nn.Module):
    """Three experts under a name of their own, and the gate that chooses one."""

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.gate = nn.Linear(WIDTH, 3)
        setattr(self, name, nn.ModuleList(Maps("w1 gates") for _ in range(3)))

    def forward(self, hidden):
        weight, chosen = self.gate(hidden).softmax(-1).max(-1, keepdim=True)
        zero = torch.zeros(())
        return sum(
            torch.where(chosen == at, weight, zero) * one(hidden)
            for at, one in enumerate(getattr(self, self.name))
        )


class Network(nn.Module):
    """Tokens, one layer of some parts in residual connections, and logits."""

    def __init__(self, **parts):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList(
            [nn.ModuleDict({name: part() for name, part in parts.items()})]
        )

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for layer in self.layers:
            for part in layer.values():
                hidden = hidden + part(hidden)
        return self.head(hidden)


class Decoder(Network):
    """Two sequences: `src_attn` attends to the second."""

    def forward(self, tokens, source=None):
        hidden = self.embed(tokens)
        layer = self.layers[0]
        source = self.embed(tokens[:, :3] if source is None else source)
        hidden = hidden + layer["self_attn"](hidden)
        return self.head(hidden + layer["src_attn"](hidden, source))


class Stages(Network):
    """Two stages of one and two layers, with a map between them."""

    def __init__(self):
        super().__init__()

        def layer():
            return nn.ModuleDict({"attn": Attention(), "mlp": Maps("w1 gates")})

        blocks = [nn.ModuleList(layer() for _ in range(number)) for number in (1, 2)]
        self.stages = nn.ModuleList(
            nn.ModuleDict({"blocks": one, "down": nn.Linear(WIDTH, WIDTH)})
            for one in blocks
        )

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for stage in self.stages:
            for layer in stage["blocks"]:
                hidden = hidden + layer["attn"](hidden)
                hidden = hidden + layer["mlp"](hidden)
            hidden = stage["down"](hidden)
        return self.head(hidden)


def names(layout):
    return {weight.name for weight in layout.weights}


def numbered(layout, name, network):
    """Return the entries of a weight, counted through its parameter."""
    parts = [weight for weight in layout.weights if weight.name == name]
    numbers = torch.arange(network.get_parameter(parts[0].parameter).numel())
    whole = numbers.view(network.get_parameter(parts[0].parameter).shape)
    return torch.cat(
        [(whole if one.index is None else whole[one.index]).flatten() for one in parts]
    ).tolist()


def test_heads_of_maps_from_inputs_to_outputs_are_columns():
    network = Network(attn=Attention)
    layout = find_weights(network)
    whole = torch.arange(WIDTH**2).view(WIDTH, WIDTH)
    assert numbered(layout, "W_Q.head2", network) == whole[:, HALF:].flatten().tolist()
    assert numbered(layout, "W_V.head1", network) == whole[:, :HALF].flatten().tolist()
    assert numbered(layout, "W_O.head2", network) == whole[HALF:].flatten().tolist()
    assert {"W_E", "W_U", "b_U"} <= names(layout)


def test_grouped_keys_have_heads_of_their_own_and_those_of_queries_are_theirs():
    assert {"W_K.head1", "W_Q.head2", "W_O.head2"} <= names(
        find_weights(Network(attn=lambda: Attention(1)))
    )


def test_heads_that_are_not_beside_each_other_are_not_named():
    layout = find_weights(Network(attn=lambda: Attention(interleaved=True)))
    assert {*_QKVO} <= names(layout)
    assert not [name for name in names(layout) if ".head" in name]


@pytest.mark.parametrize("kind", ["w1 gates", "w1 gates by sigmoid"])
def test_three_maps_are_named_where_w1_gates(kind):
    network = Network(attn=Attention, mlp=lambda: Maps(kind))
    layout = find_weights(network)
    called = {}
    for weight in layout.weights:
        if ".mlp." in weight.parameter:
            called[weight.name] = weight.parameter.split(".")[-2]
    assert called == {"W_gate": "w1", "W_out": "w2", "W_in": "w3"}


ASKED = {
    "w3 gates": (
        lambda: Network(attn=Attention, mlp=lambda: Maps("w3 gates")),
        "mlp.w1",
    ),
    "none gates": (
        lambda: Network(attn=Attention, mlp=lambda: Maps("none gates")),
        "mlp.w3",
    ),
    "w3 leads out": (
        lambda: Network(attn=Attention, mlp=lambda: Maps("w3 leads out")),
        "mlp.w2",
    ),
    "two of a kind": (
        lambda: Network(temporal_attn=Attention, spatial_attn=Attention),
        "spatial_attn.q",
    ),
    "gates in the queries": (lambda: Network(attn=Gated), "attn.q"),
    "a fused map": (lambda: Network(attn=lambda: Fused("qkv")), "attn.qkv"),
    "experts and their gate": (
        lambda: Network(attn=Attention, moe=lambda: Experts("expert_list")),
        "moe.gate",
    ),
}


@pytest.mark.parametrize("case", thinned(ASKED, 2))
def test_what_is_not_used_as_its_name_says_is_asked_for_and_an_answer_is_taken(case):
    make, where = ASKED[case]
    with pytest.raises(UserError, match="do not tell what they do") as caught:
        find_weights(make())
    assert f"'{where}': 'other'" in caught.value.remedy
    answered = eval(
        caught.value.remedy,
        {"hessfig": type("", (), {"find_weights": find_weights}), "network": make()},
    )
    assert where in {name.replace(".0.", ".*.") for name in names(answered)}


def test_experts_are_named_with_what_chooses_them():
    found = names(find_weights(Network(attn=Attention, moe=lambda: Experts("experts"))))
    assert {"W_router", "W_gate.expert3", "W_in.expert1", "W_out"} <= found


def test_keys_of_other_inputs_are_those_of_cross_attention_whatever_its_name():
    network = Decoder(self_attn=Attention, src_attn=Attention)
    layout = find_weights(network)
    called = {}
    for weight in layout.weights:
        if weight.name.startswith("W_K"):
            called[weight.name] = weight.parameter
    assert called["W_K"] == "layers.0.self_attn.k"
    assert called["W_K.cross"] == "layers.0.src_attn.k"


def test_layers_of_stages_are_counted_one_by_one():
    layout = find_weights(Stages())
    assert layout.num_layers == 3
    assert [len(layout.members(at, "W_Q")) for at in (1, 2, 3)] == [1, 1, 1]
    assert {"stages.0.down", "stages.1.down"} <= {
        weight.name for weight in layout.weights if not weight.layer
    }


@pytest.mark.parametrize("order", ["qkv", "kqv", "vkq"])
def test_a_fused_map_is_cut_as_answered_and_a_wrong_answer_leads_to_no_further_name(
    order,
):
    network = Network(attn=lambda: Fused(order))
    layout = find_weights(
        network, {"attn.qkv": "+".join(f"W_{one.upper()}" for one in order)}
    )
    first = order.index("q") * WIDTH * WIDTH
    assert numbered(layout, "W_Q", network) == list(range(first, first + WIDTH * WIDTH))
    assert {"W_Q.head2", "b_V", "W_O"} <= names(layout)
    wrong = {"attn.qkv": "+".join(f"W_{one.upper()}" for one in order[::-1])}
    with pytest.raises(
        UserError, match=r"do not act as queries, keys and values .* with attn\.qkv as"
    ):
        find_weights(network, wrong)


def test_gates_among_queries_are_told_apart_by_an_answer():
    network = Network(attn=Gated)
    layout = find_weights(network, {"attn.q": "W_Q+W_G by heads"})
    whole = torch.arange(2 * WIDTH**2).view(WIDTH, HEADS, 2, HALF)
    assert numbered(layout, "W_Q.head2", network) == whole[:, 1, 0].flatten().tolist()
    assert sorted(numbered(layout, "W_G", network)) == sorted(
        whole[:, :, 1].flatten().tolist()
    )


@pytest.mark.parametrize("gate_first", [True, False])
def test_gate_and_up_in_one_map_are_checked(gate_first):
    network = Network(attn=Attention, mlp=lambda: GateUp(gate_first=gate_first))
    orders = ("W_gate+W_in", "W_in+W_gate")[:: 1 if gate_first else -1]
    assert {"W_gate", "W_in", "W_out"} <= names(
        find_weights(network, {"mlp.fc1": orders[0]})
    )
    with pytest.raises(UserError, match=r"not linear in W_in alone with mlp\.fc1"):
        find_weights(network, {"mlp.fc1": orders[1]})


class Stateful(Network):
    """A network that counts its calls in a buffer, keeps a result, and draws."""

    def __init__(self, **parts):
        super().__init__(**parts)
        self.register_buffer("calls", torch.zeros(()))
        self.drop = nn.Dropout(0.5)
        self.kept = None
        self.fails = False

    def forward(self, tokens):
        self.calls += 1
        self.kept = super().forward(tokens) + torch.rand(())
        if self.fails:
            raise ValueError("no such input")
        return self.drop(self.kept)


@pytest.mark.parametrize("fails", [False, True])
def test_the_network_and_the_state_of_torch_stay_as_they_were(fails):
    network = Stateful(attn=Attention).train()
    network.layers.eval()
    network.fails = fails
    before = (
        copy.deepcopy(network.state_dict()),
        [one.training for one in network.modules()],
        torch.get_rng_state(),
    )
    fast = torch.backends.mha.get_fastpath_enabled()
    if fails:
        with pytest.raises(
            UserError, match="does not run on inputs made up: ValueError: no such input"
        ):
            find_weights(network)
    else:
        find_weights(network)
    state, modes, rng = before
    for name, one in network.state_dict().items():
        assert one.equal(state[name])
    assert network.kept is None
    assert modes == [one.training for one in network.modules()]
    assert torch.get_rng_state().equal(rng)
    for one in network.modules():
        assert not one._forward_pre_hooks
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled() == fast


class Picky(Network):
    """A network that takes a dictionary of ten tokens alone."""

    def forward(self, *, words):
        assert words.shape[1] == 10
        return super().forward(words)


def test_a_batch_serves_where_none_can_be_made_up():
    network = Picky(attn=Attention)
    words = labels(3, 10, classes=WORDS)
    with pytest.raises(UserError, match="does not run on inputs made up") as caught:
        find_weights(network)
    assert "find_weights(network, inputs=BATCH)" in caught.value.remedy
    assert {*_QKVO, "W_E"} <= names(find_weights(network, inputs={"words": words}))
    problem = Problem(
        network,
        {"words": words, "labels": words},
        "labels",
        loss=lambda o, y: o.square().mean(),
        weights="found",
    )
    assert problem.operator("W_Q@1").shape == (WIDTH**2, WIDTH**2)
