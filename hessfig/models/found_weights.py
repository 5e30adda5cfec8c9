"""Weights of a transformer of any make, named by what they do: by names and shapes, and asked for otherwise."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

from torch import nn

from hessfig.errors import UserError, first_few
from hessfig.models.blocks import TIED, attention_groups
from hessfig.models.lens_bridge import WRAPPED, is_bridge, wrapped
from hessfig.terms import Group, Matrix
from hessfig.weights import Layout, Weight, bias_of, every_parameter

FOUND = "found"
_ALL, _OTHER, _ROUTER = slice(None), "other", "W_router"
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
_WIDTH = ("hidden_size", "d_model", "n_embd", "dim")
_QKV, _GATED = (Matrix.W_Q, Matrix.W_K, Matrix.W_V), (Matrix.W_gate, Matrix.W_in)
_FUSED, _GATE_UP = "+".join(_QKV), "+".join(_GATED)
_ATTENTION, _CROSS = re.compile(r"att(n|ention)"), re.compile(r"cross|encdec|encoder_att")
_NORM = re.compile(r"norm|^ln")
# The ends of a module's path, by its role: in attention, elsewhere in a layer, outside the layers.
_IN_ATTENTION = {
    **{f"W_{x[0].upper()}": rf"{x}|{x}_proj|{x[0]}|w{x[0]}|{x[0]}_(proj|lin)" for x in ("query", "key", "value")},
    "W_O": r"o|wo|dense|o_proj|out_proj|c_proj|out_lin",
    "W_rel": r"relative_attention_bias",
    _FUSED: r"qkv|wqkv|qkv_proj|c_attn|query_key_value",
}
_IN_MLP = {
    "W_gate": r"gate|gate_proj|wi_0",
    "W_in": r"in|up_proj|fc1|c_fc|fc_in|dense_h_to_4h|intermediate\.dense|lin1|w1|w3|wi|wi_1|ffn|ffn\.0|layer_1",
    "W_out": r"out|down_proj|fc2|c_proj|fc_out|dense_4h_to_h|output\.dense|lin2|w2|wo|ffn_output|ffn\.2|layer_2",
    _GATE_UP: r"gate_up_proj",
    _ROUTER: r"router|shared_expert_gate",
}
_OUTSIDE = {
    Matrix.W_patch: r"patch_embeddings\.projection",
    Matrix.W_pos: r"wpe|pos|pos_embed|embed_positions|positions_embed|position_embeddings?",
    "W_type": r"token_type_embeddings",
    Matrix.W_E: r"wte|shared|embed|embed_tokens|embed_in|tok_embed|tok_embeddings|tokens_embed|word_embeddings?",
    Matrix.W_U: r"head|lm_head|unembed|embed_out|classifier|decoder|lm_head\.decoder",
}
# How the outputs of fused maps follow each other is in no name and no shape: known of these types of transformers.
_FUSED_OF = {
    **dict.fromkeys(("gpt2", "openai-gpt", "imagegpt", "mpt", "phi3", "modernbert"), _FUSED),
    **dict.fromkeys(("gpt_neox", "bloom", "falcon", "persimmon", "gpt_bigcode"), f"{_FUSED} by heads"),
    "codegen": "W_Q+W_V+W_K by 4",
}
_GATE_UP_OF = {
    **dict.fromkeys(("phi3", "glm", "glm4", "modernbert", "mixtral", "qwen2_moe", "qwen3_moe"), _GATE_UP),
    **dict.fromkeys(("olmoe", "granitemoe", "llama4_text", "jamba", "ernie4_5_moe", "deepseek_v3"), _GATE_UP),
    "gpt_oss": f"{_GATE_UP} by entries",
}
_ROLE = re.compile(r"W_\w+(\+W_\w+)*( by (heads|entries|\d+))?|other")


def find_weights(network: nn.Module, roles: Mapping[str, str] | None = None) -> Layout:
    """Return the weights of a transformer by the names of the paper; with heads, experts, biases and norms.

    Parameters
    ----------
    network : torch.nn.Module
        A transformer with its layers in lists; the types of transformers are known best.
    roles : {module: role}, optional
        What cannot be told: the end of a module's path ("attn.pack") and its role, W_Q, W_K, W_V, W_O, W_gate, W_in,
        W_out or W_router; for a fused map what follows along its outputs, "W_Q+W_K+W_V", with " by heads" where it
        does so for every group of heads, " by 4" for 4 pieces, " by entries" for entries in turn; or "other": the
        matrix keeps its own name.

    Returns
    -------
    hessfig.weights.Layout
        For hessfig.Problem(..., weights=...). Layers are counted from 1 through all stacks (docs/names.md).

    Raises
    ------
    UserError
        Without attention in layers, and for matrices of layers whose role cannot be told.

    Examples
    --------
    >>> import hessfig
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    >>> network = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=6, vocab_size=5))
    >>> hessfig.find_weights(network).names
    ['W_E', 'W_Q', 'W_K', 'W_V', 'W_O', 'W_gate', 'W_in', 'W_out', 'W_U']
    """
    found = _Network(wrapped(network) if is_bridge(network) else network, _checked(roles or {}))
    if not found.has_layers:
        raise UserError(
            "weights: there are no layers with attention under a name that is known",
            got=f"{type(network).__name__}: {first_few([one.path for one in found.held])}",
            allowed="layers in lists, whose modules are called q_proj, query, c_attn, ... (docs/names.md)",
            remedy="find_weights(network, roles={MODULE: ROLE}), or weights={NAME: PARAMETER}",
        )
    if asked := found.asked:
        raise UserError(
            f"weights: of {len(asked)} kinds of matrices in layers the names and shapes do not tell what they do",
            got=first_few([f"{where} {shape}" for where, shape in asked.items()]),
            allowed=f"W_Q, W_K, W_V, W_O, W_gate, W_in, W_out, {_ROUTER}, '{_FUSED}', '{_FUSED} by heads', '{_OTHER}'",
            remedy=f"hessfig.find_weights(network, roles={dict.fromkeys(asked, _OTHER)})",
        )
    whole = every_parameter((one.path, one.size) for one in found.held)
    return Layout(tuple(found.weights()), whole.weights)


def _checked(roles: Mapping[str, str]) -> dict[str, str]:
    for where, role in roles.items():
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise UserError(
                f"roles: that of {where} is not known",
                got=repr(role),
                allowed=f"W_Q, W_in, ..., '{_FUSED} by heads', '{_OTHER}'",
                remedy="see hessfig.find_weights",
            )
    return dict(roles)


@dataclass(frozen=True)
class _Held:
    """A parameter: its `path`; of its module the `stack` of layers, the layer (0: outside) and the place in it.

    `outputs` is the axis of the outputs, `heads` the number of the attention around it, or of the network; `role` what
    it does in its layer ("": that cannot be told).
    """

    path: str
    shape: tuple[int, ...]
    stack: str
    layer: int
    where: str
    is_bias: bool
    outputs: int
    heads: int
    role: str = ""

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def lower(self) -> str:
        return self.where.lower()

    @property
    def in_attention(self) -> bool:
        return _ATTENTION.search(self.lower) is not None

    @property
    def is_of_norm(self) -> bool:
        return len(self.shape) == 1 and _NORM.search(self.lower.rpartition(".")[2]) is not None

    @property
    def names(self) -> list[str]:
        """The weights that follow each other along its outputs."""
        return self.role.partition(" ")[0].split("+")

    @property
    def suffix(self) -> str:
        """What tells weights of one role in a layer apart: cross-attention, and experts that every token meets."""
        return ".cross" if self.in_attention and _CROSS.search(self.lower) else ".shared" * ("shared" in self.lower)


class _Network:
    """The parameters of a network in their places, and what each does."""

    def __init__(self, network: nn.Module, roles: dict[str, str]) -> None:
        self.network, self.roles = network, roles
        config: Any = getattr(network, "config", None) or getattr(network, "cfg", None)
        self.config = config.get_text_config() if hasattr(config, "get_text_config") else config
        self.type, self.width = str(getattr(self.config, "model_type", "")), _first(self.config, _WIDTH)
        named = network.named_parameters()
        placed = [self._placed(name, tuple(one.shape)) for name, one in named if one.is_floating_point()]
        self.shapes = defaultdict[tuple[str, int], dict[str, tuple[int, ...]]](dict)  # of each layer's matrices
        for one in placed:
            if not one.is_bias:
                self.shapes[one.stack, one.layer][one.where] = one.shape
        placed = [replace(one, role=self._role(one)) if one.layer else one for one in placed]
        stacks = list(dict.fromkeys(one.stack for one in placed if Matrix.W_Q in one.names))
        lengths = [max(one.layer for one in placed if one.stack == stack) for stack in stacks]
        above = dict(zip(stacks, accumulate([0, *lengths]), strict=False))
        self.has_layers = bool(stacks)
        in_stack = [one.layer > 0 and one.stack in above for one in placed]
        layers = [one.layer + above[one.stack] if inside else 0 for one, inside in zip(placed, in_stack, strict=True)]
        self.held = [replace(one, layer=layer) for one, layer in zip(placed, layers, strict=True)]

    @property
    def asked(self) -> dict[str, tuple[int, ...]]:
        """The matrices in layers that have no role, by the place of their module, with the shape of one."""
        return {
            re.sub(r"\.\d+\.", ".*.", one.where.partition(".")[2]): one.shape
            for one in self.held
            if one.layer and not (one.is_bias or one.role)
        }

    def weights(self) -> Iterator[Weight]:
        """Yield every weight in the order of the parameters."""
        for one in self.held:
            if not one.layer:
                yield self._outside(one)
            elif one.role in ("", _OTHER):
                yield _own(one)
            else:
                yield from self._in_layer(one)

    def _placed(self, path: str, shape: tuple[int, ...]) -> _Held:
        parts = path.replace(WRAPPED, "").split(".")
        at = next((place for place, part in enumerate(parts) if place and part.isdigit()), 0)
        inside = [parts[at - 1], *parts[at + 1 :]] if at else parts
        leaf, owner = inside[-1], self.network.get_submodule(path.rpartition(".")[0])
        is_bias = leaf == "bias" or leaf.endswith("_bias")
        place = inside[:-1] if leaf in ("weight", "bias") else [*inside[:-1], leaf.removesuffix("_bias" * is_bias)]
        outputs = len(shape) - 1 if is_bias or type(owner).__name__ == "Conv1D" else 0
        stack, layer = (".".join(parts[: at - 1]), int(parts[at]) + 1) if at else ("", 0)
        return _Held(path, shape, stack, layer, ".".join(place), is_bias, outputs, self._heads(path))

    def _heads(self, path: str) -> int:
        while path := path.rpartition(".")[0]:
            module = self.network.get_submodule(path)
            if _ATTENTION.search(type(module).__name__.lower()) and (found := _first(module, _HEADS)):
                return found
        return _first(self.config, _HEADS)

    def _role(self, one: _Held) -> str:
        """Return what a parameter of a layer does, as given, or as its place and its shape tell; "" otherwise."""
        shape = self.shapes[one.stack, one.layer].get(one.where, one.shape)
        for end, role in self.roles.items():
            if re.search(rf"(^|\.){re.escape(end).replace(re.escape('*'), '[0-9]+')}$", one.where):
                return role
        if len(shape) < 2 or (one.is_bias and shape is one.shape):
            return _OTHER
        patterns = _IN_ATTENTION if one.in_attention else _IN_MLP
        role = next((role for role, ends in patterns.items() if re.search(rf"(^|\.)({ends})$", one.lower)), "")
        told = self._told(role, one, shape)
        return told if self._fits(told, one, shape) else ""

    def _told(self, role: str, one: _Held, shape: tuple[int, ...]) -> str:
        """Return the role of which the names of its layer, or the type of the model, know more."""
        last = one.lower.rpartition(".")[2]
        if role == _FUSED:
            return _FUSED_OF.get(self.type, "")
        if role == _GATE_UP or (role == Matrix.W_in and shape[0] == 2 * self._beside(one, _IN_MLP["W_out"])):
            return _GATE_UP_OF.get(self.type, "")
        if last == "gate" and any(".experts." in where for where in self.shapes[one.stack, one.layer]):
            return _ROUTER
        return Matrix.W_gate.value if last == "w1" and self._beside(one, "w3") else str(role)

    def _beside(self, one: _Held, ends: str) -> int:
        """Return the last axis of a weight beside this one in its module; 0 where there is none."""
        end = re.compile(rf"{re.escape(one.where.rpartition('.')[0])}\.({ends})", re.IGNORECASE)
        beside = self.shapes[one.stack, one.layer].items()
        return next((shape[-1] for where, shape in beside if end.fullmatch(where)), 0)

    def _fits(self, role: str, one: _Held, shape: tuple[int, ...]) -> bool:
        """Whether a matrix of this role can have this shape: W_O and W_out end in the residual stream, others begin."""
        if not role or not self.width or len(shape) != 2 or one.suffix == ".cross" or role == "W_rel":
            return True
        by_inputs = type(self.network.get_submodule(one.path.rpartition(".")[0])).__name__ == "Conv1D"
        outputs, inputs = shape[::-1] if by_inputs else shape
        return (outputs if role in (Matrix.W_O, Matrix.W_out) else inputs) == self.width

    def _outside(self, one: _Held) -> Weight:
        """Return a weight outside the layers: embedding, unembedding, both in one, or one under its own name."""
        called = self.aliases[one.path]
        found = [name for name, ends in _OUTSIDE.items() if any(re.search(rf"(^|\.)({ends})$", c) for c in called)]
        tied = {*found} >= {Matrix.W_E, Matrix.W_U}
        if not found or (len(one.shape) < 2 and not one.is_bias):
            return _own(one)
        name = TIED if tied else str(found[0])
        if one.is_bias:
            return bias_of(name, one.path, one.size)
        return Weight(name, one.path, one.size, groups=() if name == Matrix.W_U else (Group.embeddings.value,))

    @cached_property
    def aliases(self) -> dict[str, list[str]]:
        """Every name of a module that holds a parameter, and what it is to a model of transformers, by its path."""
        paths = {id(one): path for path, one in self.network.named_parameters()}
        found: dict[str, list[str]] = {path: [] for path in paths.values()}
        for path, one in self.network.named_parameters(remove_duplicate=False):
            found[paths[id(one)]].append(re.sub(r"\.(weight|bias)$", "", path.replace(WRAPPED, "")).lower())
        for word, get in (("embed", "get_input_embeddings"), ("head", "get_output_embeddings")):
            table = getattr(self.network, get, lambda: None)()
            for one in table.parameters() if table is not None else ():
                found[paths[id(one)]].append(word)
        return found

    def _in_layer(self, one: _Held) -> Iterator[Weight]:
        """Yield the weights that a map is, or that follow each other along its outputs, with their heads, experts."""
        axis, total, head = self._axis(one), 0, self._head(one)
        sizes = self._sizes(one, one.shape[axis], head)
        by = one.role.partition(" by ")[2]
        kv = sizes[one.names.index(Matrix.W_K)] // head if by == "heads" else 1
        for place, (name, size) in enumerate(zip(one.names, sizes, strict=True)):
            cut = slice(place, None, len(sizes)) if by == "entries" else slice(total, total + size)
            view = _View(axis, one.shape[axis], int(by) if by.isdigit() else kv, cut, is_whole=len(sizes) == 1)
            yield from self._named(one, f"{name}{one.suffix}", size, view, head)
            total += size

    def _named(self, one: _Held, name: str, size: int, view: _View, head: int) -> Iterator[Weight]:
        """Yield one weight or bias, and its heads and experts, which are counted from 1."""
        entries, axes = one.size // one.shape[view.axis] * size, view.axes
        is_attention = one.in_attention or {*one.names} & {*_QKV}
        groups = attention_groups(name) if is_attention else (Group.mlp.value,)
        if one.is_bias:
            made = bias_of(name, one.path, entries, one.layer, Group(groups[0]))
            yield replace(made, index=view.index, axes=axes)
            return
        whole = Weight(name, one.path, entries, one.layer, groups, view.index, axes=axes)
        yield whole
        finer = replace(whole, groups=(), is_main=False, is_finer=True)
        for word, parts in (("head", self._heads_of(one, name, size, view, head)), ("expert", _experts_of(one, view))):
            for at, index in parts.items():
                size_of = whole.size // len(parts)
                yield replace(finer, name=f"{name}.{word}{at + 1}", size=size_of, index=index)

    def _heads_of(self, one: _Held, name: str, size: int, view: _View, head: int) -> dict[int, Any]:
        """Return the place of every head in a matrix of queries, keys or values, and in that behind them."""
        if len(one.shape) != 2 or not head:
            return {}
        if name in _QKV and size % head == 0:
            return {at: view.head(at, size // head, head) for at in range(size // head)}
        if name == Matrix.W_O and one.shape[1 - one.outputs] == one.heads * head:
            return {at: _at(1 - one.outputs, slice(at * head, (at + 1) * head)) for at in range(one.heads)}
        return {}

    def _axis(self, one: _Held) -> int:
        """Return the axis of a map's outputs; of experts in one tensor it is told by the map behind them."""
        if one.is_bias or len(one.shape) != 3 or ".experts." not in one.where:
            return one.outputs
        return 1 if 2 * self._beside(one, "down_proj") == one.shape[1] else 2

    def _head(self, one: _Held) -> int:
        """Return the width of a head."""
        return _first(self.config, ("head_dim", "d_head", "d_kv")) or (self.width // one.heads if one.heads else 0)

    def _sizes(self, one: _Held, total: int, head: int) -> list[int]:
        """Return the outputs of each of the weights of a map. Raises UserError where the heads do not divide them."""
        if not {*one.names} >= {*_QKV}:
            return [total // len(one.names)] * len(one.names)
        shared = (total - one.heads * head) // 2
        if not head or shared <= 0 or shared % head:
            raise UserError(
                f"weights: the outputs of {one.path} are not those of queries, and as many keys as values, in heads",
                got=f"{total} outputs, {one.heads} heads of width {head} by the configuration",
                allowed="network.config with num_attention_heads (and head_dim) that fit",
                remedy="weights={NAME: (PARAMETER, SLICE)} for your own names",
            )
        return [one.heads * head if name == Matrix.W_Q else shared for name in one.names]


@dataclass(frozen=True)
class _View:
    """The outputs `cut` of `total` along `axis`; they are spread over `blocks` equal pieces of it."""

    axis: int
    total: int
    blocks: int
    cut: slice
    is_whole: bool

    @property
    def axes(self) -> tuple[int, ...]:
        return () if self.blocks == 1 else (self.blocks, self.total // self.blocks)

    @property
    def index(self) -> Any:
        if self.is_whole:
            return None
        if self.blocks == 1:
            return _at(self.axis, self.cut)
        return (_ALL, slice(self.cut.start // self.blocks, self.cut.stop // self.blocks))

    def head(self, at: int, heads: int, width: int) -> Any:
        """Return where one of the `heads` of these outputs is."""
        block, place = divmod(at, heads // self.blocks)
        start = self.cut.start // self.blocks + place * width
        cut = slice(start, start + width)
        return _at(self.axis, cut) if self.blocks == 1 else (block, cut)


def _experts_of(one: _Held, view: _View) -> dict[int, Any]:
    """Return the place of every expert in a map that holds them all, or of the one whose map it is."""
    if number := re.search(r"experts\.(\d+)\.", one.path):
        return {int(number[1]): view.index}
    if ".experts." not in one.where or len(one.shape) != 3:
        return {}
    rest = (view.index or (_ALL,))[1:]
    return {at: (at, *rest) if rest else at for at in range(one.shape[0])}


def _at(axis: int, cut: slice) -> Any:
    return (_ALL,) * axis + (cut,) if axis else cut


def _own(one: _Held) -> Weight:
    """Return a parameter under its own name: gains and shifts of norms, and what has no role."""
    place = one.where.partition(".")[2] if one.layer else one.where
    if one.is_of_norm:
        name = f"{place}_{'shift' if one.is_bias else 'gain'}"
        return Weight(name, one.path, one.size, one.layer, (Group.norms.value,), is_main=False)
    groups = (Group.biases.value,) * one.is_bias
    return Weight(place + ".bias" * one.is_bias, one.path, one.size, one.layer, groups, is_main=len(one.shape) > 1)


def _first(thing: Any, names: tuple[str, ...]) -> int:
    """Return the first of these attributes that is a number; 0 where none is."""
    found = (getattr(thing, name, None) for name in names)
    return next((one for one in found if isinstance(one, int) and one > 0), 0)
