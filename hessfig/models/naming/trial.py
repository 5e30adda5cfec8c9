"""Small runs of a network and of its parts, on given or random inputs, that record the uses of parameters."""

from __future__ import annotations

import copy
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, product
from os.path import commonprefix
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from hessfig.curvature.dispatch import Dispatch
from hessfig.curvature.problem import real_parameters
from hessfig.errors import plain
from hessfig.models.naming.suggested import WIDTHS, first, is_cross

Call = tuple[tuple[Any, ...], dict[str, Any]]
Change = Callable[["Use", Tensor], Tensor]
_SAMPLES, _LENGTH = 2, 5  # shape of random tokens; a decoder gets one position less
_MOST = 258  # the most positions of a table that random inputs have to fill
_SIDES = (8, 16, 32)  # sides of images


class CannotRun(Exception):
    """A network, or a part of it, does not run on its inputs."""


@dataclass(frozen=True)
class Use:
    """The use of a parameter by an operation: outputs from `start` on, along `axis` of the parameter.

    `number` counts the uses of these outputs in the run. `given` is the other input of
    the operation: vectors as (rows, inputs), and indices or images unchanged; None if
    it is not kept.
    """

    path: str
    kind: str
    axis: int
    start: int
    number: int
    given: Tensor | None = None


# By operation: the positions of its input and its weight, and the axis of outputs of
# the weight.
_PLACES = {
    **dict.fromkeys(("mm", "bmm", "_grouped_mm"), (0, 1, -1)),
    **dict.fromkeys(("addmm", "baddbmm"), (1, 2, -1)),
    "linear": (0, 1, 0),
    "embedding": (1, 0, -1),
    "convolution": (0, 1, 0),
}
_VECTORS = ("mm", "bmm", "_grouped_mm", "addmm", "baddbmm", "linear")


class Watch(Dispatch):
    """Records the uses of `parameters` while it is active, and replaces the outputs of those in `changes`.

    The inputs of parameters in `kept` are kept. A bias in `blank` that is added
    separately is replaced by zero.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        kept: Collection[str] = (),
        changes: Mapping[str, Change] | None = None,
        blank: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._parameters = parameters
        self._held = defaultdict[int, list[tuple[str, Tensor]]](list)
        for path, tensor in parameters.items():
            self._held[tensor.untyped_storage().data_ptr()].append((path, tensor))
        self._kept = kept
        self._changes = changes or {}
        self._blank = blank
        self._numbers = Counter[tuple[str, int]]()
        self.uses: list[Use] = []
        self.added: set[str] = set()  # matrices that are added to something

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run one operation, and record the parameters that it uses."""
        del types
        kind = func.overloadpacket.__name__
        if kind in ("add", "add_"):
            paths = [self._path(one) for one in args]
            self.added |= {path for path in paths if path is not None}
            args = tuple(
                torch.zeros_like(one) if path in self._blank else one
                for one, path in zip(args, paths, strict=True)
            )
        output = func(*args, **(kwargs or {}))
        use = self._use(kind, args) if kind in _PLACES else None
        if use is None:
            return output
        return self._seen(use, output)

    def _seen(self, use: Use, output: Tensor) -> Tensor:
        self.uses.append(use)
        change = self._changes.get(use.path)
        if change is None:
            return output
        rows = output.reshape(-1, output.shape[-1])
        return change(use, rows).to(output).reshape(output.shape)

    def _use(self, kind: str, args: Any) -> Use | None:
        source, place, axis = _PLACES[kind]
        given, weight = args[source], args[place]
        path = self._path(weight)
        if path is None:
            return None
        lies = _lies(self._parameters[path], weight, axis)
        if lies is None:
            return None
        number = self._numbers[path, lies[1]]
        self._numbers[path, lies[1]] += 1
        use = Use(path, kind, *lies, number)
        if kind not in _VECTORS:
            return replace(use, given=given.clone())
        if path in self._kept:
            return replace(use, given=given.reshape(-1, given.shape[-1]).clone())
        return use

    def _path(self, tensor: Any) -> str | None:
        """Return the path of the parameter of which a tensor is a view."""
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            return None
        at = tensor.storage_offset()
        parameters = self._held.get(tensor.untyped_storage().data_ptr(), [])
        inside = [
            (whole.storage_offset(), path)
            for path, whole in parameters
            if 0 <= at - whole.storage_offset() < _extent(whole)
        ]
        if inside:
            return max(inside)[1]
        return None


def _extent(tensor: Tensor) -> int:
    """Return the extent of a tensor in its storage."""
    return 1 + sum(
        (length - 1) * step
        for length, step in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _lies(parameter: Tensor, view: Tensor, at: int) -> tuple[int, int] | None:
    """Return the axis of a parameter along which an axis of its view runs, and the index of its start there.

    None if the axis cannot be determined.
    """
    stride = view.stride(at)
    length = view.shape[at]
    axes = [
        axis
        for axis, step in enumerate(parameter.stride())
        if step == stride and parameter.shape[axis] >= length
    ]
    whole = [axis for axis in axes if parameter.shape[axis] == length]
    if len(whole or axes) != 1 or not (whole or parameter.is_contiguous()):
        return None
    (axis,) = whole or axes
    if whole:
        return axis, 0
    offset = view.storage_offset() - parameter.storage_offset()
    return axis, int(offset // stride % parameter.shape[axis])


class NetworkTrial:
    """A run of a network on the first input that it accepts: its calls, the uses of its parameters, its outputs.

    `problem` is the reason if there is no run. The caller restores the network
    afterwards.
    """

    def __init__(self, network: nn.Module, inputs: Any = None) -> None:
        self.network = network
        self.problem = ""
        self.parameters = {
            path: one.data
            for path, one in real_parameters(network).items()
            if one.numel()
        }
        self.uses: list[Use] = []
        self.outputs: list[Tensor] = []
        self.calls: dict[str, Call] = {}
        self.added: set[str] = set()
        for call in chain(
            [] if inputs is None else [call_of(inputs, network)], made_up(network)
        ):
            try:
                self.uses, self.outputs = self.run("", call=call)
            except CannotRun as error:
                self.problem = self.problem or str(error)
            else:
                self.problem = ""
                self.calls = {"": call}
                self._note_calls()
                return

    @property
    def axes(self) -> dict[str, int]:
        """The axis of outputs by parameter, if all of its uses agree."""
        seen = defaultdict[str, set[int]](set)
        for use in self.uses:
            seen[use.path].add(use.axis)
        return {path: next(iter(axes)) for path, axes in seen.items() if len(axes) == 1}

    def tables(self) -> list[tuple[str, nn.Parameter]]:
        """Return the embedding and the head by the methods of a model of transformers, with their roles."""
        parts = (("embed", "get_input_embeddings"), ("head", "get_output_embeddings"))
        return [
            (word, parameter)
            for word, get in parts
            for parameter in part_of(self.network, get)
        ]

    def run(
        self,
        place: str,
        changes: Mapping[str, Change] | None = None,
        kept: Collection[str] = (),
        blank: Collection[str] = (),
        call: Call | None = None,
    ) -> tuple[list[Use], list[Tensor]]:
        """Repeat the first call of a part; return the uses of parameters, and its result.

        Raises CannotRun if the part does not run.
        """
        arguments, words = _copied(self.calls[place] if call is None else call)
        watch = Watch(self.parameters, kept, changes, blank)
        try:
            with watch:
                result = self.network.get_submodule(place)(*arguments, **words)
        except Exception as error:
            # The user's code may raise anything on inputs that do not fit.
            raise CannotRun(plain(f"{type(error).__name__}: {error}")) from error
        self.added |= watch.added
        return watch.uses, list(tensors_in(result))

    def owner(self, paths: Collection[str]) -> str | None:
        """Return the smallest part that contains these parameters and is called; None if there is none.

        A part that the network does not call, such as an expert that no token chose, is
        called on random vectors.
        """
        shared = _shared_place(paths)
        while True:
            if shared in self.calls:
                return shared
            if self._runs_alone(shared, paths):
                return shared
            if not shared:
                return None
            shared = shared.rpartition(".")[0]

    def _runs_alone(self, place: str, paths: Collection[str]) -> bool:
        parameter = self.parameters[min(paths)]
        module = self.network.get_submodule(place)
        if (
            not place
            or type(module).forward is nn.Module.forward
            or isinstance(module, nn.ModuleList | nn.ModuleDict)
        ):
            return False
        for width in dict.fromkeys(reversed(parameter.shape)):
            vectors = _normal(_SAMPLES, _LENGTH, width, seed=1).to(parameter)
            for arguments in ((vectors,), (vectors,) * 3):
                try:
                    self.run(place, call=(arguments, {}))
                except CannotRun:
                    continue
                self.calls[place] = (arguments, {})
                return True
        return False

    def _note_calls(self) -> None:
        """Run once more, and keep the arguments of the first call of each part."""

        def note(place: str, module: nn.Module, arguments: Any, words: Any) -> None:
            del module
            self.calls.setdefault(place, _copied((arguments, words)))

        with ExitStack() as hooks:
            for place, module in self.network.named_modules():
                matrices = sum(one.ndim > 1 for one in module.parameters())
                if place and matrices > 1:
                    hook = partial(note, place)
                    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
                    hooks.callback(handle.remove)
            self.run("")


def _shared_place(paths: Collection[str]) -> str:
    """Return the smallest module that contains all of these parameters."""
    return ".".join(commonprefix([path.split(".")[:-1] for path in paths]))  # noqa: RUF071 - of lists


def _copied(call: Call) -> Call:
    """Return the arguments of a module, copied if possible, because a run may write into them (caches).

    Identical objects stay identical, since this distinguishes self-attention.
    """
    memo = dict[int, Any]()

    def copied(thing: Any) -> Any:
        if id(thing) not in memo:
            memo[id(thing)] = _copy_of(thing)
        return memo[id(thing)]

    copies: Call = tree_map(copied, call)
    return copies


def _copy_of(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return thing.detach().clone()
    if isinstance(thing, nn.Module):
        return thing
    with suppress(Exception):  # an object that cannot be copied is passed on unchanged
        return copy.deepcopy(thing)
    return thing


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors in the result of a module, in order."""
    if isinstance(thing, Tensor):
        yield from (thing,) if thing.is_floating_point() else ()
    elif isinstance(thing, Mapping):
        for entry in thing.values():
            yield from tensors_in(entry)
    elif isinstance(thing, tuple | list):
        for entry in thing:
            yield from tensors_in(entry)


def part_of(network: nn.Module, get: str) -> list[nn.Parameter]:
    """Return the parameters of the part returned by the method `get` of a model of transformers; empty if none."""
    try:
        part = getattr(network, get, lambda: None)()
    except NotImplementedError:
        return []
    if part is None:
        return []
    return list(part.parameters())


def call_of(inputs: Any, network: nn.Module) -> Call:
    """Return the arguments for a network from given inputs: a dictionary of keywords, a tuple, or one tensor.

    From a list of batches the first is used. Floating-point tensors are cast to the
    type of the network.
    """
    if isinstance(inputs, list) and inputs:
        return call_of(inputs[0], network)
    like = next(network.parameters())

    def typed(thing: Any) -> Any:
        if isinstance(thing, Tensor) and thing.is_floating_point():
            return thing.to(like)
        return thing

    if isinstance(inputs, Mapping):
        return (), {name: typed(one) for name, one in inputs.items()}
    return tuple(map(typed, inputs if isinstance(inputs, tuple) else (inputs,))), {}


def made_up(network: nn.Module) -> Iterator[Call]:
    """Yield small random inputs of a network for all of its required arguments: tokens, then vectors, then images."""
    signature = inspect.signature(network.forward).parameters.values()
    asked = [
        p.name
        for p in signature
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
    ]
    named = {p.name for p in signature}
    config = getattr(network, "config", None)
    has_cross = "encoder_hidden_states" in named and any(
        is_cross(path) for path, _ in network.named_parameters()
    )
    words: dict[str, Any] = {"use_cache": False} if "use_cache" in named else {}
    for example, second in _pairs(network):
        arguments = [
            None if "mask" in name else second if place else example
            for place, name in enumerate(asked)
        ]
        given = tuple(arguments) or (example,)
        is_pair = getattr(config, "is_encoder_decoder", False)
        if is_pair and "decoder_input_ids" in named:
            yield given, {**words, "decoder_input_ids": second}
        if has_cross:
            states = _vectors(network, _LENGTH + 1, first(config, WIDTHS))
            yield given, {**words, "encoder_hidden_states": states}
        yield given, words


def _pairs(network: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield random inputs, each with a shorter one for further arguments of the network."""
    heights = [one.shape[-2] for one in _outside(network)]
    fitting = [height for height in heights if 1 < height < _MOST]
    lengths = dict.fromkeys([_LENGTH, *fitting])
    words = _words(network)
    for length in lengths if words else ():
        yield _tokens(network, length, words), _tokens(network, length - 1, words)
        yield (_tokens(network, length, words),) * 2
    matrices = [parameter for parameter in network.parameters() if parameter.ndim > 1]
    for width in dict.fromkeys(matrices[0].shape[::-1] if matrices else ()):
        for length in lengths:
            yield _vectors(network, length, width), _vectors(network, length - 1, width)
            yield (_vectors(network, length, width),) * 2
    filters = [matrix for matrix in matrices if matrix.ndim == 4][:1]
    own = first(getattr(network, "config", None), ("image_size",))
    for kernel, side in product(filters, [own] if own else _SIDES):
        picture = _normal(_SAMPLES, kernel.shape[1], side, side, seed=1).to(kernel)
        yield (picture,) * 2


def _outside(network: nn.Module) -> list[Tensor]:
    """Return the matrices outside lists; tables of positions may determine the length of inputs."""
    named = network.named_parameters()
    return [
        one
        for path, one in named
        if one.ndim > 1 and not any(part.isdigit() for part in path.split("."))
    ]


def _words(network: nn.Module) -> int:
    """Return the number of different tokens; 0 if the network has no embedding."""
    tables = [one for one in network.modules() if isinstance(one, nn.Embedding)]
    rows = len(next(iter(part_of(network, "get_input_embeddings")), ())) or (
        tables[0].num_embeddings if tables else 0
    )
    return rows or next((max(one.shape) for one in _outside(network)), 0)


def _tokens(network: nn.Module, length: int, words: int) -> Tensor:
    """Return tokens (samples, length), without 0, which is often the padding token."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(
        min(1, words - 1), words, (_SAMPLES, length), generator=generator, device="cpu"
    )
    return tokens.to(next(network.parameters()).device)


def _vectors(network: nn.Module, length: int, width: int) -> Tensor:
    return _normal(_SAMPLES, length, width, seed=length).to(next(network.parameters()))


def _normal(*shape: int, seed: int) -> Tensor:
    """Return a normal tensor, drawn on the CPU whatever the default device is."""
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), device="cpu"
    )
