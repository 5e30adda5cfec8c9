"""Micro-batches: how many sequences one product may hold at once under the stated bound on memory."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from hessfig.config.choices import DType
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import Layout
from hessfig.terms import Block, Group

_UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
# Numbers of a token that the graphs of a double backward hold, from above: of the width, of the MLP's, of the scores.
_OF_WIDTH, _OF_MLP, _OF_SCORES = 60, 45, 16
_COPIES = 6  # of the column's parameters: directions, products of both parts, rows
_READOUT = 6  # chunks of logits, 64 MiB each


@runtime_checkable
class Shape(Protocol):
    """The numbers of a network that its products' memory follows from."""

    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def d_model(self) -> int: ...
    @property
    def d_mlp(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...


@dataclass(frozen=True)
class Plan:
    """`sequences` of `total` in a micro-batch, which takes about `bytes`."""

    sequences: int
    total: int
    bytes: int

    def __str__(self) -> str:
        number = math.ceil(self.total / self.sequences)
        return (
            f"{self.total} sequences in {number} micro-batches of {self.sequences}"
            if number > 1
            else f"{self.total} sequences at once"
        ) + f", about {self.bytes / 1e9:.2g} GB"


def planned(config: Config, sizes: Shape, layout: Layout, length: int) -> Plan:
    """Return the largest micro-batch that config.memory allows for the blocks that are asked for.

    The estimate follows from settings alone, never from the machine, and counts from above: a number's last bits
    depend on the micro-batch, which is part of a cell's key. Raises UserError when not even one sequence fits.
    """
    bound, total = bytes_of(config.memory), config.task.batch_size
    blocks = blocks_of(config.blocks, layout, config.model)
    number = 8 if config.dtype == DType.float64 else 4
    fixed = _fixed(blocks, layout, sizes, number)
    each = number * length * _per_token(_layers_reached(blocks, layout, sizes), sizes, length)
    fitting = int((bound - fixed) / each)
    if fitting < 1:
        raise UserError(
            "memory: too little for one sequence",
            got=config.memory,
            allowed=f"at least {(fixed + each) / 1e9:.2g}GB for these blocks, with sequences of {length} tokens",
            remedy=f"memory={_rounded_up(fixed + each)}, a smaller task.length, or blocks of later layers",
        )
    sequences = min(total, fitting)
    return Plan(sequences, total, fixed + sequences * each)


def bytes_of(text: str) -> float:
    """Return the bytes that '16GB' or '512MiB' means. Raises UserError for another form."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", text, flags=re.IGNORECASE)
    if found is None or float(found[1]) <= 0:
        raise UserError(
            "memory", got=text, allowed="a number and KB, MB, GB, TB (or GiB, ...)", remedy="memory=8GB"
        )
    return float(found[1]) * _UNITS[found[2].upper()]


def _fixed(blocks: list[Block], layout: Layout, sizes: Shape, number: int) -> int:
    """Return the bytes that do not grow with the batch: the network, a column's directions and products, logits."""
    network = sum(weight.size for weight in layout.parameters)
    columns = max(
        layout.size(block.layer, block.col) + layout.size(block.row_layer, block.row) for block in blocks
    )
    chunk = max(2**26, sizes.vocabulary * number)
    return number * (network + _COPIES * columns) + _READOUT * chunk


def _layers_reached(blocks: list[Block], layout: Layout, sizes: Shape) -> int:
    """Return how many layers the lowest of the weights passes through."""
    sides = [(b.layer, b.col) for b in blocks] + [(b.row_layer, b.row) for b in blocks]
    weights = [weight for side in sides for weight in layout.side(*side)]
    if any(Group.embeddings in weight.groups for weight in weights):
        return sizes.n_layers
    lowest = min((weight.layer for weight in weights if weight.layer), default=sizes.n_layers + 1)
    return sizes.n_layers + 1 - lowest


def _per_token(layers: int, sizes: Shape, length: int) -> int:
    of_layer = _OF_WIDTH * sizes.d_model + _OF_MLP * sizes.d_mlp + _OF_SCORES * sizes.n_heads * length
    return layers * of_layer + _OF_WIDTH * sizes.d_model


def _rounded_up(size: int) -> str:
    return f"{math.ceil(size / 1e8) / 10:g}GB"
