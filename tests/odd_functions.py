"""Networks and losses of others that are no function of outputs, or no function of what a copy holds."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import prune

ce = F.cross_entropy


@dataclass
class Odd:
    """A problem as its user wrote it: `value` is the loss as the user calls it; `more` goes to hessfig.Problem."""

    network: nn.Module
    value: Callable[[], Tensor]
    inputs: Any
    targets: Any = None
    loss: Any = "cross_entropy"
    more: dict[str, Any] = field(default_factory=dict)


def data(real):
    draw = torch.Generator().manual_seed(5)
    return torch.randn(8, 4, generator=draw).to(real), torch.randint(
        0, 3, (8,), generator=draw
    )


def net(real):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).to(real)


def of(network, real, loss="cross_entropy", **more):
    x, y = data(real)
    called = ce if loss == "cross_entropy" else loss
    return Odd(network, lambda: called(network(x), y), x, y, loss, more)


def decay(real):
    n = net(real)
    return of(
        n,
        real,
        lambda out, y: ce(out, y) + 0.05 * sum((p**2).sum() for p in n.parameters()),
    )


def decay_of_kept_parameters(real):
    n = net(real)
    held = [*n.parameters()]
    return of(
        n,
        real,
        lambda out, y: (
            ce(out, y) + 0.05 * torch.stack([p.pow(4).sum() for p in held]).sum()
        ),
    )


def proximal_at_its_centre(real):
    n = net(real)
    centre = [p.detach().clone() for p in n.parameters()]

    def loss(out, y):
        return ce(out, y) + 0.5 * sum(
            (p - c).square().sum() for p, c in zip(n.parameters(), centre, strict=True)
        )

    return of(n, real, loss)


def activation_by_hook(real):
    n = net(real)
    kept = dict[str, Tensor]()
    n[1].register_forward_hook(lambda m, i, o: kept.update(h=o))
    return of(n, real, lambda out, y: ce(out, y) + kept["h"].pow(2).mean())


class Auxiliary(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 6)
        self.b = nn.Linear(6, 3)
        self.aux = None

    def forward(self, x):
        h = torch.tanh(self.a(x))
        self.aux = h.square().mean()
        return self.b(h)


def activation_in_attribute(real):
    torch.manual_seed(0)
    n = Auxiliary().to(real)
    return of(n, real, lambda out, y: ce(out, y) + 0.3 * n.aux)


def attribute_after_a_run(real):
    one = activation_in_attribute(real)
    one.network(one.inputs)
    return one


class OwnLoss(nn.Module):
    def __init__(self, penalty):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
        self.penalty = penalty
        self.centre = [p.detach().clone() for p in self.body.parameters()]

    def forward(self, x, labels):
        logits = self.body(x)
        loss = 0.0
        if self.penalty == "proximal":
            pairs = zip(self.body.parameters(), self.centre, strict=True)
            loss = 0.5 * sum((p - c.to(p)).square().sum() for p, c in pairs)
        if self.penalty == "auxiliary":
            loss = 0.1 * logits.logsumexp(-1).square().mean()
        return {"loss": ce(logits, labels) + loss, "logits": logits}


def own_loss(penalty, real):
    torch.manual_seed(0)
    n, (x, y) = OwnLoss(penalty).to(real), data(real)
    batch = {"x": x, "labels": y}
    return Odd(n, lambda: n(**batch)["loss"], batch, None, None)


def gain_by_hook(real):
    n = net(real)
    n.gain = nn.Parameter(torch.full((6,), 1.5, dtype=real))
    n[0].register_forward_hook(lambda m, i, o: o * n.gain)
    return of(n, real)


def gain_by_wrapped_forward(real):
    n = net(real)
    n.gain = nn.Parameter(torch.full((3,), 1.5, dtype=real))
    n.forward = (lambda f: lambda z: f(z) * n.gain)(n.forward)
    return of(n, real)


class Lambda(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 6)
        self.b = nn.Linear(6, 3)
        self.slope = nn.Parameter(torch.ones(6))
        self.act = lambda h: torch.tanh(h * self.slope)

    def forward(self, x):
        return self.b(self.act(self.a(x)))


def lambda_attribute(real):
    torch.manual_seed(0)
    return of(Lambda().to(real), real)


def captured_parameter(real):
    n = net(real)
    w = n[0].weight
    n[1].register_forward_pre_hook(lambda m, given: (given[0] * w.square().mean(),))
    return of(n, real)


def method_of_another_module(real):
    n = net(real)
    n[1].forward = types.MethodType(
        lambda self, z: torch.tanh(z) * self.weight.mean(), n[2]
    )
    return of(n, real)


class Memo(nn.Module):
    """Computes from its parameter what it uses when it is called first."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 4))
        self.head = nn.Linear(4, 3)
        self.cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = self.w.exp()
        return self.head(torch.tanh(x * self.cache))


def memo(real):
    torch.manual_seed(0)
    return of(Memo().to(real), real)


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        angles = torch.tensor([0.3, 1.1])
        self.register_buffer("phases", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x):
        pairs = torch.view_as_complex(self.q(x).unflatten(-1, (2, 2)).contiguous())
        return self.head(
            torch.tanh(torch.view_as_real(pairs * self.phases).flatten(-2))
        )


def complex_buffer(real):
    torch.manual_seed(0)
    n = Rotary()
    for p in n.parameters():
        p.data = p.data.to(real)
    n.phases = n.phases.to(real.to_complex())
    return of(n, real)


def gradient_masks(real):
    n = net(real)
    for p in n.parameters():
        p.register_hook(lambda g: g * 0.5)
    return of(n, real)


def loss_with_own_parameter(real):
    class Temperature(nn.Module):
        reduction = "mean"

        def __init__(self):
            super().__init__()
            self.t = nn.Parameter(torch.tensor(0.7, dtype=real))

        def forward(self, out, y):
            return ce(out / self.t, y)

    return of(net(real), real, Temperature())


def loss_with_the_networks_parameter(real):
    class Shared(nn.Module):
        reduction = "mean"

        def __init__(self, head):
            super().__init__()
            self.head = head

        def forward(self, out, y):
            return ce(out, y) + self.head.weight.square().sum()

    n = net(real)
    return of(n, real, Shared(n[2]))


def module_under_two_names(real):
    torch.manual_seed(0)
    n = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 3)}).to(real)
    n["again"] = n["a"]
    n.forward = lambda x: n["b"](torch.tanh(n["again"](torch.tanh(n["a"](x)))))
    return of(n, real)


def padding_word(real):
    torch.manual_seed(0)
    n = nn.Sequential(
        nn.Embedding(5, 4, padding_idx=0), nn.Flatten(), nn.Linear(8, 3)
    ).to(real)
    with torch.no_grad():
        n[0].weight.normal_()
    words = torch.tensor([[0, 1], [2, 0], [3, 4], [0, 0]])
    y = torch.tensor([0, 2, 1, 1])
    free = nn.Sequential(nn.Embedding(5, 4), *n[1:])
    free[0].weight = n[0].weight
    return Odd(n, lambda: ce(free(words), y), words, y)


def pruned(real):
    n = net(real)
    prune.l1_unstructured(n[0], "weight", amount=0.5)
    n(data(real)[0])
    return of(n, real)


def spectrally_normalised(real):
    n = net(real)
    nn.utils.spectral_norm(n[0])
    n(data(real)[0])
    return of(n.eval(), real)


def moving_statistics(real):
    torch.manual_seed(0)
    norm = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    n = nn.Sequential(
        nn.Conv1d(3, 4, 2), norm, nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)
    ).to(real)
    x = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(1)).to(real)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    return Odd(n, lambda: ce(n(x), y), x, y)


def batches_with_a_penalty(real):
    n, (x, y) = net(real), data(real)

    def loss(out, goal):
        return ce(out, goal) + 0.1 * n[0].weight.pow(4).sum()

    batches = [(x[:5], y[:5]), (x[5:], y[5:])]
    return Odd(n, lambda: loss(n(x), y), batches, None, loss)


def raw_outputs_and_weights(real):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x):
            return self.a(x), self.b(x).square()

    torch.manual_seed(0)
    n, (x, y) = Two().to(real), data(real)

    def loss(out, goal):
        return ce(out[0] + out[1], goal) + n.a.weight.square().sum()

    return Odd(n, lambda: loss(n(x), y), {"x": x}, y, loss)


def recurrent(real):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)
            self.scale = lambda: self.lstm.weight_hh_l0.square().sum()

        def forward(self, x):
            return self.head(self.lstm(x[:, None])[0][:, 0]) * self.scale()

    torch.manual_seed(0)
    return of(Recurrent().to(real), real)


RIGHT = {
    one.__name__: one
    for one in (
        decay,
        decay_of_kept_parameters,
        proximal_at_its_centre,
        activation_by_hook,
        activation_in_attribute,
        attribute_after_a_run,
        gain_by_hook,
        gain_by_wrapped_forward,
        lambda_attribute,
        captured_parameter,
        method_of_another_module,
        memo,
        complex_buffer,
        gradient_masks,
        loss_with_own_parameter,
        loss_with_the_networks_parameter,
        module_under_two_names,
        padding_word,
        pruned,
        spectrally_normalised,
        moving_statistics,
        batches_with_a_penalty,
        raw_outputs_and_weights,
        recurrent,
    )
} | {
    f"own_loss_{penalty}": partial(own_loss, penalty)
    for penalty in ("none", "proximal", "auxiliary")
}


class Cube(torch.autograd.Function):
    """x^3 with its square kept: its second derivative exists, and is wrong."""

    @staticmethod
    def forward(ctx, x):
        ctx.square = x * x
        return ctx.square * x

    @staticmethod
    def backward(ctx, g):
        return 3 * ctx.square * g


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -0.3 * g


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return g


def with_function(function, real):
    n = net(real)
    n[1].forward = lambda z: function.apply(torch.tanh(z))
    return of(n, real)


def clipped_gradients(real):
    n = net(real)
    n[1].register_full_backward_hook(lambda m, gi, go: (gi[0].clamp(-1e-3, 1e-3),))
    return of(n, real)


def scaled_outputs_gradient(real):
    n = net(real)

    def double(module, given, out):
        if out.requires_grad:
            out.register_hook(lambda g: 2 * g)

    n[0].register_forward_hook(double)
    return of(n, real)


def scaled_by_detached_weights(real):
    n = net(real)
    return of(n, real, lambda out, y: ce(out, y) * n[0].weight.detach().square().sum())


def half_stopped(real):
    n = net(real)
    n[0].register_forward_hook(lambda m, i, o: o / 2 + o.detach() / 2)
    return of(n, real)


def weight_norm_by_hook(real):
    n = net(real)
    nn.utils.weight_norm(n[0])
    n(data(real)[0])
    return of(n, real)


def stale_tensor(real):
    n = net(real)
    n[0].halves = [n[2].weight / 2]
    n[0].register_forward_hook(lambda m, i, o: o + m.halves[0].sum())
    return of(n, real)


def random_outputs(real):
    n = net(real)
    n[1].register_forward_hook(lambda m, i, o: o + torch.randn_like(o))
    return of(n, real)


REFUSED = {
    "square kept": (partial(with_function, Cube), "differences"),
    "gradient reversal": (partial(with_function, Reverse), "give what is detached"),
    "straight through": (partial(with_function, Straight), "give what is detached"),
    "scaled by detached weights": (scaled_by_detached_weights, "give what is detached"),
    "half stopped": (half_stopped, "give what is detached"),
    "clipped gradients": (clipped_gradients, "remove hooks"),
    "scaled gradients": (scaled_outputs_gradient, "remove hooks|differences"),
    "weight_norm by hook": (weight_norm_by_hook, "parametrizations.weight_norm"),
    "stale tensor": (stale_tensor, "read self.NAME"),
    "random outputs": (random_outputs, "make it an input"),
}
