"""The user's own function: network, loss and batches run in place, without copies and without splitting."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hessfig.curvature.double_backward import differentiable_twice, differing
from hessfig.curvature.problem import real_parameters
from hessfig.curvature.witness import AGREE, Derivatives, Directions, derivatives
from hessfig.models.own.any_batch import Given
from hessfig.models.own.border import Asked
from hessfig.models.own.own_checks import differentiable
from hessfig.models.own.own_loss import ForeignCall, Reading
from hessfig.models.own.preserved import laid_out, preserved, requiring_gradients

Shares = Mapping[int, float]  # the weights of batches, by number


class OwnFunction:
    """The loss of a user's network as a function of the measured parameters, computed by the user's own objects.

    Every call restores weights, buffers, attributes, modes, gradients and random
    generators exactly.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.network = asked.network

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that are measured, by name."""
        return {
            name: one
            for name, one in real_parameters(self.network).items()
            if one.requires_grad or not self.asked.is_trainable
        }

    @property
    def dtype(self) -> torch.dtype:
        """The floating-point type of the user's network."""
        return next(
            one.dtype for one in self.network.parameters() if one.is_floating_point()
        )

    @cached_property
    def directions(self) -> Directions:
        """The vectors and the step for the comparison with a problem."""
        return Directions.of(
            {name: one.detach() for name, one in self.parameters.items()}
        )

    @cached_property
    def call(self) -> ForeignCall:
        """The network with its batches, from which the loss follows."""
        with self._kept():
            return ForeignCall(self.asked, self.network, self.dtype, most=1)

    @cached_property
    def _read(self) -> Reading:
        return self.call.reading(self.asked.meant_loss)

    def first(self, count: int) -> OwnFunction:
        """Return the function of the first `count` samples of the first batch."""
        few = OwnFunction(self.asked)
        call = copy.copy(self.call)
        call.given = [self.call.given[0].first(count)]
        few.__dict__.update(call=call, directions=self.directions)
        return few

    def values(self, *, beside: bool = False) -> list[float]:
        """Return the loss of every batch at the weights, or `beside` them: one step away."""
        with (
            self._kept(),
            torch.enable_grad(),
            self._moved() if beside else nullcontext(),
        ):
            return self._values()

    def values_and_gradient(self, few: OwnFunction) -> tuple[list[float], Derivatives]:
        """Return the loss of every batch, and value and gradient of `few`: this function of its first samples."""
        with self._kept(), torch.enable_grad():
            return self._values(), few._derivatives({0: 1.0}, 1)

    def _values(self) -> list[float]:
        return [
            float(self._term(batch, 1.0).detach())
            for batch in range(len(self.call.given))
        ]

    def derivatives(self, shares: Shares, order: int) -> Derivatives:
        """Return the derivatives at the weights."""
        with self._kept():
            return self._derivatives(shares, order)

    def to_keep(self) -> OwnFunction:
        """Return the same function without what is as large as the network, for its gradient."""
        kept = OwnFunction(self.asked)
        call = copy.copy(self.call)
        call.results = []
        kept.__dict__.update(call=call, _read=self._read)
        return kept

    def beside(
        self, shares: Shares, order: int
    ) -> tuple[Derivatives, dict[str, Tensor]]:
        """Return value and gradient at a point one step away from the weights, and that point."""
        with self._kept(), self._moved():
            place = {
                name: one.detach().clone() for name, one in self.parameters.items()
            }
            return self._derivatives(shares, min(order, 1)), place

    def _derivatives(self, shares: Shares, order: int) -> Derivatives:
        vectors = self.directions.like(self.parameters) if order > 1 else ()
        terms = [partial(self._term, batch, share) for batch, share in shares.items()]
        return derivatives(terms, self.parameters, vectors, order)

    def _term(self, batch: int, share: float) -> Tensor:
        return share * self._read(*self._run(self.call.given[batch])).reshape(())

    def _run(self, batch: Given) -> tuple[Any, Any]:
        """Return the result of the network, and the targets; the network gets copies, which it may change."""
        own = batch.mapped(torch.clone)
        return self.network(*own.arguments, **own.words), own.targets

    def lost(self, shares: Shares) -> list[str]:
        """Return the parameters whose gradient is another one if functions that the user compiles are compiled.

        `differentiable_twice` runs them in Python, where an operator may take
        parameters for constants.
        """
        with self._kept():
            ours = self._derivatives(shares, 1).slopes
            terms = [
                partial(self._compiled, batch, share) for batch, share in shares.items()
            ]
            off = differing(ours, derivatives(terms, self.parameters, (), 1).slopes)
        return [name for name, one in off.items() if one > AGREE]

    def _compiled(self, batch: int, share: float) -> Tensor:
        with torch.compiler.set_stance("default"):
            return self._term(batch, share)

    def depends_on_batch(self) -> bool:
        """Whether an embedding has another gradient in a batch than for its samples: frequencies, or padding words."""
        with self._kept(), torch.enable_grad(), _NotedEmbeddings() as noted:
            self._term(0, 1.0)
            return noted.is_odd

    def reads_more(self) -> bool:
        """Whether the loss depends on parameters other than through the outputs (penalties, activations)."""
        if not self.call.has_outputs(self.asked.meant_loss):
            return False
        with self._kept(), torch.enable_grad(), differentiable_twice():
            if self._depends_beyond_outputs():
                return True
            with self._moved():
                return self._depends_beyond_outputs()

    def _depends_beyond_outputs(self) -> bool:
        result, targets = self._run(self.call.given[0])
        try:
            value = self._read.loss(self._read.outputs(result).detach(), targets)
        except RuntimeError:  # it differentiates the outputs in the parameters, and detached ones have no graph
            # A loss that fails in any case raises its own error.
            self._read(result, targets)
            return True
        if not value.requires_grad:
            return False
        slopes = torch.autograd.grad(
            value, list(self.parameters.values()), allow_unused=True
        )
        return any(bool(one.count_nonzero()) for one in slopes if one is not None)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        with (
            preserved(self.network, self.asked.loss),
            differentiable(self.network),
            laid_out(self.network),
            requiring_gradients(self.parameters.values()),
        ):
            yield

    @contextmanager
    def _moved(self) -> Iterator[None]:
        """Move the user's own weights by a step, in place, and restore them exactly."""
        with ExitStack() as restored:
            for name, parameter in self.parameters.items():
                own = parameter.detach().clone()
                restored.callback(parameter.data.copy_, own)
                parameter.data.add_(self.directions.step[name])
            yield


class _NotedEmbeddings(TorchFunctionMode):
    """Notes whether an embedding is called with options that change its gradient in some rows."""

    is_odd = False

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        words = kwargs or {}
        # Which hands its options on by name.
        if function is torch.nn.functional.embedding:
            self.is_odd |= (
                words["padding_idx"] is not None or words["scale_grad_by_freq"]
            )
        return function(*args, **words)
