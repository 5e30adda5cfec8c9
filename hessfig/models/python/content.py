"""What a factory returned, by content: the hash under which its numbers are kept, and found again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.models.protocol import Drawn
from hessfig.rng import one_thread

_DIGITS = {
    torch.float64: 6,
    torch.float32: 3,
}  # of outputs and losses: the others differ from machine to machine


def content_of(drawn: Drawn) -> str:
    """Return a hash of a network (its weights and buffers), its batches, its loss and the names of its weights.

    Code and constants that no state holds count by what they do: the size of the outputs and the loss of every batch,
    to six digits (float32: three).
    """
    found = hashlib.sha256()
    for label, thing in _parts(drawn):
        found.update(f"{label}\n".encode())
        found.update(_bytes(thing) if isinstance(thing, Tensor) else f"{thing}\n".encode())
    return found.hexdigest()


def _parts(drawn: Drawn) -> Iterator[tuple[str, Any]]:
    """Yield everything that counts: tensors, and what is printed of the rest."""
    yield from _module("network", drawn.network)
    yield from _module("loss", drawn.loss)
    for name, value in sorted(vars(drawn.loss).items()):
        if isinstance(value, bool | int | float | str | None):
            yield f"loss.{name}", value
    for weight in (*drawn.layout.weights, "all", *drawn.layout.parameters):
        yield "weight", weight
    for batch in (drawn.batch, *drawn.more):
        yield "inputs", batch.inputs
        yield "targets", batch.targets
    yield from _answers(drawn)


def _module(label: str, module: nn.Module) -> Iterator[tuple[str, Any]]:
    yield label, [(name, type(one).__qualname__) for name, one in module.named_modules()]
    yield from ((f"{label}.{name}", one) for name, one in module.named_parameters(remove_duplicate=False))
    yield from ((f"{label}.{name}", one) for name, one in module.named_buffers(remove_duplicate=False))


def _answers(drawn: Drawn) -> Iterator[tuple[str, Any]]:
    with one_thread(), torch.no_grad():
        for batch in (drawn.batch, *drawn.more):
            outputs = drawn.network(batch.inputs)
            digits = _DIGITS.get(outputs.dtype, 2)
            numbers = (outputs.double().square().mean().sqrt(), drawn.loss(outputs, batch.targets))
            yield "answers", [f"{float(number):.{digits - 1}e}" for number in numbers]


def _bytes(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous().reshape(-1)
    return f"{tensor.dtype} {tuple(tensor.shape)}\n".encode() + plain.view(torch.uint8).numpy().tobytes()
