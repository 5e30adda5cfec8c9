"""Finds the class labels with which a loss of a user is cross-entropy, by comparing values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hessfig.curvature.losses import IGNORED
from hessfig.curvature.rounding import norm
from hessfig.curvature.witness import peak

_SCALES = (1.0, 0.5)  # outputs are compared as they are, and scaled
_DIGITS = (
    100  # allowed rounding errors of values and gradients, in the precision of the type
)


@dataclass(frozen=True)
class Labels:
    """How the label of each row of outputs follows from the targets of a batch; by default they are the targets.

    Attributes
    ----------
    shifted : bool
        Whether a row is compared with the target of the next position.
    is_sum : bool
        Whether the loss is the sum over rows, not the mean.
    ignored : tuple of int
        Targets that do not count, besides the one that torch ignores by default.
    all_count : bool
        Whether rows that do not count are rows of the first class, to find out what a
        product takes at most.
    """

    shifted: bool = False
    is_sum: bool = False
    ignored: tuple[int, ...] = ()
    all_count: bool = False

    def of(self, targets: Tensor) -> Int[Tensor, " rows"]:
        """Return the label of every row of outputs; rows that do not count have the label IGNORED."""
        labels = (
            F.pad(targets[:, 1:], (0, 1), value=IGNORED) if self.shifted else targets
        )
        if self.ignored:
            labels = labels.masked_fill(
                torch.isin(labels, labels.new_tensor(self.ignored)), IGNORED
            )
        labels = labels.masked_fill(labels == IGNORED, 0) if self.all_count else labels
        return labels.flatten()

    def divisor(self, labels: Tensor) -> float:
        """Return the divisor of the loss over rows with these labels."""
        return 1.0 if self.is_sum else float((labels != IGNORED).sum())

    def cross_entropy(
        self, outputs: Float[Tensor, "*rows classes"], targets: Tensor
    ) -> Float[Tensor, ""]:
        """Return the loss that these labels mean."""
        labels = self.of(targets)
        return F.cross_entropy(
            outputs.flatten(0, -2), labels, reduction="sum"
        ) / self.divisor(labels)


class LabelSearch:
    """The labels with which a loss is cross-entropy for all batches seen so far.

    Value and gradient in the outputs are compared at the outputs and at scaled ones.
    Options of cross-entropy that change the function (class weights, smoothing) and
    functions that compute something else have no such labels.
    """

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss
        self._seen: dict[Labels, tuple[set[int], set[int]]] | None = (
            None  # targets of rows that count, and of others
        )

    def see(self, outputs: Tensor, targets: Tensor) -> None:
        """Compare the loss with cross-entropy on a batch."""
        here, before = dict(self._fitting(outputs, targets)), self._seen
        self._seen = (
            here
            if before is None
            else {
                one: (before[one][0] | counted, before[one][1] | other)
                for one, (counted, other) in here.items()
                if one in before
            }
        )

    @property
    def labels(self) -> Labels | None:
        """The labels, or None if there are none."""
        fitting = ((one, *targets) for one, targets in (self._seen or {}).items())
        return next(
            (
                replace(one, ignored=tuple(sorted(left)))
                for one, kept, left in fitting
                if not kept & left
            ),
            None,
        )

    def _fitting(
        self, outputs: Tensor, targets: Tensor
    ) -> Iterator[tuple[Labels, tuple[set[int], set[int]]]]:
        """Yield labels that fit a batch, with the targets of rows that count and of rows that do not.

        Rows that do not count are those without a gradient.
        """
        if (
            targets.dtype not in (torch.int64, torch.int32)
            or targets.numel() != outputs.shape[:-1].numel()
        ):
            return
        try:
            own = [
                _value_and_slope(self._loss, scale * outputs, targets)
                for scale in _SCALES
            ]
        except (
            RuntimeError,
            TypeError,
            ValueError,
            IndexError,
        ):  # it takes outputs of another form
            return
        is_counted = (
            sum(slope.flatten(0, -2).count_nonzero(dim=1) for _, slope in own) > 0
        )
        for shifted in (
            (False, True)
            if targets.ndim == 2 and targets.shape == outputs.shape[:-1]
            else (False,)
        ):
            rows = Labels(shifted).of(targets)
            counted, left = (
                {*rows[chosen].unique().tolist()}
                for chosen in (is_counted, ~is_counted)
            )
            left -= {IGNORED}
            for is_sum in (False, True):
                labels = Labels(shifted, is_sum, tuple(left - counted))
                others = (
                    _value_and_slope(labels.cross_entropy, scale * outputs, targets)
                    for scale in _SCALES
                )
                rows_over_divisor = float(
                    (labels.of(targets) != IGNORED).sum()
                ) / labels.divisor(labels.of(targets))
                if all(
                    map(partial(_agree, peak(outputs), rows_over_divisor), own, others)
                ):
                    yield replace(labels, ignored=()), (counted, left)


def _value_and_slope(
    loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> tuple[float, Tensor]:
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf, targets)
        return float(value.detach()), torch.autograd.grad(value, leaf)[0]


def _agree(
    largest: float, rows: float, one: tuple[float, Tensor], other: tuple[float, Tensor]
) -> bool:
    """Whether values and gradients are equal up to rounding of their terms.

    A row's loss logsumexp(f) - f_y is a difference of numbers as large as its outputs,
    and its gradient q - y one of probabilities; both cancel where the softmax
    saturates. `rows` is the number of rows over the divisor.
    """
    allowed = _DIGITS * torch.finfo(one[1].dtype).eps
    count = max(1, one[1].shape[:-1].numel())
    is_same_value = abs(one[0] - other[0]) <= allowed * max(abs(one[0]), rows * largest)
    return is_same_value and norm(one[1] - other[1]) <= allowed * max(
        norm(one[1]), rows / count**0.5
    )
