"""A network of the user's own with its data and loss: its weights named, its batches weighed, its content hashed."""

import copy
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from hessfig.curvature.losses import LOSSES, Called, Inside, batch_weights
from hessfig.curvature.problem import Batch, Objective
from hessfig.errors import UserError, did_you_mean, plain
from hessfig.models.identity import identities, tensor_bytes
from hessfig.models.own import own_checks
from hessfig.models.own.any_batch import KeptInputs, labels, only_trainable, read_batches, typed
from hessfig.models.own.in_place import InPlace, cast
from hessfig.models.own.own_checks import shape_of
from hessfig.models.own.own_function import TRAINABLE, Asked
from hessfig.models.own.own_loss import adapted
from hessfig.rng import lay_out
from hessfig.weights import Layout, Weight, every_parameter

Pair = tuple[Weight, Weight]
_AT = "@"
_MOST_LAYER = 10_000  # as model.n_layers
_REMEDY = 'for example weights={"W_V@1": "layers.0.value.weight"}'


def named_layout(network: nn.Module, weights: Any) -> Layout:
    """Return the layout of `weights`, or every parameter by its own name.

    A parameter that has several names is held under the first of them; one without entries (LoRA of rank 0) has none.
    Raises UserError for misfits, and for a group that holds an entry twice.
    """
    held = ((name, p) for name, p in network.named_parameters() if p.is_floating_point() and p.numel())
    whole = every_parameter((name, p.numel()) for name, p in held)
    if weights is None or weights == TRAINABLE:
        return whole
    if isinstance(weights, Layout):
        return weights
    if not isinstance(weights, Mapping) or not weights:
        raise UserError(
            "weights: no names of weights",
            got=plain(repr(weights)),
            allowed="{name: parameter}, None for every parameter by its own name, 'trainable' for those trained, or "
            "'found' for those of a transformer by what they do",
            remedy=_REMEDY,
        )
    known = _Known(network)
    named = [weight for name, spec in weights.items() for weight in _named(known, name, spec)]
    for name, layer, pair in _overlapping(named, known, "name"):
        raise _twice(f"{name}{_AT}{layer}" if layer else str(name), pair, known)
    shared = [pair for _, layer, pair in _overlapping(named, known, "parameter") if layer]
    return Layout(tuple(named), whole.weights, shared=tuple(shared))


class _Known:
    """The parameters of a network: what each is called first, and which entries a view of it has."""

    def __init__(self, network: nn.Module) -> None:
        self.first = {id(p): name for name, p in network.named_parameters()}
        every = network.named_parameters(remove_duplicate=False)
        self.parameters = {name: p for name, p in every if p.is_floating_point()}
        self.names = [name for name, p in network.named_parameters() if p.is_floating_point()]
        self._entries: dict[str, Tensor] = {}

    def overlap(self, pair: Pair) -> int:
        """Return how many entries two weights have in common."""
        one, other = pair
        if one.parameter != other.parameter:
            return 0
        if one.index is None or other.index is None:
            return min(one.size, other.size)
        return int(torch.isin(self._of(one).flatten(), self._of(other).flatten()).sum())

    def are_apart(self, weights: Sequence[Weight]) -> bool:
        """Whether no two weights of one parameter have an entry in common: of a thousand rows, asked once."""
        entries = torch.cat([self._of(one).flatten() for one in weights])
        return len(entries.unique()) == len(entries)

    def _of(self, weight: Weight) -> Tensor:
        path = weight.parameter
        if path not in self._entries:
            parameter = self.parameters[path]
            self._entries[path] = torch.arange(parameter.numel()).view(parameter.shape)
        return self._entries[path][weight.index]


def _overlapping(named: Sequence[Weight], known: _Known, alike: str) -> Iterator[tuple[str, int, Pair]]:
    """Yield the pairs of weights that share entries, of those alike in layer, parameter and `alike`."""
    groups = defaultdict(list)
    for weight in named:
        groups[getattr(weight, alike), weight.layer, weight.parameter].append(weight)
    for (name, layer, _), members in groups.items():
        if len(members) > 1 and not known.are_apart(members):
            yield from ((name, layer, pair) for pair in combinations(members, 2) if known.overlap(pair))


def _twice(name: str, pair: Pair, known: _Known) -> UserError:
    """Return the error of a group that counts entries twice: its norm would be that of another matrix."""
    views = [one.parameter if one.index is None else f"{one.parameter}{_shown(one.index)}" for one in pair]
    return UserError(
        f"weights: the group {name} holds entries twice",
        got=f"{' and '.join(views)} have {known.overlap(pair)} entries in common",
        allowed="parameters or slices without a common entry",
        remedy="name every entry once in a group; other names may overlap with it",
    )


def _shown(index: Any) -> str:
    return f"[{index}]" if not isinstance(index, tuple) else str(list(index))


def _named(known: _Known, name: Any, spec: Any) -> list[Weight]:
    bare, at, layer = name.partition(_AT) if isinstance(name, str) else ("", "", "")
    if not bare or any(letter in name for letter in ",'\"[]{}$\\") or (at and not _is_layer(layer)):
        raise UserError(
            "weights: a name is plain text, perhaps with its layer behind @",
            got=plain(repr(name)),
            allowed=f"no commas, quotes, brackets, $ or backslashes; W_V, W_V@2, with a layer up to {_MOST_LAYER}",
            remedy="rename it",
        )
    specs = [one for part in _members(spec) for one in _by_rows(known, part)]
    if not specs:
        raise UserError(f"weights: the group {name} is empty", got="[]", allowed="a list of parameters", remedy=_REMEDY)
    return [_weight(known, bare, int(layer or 0), one) for one in specs]


def _members(spec: Any) -> list[Any]:
    """Return the entries of a group, a list or a tuple of names and pairs; a pair (name, index) is one of them."""
    is_pair = isinstance(spec, tuple) and len(spec) == 2 and isinstance(spec[0], str) and not _is_named(spec[1])
    return list(spec) if isinstance(spec, list | tuple) and not is_pair else [spec]


def _is_named(spec: Any) -> bool:
    return isinstance(spec, str) or (isinstance(spec, list | tuple) and len(spec) > 0 and isinstance(spec[0], str))


def _by_rows(known: _Known, spec: Any) -> list[Any]:
    """Return the slices that a list of rows stands for: ("emb.weight", [0, 2, 3]) is [0:1] and [2:4] of it."""
    if not isinstance(spec, tuple) or len(spec) != 2 or spec[0] not in known.parameters:
        return [spec]
    path, index = spec
    numbers = index.tolist() if isinstance(index, Tensor | numpy.ndarray) and index.ndim == 1 else index
    is_rows = isinstance(numbers, list | range) and all(isinstance(one, int | numpy.integer) for one in numbers)
    if not is_rows or any(isinstance(one, bool) for one in numbers):
        return [spec]
    count, spans = len(known.parameters[path]) if known.parameters[path].ndim else 0, list[list[int]]()
    for row in numbers:
        if not -count <= row < count:
            return [spec]
        place = int(row) % count
        if spans and spans[-1][1] == place:
            spans[-1][1] += 1
        else:
            spans.append([place, place + 1])
    return [(path, slice(*span)) for span in spans]


def _is_layer(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_LAYER)) and int(text) <= _MOST_LAYER


def _weight(known: _Known, name: str, layer: int, spec: Any) -> Weight:
    path, index = spec if isinstance(spec, tuple) and len(spec) == 2 else (spec, None)
    if not isinstance(path, str) or path not in known.parameters:
        held = known.names
        raise UserError(
            f"weights: the network has no parameter {plain(repr(path))}",
            got=plain(f"{name}: {path}"),
            allowed=", ".join(held[:12]) + ", ..." * (len(held) > 12),
            remedy=did_you_mean(str(path)[:200], held) or "see network.named_parameters()",
        )
    parameter = known.parameters[path]
    size = _size(name, parameter, index)
    return Weight(name, known.first[id(parameter)], size, layer, index=_from_the_front(index, parameter.ndim))


def _size(name: str, parameter: Tensor, index: Any) -> int:
    """Return the entries of the view. Raises UserError where it lies outside its parameter, or is no view."""
    try:
        view = parameter if index is None else parameter[index]
        inside = view.numel() > 0 and _within(parameter, index)
        shared = inside and view.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
    except (IndexError, TypeError, RuntimeError, ValueError, OverflowError):
        inside = shared = False
    if not (inside and shared):
        raise UserError(
            f"weights: the slice of {name} is not one of its parameter",
            got=plain(repr(index)),
            allowed=f"a slice within shape {tuple(parameter.shape)}, such as numpy.s_[:4, :], or rows: [0, 2, 5]",
            remedy="count rows and columns again: PyTorch's Linear stores (outputs, inputs)",
        )
    return int(view.numel())


def _from_the_front(index: Any, ndim: int) -> Any:
    """Return an index without an ellipsis, with an axis at least: products have the probes on an axis of their own."""
    if not ndim or not (index is Ellipsis or isinstance(index, tuple | int)):
        return index if ndim else None
    given: list[Any] = list(index) if isinstance(index, tuple) else [index]
    places = list(given)
    if Ellipsis in places:
        at, missing = places.index(Ellipsis), ndim + 1 - sum(one is not None for one in places)
        places[at : at + 1] = [slice(None)] * missing
    if len(places) == ndim and all(isinstance(one, int) for one in places):
        places[-1] = slice(places[-1], places[-1] + 1 or None)
    return index if places == given else tuple(places)


def _within(parameter: Tensor, index: Any) -> bool:
    """Whether the slices end inside the parameter: Python's slices would be cut short silently."""
    slices = index if isinstance(index, tuple) else (index,)
    ends = zip(slices, parameter.shape, strict=False)
    return all(not isinstance(one, slice) or one.stop is None or -n <= one.stop <= n for one, n in ends)


@dataclass(frozen=True)
class Built:
    """A problem that may stand for a user's function, and the share of each of the user's batches in its loss."""

    problem: Objective
    shares: dict[int, float]


def split_problem(asked: Asked, network: nn.Module, real: torch.dtype) -> Built:
    """Return the problem of a network, a copy of the user's or that itself, whose loss takes its outputs.

    Raises UserError for batches, losses and names that do not fit.
    """
    inputs, targets, loss = asked.inputs, asked.targets, asked.loss
    if not asked.is_plain:
        network, targets, loss = adapted(network, read_batches(inputs, targets, real), loss, asked.outputs)
        inputs = network.inputs
    batches = _batches(inputs, targets, real)
    network = KeptInputs(network) if own_checks.changes_inputs(network, batches[0]) else network
    module = _loss("cross_entropy" if loss is None else loss, real)
    outputs = [own_checks.check_run(network, module, batch) for batch in batches]
    own_checks.check_reached(network, batches[0])
    weights = batch_weights(module, outputs, [batch.targets for batch in batches])
    return _built(asked, network, module, batches, weights)


def whole_problem(asked: Asked, network: nn.Module, real: torch.dtype) -> Built:
    """Return the problem of a network whose output is the user's loss: it reads more than outputs and targets."""
    call, meant = asked.called(network, real), asked.meant_loss
    reading = call.reading(meant)
    rows, _, inside = call.whole(reading, several=call.has_outputs(meant))
    weights = [1.0] * len(call.given)
    if len(weights) > 1:
        loss = _loss("cross_entropy" if meant is None else meant, real)
        weights = batch_weights(loss, [*map(reading.outputs, call.found)], [one.targets for one in call.given])
        inside = Inside(str(loss.reduction))
    batches = _batches(rows.inputs, [torch.zeros(len(one)) for one in rows.inputs], real)
    return _built(asked, rows, inside, batches, weights)


def _built(asked: Asked, network: nn.Module, loss: nn.Module, batches: list[Batch], weights: list[float]) -> Built:
    numbers = [number for number, weight in enumerate(weights) if weight]
    counted = _weighed(batches, weights)
    problem = Objective(network, counted[0], loss, named_layout(network, asked.weights), tuple(counted[1:]))
    return Built(problem, dict(zip(numbers, problem.shares, strict=True)))


def copy_of(asked: Asked, real: torch.dtype) -> nn.Module:
    """Return a copy of the user's network in a type, as torch can differentiate it twice.

    A module under two names becomes two that share their parameters: torch.func.functional_call does not put back those
    of one. Raises UserError for a network that cannot be copied.
    """
    network = copied(asked.network, "the network")
    _split(network, {id(network)})
    own_checks.replace_in(network)
    return _cast(only_trainable(network) if _is_trainable(asked.weights) else network, real)


def in_place_of(asked: Asked, real: torch.dtype) -> nn.Module:
    """Return the user's network itself, run with parameters of its own in a type."""
    network = InPlace(asked.network, real, asked.loss)
    return only_trainable(network) if _is_trainable(asked.weights) else network


def _is_trainable(weights: Any) -> bool:
    return isinstance(weights, str) and weights == TRAINABLE


def _cast(module: nn.Module, real: torch.dtype) -> nn.Module:
    """Bring a module's numbers into a type, complex ones into that of as many digits, and row-major order."""
    module._apply(partial(cast, real=real))
    return lay_out(module)


class Uncopied(UserError):
    """A module of the user's own that cannot be copied."""


def copied(module: nn.Module, what: str) -> nn.Module:
    """Return a copy of a module of the user's own; attributes with a graph are what it computed: constants.

    Raises Uncopied for one that cannot be copied.
    """
    held = chain.from_iterable(own_checks.results(dict(vars(one))) for one in module.modules())
    try:
        return copy.deepcopy(module, {id(one): one.detach().clone() for one in held})
    except Exception as error:
        places, remedy = own_checks.uncopied(module)
        raise Uncopied(
            f"{what} cannot be copied",
            got=places or own_checks.words_of(error),
            allowed="a module that copy.deepcopy copies",
            remedy=remedy or "convert it yourself (module.double()), without a module under two names",
        ) from error


def _split(module: nn.Module, seen: set[int]) -> None:
    for name, child in module._modules.items():
        if child is not None and id(child) in seen:
            module._modules[name] = _twin(child)
        elif child is not None:
            seen.add(id(child))
            _split(child, seen)


def _twin(module: nn.Module) -> nn.Module:
    """Return another module with the same parameters, buffers and attributes."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        twin.__dict__[kind] = dict(module.__dict__[kind])
    held = module._modules.items()
    twin.__dict__["_modules"] = {name: None if child is None else _twin(child) for name, child in held}
    return twin


def _batches(inputs: Any, targets: Any, real: torch.dtype) -> list[Batch]:
    xs, ys = (list(side) if isinstance(side, list | tuple) else [side] for side in (inputs, targets))
    if len(xs) != len(ys) or not xs or not all(isinstance(x, Tensor) for x in (*xs, *ys)):
        raise UserError(
            "inputs and targets are not tensors, or lists of as many tensors",
            got=f"{shape_of(inputs)} and {shape_of(targets)}",
            allowed="tensors whose first axis runs over samples",
            remedy="torch.as_tensor(array); wrap networks of other inputs in a module that takes one tensor",
        )
    for name, side in (("inputs", xs), ("targets", ys)):
        for tensor in side:
            own_checks.check_tensor(name, tensor)
    # of a network that is cut at its layers every position is scored; others return what is scored
    scored = [slice(0, x.shape[1]) if x.ndim > 1 else slice(None) for x in xs]
    return [Batch(typed(x, real), typed(labels(y), real), at) for x, y, at in zip(xs, ys, scored, strict=True)]


def _loss(loss: Any, real: torch.dtype) -> nn.Module:
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]()
    if callable(loss) and not isinstance(loss, nn.Module | type):
        return Called(loss)
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, nn.Module) and isinstance(reduction, str) and reduction in ("mean", "sum"):
        own_checks.check_mode(loss)
        return _cast(copied(loss, "the loss"), real)
    raise UserError(
        "loss is not known",
        got=plain(loss) if isinstance(loss, str) else shape_of(loss),
        allowed=f"{', '.join(LOSSES)}, a function loss(outputs, targets), or a module with reduction 'mean' or 'sum'",
        remedy=did_you_mean(loss[:100], LOSSES) or f"for example loss={next(iter(LOSSES))!r}"
        if isinstance(loss, str)
        else "set .reduction on your loss module",
    )


def _weighed(batches: list[Batch], weights: list[float]) -> list[Batch]:
    """Return the batches that count, with what the mean over each divides by where that is not the samples."""
    counted = [(batch, weight) for batch, weight in zip(batches, weights, strict=True) if weight]
    if not counted:
        raise UserError(
            "the loss divides by nothing: no target counts",
            got="targets that are all ignored, or weigh nothing",
            allowed="a target that counts",
            remedy="leave ignored samples out",
        )
    sizes = [len(batch.inputs) for batch, _ in counted]
    if all(one * sizes[0] == counted[0][1] * size for (_, one), size in zip(counted, sizes, strict=True)):
        return [batch for batch, _ in counted]
    return [replace(batch, weight=float(one)) for batch, one in counted]


def content_of(drawn: Objective) -> str:
    """Return a hash of a network, its batches, its loss and the names of its weights, as far as Python shows them.

    What it computes is told by its fingerprint (hessfig.models.fingerprint).
    """
    held = ((name, tensor_bytes(one)) for name, one in drawn.network.named_parameters(remove_duplicate=False))
    parts = identities(drawn.network, **{"the loss": drawn.loss})
    return _hash(chain(held, parts.items(), [("data", data_content(drawn))]))


def data_content(drawn: Objective) -> str:
    """Return a hash of the batches and the names of the weights, whatever network and loss are."""
    weights = (*drawn.layout.weights, "all", *drawn.layout.parameters)
    given = [part for one in getattr(drawn.network, "given", ()) for part in one.tensors]
    batches = [(name, getattr(one, name)) for one in (drawn.batch, *drawn.more) for name in ("inputs", "targets")]
    return _hash([*(("weight", one) for one in weights), *((n, tensor_bytes(t)) for n, t in (*batches, *given))])


def _hash(parts: Iterable[tuple[str, Any]]) -> str:
    found = hashlib.sha256()
    for label, thing in parts:
        found.update(f"{label}\n".encode())
        found.update(thing if isinstance(thing, bytes) else f"{thing}\n".encode())
    return found.hexdigest()
