"""Follow the largest Hessian eigenvalue while a loop of your own trains a network by gradient descent."""

import torch
from torch import nn

import hessfig

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
inputs, targets = torch.randn(64, 8), torch.randint(0, 3, (64,))
optimiser = torch.optim.SGD(network.parameters(), lr=1.0)

# max_fraction=None measures every 20th step; the default skips steps that would take
# over 5 % of the time.
monitor = hessfig.Monitor(
    network,
    "cross_entropy",
    (inputs, targets),
    folder="outputs/own_training",
    every=20,
    optimiser=optimiser,
    max_fraction=None,
    quantities=["loss", "largest_eigenvalue", "stability_threshold"],
    overwrite=True,
)
for step in range(401):
    measured = monitor(step)
    if measured and step % 100 == 0:
        print(step, {name: round(value, 3) for name, value in measured.items()})
    optimiser.zero_grad()
    nn.functional.cross_entropy(network(inputs), targets).backward()
    optimiser.step()

figure = hessfig.plot(
    hessfig.read("outputs/own_training"),
    x="step",
    options={"quantity": "largest_eigenvalue"},
)
figure.savefig("own_training.png", bbox_inches="tight", dpi=150)
print("written: own_training.png")
