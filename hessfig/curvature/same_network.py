"""Engines that rebuild a network prove that it is the same network: equal outputs on its first sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from hessfig.curvature.problem import Problem

SEQUENCES = 2
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}


class OtherNetwork(ArithmeticError):
    """The network computes something else than the engine that rebuilt it."""


def check_same(problem: Problem, outputs: Tensor, engine: str) -> None:
    """Compare `outputs` (batch, scored, width) with the network's own at the first SEQUENCES sequences.

    Raises OtherNetwork when they differ by more than rounding, relative to the largest; numbers that are not finite
    cannot tell.
    """
    with torch.no_grad():
        network, inputs = problem.layered, problem.batch.inputs[:SEQUENCES]
        own = network.from_hidden(network.hidden(inputs, 0), 0, problem.batch.scored)
    found = outputs[: len(own)].reshape(own.shape).to(own)
    finite = own.isfinite() & found.isfinite()
    off = float((own - found).abs()[finite].max()) if finite.any() else 0.0
    scale = float(own.abs()[finite].max()) if finite.any() else 0.0
    if off > _ROUNDING.get(own.dtype, 1e-2) * scale:
        raise OtherNetwork(
            f"the network's outputs differ from those of the {engine} by {off / scale:.2g}: its forward pass is not "
            "the one the engine knows; estimator=hutchinson estimator.products=curvlinops differentiates it as it is"
        )
