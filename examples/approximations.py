"""Compare K-FAC, Shampoo, Adam and others with a Hessian block of a trained network, then prune by them."""

import torch
from torch import nn

import hessfig

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
inputs, targets = torch.randn(64, 8), torch.randint(0, 3, (64,))
optimiser = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(300):
    optimiser.zero_grad()
    nn.functional.cross_entropy(network(inputs), targets).backward()
    optimiser.step()
problem = hessfig.Problem(network, inputs, targets)

# NAME_angle is the cosine between the approximation NAME and the block: 1 is the same
# matrix up to a scale.
table = hessfig.measure(
    problem, blocks=["0.weight"], parts="H_o", quantities=["approximations"]
)
angles = table[table["quantity"].str.endswith("_angle")].sort_values(
    "value", ascending=False
)
for name, value in zip(angles["quantity"], angles["value"], strict=True):
    print(f"{name.removesuffix('_angle'):20s} cosine {value:.3f}")

# "pruning" sets every weight to zero in turn, and correlates the true rise of the loss
# with what saliencies predict.
table = hessfig.measure(problem, blocks=["0.weight"], quantities=["pruning"])
ranks = table[
    table["quantity"].isin(
        ["magnitude_correlation", "obd_hessian_correlation", "obs_hessian_correlation"]
    )
]
print(ranks[["quantity", "value", "error"]].to_string())
