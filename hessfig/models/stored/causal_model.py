"""Builds models of the library transformers, causal or for masked tokens, from given tensors, and checks them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call
from transformers.activations import ACT2FN

from hessfig.config.enums import Data
from hessfig.config.schema import Config
from hessfig.curvature.gradients import Evaluated
from hessfig.curvature.losses import CrossEntropy
from hessfig.curvature.problem import Objective
from hessfig.curvature.rounding import OUTPUTS, ROWS
from hessfig.curvature.witness import Derivatives, Directions, apart, derivatives
from hessfig.errors import UserError, first_few
from hessfig.models.stored import model_folder
from hessfig.models.stored.architectures import ModelSizes, architecture, public
from hessfig.models.stored.encoder_network import EncoderNetwork, tied_biases
from hessfig.models.stored.families import Encoder, Names
from hessfig.models.stored.stored_weights import check_finite, check_report, check_surplus, listed_names, read_tensors
from hessfig.models.stored.tokenizer import alone, tokenizer_of
from hessfig.models.weight_files import FLOATING, in_batches
from hessfig.rng import global_draws, stream
from hessfig.tasks.batch import Special, masked_batches
from hessfig.tasks.tokens import Ids, is_text
from hessfig.weights import Layout

Call = tuple[tuple[Any, ...], dict[str, Any]]


class CausalNetwork(nn.Module):
    """Maps tokens to logits as `model` does, piece by piece.

    A layer is called with the arguments of one recorded forward pass of the same length (mask and rotary positions
    depend only on the length). check_logits compares the logits.
    """

    def __init__(self, model: nn.Module, names: Names) -> None:
        super().__init__()
        self.model, self._names = model, names
        embedding = model.get_submodule(names.embedding)
        assert isinstance(embedding, nn.Embedding)
        embedding.padding_idx = None  # so that the padding token has derivatives like any other token
        self._calls: dict[tuple[int, torch.device], list[Call]] = {}

    @property
    def layers(self) -> nn.ModuleList:
        """The layers, in order."""
        layers = self.model.get_submodule(self._names.layers)
        assert isinstance(layers, nn.ModuleList)
        return layers

    @property
    def unembedding(self) -> nn.Parameter:
        """The matrix of the head, which is the parameter of the embedding if they are tied."""
        return self.model.get_parameter("lm_head.weight")

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits at every position."""
        return self.from_hidden(self.hidden(tokens, 0), 0, slice(None))

    def whole(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits of the whole model."""
        return self.model(input_ids=tokens, use_cache=False).logits

    def hidden(self, inputs: Int[Tensor, "batch length"], depth: int) -> Float[Tensor, "batch length width"]:
        """Return the residual stream after `depth` layers (0: the embeddings)."""
        hidden = self.model.get_submodule(self._names.embedding)(inputs)
        if self._names.positions:
            places = torch.arange(inputs.shape[1], device=inputs.device)
            hidden = hidden + self.model.get_submodule(self._names.positions)(places)
        return self._through(hidden, 0, depth)

    def features(
        self, hidden: Float[Tensor, "batch length width"], depth: int, scored: slice
    ) -> Float[Tensor, "batch scored width"]:
        """Return the normalised residual stream at the scored positions, given the stream after `depth` layers."""
        hidden = self._through(hidden, depth, len(self.layers))
        return self.model.get_submodule(self._names.norm)(hidden[:, scored])

    def from_hidden(self, hidden: Tensor, depth: int, scored: slice) -> Float[Tensor, "batch scored vocabulary"]:
        """Return the logits at the scored positions, given the residual stream after `depth` layers."""
        return self.model.get_submodule("lm_head")(self.features(hidden, depth, scored))

    def _through(self, hidden: Tensor, first: int, last: int) -> Tensor:
        calls = self._recorded(hidden.shape[1], hidden.device) if last > first else []
        for layer, (args, words) in list(zip(self.layers, calls, strict=False))[first:last]:
            hidden = layer(hidden, *args, **words)
        return hidden

    def _recorded(self, length: int, device: torch.device) -> list[Call]:
        """Return the further arguments of every layer, besides the residual stream, for sequences of `length`."""
        if (length, device) not in self._calls:
            self._calls[length, device] = self._record(length, device)
        return self._calls[length, device]

    @torch.no_grad()
    def _record(self, length: int, device: torch.device) -> list[Call]:
        calls: list[Call] = []

        def note(module: nn.Module, args: tuple[Any, ...], words: dict[str, Any]) -> None:
            calls.append((args[1:], words))

        hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in self.layers]
        try:
            tokens = torch.zeros(1, length, dtype=torch.long, device=device)
            self.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
        finally:
            for hook in hooks:
                hook.remove()
        return calls


_SEQUENCES = 2
_POSITIONS = 16  # positions whose derivatives are compared
_LARGE = 2**24  # products are compared below this number of parameters
_UNMADE = (StrictDataclassError, ValueError, TypeError, KeyError, OSError, RuntimeError, ImportError)
_ODD = (*_UNMADE, AttributeError, IndexError, AssertionError, ArithmeticError, NotImplementedError)


def load(config: Config, seed: int) -> transformers.PreTrainedModel:
    """Return the configured model in evaluation mode: eager attention, no cache, the configured type.

    Random weights are drawn by transformers for this config, from a generator seeded with `seed`. Raises UserError if
    the folder does not contain finite weights of this model, and if its files are not those that were planned.
    """
    dtype = getattr(torch, config.dtype)
    model = _random(config, seed) if model_folder.is_random(config) else _read(config)[0]
    return model.to(dtype).eval().requires_grad_(False)


def load_model(config: Config, device: str) -> transformers.PreTrainedModel:
    """Return the configured model with the initial weights of transformers, in float32 on `device`.

    Raises UserError for settings that transformers refuses.
    """
    known, where = _configuration(config)
    encoder = _encoder(config)
    maker = transformers.AutoModelForMaskedLM if encoder else transformers.AutoModelForCausalLM
    try:
        with alone(), torch.device(device):
            model = maker.from_config(known, attn_implementation="eager", dtype=torch.float32, trust_remote_code=False)
    except _ODD as error:
        raise _unmade(where, error) from error
    if encoder:
        tied_biases(model, encoder)
    return model


def left_out(config: Config) -> list[str]:
    """Return the names of weights in a folder that the masked-token network does not have: poolers and other heads.

    Empty for random weights and for causal models.
    """
    return _read(config)[1] if _encoder(config) and not model_folder.is_random(config) else []


def _encoder(config: Config) -> Encoder | None:
    settings, where = model_folder.settings_of(config)
    return architecture(str(settings["model_type"]), where).names.encoder


def check_layout(model: transformers.PreTrainedModel, layout: Layout, where: str) -> None:
    """Raise UserError if the parameters of the model are not those of the layout."""
    counts = {f"model.{name}": p.numel() for name, p in model.named_parameters()}
    named = {weight.parameter: weight.size for weight in layout.parameters}
    odd = [name for name in {**named, **counts} if named.get(name) != counts.get(name)]
    if odd:
        raise UserError(
            f"{where}: the parameters of the model are not those of its config.json",
            got=first_few(odd),
            allowed=f"{len(named)} parameters: {first_few(list(named))}",
            remedy="check model_type and sizes in config.json",
        )


def check_logits(network: CausalNetwork | EncoderNetwork, tokens: Tensor, where: str) -> None:
    """Raise UserError if the logits of the network in pieces differ from those of the model for the first sequences."""
    tokens = tokens[:_SEQUENCES]
    try:
        with torch.no_grad():
            logits, own = network(tokens), network.whole(tokens)
    except _ODD as error:
        raise _unmade(where, error) from error
    off, scale = float((logits - own).abs().max()), float(own.abs().max())
    if not off <= OUTPUTS.of(own.dtype) * scale:
        raise UserError(
            f"{where}: layer by layer the logits differ from those of the model; this architecture has "
            "unknown operations between its layers",
            got=f"{off:.2g} of {scale:.2g}",
            allowed=f"{OUTPUTS.of(own.dtype) * scale:.2g}",
            remedy="model=python model.factory=FILE.py:FUNCTION",
        )


def check_pieces(network: CausalNetwork | EncoderNetwork, tokens: Tensor, where: str) -> None:
    """Raise UserError if logits or derivatives of the network in pieces differ from those of the model."""
    check_logits(network, tokens, where)
    parameters = {name: p.detach() for name, p in network.named_parameters() if p.is_floating_point()}
    directions, given = Directions.of(parameters), tokens[:_SEQUENCES, :_POSITIONS]
    order = 2 if sum(p.numel() for p in parameters.values()) <= _LARGE else 1

    def of(logits: Callable[[Any], Tensor]) -> Derivatives:
        at = {name: p.clone().requires_grad_() for name, p in parameters.items()}
        body = Evaluated(network, lambda inside: CrossEntropy()(logits(inside), given))
        term = partial(functional_call, body, {f"network.{name}": one for name, one in at.items()}, ())
        return derivatives([term], at, directions.like(at), order)

    off = apart(of(lambda inside: inside.whole(given)), of(lambda inside: inside(given)), directions.ratio)
    if not max(off.values()) <= ROWS.of(next(network.parameters()).dtype):
        name = max(off, key=lambda one: off[one])
        raise UserError(
            f"{where}: the derivatives computed layer by layer differ from those of the model",
            got=f"{name}: off by {off[name]:.2g}, relative to a parameter's rows",
            allowed=f"{ROWS.of(next(network.parameters()).dtype):.2g}",
            remedy="model=python model.factory=FILE.py:FUNCTION",
        )


def _configuration(config: Config) -> tuple[transformers.PreTrainedConfig, str]:
    """Return the configuration that transformers builds from the public settings, and the location of the settings.

    Raises UserError if transformers refuses the settings, or reads other sizes from them.
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


def _check_sizes(configuration: transformers.PreTrainedConfig, settings: dict[str, Any], where: str) -> None:
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
    share = (getattr(configuration, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0)
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise UserError(f"{where}: partial_rotary_factor", got=share, allowed="0 < share <= 1", remedy="fix the file")


def _random(config: Config, seed: int) -> transformers.PreTrainedModel:
    with global_draws(stream(seed, "huggingface")):
        return load_model(config, "cpu")


def _read(config: Config) -> tuple[transformers.PreTrainedModel, list[str]]:
    """Return the model in a folder, and the weights in the folder that the model does not have."""
    place = model_folder.folder(str(config.model.path), config.model.download)
    tensors = read_tensors(config, place)
    known, _ = _configuration(config)
    encoder = _encoder(config)
    models = transformers.MODEL_FOR_MASKED_LM_MAPPING if encoder else transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    weights = {name: tensor for name, tensor in tensors.items() if tensor.dtype in FLOATING}
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
    odd = {name: str(tensor.dtype) for name, tensor in tensors.items() if name not in weights}
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


def drawn(config: Config, seed: int, sizes: ModelSizes, layout: Layout, ids: Ids, at_once: int) -> Objective:
    """Return the model with its sequences in micro-batches of `at_once` (the last may be smaller).

    Raises UserError if the folder does not match its config.json.
    """
    where, tokens = str(config.model.path or config.model.architecture), torch.tensor(ids)
    model = load(config, seed)
    check_layout(model, layout, where)
    if sizes.names.encoder is None:
        network = CausalNetwork(model, sizes.names)
        check_pieces(network, tokens, where)
        return in_batches(network, layout, ids, config.task.first_scored, at_once)
    activation = "gelu" if sizes.model_type == "roberta" else model.config.hidden_act  # RoBERTa's head always has gelu
    encoder = EncoderNetwork(model, sizes, ACT2FN[activation])
    padded = tokens.eq(sizes.padding).sum(dim=1).argsort()
    check_pieces(encoder, tokens[padded[[0, -1]]], where)
    special = special_words(config, sizes)
    first, *more = masked_batches(tokens, config.task, special, vocabulary=sizes.vocabulary, at_once=at_once)
    return Objective(encoder, first, CrossEntropy(), layout, tuple(more))


def special_words(config: Config, sizes: ModelSizes) -> Special:
    """Return the special tokens for masked tokens: those of the tokenizer for a text; padding and mask for ids.

    Raises UserError for a mask outside the vocabulary, and for a tokenizer without a mask.
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
    if model_folder.is_random(config):
        check_layout(load_model(config, "meta"), layout, str(config.model.path or config.model.architecture))
        if config.task.data == Data.masked_tokens:
            special_words(config, sizes)
    else:
        drawn(config, 0, sizes, layout, ids, len(ids))
