"""Reproducibility without side effects: random streams, memory order, settings of the process."""

import hashlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy
import torch
from torch import Generator, Tensor, nn

from hessfig.record import FROBENIUS

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")


def stream(seed: int, *names: object) -> torch.Generator:
    """Return a CPU generator whose state depends on `seed` and `names` alone.

    Names are joined by their `repr`, so that `stream(0, "W_Q", 1)` and `stream(0,
    "W_Q", "1")` differ, and adding a layer or a grid point never shifts the draws of
    another one.
    """
    digest = hashlib.sha256(repr((int(seed), *map(repr, names))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def probe_stream(
    seed: int,
    quantity: str,
    sigma: float | None,
    layer: int,
    col: str,
    *,
    step: int | None = None,
) -> torch.Generator:
    """Return the generator for the probes of a column; every quantity, state and column has its own."""
    names = ("probes",) if quantity == FROBENIUS else ("probes", quantity)
    steps = () if step is None else ("step", step)
    return stream(seed, *names, sigma, layer, str(col), *steps)


def row_major(tensor: Tensor) -> Tensor:
    """Return the tensor in row-major memory order: the tensor itself if it has this order, otherwise a copy.

    Products with the same matrix in another order differ in their last bits, for sizes
    that depend on the processor. Tensor.contiguous() is not sufficient: it keeps the
    strides of axes of length one, from which torch concludes that a picture with one
    channel is channels-last.
    """
    if is_row_major(tensor):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def is_row_major(tensor: Tensor) -> bool:
    """Whether the tensor has the strides of a new tensor of its shape; True for tensors without strides (sparse)."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return True
    # The next test is slower.
    plain = tensor.is_contiguous() and min(tensor.shape, default=2) > 1
    return plain or tensor.stride() == torch.empty(tensor.shape, device="meta").stride()


def lay_out(module: nn.Module) -> nn.Module:
    """Bring the parameters and buffers of a module into row-major order; return the module."""
    for tensor in (*module.parameters(), *module.buffers()):
        if not is_row_major(tensor):
            tensor.data = row_major(tensor.data)
    return module


# Threads take turns: torch swaps weights in a module, and forward mode is global.
TURN: Any = threading.RLock()


def in_turn(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """Return the same function, in which threads take turns."""

    @wraps(function)
    def alone(*given: Inputs.args, **named: Inputs.kwargs) -> Output:
        with TURN:
            return function(*given, **named)

    return alone


def _renew_turn() -> None:
    """Free TURN in a forked process, where a thread of the parent that held it does not exist."""
    if not TURN._is_owned():
        TURN._at_fork_reinit()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_renew_turn)


class OfTheProcess:
    """A context for a setting of the whole process. The first thread enters it, and the last thread leaves it.

    This way, threads that need the setting at the same time do not restore each other's
    values.
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
    """Limit torch to one thread, because with several threads sums are split, and hence rounded, differently.

    If the limit is one already, it is not set again: a new Python thread takes the
    number that was set last.
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
    """Restore the global generators of torch, NumPy and Python at the end of the block."""
    if torch.cuda.is_initialized():
        cards = list(range(torch.cuda.device_count()))
    else:
        cards = []
    with TURN, torch.random.fork_rng(devices=cards) if cards else nullcontext():
        draws = torch.default_generator.get_state()
        python, arrays = random.getstate(), numpy.random.get_state()  # noqa: NPY002 - the global one, the caller's
        try:
            yield
        finally:
            torch.default_generator.set_state(draws)
            random.setstate(python)
            numpy.random.set_state(arrays)  # noqa: NPY002


States = tuple[Any, ...]
NO_STATES: States = (None, None, None)


def global_states() -> States:
    """Return the states of the global generators of torch, Python and NumPy, which can be compared."""
    arrays: Any = numpy.random.get_state()  # noqa: NPY002 - the global one, the caller's
    kind, keys, *others = arrays
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    torchs = tuple(
        one.cpu().numpy().tobytes() for one in (torch.get_rng_state(), *cards)
    )
    return torchs, random.getstate(), (kind, keys.tobytes(), *others)


@contextmanager
def drawing_from(states: States) -> Iterator[None]:
    """Start global generators from states of `global_states`, except for None; the caller restores them."""
    torchs, python, arrays = states
    if torchs is not None:
        torch.set_rng_state(_bytes(torchs[0]))
        for number, card in enumerate(torchs[1:]):
            torch.cuda.set_rng_state(_bytes(card), number)
    if python is not None:
        random.setstate(python)
    if arrays is not None:
        kind, keys, *others = arrays
        numpy.random.set_state((kind, numpy.frombuffer(keys, numpy.uint32), *others))  # noqa: NPY002
    yield


def _bytes(state: bytes) -> Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


@contextmanager
def global_draws(generator: Generator) -> Iterator[None]:
    """Seed torch's global CPU generator from `generator`, for code that draws from it, and restore it at the end."""
    seed = int(torch.randint(2**62, (), generator=generator, device="cpu"))
    with TURN, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def made_on(device: torch.device) -> AbstractContextManager[object]:
    """Create tensors without a named device on `device`, if the caller's default device is of another kind."""
    return nullcontext() if torch.get_default_device().type == device.type else device
