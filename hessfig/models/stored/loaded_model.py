"""Models of the library transformers, causal or for masked tokens: weights from hashed files, and their names."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from hessfig.config.schema import Config
from hessfig.curvature.losses import CrossEntropy
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError, first_few
from hessfig.files import check_pin
from hessfig.models.blocks import TIED
from hessfig.models.lens_bridge import Logits, following
from hessfig.models.naming import views
from hessfig.models.naming.suggested import GATED, OTHER, QKV, Held, Places
from hessfig.models.own.border import open_request
from hessfig.models.own.witnessing import witnessed
from hessfig.models.stored import model_folder
from hessfig.models.stored.architectures import ENCODERS, LoadedSizes, Settings, public
from hessfig.models.stored.kept_problem import KEPT, opening
from hessfig.models.stored.tokenizer import alone, tokenizer_of
from hessfig.models.weight_files import (
    FLOATING,
    check_finite,
    hashed,
    in_words,
    tensors_of,
)
from hessfig.rng import global_draws, stream
from hessfig.tasks.batch import Special, masked_batches
from hessfig.tasks.tokens import Ids, is_text
from hessfig.terms import Group, Matrix
from hessfig.weights import Layout, Weight, bias_of, every_parameter


def load(config: Config, seed: int) -> transformers.PreTrainedModel:
    """Return the configured model in evaluation mode: eager attention, no cache, the configured type.

    Random weights are drawn by transformers for this config, from a generator seeded
    with `seed`. Raises UserError if the folder does not contain finite weights of this
    model, and if its files are not those that were planned.
    """
    if model_folder.is_random(config):
        with global_draws(stream(seed, "huggingface")):
            model = load_model(*model_folder.settings_of(config), "cpu")
    else:
        model, _ = _read(config)
    model.config.use_cache = False  # of keys and values, for generation
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = (
                None  # so that the padding token has derivatives like any other token
            )
    return model.to(getattr(torch, config.dtype)).eval()


def layout(settings: Settings, where: str) -> Layout:
    """Return the weights of the model with these settings, without allocating them."""
    return layout_of(load_model(settings, where, "meta"), where)


def load_model(
    settings: Settings, where: str, device: str
) -> transformers.PreTrainedModel:
    """Return the model of a config.json with the initial weights of transformers, in float32 on `device`.

    Raises UserError for settings that transformers refuses.
    """
    known = _configuration(settings, where)
    is_encoder = known.model_type in ENCODERS
    maker = transformers.AutoModelForCausalLM
    if is_encoder:
        maker = transformers.AutoModelForMaskedLM
    try:
        with alone(), torch.device(device):
            model = maker.from_config(
                known,
                attn_implementation="eager",
                dtype=torch.float32,
                trust_remote_code=False,
            )
    except Exception as error:  # of any kind, from settings of any kind
        raise _unmade(where, error) from error
    if is_encoder:
        _tie_biases(model)
    return model


def left_out(config: Config) -> list[str]:
    """Return the names of weights in the folder of an encoder that it does not have: poolers and other heads."""
    if model_folder.is_random(config):
        return []
    return _read(config)[1]


def _configuration(settings: Settings, where: str) -> transformers.PreTrainedConfig:
    """Return the configuration that transformers builds from the public settings.

    Raises UserError if transformers refuses the settings, and for rotary positions
    wider than a head.
    """
    words = public(settings, where)
    try:
        with alone():
            found = transformers.AutoConfig.for_model(settings["model_type"], **words)
    except Exception as error:  # of any kind, from settings of any kind
        raise _unmade(where, error) from error
    share = (getattr(found, "rope_parameters", None) or {}).get(
        "partial_rotary_factor", 1.0
    )
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise UserError(
            f"{where}: partial_rotary_factor",
            got=share,
            allowed="0 < share <= 1",
            remedy="fix the file",
        )
    return found


def _read(config: Config) -> tuple[transformers.PreTrainedModel, list[str]]:
    """Return the model in a folder, and the weights in the folder that the model does not have."""
    place = model_folder.folder(str(config.model.path), config.model.download)
    tensors = read_tensors(config, place)
    known = _configuration(*model_folder.settings_of(config))
    is_encoder = known.model_type in ENCODERS
    models = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    if is_encoder:
        models = transformers.MODEL_FOR_MASKED_LM_MAPPING
    weights = {
        name: tensor for name, tensor in tensors.items() if tensor.dtype in FLOATING
    }
    try:
        with alone():
            model, report = models[type(known)].from_pretrained(
                None,
                config=known,
                state_dict=weights,
                local_files_only=True,
                attn_implementation="eager",
                dtype=getattr(torch, config.dtype),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except Exception as error:  # of any kind, from settings of any kind
        raise _unmade(str(place), error) from error
    odd = {
        name: str(tensor.dtype)
        for name, tensor in tensors.items()
        if name not in weights
    }
    check_report(str(place), report, odd)
    check_finite(
        dict(model.named_parameters()), str(place), config.dtype, model_folder.KEY
    )
    surplus = listed_names(report["unexpected_keys"])
    if is_encoder:
        head = _tie_biases(model)
        check_surplus(str(place), surplus, model.base_model_prefix, head)
    return model, surplus


def _unmade(where: str, error: Exception) -> UserError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UserError(
        f"{where}: transformers cannot create this model",
        got=f"{type(error).__name__}: {lines[0]}"[:300],
        allowed="a language model that transformers knows, with weights in safetensors",
        remedy="python -c 'from transformers import AutoModelForCausalLM as A; A.from_pretrained(\"DIR\")'",
    )


def drawn(
    config: Config,
    seed: int,
    sizes: LoadedSizes,
    layout: Layout,
    ids: Ids,
    at_once: int,
) -> Objective:
    """Return the model with its sequences in micro-batches of `at_once` (the last may be smaller).

    Raises UserError if the folder does not match its config.json.
    """

    def opened() -> Objective:
        inputs, targets = _batches(config, sizes, ids, at_once)
        network = _logits_of(load(config, seed), sizes)
        asked = open_request(
            network, inputs, targets, CrossEntropy(), layout, memory=config.memory
        )
        return witnessed(asked, config.dtype)

    made_of = opening(config, seed, ids, at_once, model_folder.files(config))
    return KEPT.problem(made_of, opened)


def _logits_of(model: nn.Module, sizes: LoadedSizes) -> Logits:
    return Logits(model, sizes.padding if sizes.is_encoder else None)


def _batches(
    config: Config, sizes: LoadedSizes, ids: Ids, at_once: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return sequences in micro-batches, and their targets: IGNORED at positions that are not scored."""
    tokens = torch.tensor(ids)
    task = config.task
    if not sizes.is_encoder:
        inputs = list(tokens.split(at_once))
        return inputs, [following(one, task.first_scored) for one in inputs]
    special = special_words(config, sizes)
    batches = masked_batches(
        tokens, task, special, vocabulary=sizes.vocabulary, at_once=at_once
    )
    return [one.inputs for one in batches], [one.targets for one in batches]


def special_words(config: Config, sizes: LoadedSizes) -> Special:
    """Return the special tokens for masked tokens: those of the tokenizer for a text; padding and mask for ids.

    Raises UserError for a mask outside the vocabulary, and for a tokenizer without a
    mask.
    """
    kept = {sizes.padding}
    mask = sizes.vocabulary - 1
    if is_text(config.task):
        place = None if config.model.path is None else Path(config.model.path)
        tokenizer = tokenizer_of(place, model_folder.pin_of(config, 1))
        kept = {*kept, *tokenizer.all_special_ids}
        mask = tokenizer.mask_token_id
    mask = mask if config.task.mask_id is None else config.task.mask_id
    if mask is None or mask >= sizes.vocabulary:
        raise UserError(
            "task.mask_id: the mask is not a word of the network's vocabulary",
            got="the tokenizer has no mask" if mask is None else mask,
            allowed=f"0 to {sizes.vocabulary - 1}",
            remedy="task.mask_id=ID of the mask token of the training",
        )
    return Special(mask, tuple(sorted({*kept, mask})))


def check(config: Config, sizes: LoadedSizes, ids: Ids) -> None:
    """Raise UserError if `drawn` would; weights of a folder are read, but random weights are not drawn."""
    (first, *_), _ = _batches(config, sizes, ids, 1)
    if model_folder.is_random(config):
        return
    model = load(config, 0)
    try:
        with torch.no_grad():
            _logits_of(model, sizes)(first)
    except Exception as error:  # of any kind, from settings of any kind
        raise _unmade(str(config.model.path), error) from error


def _tie_biases(model: transformers.PreTrainedModel) -> str:
    """Give the head of an encoder a single bias, that of the unembedding, and return the path of the head.

    For models with an untied embedding, transformers keeps a second bias on which no
    output depends.
    """
    unembedding = model.get_output_embeddings()
    paths = {module: path for path, module in model.named_modules()}
    head = paths[unembedding].rpartition(".")[0]
    model.get_submodule(head).bias = unembedding.bias
    return head


def read_tensors(config: Config, place: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder, parsed from the hashed bytes, which are freed after each file."""
    every: dict[str, Tensor] = {}
    hashes = []
    for path in model_folder.weight_files(place):
        content, own = hashed(path, model_folder.KEY)
        hashes.append(own)
        tensors = tensors_of(content, path, model_folder.KEY)
        del content
        if twice := sorted({*every} & {*tensors}):
            raise UserError(
                f"{model_folder.KEY}: a weight is contained in two files",
                got=f"{path.name}: {first_few(twice)}",
                allowed="every weight once",
                remedy="save the model again: model.save_pretrained(DIR)",
            )
        every |= tensors
    check_pin(
        place,
        model_folder.KEY,
        found=model_folder.digest(
            model_folder.json_of(place / model_folder.CONFIG), hashes
        ),
        planned=model_folder.pin_of(config, 0),
    )
    return every


def check_report(place: str, report: dict[str, Any], odd: dict[str, str]) -> None:
    """Raise UserError for weights that are missing or have another shape, since transformers would draw them randomly.

    `odd` maps tensors that are not floating-point to their types; masks may be among
    them.
    """
    missing = listed_names(report["missing_keys"])
    other = listed_names(report["mismatched_keys"])
    if missing or other:
        lists = {
            "missing": missing,
            "of another shape": other,
            "surplus": listed_names(report["unexpected_keys"]),
        }
        types = [
            f"{name} ({kind.removeprefix('torch.')})"
            for name, kind in sorted(odd.items())
        ]
        lists |= {"of another type": types} if types else {}
        raise UserError(
            f"{model_folder.KEY}: the weights in {place} are not those of its config.json",
            got=in_words(lists),
            allowed="every weight of the architecture that config.json names, in floating point",
            remedy="save the model again: model.save_pretrained(DIR)",
        )


def check_surplus(place: str, surplus: list[str], base: str, head: str) -> None:
    """Raise UserError for weights in the encoder `base` or its `head` that its config.json does not describe."""
    inside = (f"{base}.embeddings.", f"{base}.encoder.", f"{head}.")
    if within := [name for name in surplus if name.startswith(inside)]:
        raise UserError(
            f"{model_folder.KEY}: the network in {place} contains more than its config.json declares",
            got=first_few(within),
            allowed="poolers and further heads, which are left out",
            remedy="fix the numbers in config.json (layers, kinds of positions)",
        )


def listed_names(keys: Iterable[Any]) -> list[str]:
    return sorted(str(key[0] if isinstance(key, tuple) else key) for key in keys)


# The ends of the paths of modules below the layers, of the norms of a layer, and of
# modules above the layers.
_EMBEDDINGS = {
    Matrix.W_E.value: r"wte|embed_in|embed_tokens|word_embeddings",
    Matrix.W_pos.value: r"wpe|position_embeddings",
    "W_type": r"token_type_embeddings",
}
_BELOW = {
    **_EMBEDDINGS,
    "ln_embed": r"embeddings\.LayerNorm",
    "W_map": r"embedding_hidden_mapping_in",
}
_NORMS = {
    "ln1": r"ln_1|input_layernorm|attention(\.output)?\.LayerNorm",
    "ln2": r"ln_2|post_attention_layernorm|output\.LayerNorm|full_layer_layer_norm",
}
_ABOVE = {
    "W_head": r"(transform|lm_head|predictions)\.dense",
    "ln_out": r"ln_f|final_layer_norm|model\.norm|(transform|predictions)\.LayerNorm|lm_head\.layer_norm",
    Matrix.W_U.value: r"lm_head|embed_out|decoder|predictions",
}
_ORDER = [*_BELOW, *_NORMS, *QKV, Matrix.W_O, *GATED, Matrix.W_out, *_ABOVE]


def layout_of(model: nn.Module, where: str) -> Layout:
    """Return all weights, layer by layer; `parameters` contains each parameter once, for the group all.

    Raises UserError for a parameter that the supported architectures do not have.
    """
    named = [
        entry for held in Places(model, {}, {}).held for entry in _named(held, where)
    ]
    is_tied = not any(weight.name == Matrix.W_U for _, weight in named)
    weights = tuple(
        replace(weight, name=TIED) if is_tied and weight.name == Matrix.W_E else weight
        for _, weight in sorted(named, key=_place)
    )
    paths = dict.fromkeys(weight.parameter for weight in weights)
    sizes = ((path, model.get_parameter(path).numel()) for path in paths)
    return Layout(weights, every_parameter(sizes).weights)


def _named(held: Held, where: str) -> Iterator[tuple[str, Weight]]:
    """Yield the weights in a parameter, each with the name by which weights are ordered."""
    if held.role not in ("", OTHER) and not held.suffix:
        for weight in views.named(held):
            yield f"W{weight.name[1:].partition('.')[0]}", weight
        return
    ends = _NORMS if held.layer else {**_BELOW, **_ABOVE}
    stem = next(
        (
            stem
            for stem, end in ends.items()
            if re.search(rf"(^|\.)({end})$", held.where)
        ),
        "",
    )
    if not stem:
        raise UserError(
            f"{where}: the parameters of the model are not those of its architecture",
            got=held.path,
            allowed="the weights of attention and MLP of this architecture, their biases, and norms",
            remedy="check config.json for further modules; or model=python model.factory=FILE.py:FUNCTION",
        )
    if stem in _EMBEDDINGS:
        group = (Group.embeddings.value,)
        yield stem, Weight(stem, held.path, held.size, groups=group)
    elif held.is_bias and not held.is_of_norm:
        yield stem, bias_of(stem, held.path, held.size)
    else:
        yield stem, views.own(replace(held, where=stem))


def _place(entry: tuple[str, Weight]) -> tuple[float, int, bool, bool]:
    """Return the place of a weight: by layer and name, then the matrix, its bias and its heads."""
    stem, weight = entry
    layer = math.inf if stem in _ABOVE else weight.layer
    return layer, _ORDER.index(stem), weight.is_finer, not weight.is_main
