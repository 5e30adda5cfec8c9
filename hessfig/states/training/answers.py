"""Which digits of which sums a network gets right, and which pictures."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from hessfig.config import Data, Scored, TaskConfig
from hessfig.models.layered import scored_outputs
from hessfig.tasks.addition import scored_positions
from hessfig.tasks.digits import split
from hessfig.tasks.examples import unseen_sums

AT_ONCE = 1000  # sums a forward pass; part of what the bits of their logits depend on


def right_answers(network: nn.Module, task: TaskConfig, size: int) -> Bool[Tensor, "examples places"]:
    """Return where answers to unseen examples are right: `size` sums, digit by digit, or the test pictures."""
    if task.data == Data.digits:
        return right_classes(network, task)
    return right_digits(network, unseen_sums(task, size), task.digits)


@torch.no_grad()
def right_classes(network: nn.Module, task: TaskConfig) -> Bool[Tensor, "pictures 1"]:
    """Return which test pictures (tasks.digits.split) have their own class as the likeliest."""
    held, test = next(network.parameters()), split(task.path, task.sha256)[1]
    images = torch.from_numpy(test.images).to(held)
    outputs = [scored_outputs(network, some, slice(0, 1)).cpu() for some in images.split(AT_ONCE)]
    return torch.cat(outputs).argmax(dim=-1) == torch.from_numpy(test.labels).unsqueeze(1)


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
