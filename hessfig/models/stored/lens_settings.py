"""The folder of a TransformerLens network: its configuration (sizes and layout of weights) and its files."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.files import is_file
from hessfig.models.stored.architectures import check_pieces, count_of
from hessfig.models.stored.model_folder import CONFIG, KEY, json_of
from hessfig.terms import Group, Matrix
from hessfig.weights import Layout, Weight, bias_of, norm_of

_PATTERNS = ("*.safetensors", "*.pth", "*.pt")
_FORM = f"a folder with {CONFIG} (TransformerLens's configuration as JSON) and the state, {', '.join(_PATTERNS)}"
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu")
NORMS = ("LN", "LNPre", None)
_COUNTS = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "d_vocab", "n_ctx")
_FLAGS = (
    *("parallel_attn_mlp", "gated_mlp", "use_local_attn", "scale_attn_by_inverse_layer_idx"),
    *("final_rms", "post_embedding_ln", "use_normalization_before_and_after", "use_qk_norm"),
    *("scale_embedding", "shortformer_pos"),
)
# Settings of architectures that are not supported here, with the values that disable them.
_ABSENT: dict[str, tuple[Any, ...]] = {
    "positional_embedding_type": ("standard",),
    "attention_dir": ("causal",),
    "use_attn_scale": (True,),
    "n_key_value_heads": (None,),
    **dict.fromkeys(_FLAGS, (False, None)),
    **dict.fromkeys(("attn_scores_soft_cap", "output_logits_soft_cap"), (-1, 0, None)),
    **dict.fromkeys(("num_experts", "experts_per_token"), (None,)),
}


def settings_of(config: Config) -> tuple[dict[str, Any], str]:
    """Return the configuration, and its location for messages. Raises UserError if there is none."""
    path = weights_of(config).parent / CONFIG
    return json_of(path, _FORM), str(path)


@dataclass(frozen=True)
class LensSizes:
    """Sizes of a network; `d_mlp` is 0 without MLPs, `norm` is None without LayerNorms, `scale` divides the scores."""

    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    d_mlp: int
    vocabulary: int
    context: int
    activation: str
    norm: str | None
    scale: float
    eps: float


def sizes_of(settings: Mapping[str, Any], where: str) -> LensSizes:
    """Return the sizes for settings of TransformerLens, with its defaults for missing settings.

    Raises UserError for invalid sizes, and for architectures that are not supported.
    """
    _check_served(settings, where)
    width = count_of(settings.get("d_model"), "d_model", where)
    heads = settings.get("n_heads")
    head = settings.get("d_head") or (width // heads if type(heads) is int and heads > 0 else None)
    given = {**settings, "d_head": head, "d_mlp": settings.get("d_mlp") or 4 * width}
    counts = {name: count_of(given.get(name), name, where) for name in _COUNTS}
    check_pieces(counts["n_layers"], counts["n_heads"], where)
    return LensSizes(
        n_layers=counts["n_layers"],
        n_heads=counts["n_heads"],
        d_model=width,
        d_head=counts["d_head"],
        d_mlp=0 if settings.get("attn_only") else counts["d_mlp"],
        vocabulary=counts["d_vocab"],
        context=counts["n_ctx"],
        activation=str(settings.get("act_fn")),
        norm=_norm(settings),
        scale=_scale(settings, counts["d_head"], where),
        eps=_eps(settings, where),
    )


def _check_served(settings: Mapping[str, Any], where: str) -> None:
    for key, allowed in _ABSENT.items():
        if settings.get(key, allowed[0]) not in allowed:
            raise _unserved(where, key, settings[key], str(allowed[0]).lower())
    if _norm(settings) not in NORMS:
        raise _unserved(where, "normalization_type", _norm(settings), "LN, LNPre, null")
    if not settings.get("attn_only") and settings.get("act_fn") not in ACTIVATIONS:
        raise _unserved(where, "act_fn", settings.get("act_fn"), ", ".join(ACTIVATIONS))
    outputs = settings.get("d_vocab_out")
    if outputs not in (None, -1, settings.get("d_vocab")):
        raise _unserved(where, "d_vocab_out", outputs, f"d_vocab={settings.get('d_vocab')}")


def _norm(settings: Mapping[str, Any]) -> Any:
    """Return the kind of norm, which was called `normalization` before TransformerLens 1."""
    return settings.get("normalization_type", settings.get("normalization", "LN"))


def _scale(settings: Mapping[str, Any], d_head: int, where: str) -> float:
    """Return the divisor of the scores: attn_scale if it is positive, else the square root of d_head."""
    scale = settings.get("attn_scale", -1.0)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale):
        raise _unserved(where, "attn_scale", scale, "a number; -1 for the square root of d_head")
    return float(scale) if scale > 0 else math.sqrt(d_head)


def _eps(settings: Mapping[str, Any], where: str) -> float:
    eps = settings.get("eps", 1e-5)
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 < eps < math.inf:
        raise UserError(f"{where}: eps", got=eps, allowed="a number > 0", remedy="fix the file")
    return float(eps)


def _unserved(where: str, key: str, got: Any, allowed: str) -> UserError:
    return UserError(
        f"{where}: {key} belongs to a TransformerLens network that is not supported here",
        got=got,
        allowed=allowed,
        remedy="model=huggingface for a model of transformers, or model=python model.factory=FILE.py:FUNCTION",
    )


def digest(sizes: LensSizes, weights: str) -> str:
    """Return one hash of the sizes and of the hash of the file of weights."""
    return hashlib.sha256(json.dumps([asdict(sizes), weights]).encode()).hexdigest()


def weights_of(config: Config) -> Path:
    """Return the file of weights: model.path itself, or the only one in that folder.

    Raises UserError if there is none, or if there are several.
    """
    if config.model.path is None:
        raise UserError(
            f"{KEY} is missing",
            got="model=transformer_lens without model.path",
            allowed=f"{_FORM}, or that file; without it, random weights of model.name",
            remedy="model.path=DIR, or for example model.name=GPT2LMHeadModel",
        )
    place = Path(config.model.path)
    if is_file(place):
        return place
    files = sorted(path for pattern in _PATTERNS for path in place.glob(pattern)) if place.is_dir() else []
    if len(files) != 1:
        raise UserError(
            f"{KEY}: {_odd(place, bool(files))}",
            got=first_few([path.name for path in files]) if files else place,
            allowed=f"{_FORM}, or that file",
            remedy=f"for example model.path={files[-1]}" if files else _HOW,
        )
    return files[0]


_HOW = "torch.save(model.state_dict(), 'DIR/state.pth'), and the configuration's numbers as DIR/config.json"


def _odd(place: Path, several: bool) -> str:
    if several:
        return "the folder has several files of weights"
    return "the folder has no weights" if place.is_dir() else "there is no such folder"


HEAD = "unembed.weight"  # (vocabulary, width + 1): W_U transposed, and b_U as its last column
_ALL = slice(None)
_EMBEDDINGS, _BIASES = (Group.embeddings.value,), (Group.biases.value,)
_PROJECTIONS = (Matrix.W_Q.value, Matrix.W_K.value, Matrix.W_V.value)


def layout_of(sizes: LensSizes) -> Layout:
    """Return all weights in the order of layers; `parameters` contains each parameter once, for the group all."""
    weights, table = tuple(_weights(sizes)), sizes.vocabulary * (sizes.d_model + 1)
    own = tuple(weight for weight in weights if not weight.is_finer and weight.parameter != HEAD)
    return Layout(weights, (*own, Weight(HEAD, HEAD, table)))


def _weights(sizes: LensSizes) -> Iterator[Weight]:
    width, words = sizes.d_model, sizes.vocabulary
    yield Weight(Matrix.W_E.value, "embed.W_E", words * width, 0, _EMBEDDINGS)
    yield Weight(Matrix.W_pos.value, "pos_embed.W_pos", sizes.context * width, 0, _EMBEDDINGS)
    for layer in range(1, sizes.n_layers + 1):
        yield from _layer(sizes, layer, f"blocks.{layer - 1}")
    yield from _norm_weights("ln_out", "ln_final", sizes, 0)
    yield Weight(Matrix.W_U.value, HEAD, words * width, index=(_ALL, slice(0, width)))
    yield Weight("b_U", HEAD, words, 0, _BIASES, index=(_ALL, width), is_main=False)


def _layer(sizes: LensSizes, layer: int, place: str) -> Iterator[Weight]:
    yield from _norm_weights("ln1", f"{place}.ln1", sizes, layer)
    inner = sizes.n_heads * sizes.d_head
    for name in _PROJECTIONS:
        yield from _by_head(name, inner, sizes, layer, place)
    yield from _by_head(Matrix.W_O.value, sizes.d_model, sizes, layer, place)
    if sizes.d_mlp:
        yield from _norm_weights("ln2", f"{place}.ln2", sizes, layer)
        for name, outputs in ((Matrix.W_in.value, sizes.d_mlp), (Matrix.W_out.value, sizes.d_model)):
            size = sizes.d_model * sizes.d_mlp
            yield Weight(name, f"{place}.mlp.{name}", size, layer, (Group.mlp.value,))
            yield _bias(name, f"{place}.mlp", outputs, layer, Group.mlp)


def _by_head(name: str, outputs: int, sizes: LensSizes, layer: int, place: str) -> Iterator[Weight]:
    """Yield a weight of attention, its bias, and its heads (counted from 1)."""
    path, size = f"{place}.attn.{name}", sizes.d_head * sizes.d_model
    yield Weight(name, path, sizes.n_heads * size, layer, (Group.attention.value,))
    yield _bias(name, f"{place}.attn", outputs, layer, Group.attention)
    for head in range(sizes.n_heads):
        yield Weight(f"{name}.head{head + 1}", path, size, layer, index=head, is_main=False, is_finer=True)


def _bias(name: str, place: str, size: int, layer: int, group: Group) -> Weight:
    return bias_of(name, f"{place}.{name.replace('W', 'b', 1)}", size, layer, group)


def _norm_weights(name: str, place: str, sizes: LensSizes, layer: int) -> list[Weight]:
    return norm_of(name, place, sizes.d_model, layer, ("w", "b") if sizes.norm == "LN" else ())
