"""Losses, and the divisors of their means over a batch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Module
from torch.nn import functional as F

from hessfig.curvature.rounding import LOSS, norm, norm_of_all, unit_of
from hessfig.errors import UserError, first_few


class CrossEntropy(Module):
    """Mean over sequences and scored positions of -log softmax(logits)[target token].

    With `smoothing` s, the target distribution is (1 - s) times the target plus s times
    the uniform distribution. This changes the gradient in the logits, but not the
    Hessian.
    """

    reduction = "mean"

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(
        self, logits: Float[Tensor, "*scored vocab"], target: Tensor
    ) -> Float[Tensor, ""]:
        """Return the loss; `target` are token ids, (batch, scored) or the shape of `logits` without its last axis."""
        return F.cross_entropy(
            logits.flatten(0, -2), target.flatten(), label_smoothing=self.smoothing
        )

    def hessian_product(
        self, logits: Tensor, df: Float[Tensor, "batch scored k vocab"]
    ) -> Tensor:
        """Multiply by d2l/df2 = (diag(p) - p p^T) / (batch * scored) of each position."""
        p = logits.softmax(-1).unsqueeze(2)
        weighted = p * df
        return (weighted - p * weighted.sum(-1, keepdim=True)) / (
            logits.shape[0] * logits.shape[1]
        )


class SquaredError(Module):
    """Sum or mean of (output - target)^2 over all entries."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, output: Tensor, target: Tensor) -> Float[Tensor, ""]:
        """Return the loss. Raises ValueError unless `target` has the shape of `output`: torch would broadcast it."""
        if target.shape != output.shape:
            raise ValueError(
                f"targets {tuple(target.shape)} for outputs {tuple(output.shape)}"
            )
        return F.mse_loss(output, target, reduction=self.reduction)

    def hessian_product(
        self, output: Tensor, df: Float[Tensor, "batch scored k d"]
    ) -> Tensor:
        """Multiply by d2l/df2 = 2 I, divided by the number of entries for the mean."""
        return df * (2.0 if self.reduction == "sum" else 2.0 / output.numel())


class Linearised(Module):
    """<target, output>: with target = dl/df held fixed, its Hessian is the functional Hessian H_f (eq. 2).

    H_f is not computed as a difference of two large Hessians, so blocks that vanish in
    theory are exactly zero.
    """

    reduction = "sum"

    def forward(self, output: Tensor, target: Tensor) -> Float[Tensor, ""]:
        return (output * target).sum()


class Called(nn.Module):
    """A plain function loss(outputs, targets): a mean over samples, unless its `reduction` is "sum".

    Callers check what the function returns: a function of a user may return anything.
    """

    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function, self.reduction = function, getattr(function, "reduction", "mean")

    def forward(self, outputs: Any, targets: Tensor) -> Any:
        return self.function(outputs, targets)


class Inside(nn.Module):
    """The loss of a network whose output is its loss, so that there are no outputs to split the Hessian at."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        del targets
        return outputs.sum()


LOSSES: dict[str, Callable[[], Module]] = {
    "cross_entropy": CrossEntropy,
    "mse": partial(SquaredError, "mean"),
    "mse_sum": partial(SquaredError, "sum"),
}


def per_sample(loss: Module, output: Tensor, target: Tensor) -> Float[Tensor, " batch"]:
    """Return the loss of each sample; their mean over the batch is the loss, if samples have equal weights in it.

    Raises UserError for a loss that is not a mean over samples.
    """
    if isinstance(loss, CrossEntropy):
        rows, smoothing = output.flatten(0, -2), loss.smoothing
        single = F.cross_entropy(
            rows, target.flatten(), reduction="none", label_smoothing=smoothing
        )
        kept = (target != IGNORED).reshape(len(output), -1).to(single)
        return single.reshape(len(output), -1).mean(dim=1) * (
            kept.shape[1] / kept.sum(dim=1)
        )
    elif isinstance(loss, SquaredError) and loss.reduction == "mean":
        single = (output - target).square()
    elif loss.reduction == "mean" and not isinstance(loss, Inside):
        return torch.stack(
            [loss(*pair) for pair in zip(output.split(1), target.split(1), strict=True)]
        )
    else:
        raise no_mean(loss)
    return single.reshape(len(output), -1).mean(dim=1)


def no_mean(loss: Module) -> UserError:
    """Return the error of quantities of the first k samples for a loss that is not the mean over samples."""
    return UserError(
        "this loss is not a mean over samples, so L_k, the mean over the first k samples, is not defined",
        got=f"{type(loss).__name__} with reduction {getattr(loss, 'reduction', None)!r}",
        allowed="a loss of outputs and targets that is a mean over samples, such as cross_entropy or mse",
        remedy="task.loss=cross_entropy; in Python, divide a sum by the number of samples, or loss='cross_entropy'",
    )


def curvature_of_rounding(slope: Tensor, outputs: Tensor) -> float:
    """Return the size of second derivatives in the outputs that rounding makes of a gradient dl/df: 100 eps |g| / |f|.

    A loss may be linear up to rounding, such as log(exp(f)), whose second derivative is
    1 - 1. Root mean squares are taken; outputs below 1 count as 1, since they may
    cancel.
    """
    entries = max(outputs.numel(), 1) ** 0.5
    return (
        100 * torch.finfo(outputs.dtype).eps * norm(slope) / max(norm(outputs), entries)
    )


def output_gradient(loss: Module, output: Tensor, target: Tensor) -> Tensor:
    """Return dl/df at `output`, detached, in the shape of `output`."""
    with torch.enable_grad():
        output = output.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(output, target), output)
    return gradient.detach()


IGNORED = -100  # the class that torch's cross-entropy ignores
_OF_NUMBERS = (
    *(
        SquaredError,
        nn.MSELoss,
        nn.L1Loss,
        nn.SmoothL1Loss,
        nn.HuberLoss,
        nn.BCELoss,
        nn.BCEWithLogitsLoss,
    ),
    *(nn.KLDivLoss, nn.PoissonNLLLoss, nn.SoftMarginLoss),
)
_OF_CLASSES = (CrossEntropy, nn.CrossEntropyLoss, nn.NLLLoss)


def is_convex(loss: Module) -> bool:
    """Whether a loss is known to be convex in the outputs, by its type."""
    return type(loss) in (*_OF_NUMBERS, *_OF_CLASSES, Linearised)


def takes_numbers(loss: Module) -> bool:
    """Whether a loss compares outputs with targets of the same shape."""
    return type(loss) in _OF_NUMBERS


def of_classes(loss: Module, target: Tensor) -> bool:
    """Whether a loss compares outputs with class numbers."""
    return type(loss) in _OF_CLASSES and not target.is_floating_point()


def class_weights(loss: Module, output: Tensor, target: Tensor) -> Tensor | None:
    """Return the weight w of each target in cross-entropy.

    The Hessian in the outputs of a target is w (diag(q) - q q^T) / divisor with the
    softmax q; w is 0 for ignored targets. Returns None for other losses, and if the
    classes are not the last axis of the outputs.
    """
    if isinstance(loss, CrossEntropy):
        return (target != IGNORED).to(output)
    if (
        type(loss) is not nn.CrossEntropyLoss
        or target.is_floating_point()
        or (output.ndim, target.ndim) != (2, 1)
    ):
        return None
    kept = target != loss.ignore_index
    each = torch.ones_like(output[0]) if loss.weight is None else loss.weight
    smoothing = loss.label_smoothing
    return (
        (1 - smoothing) * each[target.where(kept, 0)] + smoothing * each.mean()
    ) * kept


def divisor(loss: Module, output: Tensor, target: Tensor) -> float | None:
    """Return the divisor of the mean over a batch; None for a loss of unknown type.

    For numbers, the divisor is the number of entries; for classes, the summed weights
    of targets that are not ignored.
    """
    if type(loss) in _OF_NUMBERS:
        return float(output.numel())
    if type(loss) not in _OF_CLASSES:
        return None
    if target.is_floating_point():  # probabilities of all classes
        return output.numel() / output.shape[min(1, output.ndim - 1)]
    kept = target[target != getattr(loss, "ignore_index", IGNORED)]
    weight = getattr(loss, "weight", None)
    return float(kept.numel()) if weight is None else float(weight[kept].double().sum())


def batch_weights(
    loss: Module, outputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> list[float]:
    """Return the weight of each batch in the mean over all batches: the divisor of its own mean.

    For a loss of unknown type, value and gradient for all outputs joined are compared
    with those of the batches. Raises UserError if they do not add up, so that the loss
    is neither a mean nor a sum.
    """
    known = [divisor(loss, *pair) for pair in zip(outputs, targets, strict=True)]
    if len(outputs) == 1 or None not in known:
        return [
            _size(output) if one is None else one
            for one, output in zip(known, outputs, strict=True)
        ]
    shown, is_mean = _shown_weights(loss, outputs, targets, "batches")
    if not is_mean and not abs(sum(shown) - 1) < 1e-6:
        raise _apart(
            loss, f"gradients add up with shares of {sum(shown):.6g} in all", "batches"
        )
    return shown


def single_weights(
    loss: Module, outputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[list[float], float]:
    """Return weights w_i and a divisor d such that the loss is sum_i w_i l_i / d, with l_i the loss of sample i alone.

    Samples that do not count have weight 0. Raises UserError for a loss that is not
    such a sum (see `batch_weights`).
    """
    known = [divisor(loss, *pair) for pair in zip(outputs, targets, strict=True)]
    if None not in known:
        counted = [one or 0.0 for one in known]
        return (
            ([float(one > 0) for one in counted], 1.0)
            if loss.reduction == "sum"
            else (counted, sum(counted))
        )
    shown, is_even = _shown_weights(loss, outputs, targets, "samples")
    return shown, float(len(outputs)) if is_even and loss.reduction != "sum" else 1.0


def _size(output: Tensor) -> float:
    """Return the number of samples in outputs; a loss of shape (), returned by the network itself, counts as one."""
    return float(len(output)) if output.ndim else 1.0


def _shown_weights(
    loss: Module, outputs: Sequence[Tensor], targets: Sequence[Tensor], what: str
) -> tuple[list[float], bool]:
    """Return the weight of each output, and whether the weights are sizes; otherwise they are shares of the whole."""
    sizes = [*map(_size, outputs)]
    if not all(bool(output.isfinite().all()) for output in outputs):
        return sizes, True  # the results are not finite for any weights
    outputs = [_moved(output) for output in outputs]
    try:
        whole, slope = _value_and_slope(
            loss, torch.cat([*outputs]), torch.cat([*targets])
        )
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise _apart(loss, f"{what} cannot be joined: {error}"[:200], what) from error
    singles = [
        _value_and_slope(loss, *pair) for pair in zip(outputs, targets, strict=True)
    ]
    pieces = slope.split([len(output) for output in outputs])
    shown = [
        _share(piece, own) for piece, (_, own) in zip(pieces, singles, strict=True)
    ]
    by_size = [1.0 if loss.reduction == "sum" else size / sum(sizes) for size in sizes]
    change = sum(
        float((piece * output).abs().sum())
        for piece, output in zip(pieces, outputs, strict=True)
    )
    if _add_up(by_size, singles, (whole, pieces), change):
        return sizes, True
    if loss.reduction != "sum" and _add_up(shown, singles, (whole, pieces), change):
        return shown, False
    values = first_few([f"{value:.6g}" for value, _ in singles])
    raise _apart(loss, f"{whole:.6g} of all samples, {values} of the {what}", what)


def _value_and_slope(
    loss: Module, output: Tensor, target: Tensor
) -> tuple[float, Tensor]:
    leaf = output.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf, target)
        return float(value.detach()), torch.autograd.grad(value, leaf)[0]


def _moved(output: Tensor) -> Tensor:
    """Return outputs moved slightly towards zero, where the gradient does not vanish even for a perfect fit."""
    factors = torch.linspace(
        0.9, 1.0, output.numel(), dtype=output.dtype, device=output.device
    )
    return output.detach() * factors.view_as(output)


def _share(piece: Tensor, own: Tensor) -> float:
    """Return the factor of a batch's own gradient in the gradient of all batches; 0 for a batch that does not count."""
    unit = unit_of(own)
    length = float((own / unit).square().sum())
    return float(((piece / unit) * (own / unit)).sum()) / length if length > 0 else 0.0


def _add_up(
    shares: Sequence[float],
    singles: Sequence[tuple[float, Tensor]],
    whole: tuple[float, Sequence[Tensor]],
    change: float,
) -> bool:
    """Whether value and gradient of the whole are the sums of those of the pieces, relative to the sizes of the terms.

    A constant may make the value vanish: then its change counts if outputs change by
    their own size, |<g, f>|.
    """
    counted = [
        (share, value, own) for share, (value, own) in zip(shares, singles, strict=True)
    ]
    terms = [share * value for share, value, _ in counted if share]
    rounding = LOSS.of(singles[0][1].dtype)
    off = [
        (piece - share * own if share else piece)
        for piece, (share, _, own) in zip(whole[1], counted, strict=True)
    ]
    length = norm_of_all(
        whole[1], sum(float(piece.square().sum()) for piece in whole[1]) ** 0.5
    )
    size = max(abs(whole[0]), sum(map(abs, terms)), change)
    return abs(sum(terms) - whole[0]) <= rounding * size and all(
        norm(one) <= rounding * length for one in off
    )


def _apart(loss: Module, got: str, what: str) -> UserError:
    as_one = (
        "give one batch, or "
        if what == "batches"
        else "leave the quantities of single samples out, or "
    )
    return UserError(
        f"the losses of the {what} do not add up to that of all samples: {type(loss).__name__} with reduction "
        f"{loss.reduction!r}",
        got=got,
        allowed="a loss that is a mean over samples (weighted, perhaps), or with reduction 'sum' a sum",
        remedy=f"{as_one}set the attribute `reduction` of the loss to what it is, 'mean' or 'sum'",
    )
