"""Networks of TransformerLens: a saved state, or random weights of an architecture in its registry, without a hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hessfig.config.schema import Config, with_defaults
from hessfig.curvature.losses import CrossEntropy
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError, plain, unknown_name
from hessfig.files import check_pin
from hessfig.files import fingerprint as content
from hessfig.models.found_weights import find_weights
from hessfig.models.lens_bridge import check_causal, following
from hessfig.models.own.border import open_request
from hessfig.models.own.witnessing import witnessed
from hessfig.models.stored.architectures import SIZES, ModelSizes
from hessfig.models.stored.kept_problem import KEPT, opening
from hessfig.models.stored.lens_settings import digest, served, settings_of, weights_of
from hessfig.models.stored.model_folder import KEY as _PATH
from hessfig.models.stored.model_folder import pin_of
from hessfig.models.weight_files import (
    FLOATING,
    check_finite,
    hashed,
    in_words,
    tensors_of,
)
from hessfig.rng import global_draws, stream
from hessfig.tasks.tokens import Ids
from hessfig.weights import Layout

KEY, NATIVE = "model.name", "native"


def sizes_named(config: Config) -> ModelSizes:
    """Return the sizes of the architecture named in config.model. Raises UserError if there is none."""
    bridge = _bridge(config, config.first_seed)
    check_causal(bridge)
    cfg = bridge.cfg
    return ModelSizes(
        **{
            name: int(getattr(cfg, name) or 0)
            for name in ("n_layers", "n_heads", "d_model", "d_mlp")
        },
        vocabulary=cfg.d_vocab,
        context=cfg.n_ctx,
    )


def layout_of_bridge(config: Config) -> Layout:
    """Return the weights that find_weights finds in the network of config.model."""
    return _named(_bridge(config, config.first_seed))


def drawn_bridge(config: Config, seed: int, ids: Ids, at_once: int) -> Objective:
    """Return the network (weights read, or drawn from `seed`), sequences in batches of `at_once`, cross-entropy."""
    bridge = _bridge(config, seed)

    def opened() -> Objective:
        batches = list(torch.tensor(ids).split(at_once))
        targets = [following(batch, config.task.first_scored) for batch in batches]
        asked = open_request(bridge, batches, targets, CrossEntropy(), _named(bridge))
        return witnessed(asked, config.dtype)

    # A bridge is opened once for the content of its files.
    return KEPT.problem(opening(config, seed, ids, at_once, bridge), opened)


@lru_cache(maxsize=2)  # names are found by running the network
def _named(bridge: Any) -> Layout:
    with _sizes_that_fit():  # some are compared when the network runs
        return find_weights(bridge)


def _bridge(config: Config, seed: int) -> Any:
    """Return a bridge with the weights of model.path, or with random weights.

    Raises UserError for unknown names, and for sizes or files that do not fit.
    """
    if config.model.name is None:
        return saved_bridge(config)
    model = with_defaults(config.model)
    sizes = {
        "context": config.task.length or 64,
        **{
            name: getattr(model, name) for name in SIZES.values() if name in vars(model)
        },
    }
    return _made(
        json.dumps(
            [
                str(model.name),
                {**sizes, "d_head": config.model.d_head},
                dict(model.options),
                seed,
            ]
        )
    )


@lru_cache(maxsize=2)  # planning needs sizes, names and checks of the same network
def _made(asked: str) -> Any:
    name, sizes, options, seed = json.loads(asked)
    with global_draws(stream(seed, "transformer_lens")), _sizes_that_fit():
        if name == NATIVE:
            return _native(sizes, options)
        return _of_transformers(name, sizes, options)


@contextmanager
def _sizes_that_fit() -> Iterator[None]:
    """Raise UserError for what these packages raise, which may be anything, where sizes do not fit."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"{KEY}: the network cannot be built, or does not run",
            got=plain(f"{type(error).__name__}: {error}", most=300),
            allowed="sizes (model.n_layers, model.d_model, ...) and model.options that fit together",
            remedy="other sizes or model.options, such as model.options.rotary_dim=4 of a GPT-J with heads of width 4",
        ) from error


def _native(sizes: dict[str, Any], options: dict[str, Any]) -> Any:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources.native import boot

    width, heads = sizes["d_model"], sizes["n_heads"]
    given = {
        "n_layers": sizes["n_layers"],
        "n_heads": heads,
        "d_model": width,
        "d_mlp": sizes["d_mlp"],
        "d_head": sizes["d_head"] or width // heads,
        "n_ctx": sizes["context"],
        "act_fn": "gelu",
        "d_vocab": sizes["vocabulary"] or 512,
        "normalization_type": "LN",
    }
    return boot(TransformerBridgeConfig.from_dict({**given, **options})).eval()


def _of_transformers(name: str, sizes: dict[str, Any], options: dict[str, Any]) -> Any:
    import transformers
    from transformer_lens.factories.architecture_adapter_factory import (
        SUPPORTED_ARCHITECTURES,
    )
    from transformer_lens.model_bridge.sources._bridge_builder import (
        build_bridge_from_module,
    )

    known = [
        NATIVE,
        *(one for one in SUPPORTED_ARCHITECTURES if hasattr(transformers, one)),
    ]
    if name not in known:
        what = f"{KEY}: this architecture is not in TransformerLens's registry, or not in transformers"
        raise unknown_name(what, name, known, f"{KEY}=GPT2LMHeadModel")
    kind = getattr(transformers, name)
    its = kind.config_class()
    own = kind.config_class.attribute_map
    sizes["n_kv_heads"] = sizes["n_kv_heads"] or sizes["n_heads"]
    asked = {
        key: sizes[ours]
        for key, ours in SIZES.items()
        if sizes[ours] is not None and hasattr(its, key)
    }
    settings = kind.config_class(
        **{own.get(key, key): size for key, size in asked.items()} | options
    )
    if (
        isinstance(settings.pad_token_id, int)
        and settings.pad_token_id >= settings.vocab_size
    ):
        settings.pad_token_id = None
    settings._attn_implementation = "eager"
    return build_bridge_from_module(
        kind(settings).eval(), architecture=name, hf_config=settings
    ).eval()


if TYPE_CHECKING:
    from transformer_lens.config import TransformerBridgeConfig

_BUFFERS = (".mask", ".IGNORE", ".causal_mask")  # entries that are not parameters
_NATIVE = "TransformerLensNative"
_HOOKED, _BIAS = "embed.W_E", "unembed.bias"
_SAVE = "torch.save(dict(bridge.tl_parameters()), FILE), or HookedTransformer's state_dict()"


def saved_bridge(config: Config) -> Any:
    """Return a bridge with the weights of model.path, in config.dtype.

    Raises UserError if the files have changed since planning, or do not contain such a
    network.
    """
    (settings, where), path = settings_of(config), weights_of(config)
    built = served(settings, where)
    own = content(path)
    check_pin(path, _PATH, found=digest(built, own), planned=pin_of(config, 0))
    architecture = settings.get("architecture") or _NATIVE
    return _opened(
        json.dumps(built), str(architecture), str(path), own, str(config.dtype)
    )


@lru_cache(maxsize=1)  # planning asks for names, and measuring for names and network
def _opened(
    settings: str, architecture: str, where: str, sha256: str, dtype: str
) -> Any:
    path = Path(where)
    number = getattr(torch, dtype)
    found, own = hashed(path, _PATH)
    check_pin(path, _PATH, found=own, planned=sha256)
    stored = tensors_of(found, path, _PATH)
    state = {name: one for name, one in stored.items() if not name.endswith(_BUFFERS)}
    is_hooked = _HOOKED in state
    if architecture != _NATIVE and not is_hooked:
        raise _bridged(where, architecture)
    state = {
        name: one.to(number) if one.dtype in FLOATING else one
        for name, one in state.items()
    }
    check_finite(state, where, dtype, _PATH)
    return _booted(json.loads(settings), state, where, is_hooked=is_hooked)


def _booted(
    settings: dict[str, Any], state: dict[str, Tensor], where: str, *, is_hooked: bool
) -> Any:
    """Return a native bridge with the weights of `state`, whose shapes are compared before anything is allocated."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources.native import boot
    from transformer_lens.utilities.tl_checkpoint_conversion import (
        convert_tl_checkpoint,
    )

    try:
        made = TransformerBridgeConfig.from_dict(
            {**settings, "architecture": _NATIVE, "init_weights": False}
        )
        if is_hooked:
            state = convert_tl_checkpoint(_without_fillings(state, made), made)
        with torch.device("meta"):
            shapes = {
                name: tuple(one.shape) for name, one in boot(made).state_dict().items()
            }
        state.setdefault(_BIAS, torch.zeros(1).expand(shapes[_BIAS]))
        _check_shapes(state, shapes, where)
        bridge = boot(made, dtype=next(iter(state.values())).dtype)
        bridge.load_state_dict(state, strict=True)
    except UserError:
        raise
    except (ValueError, RuntimeError) as error:
        raise _misfit(where, plain(str(error), most=300)) from error
    head = bridge.unembed.original_component
    # The bridge holds b_U as a constant.
    head.register_parameter("bias", nn.Parameter(head._buffers.pop("bias")))
    return bridge.eval()


def _without_fillings(
    state: dict[str, Tensor], made: TransformerBridgeConfig
) -> dict[str, Tensor]:
    """Return the state without the zeros that bridge.tl_parameters() adds for MLPs that do not exist."""
    if not made.attn_only:
        return state
    return {
        name: one for name, one in state.items() if ".mlp." not in name or one.any()
    }


def _check_shapes(
    state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], where: str
) -> None:
    missing = [name for name in shapes if name not in state]
    surplus = [name for name in state if name not in shapes]
    other = [
        f"{name} {tuple(one.shape)} for {shapes[name]}"
        for name, one in state.items()
        if name in shapes and one.shape != shapes[name]
    ]
    if missing or surplus or other:
        lists = {"missing": missing, "surplus": surplus, "of another shape": other}
        raise _misfit(where, in_words(lists))


def _misfit(where: str, got: str) -> UserError:
    return UserError(
        f"{_PATH}: the state in {where} is not that of its config.json",
        got=got,
        allowed="the names and shapes of HookedTransformer, or of boot_native's bridge",
        remedy=_SAVE,
    )


def _bridged(where: str, architecture: str) -> UserError:
    return UserError(
        f"{_PATH}: {where} is the state of a bridge around a model of transformers, whose axes are that model's",
        got=f"architecture {architecture} in its config.json",
        allowed="HookedTransformer's names and shapes, which bridge.tl_parameters() gives",
        remedy=f"{_SAVE}; or model=huggingface for the model itself",
    )
