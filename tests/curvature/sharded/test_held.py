"""What is held of the functions of a sharded network; its products are in api/test_sharded.py."""

import pytest
import torch

from hessfig.curvature.sharded.held import Held

HERE = torch.tensor([1.0, 2.0])
THERE = torch.tensor([2.0, 1.0])


def largest(held, at):
    """Return the largest entry, or what was the largest entry at the weights."""
    with held.piece(0):
        return [at.max(dim=0).values]


def test_a_choice_is_that_of_the_weights_until_nothing_is_held():
    held = Held()
    assert largest(held, THERE) == [2.0]
    assert held.watch(lambda: largest(held, HERE), lambda found: found == [2.0])
    assert largest(held, THERE) == [1.0]
    assert largest(held, HERE) == [2.0]
    assert not held.watch(lambda: largest(held, HERE), lambda _: False)
    assert largest(held, THERE) == [2.0]


@pytest.mark.parametrize("kind", [TypeError, RuntimeError, AssertionError])
def test_nothing_is_held_where_torch_cannot_watch(kind):
    held = Held()

    def evaluate():
        largest(held, HERE)
        raise kind("not traced")

    assert not held.watch(evaluate, lambda _: True)
    assert largest(held, THERE) == [2.0]


def test_a_lost_rank_is_not_hidden():
    def evaluate():
        raise RuntimeError("Connection closed by peer")

    with pytest.raises(RuntimeError, match="closed by peer"):
        Held().watch(evaluate, lambda _: True)
