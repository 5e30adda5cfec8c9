"""A network of the user's own with its data and loss: its weights named, its batches weighed, its content hashed."""

import copy
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.curvature.losses import LOSSES, Called, batch_weights
from hessfig.curvature.problem import Batch, Objective
from hessfig.errors import UserError, did_you_mean, plain
from hessfig.models import own_checks
from hessfig.models.any_batch import Rows, is_plain, only_trainable, read_batches, typed
from hessfig.models.found_weights import FOUND, find_weights
from hessfig.models.identity import identities, tensor_bytes
from hessfig.models.lens_bridge import is_bridge, opened, wrapped
from hessfig.models.own_checks import shape_of
from hessfig.models.own_loss import adapted
from hessfig.rng import is_row_major, lay_out
from hessfig.weights import Layout, Weight, every_parameter

Pair = tuple[Weight, Weight]
_AT = "@"
_MOST_LAYER = 10_000  # as model.n_layers
TRAINABLE = "trainable"
_REMEDY = 'for example weights={"W_V@1": "layers.0.value.weight"}'


def named_layout(network: nn.Module, weights: Any) -> Layout:
    """Return the layout of `weights`, or every parameter by its own name.

    A parameter that has several names is held under the first of them. Raises UserError for misfits, and for a group
    that holds an entry twice.
    """
    whole = every_parameter((name, p.numel()) for name, p in network.named_parameters() if p.is_floating_point())
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
    specs = spec if isinstance(spec, list) else [spec]
    if not specs:
        raise UserError(f"weights: the group {name} is empty", got="[]", allowed="a list of parameters", remedy=_REMEDY)
    return [_weight(known, bare, int(layer or 0), one) for one in specs]


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
            allowed=f"a slice within shape {tuple(parameter.shape)}, e.g. numpy.s_[:4, :]",
            remedy="count rows and columns again: PyTorch's Linear stores (outputs, inputs)",
        )
    return int(view.numel())


def _from_the_front(index: Any, ndim: int) -> Any:
    """Return an index without an ellipsis, with an axis at least: products have the probes on an axis of their own."""
    if not (index is Ellipsis or isinstance(index, tuple | int)):
        return index
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


def as_drawn(found: Any, *, dtype: str, source: str) -> Objective:
    """Return what a factory made as a checked problem. Raises UserError when it made something else."""
    if hasattr(found, "network") and hasattr(found, "targets"):
        outputs = getattr(found, "outputs", None)
        found = (found.network, found.inputs, found.targets, found.loss, found.weights, outputs)
    if not isinstance(found, tuple) or len(found) not in (4, 5, 6) or not isinstance(found[0], nn.Module):
        raise UserError(
            f"model.factory: {source} returned something else than a problem",
            got=shape_of(found),
            allowed="(network, inputs, targets, loss), (network, inputs, targets, loss, weights) or a hessfig.Problem",
            remedy="return a torch.nn.Module, its inputs, the targets and a loss",
        )
    return foreign(*found, dtype=dtype)


def foreign(
    network: Any, inputs: Any, targets: Any, loss: Any, weights: Any = None, outputs: Any = None, *, dtype: str
) -> Objective:
    """Check and name everything.

    The network is copied when it is not of type `dtype`, has a module under two names, or `weights` is "trainable".
    `inputs` and `targets` are tensors or lists of them (batches, which weigh what the loss's mean divides by), or what
    hessfig.models.any_batch reads, or lens_bridge.opened of a bridge, whose weights are found where none are named;
    `outputs` names what the loss takes of several outputs. `loss`: cross_entropy, mse, mse_sum, a function, or a module
    with `reduction`; None: the network's own, or cross_entropy. `weights`: {name: parameter, (parameter, index) or a
    list of these}; a name may be pinned to a layer (W_V@2). Raises UserError for what does not fit.
    """
    real = getattr(torch, dtype)
    with torch.inference_mode(False):
        own_checks.check_network(network)
        if is_bridge(network):
            model = wrapped(network)
            weights = find_weights(model) if weights in (None, FOUND) else weights
            network, inputs, targets = opened(network, model, inputs, targets)
        own = _differentiable(network)
        if isinstance(weights, str) and weights == TRAINABLE:
            own = only_trainable(copied(network, "the network") if own is network else own)
        held, network = network, _cast(own, real, "the network", own.parameters())
        if outputs is not None or not is_plain(inputs, targets):
            network, targets, loss = adapted(network, read_batches(inputs, targets, real), loss, outputs)
            inputs = network.inputs
        if isinstance(weights, str) and weights == FOUND:
            given = network.given[0] if isinstance(network, Rows) else None
            weights = find_weights(own, inputs=inputs if given is None else given.words or given.arguments)
        batches = _batches(inputs, targets, real)
        module = _loss("cross_entropy" if loss is None else loss, held, real)
        outputs = [own_checks.check_run(network, module, batch) for batch in batches]
        own_checks.check_reached(network, batches[0])
        batches = _weighed(module, batches, outputs)
        return Objective(network, batches[0], module, named_layout(network, weights), tuple(batches[1:]))


def _cast(module: nn.Module, real: torch.dtype, what: str, typed_by: Iterable[Tensor]) -> nn.Module:
    """Return the module in a floating-point type and in row-major order: a copy, unless it is of that type and order.

    Its type is that of the tensors `typed_by`. The order of a module's own weights stays.
    """
    has_type = all(t.dtype == real and not t.is_inference() for t in typed_by if t.is_floating_point())
    if has_type and all(map(is_row_major, chain(module.parameters(), module.buffers()))):
        return module
    found = copied(module, what)
    return lay_out(found if has_type else found.to(real))


def copied(module: nn.Module, what: str, *, has_run: bool = False) -> nn.Module:
    """Return a copy of a module of the user's own. Raises UserError for one that cannot be copied.

    Of one that was copied before, and `has_run` since, attributes with a graph are what it computed: constants.
    """
    memo: dict[int, Any] = {}
    if has_run:
        held = chain.from_iterable(own_checks.results(dict(vars(one))) for one in module.modules())
        memo = {id(one): one.detach().clone() for one in held}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        places, remedy = own_checks.uncopied(module)
        raise UserError(
            f"{what} cannot be copied",
            got=places or own_checks.words_of(error),
            allowed="a module that copy.deepcopy copies",
            remedy=remedy or "convert it yourself (module.double()), without a module under two names",
        ) from error


def _differentiable(network: nn.Module) -> nn.Module:
    """Return the network as torch can differentiate it: the network itself, or a copy where something is changed.

    A module under two names becomes two that share their parameters: torch.func.functional_call does not put back those
    of one. Modules that torch cannot differentiate twice are replaced (see `elementary`).
    """
    if len(list(_modules(network))) == len(list(network.modules())) and not own_checks.differ(network):
        return network
    network = copied(network, "the network")
    _split(network, {id(network)})
    own_checks.replace_in(network)
    return network


def _split(module: nn.Module, seen: set[int]) -> None:
    for name, child in module._modules.items():
        if child is not None and id(child) in seen:
            module._modules[name] = _twin(child)
        elif child is not None:
            seen.add(id(child))
            _split(child, seen)


def _modules(module: nn.Module, above: tuple[int, ...] = ()) -> Iterator[nn.Module]:
    """Yield every module once for each of its names. Raises UserError for one that holds itself."""
    yield module
    for name, child in module._modules.items():
        if child is None:
            continue
        if id(child) in (*above, id(module)):
            raise UserError(
                "the network holds itself",
                got=name,
                allowed="modules that form a tree",
                remedy="keep the reference outside of nn.Module's attributes, in a tuple or list",
            )
        yield from _modules(child, (*above, id(module)))


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
    return [Batch(typed(x, real), typed(y, real), at) for x, y, at in zip(xs, ys, scored, strict=True)]


def _loss(loss: Any, network: nn.Module, real: torch.dtype) -> nn.Module:
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]()
    if callable(loss) and not isinstance(loss, nn.Module | type):
        loss = Called(loss)
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, nn.Module) and isinstance(reduction, str) and reduction in ("mean", "sum"):
        own_checks.check_mode(loss)
        own_checks.check_apart(loss, network)
        return _cast(loss, real, "the loss", chain(loss.parameters(), loss.buffers()))
    raise UserError(
        "loss is not known",
        got=plain(loss) if isinstance(loss, str) else shape_of(loss),
        allowed=f"{', '.join(LOSSES)}, a function loss(outputs, targets), or a module with reduction 'mean' or 'sum'",
        remedy=did_you_mean(loss[:100], LOSSES) or f"for example loss={next(iter(LOSSES))!r}"
        if isinstance(loss, str)
        else "set .reduction on your loss module",
    )


def _weighed(loss: nn.Module, batches: list[Batch], outputs: list[Tensor]) -> list[Batch]:
    """Return the batches that count, with what the mean over each divides by where that is not the samples."""
    found = batch_weights(loss, outputs, [batch.targets for batch in batches])
    counted = [(batch, weight) for batch, weight in zip(batches, found, strict=True) if weight]
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
