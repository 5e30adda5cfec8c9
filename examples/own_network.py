"""Measure Hessian blocks of a network of your own, and compare one with torch.autograd.functional.hessian."""

import torch
from torch import nn

import hessfig

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)).double()
inputs, targets = torch.randn(64, 8, dtype=torch.float64), torch.randint(0, 3, (64,))

# One diagonal block, one off-diagonal block, and the whole Hessian, each with its parts
# H_o and H_f.
problem = hessfig.Problem(network, inputs, targets, "cross_entropy")
table = hessfig.measure(
    problem, blocks=["0.weight", ("0.weight", "2.weight"), "all"], estimator="dense"
)
print(table[["row", "col", "part", "value"]])


def loss(weight: torch.Tensor) -> torch.Tensor:
    """Return the mean loss with another first weight matrix."""
    outputs = torch.func.functional_call(network, {"0.weight": weight}, (inputs,))
    return nn.functional.cross_entropy(outputs, targets)


expected = (
    torch.autograd.functional.hessian(loss, network[0].weight.detach()).norm().item()
)
block = table[
    (table["row"] == "0.weight") & (table["col"] == "0.weight") & (table["part"] == "H")
]
measured = block["value"].item()
print(f"norm of the block of 0.weight: hessfig {measured:.12f}, torch {expected:.12f}")
