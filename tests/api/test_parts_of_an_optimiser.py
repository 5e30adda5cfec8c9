"""Optimisers of some of the parameters, or that hold them since different steps, against their next update."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.errors import UserError
from tests.daily import daily
from tests.double_backward import hessian

LR = 1e-2
FIRST = 0.9
SECOND = 0.999


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def data():
    made = torch.Generator().manual_seed(1)
    return torch.randn(20, 3, generator=made, dtype=torch.float64), torch.randint(
        0, 4, (20,), generator=made
    )


def watched(net, optimiser, folder, batch=None, **settings):
    given = {
        "quantities": ["preconditioned_eigenvalue", "stability_threshold", "along"],
        "directions": {"rules": [kind_of(optimiser)]},
    }
    # Fmt: skip.
    return hessfig.Monitor(
        net,
        "cross_entropy",
        batch or data(),
        folder=folder,
        every=1,
        optimiser=optimiser,
        max_fraction=None,
        on_error="raise",
        **{**given, **settings},
    )


def kind_of(optimiser):
    kinds = {torch.optim.SGD: "sgd", torch.optim.AdamW: "adamw"}
    return next(kind for base, kind in kinds.items() if isinstance(optimiser, base))


def trained(net, optimiser, steps):
    inputs, targets = data()
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(net(inputs), targets).backward()
        optimiser.step()


def measured(net, optimiser, folder):
    """Return the preconditioned eigenvalue and the length of the next update, as the monitor gives them."""
    monitor = watched(net, optimiser, folder)
    values = monitor(7)
    monitor.close()
    return values["preconditioned_eigenvalue/all/H"], values[
        f"{kind_of(optimiser)}_update_length/all"
    ]


def true_length(net, optimiser):
    """Return how far the optimiser itself moves the network."""
    before = [one.detach().clone() for one in net.parameters()]
    trained(net, optimiser, 1)
    before = nn.utils.parameters_to_vector(before)
    return float((nn.utils.parameters_to_vector(net.parameters()) - before).norm())


def true_eigenvalue(net, optimiser):
    """Return the largest eigenvalue of P^-1/2 H P^-1/2 in the parameters that the optimiser holds."""
    held = [one for group in optimiser.param_groups for one in group["params"]]
    inputs, targets = data()
    H = hessian(lambda: F.cross_entropy(net(inputs), targets), held)
    roots = torch.cat(
        [scale_of(optimiser.state[one], one).flatten().rsqrt() for one in held]
    )
    return float(torch.linalg.eigvalsh(roots[:, None] * H * roots)[-1])


def scale_of(state, like):
    if "exp_avg_sq" not in state:
        return torch.ones_like(like)
    t = int(state["step"])
    square = state.get("max_exp_avg_sq", state["exp_avg_sq"])
    return (1 - FIRST**t) * ((square / (1 - SECOND**t)).sqrt() + 1e-8)


class Mine(torch.optim.AdamW):
    """A subclass that makes its updates as AdamW does."""

    def __init__(self, held):
        super().__init__(held, lr=LR, weight_decay=0.0)


BETAS = tuple(torch.tensor([FIRST, SECOND], dtype=torch.float64))
OPTIMISERS = {
    "adamw": lambda held: torch.optim.AdamW(held, lr=LR, weight_decay=0.0),
    "sgd": lambda held: torch.optim.SGD(held, lr=LR, momentum=0.9),
    "nesterov": lambda held: torch.optim.SGD(held, LR, 0.9, nesterov=True),
    "amsgrad": lambda held: torch.optim.AdamW(held, LR, weight_decay=0.0, amsgrad=True),
    "subclass": Mine,
    "tensors": lambda held: torch.optim.AdamW(
        held, torch.tensor(LR).double(), BETAS, weight_decay=0.0, foreach=False
    ),
}


@pytest.mark.parametrize(
    ("kind", "late"),
    daily(
        product(OPTIMISERS, [False, True]),
        ("adamw", True),
        ("sgd", False),
        *product(("nesterov", "amsgrad", "subclass", "tensors"), [False]),
    ),
)
def test_numbers_are_those_of_the_next_update(kind, late, tmp_path):
    """The first layer is never held, or since the fifth step: each parameter has moments and steps of its own."""
    net = network()
    optimiser = OPTIMISERS[kind](list(net[2].parameters()))
    trained(net, optimiser, 5)
    if late:
        optimiser.add_param_group({"params": list(net[0].parameters())})
        trained(net, optimiser, 2)
    eigenvalue, length = measured(net, optimiser, tmp_path / "mine")
    assert eigenvalue == pytest.approx(true_eigenvalue(net, optimiser), rel=1e-5)
    assert length == pytest.approx(true_length(net, optimiser), rel=1e-9)


def test_the_largest_second_moment_so_far_divides(tmp_path):
    """After a large gradient exp_avg_sq falls; what amsgrad divides by does not."""
    net = network()
    optimiser = torch.optim.AdamW(
        net.parameters(), LR, (FIRST, 0.5), weight_decay=0.0, amsgrad=True
    )
    for scale in (100.0, 1.0, 1.0):
        optimiser.zero_grad()
        inputs, targets = data()
        (scale * F.cross_entropy(net(inputs), targets)).backward()
        optimiser.step()
    state = optimiser.state[net[0].weight]
    assert (state["max_exp_avg_sq"] > 1.5 * state["exp_avg_sq"]).all()
    _, length = measured(net, optimiser, tmp_path / "mine")
    assert length == pytest.approx(true_length(net, optimiser), rel=1e-9)


@pytest.mark.parametrize("other", ["empty", "another network"])
def test_groups_without_a_parameter_of_the_network_do_not_count(other, tmp_path):
    net = network()
    held = list(network().parameters()) if other == "another network" else []
    groups = [{"params": held, "lr": 1.0}, {"params": list(net.parameters())}]
    optimiser = OPTIMISERS["adamw"](groups)
    trained(net, optimiser, 3)
    _, length = measured(net, optimiser, tmp_path / "mine")
    assert length == pytest.approx(true_length(net, optimiser), rel=1e-9)


@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(0.9, False), (0.9, True), (0.0, False)]
)
@pytest.mark.parametrize("ratio", [0.99, 1.01])
def test_thresholds_of_momentum_divide_what_shrinks_from_what_grows(
    momentum, nesterov, ratio, tmp_path
):
    """On a parabola whose curvature is `ratio` times the threshold, torch's own updates grow or shrink."""
    net = nn.Linear(1, 1, bias=False)
    optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum, nesterov=nesterov)
    monitor = watched(
        net,
        optimiser,
        tmp_path / "mine",
        batch=(torch.ones(1, 1), torch.zeros(1, dtype=torch.long)),
        quantities=["stability_threshold"],
    )
    curvature = ratio * monitor(0)["stability_threshold"]
    monitor.close()
    with torch.no_grad():
        net.weight.fill_(1.0)
    for _ in range(100):
        optimiser.zero_grad()
        (curvature / 2 * net.weight.square()).sum().backward()
        optimiser.step()
    assert (abs(net.weight.item()) > 1.0) == (ratio > 1.0)


def test_an_optimiser_of_another_network_is_refused(tmp_path):
    other = torch.optim.AdamW(network().parameters(), lr=LR)
    with pytest.raises(UserError, match="contains none of the network's parameters"):
        watched(network(), other, tmp_path / "mine")(0)
