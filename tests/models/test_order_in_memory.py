"""Networks, batches and losses that lie otherwise in memory: the bits of those by rows, and nothing of them changed."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import hessfig
from hessfig.models.weight_files import read_weights
from hessfig.rng import is_row_major
from tests.draws import draws

OTHER = {
    "transposed": lambda one: (
        one.mT.contiguous().mT if one.ndim > 1 else one.repeat_interleave(2)[::2]
    ),
    "strided": lambda one: one.repeat_interleave(3, dim=-1)[..., ::3],
    "reversed axes": lambda one: (
        one.permute(*range(one.ndim)[::-1]).contiguous().permute(*range(one.ndim)[::-1])
    ),
    "by NumPy": lambda one: torch.from_numpy(np.asfortranarray(one.numpy())),
    "channels last": lambda one: (
        one.to(memory_format=torch.channels_last) if one.ndim == 4 else one
    ),
}


def maps():
    return nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.BatchNorm1d(9), nn.Linear(9, 3))


def pictures(channels):
    maps = (
        nn.Conv2d(channels, 4, 3),
        nn.Tanh(),
        nn.Conv2d(4, 2, 3),
        nn.Flatten(),
        nn.Linear(8, 3),
    )
    return nn.Sequential(*maps)


NETWORKS = {
    "maps": (maps, (11, 7)),
    "one channel": (lambda: pictures(1), (5, 1, 6, 6)),
    "two channels": (lambda: pictures(2), (5, 2, 6, 6)),
}


def made(name):
    make, shape = NETWORKS[name]
    network = make().double().eval().requires_grad_(True)
    for place, one in enumerate([*network.parameters(), *network.buffers()]):
        if one.is_floating_point():
            one.data = draws(*one.shape, seed=place).abs() + 0.1
    return network, draws(*shape, seed=99), torch.arange(shape[0]) % 3


def numbers(*problem, **settings):
    table = hessfig.measure(
        hessfig.Problem(*problem, **settings),
        quantities=["frobenius", "trace"],
        num_probes=4,
    )
    return table[["value", "error"]].to_numpy().tobytes()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.long
def test_the_order_of_weights_and_batches_moves_no_bit(name):
    network, inputs, targets = made(name)
    expected = numbers(network, inputs, targets)
    for word, reordered in OTHER.items():
        other = copy.deepcopy(network)
        for one in (*other.parameters(), *other.buffers()):
            one.data = reordered(one.data) if one.ndim else one.data
        before = [one.stride() for one in other.parameters()]
        assert numbers(other, reordered(inputs), reordered(targets)) == expected, word
        assert (
            numbers(other, {"input": reordered(inputs)}, reordered(targets)) == expected
        ), f"{word}, a dictionary"
        assert [one.stride() for one in other.parameters()] == before, (
            "a user's own weights stay as they are"
        )


def test_expanded_batches_and_weights():
    network, inputs, _ = made("maps")
    alike = inputs[:1].expand(5, 7)
    same = torch.ones(1, dtype=torch.int64).expand(5)
    expected = numbers(network, alike.clone(), same.clone())
    assert numbers(network, alike, same) == expected
    shared = copy.deepcopy(network)
    for place in (network, shared):
        place[0].weight.data = draws(1, 7).expand(9, 7)
    network[0].weight.data = network[0].weight.data.clone()
    assert numbers(shared, alike, same) == numbers(network, alike, same)


def test_weights_of_a_loss():
    network, inputs, targets = made("maps")
    weights = draws(3).abs()
    apart = weights.repeat_interleave(2)[::2]
    losses = [nn.CrossEntropyLoss(weight=one) for one in (weights, apart)]
    assert len({numbers(network, inputs, targets, loss) for loss in losses}) == 1
    assert losses[1].weight.stride() == (2,)


def test_sparse_tensors_have_no_order():
    assert is_row_major(torch.eye(2).to_sparse())


def test_weights_of_a_file_are_by_rows(tmp_path):
    torch.save({"weight": draws(4, 5).T}, tmp_path / "weights.pt")
    found = read_weights(tmp_path / "weights.pt")["weight"]
    assert is_row_major(found)
    assert torch.equal(found, draws(4, 5).T)
