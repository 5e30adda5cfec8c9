"""The door to transformers: a model made of our own tensors, checked to be the one that was meant."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import constants
from huggingface_hub.errors import StrictDataclassError
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.files import check_pin
from hessfig.models.protocol import Drawn, Layout
from hessfig.models.stored import model_folder
from hessfig.models.stored.architectures import Names, Sizes, architecture, public
from hessfig.models.stored.weight_files import FLOATING, hashed, in_batches, tensors_of
from hessfig.rng import stream
from hessfig.tasks.tokens import Ids

Call = tuple[tuple[Any, ...], dict[str, Any]]


class CausalNetwork(nn.Module):
    """Maps tokens to logits as `model` does, piece by piece.

    A layer is called as the model itself calls it: mask and rotary positions are those of one recorded forward pass
    of the same length (they depend on nothing else). check_logits compares the logits.
    """

    def __init__(self, model: nn.Module, names: Names) -> None:
        super().__init__()
        self.model, self._names = model, names
        embedding = model.get_submodule(names.embedding)
        assert isinstance(embedding, nn.Embedding)
        embedding.padding_idx = None  # its word has derivatives like any other
        self._calls: dict[tuple[int, torch.device], list[Call]] = {}

    @property
    def layers(self) -> nn.ModuleList:
        """The layers, in order."""
        found = self.model.get_submodule(self._names.layers)
        assert isinstance(found, nn.ModuleList)
        return found

    @property
    def unembedding(self) -> nn.Parameter:
        """The head's matrix; the embedding's own parameter where they are tied."""
        return self.model.get_parameter("lm_head.weight")

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits at every position."""
        return self.from_hidden(self.hidden(tokens, 0), 0, slice(None))

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
        """Return the normed residual stream at the scored positions, given that after `depth` layers."""
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
        """Return what every layer is called with beside the residual stream, for sequences of `length`."""
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
_UNMADE = (StrictDataclassError, ValueError, TypeError, KeyError, OSError, RuntimeError, ImportError)
_ODD = (*_UNMADE, AttributeError, IndexError, AssertionError, ArithmeticError, NotImplementedError)
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}
# Words of tokenizer_config.json that name code or further files.
_LEADING = ("auto_map", "name_or_path", "fast_tokenizer_files")


def load(config: Config, seed: int) -> PreTrainedModel:
    """Return the configured model in evaluation mode: eager attention, no cache, the configured type.

    Random weights are those transformers draws for such a config, from a generator seeded with `seed`. Raises
    UserError when the folder holds something else than this model's weights, all of them finite, and when its files
    are not those that were planned.
    """
    dtype = getattr(torch, config.dtype)
    model = _random(config, seed) if model_folder.is_random(config) else _read(config)
    return model.to(dtype).eval().requires_grad_(False)


def made(config: Config, device: str) -> PreTrainedModel:
    """Return the configured model with weights as transformers makes them, in float32 on `device`.

    Raises UserError for settings that transformers refuses.
    """
    known, where = _configuration(config)
    try:
        with _alone(), torch.device(device):
            return AutoModelForCausalLM.from_config(
                known, attn_implementation="eager", dtype=torch.float32, trust_remote_code=False
            )
    except _ODD as error:
        raise _unmade(where, error) from error


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
    """Raise UserError when the network in pieces is not the model: other logits for the first sequences."""
    tokens = tokens[:_SEQUENCES]
    try:
        with torch.no_grad():
            found, own = network(tokens), network.model(input_ids=tokens, use_cache=False).logits
    except _ODD as error:
        raise _unmade(where, error) from error
    off, scale = float((found - own).abs().max()), float(own.abs().max())
    if not off <= _ROUNDING[own.dtype] * scale:
        raise UserError(
            f"{where}: layer by layer the logits differ from the model's own; this architecture does more between its "
            "layers than is known here",
            got=f"{off:.2g} of {scale:.2g}",
            allowed=f"{_ROUNDING[own.dtype] * scale:.2g}",
            remedy="model=python model.factory=FILE.py:FUNCTION",
        )


def encoder(place: Path | None, sha256: str | None) -> Callable[[str], Sequence[int]]:
    """Return what turns a text into ids: the tokenizer in the model's folder.

    transformers makes it in a folder of its own, of the files that were hashed and without what names code or other
    files. Raises UserError when there is none, and when it is not that of `sha256`.
    """
    held = model_folder.tokenizer_files(place)
    if not held:  # transformers would make an empty one
        raise _no_tokenizer(place, "no vocabulary")
    check_pin(place, model_folder.KEY, found=model_folder.hash_of_tokenizer(held), planned=sha256)
    try:
        with _alone(), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as copy:
            for name, content in held.items():
                (Path(copy) / name).write_bytes(content)
            _write_plain(Path(copy) / "tokenizer_config.json")
            tokenizer = AutoTokenizer.from_pretrained(copy, local_files_only=True, trust_remote_code=False)
    except UserError:
        raise
    except Exception as error:  # its parsers raise Exception itself
        raise _no_tokenizer(place, f"{type(error).__name__}: {error}"[:200]) from error

    def encode(text: str) -> list[int]:
        with _alone():  # a text longer than the context is meant to be cut
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    return encode


def _write_plain(path: Path) -> None:
    """Take out of a tokenizer_config.json what names code, or files beside those that were hashed."""
    if path.exists():
        found = model_folder.json_of(path)
        kept = {
            key: value
            for key, value in found.items()
            if not (key in _LEADING or key.startswith("_") or key.endswith("_file"))
        }
        path.write_text(json.dumps(kept), "utf-8")


def _no_tokenizer(place: Path | None, why: str) -> UserError:
    return UserError(
        "task.path: a text needs the tokenizer of the model's folder, and there is none",
        got=f"{place or 'model.path=null'}: {why}",
        allowed="a folder that tokenizer.save_pretrained wrote too; or task.path=FILE.npy of ids",
        remedy="tokenizer.save_pretrained(DIR), or give the ids as .npy",
    )


def _configuration(config: Config) -> tuple[PreTrainedConfig, str]:
    """Return the configuration that transformers makes of the public settings, and where they stand.

    Raises UserError when it is refused, or says other sizes than are read of it here.
    """
    settings, where = model_folder.settings_of(config)
    model_type = str(settings["model_type"])
    words = public(settings, where)
    try:
        with _alone():
            found = AutoConfig.for_model(model_type, **words)
    except _ODD as error:
        raise _unmade(where, error) from error
    _check_sizes(found, settings, where)
    return found, where


def _check_sizes(found: PreTrainedConfig, settings: dict[str, Any], where: str) -> None:
    """Raise UserError for sizes under two names, and for rotary positions beyond a head: before anything is made."""
    for key, default in architecture(str(settings["model_type"]), where).sizes.values():
        said = settings.get(key, default)
        if type(said) is int and getattr(found, key, said) != said:
            raise UserError(
                f"{where}: {key} has two values",
                got=f"{said} and {getattr(found, key)}",
                allowed="one of them",
                remedy="mend the file",
            )
    share = (getattr(found, "rope_parameters", None) or {}).get("partial_rotary_factor", 1.0)
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise UserError(f"{where}: partial_rotary_factor", got=share, allowed="0 < share <= 1", remedy="mend the file")


def _random(config: Config, seed: int) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=stream(seed, "huggingface"))))
        return made(config, "cpu")


def _read(config: Config) -> PreTrainedModel:
    place = model_folder.folder(str(config.model.path), config.model.download)
    tensors = _tensors(config, place)
    known, _ = _configuration(config)
    held = {name: tensor for name, tensor in tensors.items() if tensor.dtype in FLOATING}
    try:
        with _alone():
            model, report = MODEL_FOR_CAUSAL_LM_MAPPING[type(known)].from_pretrained(
                None,
                config=known,
                state_dict=held,
                local_files_only=True,
                attn_implementation="eager",
                dtype=getattr(torch, config.dtype),
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except _ODD as error:
        raise _unmade(str(place), error) from error
    odd = {name: str(tensor.dtype) for name, tensor in tensors.items() if name not in held}
    _check_report(str(place), report, odd)
    _check_finite(model, str(place))
    return model


def _tensors(config: Config, place: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder, parsed from the bytes that are hashed; a file's are freed before the next."""
    found: dict[str, Tensor] = {}
    hashes = []
    for path in model_folder.weight_files(place):
        content, own = hashed(path, model_folder.KEY)
        hashes.append(own)
        tensors = tensors_of(content, path, model_folder.KEY)
        del content
        _check_once([*found], [*tensors], path)
        found |= tensors
    check_pin(
        place,
        model_folder.KEY,
        found=model_folder.digest(model_folder.json_of(place / model_folder.CONFIG), hashes),
        planned=model_folder.pin_of(config, 0),
    )
    return found


def _check_once(before: list[str], now: list[str], path: Path) -> None:
    if twice := sorted({*before} & {*now}):
        raise UserError(
            f"{model_folder.KEY}: a weight stands in two files",
            got=f"{path.name}: {first_few(twice)}",
            allowed="every weight once",
            remedy="save the model again: model.save_pretrained(DIR)",
        )


@contextmanager
def _alone() -> Iterator[None]:
    """Keep transformers from the network, and from reporting on stderr: what does not fit is said by an error."""
    verbosity, bars, offline = (logging.get_verbosity(), logging.is_progress_bar_enabled(), constants.HF_HUB_OFFLINE)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = offline
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _check_report(place: str, report: dict[str, Any], odd: dict[str, str]) -> None:
    """Raise UserError for weights that were not in the file, or had another shape: transformers draws those anew.

    `odd` has the types of tensors that are no weights: masks may be among them.
    """
    missing, other = _names(report["missing_keys"]), _names(report["mismatched_keys"])
    if missing or other:
        lists = {"missing": missing, "of another shape": other, "surplus": _names(report["unexpected_keys"])}
        types = [f"{name} ({kind.removeprefix('torch.')})" for name, kind in sorted(odd.items())]
        lists |= {"of another type": types} if types else {}
        raise UserError(
            f"{model_folder.KEY}: the weights in {place} are not those of its config.json",
            got="; ".join(f"{what}: {first_few(names)}" for what, names in lists.items()),
            allowed="every weight of the architecture that config.json names, in floating point",
            remedy="save the model again: model.save_pretrained(DIR)",
        )


def _check_finite(model: PreTrainedModel, place: str) -> None:
    bad = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if bad:
        raise UserError(
            f"{model_folder.KEY}: {place} holds numbers that are not finite in {next(model.parameters()).dtype}",
            got=first_few(bad),
            allowed="finite floating-point numbers",
            remedy="save the weights again, from before the training diverged; or dtype=float64",
        )


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


def drawn(config: Config, seed: int, sizes: Sizes, layout: Layout, ids: Ids, at_once: int) -> Drawn:
    """Return the model with its sequences in micro-batches of `at_once` (the last may be smaller).

    Raises UserError when the folder holds something else than its config.json says.
    """
    where = str(config.model.path or config.model.architecture)
    model = load(config, seed)
    check_layout(model, layout, where)
    network = CausalNetwork(model, sizes.names)
    check_logits(network, torch.tensor(ids), where)
    return in_batches(network, layout, ids, config.task.first_scored, at_once)


def check(config: Config, sizes: Sizes, layout: Layout, ids: Ids) -> None:
    """Raise UserError when `drawn` would: the weights of a folder are read, random ones are not drawn."""
    if model_folder.is_random(config):
        check_layout(made(config, "meta"), layout, str(config.model.path or config.model.architecture))
    else:
        drawn(config, 0, sizes, layout, ids, len(ids))
