"""Losses, and the divisors of their means over a batch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import Module
from torch.nn import functional as F

from hessfig.curvature.rounding import LOSS, norm, norm_of_all, unit_of
from hessfig.errors import UserError, first_few


class CrossEntropy(Module):
    r"""Mean over sequences and scored positions of -log softmax(logits)[target token].

    With `smoothing` s, the target distribution t is (1 - s) times the target plus s times
    the uniform distribution over the n tokens. For logits z and the softmax p, since the
    t_c sum to 1,

    .. math:: l = -\sum_c t_c \log p_c = \log \sum_c e^{z_c} - \sum_c t_c z_c, \qquad
              \frac{\partial l}{\partial z} = p - t, \qquad
              \frac{\partial^2 l}{\partial z^2} = \mathrm{diag}(p) - p p^\top.

    Smoothing changes the gradient in the logits, but not the Hessian, which is positive
    semi-definite: v^T B v is the variance of v_c under p.
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
        """Multiply by d2l/df2 = (diag(p) - p p^T) / (batch * scored) of each position.

        B v = p * (v - p.v) entry by entry: O(vocab) operations, and B is never formed. The
        divisor counts every scored position, so that no target may be ignored.

        Examples
        --------
        With two equal logits, B = [[1, -1], [-1, 1]] / 4:

        >>> import torch
        >>> from hessfig.curvature.losses import CrossEntropy
        >>> along = torch.tensor([1.0, 0.0]).reshape(1, 1, 1, 2)
        >>> CrossEntropy().hessian_product(torch.zeros(1, 1, 2), along).flatten().tolist()
        [0.25, -0.25]
        """
        p = logits.softmax(-1).unsqueeze(2)
        weighted = p * df
        scored = logits.shape[0] * logits.shape[1]
        return (weighted - p * weighted.sum(-1, keepdim=True)) / scored


class SquaredError(Module):
    """Sum or mean of (output - target)^2 over all entries.

    As a mean over the L d_V entries of F it is the paper's |F - Y|_F^2 / (L d_V), whose
    Hessian in the outputs is 2 / (L d_V) = c times the identity.
    """

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
        if self.reduction == "sum":
            return df * 2.0
        return df * (2.0 / output.numel())


class Linearised(Module):
    r"""<target, output>: with target = dl/df held fixed, its Hessian is the functional Hessian H_f (eq. 2).

    .. math:: \frac{\partial^2}{\partial w^2} \sum_i g_i f_i(w)
              = \sum_i g_i \frac{\partial^2 f_i}{\partial w^2} = H_f, \qquad
              g_i = \frac{\partial l}{\partial f_i}.

    H_f is not computed as a difference of two large Hessians, so blocks that vanish in
    theory are exactly zero, and small ones lose no digits to cancellation.
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
        self.function = function
        self.reduction = getattr(function, "reduction", "mean")

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
    r"""Return the loss of each sample; their mean over the batch is the loss, if samples have equal weights in it.

    For cross-entropy, sample i has the mean over its own targets that count,

    .. math:: l_i = \frac{1}{|K_i|} \sum_{t \in K_i} -\log p_{t, y_t},

    nan for a sample of which none counts. For a squared error it is the mean over the
    entries of the sample, and for any other mean the loss of the sample alone.

    Raises
    ------
    UserError
        For a loss that is not a mean over samples.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.losses import SquaredError, per_sample
    >>> outputs = torch.tensor([[1.0, 3.0], [0.0, 2.0]])
    >>> per_sample(SquaredError("mean"), outputs, torch.zeros(2, 2)).tolist()
    [5.0, 2.0]
    """
    count = len(output)
    if isinstance(loss, CrossEntropy):
        single = F.cross_entropy(
            output.flatten(0, -2),
            target.flatten(),
            reduction="none",
            label_smoothing=loss.smoothing,
        )
        # Ignored targets have loss 0: the mean is over the others.
        kept = (target != IGNORED).reshape(count, -1).to(single)
        rows_over_kept = kept.shape[1] / kept.sum(dim=1)
        return single.reshape(count, -1).mean(dim=1) * rows_over_kept
    if isinstance(loss, SquaredError) and loss.reduction == "mean":
        squares = (output - target).square()
        return squares.reshape(count, -1).mean(dim=1)
    if loss.reduction == "mean" and not isinstance(loss, Inside):
        pairs = zip(output.split(1), target.split(1), strict=True)
        return torch.stack([loss(*pair) for pair in pairs])
    raise no_mean(loss)


def no_mean(loss: Module) -> UserError:
    """Return the error of quantities of the first k samples for a loss that is not the mean over samples."""
    return UserError(
        "this loss is not a mean over samples, so L_k, the mean over the first k samples, is not defined",
        got=f"{type(loss).__name__} with reduction {getattr(loss, 'reduction', None)!r}",
        allowed="a loss of outputs and targets that is a mean over samples, such as cross_entropy or mse",
        remedy="task.loss=cross_entropy; in Python, divide a sum by the number of samples, or loss='cross_entropy'",
    )


def curvature_of_rounding(slope: Tensor, outputs: Tensor) -> float:
    r"""Return the size of second derivatives in the outputs that rounding makes of a gradient dl/df: 100 eps |g| / |f|.

    A gradient that is computed with the relative error eps, from outputs that vary on
    their own scale, has a derivative with an error of about eps |g| / |f|. So a loss may
    be linear up to rounding, such as log(exp(f)), whose second derivative is 1 - 1. With
    root mean squares over the entries,

    .. math:: 100 \, \epsilon \, \frac{\mathrm{rms}(g)}{\max(\mathrm{rms}(f), 1)};

    outputs below 1 count as 1, since they may cancel.
    """
    eps = torch.finfo(outputs.dtype).eps
    entries = max(outputs.numel(), 1) ** 0.5
    return 100 * eps * norm(slope) / max(norm(outputs), entries)


def output_gradient(loss: Module, output: Tensor, target: Tensor) -> Tensor:
    """Return dl/df at `output`, detached, in the shape of `output`."""
    with torch.enable_grad():
        output = output.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(output, target), output)
    return gradient.detach()


# The class that torch's cross-entropy ignores.
IGNORED = -100
_OF_NUMBERS = (
    SquaredError,
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.KLDivLoss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
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
    r"""Return the weight w of each target in cross-entropy.

    With class weights a_c and smoothing s over n classes, torch's loss of one target y is

    .. math:: (1 - s) \, a_y (-\log q_y) + \frac{s}{n} \sum_c a_c (-\log q_c), \qquad
              -\log q_c = \log \sum_b e^{z_b} - z_c,

    with the softmax q of the outputs z. Its only nonlinear term is the logarithm, which
    has the factor w = (1 - s) a_y + s mean(a): the Hessian in the outputs is
    w (diag(q) - q q^T), over the divisor of the mean. w is 0 for ignored targets. Returns
    None for other losses, and if the classes are not the last axis of the outputs.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.losses import class_weights
    >>> loss = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]), label_smoothing=0.5)
    >>> class_weights(loss, torch.zeros(3, 2), torch.tensor([0, 1, -100])).tolist()
    [1.5, 2.5, 0.0]
    """
    if isinstance(loss, CrossEntropy):
        return (target != IGNORED).to(output)
    if type(loss) is not nn.CrossEntropyLoss or target.is_floating_point():
        return None
    if (output.ndim, target.ndim) != (2, 1):
        return None
    kept = target != loss.ignore_index
    of_class = loss.weight
    if of_class is None:
        of_class = torch.ones_like(output[0])
    # Smoothing gives every class an equal share of the target.
    of_target = of_class[target.where(kept, 0)]
    smoothing = loss.label_smoothing
    return ((1 - smoothing) * of_target + smoothing * of_class.mean()) * kept


def divisor(loss: Module, output: Tensor, target: Tensor) -> float | None:
    """Return the divisor of the mean over a batch; None for a loss of unknown type.

    For numbers, the divisor is the number of entries; for classes, the summed weights
    of targets that are not ignored; for class probabilities, the number of rows (torch
    does not divide by weights there).

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.losses import divisor
    >>> divisor(torch.nn.CrossEntropyLoss(), torch.ones(3, 2), torch.tensor([0, -100, 1]))
    2.0
    """
    if type(loss) in _OF_NUMBERS:
        return float(output.numel())
    if type(loss) not in _OF_CLASSES:
        return None
    if target.is_floating_point():
        # Probabilities of all classes, which are the second axis.
        return output.numel() / output.shape[min(1, output.ndim - 1)]
    kept = target[target != getattr(loss, "ignore_index", IGNORED)]
    weight = getattr(loss, "weight", None)
    if weight is None:
        return float(kept.numel())
    return float(weight[kept].double().sum())


def batch_weights(
    loss: Module, outputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> list[float]:
    r"""Return the weight of each batch in the mean over all batches: the divisor of its own mean.

    A mean over all samples is the mean of the batches' means L_k, weighted by their
    divisors,

    .. math:: L = \frac{\sum_k d_k L_k}{\sum_k d_k}, \qquad L_k = \frac{S_k}{d_k},

    with the sums S_k of the terms of batch k. For a loss of unknown type, value and
    gradient for all outputs joined are compared with those of the batches (`_add_up`).

    Raises
    ------
    UserError
        If the batches do not add up, or with shares whose sum is not 1, so that the loss
        is neither a mean nor a sum.
    """
    divisors = [divisor(loss, *pair) for pair in zip(outputs, targets, strict=True)]
    known = [one for one in divisors if one is not None]
    if len(known) == len(divisors):
        return known
    if len(outputs) == 1:
        return [_size(outputs[0])]
    weights, are_sizes = _inferred_weights(loss, outputs, targets, "batches")
    total = sum(weights)
    if not are_sizes and not abs(total - 1) < 1e-6:
        got = f"gradients add up with shares of {total:.6g} in all"
        raise _apart(loss, got, "batches")
    return weights


def single_weights(
    loss: Module, outputs: Sequence[Tensor], targets: Sequence[Tensor]
) -> tuple[list[float], float]:
    """Return weights w_i and a divisor d such that the loss is sum_i w_i l_i / d, with l_i the loss of sample i alone.

    Samples that do not count have weight 0. For a mean over targets, w_i is the divisor
    of the sample's own mean and d their sum; for a sum all w_i and d are 1.

    Raises
    ------
    UserError
        For a loss that is not such a sum (see `batch_weights`).
    """
    is_sum = loss.reduction == "sum"
    divisors = [divisor(loss, *pair) for pair in zip(outputs, targets, strict=True)]
    known = [one for one in divisors if one is not None]
    if len(known) == len(divisors):
        if is_sum:
            return [float(one > 0) for one in known], 1.0
        return known, sum(known)
    weights, are_sizes = _inferred_weights(loss, outputs, targets, "samples")
    if are_sizes and not is_sum:
        return weights, float(len(outputs))
    return weights, 1.0


def _size(output: Tensor) -> float:
    """Return the number of samples in outputs; a loss of shape (), returned by the network itself, counts as one."""
    return float(len(output)) if output.ndim else 1.0


def _inferred_weights(
    loss: Module, outputs: Sequence[Tensor], targets: Sequence[Tensor], what: str
) -> tuple[list[float], bool]:
    """Return the weight of each output, and whether the weights are sizes; otherwise they are shares of the whole.

    If L(f_1, f_2, ...) = sum_k s_k L_k(f_k), then dL/df_k = s_k dL_k/df_k, so that s_k
    is the factor between two gradients (`_share`), and value and gradient must add up
    with these factors. Shares by the number of samples are tried first. Outputs are moved
    towards zero before (`_moved`): at a perfect fit all gradients vanish and say nothing.
    If outputs are not finite, the sizes are returned unchecked, since no result is finite
    for any weights.
    """
    sizes = [_size(output) for output in outputs]
    if not all(bool(output.isfinite().all()) for output in outputs):
        # The results are not finite for any weights.
        return sizes, True
    outputs = [_moved(output) for output in outputs]
    try:
        value, slope = _value_and_slope(loss, torch.cat(outputs), torch.cat([*targets]))
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise _apart(loss, f"{what} cannot be joined: {error}"[:200], what) from error
    slopes = slope.split([len(output) for output in outputs])
    singles = []
    shares = []
    change = 0.0
    for output, target, piece in zip(outputs, targets, slopes, strict=True):
        single = _value_and_slope(loss, output, target)
        singles.append(single)
        shares.append(_share(piece, single.slope))
        change += float((piece * output).abs().sum())
    whole = _Whole(value, slopes, change)
    is_sum = loss.reduction == "sum"
    by_size = [1.0 if is_sum else size / sum(sizes) for size in sizes]
    if _add_up(by_size, singles, whole):
        return sizes, True
    if not is_sum and _add_up(shares, singles, whole):
        return shares, False
    values = first_few([f"{single.value:.6g}" for single in singles])
    raise _apart(loss, f"{value:.6g} of all samples, {values} of the {what}", what)


class _Single(NamedTuple):
    """The value of a loss for one piece, and its gradient in the outputs."""

    value: float
    slope: Tensor


class _Whole(NamedTuple):
    """The value of a loss for all pieces, its gradient in each, and the change if outputs change by their own size."""

    value: float
    slopes: Sequence[Tensor]
    change: float


def _value_and_slope(loss: Module, output: Tensor, target: Tensor) -> _Single:
    """Return the value of a loss and its gradient in the outputs."""
    leaf = output.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf, target)
        (slope,) = torch.autograd.grad(value, leaf)
    return _Single(float(value.detach()), slope)


def _moved(output: Tensor) -> Tensor:
    """Return outputs moved slightly towards zero, where the gradient does not vanish even for a perfect fit."""
    factors = torch.linspace(
        0.9, 1.0, output.numel(), dtype=output.dtype, device=output.device
    )
    return output.detach() * factors.view_as(output)


def _share(piece: Tensor, own: Tensor) -> float:
    r"""Return the factor of a batch's own gradient in the gradient of all batches; 0 for a batch that does not count.

    The least-squares factor, which is exact if the two are parallel,

    .. math:: s = \frac{\langle g, g_k \rangle}{|g_k|^2} = \arg\min_s |g - s \, g_k|,

    with the gradient g of the whole in the outputs of the batch, and its own g_k; both
    are divided by a power of two, so that squares of tiny gradients do not underflow.
    """
    unit = unit_of(own)
    length = float((own / unit).square().sum())
    if not length > 0:
        return 0.0
    return float(((piece / unit) * (own / unit)).sum()) / length


def _add_up(shares: Sequence[float], singles: Sequence[_Single], whole: _Whole) -> bool:
    r"""Whether value and gradient of the whole are the sums of those of the pieces, relative to the sizes of the terms.

    With the shares s_k and rho = rounding.LOSS of the type,

    .. math:: \Bigl|\sum_k s_k L_k - L\Bigr| \le \rho \max\Bigl(|L|, \sum_k |s_k L_k|,
              \sum_i |g_i f_i|\Bigr), \qquad |g_{(k)} - s_k g_k| \le \rho |g|.

    A constant may make the value vanish: then its change counts if outputs f change by
    their own size, the last term.
    """
    terms = []
    differences = []
    for share, single, slope in zip(shares, singles, whole.slopes, strict=True):
        difference = slope
        # A piece that does not count may have a loss that is not finite.
        if share:
            terms.append(share * single.value)
            difference = slope - share * single.slope
        differences.append(difference)
    rounding = LOSS.of(singles[0].slope.dtype)
    size = max(abs(whole.value), sum(map(abs, terms)), whole.change)
    if not abs(sum(terms) - whole.value) <= rounding * size:
        return False
    squares = sum(float(slope.square().sum()) for slope in whole.slopes)
    length = norm_of_all(whole.slopes, squares**0.5)
    return all(norm(one) <= rounding * length for one in differences)


def _apart(loss: Module, got: str, what: str) -> UserError:
    as_one = "leave the quantities of single samples out, or "
    if what == "batches":
        as_one = "give one batch, or "
    return UserError(
        f"the losses of the {what} do not add up to that of all samples: {type(loss).__name__} with reduction "
        f"{loss.reduction!r}",
        got=got,
        allowed="a loss that is a mean over samples (weighted, perhaps), or with reduction 'sum' a sum",
        remedy=f"{as_one}set the attribute `reduction` of the loss to what it is, 'mean' or 'sum'",
    )
