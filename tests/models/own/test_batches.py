"""Batches of loaders and iterables: read once and kept, and the training's own passes over them stay the same."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

import hessfig
from hessfig.errors import UserError
from hessfig.models.own import batches as read_batches
from hessfig.models.own.batches import keep_batches
from tests.double_backward import hessian
from tests.draws import tanh_network

SAMPLES = 10
SIZE = 4


def samples():
    return torch.randn(SAMPLES, 3, generator=seeded(1)).double(), torch.arange(
        SAMPLES
    ) % 2


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def network():
    torch.manual_seed(0)
    return tanh_network(3, 2, 2).double()


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Samples with noise of a global generator."""

    def __init__(self, draw):
        self.draw = draw

    def __len__(self):
        return SAMPLES

    def __getitem__(self, at):
        x, y = samples()
        return x[at] + self.draw(), y[at]


class Drawn(IterableDataset[tuple[Tensor, Tensor]]):
    def __init__(self):
        self.generator = seeded(7)

    def __iter__(self):
        for _ in range(SAMPLES):
            yield torch.randn(3, generator=self.generator).double(), torch.tensor(1)


def loader(data=None, **settings):
    return DataLoader(
        TensorDataset(*samples()) if data is None else data, batch_size=SIZE, **settings
    )


LOADERS = {
    "the global generator": lambda: loader(shuffle=True, drop_last=True),
    "a generator of its own": lambda: loader(shuffle=True, generator=seeded(3)),
    "a weighted sampler": lambda: loader(
        sampler=WeightedRandomSampler([0.1] * SAMPLES, SAMPLES, generator=seeded(3))
    ),
    "data with the global generator of Python": lambda: loader(Noisy(random.random)),
    "data with the global generator of numpy": lambda: loader(Noisy(numpy.random.rand)),
    "a worker": lambda: loader(Noisy(random.random), shuffle=True, num_workers=1),
}


def passes(one):
    return [tensor for _ in range(2) for batch in one for tensor in batch]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_training_draws_the_batches_that_it_would_draw_without_the_reading(kind):
    def trained(is_read):
        model = network()
        for seed in (random.seed, numpy.random.seed, torch.manual_seed):
            seed(11)
        one = LOADERS[kind]()
        if is_read:
            assert len(hessfig.Problem(model, one).inputs) in (
                SAMPLES // SIZE,
                SAMPLES // SIZE + 1,
            )
        return passes(one)

    with_reading = trained(True)
    without = trained(False)
    assert len(with_reading) == len(without) > 0
    for a, b in zip(with_reading, without, strict=True):
        assert torch.equal(a, b)


@pytest.mark.long
def test_a_training_goes_on_whose_loader_is_read_in_its_midst():
    one = loader(num_workers=1, persistent_workers=True)
    lengths = []
    for x, _ in one:
        lengths.append(len(x))
        assert len(hessfig.Problem(network(), one).inputs) == 3
    assert lengths == [4, 4, 2]


def norm(problem):
    return float(
        hessfig.measure(problem, blocks=["all"], parts="H", estimator="dense")[
            "value"
        ].iloc[0]
    )


def by_hand(batches):
    """Return the Frobenius norm of H of the mean loss over all samples, by plain double backward."""
    model = network()
    x, y = (torch.cat(side) for side in zip(*batches, strict=True))
    whole = hessian(
        lambda: nn.functional.cross_entropy(model(x), y), [*model.parameters()]
    )
    return float(whole.norm())


@pytest.mark.parametrize(
    "kind", ["the global generator", "a generator of its own", "a stream of data"]
)
def test_a_problem_has_the_same_batches_in_every_measurement(kind):
    torch.manual_seed(2)
    problem = hessfig.Problem(
        network(), loader(Drawn()) if kind == "a stream of data" else LOADERS[kind]()
    )
    truth = by_hand(problem.inputs)
    assert [norm(problem), norm(problem)] == pytest.approx([truth, truth], rel=1e-9)
    assert float(
        numpy.linalg.norm(problem.operator("all") @ numpy.eye(14))
    ) == pytest.approx(truth, rel=1e-9)


def test_a_generator_is_read_once_and_kept_though_it_fills_one_tensor_again_and_again():
    x, y = samples()
    buffer = torch.empty(SIZE, 3).double()

    def stream():
        for at in (0, SIZE):
            yield buffer.copy_(x[at : at + SIZE]), y[at : at + SIZE]

    problem = hessfig.Problem(network(), stream())
    truth = by_hand([(x[:8], y[:8])])
    assert [norm(problem), norm(problem)] == pytest.approx([truth, truth], rel=1e-9)


def test_targets_may_be_a_stream_beside_inputs():
    x, y = samples()
    problem = hessfig.Problem(network(), iter(x.split(5)), iter(y.split(5)))
    assert [norm(problem), norm(problem)] == pytest.approx(
        [by_hand([(x, y)])] * 2, rel=1e-9
    )


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@pytest.mark.parametrize(
    "batch", [list(samples()), Pair(*samples()), {"x": samples()[0]}]
)
def test_batches_are_kept_with_tensors_of_their_own_and_of_their_own_kind(batch):
    (found,) = keep_batches(iter([batch]))
    assert type(found) is type(batch)
    pairs = (
        zip(found.values(), batch.values(), strict=True)
        if isinstance(batch, dict)
        else zip(found, batch, strict=True)
    )
    for one, given in pairs:
        assert torch.equal(one, given)
        assert one.data_ptr() != given.data_ptr()


@pytest.mark.parametrize(
    "given",
    [
        torch.ones(2),
        (1, 2),
        [1],
        {"a": 1},
        "text",
        numpy.ones(3),
        nn.Sequential(),
        None,
        3,
    ],
)
def test_what_is_a_batch_or_a_list_of_them_is_left_as_it_is(given):
    assert keep_batches(given) is given


@pytest.mark.parametrize(("name", "value"), [("MOST_BATCHES", 50), ("SHARE", 10**7)])
def test_a_stream_without_end_is_refused_with_a_bound(name, value, monkeypatch):
    monkeypatch.setattr(read_batches, name, value)
    endless = itertools.repeat(samples())
    with pytest.raises(
        UserError, match="inputs: the batches do not end, or do not fit into memory"
    ) as refused:
        hessfig.Problem(network(), endless)
    assert "list(itertools.islice(loader, 20))" in refused.value.remedy
    problem = hessfig.Problem(network(), list(itertools.islice(endless, 20)))
    assert norm(problem) == pytest.approx(by_hand([samples()]), rel=1e-9)


def test_as_many_batches_as_the_bound_are_read(monkeypatch):
    monkeypatch.setattr(read_batches, "MOST_BATCHES", 5)
    assert len(keep_batches(itertools.repeat(samples(), 5))) == 5


@pytest.mark.parametrize("kind", ["the global generator", "a generator of its own"])
def test_a_monitor_leaves_the_order_of_its_loader_to_the_training(kind, tmp_path):
    def trained(watch):
        torch.manual_seed(11)
        model = network()
        one = LOADERS[kind]()
        if watch:
            with_all = {"every": 1, "max_fraction": None, "quantities": ["loss"]}
            monitor = hessfig.Monitor(
                model, "cross_entropy", one, folder=tmp_path, **with_all
            )
            assert monitor(0)
            monitor.close()
        return passes(one)

    for a, b in zip(trained(True), trained(False), strict=True):
        assert torch.equal(a, b)
