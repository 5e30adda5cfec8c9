"""Layers and suggested roles of the parameters of a transformer, by names and shapes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import Any

from torch import nn

from hessfig.curvature.problem import real_parameters
from hessfig.terms import Matrix

WRAPPED = "_original_component."  # path between a module of a TransformerBridge and the original module
OTHER, ROUTER = "other", "W_router"
QKV, GATED = (Matrix.W_Q, Matrix.W_K, Matrix.W_V), (Matrix.W_gate, Matrix.W_in)
FUSED = "+".join(QKV)
GATE_UP = "+".join(GATED)
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim")
_HEAD_WIDTH = ("head_dim", "d_head", "d_kv")
_ATTENTION = re.compile(r"att(n|ention)")
_CROSS = re.compile(r"cross|encdec|encoder_att")
_NORM = re.compile(r"norm|^ln")
# The ends of the path of a module, by its role: in attention, and elsewhere in a layer.
_IN_ATTENTION = {
    **{
        f"W_{x[0].upper()}": rf"{x}|{x}_proj|{x[0]}|w{x[0]}|{x[0]}_(proj|lin)"
        for x in ("query", "key", "value")
    },
    "W_O": r"o|wo|dense|o_proj|out_proj|c_proj|out_lin",
    "W_rel": r"relative_attention_bias",
    FUSED: r"qkv|wqkv|qkv_proj|c_attn|query_key_value",
}
_IN_MLP = {
    "W_gate": r"gate|gate_proj|wi_0",
    "W_in": r"in|up_proj|fc1|c_fc|fc_in|dense_h_to_4h|intermediate\.dense|lin1|w1|w3|wi|wi_1|ffn|ffn\.0|layer_1",
    "W_out": r"out|down_proj|fc2|c_proj|fc_out|dense_4h_to_h|output\.dense|lin2|w2|wo|ffn_output|ffn\.2|layer_2",
    GATE_UP: r"gate_up_proj",
    ROUTER: r"router|shared_expert_gate",
}
# Names and shapes do not determine the order of outputs of fused maps; it is known for
# these types of transformers.
_FUSED_OF = {
    **dict.fromkeys(
        ("gpt2", "openai-gpt", "imagegpt", "mpt", "phi3", "modernbert"), FUSED
    ),
    **dict.fromkeys(
        ("gpt_neox", "bloom", "falcon", "persimmon", "gpt_bigcode"), f"{FUSED} by heads"
    ),
    "codegen": "W_Q+W_V+W_K by 4",
}
_GATE_UP_OF = {
    **dict.fromkeys(
        (
            "phi3",
            "glm",
            "glm4",
            "modernbert",
            "mixtral",
            "qwen2_moe",
            "qwen3_moe",
            "olmoe",
            "granitemoe",
            "llama4_text",
            "jamba",
            "ernie4_5_moe",
            "deepseek_v3",
        ),
        GATE_UP,
    ),
    "gpt_oss": f"{GATE_UP} by entries",
}


@dataclass(frozen=True)
class Held:
    """A parameter: its `path`, and the `stack` of layers, the layer (0: outside) and the place of its module.

    `outputs` is the axis of outputs. `heads` is the number of heads of its attention,
    or of the network, and `width` the width of a head (0: unknown). `role` is its role
    in the layer ("": unknown); `given` is true if the user gave it, and `has_heads` if
    its heads may be named. `suffix` distinguishes weights with the same role in a
    layer: cross-attention, and shared experts.
    """

    path: str
    shape: tuple[int, ...]
    stack: str
    layer: int
    where: str
    is_bias: bool
    outputs: int
    heads: int = 0
    width: int = 0
    role: str = ""
    given: bool = False
    has_heads: bool = True
    suffix: str = ""

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
    def is_of_attention(self) -> bool:
        return self.in_attention or bool({*self.names} & {*QKV})

    @property
    def is_of_norm(self) -> bool:
        return (
            len(self.shape) == 1
            and _NORM.search(self.lower.rpartition(".")[2]) is not None
        )

    @property
    def names(self) -> list[str]:
        """The weights along the outputs of the map, in order."""
        return self.role.partition(" ")[0].split("+")

    @property
    def module(self) -> str:
        """The attention or expert to which it belongs; "" for an MLP, whose matrices may be in different modules."""
        parts = self.where.split(".")
        count = 0
        if self.is_of_attention:
            named = map(_ATTENTION.search, self.lower.split("."))
            ends = (at for at, found in enumerate(named) if at and found)
            count = next(ends, len(parts) - 2) + 1
        else:
            for at, part in enumerate(parts[:-1], start=1):
                if part.isdigit():
                    count = at
        return ".".join(parts[:count])

    @property
    def is_named_cross(self) -> bool:
        return is_cross(self.where)


class Places:
    """The parameters of a network with their places; `used` maps parameters to the axis of outputs seen in a run."""

    def __init__(
        self, network: nn.Module, roles: Mapping[str, str], used: Mapping[str, int]
    ) -> None:
        self.network = network
        self.roles = roles
        self.used = used
        config: Any = getattr(network, "config", None) or getattr(network, "cfg", None)
        if hasattr(config, "get_text_config"):
            self.config = config.get_text_config()
        else:
            self.config = config
        self.type = str(getattr(self.config, "model_type", ""))
        self.width = first(self.config, WIDTHS)
        parameters = real_parameters(network)
        named = [(path, tuple(one.shape)) for path, one in parameters.items()]
        self._lists = _nested_lists([path for path, _ in named])
        placed = [self._placed(path, shape) for path, shape in named]
        # The matrices of every layer, by their places.
        self.matrices = defaultdict[tuple[str, int], dict[str, Held]](dict)
        for weight in placed:
            if not weight.is_bias:
                self.matrices[weight.stack, weight.layer][weight.where] = weight
        self.held = _counted(
            [self._with_role(weight) if weight.layer else weight for weight in placed]
        )

    @property
    def has_layers(self) -> bool:
        """Whether there are layers with attention, according to names and the user."""
        return any(one.layer for one in self.held)

    def _placed(self, path: str, shape: tuple[int, ...]) -> Held:
        parts = path.replace(WRAPPED, "").split(".")
        digits = [place for place, part in enumerate(parts) if place and part.isdigit()]
        nested = [place for place in digits if _starred(parts[:place]) in self._lists]
        at = (nested[-1:] or digits[:1] or [0])[0]
        inside = [parts[at - 1], *parts[at + 1 :]] if at else parts
        leaf = inside[-1]
        owner = self.network.get_submodule(path.rpartition(".")[0])
        is_bias = leaf == "bias" or leaf.endswith("_bias")
        if leaf in ("weight", "bias"):
            place = inside[:-1]
        else:
            place = [*inside[:-1], leaf.removesuffix("_bias" * is_bias)]
        if is_bias or type(owner).__name__ == "Conv1D":
            outputs = len(shape) - 1
        else:
            outputs = 0
        stack, layer = (
            (".".join(parts[: at - 1]), int(parts[at]) + 1) if at else ("", 0)
        )
        return Held(
            path,
            shape,
            stack,
            layer,
            ".".join(place),
            is_bias,
            self.used.get(path, outputs),
        )

    def _with_role(self, held: Held) -> Held:
        role, given = self._role(held)
        heads = self._around(held.path, _HEADS) or first(self.config, _HEADS)
        width = first(self.config, _HEAD_WIDTH) or self._around(held.path, _HEAD_WIDTH)
        behind = self.inputs_beside(held, _IN_ATTENTION["W_O"])
        heads = heads or (behind // width if width else 0)
        width = width or ((self.width or behind) // heads if heads else 0)
        suffix = ".shared" * ("shared" in held.lower)
        if held.in_attention and held.is_named_cross:
            suffix = ".cross"
        has_heads = not given or "heads" in role
        outputs = held.outputs
        if len(held.shape) == 3 and not held.is_bias and held.path not in self.used:
            is_first = 2 * self.inputs_beside(held, "down_proj") == held.shape[1]
            outputs = 1 if is_first else 2
        return replace(
            held,
            outputs=outputs,
            heads=heads,
            width=width,
            role=role,
            given=given,
            has_heads=has_heads,
            suffix=suffix,
        )

    def _around(self, path: str, names: tuple[str, ...]) -> int:
        """Return a number attribute of the attention around a parameter, under one of these names; 0 if none."""
        while path := path.rpartition(".")[0]:
            module = self.network.get_submodule(path)
            called = f"{type(module).__name__} {path.rpartition('.')[2]}".lower()
            if _ATTENTION.search(called) and (size := first(module, names)):
                return size
        return 0

    def _role(self, held: Held) -> tuple[str, bool]:
        """Return the role of a parameter by place and shape ("": unknown) or by the user, and whether it is given."""
        matrix = self.matrices[held.stack, held.layer].get(held.where, held)
        for end, role in self.roles.items():
            if re.search(
                rf"(^|\.){re.escape(end).replace(re.escape('*'), '[0-9]+')}$",
                held.where,
            ):
                return role, True
        if len(matrix.shape) < 2 or (held.is_bias and matrix is held):
            return OTHER, False
        patterns = _IN_ATTENTION if held.in_attention else _IN_MLP
        role = next(
            (
                role
                for role, ends in patterns.items()
                if re.search(rf"(^|\.)({ends})$", held.lower)
            ),
            "",
        )
        known = self._told(role, held, matrix)
        return (known if self._fits(known, held, matrix) else ""), False

    def _told(self, role: str, held: Held, matrix: Held) -> str:
        """Return the role, refined by other names in the layer or by the type of the model."""
        last = held.lower.rpartition(".")[2]
        if role == FUSED:
            return _FUSED_OF.get(self.type, "")
        outputs = matrix.shape[matrix.outputs]
        if role == GATE_UP or (
            role == Matrix.W_in
            and outputs == 2 * self.inputs_beside(held, _IN_MLP["W_out"])
        ):
            return _GATE_UP_OF.get(self.type, "")
        if last == "gate" and any(
            ".experts." in where for where in self.matrices[held.stack, held.layer]
        ):
            return ROUTER
        if last == "w1" and self.inputs_beside(held, "w3"):
            return Matrix.W_gate.value
        return str(role)

    def inputs_beside(self, held: Held, ends: str) -> int:
        """Return the number of inputs of another weight in the same module; 0 if there is none."""
        end = re.compile(
            rf"{re.escape(held.where.rpartition('.')[0])}\.({ends})", re.IGNORECASE
        )
        for where, matrix in self.matrices[held.stack, held.layer].items():
            if end.fullmatch(where) and len(matrix.shape) > 1:
                if matrix.outputs == 1 and len(matrix.shape) == 2:
                    return matrix.shape[0]
                return matrix.shape[-1]
        return 0

    def _fits(self, role: str, held: Held, matrix: Held) -> bool:
        """Whether a matrix of this role can have this shape; W_O and W_out write the residual stream, others read."""
        is_checked = role not in ("", "W_rel") and held.suffix != ".cross"
        if not (is_checked and self.width and len(matrix.shape) == 2):
            return True
        outputs, inputs = matrix.shape
        if matrix.outputs == 1:
            outputs, inputs = inputs, outputs
        return (outputs if role in (Matrix.W_O, Matrix.W_out) else inputs) == self.width


def is_cross(place: str) -> bool:
    """Whether the name of a place is that of cross-attention."""
    return _CROSS.search(place.lower()) is not None


def _starred(parts: list[str]) -> str:
    return ".".join("*" if part.isdigit() else part for part in parts)


def _nested_lists(paths: Iterable[str]) -> set[str]:
    """Return the nested lists (stages of layers) whose items contain attention."""
    items = defaultdict[tuple[str, ...], set[str]](set)
    for path in paths:
        parts = path.replace(WRAPPED, "").split(".")
        digits = [place for place, part in enumerate(parts) if place and part.isdigit()]
        for place in digits[1:]:
            before = parts[:place]
            behind = ".".join(parts[place + 1 :])
            inside = ".".join(before[digits[0] :])
            found = [_ATTENTION.search(where.lower()) for where in (inside, behind)]
            if found[1] and not found[0]:
                items[_starred(before), ".".join(before), behind].add(parts[place])
    return {starred for (starred, *_), numbers in items.items() if len(numbers) > 1}


def _counted(weights: list[Held]) -> list[Held]:
    """Return the parameters with layers numbered through all stacks that have attention; other stacks are outside."""

    def is_sign(held: Held) -> bool:
        behind = held.in_attention and (held.given or Matrix.W_O in held.names)
        return held.layer > 0 and (behind or Matrix.W_Q in held.names)

    stacks = list(dict.fromkeys(one.stack for one in weights if is_sign(one)))
    lengths = [
        max(one.layer for one in weights if one.stack == stack) for stack in stacks
    ]
    above = dict(zip(stacks, accumulate([0, *lengths]), strict=False))

    def counted(held: Held) -> Held:
        if held.layer and held.stack in above:
            return replace(held, layer=held.layer + above[held.stack])
        return replace(
            held, layer=0, where=_outside(held) if held.layer else held.where
        )

    return [counted(one) for one in weights]


def _outside(held: Held) -> str:
    """Return the place of a parameter in a list without attention, with its number there."""
    if not held.is_bias or held.path.endswith(".bias"):
        ends = r"\.(weight|bias)$"
    else:
        ends = "_bias$"
    return re.sub(ends, "", held.path.replace(WRAPPED, ""))


def first(thing: Any, names: tuple[str, ...]) -> int:
    """Return the first of these attributes that is a number; 0 if none is, or if it differs between layers.

    Configurations of transformers raise RuntimeError for attributes that differ between
    layers.
    """
    for name in names:
        with suppress(RuntimeError):
            number = getattr(thing, name, None)
            if isinstance(number, int) and number > 0:
                return number
    return 0
