"""The same bits every time, and the caller's left alone: random streams, order in memory, settings of the process."""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy
import torch
from torch import Generator, Tensor, nn

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
    for tensor in (*module.parameters(), *module.buffers()):
        if not is_row_major(tensor):
            tensor.data = row_major(tensor.data)
    return module


TURN = threading.RLock()  # threads take turns: torch swaps weights in a module, and forward mode is the process's


class OfTheProcess:
    """A context for a setting of the whole process: the first thread in enters it, the last one out leaves it.

    So that threads that need it at once do not restore what another one has set.
    """

    def __init__(self, setting: Callable[[], AbstractContextManager[None]]) -> None:
        self._setting, self._lock, self._users = setting, threading.Lock(), 0
        self._entered: AbstractContextManager[None]

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._entered = self._setting()
                self._entered.__enter__()
            self._users += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._entered.__exit__(None, None, None)


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold torch to one thread: sums over more would be split otherwise, and round otherwise.

    Where it is one already nothing is set: a thread of Python's that is new takes the number that was set last.
    """
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def kept_draws() -> Iterator[None]:
    """Leave the global generators of torch, NumPy and Python as they are, whatever draws from them."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with TURN, torch.random.fork_rng(devices=devices):
        python, arrays = random.getstate(), numpy.random.get_state()  # noqa: NPY002 - the global one, the caller's
        try:
            yield
        finally:
            random.setstate(python)
            numpy.random.set_state(arrays)  # noqa: NPY002


@contextmanager
def global_draws(generator: Generator) -> Iterator[None]:
    """Seed torch's global generator of the CPU from `generator`, for code that draws from it; it is restored."""
    seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
    with TURN, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def made_on(device: torch.device) -> AbstractContextManager[object]:
    """Make tensors for which no device is named on `device`, where the caller's default is of another kind."""
    return nullcontext() if torch.get_default_device().type == device.type else device
