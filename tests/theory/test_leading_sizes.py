"""The leading terms of H(V, V) and H(Q, Q) of a whole network, next to dense Hessians by automatic differentiation."""

from __future__ import annotations

import pytest
import torch
from torch.func import functional_call

from hessfig.config.compose.job import compose
from hessfig.curvature.problem import Objective, scored_outputs
from hessfig.states.initialised import initialised
from scripts.pages.leading_sizes import leading_norms

SMALL = ("model.d_model=4", "task.digits=1", "task.batch_size=5")
MIXINGS = {
    "softmax": (),
    "entmax15": ("model.attention=entmax15",),
    "off by one": ("model.attention=off_by_one",),
    "sigmoid with bias": ("model.attention=sigmoid", "model.attention_bias=log_length"),
    "sigmoid": ("model.attention=sigmoid",),
    "sparsemax": ("model.attention=sparsemax",),
    "linear": ("model.attention=linear",),
    "softcap": ("model.scores=softcap",),
    "hot": ("model.temperature=0.5",),
}


def objective_of(*words: str, sigma: float) -> Objective:
    return initialised(compose(["sweep=sigma", *SMALL, *words]).config, sigma=sigma, seed=1)


def dense_norm(objective: Objective, name: str) -> float:
    """Return the norm of one parameter's block of the whole Hessian."""
    network, batch = objective.network, objective.batch

    class Scored(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self) -> torch.Tensor:
            return objective.loss(scored_outputs(self.inner, batch.inputs, batch.scored), batch.targets)

    scored = Scored()
    found = torch.func.hessian(lambda one: functional_call(scored, {f"inner.{name}": one}, ()))(
        dict(network.named_parameters())[name]
    )
    return float(found.norm())


@pytest.mark.parametrize("name", MIXINGS)
def test_leading_terms_are_the_norms_at_small_sigma(name: str) -> None:
    objective = objective_of(*MIXINGS[name], sigma=1e-3)
    leading = leading_norms(objective)
    assert leading.value == pytest.approx(dense_norm(objective, "layers.0.attn.v.weight"), rel=1e-2)
    assert leading.query == pytest.approx(dense_norm(objective, "layers.0.attn.q.weight"), rel=1e-2)


def test_at_larger_sigma_they_are_not() -> None:
    objective = objective_of(sigma=2.0)
    measured = dense_norm(objective, "layers.0.attn.q.weight")
    assert leading_norms(objective).query != pytest.approx(measured, rel=0.2)
