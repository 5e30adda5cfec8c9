"""The same bits every time: named random streams, whatever else is drawn, one order in memory, sums on one thread."""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy
import torch
from torch import Tensor, nn

from hessfig.record import FROBENIUS


def stream(seed: int, *names: object) -> torch.Generator:
    """Return a CPU generator whose state depends on `seed` and `names` alone.

    Names are joined by their `repr`, so `stream(0, "W_Q", 1)` and `stream(0, "W_Q", "1")` differ
    and adding a layer or a grid point never shifts the draws of another.
    """
    digest = hashlib.sha256(repr((int(seed), *map(repr, names))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def probe_stream(
    seed: int, quantity: str, sigma: float | None, layer: int, col: str, *, step: int | None = None
) -> torch.Generator:
    """Return the generator of a column's probes: every quantity, state and column has its own."""
    names = ("probes",) if quantity == FROBENIUS else ("probes", quantity)
    steps = () if step is None else ("step", step)
    return stream(seed, *names, sigma, layer, str(col), *steps)


def row_major(tensor: Tensor) -> Tensor:
    """Return the tensor in row-major order in memory: itself where it lies so, else a copy.

    A product with the same matrix in another order has other bits, and in which sizes depends on the processor.
    Tensor.contiguous() does not suffice: it leaves the strides of axes of length one, by which torch takes a picture of
    one channel for channels-last.
    """
    return tensor if is_row_major(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def is_row_major(tensor: Tensor) -> bool:
    """Whether the tensor has the strides of a new one of its shape; one without strides (sparse) has no other order."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return True
    plain = tensor.is_contiguous() and min(tensor.shape, default=2) > 1  # what follows is slower
    return plain or tensor.stride() == torch.empty(tensor.shape, device="meta").stride()


def lay_out(module: nn.Module) -> nn.Module:
    """Bring the parameters and buffers of a module into row-major order; return the module."""
    for one in (*module.parameters(), *module.buffers()):
        if not is_row_major(one):
            one.data = row_major(one.data)
    return module


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold torch to one thread: sums over more would be split otherwise, and round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the global generators of torch (those of the GPUs too), numpy and Python back where they were."""
    python, arrays = random.getstate(), numpy.random.get_state()  # noqa: NPY002 - the global one, which the caller may use
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)  # noqa: NPY002
