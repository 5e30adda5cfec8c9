"""Compute all eigenvalues of a small network's Hessian and of its two parts, and draw their histogram."""

import json

import matplotlib.pyplot as plt
import torch
from torch import nn

import hessfig

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
problem = hessfig.Problem(network, torch.randn(64, 8), torch.randint(0, 3, (64,)))

# "spectrum" computes the matrix and all its eigenvalues; for large networks take
# "largest_eigenvalue" and "density".
table = hessfig.measure(problem, blocks=["all"], quantities=["spectrum"])
rows = table[
    table["quantity"].isin(
        ["largest_eigenvalue", "smallest_eigenvalue", "share_negative"]
    )
]
print(rows[["part", "quantity", "value"]])

# The eigenvalues themselves are arrays; "entries" says which block and part each array
# belongs to.
arrays = table.attrs["arrays"]["spectrum"]
figure, axes = plt.subplots(figsize=(5, 3))
for number, entry in enumerate(json.loads(str(arrays["entries"]))):
    axes.hist(
        arrays[f"eigenvalues_{number}"], bins=40, histtype="step", label=entry["part"]
    )
axes.set(xlabel="eigenvalue", ylabel="number of eigenvalues", yscale="log")
axes.legend()
figure.savefig("eigenvalues.png", bbox_inches="tight", dpi=150)
print("written: eigenvalues.png")
