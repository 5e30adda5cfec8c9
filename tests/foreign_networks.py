"""Networks that are not the package's own, and their Hessians by plain automatic differentiation."""

from __future__ import annotations

from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import hessfig
from hessfig.terms import Part
from tests.double_backward import hessian, jacobian

Case = tuple[hessfig.Problem, list[Any]]


def mlp():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(5, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)
    ).double()
    weights = {
        "W_1": "0.weight",
        "top": ("0.weight", numpy.s_[:2, :]),
        "gain": "1.weight",
        "W_2": "3.weight",
    }
    problem = hessfig.Problem(
        network, torch.randn(7, 5).double(), torch.randint(0, 3, (7,)), weights=weights
    )
    return problem, ["W_1", "top", "gain", ("W_1", "W_2"), ("gain", "W_1"), "all"]


def convolutional():
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(3 * 4, 2),
    ).double()
    problem = hessfig.Problem(
        network,
        torch.randn(4, 1, 6, 6).double(),
        torch.randn(4, 2).double(),
        loss="mse",
    )
    return problem, ["0.weight", "0.bias", ("0.weight", "4.weight"), "all"]


class FusedTied(nn.Module):
    """One pre-norm transformer layer with fused queries, keys and values, and an unembedding tied to the embedding."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        return self.head(
            x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        )


def fused_and_tied():
    torch.manual_seed(2)
    tokens = torch.randint(0, 5, (3, 4))
    weights = {
        "W_Q@1": ("qkv.weight", numpy.s_[:4, :]),
        "W_K@1": ("qkv.weight", numpy.s_[4:8, :]),
        "W_V@1": ("qkv.weight", numpy.s_[8:, :]),
        "W_E": "embed.weight",
    }
    problem = hessfig.Problem(
        FusedTied().double(), tokens, tokens.roll(1, 1), weights=weights
    )
    return problem, [
        "W_Q",
        "W_V",
        ("W_Q", "W_K"),
        ("W_Q", "W_V"),
        "W_E",
        ("W_E", "W_V"),
        "all",
    ]


def encoder():
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(
        4, 2, 6, dropout=0.1, batch_first=True, activation="gelu"
    )
    network = nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(4, 3)
    )
    network = network.double().eval()
    weights = {
        "W_QKV@1": "0.layers.0.self_attn.in_proj_weight",
        "W_QKV@2": "0.layers.1.self_attn.in_proj_weight",
        "first": ["0.layers.0.linear1.weight", "0.layers.0.linear2.weight"],
    }
    problem = hessfig.Problem(
        network,
        torch.randn(2, 3, 4).double(),
        torch.randint(0, 3, (2, 3)),
        weights=weights,
    )
    return problem, ["W_QKV", ("W_QKV@1", "W_QKV@2"), "first"]


CASES = {
    "mlp": mlp,
    "convolutional": convolutional,
    "fused and tied": fused_and_tied,
    "encoder": encoder,
}


def dense_parts(problem, names):
    """Return H, H_o and H_f in whole parameters, by double backward and explicit Jacobians."""
    network = problem.network
    x = problem.inputs
    y = problem.targets
    assert isinstance(x, Tensor)
    assert isinstance(y, Tensor)
    at = [
        network.get_parameter(name).detach().clone().requires_grad_() for name in names
    ]

    def outputs():
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
            return functional_call(network, dict(zip(names, at, strict=True)), (x,))

    def loss(f):
        return (
            F.cross_entropy(f.flatten(0, -2), y.flatten())
            if problem.loss in (None, "cross_entropy")
            else F.mse_loss(f, y)
        )

    f = outputs()
    leaf = f.detach().requires_grad_()
    (slope,) = torch.autograd.grad(loss(leaf), leaf)
    slopes = jacobian(outputs, at)
    curvature = torch.autograd.functional.hessian(
        lambda z: loss(z.view_as(f)), f.detach().flatten()
    )
    return {
        Part.H: hessian(lambda: loss(outputs()), at),
        Part.H_o: slopes.T @ curvature @ slopes,
        Part.H_f: hessian(lambda: (outputs() * slope).sum(), at),
    }
