"""Sequences of tokens in micro-batches that fit into memory, and the part of keys that depends on them."""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hessfig.config.enums import Data, DType, Loss, Method, Scored, State
from hessfig.config.machine import bytes_of
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.models.blocks import blocks_of
from hessfig.models.stored.architectures import ModelSizes
from hessfig.models.stored.model_folder import pin_of
from hessfig.tasks.tokens import (
    Encode,
    Ids,
    is_text,
    length_of,
    padded_lines,
    sequences,
)
from hessfig.tasks.tokens import source as source_of_tokens
from hessfig.terms import Block
from hessfig.weights import Layout

# Upper bounds of the activations per token in the graphs of a double backward: widths,
# MLP widths, scores.
_OF_WIDTH = 60
_OF_MLP = 45
_OF_SCORES = 16
_COPIES = (
    6  # copies of the parameters of a column: directions, products of both parts, rows
)
_READOUT = 6  # chunks of logits in memory, 64 MiB each
_COMPARED = 3  # copies of the logits of a micro-batch where the loss is compared with the network's own


@dataclass(frozen=True)
class Plan:
    """`sequences` of `total` in a micro-batch, which takes about `bytes`."""

    sequences: int
    total: int
    bytes: int

    def __str__(self) -> str:
        number = math.ceil(self.total / self.sequences)
        batches = f"in {number} micro-batches of {self.sequences}"
        if number == 1:
            batches = "at once"
        return f"{self.total} sequences {batches}, about {self.bytes / 1e9:.2g} GB"


def planned(config: Config, sizes: ModelSizes, layout: Layout, length: int) -> Plan:
    """Return the largest micro-batch that config.memory allows for the requested blocks.

    The estimate is an upper bound and depends on settings alone, never on the machine,
    because the last bits of a number depend on the micro-batch, which is part of the
    key of a cell. Raises UserError if not even one sequence fits.
    """
    bound = bytes_of(config.memory)
    total = config.task.batch_size
    blocks = blocks_of(config.blocks, layout, config.model)
    number = 8 if config.dtype == DType.float64 else 4
    # Of all sequences, kept once for the comparison.
    logits = number * total * length * sizes.vocabulary
    fixed = _fixed(blocks, layout, sizes, number) + logits
    each = number * length * _per_token(sizes, length)
    fitting = int((bound - fixed) / each)
    if fitting < 1:
        least = fixed + each
        raise UserError(
            "memory: too little for one sequence",
            got=config.memory,
            allowed=f"at least {least / 1e9:.2g}GB for these blocks, with sequences of {length} tokens",
            remedy=f"memory={math.ceil(least / 1e8) / 10:g}GB, a smaller task.length, or blocks of later layers",
        )
    sequences = min(total, fitting)
    return Plan(sequences, total, fixed + sequences * each)


def _fixed(blocks: list[Block], layout: Layout, sizes: ModelSizes, number: int) -> int:
    """Return the bytes that do not grow with the batch: network, directions and products of a column, logits."""
    network = sum(weight.size for weight in layout.parameters)
    columns = max(
        layout.size(block.layer, block.col) + layout.size(block.row_layer, block.row)
        for block in blocks
    )
    chunk = max(2**26, sizes.vocabulary * number)
    return number * (network + _COPIES * columns) + _READOUT * chunk


def _per_token(sizes: ModelSizes, length: int) -> int:
    of_layer = (
        _OF_WIDTH * sizes.d_model
        + _OF_MLP * sizes.d_mlp
        + _OF_SCORES * sizes.n_heads * length
    )
    return (
        sizes.n_layers * of_layer
        + _OF_WIDTH * sizes.d_model
        + _COMPARED * sizes.vocabulary
    )


@dataclass(frozen=True)
class Stored:
    """Functions of a kind of stored networks, from which sequences, micro-batches and keys follow.

    `layout` and `sizes` return weights and sizes of the network; `place` the folder
    with its tokenizer; `weights` a hash of everything that determines the weights;
    `marks` further parts of keys; `padding` the token that pads sequences of masked
    tokens.
    """

    layout: Callable[[Config], Layout]
    sizes: Callable[[Config], ModelSizes]
    place: Callable[[Config], Path | None]
    weights: Callable[[Config], str]
    marks: Callable[[Config], list[str]] = lambda config: []
    padding: Callable[[Config], int] = lambda config: -1

    def plan(self, config: Config) -> Plan:
        """Return the micro-batches. Raises UserError if not even one sequence fits into config.memory."""
        sizes = self.sizes(config)
        length = length_of(config.task, sizes.context)
        if config.task.data == Data.masked_tokens and is_text(config.task):
            length = self.ids(config).shape[1]
        return planned(config, sizes, self.layout(config), length)

    def ids(self, config: Config) -> Ids:
        """Return the configured sequences; a text is encoded by the tokenizer in the folder of the model."""
        is_masked = config.task.data == Data.masked_tokens
        sizes = self.sizes(config)

        def encode() -> Encode:
            from hessfig.models.stored.tokenizer import encoder

            return encoder(
                self.place(config), pin_of(config, 1), with_special=is_masked
            )

        words = {"vocabulary": sizes.vocabulary, "context": sizes.context}
        padding = self.padding(config)
        if is_masked and is_text(config.task):
            return padded_lines(config.task, encode(), **words, padding=padding)
        if is_masked and config.task.path is None:  # any token but padding
            words["vocabulary"] -= 1
            ids = sequences(config.task, **words, encode=encode)
            return ids + (ids >= padding)
        return sequences(config.task, **words, encode=encode)

    def source(self, config: Config) -> str:
        """Return a hash of weights (by their own hash) and tokens, and of the micro-batch if there are several.

        For a text, the ids by the tokenizer are hashed, too.
        """
        plan = self.plan(config)
        parts: list[str | int] = [self.weights(config), source_of_tokens(config.task)]
        if is_text(config.task):
            parts.append(hashlib.sha256(self.ids(config).tobytes()).hexdigest())
        if plan.sequences < plan.total:
            parts.append(plan.sequences)
        parts += self.marks(config)
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def about(self, config: Config) -> str:
        """Describe how sequences are divided into micro-batches."""
        return str(self.plan(config))


def check_measured(config: Config, *, is_random: bool) -> None:
    """Raise UserError for a loss, a state or an estimator that such a network does not support."""
    model, task = config.model, config.task
    if task.loss != Loss.cross_entropy or task.scored != Scored.all:
        raise UserError(
            "task: tokens are scored by cross-entropy, wherever one is to be predicted",
            got=f"task.loss={task.loss}, task.scored={task.scored}",
            allowed="task.loss=cross_entropy, task.scored=all",
            remedy=f"task={task.data}",
        )
    if config.state.kind == State.loaded and not is_random:
        raise UserError(
            "state=loaded: the weights are those of model.path already",
            got=f"model.path={model.path}, state.path={config.state.path}",
            allowed="one of them",
            remedy="leave state=loaded out, or model.random=true with model=huggingface",
        )
    if config.estimator.method == Method.exact:
        raise UserError(
            "estimator=exact supports only built-in networks",
            got=f"model.kind={model.kind}",
            allowed="auto, hutchinson, aligned, dense, xtrace",
            remedy="estimator=auto",
        )
