"""Threads, generators, callbacks and forked processes that use one Problem at the same time get the right products."""

from __future__ import annotations

import copy
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessfig
from hessfig.curvature.batched import BatchedColumn, SmallNetwork
from hessfig.curvature.block_operator import Entries
from hessfig.curvature.large.own_column import LargeNetwork, OwnColumn
from hessfig.rng import TURN
from hessfig.terms import Part
from tests.daily import daily

SMALL = 8
LARGE = 9_000
ROWS = {"all": (0, "all")}


@pytest.fixture(autouse=True)
def _switching():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Network(nn.Module):
    """A classifier; in a product with H, a step of the second derivative calls `within`, and forward() `forwards`."""

    within: Callable[[], object] | None = None
    forwards: Callable[[], object] | None = None

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        """Return outputs (batch, 3)."""
        if Network.forwards:
            Network.forwards()
        hidden = self.first(x)
        hidden.register_hook(_watch)
        return self.last(hidden.tanh())


def _watch(slope):
    if slope.requires_grad:
        slope.register_hook(lambda _: Network.within and Network.within())


def problem(width):
    network = Network(width).eval()
    batches = [(torch.randn(6, 4), torch.randint(3, (6,))) for _ in range(2)]
    return hessfig.Problem(network, batches, loss="cross_entropy")


def vector(size, number):
    return torch.randn(size, generator=torch.Generator().manual_seed(number))


def new_operator(width):
    """Return products of new operators of one problem, each of another block and part."""
    one = problem(width)

    def call(number):
        block = ["first.weight", "last.weight", "all"][number % 3]
        part = ["H", "H_o", "H_f"][number % 3]
        operator = one.operator(block, part, dtype="float32")
        return operator @ vector(operator.shape[1], number)

    return call


def one_operator(width):
    operator = problem(width).operator("all", dtype="float32")
    return lambda number: operator @ vector(operator.shape[1], number)


def measured(width):
    one = problem(width)

    def call(number):
        blocks = [["first.bias"], ["last.weight"]][number % 2]
        parts = ["H", "H_o", "H_f"][number % 3]
        table = hessfig.measure(
            one,
            blocks=blocks,
            parts=parts,
            estimator="hutchinson",
            num_probes=2,
            dtype="float32",
        )
        return torch.tensor(table["value"].to_numpy())

    return call


def of_columns(made):
    def several(width):
        objective = problem(width).objective("float32")
        columns = [made(objective) for _ in range(2)]

        def call(number):
            column = columns[number % 2]
            return column.split_matmat(vector(column.dim, number)[:, None], [Part.H])[
                "all", Part.H
            ]

        return call

    return several


def _own(objective):
    if SmallNetwork.can_take(objective):
        return BatchedColumn(SmallNetwork(objective), objective, 0, "all", ROWS)
    return OwnColumn(LargeNetwork.of(objective), objective, 0, "all", ROWS)


USES = {
    "new operators": (new_operator, 3),
    "one operator": (one_operator, 8),
    "measure": (measured, 2),
    "own columns": (of_columns(_own), 8),
}


@pytest.mark.parametrize("width", daily([SMALL, LARGE], SMALL))
@pytest.mark.parametrize("use", daily(USES, "one operator", "measure", "own columns"))
@pytest.mark.filterwarnings("ignore:H")
def test_threads_get_the_bits_of_one_thread(use, width):
    of, each = USES[use]
    count = 3 if width == SMALL else 2
    alone = of(width)
    truth = [alone(number) for number in range(count * each)]
    call = of(width)
    start = threading.Barrier(count)
    found = dict[int, Tensor]()
    failures = list[BaseException]()

    def several(first):
        try:
            start.wait()
            for number in range(first, count * each, count):
                found[number] = call(number)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=several, args=(first,)) for first in range(count)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures
    assert [
        number
        for number, one in enumerate(truth)
        if not torch.equal(found[number], one)
    ] == []


@pytest.mark.parametrize("width", [SMALL, LARGE])
def test_a_product_within_another_and_generators_in_turn(width, monkeypatch):
    one = problem(width)
    first, second = (
        one.operator(block, dtype="float32") for block in ("all", "first.weight")
    )
    u = vector(first.shape[1], 0)
    v = vector(second.shape[1], 1)
    truth = first @ u
    inner = second @ v
    seen = list[Tensor]()

    def within():
        monkeypatch.setattr(Network, "within", None)
        seen.append(second @ v)

    monkeypatch.setattr(Network, "within", staticmethod(within))
    assert torch.equal(first @ u, truth)
    assert len(seen) == 1
    assert torch.equal(seen[0], inner)

    def products(operator, along):
        for factor in (1, 2):
            yield operator @ (factor * along)

    for factor, (outer, other) in enumerate(
        zip(products(first, u), products(second, v), strict=True), 1
    ):
        assert torch.equal(outer, factor * truth)
        assert torch.equal(other, factor * inner)


@pytest.mark.parametrize("width", [SMALL, LARGE])
def test_entries_are_read_between_products(width, monkeypatch):
    """During a product, torch swaps the weights of the network for others."""
    operator = problem(width).operator("all", dtype="float32")
    read = list[Any]()
    threads = list[threading.Thread]()

    def reading():
        read.append(Entries(operator._problem, 0, "last.weight").sizes)

    def forwards():
        threads.append(threading.Thread(target=reading))
        threads[-1].start()
        threads[-1].join(0.2)

    monkeypatch.setattr(Network, "forwards", staticmethod(forwards))
    operator @ torch.ones(operator.shape[1])
    for one in threads:
        one.join()
    assert threads
    assert read == [[3 * width]] * len(threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_forked_while_another_thread_measures_can_multiply():
    operator = one_operator(SMALL)
    taken = threading.Event()
    done = threading.Event()
    truth = operator(0)

    def hold():
        with TURN:
            taken.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    child = os.fork()
    if not child:
        watch = threading.Timer(20, lambda: os._exit(2))
        watch.daemon = True
        watch.start()
        os._exit(0 if torch.equal(operator(0), truth) else 1)
    done.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_operator_is_neither_copied_nor_pickled():
    operator = problem(SMALL).operator("all", dtype="float32")
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="create it again from its problem"):
            attempt(operator)
