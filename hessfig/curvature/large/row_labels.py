"""Finds the class labels with which a loss of a user is cross-entropy, by comparing values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hessfig.curvature.losses import IGNORED
from hessfig.curvature.rounding import norm
from hessfig.curvature.witness import peak

# Outputs are compared as they are, and scaled.
_SCALES = (1.0, 0.5)
# Allowed rounding errors of values and gradients, in the precision of the type.
_ROUNDOFFS = 100


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
        """Return the label of every row of outputs; rows that do not count have the label IGNORED.

        Examples
        --------
        >>> import torch
        >>> from hessfig.curvature.large.row_labels import Labels
        >>> words = torch.tensor([[5, 6, 0]])
        >>> Labels(shifted=True, ignored=(0,)).of(words).tolist()
        [6, -100, -100]
        """
        labels = targets
        if self.shifted:
            # The last position has no next one.
            labels = F.pad(targets[:, 1:], (0, 1), value=IGNORED)
        if self.ignored:
            is_ignored = torch.isin(labels, labels.new_tensor(self.ignored))
            labels = labels.masked_fill(is_ignored, IGNORED)
        if self.all_count:
            labels = labels.masked_fill(labels == IGNORED, 0)
        return labels.flatten()

    def divisor(self, labels: Tensor) -> float:
        """Return the divisor of the loss over rows with these labels: the rows that count for a mean, 1 for a sum."""
        if self.is_sum:
            return 1.0
        return float((labels != IGNORED).sum())

    def cross_entropy(
        self, outputs: Float[Tensor, "*rows classes"], targets: Tensor
    ) -> Float[Tensor, ""]:
        """Return the loss that these labels mean: the sum of -log softmax(f)[label] over rows, over the divisor."""
        labels = self.of(targets)
        total = F.cross_entropy(outputs.flatten(0, -2), labels, reduction="sum")
        return total / self.divisor(labels)


class _Targets(NamedTuple):
    """The targets of rows that count in a loss, and of rows that do not: those without a gradient."""

    counting: set[int]
    others: set[int]


class LabelSearch:
    """The labels with which a loss is cross-entropy for all batches seen so far.

    Value and gradient in the outputs are compared at the outputs and at scaled ones.
    Options of cross-entropy that change the function (class weights, smoothing) and
    functions that compute something else have no such labels. The gradient of a row
    q - y that counts is not zero in floating-point numbers unless the softmax saturates,
    so that rows with a gradient at one of the scales are those that count.

    A guess that fits two points is no proof: products that follow from it are compared with
    double backward of the user's own loss (LargeNetwork.holds).
    """

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss
        # The labels that fit all batches, with the targets of these batches.
        self._fitting: dict[Labels, _Targets] | None = None

    def see(self, outputs: Tensor, targets: Tensor) -> None:
        """Compare the loss with cross-entropy on a batch; labels that fit remain if they fit all batches so far.

        Targets that count and that do not are joined over batches: a target that does both
        contradicts the labels (`labels`).
        """
        fitting = dict(self._fitting_batch(outputs, targets))
        before = self._fitting
        self._fitting = fitting
        if before is None:
            return
        for labels in list(fitting):
            if labels not in before:
                del fitting[labels]
                continue
            here = fitting[labels]
            earlier = before[labels]
            fitting[labels] = _Targets(
                earlier.counting | here.counting, earlier.others | here.others
            )

    @property
    def labels(self) -> Labels | None:
        """The labels, or None if there are none."""
        for labels, targets in (self._fitting or {}).items():
            # A target counts in all rows or in none.
            if not targets.counting & targets.others:
                return replace(labels, ignored=tuple(sorted(targets.others)))
        return None

    def _fitting_batch(
        self, outputs: Tensor, targets: Tensor
    ) -> Iterator[tuple[Labels, _Targets]]:
        """Yield the labels that fit a batch, and its targets.

        Four guesses for sequences (the target of a row is that of its position or of the next
        one, the loss is a mean or a sum), two otherwise. Targets of rows without a gradient
        are taken to be ignored.
        """
        if targets.dtype not in (torch.int64, torch.int32):
            return
        if targets.numel() != outputs.shape[:-1].numel():
            return
        try:
            results = list(_at_scales(self._loss, outputs, targets))
        except (RuntimeError, TypeError, ValueError, IndexError):
            # It takes outputs of another form.
            return
        nonzero = [row.slope.flatten(0, -2).count_nonzero(dim=1) for row in results]
        counts = sum(nonzero) > 0
        is_sequence = targets.ndim == 2 and targets.shape == outputs.shape[:-1]
        for shifted in (False, True) if is_sequence else (False,):
            rows = Labels(shifted).of(targets)
            counting = {*rows[counts].unique().tolist()}
            others = {*rows[~counts].unique().tolist()} - {IGNORED}
            for is_sum in (False, True):
                labels = Labels(shifted, is_sum, tuple(others - counting))
                if _fits(labels, results, outputs, targets):
                    yield replace(labels, ignored=()), _Targets(counting, others)


class _Result(NamedTuple):
    """The value of a loss and its gradient in the outputs."""

    value: float
    slope: Tensor


def _at_scales(
    loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, targets: Tensor
) -> Iterator[_Result]:
    """Yield value and gradient at the outputs and at scaled ones."""
    for scale in _SCALES:
        leaf = (scale * outputs).detach().requires_grad_()
        with torch.enable_grad():
            value = loss(leaf, targets)
            (slope,) = torch.autograd.grad(value, leaf)
        yield _Result(float(value.detach()), slope)


def _fits(
    labels: Labels, results: list[_Result], outputs: Tensor, targets: Tensor
) -> bool:
    """Whether cross-entropy with these labels has the results of the loss."""
    rows = labels.of(targets)
    rows_over_divisor = float((rows != IGNORED).sum()) / labels.divisor(rows)
    same = partial(_agree, peak(outputs), rows_over_divisor)
    return all(map(same, results, _at_scales(labels.cross_entropy, outputs, targets)))


def _agree(largest: float, rows: float, one: _Result, other: _Result) -> bool:
    r"""Whether values and gradients are equal up to rounding of their terms.

    A row's loss logsumexp(f) - f_y is a difference of numbers as large as its outputs,
    and its gradient q - y one of probabilities; both cancel where the softmax
    saturates. With a = 100 eps, N `rows` over the divisor, and n rows of outputs,

    .. math:: |l - l'| \le a \max(|l|, \; N \max |f|), \qquad
              |s - s'| \le a \max(|s|, \; N / \sqrt{n}),

    where n rows of gradients of size one over the divisor have the length sqrt(n) / divisor
    = N / sqrt(n) if all count.
    """
    allowed = _ROUNDOFFS * torch.finfo(one.slope.dtype).eps
    size = max(abs(one.value), rows * largest)
    if not abs(one.value - other.value) <= allowed * size:
        return False
    count = max(1, one.slope.shape[:-1].numel())
    size = max(norm(one.slope), rows / count**0.5)
    return norm(one.slope - other.slope) <= allowed * size
