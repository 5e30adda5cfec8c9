"""Products of one cell on several processes: micro-batches are distributed over ranks, and products added in order."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed

from hessfig.curvature.column import SPLIT, Products, completed, to_multiply
from hessfig.curvature.large.graphs import Totals
from hessfig.curvature.large.headed_column import HeadedColumn
from hessfig.terms import Part


class RankedColumn(HeadedColumn):
    """A column whose micro-batches are distributed over ranks; rank r of n takes the (r + 1)-th of every n.

    Every rank gathers the products of all micro-batches and adds them in order, so that the sums have the same bits on
    every rank and for any number of ranks. (The order of summation of a distributed reduction depends on that number.)
    """

    def split_matmat(self, probes: Tensor, parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V by (row, part), for every row and each of `parts`, equal on every rank."""
        columns = self.spread(probes.to(self.parameters[0].device))
        wanted = to_multiply(parts)
        sums = {part: Totals(columns).tensors() for part in wanted}
        size, rank, count = distributed.get_world_size(), distributed.get_rank(), len(self.products.pieces)
        for first in range(0, count, size):
            here = first + rank
            own = self.products.of_batches([here] if here < count else [], columns, wanted)
            for part, totals in sums.items():
                for total, piece in zip(totals, own[part].tensors(), strict=True):
                    for product in _gathered(piece)[: count - first]:
                        total += product
        return completed(self.gathered(sums), parts)


def _gathered(piece: Tensor) -> list[Tensor]:
    """Return the tensor of every rank, in the order of the ranks."""
    piece = piece.contiguous()
    pieces = [torch.empty_like(piece) for _ in range(distributed.get_world_size())]
    distributed.all_gather(pieces, piece)
    return pieces


def broadcast(message: Any = None) -> Any:
    """Return the message of rank 0, on every rank."""
    box = [message]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def all_gather(message: Any) -> list[Any]:
    """Return the messages of all ranks, in order of rank."""
    messages = [None] * distributed.get_world_size()
    distributed.all_gather_object(messages, message)
    return messages
