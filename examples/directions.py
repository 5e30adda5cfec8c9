"""Follow the loss along Hessian eigenvectors, and see how far its second-order expansion holds."""

import matplotlib.pyplot as plt
import torch
from torch import nn

import hessfig

torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3))
problem = hessfig.Problem(network, torch.randn(64, 8), torch.randint(0, 3, (64,)))

# *_ray_curvature is u.Hu for a direction u; *_ray_departure is where the expansion is
# off by a tenth.
table = hessfig.measure(problem, blocks=["all"], parts="H", quantities=["slices"])
print(table[["quantity", "index", "value"]].to_string())

arrays = table.attrs["arrays"]["slices"]
names = [str(name) for name in arrays["rays"]]
figure, panels = plt.subplots(
    1, len(names), figsize=(3 * len(names), 2.6), constrained_layout=True
)
for panel, name, place in zip(panels, names, range(len(names)), strict=True):
    panel.plot(arrays["distances"][place], arrays["losses"][place], label="loss")
    panel.plot(
        arrays["distances"][place],
        arrays["expansions"][place],
        "--",
        label="second-order expansion",
    )
    panel.set(
        title=name,
        xlabel="distance",
        ylim=(0, 2 * float(arrays["losses"][place].max())),
    )
panels[0].set_ylabel("loss")
panels[0].legend(fontsize="small")
figure.savefig("directions.png", dpi=150)
print("written: directions.png")
