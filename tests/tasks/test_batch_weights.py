"""What batches weigh: several of them are the one that holds all samples, whatever the loss divides by."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.errors import UserError
from tests.daily import daily

QUANTITIES = ["frobenius", "loss", "gradient_norm"]
torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
SMOOTH = nn.Sequential(
    nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 3)
).double()  # by double backward
X = torch.randn(7, 3).double()
CLASSES = torch.tensor([0, 2, 1, 1, 0, 2, 2])
SOME = torch.tensor([0, -100, -100, 1, 0, -100, 2])
NUMBERS = torch.randn(7, 3).double()
COST = torch.tensor([1.0, 5.0, 0.5])


class Own(nn.Module):
    """A loss of a type that is not known."""

    def __init__(self, value, reduction="mean"):
        super().__init__()
        self.value, self.reduction = value, reduction

    def forward(self, output, target):
        return self.value(output, target)


def masked(output, target):
    """Return the mean over targets that count, by a mask of its own."""
    kept = (target >= 0).to(output)
    single = F.cross_entropy(output, target.clamp(min=0), reduction="none")
    return (kept * single).sum() / kept.sum()


def spread(output, target):
    """Return a loss in which samples meet each other."""
    return (output - output.mean(dim=0)).square().mean() + target.double().mean()


LOSSES = {
    "every class": ("cross_entropy", CLASSES),
    "ignored": ("cross_entropy", SOME),
    "numbers": ("mse", NUMBERS),
    "summed numbers": ("mse_sum", NUMBERS),
    "module": (nn.CrossEntropyLoss(), SOME),
    "another ignored": (nn.CrossEntropyLoss(ignore_index=2), CLASSES),
    "weighted": (nn.CrossEntropyLoss(weight=COST), CLASSES),
    "weighted, ignored, smoothed": (
        nn.CrossEntropyLoss(weight=COST, label_smoothing=0.1),
        SOME,
    ),
    "probabilities": (nn.CrossEntropyLoss(weight=COST), NUMBERS.softmax(-1)),
    "summed": (nn.CrossEntropyLoss(weight=COST, reduction="sum"), SOME),
    "likelihood": (nn.NLLLoss(weight=COST), SOME),
    "huber": (nn.HuberLoss(), NUMBERS),
    "logits": (nn.BCEWithLogitsLoss(), NUMBERS.sigmoid()),
    "own mean": (Own(lambda f, y: (f - y).pow(4).mean()), NUMBERS),
    "own sum": (Own(lambda f, y: (f - y).pow(4).sum(), "sum"), NUMBERS),
    "own mask": (Own(masked), SOME),
}


def numbers(network, inputs, targets, loss):
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", ".*plain double backward is used", RuntimeWarning
        )
        problem = hessfig.Problem(network, inputs, targets, loss)
        return hessfig.measure(
            problem, blocks="0.weight", quantities=QUANTITIES, estimator="dense"
        )["value"].tolist()


@pytest.mark.parametrize(
    "network", [NET, SMOOTH], ids=["curvlinops", "double backward"]
)
@pytest.mark.parametrize("name", daily(LOSSES, *[*LOSSES][::8]))
def test_batches_are_the_whole_of_them(name, network):
    loss, targets = LOSSES[name]
    pieces = [slice(0, 1), slice(1, 5), slice(5, 7)]
    inputs = [X[one] for one in pieces]
    apart = numbers(network, inputs, [targets[one] for one in pieces], loss)
    whole = numbers(network, X, targets, loss)
    assert apart == pytest.approx(whole, rel=1e-10, abs=1e-13)


def test_a_batch_of_which_nothing_counts_is_left_out():
    nothing = torch.full((2,), -100)
    for loss in ("cross_entropy", Own(masked)):
        apart = numbers(NET, [X[:5], X[5:]], [CLASSES[:5], nothing], loss)
        assert apart == pytest.approx(numbers(NET, X[:5], CLASSES[:5], loss), rel=1e-12)


@pytest.mark.parametrize("are_pairs", [False, True], ids=["lists", "pairs"])
def test_the_remedy_for_several_batches_gives_the_mean_of_their_losses(are_pairs):
    pieces = [slice(0, 2), slice(2, 7)]
    given = {
        "inputs": [X[one] for one in pieces],
        "targets": [CLASSES[one] for one in pieces],
    }
    if are_pairs:
        given = {"inputs": [*zip(*given.values(), strict=True)]}
    with pytest.raises(UserError) as caught:
        hessfig.Problem(NET, **given, loss=spread).operator("all")
    call = caught.value.remedy.rpartition("; or ")[2].removesuffix(
        ", with any function"
    )
    names = {
        "hessfig": hessfig,
        "network": NET,
        "loss": spread,
        "batches": given["inputs"],
        **given,
    }
    found = eval(call.replace("[...]", "[2.0, 5.0]"), names).operator("all").dense()
    one = hessfig.Problem(NET, X[:2], CLASSES[:2], spread).operator("all").dense()
    other = hessfig.Problem(NET, X[2:], CLASSES[2:], spread).operator("all").dense()
    torch.testing.assert_close(found, (2 * one + 5 * other) / 7, rtol=1e-10, atol=1e-13)


def test_sequences_of_different_lengths_weigh_their_targets():
    x = torch.randn(3, 5, 3).double()
    y = torch.randint(0, 3, (3, 5))
    apart = numbers(NET, [x[:1], x[1:, :2]], [y[:1], y[1:, :2]], "cross_entropy")
    joined = [torch.cat([one[0], one[1, :2], one[2, :2]]) for one in (x, y)]
    assert apart == pytest.approx(
        numbers(NET, *joined, "cross_entropy"), rel=1e-10, abs=1e-13
    )


@pytest.mark.parametrize(
    ("loss", "targets"),
    [
        (Own(spread), NUMBERS),
        (Own(lambda f, y: (f - y).square().sum()), NUMBERS),
        (Own(lambda f, y: (f - y).square().mean(), "sum"), NUMBERS),
    ],
    ids=["samples that meet", "a sum called mean", "a mean called sum"],
)
def test_losses_that_do_not_add_up_are_refused(loss, targets):
    with pytest.raises(UserError, match="do not add up") as caught:
        numbers(NET, [X[:3], X[3:]], [targets[:3], targets[3:]], loss)
    assert caught.value.got
    assert caught.value.allowed
    assert "one batch" in caught.value.remedy


def test_the_remedy_for_a_sum_that_is_a_function_is_its_attribute():
    def loss(outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="sum")

    with pytest.raises(UserError) as caught:
        numbers(NET, [X[:3], X[3:]], [CLASSES[:3], CLASSES[3:]], loss)
    assert (
        "set the attribute `reduction` of the loss to what it is, 'mean' or 'sum'"
        in caught.value.remedy
    )
    loss.reduction = "sum"
    apart = numbers(NET, [X[:3], X[3:]], [CLASSES[:3], CLASSES[3:]], loss)
    assert apart == pytest.approx(numbers(NET, X, CLASSES, loss), rel=1e-10, abs=1e-13)


def test_a_loss_whose_batches_cannot_be_joined_is_refused():
    x = torch.randn(3, 5, 3).double()
    y = torch.randn(3, 5, 3).double()
    with pytest.raises(UserError, match=r"do not add up(.|\n)*cannot be joined"):
        numbers(
            NET,
            [x[:1], x[1:, :2]],
            [y[:1], y[1:, :2]],
            Own(lambda f, y: (f - y).pow(4).mean()),
        )


@pytest.mark.parametrize(
    "quantity", ["stationarity", "landscape_difference", "hessian_distance"]
)
def test_single_samples_of_unequal_weight_are_refused(quantity):
    with pytest.raises(UserError, match="some targets are ignored"):
        hessfig.measure(hessfig.Problem(NET, X, SOME), quantities=quantity)
