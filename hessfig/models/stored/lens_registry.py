"""Networks of TransformerLens: a saved state, or random weights of an architecture in its registry, without a hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from hessfig.config.schema import Config, with_defaults
from hessfig.curvature.losses import CrossEntropy
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError, plain, unknown_name
from hessfig.models.found_weights import find_weights
from hessfig.models.lens_bridge import check_causal, following
from hessfig.models.own.border import open_request
from hessfig.models.own.witnessing import witnessed
from hessfig.models.stored.architectures import SIZES, ModelSizes
from hessfig.models.stored.kept_problem import KEPT, opening
from hessfig.models.stored.lens_saved import saved_bridge
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
        return (_native if name == NATIVE else _of_transformers)(name, sizes, options)


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


def _native(name: str, sizes: dict[str, Any], options: dict[str, Any]) -> Any:
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge.sources.native import boot

    del name
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
    its, own = kind.config_class(), kind.config_class.attribute_map
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
