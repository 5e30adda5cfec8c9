"""Fingerprints: the same for the same function, others for others, none where derivatives change or do not exist."""

import re

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

import hessfig
from hessfig.models.fingerprint import fingerprint
from hessfig.models.protocol import ONCE


class Net(nn.Module):
    def __init__(self, tail, eps=1e-5):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 4)
        self.norm = nn.LayerNorm(4, eps=eps)
        self.b = nn.Linear(4, 2)
        self.tail = tail

    def forward(self, x):
        hidden = torch.tanh(self.norm(self.a(x)))
        return self.tail(self, hidden, self.b(hidden))


def plain(network, hidden, found):
    return found


def found(tail=plain, *, dtype="float64", key="key", order=2, **more):
    torch.manual_seed(1)
    x = torch.randn(5, 3)
    y = torch.randint(0, 2, (5,))
    drawn = hessfig.Problem(Net(tail, **more), x, y).objective(dtype)
    return fingerprint((drawn), key, order=order)


OTHERS = {
    "a stop-gradient": lambda network, hidden, out: out / 2 + out.detach() / 2,
    "a penalty that is zero": lambda network, hidden, out: (
        out
        + torch.eye(2)[0].to(out)
        * (network.a.weight - network.a.weight.detach()).square().sum()
    ),
    "a penalty of third order": lambda network, hidden, out: (
        out + torch.eye(2)[0].to(out) * (network.a.weight - AT.to(out)).pow(3).sum()
    ),
    "a switch beside the weights": lambda network, hidden, out: (
        out * 2 if bool((network.a.weight.detach() != AT.to(out)).any()) else out
    ),
}
torch.manual_seed(0)
AT = nn.Linear(3, 4).weight.detach().clone()


@pytest.mark.parametrize("what", OTHERS)
def test_a_function_of_the_same_value_is_another(what):
    assert found().digest != found(OTHERS[what]).digest


def test_the_same_function_has_the_same_one_whatever_its_code():
    first = found()
    torch.manual_seed(99)
    assert found(lambda network, hidden, out: out) == first
    assert not first.why
    assert found(key="other") != first


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_change_in_the_last_digits_counts(dtype):
    assert found(dtype=dtype).digest != found(dtype=dtype, eps=1.003e-5).digest


class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return slope + 1e-9 * torch.rand_like(slope)


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, slope):
        return slope


@pytest.mark.parametrize(
    ("function", "order", "why"),
    [
        (Noise, 1, "two calls with the same weights differ"),
        (Noise, 2, "two calls with the same weights differ"),
        (
            Once,
            2,
            "a product with its Hessian cannot be computed .*differentiable once",
        ),
    ],
)
def test_where_there_is_none_nothing_has_the_same(function, order, why):
    one, other = (
        found(lambda n, h, out: function.apply(out), order=order) for _ in range(2)
    )
    assert one.digest != other.digest
    assert one.digest.startswith(ONCE)
    assert re.search(why, one.why)


def test_an_order_takes_no_more_derivatives():
    lower = found(lambda n, h, out: Once.apply(out), order=1)
    assert not lower.why
    assert lower == found(lambda n, h, out: Once.apply(out), order=1)
    assert (
        found(order=0).digest
        != found(OTHERS["a switch beside the weights"], order=0).digest
    )


def test_several_batches_and_generators():
    """The sum over batches, and the generators of torch as they were."""
    x = torch.randn(6, 3)
    y = torch.randint(0, 2, (6,))
    drawn = hessfig.Problem(Net(plain), [x[:4], x[4:]], [y[:4], y[4:]]).objective(
        "float64"
    )
    before = torch.get_rng_state()
    one = fingerprint((drawn), "key")
    assert torch.equal(before, torch.get_rng_state())
    assert not one.why
    turned = hessfig.Problem(Net(plain), [x[4:], x[:4]], [y[4:], y[:4]]).objective(
        "float64"
    )
    assert fingerprint((turned), "key").digest != ""
    assert one == fingerprint((drawn), "key")
    for p in drawn.network.parameters():
        assert p.grad is None
