"""Any function of a user: compute_loss(network, batch), differentiated in place, with the network's own objects."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import isfinite
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.config.machine import bytes_of
from hessfig.curvature.double_backward import no_derivative
from hessfig.curvature.losses import Inside
from hessfig.curvature.problem import Batch, Objective, Witness, real_parameters
from hessfig.curvature.rounding import LOSS
from hessfig.curvature.witness import (
    DIFFERENCES,
    Derivatives,
    Directions,
    derivatives,
    leaves_of,
    refusal_by_values,
    refusal_of,
    terms_of,
)
from hessfig.errors import UserError, first_few
from hessfig.models.own.border import OfNetwork, by_role
from hessfig.models.own.copies import only_trainable
from hessfig.models.own.in_place import InPlace, held_by
from hessfig.models.own.opaque import Image, cast_to, mapped, opaque_batches, twin
from hessfig.models.own.own_checks import (
    Raised,
    checked_network,
    not_one_number,
    shape_of,
    words_of,
)
from hessfig.models.own.own_network import CUT, Built
from hessfig.models.own.preserved import (
    methods_of,
    preserved,
    reached_by,
    requiring_gradients,
)
from hessfig.models.own.weight_names import FOUND, named_layout
from hessfig.models.own.wrappers import opener_of
from hessfig.rng import NO_STATES, drawing_from, global_states

Function = Callable[[Any, Any], Any]
WAY = "compute_loss itself, in place"


@dataclass(frozen=True)
class Asked(OfNetwork):
    """The request of a user: L(w) = sum_b w_b f(network, b) / sum_b w_b, with the function f = compute_loss.

    With `compute_outputs` g, f takes the outputs: f(g(network, b), b), and H = H_o +
    H_f is split there.
    """

    network: nn.Module
    batches: Sequence[Any]
    compute_loss: Function
    compute_outputs: Function | None = None
    batch_weights: Any = None
    weights: Any = None
    memory: float | None = None


def open_function(
    network: Any,
    batches: Any,
    compute_loss: Any,
    compute_outputs: Any = None,
    batch_weights: Any = None,
    weights: Any = None,
    memory: Any = None,
) -> Asked:
    """Return the request of a user. Raises UserError for what is not a network, a batch or a function."""
    if opener_of(network) is not None:
        raise UserError(
            "compute_loss: the network is in a wrapper of another library, which cannot be differentiated twice",
            got=type(network).__name__,
            allowed="a torch.nn.Module",
            remedy="the model inside (bridge.original_model), or hessfig.Problem(bridge, tokens)",
        )
    network = checked_network(network)
    for name, function in {
        "compute_loss": compute_loss,
        "compute_outputs": compute_outputs,
    }.items():
        if not callable(function) and (name == "compute_loss" or function is not None):
            raise UserError(
                f"{name} is not a function",
                got=shape_of(function),
                allowed="a function f(network, batch)",
                remedy=f"{name}=lambda network, batch: ...",
            )
    every = opaque_batches(batches)
    if not every:
        raise UserError(
            "batches: no batch was given",
            got=shape_of(batches),
            allowed="one batch, or a list, a DataLoader or a Dataset of batches",
            remedy="hessfig.Problem(network, batch, compute_loss=lambda network, batch: ...); None is a batch, too",
        )
    if isinstance(weights, str) and weights == FOUND:
        weights = by_role(network)
    most = None if memory is None else bytes_of(memory)
    return Asked(
        network, every, compute_loss, compute_outputs, batch_weights, weights, most
    )


class Computed(InPlace):
    """A function of the user's network and of the number of a batch: (1,) -> the loss, or the outputs.

    The function runs with the user's own network, which holds the tensors of this
    module meanwhile. Every call gets a copy of the batch, starts the global random
    generators from the same state, and leaves all that the function reaches as it was:
    attributes, closures, generators, tensors that it changes.

    Parameters
    ----------
    asked : Asked
        The request of a user.
    function : callable
        compute_loss, or compute_outputs.
    read : callable
        Checks what the function returns, and returns a tensor.
    real : torch.dtype
        The type of parameters, batches and whatever else of the network's type the
        function reaches.
    """

    # Whether the value is a sum over samples: of a batch of any type, these are not known.
    is_sum = False

    def __init__(
        self,
        asked: Asked,
        function: Function,
        read: Callable[[Any], Tensor],
        real: torch.dtype,
    ) -> None:
        functions = [
            one
            for one in (asked.compute_loss, asked.compute_outputs)
            if one is not None
        ]
        super().__init__(asked.network, real, *_reachable(functions, asked.network))
        if asked.is_trainable:
            only_trainable(self)
        # In a tuple: no module of this one.
        self._functions = (function,)
        self._read = read
        self.opaque_batches = [
            self._copied(batch, cast_to(self._like, is_data=True))
            for batch in asked.batches
        ]
        self._start, self._drawn = NO_STATES, set[int]()
        self._beyond = _Beyond(asked.network, self._beside)
        self._images = self._beyond.images(self._like)
        self._changing = set[int]()  # places among the images

    @property
    def _like(self) -> Tensor:
        """A tensor of the measured type, on the device of the parameters."""
        return next(
            one for one in self.parameters() if one.is_floating_point()
        ).detach()

    def forward(self, numbers: Tensor) -> Tensor:
        """Return the value of the function for one batch, as a tensor with at least one axis."""
        with self.running(number_of(numbers, self.opaque_batches)) as (network, batch):
            value = self._read(self._functions[0](network, batch))
            if value.ndim:
                return value
            return _to_be_added(value, self._like).reshape(1)

    @contextmanager
    def running(
        self, number: int, image: Image = twin
    ) -> Iterator[tuple[nn.Module, Any]]:
        """Put the tensors into the user's network, and yield it with a copy of a batch.

        If the function draws from global generators, these start from the same state in
        every call.
        """
        batch = self._copied(self.opaque_batches[number], image)
        with self.installed(), drawing_from(self._start):
            yield self.run_in_place, batch

    def first_values(self) -> list[Tensor]:
        """Return the value of every batch, in a first run that finds out what the function draws and changes.

        Raises UserError if the function raises, changes parameters, or returns
        something else than real numbers.
        """
        self._start, values = global_states(), list[Tensor]()
        with torch.enable_grad(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for number in range(len(self.opaque_batches)):
                values.append(self._first_value(number))
        self._start = tuple(
            one if place in self._drawn else None
            for place, one in enumerate(self._start)
        )
        self._check_parameters()
        for warning in warned:
            if CUT in str(warning.message):
                raise no_derivative(
                    RuntimeError("use_reentrant=True cuts the graph"),
                    "compute_loss uses checkpoints",
                )
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        return values

    def _first_value(self, number: int) -> Tensor:
        versions = self._versions()
        try:
            with preserved(*self._beside), self.running(number) as (network, batch):
                value = self._read(self._functions[0](network, batch)).detach()
                now = enumerate(global_states())
                self._drawn |= {
                    place for place, state in now if state != self._start[place]
                }
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise _raised(
                self._functions[0],
                _USE[self._read],
                error,
                self.opaque_batches[number],
                self._like.dtype,
            ) from error
        now = enumerate(self._versions())
        self._changing |= {
            place for place, version in now if version != versions[place]
        }
        self._images = self._beyond.images(self._like)
        return value

    def _copied(self, batch: Any, image: Image) -> Any:
        return mapped(batch, image, self.run_in_place)

    def _put(self) -> dict[int, Tensor]:
        """Put tensors into the network, and into the other modules that the function reaches."""
        images = [
            one.clone() if place in self._changing else one
            for place, one in enumerate(self._images)
        ]
        instead = {
            id(one): image
            for one, image in zip(self._beyond.tensors, images, strict=True)
        }
        self._beyond.put(instead)
        return {**instead, **super()._put()}

    def _versions(self) -> list[int]:
        """Return the versions of the tensors that the function reaches, which count changes in place."""
        return [
            one._version + image._version
            for one, image in zip(self._beyond.tensors, self._images, strict=True)
        ]

    def _check_parameters(self) -> None:
        """Raise UserError if the function changed the parameters that it was given."""
        theirs = real_parameters(self.run_in_place)
        image = cast_to(self._like)
        changed = []
        for name, one in real_parameters(self).items():
            now = one.detach().nan_to_num()
            before = image(theirs[name]).nan_to_num()
            if not torch.equal(now, before):
                changed.append(name)
        if changed:
            raise UserError(
                "compute_loss changes parameters of the network, so that it is not a function of these",
                got=first_few(changed),
                allowed="a function that leaves the parameters as they are",
                remedy="torch.func.functional_call(network, updated, inputs) for a step inside, in place of an "
                "optimiser's; an embedding without max_norm",
            )

    @property
    def draws(self) -> bool:
        """Whether the function draws from global generators."""
        return bool(self._drawn)

    def by_sample(self) -> nn.Module:
        """Raise UserError: the samples of a batch of any type are not known."""
        raise UserError(
            "quantities of single samples (Fisher matrices, Shampoo, noise_scale, ...): compute_loss takes a batch "
            "whole, and its samples are not known",
            got=f"batches such as {shape_of(self.opaque_batches[0])}",
            allowed="a loss of outputs and targets whose first axis runs over samples",
            remedy="hessfig.Problem(network, inputs, targets, loss); of approximations, diagonal, kfoc and "
            "kronecker_sum need no single samples",
        )

    def of_first_samples(self, count: int) -> tuple[nn.Module, Tensor]:
        """Return the function of the first batch: a batch counts as one sample."""
        return self, torch.zeros(count, dtype=torch.int64, device=self._like.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Computed:
        super()._apply(fn, recurse)

        def image(tensor: Tensor) -> Tensor:
            return fn(tensor.detach()).requires_grad_(tensor.requires_grad)

        self.opaque_batches = [
            self._copied(batch, image) for batch in self.opaque_batches
        ]
        self._images = self._beyond.images(self._like)
        return self


class _Beyond:
    """The tensors that functions reach besides those of the network; modules other than the network may hold them."""

    def __init__(self, network: nn.Module, things: Sequence[Any]) -> None:
        self._network = network
        known = {id(one) for one in (*network.parameters(), *network.buffers())}
        own = {*map(id, network.modules())}
        found = dict[int, Tensor]()
        self._places = list[tuple[dict[str, Any], str]]()
        for thing in reached_by(*things):
            if isinstance(thing, Tensor) and not thing.is_inference():
                found[id(thing)] = thing
            elif isinstance(thing, nn.Module) and id(thing) not in own:
                self._places += [
                    (held, name)
                    for held, name, tensor in held_by(thing)
                    if id(tensor) not in known
                ]
        self.tensors = [tensor for place, tensor in found.items() if place not in known]

    def images(self, like: Tensor) -> list[Tensor]:
        """Return what stands for each tensor: those of a type of the network are cast to that of `like`."""
        kinds = set[torch.dtype]()
        for parameter in self._network.parameters():
            if parameter.is_floating_point():
                kinds |= {parameter.dtype, _complex_of(parameter.dtype)}
        mine = {like.dtype, _complex_of(like.dtype)}
        image = cast_to(like)
        images = []
        for one in self.tensors:
            is_alike = one.dtype in mine and one.device == like.device
            if one.dtype in kinds and not is_alike:
                images.append(image(one))
            else:
                images.append(one)
        return images

    def put(self, instead: Mapping[int, Tensor]) -> None:
        """Put the tensors `instead` of those in other modules, for a caller that restores them."""
        for held, name in self._places:
            held[name] = instead.get(id(held[name]), held[name])

    def __deepcopy__(self, memo: dict[int, Any]) -> _Beyond:
        return self  # these are the user's own objects


class OfOutputs(nn.Module):
    """compute_loss(outputs, batch) as a loss of outputs and of the number of a batch."""

    reduction = "mean"

    def __init__(self, function: Function, computed: Computed) -> None:
        super().__init__()
        self._functions, self._computed = (function,), (computed,)

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the outputs of a batch, which is cast to their type."""
        computed = self._computed[0]
        with computed.running(
            number_of(targets, computed.opaque_batches), cast_to(outputs)
        ) as (_, batch):
            return _to_be_added(one_number(self._functions[0](outputs, batch)), outputs)

    def first_value(self, number: int, outputs: Tensor) -> Tensor:
        """Return the loss of the outputs of a batch.

        Raises UserError if the loss raises, does not depend on the outputs, or reads
        parameters besides these.
        """
        computed = self._computed[0]
        leaves = [outputs.detach(), *real_parameters(computed).values()]
        slopes: Sequence[Tensor | None] = [None]
        try:
            with requiring_gradients(leaves), torch.enable_grad():
                value = self(leaves[0], torch.tensor([number]))
                if value.requires_grad:
                    slopes = torch.autograd.grad(value, leaves, allow_unused=True)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            batch = computed.opaque_batches[number]
            use = "compute_loss(outputs, batch) that returns its loss"
            raise _raised(
                self._functions[0], use, error, batch, outputs.dtype
            ) from error
        self._check_slopes(value, slopes)
        return value.detach()

    def _check_slopes(self, value: Tensor, slopes: Sequence[Tensor | None]) -> None:
        if slopes[0] is None:
            raise UserError(
                "compute_loss(outputs, batch) does not depend on its outputs",
                got=f"{float(value.detach()):.6g}",
                allowed="a function of outputs that autograd can follow",
                remedy="remove .detach(), .item() and torch.no_grad() from it",
            )
        if any(slope is not None and bool(slope.any()) for slope in slopes[1:]):
            raise UserError(
                "compute_loss(outputs, batch) reads parameters besides its outputs: H_o + H_f is not H",
                got="a gradient in parameters at constant outputs",
                allowed="a function of outputs and batch alone",
                remedy="leave compute_outputs out, and give the whole: compute_loss=lambda network, batch: ...",
            )


class Computing:
    """The request of a user, with the interface of witnessing.Witnessing: hessfig.Monitor follows either.

    No copy of the network can differ from it, since the function itself is run. What is
    checked is that its second derivative is the derivative of its gradient.
    """

    def __init__(self, asked: Asked) -> None:
        weights = _batch_weights(asked.batch_weights, asked.batches)
        every = zip(asked.batches, weights, strict=True)
        counted = [(batch, weight) for batch, weight in every if weight]
        self.asked = replace(asked, batches=[batch for batch, _ in counted])
        self.weights = [weight for _, weight in counted]

    def measured(self, real: torch.dtype) -> Built:
        """Return the problem. Raises UserError if it is not one real number that autograd differentiates."""
        problem, computed, values = self._first_run(real)
        value = sum(
            share * float(one)
            for share, one in zip(problem.shares, values, strict=True)
        )
        refusal, size = _refusal(problem, value)
        taken = {"batches": len(values), "batch_weights": _shown(self.weights)}
        if computed.draws:
            taken["random"] = "global generators start every call from the same state"
        has_gradient = refusal is None or refusal.remedy == DIFFERENCES
        witness = Witness(
            WAY, taken=taken, refusal=refusal, has_gradient=has_gradient, size=size
        )
        return Built(replace(problem, witness=witness), dict(enumerate(problem.shares)))

    def gradient(self, real: torch.dtype) -> Derivatives:
        """Return value and gradient at the present weights, batches and states of generators."""
        problem = self._first_run(real)[0]
        leaves = leaves_of(problem, real_parameters(problem.network))
        return derivatives(terms_of(problem, leaves), leaves, (), 1)

    def _first_run(self, real: torch.dtype) -> tuple[Objective, Computed, list[Tensor]]:
        """Return the problem, before it is checked, its network, and the value of every batch."""
        asked = self.asked
        loss: nn.Module = Inside()
        if asked.compute_outputs is None:
            computed = Computed(asked, asked.compute_loss, one_number, real)
            values = computed.first_values()
        else:
            computed = Computed(asked, asked.compute_outputs, _one_tensor, real)
            loss = OfOutputs(asked.compute_loss, computed)
            values = [
                loss.first_value(number, one)
                for number, one in enumerate(computed.first_values())
            ]
        return self._problem(computed, loss), computed, values

    def _problem(self, computed: Computed, loss: nn.Module) -> Objective:
        numbers = [torch.tensor([number]) for number in range(len(self.weights))]
        pairs = zip(numbers, self.weights, strict=True)
        first, *more = [
            Batch(number, number, slice(None), weight) for number, weight in pairs
        ]
        layout = named_layout(computed, self.asked.weights)
        problem = Objective(
            computed, first, loss, layout, tuple(more), memory=self.asked.memory
        )
        return problem.to(next(computed.parameters()).device)

    def holds(self, built: Built, order: int) -> bool:
        """Whether a problem is the user's function: always, since it runs the function itself."""
        del built, order
        return True


def number_of(numbers: Tensor, batches: Sequence[Any]) -> int:
    """Return the number of a batch; a single batch is not read, so that no value is needed under torch.func."""
    if len(batches) > 1:
        return int(numbers[0])
    return 0


def _reachable(functions: Iterable[Any], network: nn.Module) -> list[Any]:
    """Return functions and what is preserved besides.

    That is: the attributes of their objects, the code of their class, and methods of
    the network that they call.
    """
    things = list[Any]()
    for function in functions:
        if isinstance(function, MethodType):
            owner = function.__self__
        else:
            owner = function
        code = [getattr(type(owner), name, None) for name in ("__call__", "forward")]
        methods = [
            one for each in (function, *code) for one in methods_of(each, network)
        ]
        things += [
            function,
            *([vars(owner)] if hasattr(owner, "__dict__") else []),
            *code,
            *methods,
        ]
    return things


def _batch_weights(given: Any, batches: Sequence[Any]) -> list[float]:
    """Return the weight of every batch. Raises UserError for what is not one number of at least 0 per batch."""
    if given is None:
        return [1.0] * len(batches)
    try:
        if callable(given):
            weights = [float(given(mapped(batch))) for batch in batches]
        else:
            weights = [*map(float, given)]
    except Exception as error:  # of the user's function
        raise _misfit(words_of(error), len(batches)) from error
    if (
        len(weights) != len(batches)
        or not all(isfinite(one) and one >= 0 for one in weights)
        or not sum(weights)
    ):
        raise _misfit(first_few([f"{one:.6g}" for one in weights]), len(batches))
    return weights


def _misfit(got: str, count: int) -> UserError:
    return UserError(
        "batch_weights: not one number for each batch",
        got=f"{got}; {count} batches",
        allowed="numbers of at least 0, not all of them 0, in the order of the batches; or a function of a batch",
        remedy="for example batch_weights=lambda batch: len(batch[0]); None weighs all batches alike",
    )


def _shown(weights: Sequence[float]) -> str:
    if set(weights) == {1.0}:
        return "1 each"
    return first_few([f"{one:.9g}" for one in weights])


def one_number(value: Any) -> Tensor:
    """Return a loss as a tensor of shape (). Raises UserError for anything but one real number."""
    if isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point():
        return value.reshape(())
    raise not_one_number("compute_loss", value)


def _to_be_added(value: Tensor, like: Tensor) -> Tensor:
    """Return the loss of a batch in no fewer digits than another tensor: sums over batches have those of the sum."""
    return value.to(torch.promote_types(value.dtype, like.dtype))


def _one_tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value
    raise UserError(
        "compute_outputs does not return one tensor of real numbers",
        got=shape_of(value),
        allowed="one tensor, of any shape",
        remedy="join several outputs, torch.cat([one.flatten() for one in outputs]), and take them apart in "
        "compute_loss; or leave compute_outputs out: H alone is measured",
    )


_USE: dict[Any, str] = {
    one_number: "compute_loss(network, batch) that returns its loss",
    _one_tensor: "compute_outputs(network, batch) that returns one tensor",
}


def _raised(
    function: Any, use: str, error: BaseException, batch: Any, real: torch.dtype
) -> Raised:
    name = str(real).removeprefix("torch.")
    other = "float32" if name == "float64" else "float64"
    is_type = "dtype" in str(error) or "scalar type" in str(error)
    type_remedy = f"dtype={other!r}, if that is your type; or create tensors inside it with dtype=<a parameter's>"
    return Raised(
        f"{getattr(function, '__name__', type(function).__name__)} raises {type(error).__name__} when it is called",
        got=f"{words_of(error)}; given the network in {name} and {shape_of(batch)}",
        allowed=use,
        remedy=type_remedy
        if is_type
        else "call it yourself with the same network and batch",
    )


def _refusal(problem: Objective, value: float) -> tuple[UserError | None, float]:
    """Return an error if second derivatives by autograd are not those of the function; and the size of its terms.

    Products must be symmetric, and equal to differences of gradients
    (witness.refusal_of); the gradient must be that of the values
    (witness.refusal_by_values). Raises UserError if the function changes from its first
    `value`, has no gradient, or does not depend on parameters.
    """
    parameters = real_parameters(problem.network)
    named = {name: one.detach() for name, one in parameters.items()}
    leaves = leaves_of(problem, named)
    directions = Directions.of(named)
    vectors = directions.like(leaves)
    try:
        here = derivatives(terms_of(problem, leaves), leaves, vectors, 2)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise no_derivative(error, "compute_loss has no gradient in torch") from error
    again = float(here.value)
    size = directions.size_of_terms(here)
    if abs(again - value) > LOSS.of(problem.dtype) * max(abs(value), size):
        raise UserError(
            "compute_loss is not deterministic: it changes from call to call",
            got=f"{value:.9g}, then {again:.9g}, with the same parameters and batches",
            allowed="a function of the network and the batch",
            remedy="give what changes (counters, files, caches, generators of other libraries) as data of the batch",
        )
    if not here.reached:
        raise UserError(
            "compute_loss does not depend on the network's parameters",
            got=f"{value:.6g}, detached from them or constant",
            allowed="a loss that autograd can follow back to the parameters of the network it is given",
            remedy="remove .detach(), .item() and torch.no_grad(); call the network that is the first argument",
        )
    refusal = refusal_of(problem, here, vectors)
    if refusal is None:
        refusal = refusal_by_values(problem, here, vectors[0])
    return refusal, size


def _complex_of(real: torch.dtype) -> torch.dtype:
    """Return the complex type of a real one; the type itself where there is none, as of eight bits."""
    if real.itemsize < 2:
        return real
    return real.to_complex()
