"""The dense derivatives that tests compare with: those of plain passes, and none that a batched pass has wrong."""

import pytest
import torch
from torch import nn

import hessfig
from hessfig.curvature.double_backward import DoubleBackward, fault
from hessfig.curvature.problem import Suffix
from hessfig.terms import Part
from tests.double_backward import hessian, jacobian


def by_rows(values, at):
    rows = []
    for one in values.flatten():
        rows.append(
            torch.autograd.grad(one, at, retain_graph=True, materialize_grads=True)
        )
    return torch.stack([torch.cat([piece.flatten() for piece in row]) for row in rows])


@pytest.mark.parametrize("norm", [nn.LayerNorm(4), nn.RMSNorm(4), nn.Identity()])
def test_all_rows_at_once_are_those_of_plain_passes(norm):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 2)).double()
    unused = torch.ones(2, dtype=torch.float64, requires_grad=True)
    x = torch.randn(5, 3, dtype=torch.float64)
    at = [*network.parameters(), unused]
    slopes = torch.autograd.grad(
        network(x).exp().sum(), at, create_graph=True, materialize_grads=True
    )
    rows = by_rows(torch.cat([slope.flatten() for slope in slopes]), at)
    torch.testing.assert_close(
        hessian(lambda: network(x).exp().sum(), at), rows, rtol=1e-11, atol=1e-12
    )
    torch.testing.assert_close(
        jacobian(lambda: network(x), at),
        by_rows(network(x), at),
        rtol=1e-11,
        atol=1e-12,
    )


class OtherAtFirst(torch.autograd.Function):
    """The identity, whose first pass backward, that of all rows at once, has the last entry twice too large."""

    passes = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        OtherAtFirst.passes += 1
        return (
            slope
            if OtherAtFirst.passes > 1
            else slope * torch.tensor([1.0, 1.0, 2.0], dtype=slope.dtype)
        )


def test_a_row_that_a_batched_pass_has_wrong_is_found():
    at = torch.ones(3, dtype=torch.float64, requires_grad=True)
    assert jacobian(at.square, [at]).equal(2 * torch.eye(3, dtype=torch.float64))
    with pytest.raises(AssertionError, match="the batched pass is off by"):
        jacobian(lambda: OtherAtFirst.apply(at.square()), [at])
    assert OtherAtFirst.passes == 2


class Beside(nn.Module):
    """A large map and a small one beside it, whose rows of H are some 5e-4 of the others."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.large = nn.Linear(3, 2)
        self.small = nn.Linear(3, 2)

    def forward(self, x):
        return self.large(x).tanh() + 5e-4 * self.small(x).tanh()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_rows_that_are_wrong_are_noticed_beside_large_ones(dtype):
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1))
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    objective = hessfig.Problem(Beside().eval(), x, y, "cross_entropy").objective(
        str(dtype).removeprefix("torch.")
    )
    suffix = Suffix(objective, None)
    parameters = {
        name.removeprefix("network."): one for name, one in suffix.named_parameters()
    }
    right = DoubleBackward(suffix, Part.H, list(parameters.values()))
    small = [name.startswith("small") for name in parameters]

    class Wrong:
        def __matmul__(self, columns):
            found = []
            for rows, is_small in zip(right @ columns, small, strict=True):
                found.append(1.01 * rows if is_small else rows)
            return found

    assert fault(right, right, right, parameters) == ""
    assert "in the rows of small" in fault(Wrong(), right, right, parameters)
