"""A small training that a monitor watches, also in a process that kills itself, or that lives until it is killed."""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import nn
from torch.nn import functional as F

import hessfig

STEPS = 12
EVERY = 3
QUANTITIES = ["loss", "gradient_norm", "largest_eigenvalue"]


def data():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(12, 3, generator=generator), torch.randint(
        0, 2, (12,), generator=generator
    )


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 2))


def monitor(model, folder, **settings):
    given = {"every": EVERY, "quantities": QUANTITIES, "max_fraction": None, **settings}
    return hessfig.Monitor(model, "cross_entropy", data(), folder=folder, **given)


def train(model, watch, *, first=0, last=STEPS, **rule):
    """Train from one step to another; the dropout of a step does not depend on those before it."""
    optimiser = rule.get("optimiser") or torch.optim.SGD(model.parameters(), lr=0.3)
    (x, y), _ = data(), model.train()
    watch(first)
    for step in range(first + 1, last + 1):
        torch.manual_seed(step)
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
        watch(step)


def main(folder, killed_at):
    """Train, with checkpoints every four steps; die at the nth file that appears (0: never)."""
    from hessfig import files

    appear = files._appear
    seen = iter(range(1, 10**9))

    def counted(temporary, path):
        if next(seen) == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        appear(temporary, path)

    files._appear = counted
    model = network()
    first = 0
    for kept in sorted(folder.glob("checkpoint*.pt")):
        model.load_state_dict(torch.load(kept))
        first = int(kept.stem.removeprefix("checkpoint"))
    watch = monitor(model, folder / "watched")

    def step_done(step):
        watch(step)
        if step % 4 == 0:
            torch.save(model.state_dict(), folder / f"checkpoint{step:03}.pt")

    train(model, step_done, first=first)


def hold(folder):
    """Measure once, say so by a file beside the folder, and live on until killed."""
    watching = monitor(network(), folder, quantities=["loss"])
    watching(0)
    folder.with_name("ready").touch()
    time.sleep(600)
