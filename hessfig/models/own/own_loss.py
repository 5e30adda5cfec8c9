"""Selects the loss of a network that takes batches of any kind: its own loss, a known loss, or the user's."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from hessfig.curvature.losses import IGNORED, LOSSES, Called, CrossEntropy, Inside
from hessfig.curvature.rounding import OUTPUTS
from hessfig.curvature.witness import peak
from hessfig.errors import UserError, did_you_mean, first_few, plain
from hessfig.models.own.any_batch import LABELS, Given, Rows, far
from hessfig.models.own.batches import read_batches
from hessfig.models.own.border import Asked
from hessfig.models.own.copies import cast_module, copied
from hessfig.models.own.own_checks import (
    Raised,
    check_mode,
    not_one_number,
    shape_of,
    words_of,
)

# Allowed difference of a loss to a known loss, relative to its terms, before
# derivatives are compared: sums of many terms in another order (rows that do not count
# left out, or zero) differ by some units in the last place.
_ULPS = 32


# The network as a function of rows, the targets of every batch, and the loss.
Split = tuple[Rows, list[Any], Any]


@dataclass(frozen=True)
class Reading:
    """How a loss follows from what a network returns: the outputs that it takes, and its value at these and targets."""

    outputs: Callable[[Any], Any]
    loss: Callable[[Any, Any], Any]

    def __call__(self, result: Any, targets: Any) -> Tensor:
        """Return the loss of a result as a tensor of one entry."""
        return _scalar(self.loss(self.outputs(result), targets))


def loss_module(loss: Any, real: torch.dtype) -> nn.Module:
    """Return a loss as a module of type `real`: a known loss by name, a function, or a copy of a module.

    Raises UserError for anything else.
    """
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]()
    if callable(loss) and not isinstance(loss, nn.Module | type):
        return Called(loss)
    reduction = getattr(loss, "reduction", None)
    if (
        isinstance(loss, nn.Module)
        and isinstance(reduction, str)
        and reduction in ("mean", "sum")
    ):
        check_mode(loss)
        return cast_module(copied(loss, "the loss"), real)
    raise UserError(
        "loss is not known",
        got=plain(loss) if isinstance(loss, str) else shape_of(loss),
        allowed=f"{', '.join(LOSSES)}, a function loss(outputs, targets), or a module with reduction 'mean' or 'sum'",
        remedy=did_you_mean(loss[:100], LOSSES)
        or f"for example loss={next(iter(LOSSES))!r}"
        if isinstance(loss, str)
        else "set .reduction on your loss module",
    )


class ForeignCall:
    """A network and the batches it is called with: its `results`, and which function follows from them.

    If `most` is given, results of no more batches are computed and held.

    Labels are handed to a network whose forward() names them, or takes any word and
    does not fail at this; not to one that takes a single tensor.
    """

    def __init__(
        self,
        asked: Asked,
        network: nn.Module,
        real: torch.dtype,
        *,
        most: int | None = None,
    ) -> None:
        self.network = network
        self.outputs = asked.outputs
        self._is_of_transformers = is_of_transformers(asked.network)
        given = read_batches(asked.inputs, asked.targets, real)
        takes = not asked.is_plain and _takes_labels(network, given[0])
        if takes:
            self.given = [_with_labels(network, batch) for batch in given]
        else:
            self.given = given
        self.results = [_called(network, batch) for batch in self.given[:most]]

    def split(self, loss: Any) -> Split:
        """Return the network as a function of rows, the targets of every batch, and the loss.

        If `loss` is None, the network's own loss is used, if the network returns one
        for its labels. If value and gradient of this loss are those of cross-entropy
        (of the next token, or of each token) or of a mean of squares, it is replaced by
        the known loss with its outputs and targets; otherwise the output of the network
        is its loss. If the network returns no loss, cross-entropy of outputs and
        targets is used, unless the targets are the `labels` of a dictionary, whose
        meaning is unknown. Raises UserError for batches that the network cannot take.
        """
        own = self.losses() if loss is None else []
        if own:
            return self.with_own_loss(own)
        if loss is None and any(batch.labelled for batch in self.given):
            raise UserError(
                "loss: the batch has labels, and the network returns no loss for them",
                got=f"loss=None, and {type(self.network).__name__} returns {shape_of(self.results[0])}",
                allowed="a network that returns its loss for labels (an entry or attribute `loss`), or a loss",
                remedy="loss='cross_entropy' (outputs against labels, not shifted), "
                "or a function loss(outputs, labels)",
            )
        if not self.has_outputs(loss):
            is_sum = getattr(loss, "reduction", "mean") == "sum"
            return self.whole(self.reading(loss), reduction="sum" if is_sum else "mean")
        self._say_if_shifted(loss)
        return self.with_outputs("cross_entropy" if loss is None else loss)

    def _say_if_shifted(self, loss: Any) -> None:
        """Warn if cross-entropy is requested by name of a network whose own loss predicts the next token."""
        own = self.losses()
        if (
            own
            and loss == "cross_entropy"
            and self._candidate(_next_token, self.given[0], self.results[0], own[0])
        ):
            warnings.warn(
                "loss='cross_entropy' compares outputs with the labels of the same positions; the network's own loss "
                f"({float(own[0]):.6g}) is that of the next token: leave loss out to measure it, or shift the labels",
                RuntimeWarning,
                stacklevel=4,
            )

    def has_own_loss(self, loss: Any) -> bool:
        """Whether the loss is the network's own."""
        return loss is None and bool(self.losses())

    def has_outputs(self, loss: Any) -> bool:
        """Whether the loss takes one tensor of the result of the network, and is not an entry of the result."""
        is_function = callable(loss) and not isinstance(loss, nn.Module | type)
        is_raw = (
            is_function
            and self.outputs is None
            and select_output(self.results[0]) is None
        )
        return not (is_raw or self.has_own_loss(loss))

    def reading(self, loss: Any) -> Reading:
        """Return how the loss follows from what the network returns."""
        if self.has_own_loss(loss):
            return Reading(
                lambda result: result, lambda result, _: _entry(result, "loss")
            )
        named = "cross_entropy" if loss is None else loss
        of_outputs: Any = (
            LOSSES[named]() if isinstance(named, str) and named in LOSSES else named
        )
        if not self.has_outputs(loss):
            return Reading(lambda result: result, of_outputs)
        return Reading(partial(_output, targets=None, name=self.outputs), of_outputs)

    def losses(self) -> list[Tensor]:
        """Return the loss of every batch, as returned by the network itself; empty if it returns none."""
        own = [_entry(one, "loss") for one in self.results]
        if all(isinstance(one, Tensor) for one in own):
            return own
        return []

    def with_outputs(self, loss: Any) -> Split:
        """Return the network up to the outputs, the targets, and the loss of these."""
        read = partial(_output, name=self.outputs)
        for result in self.results:
            read(result, None)
        return (
            Rows(self.network, self.given, read),
            [batch.targets for batch in self.given],
            loss,
        )

    def with_own_loss(self, own: list[Tensor]) -> Split:
        """Return the network up to the outputs of its own loss, if that loss is known; else its loss as its output."""
        for known in _KNOWN if self._is_of_transformers else ():
            batches = zip(self.given, self.results, own, strict=True)
            candidates = [self._candidate(known, *batch) for batch in batches]
            fitting = [candidate for candidate in candidates if candidate is not None]
            if len(fitting) == len(own):
                rows = Rows(
                    self.network, self._bare(), partial(_output, name=self.outputs)
                )
                return (
                    rows,
                    [candidate.targets for candidate in fitting],
                    fitting[0].loss,
                )
        return self.whole(self.reading(None))

    def whole(
        self, read: Reading, *, several: bool = False, reduction: str = "mean"
    ) -> Split:
        """Return the network with its loss as its output.

        Several batches are allowed if their weights are known: for a sum, or to the
        caller (`several`).
        """
        if len(self.given) > 1 and not several and reduction != "sum":
            raise UserError(
                "a loss inside the network over several batches: how they are weighted against each other is not known",
                got=f"{len(self.given)} batches",
                allowed="one batch, a loss(outputs, targets) of declared outputs, or a sum (loss.reduction = 'sum')",
                remedy="join the batches, or give loss=... and outputs='NAME'",
            )
        return (
            Rows(self.network, self.given, read),
            [torch.zeros(one.size) for one in self.given],
            Inside(reduction),
        )

    def _candidate(
        self, known: KnownLoss, batch: Given, result: Any, own: Tensor
    ) -> LossCandidate | None:
        """Return a known loss of a batch; None if it does not fit, or if its value differs from the network's own loss.

        It is computed in the type of the network's own loss, which may be float32
        whatever the type of the weights. The difference is relative to the terms of the
        loss: of a perfect fit, outputs and targets are larger than the loss.
        """
        output = _selected(result, self.outputs)
        if output is None or own.dtype not in (torch.float32, torch.float64):
            return None
        try:
            with torch.no_grad():
                candidate = known(output.to(own.dtype), batch.targets)
        except (RuntimeError, ValueError, IndexError):
            return None
        off = _ULPS * torch.finfo(own.dtype).eps
        terms = own.abs().max() + candidate.size
        is_own = torch.isclose(
            candidate.value, own, rtol=0.0, atol=off * float(terms), equal_nan=True
        ).all()
        if is_own:
            return candidate
        return None

    def _bare(self) -> list[Given]:
        """Return the batches without labels, if the outputs do not depend on these."""
        bare = []
        for one, result in zip(self.given, self.results, strict=True):
            words = {key: word for key, word in one.words.items() if key != LABELS}
            bare.append(replace(one, words=words))
            if not self._is_output_of(bare[-1], result):
                return self.given
        return bare

    def _is_output_of(self, batch: Given, result: Any) -> bool:
        """Whether a batch gives the output in `result`; a decoder needs labels, from which it makes its inputs."""
        try:
            output = _selected(_called(self.network, batch), self.outputs)
            shown = _selected(result, self.outputs)
        except UserError:
            return False
        if output is None or shown is None:
            return False
        # Outputs may be computed in another order.
        return far(output, shown) <= OUTPUTS.of(shown.dtype) * peak(shown)


def is_of_transformers(network: nn.Module) -> bool:
    """Whether a network, or what a wrapper such as an adapter holds, is of a class of transformers (or derived)."""
    return any(
        base.__module__.startswith("transformers.")
        for one in network.modules()
        for base in type(one).__mro__
    )


def _takes_labels(network: nn.Module, batch: Given) -> bool:
    """Whether forward() takes labels; one with **kwargs is called with labels to find out, since it may pass them on.

    Labels that are already among the positional inputs are not passed again.
    """
    named = inspect.signature(network.forward).parameters
    if LABELS in named:
        return list(named).index(LABELS) >= len(batch.arguments)
    if all(one.kind != one.VAR_KEYWORD for one in named.values()):
        return False
    try:
        _called(network, _with_labels(network, batch))
    except UserError:
        return False
    return True


def _with_labels(network: nn.Module, batch: Given) -> Given:
    words: dict[str, Any] = {}
    if "use_cache" in inspect.signature(network.forward).parameters:
        words["use_cache"] = False
    return replace(batch, words={**words, **batch.words, LABELS: batch.targets})


def _called(network: nn.Module, batch: Given) -> Any:
    """Return the result of the network for a copy of a batch, without its graph; it may compute gradients itself."""
    own = batch.mapped(torch.clone)
    try:
        with torch.enable_grad():
            return tree_map_only(
                Tensor, torch.detach, network(*own.arguments, **own.words)
            )
    except (Exception, SystemExit) as error:
        raise Raised(
            f"the network cannot take the batch: it raises {type(error).__name__}",
            got=f"{words_of(error)}; given {own}",
            allowed="a batch for which network(*inputs) or network(**inputs) returns outputs",
            remedy="call the network yourself with the same batch; if it runs in float32 alone, dtype='float32'",
        ) from error


def _entry(value: Any, name: str | int) -> Any:
    """Return an entry of the result of a network: a key, an index or an attribute; None if there is no such entry."""
    if isinstance(value, Mapping):
        return value.get(name)
    if isinstance(name, int):
        if isinstance(value, tuple | list) and -len(value) <= name < len(value):
            return value[name]
        return None
    if isinstance(value, Tensor):  # the network returns only its loss
        if name == "loss" and not value.ndim:
            return value
        return None
    return getattr(value, name, None)


def select_output(value: Any) -> Tensor | None:
    """Return the output tensor in the result of a network: the result itself, its logits, or its only tensor."""
    if isinstance(value, Tensor):
        return value
    logits = _entry(value, "logits")
    if isinstance(logits, Tensor):
        return logits
    entries = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping | tuple):
        return None
    real = [
        one for one in entries if isinstance(one, Tensor) and one.is_floating_point()
    ]
    if len(real) == 1:
        return real[0]
    return None


def _selected(found: Any, name: str | int | None) -> Tensor | None:
    output = select_output(found) if name is None else _entry(found, name)
    if isinstance(output, Tensor):
        return output
    return None


def _output(found: Any, targets: Any, *, name: str | int | None) -> Tensor:
    del targets
    output = _selected(found, name)
    if output is not None:
        return output
    names = list(map(str, found)) if isinstance(found, Mapping) else []
    raise UserError(
        "the network's outputs: it is not clear which tensor the loss takes",
        got=f"outputs={name!r} of {first_few(names) if names else shape_of(found)}",
        allowed="a tensor, an output called logits, a single output, or one that outputs=NAME declares",
        remedy="hessfig.Problem(..., outputs='NAME'), or a loss(outputs, targets) that takes all of them",
    )


class LossCandidate(NamedTuple):
    """A known loss that may be the network's own loss: its value, its targets, the loss, and the size of its terms."""

    value: Tensor
    targets: Tensor
    loss: nn.Module
    size: float


KnownLoss = Callable[[Tensor, Tensor], LossCandidate]  # of an output and the targets


def _next_token(output: Tensor, targets: Tensor) -> LossCandidate:
    following = F.pad(targets[:, 1:], (0, 1), value=IGNORED)
    return _each_token(output, following)


def _each_token(output: Tensor, targets: Tensor) -> LossCandidate:
    if targets.is_floating_point() or targets.shape != output.shape[:-1]:
        raise ValueError("no classes")
    return LossCandidate(
        CrossEntropy()(output, targets), targets, CrossEntropy(), peak(output)
    )


def _entry_by_entry(
    made: Callable[[], nn.Module], output: Tensor, targets: Tensor
) -> LossCandidate:
    loss = made()
    shaped = targets.to(output.dtype).view_as(output)
    if isinstance(loss, nn.BCEWithLogitsLoss):
        size = peak(output)
    else:
        size = float(loss(output, -shaped))
    return LossCandidate(loss(output, shaped), shaped, loss, size)


_KNOWN: tuple[KnownLoss, ...] = (
    _next_token,
    _each_token,
    partial(_entry_by_entry, LOSSES["mse"]),
    partial(_entry_by_entry, nn.BCEWithLogitsLoss),
)


def _scalar(value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.numel() == 1 and value.is_floating_point():
        return value.reshape(1)
    raise not_one_number("the loss", value)
