"""Samples taken alone: which count and how much, by which axes they are cut, and refusals where they see each other."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import hessfig
from hessfig.curvature.samples import single_gradients
from hessfig.errors import UserError
from tests.daily import daily, thinned
from tests.draws import draws, labels, tanh_network

WORDS = 7
IGNORED = -100


def mlp():
    torch.manual_seed(0)
    return tanh_network(4, 3, 3).double()


pytestmark = pytest.mark.filterwarnings("ignore:.*degrees of freedom:UserWarning")


def number(problem, quantity="noise_scale"):
    table = hessfig.measure(problem, blocks="pairs", quantities=quantity, parts="H")
    return float(table["value"].iloc[0])


def noise(gradients):
    """tr C / |G|^2 of docs/conventions.md."""
    n = len(gradients)
    mean = gradients.mean(0)
    trace = float((gradients - mean).square().sum()) / (n - 1)
    return trace / (float(mean.square().sum()) - trace / n)


def pulled(network, loss):
    return torch.cat(
        [one.flatten() for one in torch.autograd.grad(loss, list(network.parameters()))]
    )


X = draws(6, 4, 4)
COST = torch.tensor([1.0, 5.0, 0.5], dtype=torch.float64)
Y = labels(6, 4)
SOME = Y.masked_fill(
    torch.arange(4) >= torch.tensor([4, 1, 3, 0, 2, 4])[:, None], IGNORED
)
PLAIN = {
    "ignored": (
        "cross_entropy",
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
    ),
    "function": (lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),) * 2,
    "function of weights": (
        lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten(), weight=COST),
    )
    * 2,
    "function that sums": (lambda out, y: summed(out, y),) * 2,
}


@pytest.mark.parametrize("name", thinned(PLAIN, 2))
def test_the_noise_scale_is_of_the_samples_that_count_each_by_its_share(name):
    network, (loss, plain) = mlp(), PLAIN[name]
    whole = pulled(network, plain(network(X), SOME))
    counting = [row for row in range(len(X)) if bool((SOME[row] != IGNORED).any())]
    leaf = network(X).detach().requires_grad_()
    (slope,) = torch.autograd.grad(plain(leaf, SOME), leaf)
    shares = torch.stack(
        [pulled(network, (network(X[row]) * slope[row]).sum()) for row in counting]
    )
    assert_close(shares.sum(0), whole)
    problem = hessfig.Problem(network, X, SOME, loss)
    assert number(problem) == pytest.approx(noise(len(counting) * shares), rel=1e-9)
    found = torch.stack(list(single_gradients(problem.objective("float64"))))
    assert_close(found.mean(0) / found.mean(0).norm(), whole / whole.norm())


def test_samples_that_do_not_count_may_as_well_not_be_there():
    network = mlp()
    kept = [0, 1, 2, 4, 5]
    whole = hessfig.Problem(network, X, SOME, "cross_entropy")
    left = hessfig.Problem(network, X[kept], SOME[kept], "cross_entropy")
    for quantity in ("noise_scale", "gradient_covariance"):
        assert number(whole, quantity) == pytest.approx(
            number(left, quantity), rel=1e-12
        )
    for name in ("adam_expected", "shampoo", "empirical_fisher"):
        one = whole.approximation(name, "0.weight")
        other = left.approximation(name, "0.weight")
        assert_close(one @ torch.eye(12).double(), other @ torch.eye(12).double())


def summed(out, y):
    return F.cross_entropy(out.flatten(0, 1), y.flatten(), reduction="sum")


summed.reduction = "sum"


@pytest.mark.parametrize("name", thinned(PLAIN, 2))
def test_unequal_batches_are_the_whole_of_them(name):
    network = mlp()
    loss, _ = PLAIN[name]
    if name == "function that sums":
        # Of several batches a sum has to say that it is one.
        loss = summed
    apart = hessfig.Problem(
        network, [X[:1], X[1:3], X[3:]], [SOME[:1], SOME[1:3], SOME[3:]], loss
    )
    assert number(apart) == pytest.approx(
        number(hessfig.Problem(network, X, SOME, loss)), rel=1e-9
    )


class Arguments(nn.Module):
    """Tokens at positions (length,), attending under a mask (length, length), from a state (1, samples, width)."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 3)
        self.places = nn.Embedding(9, 3)
        self.out = nn.Linear(3, 3)

    def forward(self, places, mask, start, words):
        x = self.words(words) + self.places(places) + start.squeeze(0)[:, None]
        return self.out(torch.tanh((x @ x.mT).masked_fill(mask, -1e9).softmax(-1) @ x))


def arguments(samples, *, spread):
    """Five tokens; `spread` gives every sample positions and a mask of its own, which cannot be mistaken."""
    torch.manual_seed(4)
    network = Arguments().double()
    places = torch.arange(5)
    mask = torch.ones(5, 5).triu(1).bool()
    if spread:
        places = places.expand(samples, 5).contiguous()
        mask = mask.expand(samples, 5, 5).contiguous()
    batch = {
        "places": places,
        "mask": mask,
        "start": draws(1, samples, 3),
        "words": labels(samples, 5, classes=WORDS),
    }
    return hessfig.Problem(network, batch, labels(samples, 5, seed=3), "cross_entropy")


@pytest.mark.parametrize("samples", daily([2, 5, 6], 2))
def test_arguments_without_an_axis_of_samples_are_not_cut(samples):
    one = arguments(samples, spread=False)
    other = arguments(samples, spread=True)
    assert number(one) == pytest.approx(number(other), rel=1e-12)
    for name in ("empirical_fisher", "shampoo", "sampled_fisher"):
        found, truth = (
            problem.approximation(name, "out.weight") @ torch.eye(9).double()
            for problem in (one, other)
        )
        assert_close(found, truth, rtol=1e-10, atol=1e-14)
    assert_close(
        torch.stack(list(single_gradients(one.objective("float64")))),
        torch.stack(list(single_gradients(other.objective("float64")))),
    )


@pytest.mark.parametrize(
    "quantity", ["landscape_difference", "stationarity", "hessian_distance"]
)
@pytest.mark.long
def test_landscapes_cut_the_arguments_that_have_an_axis_of_samples(quantity):
    tables = []
    for spread in (False, True):
        tables.append(
            hessfig.measure(
                arguments(5, spread=spread),
                blocks="out.weight",
                parts="H",
                quantities=quantity,
            )["value"].tolist()
        )
    assert tables[0] == pytest.approx(tables[1], rel=1e-7, abs=1e-12, nan_ok=True)


def test_batches_of_several_arguments_are_cut_each_by_itself():
    whole = arguments(5, spread=True)
    rows = [slice(0, 2), slice(2, 5)]
    batches = [
        {
            name: one[:, row] if name == "start" else one[row]
            for name, one in whole.inputs.items()
        }
        for row in rows
    ]
    apart = hessfig.Problem(
        whole.network, batches, [whole.targets[row] for row in rows], "cross_entropy"
    )
    assert number(apart, "gradient_covariance") == pytest.approx(
        number(whole, "gradient_covariance"), rel=1e-12
    )


def test_classes_on_another_axis_than_the_last_are_refused():
    torch.manual_seed(0)
    network = nn.Conv1d(4, 3, 1).double()
    problem = hessfig.Problem(
        network, draws(6, 4, 3), labels(6, 3), nn.CrossEntropyLoss()
    )
    with pytest.raises(UserError, match="classes are not the last axis"):
        problem.approximation("sampled_fisher", "weight")


class Seen(nn.Module):
    """A network in which samples see each other in a way of their own."""

    def __init__(self, how):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.last = nn.Linear(3, 3)
        self.how = how

    def forward(self, x):
        return self.last(self.how(torch.tanh(self.first(x))))


def contrastive(out, target):
    unit = F.normalize(out, dim=1)
    return (
        F.cross_entropy(4 * unit @ unit.T, torch.arange(len(out)).roll(1))
        + 0 * target.sum()
    )


def mixed(h):
    return h + 0.3 * h.roll(1, 0)


MEETING = {
    "batch mean": (lambda h: h - h.mean(0), "cross_entropy"),
    "batch norm of one's own": (lambda h: (h - h.mean(0)) / h.std(0), "cross_entropy"),
    "neighbours": (mixed, "mse"),
    "earlier samples": (lambda h: h.cumsum(0), "mse"),
    "attention over samples": (lambda h: (h @ h.T).softmax(-1) @ h, "cross_entropy"),
    "similarities": (lambda h: h @ h[:3].T, "cross_entropy"),
    "contrastive loss": (lambda h: h, contrastive),
    "spread of the outputs": (
        lambda h: h,
        lambda out, target: (out - out.mean(0)).square().mean(),
    ),
}


def meeting(name):
    torch.manual_seed(5)
    how, loss = MEETING[name]
    targets = draws(6, 3, seed=8) if loss == "mse" else labels(6)
    return hessfig.Problem(Seen(how).double(), draws(6, 4, seed=7), targets, loss)


@pytest.mark.parametrize("name", thinned(MEETING, 6))
@pytest.mark.parametrize(
    "approximation", ["empirical_fisher", "shampoo", "adam_expected", "soap"]
)
def test_approximations_of_samples_that_meet_are_refused(name, approximation):
    with pytest.raises(
        UserError,
        match=r"see each other|do not add up|number of terms is not known|couples positions",
    ):
        meeting(name).approximation(approximation, "first.weight")


@pytest.mark.parametrize("name", thinned(MEETING, 6))
@pytest.mark.parametrize(
    "quantity",
    ["noise_scale", "gradient_covariance", "landscape_difference", "hessian_distance"],
)
def test_quantities_of_samples_that_meet_are_refused(name, quantity):
    with pytest.raises(
        UserError, match=r"see each other|do not add up|not a mean over samples"
    ):
        number(meeting(name), quantity)


def test_a_drawn_fisher_matrix_of_samples_that_meet_is_refused():
    for name in [one for one, (_, loss) in MEETING.items() if isinstance(loss, str)]:
        with pytest.raises(UserError, match="see each other"):
            meeting(name).approximation("sampled_fisher", "first.weight")


class Two(nn.Module):
    """A network of two arguments, of which the second acts on all samples."""

    def __init__(self, how):
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.how = how

    def forward(self, x, other):
        return self.out(x + self.how(other))


def two(how):
    torch.manual_seed(0)
    return hessfig.Problem(
        Two(how).double(),
        (draws(6, 4), draws(6, 4, seed=1)),
        labels(6),
        "cross_entropy",
    )


def test_an_argument_of_all_samples_is_handed_on_whole_whatever_its_length():
    shared = draws(6, 4, seed=1).sum(0)
    whole = two(lambda other: other.sum(0))
    plain = hessfig.Problem(
        whole.network.out, draws(6, 4) + shared, labels(6), "cross_entropy"
    )
    assert number(whole) == pytest.approx(number(plain), rel=1e-12)


def test_arguments_that_no_choice_of_axes_cuts_are_refused():
    problem = two(lambda other: other.cumsum(0))
    assert number(problem, "loss") > 0
    with pytest.raises(UserError, match="see each other") as caught:
        number(problem)
    assert "input 1 (6, 4)" in caught.value.got


class Several(nn.Module):
    """A network of two outputs."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 3)
        self.other = nn.Linear(4, 1)

    def forward(self, x):
        return {"one": self.one(x), "other": self.other(x)}


def test_a_loss_of_several_outputs_is_taken_by_sample_where_they_count_alike():
    torch.manual_seed(0)
    network = Several().double()
    x = draws(6, 4)
    y = labels(6)

    def loss(found, target):
        return F.cross_entropy(found["one"], target) + found["other"].square().mean()

    single = [loss(network(x[row : row + 1]), y[row : row + 1]) for row in range(6)]
    truth = noise(torch.stack([pulled(network, one) for one in single]))
    assert number(hessfig.Problem(network, {"x": x}, y, loss)) == pytest.approx(
        truth, rel=1e-9
    )
    ignored = y.where(torch.arange(6) > 1, IGNORED)
    for quantity in ("noise_scale", "gradient_covariance"):
        with pytest.raises(UserError, match="see each other"):
            number(hessfig.Problem(network, {"x": x}, ignored, loss), quantity)
    with pytest.raises(UserError, match="see each other"):
        hessfig.Problem(network, {"x": x}, y, loss).approximation(
            "shampoo", "one.weight"
        )


@pytest.mark.parametrize(
    "quantity",
    daily(
        ["landscape_difference", "stationarity", "hessian_distance"],
        "landscape_difference",
        "hessian_distance",
    ),
)
def test_samples_with_as_many_ignored_targets_count_alike(quantity):
    last = Y.clone()
    last[:, -1] = IGNORED
    network = mlp()
    settings = {"quantities": quantity, "blocks": "0.weight", "parts": "H"}
    found = hessfig.measure(
        hessfig.Problem(network, X, last, "cross_entropy"), **settings
    )["value"].tolist()
    cut = hessfig.Problem(network, X[:, :-1], Y[:, :-1], "cross_entropy")
    assert found == pytest.approx(
        hessfig.measure(cut, **settings)["value"].tolist(), rel=1e-9
    )
