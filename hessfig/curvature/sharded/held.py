"""What is piecewise constant in a function of each batch of a sharded network, kept at the values of the weights."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from hessfig.curvature.sharded.shards import is_of_a_lost_rank
from hessfig.curvature.smooth_piece import Constant, PieceOf

Tensors = Sequence[Tensor]


class Held:
    """The comparisons, choices and signs of one function at the weights, on this rank, by batch.

    Differences of the function then stay on the smooth piece that contains the weights
    (see smooth_piece.PieceOf): no token changes its experts within a step. Parameters
    that FSDP2 has gathered are plain tensors there. Of DTensors, as tensor parallelism
    makes them, operations are held as a whole, and each rank keeps its shards of what
    they returned.
    """

    def __init__(self) -> None:
        self._constants: dict[int, list[Constant]] = {}
        self._is_watched = False

    def piece(self, batch: int) -> AbstractContextManager[object]:
        """Return the context in which the function of a batch is evaluated."""
        if self._is_watched:
            piece = PieceOf()
            self._constants[batch] = piece.constants
            return piece
        constants = self._constants.get(batch)
        return PieceOf(constants) if constants else nullcontext()

    def watch(
        self, evaluate: Callable[[], Tensors], is_right: Callable[[Tensors], bool]
    ) -> bool:
        """Keep what is piecewise constant in all batches, and return whether this was possible.

        `evaluate` returns what the function is at the weights. Nothing is held if torch
        computes something else while it is watched, or cannot: some operators
        (torch.cond) are not traced then, and some have no rule for DTensors.
        """
        self._is_watched = True
        try:
            is_held = is_right(evaluate())
        except (AssertionError, RuntimeError, TypeError) as error:
            if is_of_a_lost_rank(error):
                raise
            is_held = False
        self._is_watched = False
        if not is_held:
            self._constants.clear()
        return is_held
