"""The network of TransformerLens in plain torch, and the conversion of its state."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hessfig.config.schema import Config
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError, first_few
from hessfig.files import check_pin
from hessfig.models.stored.lens_settings import HEAD, LensSizes, digest, settings_of, sizes_of, weights_of
from hessfig.models.stored.model_folder import KEY, pin_of
from hessfig.models.weight_files import FLOATING, hashed, in_batches, tensors_of
from hessfig.tasks.tokens import Ids
from hessfig.weights import Layout

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class HookedNetwork(nn.Module):
    """A network with the names and shapes of TransformerLens, except that W_U and b_U are one matrix.

    logits = [h, 1] @ [W_U^T, b_U]^T with the normalised residual stream h, so b_U is a column of the unembedding.
    """

    def __init__(self, sizes: LensSizes) -> None:
        super().__init__()
        self.embed = _held(W_E=(sizes.vocabulary, sizes.d_model))
        self.pos_embed = _held(W_pos=(sizes.context, sizes.d_model))
        self.blocks = nn.ModuleList(_Layer(sizes) for _ in range(sizes.n_layers))
        self.ln_final = _norm(sizes)
        self.unembed = _held(weight=(sizes.vocabulary, sizes.d_model + 1))

    @property
    def layers(self) -> nn.ModuleList:
        """The layers, in order."""
        return self.blocks

    @property
    def unembedding(self) -> nn.Parameter:
        """[W_U^T, b_U], (vocabulary, width + 1)."""
        return self.get_parameter("unembed.weight")

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits at every position."""
        return self.from_hidden(self.hidden(tokens, 0), 0, slice(None))

    def hidden(self, inputs: Int[Tensor, "batch length"], depth: int) -> Float[Tensor, "batch length width"]:
        """Return the residual stream after `depth` layers (0: the embeddings)."""
        hidden = F.embedding(inputs, self.embed["W_E"]) + self.pos_embed["W_pos"][: inputs.shape[1]]
        for layer in self.blocks[:depth]:
            hidden = layer(hidden)
        return hidden

    def features(
        self, hidden: Float[Tensor, "batch length width"], depth: int, scored: slice
    ) -> Float[Tensor, "batch scored width_1"]:
        """Return the normalised residual stream at the scored positions, with 1 appended for the bias."""
        for layer in self.blocks[depth:]:
            hidden = layer(hidden)
        return F.pad(self.ln_final(hidden[:, scored]), (0, 1), value=1.0)

    def from_hidden(self, hidden: Tensor, depth: int, scored: slice) -> Float[Tensor, "batch scored vocabulary"]:
        """Return the logits at the scored positions, given the residual stream after `depth` layers."""
        return self.features(hidden, depth, scored) @ self.unembed["weight"].T


class _Layer(nn.Module):
    def __init__(self, sizes: LensSizes) -> None:
        super().__init__()
        self.ln1, self.attn = _norm(sizes), _Attention(sizes)
        self.has_mlp = sizes.d_mlp > 0
        if self.has_mlp:
            self.ln2, self.mlp = _norm(sizes), _MLP(sizes)

    def forward(self, hidden: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        hidden = hidden + self.attn(self.ln1(hidden))
        return hidden + self.mlp(self.ln2(hidden)) if self.has_mlp else hidden


class _Attention(nn.Module):
    """Causal attention; W_Q, W_K, W_V are (heads, width, d_head), W_O is (heads, d_head, width)."""

    def __init__(self, sizes: LensSizes) -> None:
        super().__init__()
        heads, inner = sizes.n_heads, (sizes.n_heads, sizes.d_model, sizes.d_head)
        for name in "QKV":
            self.register_parameter(f"W_{name}", _empty(*inner))
            self.register_parameter(f"b_{name}", _empty(heads, sizes.d_head))
        self.W_O, self.b_O = _empty(heads, sizes.d_head, sizes.d_model), _empty(sizes.d_model)
        self.scale = sizes.scale

    def forward(self, hidden: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        q, k, v = (self._projected(hidden, name) for name in "QKV")
        scores = q @ k.transpose(-1, -2) / self.scale
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return torch.einsum("bhle,hew->blw", mixed, self.W_O) + self.b_O

    def _projected(self, hidden: Tensor, name: str) -> Float[Tensor, "batch heads length d_head"]:
        weight, bias = getattr(self, f"W_{name}"), getattr(self, f"b_{name}")
        return torch.einsum("blw,hwe->bhle", hidden, weight) + bias.unsqueeze(1)


class _MLP(nn.Module):
    def __init__(self, sizes: LensSizes) -> None:
        super().__init__()
        self.W_in, self.b_in = _empty(sizes.d_model, sizes.d_mlp), _empty(sizes.d_mlp)
        self.W_out, self.b_out = _empty(sizes.d_mlp, sizes.d_model), _empty(sizes.d_model)
        self.act = _ACTIVATIONS[sizes.activation]

    def forward(self, hidden: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        return self.act(hidden @ self.W_in + self.b_in) @ self.W_out + self.b_out


class _LayerNorm(nn.Module):
    """LayerNorm; for LNPre without gain and shift, which were folded into the following maps."""

    w: nn.Parameter | None
    b: nn.Parameter | None

    def __init__(self, sizes: LensSizes) -> None:
        super().__init__()
        is_whole = sizes.norm == "LN"
        self.register_parameter("w", _empty(sizes.d_model) if is_whole else None)
        self.register_parameter("b", _empty(sizes.d_model) if is_whole else None)
        self.eps = sizes.eps

    def forward(self, hidden: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
        return F.layer_norm(hidden, hidden.shape[-1:], self.w, self.b, self.eps)


def _norm(sizes: LensSizes) -> nn.Module:
    return nn.Identity() if sizes.norm is None else _LayerNorm(sizes)


def _held(**shapes: tuple[int, ...]) -> nn.ParameterDict:
    return nn.ParameterDict({name: _empty(*shape) for name, shape in shapes.items()})


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


_BUFFERS = (".mask", ".IGNORE", ".causal_mask")  # entries that are not parameters
# Ends of names in the bridge, and in HookedTransformer.
_BRIDGE = {
    **{"unembed.weight": "unembed.W_U", "unembed.bias": "unembed.b_U"},
    **{"pos_embed.weight": "pos_embed.W_pos", "embed.weight": "embed.W_E"},
    **{f".attn.{name.lower()}.weight": f".attn.W_{name}" for name in "QKVO"},
    **{f".attn.{name.lower()}.bias": f".attn.b_{name}" for name in "QKVO"},
    **{f".mlp.{name}.weight": f".mlp.W_{name}" for name in ("in", "out")},
    **{f".mlp.{name}.bias": f".mlp.b_{name}" for name in ("in", "out")},
    **{f"{name}.weight": f"{name}.w" for name in ("ln1", "ln2", "ln_final")},
    **{f"{name}.bias": f"{name}.b" for name in ("ln1", "ln2", "ln_final")},
}
_MAPS = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_out", "W_U")  # stored as (outputs, inputs) in the bridge
_NATIVE = (None, "TransformerLensNative")
_SAVE = "torch.save(dict(bridge.tl_parameters()), FILE), or HookedTransformer's state_dict()"
_FOLDED_IN = "unembed.b_U"  # zero if the state has no such entry


def converted(
    stored: Mapping[str, Tensor], sizes: LensSizes, where: str, architecture: str | None = None
) -> dict[str, Tensor]:
    """Return the tensors of HookedNetwork by name; `architecture` is the architecture in the configuration.

    The native bridge stores maps as (outputs, inputs), with concatenated heads. A bridge around a model of transformers
    has the same names but the axes of that model, so its state is refused. Raises UserError for such a state, for
    missing or unknown names, for other shapes, and for numbers that are not finite.
    """
    if architecture not in _NATIVE and any(_of_bridge(name) for name in stored):
        raise _of_transformers(where, str(architecture))
    named = dict(_named(stored, sizes))
    shapes = shapes_of(sizes)
    _check(named, {name: shape for name, shape in shapes.items() if name != _FOLDED_IN or name in named}, where)
    words = named.pop("unembed.W_U")
    bias = named.pop(_FOLDED_IN, torch.zeros(shapes[_FOLDED_IN]))
    return {**named, HEAD: torch.cat([words.T, bias.unsqueeze(1).to(words)], dim=1)}


def shapes_of(sizes: LensSizes) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters of HookedTransformer by name."""
    with torch.device("meta"):
        network = HookedNetwork(sizes)
    shapes = {name: tuple(parameter.shape) for name, parameter in network.named_parameters() if name != HEAD}
    return shapes | {"unembed.W_U": (sizes.d_model, sizes.vocabulary), _FOLDED_IN: (sizes.vocabulary,)}


def _named(stored: Mapping[str, Tensor], sizes: LensSizes) -> Iterable[tuple[str, Tensor]]:
    """Yield tensors with the names and shapes of HookedTransformer."""
    for name, tensor in stored.items():
        # bridge.tl_parameters() adds zeros for MLPs that do not exist
        filled = not sizes.d_mlp and ".mlp." in name and tensor.dtype in FLOATING and not tensor.any()
        if not name.endswith(_BUFFERS) and not filled:
            known = _of_bridge(name)
            yield (name, tensor) if known is None else (known, _turned(known, tensor, sizes))


def _of_bridge(name: str) -> str | None:
    """Return the name in HookedTransformer for a name of the bridge; None for other names."""
    ending = next((last for last in _BRIDGE if name.endswith(last)), None)
    return None if ending is None else name.removesuffix(ending) + _BRIDGE[ending]


def _turned(name: str, tensor: Tensor, sizes: LensSizes) -> Tensor:
    """Return a tensor of the bridge in the shape of HookedTransformer; a tensor that does not fit is not changed."""
    last, heads = name.rpartition(".")[2], (sizes.n_heads, sizes.d_head)
    inner = sizes.n_heads * sizes.d_head
    if last in ("b_Q", "b_K", "b_V") and tensor.shape == (inner,):
        return tensor.unflatten(0, heads)
    if last not in _MAPS or tensor.ndim != 2:
        return tensor
    if last in ("W_Q", "W_K", "W_V") and len(tensor) == inner:
        return tensor.T.unflatten(1, heads).transpose(0, 1)
    return tensor.T.unflatten(0, heads) if last == "W_O" and tensor.shape[1] == inner else tensor.T


def _of_transformers(where: str, architecture: str) -> UserError:
    return UserError(
        f"model.path: {where} is the state of a bridge around a model of transformers, whose axes are that model's",
        got=f"architecture {architecture} in its config.json",
        allowed="HookedTransformer's names and shapes, which bridge.tl_parameters() gives",
        remedy=f"{_SAVE}; or model=huggingface for the model itself",
    )


def _check(named: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    missing = [name for name in shapes if name not in named]
    surplus = [name for name in named if name not in shapes]
    other = [name for name in shapes if name in named and named[name].shape != shapes[name]]
    if missing or surplus or other:
        raise UserError(
            f"model.path: the state in {where} is not that of its config.json",
            got=f"missing: {first_few(missing)}; surplus: {first_few(surplus)}; of another shape: "
            + first_few([f"{name} {tuple(named[name].shape)} for {shapes[name]}" for name in other]),
            allowed=f"HookedTransformer's {len(shapes)} names: {first_few(list(shapes))}; "
            "or those of boot_native's bridge",
            remedy=_SAVE,
        )
    bad = [name for name, tensor in named.items() if not (tensor.dtype in FLOATING and tensor.isfinite().all())]
    if bad:
        raise UserError(
            f"model.path: {where} holds numbers that are not finite, or not of a floating-point type",
            got=first_few(bad),
            allowed="finite floating-point numbers",
            remedy="save the weights again, from before the training diverged",
        )


def drawn(config: Config, layout: Layout, ids: Ids, at_once: int) -> Objective:
    """Return the network with its sequences in micro-batches of `at_once`.

    Raises UserError if the file does not match its config.json.
    """
    sizes, weights = read(config)
    with torch.device("meta"):
        network = HookedNetwork(sizes)
    network.load_state_dict(weights, assign=True)
    network.eval().requires_grad_(False)
    return in_batches(network, layout, ids, config.task.first_scored, at_once)


def read(config: Config) -> tuple[LensSizes, dict[str, Tensor]]:
    """Return the sizes of the network and the tensors of HookedNetwork, read from the planned files.

    Raises UserError if the files have changed since planning, or do not contain such a network.
    """
    (settings, where), path = settings_of(config), weights_of(config)
    sizes, (content, own) = sizes_of(settings, where), hashed(path, KEY)
    check_pin(path, KEY, found=digest(sizes, own), planned=pin_of(config, 0))
    dtype = getattr(torch, config.dtype)
    tensors = {
        name: one.to(dtype) if one.dtype in FLOATING else one for name, one in tensors_of(content, path, KEY).items()
    }
    return sizes, converted(tensors, sizes, str(path), settings.get("architecture"))
