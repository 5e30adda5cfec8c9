"""A stopped training has the bits of one that is not, in all sizes: what is kept has one order in memory in both."""

import pytest
import torch
from torch import nn

from hessfig.config.enums import DType
from hessfig.curvature.losses import CrossEntropy
from hessfig.curvature.problem import Batch
from hessfig.rng import stream
from hessfig.states.training import checkpoints
from hessfig.states.training.second_order import BatchLoss
from hessfig.states.training.step_rules import EIGENBASES, StepRule
from hessfig.terms import Optimiser
from tests.toys import training_config

# In which of them another order makes other bits depends on the processor.
SIZES = range(2, 18)
CLASSES = 3
SAMPLES = 7
UPDATES = dict.fromkeys(Optimiser, 3) | {
    Optimiser.soap: Optimiser.soap.facts.options["precondition_frequency"] + 3
}


class Branches(nn.Module):
    """A sum of two-layer networks, one of each width, of the first entries of an input."""

    def __init__(self, sizes):
        super().__init__()
        maps = (
            (nn.Linear(n, n), nn.Tanh(), nn.Linear(n, CLASSES, bias=False))
            for n in sizes
        )
        self.branches = nn.ModuleDict(
            {str(n): nn.Sequential(*each) for n, each in zip(sizes, maps, strict=True)}
        )

    def forward(self, inputs):
        return torch.stack(
            [branch(inputs[:, : int(n)]) for n, branch in self.branches.items()]
        ).sum(dim=0)


class Training:
    """Updates of such a network by one rule, on one batch."""

    def __init__(self, kind, sizes, dtype):
        real = getattr(torch, dtype)
        drawn = stream(0, "order")
        self.network = Branches(sizes).to(real)
        for parameter in self.network.parameters():
            parameter.data.copy_(
                torch.randn(parameter.shape, generator=drawn, dtype=torch.float64)
            )
        inputs = torch.randn(
            SAMPLES, max(sizes), generator=drawn, dtype=torch.float64
        ).to(real)
        batch = Batch(
            inputs, torch.randint(0, CLASSES, (SAMPLES,), generator=drawn), slice(None)
        )
        self.loss = BatchLoss(self.network, CrossEntropy(), batch)
        settings = {
            "learning_rate": 0.05,
            "momentum": 0.5,
            "damping": 1.0,
            "refresh": 2,
        }
        self.rule = StepRule(
            self.network, training_config("", optimiser=kind, **settings).training
        )
        self.step = 0

    def update(self):
        self.step += 1
        self.network.zero_grad(set_to_none=True)
        self.loss().backward()
        self.rule.refresh_curvature(self.step, self.loss, seed=0)
        self.rule.update(self.step)

    def kept(self):
        weights = {
            f"weight/{name}": one.detach()
            for name, one in self.network.named_parameters()
        }
        return weights | self.rule.moments()

    def go_on_from(self, path):
        found = checkpoints.read(path, key="toy")
        assert found is not None
        tensors, self.step = found
        for name, parameter in self.network.named_parameters():
            parameter.data.copy_(tensors.pop(f"weight/{name}"))
        self.rule.restore(tensors, self.step)


def assert_one_order(kept):
    """Everything is kept by rows, SOAP's eigenbases by columns, whatever returned them."""
    for key, tensor in kept.items():
        rows = tensor.mT if key.startswith(f"{EIGENBASES}.") else tensor
        assert rows.stride() == torch.empty(rows.shape).stride(), key


@pytest.mark.parametrize("dtype", [DType.float64, DType.float32])
@pytest.mark.parametrize("kind", Optimiser)
@pytest.mark.long
def test_a_training_stopped_at_every_update(tmp_path, kind, dtype):
    # Whole matrices of all would be large.
    for sizes in [[size] for size in SIZES] if kind.facts.divides else [SIZES]:
        whole = Training(kind, sizes, dtype)
        stopped = Training(kind, sizes, dtype)
        for step in range(1, UPDATES[kind] + 1):
            whole.update()
            stopped.update()
            assert_one_order(whole.kept())
            assert_one_order(stopped.kept())
            checkpoints.write(tmp_path / "kept", stopped.kept(), key="toy", step=step)
            stopped = Training(kind, sizes, dtype)
            stopped.go_on_from(tmp_path / "kept")
            assert_same(stopped.kept(), whole.kept(), f"after update {step}")


def assert_same(found, expected, where):
    assert set(found) == set(expected)
    for key, tensor in expected.items():
        assert found[key].stride() == tensor.stride(), f"{key}: {where}"
        assert torch.equal(found[key], tensor), f"{key}: {where}"
