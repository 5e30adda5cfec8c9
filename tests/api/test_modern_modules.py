"""Modules of modern networks, each against the test's own dense double backward: H, H_o and H_f, exact and probed."""

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.errors import UserError
from hessfig.terms import Part
from tests.daily import thinned
from tests.foreign_networks import dense_parts

WIDTH = 4
LENGTH = 3
Make = Callable[[], nn.Module]


class Around(nn.Module):
    """A module between two linear maps, whose first sees it change and whose second turns it into three classes."""

    def __init__(self, inner, *, pick=lambda found: found):
        super().__init__()
        self.first = nn.Linear(2, WIDTH)
        self.inner = inner
        self.last = nn.Linear(WIDTH, 3)
        self.pick = pick

    def forward(self, x):
        return self.last(self.pick(self.inner(self.first(x))))


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)
        self.up = nn.Linear(WIDTH, 3)
        self.down = nn.Linear(3, WIDTH)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Attention(nn.Module):
    """Two heads of queries on one of keys and values (grouped), with rotary positions and a causal mask."""

    def __init__(self, *, rotary=False, grouped=False, fused=False):
        super().__init__()
        self.rotary = rotary
        self.fused = fused
        self.groups = 2 if grouped else 1
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = (
            nn.Linear(WIDTH, WIDTH // self.groups, bias=False) for _ in range(2)
        )

    def forward(self, x):
        q, k, v = (
            one(x).unflatten(-1, (-1, 2)).transpose(1, 2)
            for one in (self.q, self.k, self.v)
        )
        if self.rotary:
            q = rotated(q)
            k = rotated(k)
        if self.fused:
            found = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=self.groups > 1
            )
        else:
            k, v = (one.repeat_interleave(self.groups, dim=1) for one in (k, v))
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            found = (q @ k.mT / math.sqrt(2)).masked_fill(~mask, -math.inf).softmax(
                -1
            ) @ v
        return found.transpose(1, 2).flatten(2)


def rotated(x):
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None]
    even = x[..., ::2]
    odd = x[..., 1::2]
    return torch.cat(
        [
            even * angles.cos() - odd * angles.sin(),
            even * angles.sin() + odd * angles.cos(),
        ],
        -1,
    )


class Twice(nn.Module):
    """The same linear map at two places of the forward pass; `names` is under how many names it stands."""

    def __init__(self, *, names):
        super().__init__()
        self.one = nn.Linear(WIDTH, WIDTH)
        self.other = self.one if names == 2 else None

    def forward(self, x):
        again = self.one if self.other is None else self.other
        return again(torch.tanh(self.one(x)))


class Tied(nn.Module):
    """Two maps with one weight."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.other.weight = self.one.weight

    def forward(self, x):
        return self.other(torch.tanh(self.one(x)))


class InPlace(nn.Module):
    """Operations that vmap does not know, or not so: in place into a plain tensor, and steered by the data."""

    def forward(self, x):
        found = torch.zeros_like(x.detach())
        found[:] = torch.tanh(x)
        return found if float(found.detach().sum()) < 1e9 else x


class Steered(nn.Module):
    def forward(self, x):
        return torch.tanh(x) if float(x.sum()) < 1e9 else x


class PlainBag(nn.EmbeddingBag):
    def forward(self, words):
        return self.weight[words].mean(dim=1)


class PlainWeightNorm(nn.utils.parametrizations._WeightNorm):
    def forward(self, weight_g, weight_v):
        return weight_g * weight_v / weight_v.square().sum(dim=1, keepdim=True).sqrt()


def recurrent(kind):
    return Around(kind(WIDTH, WIDTH, batch_first=True), pick=lambda found: found[0])


def attending():
    class Self(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    return Around(Self())


def encoder(**settings):
    return Around(
        nn.TransformerEncoderLayer(
            WIDTH, 2, 3, dropout=0.1, batch_first=True, **settings
        )
    ).eval()


def normed():
    norm = nn.BatchNorm1d(LENGTH)
    norm(torch.randn(9, LENGTH, WIDTH))
    return Around(norm).eval()


def bagged():
    return nn.Sequential(
        nn.EmbeddingBag(5, WIDTH, mode="mean"), nn.SiLU(), nn.Linear(WIDTH, 3)
    )


def convolutional():
    return nn.Sequential(
        nn.Conv1d(LENGTH, 3, 2), nn.SiLU(), nn.Flatten(), nn.Linear(3, 3)
    )


NETWORKS = {
    "silu": lambda: Around(nn.SiLU()),
    "gelu": lambda: Around(nn.GELU()),
    "swiglu": lambda: Around(SwiGLU()),
    "rms norm": lambda: Around(nn.RMSNorm(WIDTH)),
    "layer norm": lambda: Around(nn.LayerNorm(WIDTH)),
    "group norm": lambda: Around(nn.GroupNorm(1, LENGTH)),
    "batch norm": normed,
    "attention": lambda: Around(Attention()),
    "rotary": lambda: Around(Attention(rotary=True)),
    "grouped queries": lambda: Around(Attention(grouped=True)),
    "fused attention": lambda: Around(Attention(fused=True)),
    "fused grouped rotary": lambda: Around(
        Attention(fused=True, grouped=True, rotary=True)
    ),
    "multihead attention": attending,
    "encoder layer": encoder,
    "encoder layer, pre-norm": lambda: encoder(norm_first=True, activation="gelu"),
    "applied twice": lambda: Around(Twice(names=1)),
    "two names": lambda: Around(Twice(names=2)),
    "tied with silu": lambda: Around(nn.Sequential(Tied(), nn.SiLU())),
    "lstm": lambda: recurrent(nn.LSTM),
    "gru": lambda: recurrent(nn.GRU),
    "convolution": convolutional,
    "embedding bag": bagged,
    "in place": lambda: Around(InPlace()),
    "steered by data": lambda: Around(Steered()),
    "weight norm": lambda: Around(
        nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
    ),
}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def problem_of(name):
    torch.manual_seed(len(name))
    network = NETWORKS[name]().double()
    words = torch.tensor([[0, 1, 1], [2, 3, 0]])
    inputs = words if name == "embedding bag" else torch.randn(2, LENGTH, 2).double()
    with torch.no_grad():
        targets = torch.randint(0, 3, network(inputs).shape[:-1])
    return hessfig.Problem(network, inputs, targets)


def truth_of(problem, names):
    """Return the dense parts, of a copy: functional_call leaves a module under two names changed.

    Two modules of torch have no second derivatives, or wrong ones (2.15): the oracle
    has them written out.
    """
    network = copy.deepcopy(problem.network)
    for module in network.modules():
        if isinstance(module, nn.EmbeddingBag):
            module.__class__ = PlainBag
        if isinstance(module, nn.utils.parametrizations._WeightNorm):
            module.__class__ = PlainWeightNorm
    return dense_parts(replace(problem, network=network), names)


def measure(problem, **settings):
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", ".*plain double backward is used instead", RuntimeWarning
        )
        return hessfig.measure(problem, **settings)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.long
def test_every_part_is_that_of_dense_double_backward(name):
    problem = problem_of(name)
    before = dict(problem.network.named_parameters())
    dense = truth_of(problem, [*before])
    asked = {"blocks": ["all"], "quantities": ["frobenius", "trace"]}
    exact = measure(problem, **asked, estimator="dense")
    probed = measure(problem, **asked, estimator="hutchinson", num_probes=16)
    size = float(dense[Part.H].norm())
    for row in pd.concat([exact, probed]).itertuples():
        matrix = dense[Part(row.part)]
        truth = float(matrix.norm() if row.quantity == "frobenius" else matrix.trace())
        allowed = 3 * row.error if row.estimator == "hutchinson" else 0.0
        assert abs(row.value - truth) <= allowed + 1e-10 * size, row
    for name, one in problem.network.named_parameters():
        assert one is before[name]


QUANTITIES = {
    **dict.fromkeys(("spectrum", "hessian", "largest_eigenvalue"), "dense"),
    **dict.fromkeys(("density", "gradient_norm", "weight_norm", "loss"), "auto"),
    **dict.fromkeys(("gradient_covariance", "stationarity"), "auto"),
    **dict.fromkeys(("landscape_difference", "landscape_integrals"), "auto"),
    "hessian_distance": "hutchinson",
}
WALKS = ("stationarity", "landscape_difference")
PAIRS = [
    *product(["silu"], QUANTITIES),
    *product(["two names"], ("hessian", "gradient_norm", *WALKS)),
    *product(["steered by data"], ("spectrum", *WALKS)),
    *product(["lstm"], WALKS),
]


@pytest.mark.parametrize(("name", "quantity"), thinned(PAIRS, 4))
def test_every_quantity_is_measured(name, quantity):
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "gradients of single samples under vmap", RuntimeWarning
        )
        table = measure(
            problem_of(name),
            blocks=["all"],
            quantities=[quantity],
            estimator=QUANTITIES[quantity],
            spectrum={"num_probes": 2},
        )
    # Infinite where more than 5 % of the eigenvalues are zero.
    of_singular = table["quantity"] == "condition_number"
    assert set(table.loc[~of_singular, "status"]) <= {"ok"}
    assert table["value"].notna().all()
    assert (
        table.loc[of_singular, "status"].eq("nonfinite")
        == table.loc[of_singular, "value"].isin([math.inf])
    ).all()


def test_xtrace_takes_double_backward_too():
    problem = problem_of("silu")
    names = [path for path, _ in problem.network.named_parameters()]
    truth = dense_parts(problem, names)[Part.H][:8, :8].norm().item()
    with pytest.warns(
        RuntimeWarning,
        match="H_f: curvlinops cannot differentiate this network .NotImplementedError",
    ):
        table = hessfig.measure(
            problem, blocks="first.weight", estimator="xtrace", num_probes=6, parts="H"
        )
    assert table["value"][0] == pytest.approx(truth, rel=0.3)


def test_gradients_of_single_samples_are_those_one_by_one():
    problem = problem_of("steered by data")
    with pytest.warns(
        RuntimeWarning, match="gradients of single samples under vmap: RuntimeError"
    ):
        found = measure(problem, quantities="stationarity").attrs["arrays"][
            "stationarity"
        ]["squares"]
    for sample, square in enumerate(found):
        alone = hessfig.Problem(
            problem.network,
            problem.inputs[sample : sample + 1],
            problem.targets[sample : sample + 1],
        )
        table = measure(alone, quantities="gradient_norm")
        assert square == pytest.approx(table["value"][0] ** 2, rel=1e-10)


class Flash(nn.Module):
    """An attention that insists on a kernel without a second derivative."""

    def forward(self, x):
        q = x.unsqueeze(1)
        with torch.nn.attention.sdpa_kernel(
            [torch.nn.attention.SDPBackend.FLASH_ATTENTION]
        ):
            return F.scaled_dot_product_attention(q, q, q)[:, 0]


def test_what_cannot_be_differentiated_twice_is_refused_by_name():
    targets = torch.zeros(2, LENGTH, dtype=torch.long)
    problem = hessfig.Problem(Around(Flash()), torch.randn(2, LENGTH, 2), targets)
    with pytest.raises(UserError, match="cannot be differentiated twice") as caught:
        hessfig.measure(problem, blocks="first.weight")
    assert caught.value.got
    assert caught.value.allowed
    assert caught.value.remedy
