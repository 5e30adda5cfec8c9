"""What is measured is the user's own function: plain double backward through the user's objects, by parameter."""

import copy
import itertools
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch._higher_order_ops import scan
from torch.nn import functional as F
from torch.testing import assert_close

import hessfig
from hessfig.curvature import batched
from hessfig.models.own import witnessing
from hessfig.models.own.border import open_request
from hessfig.models.own.own_function import OwnFunction
from hessfig.models.own.witnessing import factory_objective
from tests.daily import daily, thinned
from tests.draws import tanh_network
from tests.odd_functions import REFUSED, RIGHT

TYPES = {"float64": torch.float64, "float32": torch.float32}
CLOSE = {"float64": 1e-9, "float32": 2e-4}  # of a truth in the network's own type
DAILY = (
    "gain_by_hook",
    "loss_with_own_parameter",
    "moving_statistics",
    "batches_with_a_penalty",
    "memo",
    "padding_word",
    "own_loss_auxiliary",
)
WAYS = [
    *itertools.product(
        ("in place", "data", "attribute"), ("method", "closure", "another module")
    )
]


def truth(one):
    """Return the diagonal blocks of H by plain double backward, by parameter; hooks of parameters are taken off."""
    names = [name for name, _ in one.network.named_parameters()]
    held = [*one.network.parameters()]
    for p in held:
        (p._backward_hooks or {}).clear()
    slopes = torch.autograd.grad(
        one.value(), held, create_graph=True, materialize_grads=True
    )
    triples = zip(names, slopes, held, strict=True)
    return {name: _dense(slope, [p]) for name, slope, p in triples}


def _dense(slopes, parameters):
    """Return the derivatives of every slope in some parameters, a row for each."""
    parameters = [*parameters]
    rows = []
    for slope in slopes.flatten():
        if slope.requires_grad:
            pieces = torch.autograd.grad(
                slope, parameters, retain_graph=True, materialize_grads=True
            )
        else:
            pieces = map(torch.zeros_like, parameters)
        rows.append(torch.cat([piece.flatten() for piece in pieces]))
    return torch.stack(rows).detach()


def problem(one):
    return hessfig.Problem(one.network, one.inputs, one.targets, one.loss, **one.more)


def state_of(one):
    """Return the bytes and objects of a network: parameters, buffers, attributes, modes and random numbers."""
    tensors = [*one.network.parameters(), *one.network.buffers()]
    held = []
    for t in tensors:
        held.append(
            (
                id(t),
                t.detach().clone(),
                t.requires_grad,
                t.grad,
                tuple(t._backward_hooks or ()),
            )
        )
    flags = [
        (m.training, sorted(vars(m)), [id(v) for v in vars(m).values()])
        for m in one.network.modules()
    ]
    trace = [len(getattr(m, "trace", ())) for m in one.network.modules()]
    return [held, flags, trace, torch.random.get_rng_state().clone()]


def is_alike(one, other):
    held = all(
        a[0] == b[0] and torch.equal(a[1], b[1]) and a[2:] == b[2:]
        for a, b in zip(one[0], other[0], strict=True)
    )
    return held and one[1:3] == other[1:3] and torch.equal(one[3], other[3])


@pytest.mark.parametrize("real", daily(TYPES, "float64"))
@pytest.mark.parametrize("name", thinned(RIGHT, 8))
def test_every_block_is_that_of_the_users_own_function(name, real):
    one = RIGHT[name](TYPES[real])
    before = state_of(one)
    table = hessfig.measure(problem(one), parts="H", estimator="dense")
    assert is_alike(before, state_of(one)), "the user's own objects have changed"
    found = dict(zip(table["col"], table["value"], strict=True))
    blocks = truth(RIGHT[name](TYPES[real]))
    size = max(float(block.norm()) for block in blocks.values())
    for block, value in found.items():
        assert value == pytest.approx(
            float(blocks[block].norm()), rel=CLOSE[real], abs=1e-2 * CLOSE[real] * size
        ), block
    assert not table.attrs["witness"].get("not_taken")
    if real == "float64":
        objective = factory_objective(problem(one), dtype=real, source="mine.py:make")
        assert objective.witness is not None
        assert max(objective.witness.off.values()) < 1e-9


@pytest.mark.parametrize("name", daily(RIGHT, *DAILY[::4]))
def test_a_monitor_too(name, tmp_path):
    """At two steps: weights, and what is no parameter, may change between them."""
    one = RIGHT[name](torch.float64)
    batch = one.inputs if one.targets is None else (one.inputs, one.targets)
    chosen = {
        "quantities": ["frobenius"],
        "estimator": "dense",
        "blocks": ["all"],
        "every": 1,
    }
    monitor = hessfig.Monitor(
        one.network,
        one.loss,
        batch,
        folder=tmp_path / "m",
        max_fraction=None,
        on_error="raise",
        **chosen,
        **one.more,
    )
    for step in range(2):
        value = monitor(step)["frobenius/all/H"]
        assert value == pytest.approx(whole(one), rel=1e-8), step
        with torch.no_grad():
            for p in one.network.parameters():
                p.mul_(0.9)
        if step == 0 and one.network.__class__.__name__ == "Memo":
            one.network.cache = None
    monitor.close()


def whole(one):
    """Return the norm of H in all parameters that require a gradient, in evaluation mode."""
    network = one.network
    modes = [(module, module.training) for module in network.modules()]
    kept = [buffer.clone() for buffer in network.buffers()]
    hooks = [dict(p._backward_hooks or {}) for p in network.parameters()]
    network.eval()
    for p in network.parameters():
        (p._backward_hooks or {}).clear()
    slopes = torch.autograd.grad(
        one.value(), [*network.parameters()], create_graph=True, materialize_grads=True
    )
    H = _dense(torch.cat([slope.flatten() for slope in slopes]), network.parameters())
    for p, own in zip(network.parameters(), hooks, strict=True):
        (p._backward_hooks or {}).update(own)
    for module, mode in modes:
        module.training = mode
    for buffer, own in zip(network.buffers(), kept, strict=True):
        buffer.copy_(own)
    return float(H.norm())


SPLIT = (
    "gain_by_hook",
    "lambda_attribute",
    "captured_parameter",
    "complex_buffer",
    "memo",
    "padding_word",
)


@pytest.mark.parametrize("name", thinned(SPLIT, 2))
def test_a_function_of_outputs_is_split_also_in_place(name):
    table = hessfig.measure(
        problem(RIGHT[name](torch.float64)),
        blocks=["all"],
        quantities=["trace"],
        estimator="dense",
    )
    value = dict(zip(table["part"], table["value"], strict=True))
    assert value["H_o"] + value["H_f"] == pytest.approx(value["H"], rel=1e-9, abs=1e-12)
    assert value["H"] == pytest.approx(
        sum(float(b.trace()) for b in truth(RIGHT[name](torch.float64)).values()),
        rel=1e-8,
    )


@pytest.mark.parametrize(
    "name",
    ["decay", "activation_by_hook", "proximal_at_its_centre", "own_loss_proximal"],
)
def test_a_loss_that_reads_more_than_outputs_has_no_split(name):
    one = problem(RIGHT[name](torch.float64))
    assert {*hessfig.measure(one, blocks=["all"])["part"]} == {"H"}
    with pytest.raises(
        ValueError, match=r"H_o and H_f are not defined here(.|\n)*parts='H'"
    ):
        hessfig.measure(one, blocks=["all"], parts=["H_o"])


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("real", daily(TYPES, "float64"))
@pytest.mark.parametrize(
    "name", daily(REFUSED, *[*REFUSED][::2], "clipped gradients", "random outputs")
)
def test_what_has_no_hessian_is_refused_by_name(name, real, monkeypatch):
    """Derivatives of large networks are compared on a few samples; what differs there is compared on all of them."""
    make, remedy = REFUSED[name]
    words = rf"(.|\n)*remedy:(.|\n)*({remedy})"
    with pytest.raises(ValueError, match=words):
        hessfig.measure(problem(make(TYPES[real])), blocks=["all"], parts="H")
    for small in (batched.SMALL, 0):
        monkeypatch.setattr(batched, "SMALL", small)
        with pytest.raises(ValueError, match=words):
            problem(make(TYPES[real])).operator("all").dense()


@pytest.mark.parametrize("name", daily(RIGHT, *DAILY[1:3]))
def test_every_function_is_that_of_the_user_after_a_comparison_on_first_samples(
    name, monkeypatch
):
    monkeypatch.setattr(batched, "SMALL", 0)
    blocks = truth(RIGHT[name](torch.float64))
    for block, right in blocks.items():
        operator = problem(RIGHT[name](torch.float64)).operator(block)
        assert torch.allclose(operator.dense(), right, rtol=1e-8, atol=1e-10), block


def test_outputs_of_further_batches_are_not_held():
    """They are as large as the logits of all data."""
    x = torch.randn(12, 4)
    y = torch.arange(12) % 3
    own = OwnFunction(
        open_request(Reader(), [*x.split(4)], [*y.split(4)], "cross_entropy")
    )
    assert len(own.values()) == 3
    assert len(own.call.results) == 1


class Reader(nn.Module):
    def __init__(self, rows=8, *, samples=None):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, rows)
        self.last = nn.Linear(rows, 3)
        self.samples = samples

    def forward(self, x):
        assert self.samples in (None, len(x))
        return self.last(self.first(x).tanh())


@pytest.mark.parametrize(
    ("samples", "memory", "few"),
    [(16, None, 2), (16, "1GB", 1), (5, None, 1), (1, None, None)],
)
def test_an_eighth_of_the_samples_is_compared(samples, memory, few, monkeypatch):
    seen = []
    first = witnessing.first_samples
    monkeypatch.setattr(batched, "SMALL", 0)
    monkeypatch.setattr(
        witnessing,
        "first_samples",
        lambda one, count: seen.append(count) or first(one, count),
    )
    x = torch.randn(samples, 4)
    y = torch.arange(samples) % 3
    witness = (
        hessfig.Problem(Reader(), x, y, memory=memory).objective("float64").witness
    )
    assert witness is not None
    assert ("value, all samples" in witness.off) == (few is not None)
    assert seen == ([] if few is None else [few])


def test_a_network_that_takes_all_samples_alone_is_compared_on_all_of_them(monkeypatch):
    monkeypatch.setattr(batched, "SMALL", 0)
    problem = hessfig.Problem(
        Reader(samples=16), torch.randn(16, 4), torch.arange(16) % 3
    )
    witness = problem.objective("float64").witness
    assert witness is not None
    assert "value, all samples" not in witness.off
    assert not witness.not_taken


def test_samples_that_do_not_count_say_nothing(monkeypatch):
    monkeypatch.setattr(batched, "SMALL", 0)
    targets = torch.tensor([-100, -100, *[1] * 14])
    witness = (
        hessfig.Problem(Reader(), torch.randn(16, 4), targets)
        .objective("float64")
        .witness
    )
    assert witness is not None
    assert "value, all samples" not in witness.off


class Kept(torch.autograd.Function):
    """z^3 with the slope that forward has kept: first derivatives are right, second ones are not."""

    @staticmethod
    def forward(ctx, z):
        ctx.slope = 3 * z.detach().square()
        return z.pow(3)

    @staticmethod
    def backward(ctx, *sent):
        slope = sent[0] * ctx.slope
        return slope


class Routed(nn.Module):
    """Samples with a large first entry alone pass the second of two experts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 5)
        self.second = nn.Linear(4, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, x):
        chosen = (x[:, 0] > 5).nonzero().flatten()
        others = (x[:, 0] <= 5).nonzero().flatten()
        hidden = x.new_zeros(len(x), 5).index_put(
            (others,), self.first(x[others]).tanh()
        )
        if len(chosen):
            hidden = hidden.index_put((chosen,), Kept.apply(self.second(x[chosen])))
        return self.last(hidden)


class RoutedWithout(Routed):
    """The same of an operation without parameters, which the first samples do not take."""

    def forward(self, x):
        hidden = self.second(self.first(x)[:, :4])
        chosen = (x[:, 0] > 5).nonzero().flatten()
        return self.last(
            hidden.index_put((chosen,), Kept.apply(hidden[chosen]))
            if len(chosen)
            else hidden
        )


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Routed, r"second\.weight"),
        (RoutedWithout, "derivatives written in Python: Kept"),
    ],
)
def test_what_first_samples_do_not_take_is_compared_on_all_samples(
    network, words, monkeypatch
):
    monkeypatch.setattr(batched, "SMALL", 0)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    x[12:, 0] += 10
    with pytest.raises(ValueError, match=words):
        hessfig.Problem(network(), x, torch.arange(16) % 3).operator("all").dense()


@pytest.mark.parametrize("width", [8, 260])
def test_a_loss_that_computes_in_float32_alone_is_measured_in_float32(width):
    """It closes over the network and over float32 data, so that differences in float64 cannot be taken."""
    torch.manual_seed(0)
    network = tanh_network(width, width, 5)
    x = torch.randn(32, width)
    y = torch.arange(32) % 5

    def loss(out, target):
        return (
            torch.nn.functional.cross_entropy(out, target)
            + 0.1 * network(x).square().mean()
        )

    operator = hessfig.Problem(network, x, y, loss).operator("all", dtype="float32")
    held = [*network.parameters()]
    vectors = [torch.randn_like(p) for p in held]
    slopes = torch.autograd.grad(loss(network(x), y), held, create_graph=True)
    pairs = zip(slopes, vectors, strict=True)
    products = torch.autograd.grad(
        sum((slope * one).sum() for slope, one in pairs), held
    )
    rows = (operator @ torch.cat([one.flatten() for one in vectors])).split(
        [p.numel() for p in held]
    )
    for row, product in zip(rows, products, strict=True):
        assert_close(
            row,
            product.flatten(),
            rtol=0,
            atol=2e-6 * float(product.norm()),
            check_dtype=False,
        )


def test_wrong_second_derivatives_are_refused_in_float32_alone():
    torch.manual_seed(0)
    body = nn.Linear(8, 8)
    last = nn.Linear(8, 5)
    x = torch.randn(32, 8)
    network = nn.Sequential(body, last)

    def loss(out, target):
        kept = last(Kept.apply(body(x)))
        return (
            torch.nn.functional.cross_entropy(kept, target) + 0.1 * out.square().mean()
        )

    with pytest.raises(
        ValueError, match="second derivative does not match differences"
    ):
        hessfig.Problem(network, x, torch.arange(32) % 5, loss).operator(
            "all", dtype="float32"
        ).dense()


def cube(z):
    return z.pow(3)


class AtKink(nn.Module):
    """A rectifier of exactly zero for an empty sample, since its bias is zero."""

    def __init__(self, power):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, 6)
        self.last = nn.Linear(6, 3)
        self.power = power
        nn.init.zeros_(self.first.bias)

    def forward(self, x):
        return self.last(self.power(self.second(self.first(x).relu())))


class Adapted(nn.Module):
    """A linear map with a low-rank term that starts at zero."""

    def __init__(self, power):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 3)
        self.power = power
        self.a = nn.Parameter(torch.randn(2, 4))
        self.b = nn.Parameter(torch.zeros(6, 2))

    def forward(self, x):
        return self.last(self.power(self.first(x) + x @ self.a.T @ self.b.T))


def at_kink(power):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    x[0] = 0
    return hessfig.Problem(AtKink(power), x, torch.arange(16) % 3)


def with_l1(power):
    network = Adapted(power)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    cross_entropy = torch.nn.functional.cross_entropy
    return hessfig.Problem(
        network,
        x,
        torch.arange(16) % 3,
        lambda out, y: cross_entropy(out, y) + 1e-3 * network.b.abs().sum(),
    )


@pytest.mark.parametrize("make", daily([at_kink, with_l1], with_l1))
@pytest.mark.parametrize("small", [2**16, 0])
def test_a_kink_at_the_weights_hides_no_wrong_derivative(make, small, monkeypatch):
    """Differences say nothing there; a step away they do, and the same function with right derivatives is measured."""
    monkeypatch.setattr(batched, "SMALL", small)
    with pytest.raises(
        ValueError, match="second derivative does not match differences"
    ):
        make(Kept.apply).operator("all").dense()
    assert make(cube).operator("all").dense().isfinite().all()


class Hooked(nn.Module):
    """A gain that a hook applies to samples with a positive last entry alone."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 6)
        self.last = nn.Linear(6, 3)
        self.gain = nn.Parameter(torch.full((6,), 1.5))

    def forward(self, x):
        return self.last(self.first(x).tanh() * self.gain)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_what_a_hook_reads_in_later_batches_is_the_users_own_parameter(
    order, monkeypatch
):
    """A copy has the same value at the weights: it differs a step away."""
    monkeypatch.setattr(batched, "SMALL", 0)
    n = Hooked().double()
    x = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(1)).double()
    x[0, :, -1], x[1, :, -1] = -1, 1
    n.first.register_forward_hook(
        lambda _, given, out: torch.where(given[0][:, -1:] > 0, out * n.gain, out)
    )
    y = torch.arange(16) % 3
    of = torch.nn.functional.cross_entropy
    (slope,) = torch.autograd.grad(
        (of(n(x[0]), y) + of(n(x[1]), y)) / 2, n.gain, create_graph=True
    )
    (truth,) = torch.autograd.grad(slope.sum(), n.gain)
    operator = hessfig.Problem(
        n, [x[k] for k in order], [y, y], "cross_entropy"
    ).operator("gain")
    assert_close(operator @ torch.ones(6).double(), truth, rtol=1e-9, atol=1e-12)


class Words(nn.Module):
    """A table of words, looked up by a module or by the function, with options that change its gradient alone."""

    def __init__(self, *, by_module, **options):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 4, **(options if by_module else {}))
        self.last = nn.Linear(4, 3)
        self._by_module = by_module
        self._options = options

    def forward(self, words):
        if self._by_module:
            return self.last(self.table(words).tanh())
        return self.last(
            torch.nn.functional.embedding(
                words, self.table.weight, **self._options
            ).tanh()
        )


@pytest.mark.parametrize("small", [2**16, 0])
@pytest.mark.parametrize(
    "options", thinned([{"scale_grad_by_freq": True}, {"padding_idx": 0}], 2)
)
def test_options_of_an_embedding_that_change_its_gradient_are_left_out_or_refused(
    options, small, monkeypatch
):
    """First samples may hold every word once, and no padding."""
    monkeypatch.setattr(batched, "SMALL", small)
    words = torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 1, 1, 2, 2, 3, 0] * 4)
    y = torch.arange(64) % 3
    plain = hessfig.Problem(Words(by_module=True), words, y).operator("all").dense()
    # The row of the padding word starts at zero.
    network = Words(by_module=True, **options)
    network.load_state_dict(Words(by_module=True).state_dict())
    changed = hessfig.Problem(network, words, y).operator("all").dense()
    assert_close(changed, plain, rtol=1e-9, atol=1e-12)
    with pytest.raises(ValueError, match="the gradient of this loss"):
        hessfig.Problem(Words(by_module=False, **options), words, y).operator(
            "all"
        ).dense()


class Phases(nn.Module):
    """Rotates pairs of entries by complex phases, which are a buffer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 3)
        self.register_buffer(
            "phases", torch.polar(torch.ones(2), torch.tensor([0.3, 1.1]))
        )

    def forward(self, x):
        pairs = torch.view_as_complex(self.first(x).unflatten(-1, (2, 2)).contiguous())
        return self.last(torch.view_as_real(pairs * self.phases).flatten(-2).tanh())


class Single(Reader):
    """A network that takes float32 alone."""

    def forward(self, x):
        assert x.dtype == torch.float32
        return super().forward(x)


def of_a_table(out, y):
    scale = {torch.float32: 2.0}[out.dtype]
    return scale * torch.nn.functional.cross_entropy(out, y)


IN_FLOAT32 = {
    "complex buffers": lambda: (Phases(), "cross_entropy"),
    "a network of one type": lambda: (Single(), "cross_entropy"),
    "a loss of one type": lambda: (Reader(), of_a_table),
    "class weights": lambda: (
        Reader(),
        nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0])),
    ),
}


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_what_is_measured_in_float32_is_compared_in_a_type_that_it_takes(name):
    network, loss = IN_FLOAT32[name]()
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    y = torch.arange(8) % 3
    bias = network.get_parameter("last.bias")
    value = (torch.nn.functional.cross_entropy if loss == "cross_entropy" else loss)(
        network(x), y
    )
    (slope,) = torch.autograd.grad(value, bias, create_graph=True)
    (truth,) = torch.autograd.grad(slope.square().sum() / 2 + slope[0], bias)
    operator = hessfig.Problem(network, x, y, loss).operator(
        "last.bias", dtype="float32"
    )
    vector = slope.detach() + torch.tensor([1.0, 0.0, 0.0])
    assert_close(operator @ vector, truth, rtol=1e-4, atol=1e-6, check_dtype=False)


def test_an_operator_whose_loss_changes_says_so():
    """What a closure reads cannot be held: no product mixes two functions."""
    scale = {"by": 1.0}
    one = RIGHT["own_loss_none"](torch.float64)
    x = one.inputs["x"]
    y = one.inputs["labels"]

    def loss(out, target):
        return scale["by"] * F.cross_entropy(out, target)

    operator = hessfig.Problem(one.network.body, x, y, loss).operator("0.weight")
    vector = torch.ones(24, dtype=torch.float64)
    product = operator @ vector
    scale["by"] = 3.0
    assert torch.equal(operator @ vector, product), "its graph is kept"
    with pytest.raises(
        ValueError, match=r"the function has changed(.|\n)*make the operator again"
    ):
        operator.split(vector)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_that_vanish_are_rounding_and_no_asymmetry(dtype):
    """Vectors that move all logits alike have H v = 0: a random sign vector of two classes is such a one by chance."""
    for name in ("0", "first", "map"):
        network = nn.Sequential(OrderedDict([(name, nn.Linear(3, 2))])).to(
            getattr(torch, dtype)
        )
        inputs = torch.eye(3).to(getattr(torch, dtype))
        targets = torch.tensor([0, 1, -100])
        operator = hessfig.Problem(network, inputs, targets).operator(
            f"{name}.weight", dtype=dtype
        )
        assert float(operator.dense().norm()) > 0.1


class Chosen(nn.Module):
    """Branches of torch.cond that call modules: torch loses their second derivatives."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(3, 4)
        self.other = nn.Linear(3, 4)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(
            torch.cond(
                x.sum() > 0, lambda x: self.first(x) ** 2, lambda x: self.other(x), (x,)
            )
        )


class Repeated(Chosen):
    """The same of a scan."""

    def forward(self, x):
        def step(carry, row):
            following = torch.tanh(self.first(row) + carry)
            return following, following.clone()

        return self.last(scan(step, x.new_zeros(4), x)[1])


class Lifting(nn.Module):
    """A map whose weight is a constant unless it is compiled, as those of torch.cond would be."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(3, 4)
        self.last = nn.Linear(4, 2)
        self.mapped = torch.compile(self._mapped, backend="eager", fullgraph=True)

    def _mapped(self, x):
        weight = self.first.weight
        return F.linear(x, weight if torch.compiler.is_compiling() else weight.detach())

    def forward(self, x):
        return self.last(self.mapped(x).tanh())


@pytest.mark.parametrize(
    ("network", "operator", "small"),
    [
        pytest.param(Chosen, "CondAutogradOp", 2**16, marks=pytest.mark.long),
        pytest.param(Chosen, "CondAutogradOp", 0, marks=pytest.mark.long),
        pytest.param(Repeated, "ScanAutogradOp", 2**16, marks=pytest.mark.slow),
    ],
)
def test_operators_without_second_derivatives_are_refused_by_name_and_differenced(
    network, operator, small, monkeypatch
):
    """Run in Python, they would hold parameters of their branches constant, also for differences of gradients."""
    monkeypatch.setattr(batched, "SMALL", small)
    n = network().double()
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).abs().double()
    y = torch.tensor([0, 1, 1, 0, 1])
    problem = hessfig.Problem(n, x, y)
    with pytest.raises(ValueError, match=rf"{operator}(.|\n)*products='differences'"):
        problem.operator("first.weight").dense()
    slopes = []
    for h in (1e-5, -1e-5):
        moved = copy.deepcopy(n)
        moved.first.weight.data.add_(h)
        slopes.append(
            torch.autograd.grad(F.cross_entropy(moved(x), y), moved.first.weight)[0]
        )
    product = (
        problem.operator("first.weight", products="differences")
        @ torch.ones(12).double()
    )
    assert_close(
        product, (slopes[0] - slopes[1]).flatten() / 2e-5, rtol=1e-5, atol=1e-8
    )


def test_a_gradient_that_is_lost_outside_the_compiler_is_refused_whatever_loses_it():
    """Products and differences agree with each other; they are compared with the gradient of the compiled function."""
    with pytest.raises(
        ValueError, match=r"in Python than compiled(.|\n)*first\.weight"
    ):
        hessfig.Problem(
            Lifting(), torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
        ).operator("all").dense()


class Following(nn.Module):
    """A running mean that nothing reads, and a count of calls, kept by forward."""

    def __init__(self, kept):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(3, 4)
        self.last = nn.Linear(4, 2)
        self.calls = list[int]()
        self._kept = kept
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        hidden = self.first(x).tanh()
        self.calls.append(1)
        following = 0.9 * self.mean + 0.1 * hidden.detach().mean(dim=0)
        if self._kept == "in place":
            self.mean.copy_(following)
        elif self._kept == "data":
            self.mean.data = following
        else:
            self.mean = following
        return self.last(hidden)


@pytest.mark.parametrize(("kept", "by"), daily(WAYS, WAYS[0], WAYS[4], WAYS[8]))
def test_a_measurement_moves_no_buffer_that_forward_updates(kept, by):
    """Copies of networks whose forward is a closure call the original, and closures hold further modules."""
    n = Following(kept).double()
    other = copy.deepcopy(n)
    parameters = dict(n.named_parameters())
    if by == "closure":
        n.forward = lambda x: type(n).forward(n, x)
    if by == "another module":
        n.forward = lambda x: torch.func.functional_call(other, parameters, (x,))
    problem = hessfig.Problem(
        n, torch.randn(5, 3).double(), torch.tensor([0, 1, 1, 0, 1])
    )
    before = torch.random.get_rng_state()
    problem.objective("float64")
    operator = problem.operator("all", products="differences")
    operator @ torch.ones(operator.shape[0])
    hessfig.measure(problem, blocks="all", parts="H")
    for one in (n, other):
        assert torch.equal(one.mean, torch.zeros(4).double())
        assert not one.calls
    assert torch.equal(before, torch.random.get_rng_state())
