"""A user's own network, loss and batches, run as the user runs them: in place, nothing copied, nothing split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.curvature.double_backward import differentiable_twice, length
from hessfig.curvature.witness import Derivatives, derivatives
from hessfig.models.own.any_batch import Given, is_plain, read_batches
from hessfig.models.own.own_checks import differentiable
from hessfig.models.own.own_loss import ForeignCall, Reading
from hessfig.models.own.preserved import laid_out, preserved, requiring_gradients
from hessfig.rng import stream

TRAINABLE = "trainable"
_STEP = 1e-2  # to the point beside the weights, of each parameter's root mean square


@dataclass(frozen=True)
class Asked:
    """What a user asks to be measured: a network, its batches, the loss and names of weights, as they were given."""

    network: nn.Module
    inputs: Any
    targets: Any
    loss: Any
    weights: Any = None
    outputs: str | int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the network takes one tensor, and the loss takes what it returns: it is called without labels."""
        return self.outputs is None and is_plain(self.inputs, self.targets)

    @property
    def meant_loss(self) -> Any:
        """The loss that is meant: cross-entropy, where none is given and the network is not asked for its own."""
        return "cross_entropy" if self.loss is None and self.is_plain else self.loss

    def called(self, network: nn.Module, real: torch.dtype) -> ForeignCall:
        """Return a network, the user's or a copy, called with the batches in a type."""
        given = read_batches(self.inputs, self.targets, real)
        return ForeignCall(network, given, self.outputs, labels=not self.is_plain)


@dataclass(frozen=True)
class Directions:
    """Vectors and a step by parameter, the same for every type of numbers; `ratio` is |w| / |v|."""

    vectors: tuple[Mapping[str, Tensor], ...]
    step: Mapping[str, Tensor]
    ratio: float

    @classmethod
    def of(cls, parameters: Mapping[str, Tensor]) -> Directions:
        """Return a random and a constant vector, and a step of _STEP along another random one."""
        signs = {name: _signs("v", name, one) for name, one in parameters.items()}
        ones = {name: torch.ones_like(one) for name, one in parameters.items()}
        step = {name: _STEP * _scale(one) * _signs("step", name, one) for name, one in parameters.items()}
        count = sum(one.numel() for one in parameters.values())
        return cls((signs, ones), step, length(parameters.values()) / max(count, 1) ** 0.5)

    def like(self, leaves: Mapping[str, Tensor]) -> list[Mapping[str, Tensor]]:
        """Return the vectors in the types of some leaves."""
        return [{name: vector[name].to(one) for name, one in leaves.items()} for vector in self.vectors]


class OwnFunction:
    """The loss of a user's network as a function of the parameters that are measured, through the user's own objects.

    Weights, buffers, attributes, modes, gradients and random generators are as before after every call, to the bit.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked, self.network = asked, asked.network

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The user's own parameters that are measured, by name."""
        named = [(name, one) for name, one in self.network.named_parameters() if one.is_floating_point()]
        is_trained = isinstance(self.asked.weights, str) and self.asked.weights == TRAINABLE
        return {name: one for name, one in named if one.requires_grad or not is_trained}

    @property
    def dtype(self) -> torch.dtype:
        """Of the user's network."""
        return next(one.dtype for one in self.network.parameters() if one.is_floating_point())

    @cached_property
    def directions(self) -> Directions:
        """The vectors and the step with which it is compared."""
        return Directions.of({name: one.detach() for name, one in self.parameters.items()})

    @cached_property
    def call(self) -> ForeignCall:
        """The network with its batches, and which loss follows from them."""
        with self._kept():
            return self.asked.called(self.network, self.dtype)

    @cached_property
    def _read(self) -> Reading:
        return self.call.reading(self.asked.meant_loss)

    def values(self) -> list[float]:
        """Return the loss of every batch."""
        with self._kept(), torch.enable_grad():
            return [float(self._term(batch, 1.0).detach()) for batch in range(len(self.call.given))]

    def derivatives(self, shares: Mapping[int, float], order: int) -> Derivatives:
        """Return its derivatives at the weights, batches weighed by `shares`, by their numbers."""
        with self._kept():
            return self._derivatives(shares, self.directions.like(self.parameters), order)

    def beside(self, shares: Mapping[int, float], order: int) -> tuple[Derivatives, dict[str, Tensor]]:
        """Return value and gradient one step beside the weights, and the weights there."""
        with self._kept(), self._moved():
            there = {name: one.detach().clone() for name, one in self.parameters.items()}
            return self._derivatives(shares, (), min(order, 1)), there

    def _derivatives(self, shares: Mapping[int, float], vectors: Sequence[Any], order: int) -> Derivatives:
        terms = [partial(self._term, batch, share) for batch, share in shares.items()]
        return derivatives(terms, self.parameters, vectors, order)

    def _term(self, batch: int, share: float) -> Tensor:
        return share * self._read(*self._run(self.call.given[batch])).reshape(())

    def _run(self, one: Given) -> tuple[Any, Any]:
        """Return what the network returns, and the targets; it is given copies, which it may change."""
        own = one.mapped(torch.clone)
        return self.network(*own.arguments, **own.words), own.targets

    def reads_more(self) -> bool:
        """Whether the loss depends on parameters in another way than through the outputs (penalties, activations)."""
        if not self.call.has_outputs(self.asked.meant_loss):
            return False
        with self._kept(), torch.enable_grad(), differentiable_twice():
            slopes = self._beyond_outputs()
            with self._moved():
                return any(bool(one.count_nonzero()) for one in (*slopes, *self._beyond_outputs()))

    def _beyond_outputs(self) -> list[Tensor]:
        result, targets = self._run(self.call.given[0])
        value = self._read.loss(self._read.outputs(result).detach(), targets)
        if not value.requires_grad:
            return []
        slopes = torch.autograd.grad(value, list(self.parameters.values()), allow_unused=True)
        return [one for one in slopes if one is not None]

    @contextmanager
    def _kept(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(preserved(self.network, self.asked.loss))
            stack.enter_context(differentiable(self.network))
            stack.enter_context(laid_out(self.network))
            stack.enter_context(requiring_gradients(self.parameters.values()))
            yield

    @contextmanager
    def _moved(self) -> Iterator[None]:
        """Move the user's own weights by a step, in place, and put them back by their bytes."""
        before = {name: one.detach().clone() for name, one in self.parameters.items()}
        try:
            for name, one in self.parameters.items():
                one.data.add_(self.directions.step[name])
            yield
        finally:
            for name, one in self.parameters.items():
                one.data.copy_(before[name])


def _signs(word: str, name: str, like: Tensor) -> Tensor:
    generator = stream(0, "witness", word, name)
    bits = torch.randint(0, 2, like.shape, generator=generator, dtype=torch.int8, device="cpu")
    return (2 * bits - 1).to(like)


def _scale(parameter: Tensor) -> Tensor:
    """Return a parameter's root mean square, 1 where it is zero or no number."""
    size = parameter.double().square().mean().sqrt()
    return torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size)).to(parameter)
