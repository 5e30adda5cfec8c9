"""Which digits of which sums a network gets right."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from hessfig.config import Scored
from hessfig.models.layered import scored_outputs
from hessfig.tasks.addition import scored_positions

AT_ONCE = 1000  # sums a forward pass; part of what the bits of their logits depend on


@torch.no_grad()
def right_digits(
    network: nn.Module, tokens: Int[Tensor, "sums length"], digits: int
) -> Bool[Tensor, "sums digits_plus_1"]:
    """Return where the likeliest token is the answer's digit, most significant first, each given those before it."""
    places = scored_positions(digits, Scored.answer)
    answers = tokens[:, places.start + 1 : places.stop + 1]
    device = next(network.parameters()).device
    logits = [scored_outputs(network, some.to(device), places).cpu() for some in tokens.split(AT_ONCE)]
    return torch.cat(logits).argmax(dim=-1) == answers
