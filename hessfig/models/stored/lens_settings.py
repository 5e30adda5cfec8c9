"""The folder of a TransformerLens network: its configuration, and its file of weights."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.files import is_file
from hessfig.models.stored.architectures import ModelSizes, check_pieces, count_of
from hessfig.models.stored.model_folder import CONFIG, KEY, json_of

_PATTERNS = ("*.safetensors", "*.pth", "*.pt")
_FORM = f"a folder with {CONFIG} (TransformerLens's configuration as JSON) and the state, {', '.join(_PATTERNS)}"
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu")
NORMS = ("LN", "LNPre", None)
_COUNTS = ("n_layers", "n_heads", "d_model", "d_head", "d_mlp", "d_vocab", "n_ctx")
_FLAGS = (
    "parallel_attn_mlp",
    "gated_mlp",
    "use_local_attn",
    "scale_attn_by_inverse_layer_idx",
    "final_rms",
    "post_embedding_ln",
    "use_normalization_before_and_after",
    "use_qk_norm",
    "scale_embedding",
    "shortformer_pos",
)
# Settings of architectures that are not supported here, with the values that disable
# them.
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


def served(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings with which TransformerLens builds the network, with its defaults for missing settings.

    Raises UserError for invalid sizes, and for architectures that are not supported.
    """
    _check_served(settings, where)
    width = count_of(settings.get("d_model"), "d_model", where)
    heads = settings.get("n_heads")
    head = settings.get("d_head") or (
        width // heads if type(heads) is int and heads > 0 else None
    )
    given = {**settings, "d_head": head, "d_mlp": settings.get("d_mlp") or 4 * width}
    counts = {name: count_of(given.get(name), name, where) for name in _COUNTS}
    check_pieces(counts["n_layers"], counts["n_heads"], where)
    # TransformerLens takes -1 for the square root of d_head.
    scale = _number(settings, "attn_scale", -1.0, where)
    eps = _number(settings, "eps", 1e-5, where)
    if eps <= 0:
        raise _unserved(where, "eps", eps, "a number > 0")
    return {
        **counts,
        "attn_only": bool(settings.get("attn_only")),
        "act_fn": settings.get("act_fn") or "relu",
        "normalization_type": _norm(settings),
        "attn_scale": scale if scale > 0 else -1.0,
        "eps": eps,
    }


def sizes_of(built: Mapping[str, Any]) -> ModelSizes:
    """Return the sizes in settings of `served`."""
    return ModelSizes(
        **{name: built[name] for name in ("n_layers", "n_heads", "d_model")},
        d_mlp=0 if built["attn_only"] else built["d_mlp"],
        vocabulary=built["d_vocab"],
        context=built["n_ctx"],
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
        raise _unserved(
            where, "d_vocab_out", outputs, f"d_vocab={settings.get('d_vocab')}"
        )


def _norm(settings: Mapping[str, Any]) -> Any:
    """Return the kind of norm, which was called `normalization` before TransformerLens 1."""
    return settings.get("normalization_type", settings.get("normalization", "LN"))


def _number(settings: Mapping[str, Any], key: str, default: float, where: str) -> float:
    """Return a setting. Raises UserError for anything but a finite number."""
    number = settings.get(key, default)
    if (
        isinstance(number, bool)
        or not isinstance(number, int | float)
        or not math.isfinite(number)
    ):
        raise _unserved(where, key, number, "a finite number")
    return float(number)


def _unserved(where: str, key: str, got: Any, allowed: str) -> UserError:
    return UserError(
        f"{where}: {key} belongs to a TransformerLens network that is not supported here",
        got=got,
        allowed=allowed,
        remedy="model=huggingface for a model of transformers, or model=python model.factory=FILE.py:FUNCTION",
    )


def digest(built: Mapping[str, Any], weights: str) -> str:
    """Return one hash of the settings of `served` and of the hash of the file of weights."""
    return hashlib.sha256(
        json.dumps(["bridge", built, weights], sort_keys=True).encode()
    ).hexdigest()


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
    files = sorted(path for pattern in _PATTERNS for path in place.glob(pattern))
    if len(files) == 1:
        return files[0]
    remedy = "torch.save(model.state_dict(), 'DIR/state.pth'), and the configuration's numbers as DIR/config.json"
    if files:
        what = "the folder has several files of weights"
        remedy = f"for example model.path={files[-1]}"
    elif place.is_dir():
        what = "the folder has no weights"
    else:
        what = "there is no such folder"
    raise UserError(
        f"{KEY}: {what}",
        got=first_few([path.name for path in files]) if files else place,
        allowed=f"{_FORM}, or that file",
        remedy=remedy,
    )
