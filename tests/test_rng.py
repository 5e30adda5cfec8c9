"""Named random streams."""

import torch

from hessfig.rng import stream


def draws(*names, seed=1234):
    return torch.rand(4, dtype=torch.float64, generator=stream(seed, *names))


def test_the_same_name_gives_the_same_draws():
    assert torch.equal(draws("weight", "W_Q"), draws("weight", "W_Q"))


def test_names_types_and_seeds_tell_streams_apart():
    streams = [
        draws("weight", 1),
        draws("weight", "1"),
        draws("weight", 1.0),
        draws("weight", 1, ""),
        draws("weight1"),
        draws("weight", 1, seed=1235),
    ]
    assert len({tuple(values.tolist()) for values in streams}) == len(streams)


def test_the_global_generator_is_neither_read_nor_moved():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = draws("weight")
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(first, draws("weight"))


def test_the_draws_are_pinned():
    """A change here changes every published number: bump ALGORITHM_VERSION and say so under Numbers in CHANGELOG.md."""
    assert draws("weight", "W_Q").tolist() == PINNED


PINNED = [
    0.19510253770458075,
    0.9398277276274813,
    0.8547271170256427,
    0.538473576436927,
]
