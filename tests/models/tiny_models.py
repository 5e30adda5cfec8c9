"""Tiny models of transformers saved to a folder, and their whole Hessians by dense double backward, without hessfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from hessfig.config.enums import Data, Products, Scored
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.column import view_of
from hessfig.curvature.problem import Objective
from hessfig.models.routes import Engines
from hessfig.terms import Block, Part
from hessfig.weights import Weight
from tests.double_backward import hessian, jacobian
from tests.draws import draws

VOCABULARY = 5
CONTEXT = 4
SEQUENCES = 4
_LLAMA = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 6,
    "max_position_embeddings": CONTEXT,
}
_GPT2 = {"n_embd": 4, "n_layer": 2, "n_head": 2, "n_inner": 6, "n_positions": CONTEXT}
_BERT: dict[str, Any] = {
    **{
        "hidden_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 6,
    },
    **{"max_position_embeddings": CONTEXT, "type_vocab_size": 2, "pad_token_id": 1},
}
ENCODERS: dict[str, dict[str, Any]] = {
    "albert": {
        **_BERT,
        "embedding_size": 3,
        "num_hidden_layers": 3,
        "hidden_act": "gelu",
    },
    "albert groups": {
        **_BERT,
        "embedding_size": 3,
        "num_hidden_layers": 3,
        "num_hidden_groups": 2,
    },
    "bert": _BERT,
    "bert untied": {**_BERT, "tie_word_embeddings": False},
    "roberta": {**_BERT, "max_position_embeddings": CONTEXT + 2},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "gpt2": _GPT2,
    "gpt2 untied": {**_GPT2, "tie_word_embeddings": False},
    "gpt_neox": {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 6,
        "max_position_embeddings": CONTEXT,
    },
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
}


def save(name: str, folder: Path) -> Path:
    """Write a model with weights, gains and biases far from their defaults, as model.save_pretrained does."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

    settings = SETTINGS.get(name) or ENCODERS[name]
    words = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, **settings}
    made = AutoConfig.for_model(name.partition(" ")[0], **words)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        maker = AutoModelForMaskedLM if name in ENCODERS else AutoModelForCausalLM
        model = maker.from_config(made, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data += 0.4 * torch.randn(
            parameter.shape, dtype=torch.float64, generator=generator
        )
    model.save_pretrained(folder)
    return folder


def save_ids(path: Path) -> Path:
    """Write SEQUENCES rows of CONTEXT ids."""
    np.save(
        path, np.random.default_rng(0).integers(VOCABULARY, size=(SEQUENCES, CONTEXT))
    )
    return path


def save_tokenizer(folder: Path, words: str) -> None:
    """Write a tokenizer that gives each letter of `words` its place there."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: place for place, word in enumerate([*words, "?"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="?").save_pretrained(
        folder
    )


def config_of(folder: Path, ids: Path, **settings: Any) -> Config:
    """Return what `model=huggingface model.path=FOLDER task=tokens task.path=IDS` means."""
    model = {"kind": "huggingface", "path": str(folder), **settings.pop("model", {})}
    task = {
        "data": Data.tokens,
        "scored": Scored.all,
        "path": str(ids),
        "batch_size": SEQUENCES,
    }
    task |= settings.pop("task", {})
    return Config(
        model=ModelConfig(**model),
        task=TaskConfig(**task),
        **{"blocks": "each", "seeds": 1, **settings},
    )


def dense(
    model: torch.nn.Module, tokens: Tensor, only: str = "", rounding: float = 1e-11
) -> dict[Part, Tensor]:
    """Return H, H_f and H_o of the mean cross-entropy of every next token, in the order of named_parameters.

    `only` the parameters with this text in their names. `rounding`: what two ways of
    computing it may differ by.
    """
    words = {"input_ids": tokens, "use_cache": False}
    return _dense(
        model, words, slice(None, -1), tokens[:, 1:].flatten(), only, rounding
    )


def dense_masked(
    model: torch.nn.Module, tokens: Tensor, targets: Tensor, padding: int
) -> dict[Part, Tensor]:
    """Return H, H_f and H_o of the mean cross-entropy of masked tokens (targets other than -100), as `dense` does."""
    words = {"input_ids": tokens, "attention_mask": (tokens != padding).long()}
    return _dense(model, words, slice(None), targets.flatten(), "", 1e-11)


def _dense(
    model: torch.nn.Module,
    words: dict[str, Any],
    scored: slice,
    targets: Tensor,
    only: str,
    rounding: float,
) -> dict[Part, Tensor]:
    """Return H and H_f by double backward; H_o = J^T B J from the logits' Jacobian, on its own."""
    at = {}
    for name, p in model.named_parameters():
        if only in name:
            at[name] = p.detach().clone().requires_grad_()

    def logits() -> Tensor:
        return functional_call(model, at, (), words).logits[:, scored].flatten(0, 1)

    def loss(outputs: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets)

    outputs = logits().detach()
    slope = torch.autograd.functional.jacobian(loss, outputs)
    curved = torch.autograd.functional.hessian(loss, outputs).reshape(
        outputs.numel(), -1
    )
    slopes = jacobian(logits, [*at.values()], rounding)
    return {
        Part.H: hessian(lambda: loss(logits()), [*at.values()], rounding),
        Part.H_f: hessian(lambda: (logits() * slope).sum(), [*at.values()], rounding),
        Part.H_o: slopes.T @ curved @ slopes,
    }


def off(
    problem: Objective,
    parts: dict[Part, Tensor],
    block: Block,
    only: str = "",
    *,
    model: torch.nn.Module | None = None,
    products: Products = Products.linearised,
    least: float = 1e-4,
    singly: bool = False,
) -> float:
    """Return the largest error of a block's products, relative to the largest of H_o and H_f.

    What is wrong in a block is wrong along these four directions, for all but a null set.
    A block that vanishes (that of the keys' bias, which no softmax sees) counts beside
    `least` of the whole Hessian. `singly`: also of each part asked for on its own.
    """
    engines = Engines(problem, ModelConfig(kind="huggingface"), products)
    column = engines.column(block.layer, block.col, [block])
    probes = draws(column.dim, 4, seed=column.dim)
    model = model or model_of(problem.network)
    rows = places(model, problem.layout.side(block.row_layer, block.row), only)
    cols = places(model, problem.layout.side(block.layer, block.col), only)
    truth = {part: whole[rows][:, cols] @ probes for part, whole in parts.items()}
    scale = least * float(parts[Part.H].abs().max())
    for part in (Part.H_o, Part.H_f):
        scale = max(scale, float(truth[part].abs().max()))
    asked = [[*parts], *([part] for part in parts if singly)]
    errors = []
    for together in asked:
        found = column.split_matmat(probes, together)
        for part in together:
            errors.append(float((found[block, part] - truth[part]).abs().max()))
    return max(errors) / scale


def model_of(network: torch.nn.Module) -> Any:
    """Return the model of transformers in the network of a problem."""
    (model,) = network._inside
    return model


def places(
    model: torch.nn.Module, weights: tuple[Weight, ...], only: str = ""
) -> Tensor:
    """Return where the entries of some weights stand among the parameters of `dense`."""
    start = 0
    found = {}
    for name, parameter in model.named_parameters():
        if only not in name:
            continue
        whole = torch.arange(start, start + parameter.numel()).reshape(parameter.shape)
        found[name], start = whole, start + parameter.numel()
    return torch.cat(
        [view_of(found[weight.parameter], weight).flatten() for weight in weights]
    )
