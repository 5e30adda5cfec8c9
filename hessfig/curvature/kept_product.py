"""Products with one vector at a time through kept graphs, in no more contexts than the code of the graphs needs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.batched import is_small, undisturbed
from hessfig.curvature.double_backward import differentiable_twice, is_narrow
from hessfig.curvature.implicit_matrix import is_followed
from hessfig.curvature.problem import Objective
from hessfig.rng import TURN, one_thread

_LIBRARIES = {"torch", "hessfig", *sys.stdlib_module_names} - {"random"}
_WATCHED = 3  # products; a collection of garbage, or a signal, may run code of others in one of them


class KeptProduct:
    """v -> A v through kept graphs, where code of others runs in every product or in none.

    Hooks of tensors, hooks that unpack saved tensors, and derivatives that users define
    are code of others: it may draw random numbers and change modes. The graphs are the
    same for every vector, and so is the code that runs. The first products are watched.
    If nothing but torch and hessfig runs in one of them, and nothing is drawn from
    torch's generator, later products restore no generator and set no mode, unless the
    caller is in a mode that changes them.

    Watching takes Python's hook for profilers, which sees this thread: on the CPU,
    torch runs backward passes in it.

    Parameters
    ----------
    multiply : callable
        The product, which creates no graph.
    objective : Objective
        Whose product it is.
    """

    def __init__(
        self, multiply: Callable[[Tensor], Tensor], objective: Objective
    ) -> None:
        device = next(objective.network.parameters()).device
        self._multiply = multiply
        self._objective = objective
        self._dtype = objective.dtype
        self._is_limited = is_small(objective.network)
        self._is_alone = False
        self._to_watch = _WATCHED if device.type == "cpu" else 0

    def needs_no_context(self, x: Tensor) -> bool:
        """Whether `alone` multiplies x: a plain vector of the type of the graphs, in no mode that changes products."""
        return (
            self._is_alone
            and type(x) is Tensor
            and x.ndim == 1
            and x.dtype == self._dtype
            and x.device.type == "cpu"
            and x.layout == torch.strided
            and not (x.requires_grad or is_followed() or _is_in_a_mode())
        )

    def alone(self, vector: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
        """Return A v, without code of others: the product alone, with one thread if the network is small."""
        with TURN:
            if self._is_limited and torch.get_num_threads() > 1:
                with one_thread():
                    return self._multiply(vector)
            return self._multiply(vector)

    def __call__(self, vector: Float[Tensor, " m"]) -> Float[Tensor, " n"]:
        """Return A v for a vector of the type and on the device of the graphs."""
        multiply = self._multiply
        with undisturbed(self._objective), differentiable_twice():
            if self._to_watch > 0 and sys.getprofile() is None:
                multiply = self._watched
            return multiply(vector).detach()

    def _watched(self, vector: Tensor) -> Tensor:
        """Return A v, and note whether code of others runs, or draws from torch's generator.

        A frame of a module whose top-level package is neither torch, hessfig nor of the standard
        library is code of others; so is a change of torch's generator, which that code may make
        from C++.
        """
        names = set[Any]()
        before = torch.default_generator.get_state()

        def note(frame: Any, event: str, _: object) -> None:
            if event == "call":
                names.add(frame.f_globals.get("__name__"))

        sys.setprofile(note)
        try:
            product = self._multiply(vector)
        finally:
            sys.setprofile(None)
        others = {str(name).partition(".")[0] for name in names} - _LIBRARIES
        draws = not torch.equal(before, torch.default_generator.get_state())
        self._is_alone = not others and not draws
        self._to_watch -= 1
        if self._is_alone:
            self._to_watch = 0
        return product


def _is_in_a_mode() -> bool:
    """Whether the caller is in a mode that changes what torch computes on the CPU, or where."""
    on_another_device = torch.empty(0).device.type != "cpu"
    return (
        on_another_device
        or torch.is_inference_mode_enabled()
        or torch.is_autocast_enabled("cpu")
        or is_narrow()
    )
