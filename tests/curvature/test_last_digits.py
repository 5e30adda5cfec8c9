"""Decisions do not hang on last digits: 1 + k eps in weights and data imitates the rounding of other processors."""

import os
from functools import partial

import pytest
import torch
from torch.nn import functional as F

import hessfig
from tests import foreign_networks, odd_functions
from tests.curvature import test_samples
from tests.curvature.large import (
    large_networks,
    test_head,
    test_memory,
    test_own_column,
)
from tests.daily import daily, thinned
from tests.last_digits import SHIFTS, decisions, moved_by_a_constant, shaken
from tests.models.own import (
    test_any_batch,
    test_losses_of_all_kinds,
    test_own_loss,
    test_own_network,
    test_witnessing,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings are among the decisions
TIMES = int(os.environ.get("SHAKES", "6"))  # SHAKES=20 takes a quarter of an hour
FEW = 3  # numbers take most of the time, and are measured in the first FEW
WHERE_TERMS_CANCEL = max(20, TIMES)
X = test_samples.draws(6, 4)
Y = test_samples.labels(6)


def perfect_fit(power, *, is_whole):
    """Return a problem whose loss and gradient are rounding errors."""
    body = test_samples.mlp()
    goal = body(X).detach()

    def loss(result, targets):
        return (
            ((result["one"] if is_whole else result) - targets).pow(power).sum(1).mean()
        )

    return hessfig.Problem(
        test_memory.TwoOutputs(body) if is_whole else body,
        {"x": X} if is_whole else X,
        goal,
        loss,
    )


def every_sample_cancels(*, is_whole):
    """Return a problem in which the loss of every sample is moved to zero, up to rounding."""
    body = test_samples.mlp()
    goal = torch.stack(
        [Y.double(), F.cross_entropy(body(X), Y, reduction="none").detach()], dim=1
    )

    def loss(result, targets):
        outputs = result["one"] if is_whole else result
        return (
            F.cross_entropy(outputs, targets[:, 0].long(), reduction="none")
            - targets[:, 1]
        ).mean()

    return hessfig.Problem(
        test_memory.TwoOutputs(body) if is_whole else body,
        {"x": X} if is_whole else X,
        goal,
        loss,
    )


def of(make, real):
    one = make(real)
    return hessfig.Problem(one.network, one.inputs, one.targets, one.loss, **one.more)


def seeded(make):
    torch.manual_seed(0)
    return make()


CANCELLING = {
    **{
        f"perfect fit, {power}": partial(perfect_fit, power, is_whole=False)
        for power in (2, 4)
    },
    **{
        f"perfect fit inside, {power}": partial(perfect_fit, power, is_whole=True)
        for power in (2, 4)
    },
    "every sample": partial(every_sample_cancels, is_whole=False),
    "every sample, inside": partial(every_sample_cancels, is_whole=True),
    "linear up to rounding": lambda: hessfig.Problem(
        test_samples.mlp(), X, Y, lambda out, y: out.exp().log().mean()
    ),
    "terms": lambda: test_memory.cases()["cancelling terms"](None),
}
SMALL = {
    **{
        f"{name}, {real}": partial(of, make, real)
        for name, make in odd_functions.RIGHT.items()
        for real in (torch.float64, torch.float32)
    },
    **{
        name: partial(of, make, torch.float64)
        for name, (make, _) in odd_functions.REFUSED.items()
    },
    **{
        name: lambda make=make: make()[0]
        for name, make in foreign_networks.CASES.items()
    },
    **{
        make.__name__: lambda make=make: hessfig.Problem(*make()[:2])
        for make in (
            test_any_batch.causal,
            test_any_batch.masked,
            test_any_batch.classes,
            test_any_batch.regression,
        )
    },
    **{
        f"own loss {loss.__name__}": lambda loss=loss: hessfig.Problem(
            test_own_loss.Model(loss), test_own_loss.BATCH
        )
        for loss in (
            test_own_loss.shifted,
            test_own_loss.nearly,
            test_own_loss.smoothed,
            test_own_loss.stopped,
        )
    },
    **{
        f"number, {name}": lambda make=make: make(test_own_network.Lossy())
        for name, (make, _) in test_own_network.LOSSY.items()
    },
    **{
        f"{kind} {name}": lambda loss=loss: hessfig.Problem(
            *test_losses_of_all_kinds.parts_of_a_problem(), loss
        )
        for kind, losses in {
            "mean": test_losses_of_all_kinds.MEANS,
            "sum": test_losses_of_all_kinds.SUMS,
        }.items()
        for name, loss in losses.items()
    },
    "kink": partial(test_witnessing.at_kink, test_witnessing.cube),
    "kink, wrong": partial(test_witnessing.at_kink, test_witnessing.Kept.apply),
    "absolute values": partial(test_witnessing.with_l1, test_witnessing.cube),
    **{name: partial(test_samples.meeting, name) for name in test_samples.MEETING},
    **{
        f"samples, {name}": lambda loss=loss: hessfig.Problem(
            test_samples.mlp(), test_samples.X, test_samples.SOME, loss
        )
        for name, (loss, _) in test_samples.PLAIN.items()
    },
}
LARGE = {
    **{
        f"memory, {name}": partial(make, None)
        for name, make in test_memory.cases().items()
    },
    **{
        f"apart, {name}": partial(make, None)
        for name, make in test_memory.apart().items()
    },
    **{
        name: lambda make=make: large_networks.problem_of(*make())
        for name, make in large_networks.CASES.items()
    },
    **{
        name: partial(seeded, make)
        for name, make in test_own_column.ODD.items()
        if name != "compiled"
    },
    **{
        name: lambda make=make: test_head.problem_of(seeded(make))
        for name, make in {**test_head.WITH, **test_head.WITHOUT}.items()
    },
    **{
        f"loss, {name}": lambda loss=loss: seeded(partial(test_head.of_loss, loss))
        for name, loss in {**test_head.SPELLINGS, **test_head.OTHERS}.items()
    },
}
MOVED = (
    "mean name",
    "sum function",
    "own loss shifted",
    "decay, torch.float64",
    "classes",
    "number, labels",
)


def changed(make, times):
    """Return what was decided in more than one way, and the ways."""
    found = []
    for seed in range(times):
        found.append(decisions(shaken(make(), seed), is_measured=seed < FEW))
    ways = {
        what: {one.get(what, "") for one in found} for what in set().union(*found[FEW:])
    }
    ways |= {
        what: {one.get(what, "") for one in found[:FEW]}
        for what in set().union(*found[:FEW]) - ways.keys()
    }
    return {what: words for what, words in ways.items() if len(words) > 1}


def moved(make, left):
    return moved_by_a_constant(make(), left)


@pytest.mark.long
@pytest.mark.parametrize("name", daily(CANCELLING, *[*CANCELLING][::8]))
def test_terms_that_cancel_choose_no_way(name):
    """The samples of all these are independent, and none is refused for it."""
    assert changed(CANCELLING[name], FEW) == {}
    found = decisions(shaken(CANCELLING[name](), 1))
    assert not [
        word
        for what in ("samples", "weights of samples", "alike", "pieces")
        if "Error" in (word := found[what])
    ]


@pytest.mark.parametrize("left", thinned(SHIFTS, 3))
@pytest.mark.parametrize("name", daily(MOVED[:2], MOVED[0]))
def test_a_constant_in_a_loss_chooses_no_way(name, left):
    assert changed(partial(moved, SMALL[name], left), FEW) == {}


def times_of(name, times):
    """Return how often a network is tried: those in LARGE, which take seconds each, a quarter as often."""
    return max(2, times // 4) if name in LARGE else times


@pytest.mark.long
@pytest.mark.parametrize("name", [*CANCELLING, *SMALL, *LARGE])
def test_every_network_is_decided_alike(name):
    every = {**CANCELLING, **SMALL, **LARGE}
    times = WHERE_TERMS_CANCEL if name in CANCELLING else TIMES
    assert changed(every[name], times_of(name, times)) == {}


@pytest.mark.long
@pytest.mark.parametrize("left", SHIFTS)
@pytest.mark.parametrize(
    "name",
    [
        *MOVED,
        *(f"memory, {one}" for one in ("sum inside", "sum of outputs", "own loss")),
    ],
)
def test_losses_that_are_moved_to_zero_are_decided_alike(name, left):
    assert (
        changed(
            partial(moved, {**SMALL, **LARGE}[name], left),
            times_of(name, WHERE_TERMS_CANCEL),
        )
        == {}
    )
