"""The door to transformers: a model read from a folder or drawn from a seed, checked to be the one that was meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.models.huggingface.folder import folder, is_random, settings_of
from hessfig.models.huggingface.header import misfit
from hessfig.models.huggingface.network import CausalNetwork
from hessfig.models.protocol import Layout
from hessfig.rng import stream

_VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model")
_SEQUENCES = 2
_UNMADE = (StrictDataclassError, ValueError, TypeError, KeyError, OSError, RuntimeError, ImportError)
_UNREAD = (*_UNMADE, UnpicklingError)
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}


def load(config: Config, seed: int) -> PreTrainedModel:
    """Return the configured model in evaluation mode: eager attention, no cache, the configured type.

    Random weights are those transformers draws for such a config, from a generator seeded with `seed`. Raises
    UserError when the folder holds something else than this model's weights.
    """
    dtype = getattr(torch, config.dtype)
    model = _random(config, seed) if is_random(config) else _read(config)
    model.set_attn_implementation("eager")  # whatever config.json asks for
    return model.to(dtype).eval().requires_grad_(False)


def check_layout(model: PreTrainedModel, layout: Layout, where: str) -> None:
    """Raise UserError when the model's parameters are not those of the layout."""
    held = {f"model.{name}": p.numel() for name, p in model.named_parameters()}
    named = {weight.parameter: weight.size for weight in layout.parameters}
    odd = [name for name in {**named, **held} if named.get(name) != held.get(name)]
    if odd:
        raise UserError(
            f"{where}: the model's parameters are not those that its config.json calls for",
            got=first_few(odd),
            allowed=f"{len(named)} parameters: {first_few(list(named))}",
            remedy="check model_type and sizes in config.json",
        )


def check_logits(network: CausalNetwork, tokens: Tensor, where: str) -> None:
    """Raise ArithmeticError when the network in pieces is not the model: other logits for the first sequences."""
    tokens = tokens[:_SEQUENCES]
    with torch.no_grad():
        found, own = network(tokens), network.model(input_ids=tokens, use_cache=False).logits
    off, scale = float((found - own).abs().max()), float(own.abs().max())
    if off > _ROUNDING[own.dtype] * scale:
        raise ArithmeticError(
            f"{where}: layer by layer the logits differ by {off / scale:.2g} from the model's own; this architecture "
            "does more between its layers than is known here"
        )


def encoder(place: Path | None) -> Callable[[str], Sequence[int]]:
    """Return what turns a text into ids: the tokenizer in the model's folder. Raises UserError when it has none."""
    if place is None or not any((place / name).exists() for name in _VOCABULARIES):
        # transformers would make an empty one
        raise _no_tokenizer(place, f"none of {', '.join(_VOCABULARIES)}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(place), local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _no_tokenizer(place, f"{type(error).__name__}: {error}"[:200]) from error

    def encode(text: str) -> list[int]:
        with _quiet():  # a text longer than the context is meant to be cut
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return encode


def _no_tokenizer(place: Path | None, why: str) -> UserError:
    return UserError(
        "task.path: a text needs the tokenizer of the model's folder, and there is none",
        got=f"{place or 'model.path=null'}: {why}",
        allowed="a folder that tokenizer.save_pretrained wrote too; or task.path=FILE.npy of ids",
        remedy="tokenizer.save_pretrained(DIR), or give the ids as .npy",
    )


def _random(config: Config, seed: int) -> PreTrainedModel:
    settings, where = settings_of(config)
    words = {key: value for key, value in settings.items() if key != "model_type"}
    try:
        with _quiet(), torch.random.fork_rng(devices=[]):
            made = AutoConfig.for_model(settings["model_type"], **words)
            torch.manual_seed(int(torch.randint(2**62, (), generator=stream(seed, "huggingface"))))
            return AutoModelForCausalLM.from_config(made, attn_implementation="eager", dtype=torch.float32)
    except _UNMADE as error:
        raise _unmade(where, error) from error


def _read(config: Config) -> PreTrainedModel:
    place = folder(str(config.model.path), config.model.download)
    try:
        with _quiet():
            model, report = AutoModelForCausalLM.from_pretrained(
                str(place),
                local_files_only=True,
                attn_implementation="eager",
                dtype=getattr(torch, config.dtype),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except _UNREAD as error:
        raise _unmade(str(place), error) from error
    _check_report(str(place), report)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from reporting on stderr: what does not fit is said by an error."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _check_report(place: str, report: dict[str, Any]) -> None:
    """Raise UserError for weights that were not in the file, or had another shape: transformers draws those anew."""
    missing, other = _names(report["missing_keys"]), _names(report["mismatched_keys"])
    if missing or other:
        raise misfit(place, missing, other, _names(report["unexpected_keys"]))


def _names(keys: Iterable[Any]) -> list[str]:
    return sorted(str(key[0] if isinstance(key, tuple) else key) for key in keys)


def _unmade(where: str, error: Exception) -> UserError:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return UserError(
        f"{where}: transformers cannot make this model",
        got=f"{type(error).__name__}: {lines[0]}"[:300],
        allowed="a causal language model that transformers knows, with weights in safetensors",
        remedy="python -c 'from transformers import AutoModelForCausalLM as A; A.from_pretrained(\"DIR\")'",
    )
