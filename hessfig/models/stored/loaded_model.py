"""Models of the library transformers, causal or for masked tokens, loaded by transformers from hashed tensors."""

from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessfig.config.schema import Config
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError, first_few
from hessfig.models.lens_bridge import following
from hessfig.models.own.any_batch import Shell
from hessfig.models.own.border import open_request
from hessfig.models.own.witnessing import witnessed
from hessfig.models.stored import model_folder
from hessfig.models.stored.architectures import ModelSizes, architecture, public
from hessfig.models.stored.families import Encoder
from hessfig.models.stored.stored_weights import (
    check_finite,
    check_report,
    check_surplus,
    listed_names,
    read_tensors,
)
from hessfig.models.stored.tokenizer import alone, tokenizer_of
from hessfig.models.weight_files import FLOATING
from hessfig.rng import global_draws, stream
from hessfig.tasks.batch import Special, masked_batches
from hessfig.tasks.tokens import Ids, is_text
from hessfig.weights import Layout


class Logits(Shell):
    """A model's logits as a function of tokens (samples, length); no position attends to the token `padding`."""

    def __init__(self, model: nn.Module, padding: int | None) -> None:
        super().__init__(model)
        self._padding = padding

    def forward(
        self, tokens: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits at every position."""
        mask = None if self._padding is None else tokens.ne(self._padding).long()
        logits: Tensor = self._inside[0](input_ids=tokens, attention_mask=mask).logits
        return logits


_UNMADE = (
    StrictDataclassError,
    ValueError,
    TypeError,
    KeyError,
    OSError,
    RuntimeError,
    ImportError,
)
_ODD = (
    *_UNMADE,
    AttributeError,
    IndexError,
    AssertionError,
    ArithmeticError,
    NotImplementedError,
)


def load(config: Config, seed: int) -> transformers.PreTrainedModel:
    """Return the configured model in evaluation mode: eager attention, no cache, the configured type.

    Random weights are drawn by transformers for this config, from a generator seeded
    with `seed`. Raises UserError if the folder does not contain finite weights of this
    model, and if its files are not those that were planned.
    """
    model = (
        _random(config, seed) if model_folder.is_random(config) else _read(config)[0]
    )
    model.config.use_cache = False  # of keys and values, for generation
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.padding_idx = (
                None  # so that the padding token has derivatives like any other token
            )
    return model.to(getattr(torch, config.dtype)).eval()


def load_model(config: Config, device: str) -> transformers.PreTrainedModel:
    """Return the configured model with the initial weights of transformers, in float32 on `device`.

    Raises UserError for settings that transformers refuses.
    """
    known, where = _configuration(config)
    encoder = _encoder(config)
    maker = (
        transformers.AutoModelForMaskedLM
        if encoder
        else transformers.AutoModelForCausalLM
    )
    try:
        with alone(), torch.device(device):
            model = maker.from_config(
                known,
                attn_implementation="eager",
                dtype=torch.float32,
                trust_remote_code=False,
            )
    except _ODD as error:
        raise _unmade(where, error) from error
    if encoder:
        tied_biases(model, encoder)
    return model


def left_out(config: Config) -> list[str]:
    """Return the names of weights in a folder that the masked-token network does not have: poolers and other heads.

    Empty for random weights and for causal models.
    """
    return (
        _read(config)[1]
        if _encoder(config) and not model_folder.is_random(config)
        else []
    )


def _encoder(config: Config) -> Encoder | None:
    settings, where = model_folder.settings_of(config)
    return architecture(str(settings["model_type"]), where).names.encoder


def check_layout(
    model: transformers.PreTrainedModel, layout: Layout, where: str
) -> None:
    """Raise UserError if the parameters of the model are not those of the layout."""
    counts = {name: p.numel() for name, p in model.named_parameters()}
    named = {weight.parameter: weight.size for weight in layout.parameters}
    odd = [name for name in {**named, **counts} if named.get(name) != counts.get(name)]
    if odd:
        raise UserError(
            f"{where}: the parameters of the model are not those of its config.json",
            got=first_few(odd),
            allowed=f"{len(named)} parameters: {first_few(list(named))}",
            remedy="check model_type and sizes in config.json",
        )


def _configuration(config: Config) -> tuple[transformers.PreTrainedConfig, str]:
    """Return the configuration that transformers builds from the public settings, and the location of the settings.

    Raises UserError if transformers refuses the settings, or reads other sizes from
    them.
    """
    settings, where = model_folder.settings_of(config)
    model_type = str(settings["model_type"])
    words = public(settings, where)
    try:
        with alone():
            configuration = transformers.AutoConfig.for_model(model_type, **words)
    except _ODD as error:
        raise _unmade(where, error) from error
    _check_sizes(configuration, settings, where)
    return configuration, where


def _check_sizes(
    configuration: transformers.PreTrainedConfig, settings: dict[str, Any], where: str
) -> None:
    """Raise UserError for sizes with two values, and rotary positions wider than a head, before building a model."""
    for key, default in architecture(str(settings["model_type"]), where).sizes.values():
        value = settings.get(key, default)
        if type(value) is int and getattr(configuration, key, value) != value:
            raise UserError(
                f"{where}: {key} has two values",
                got=f"{value} and {getattr(configuration, key)}",
                allowed="one of them",
                remedy="fix the file",
            )
    share = (getattr(configuration, "rope_parameters", None) or {}).get(
        "partial_rotary_factor", 1.0
    )
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise UserError(
            f"{where}: partial_rotary_factor",
            got=share,
            allowed="0 < share <= 1",
            remedy="fix the file",
        )


def _random(config: Config, seed: int) -> transformers.PreTrainedModel:
    with global_draws(stream(seed, "huggingface")):
        return load_model(config, "cpu")


def _read(config: Config) -> tuple[transformers.PreTrainedModel, list[str]]:
    """Return the model in a folder, and the weights in the folder that the model does not have."""
    place = model_folder.folder(str(config.model.path), config.model.download)
    tensors = read_tensors(config, place)
    known, _ = _configuration(config)
    encoder = _encoder(config)
    models = (
        transformers.MODEL_FOR_MASKED_LM_MAPPING
        if encoder
        else transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    )
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
    except _ODD as error:
        raise _unmade(str(place), error) from error
    odd = {
        name: str(tensor.dtype)
        for name, tensor in tensors.items()
        if name not in weights
    }
    check_report(str(place), report, odd)
    check_finite(model, str(place))
    surplus = listed_names(report["unexpected_keys"])
    if encoder:
        check_surplus(str(place), surplus, encoder)
        tied_biases(model, encoder)
    return model, surplus


def _unmade(where: str, error: Exception) -> UserError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UserError(
        f"{where}: transformers cannot make this model",
        got=f"{type(error).__name__}: {lines[0]}"[:300],
        allowed="a language model that transformers knows, with weights in safetensors",
        remedy="python -c 'from transformers import AutoModelForCausalLM as A; A.from_pretrained(\"DIR\")'",
    )


def drawn(
    config: Config, seed: int, sizes: ModelSizes, layout: Layout, ids: Ids, at_once: int
) -> Objective:
    """Return the model with its sequences in micro-batches of `at_once` (the last may be smaller).

    Raises UserError if the folder does not match its config.json.
    """
    model = load(config, seed)
    check_layout(model, layout, _where(config))
    inputs, targets = _batches(config, sizes, ids, at_once)
    network = _logits_of(model, sizes)
    return witnessed(
        open_request(
            network, inputs, targets, "cross_entropy", layout, memory=config.memory
        ),
        config.dtype,
    )


def _where(config: Config) -> str:
    return str(config.model.path or config.model.architecture)


def _logits_of(model: nn.Module, sizes: ModelSizes) -> Logits:
    return Logits(model, sizes.padding if sizes.names.encoder else None)


def _batches(
    config: Config, sizes: ModelSizes, ids: Ids, at_once: int
) -> tuple[list[Tensor], list[Tensor]]:
    """Return sequences in micro-batches, and their targets: IGNORED at positions that are not scored."""
    tokens, task = torch.tensor(ids), config.task
    if not sizes.names.encoder:
        inputs = list(tokens.split(at_once))
        return inputs, [following(one, task.first_scored) for one in inputs]
    special = special_words(config, sizes)
    batches = masked_batches(
        tokens, task, special, vocabulary=sizes.vocabulary, at_once=at_once
    )
    return [one.inputs for one in batches], [one.targets for one in batches]


def special_words(config: Config, sizes: ModelSizes) -> Special:
    """Return the special tokens for masked tokens: those of the tokenizer for a text; padding and mask for ids.

    Raises UserError for a mask outside the vocabulary, and for a tokenizer without a
    mask.
    """
    kept, mask = {sizes.padding}, sizes.vocabulary - 1
    if is_text(config.task):
        place = None if config.model.path is None else Path(config.model.path)
        tokenizer = tokenizer_of(place, model_folder.pin_of(config, 1))
        kept, mask = {*kept, *tokenizer.all_special_ids}, tokenizer.mask_token_id
    mask = mask if config.task.mask_id is None else config.task.mask_id
    if mask is None or mask >= sizes.vocabulary:
        raise UserError(
            "task.mask_id: the mask is not a word of the network's vocabulary",
            got="the tokenizer has no mask" if mask is None else mask,
            allowed=f"0 to {sizes.vocabulary - 1}",
            remedy="task.mask_id=ID of the mask token of the training",
        )
    return Special(mask, tuple(sorted({*kept, mask})))


def check(config: Config, sizes: ModelSizes, layout: Layout, ids: Ids) -> None:
    """Raise UserError if `drawn` would; weights of a folder are read, but random weights are not drawn."""
    (first, *_), _ = _batches(config, sizes, ids, 1)
    if model_folder.is_random(config):
        check_layout(load_model(config, "meta"), layout, _where(config))
        return
    model = load(config, 0)
    check_layout(model, layout, _where(config))
    try:
        with torch.no_grad():
            _logits_of(model, sizes)(first)
    except _ODD as error:
        raise _unmade(_where(config), error) from error


def tied_biases(model: nn.Module, encoder: Encoder) -> None:
    """Give the head a single bias, that of the unembedding, whatever config.json specifies for tied weights.

    For models with an untied embedding, transformers keeps a second bias on which no
    output depends.
    """
    place, _, name = encoder.bias.rpartition(".")
    setattr(
        model.get_submodule(place), name, model.get_parameter(f"{encoder.head}.bias")
    )
