"""Checks that a loss is convex in the outputs, so that the Hessian can be split into H_o and H_f."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.double_backward import differentiable_twice, gradients
from hessfig.curvature.losses import Inside, curvature_of_rounding, is_convex
from hessfig.curvature.problem import Batch, Objective, evaluating
from hessfig.errors import plain
from hessfig.rng import stream

# Relative to the largest curvature; smaller eigenvalues count as rounding.
_TOLERANCE = 1e-4


class OutputCurvature:
    """The Hessian B of a loss in the outputs of one batch, as an operator.

    B v = d/df <dl/df, v> by one backward pass through the graph of the gradient, which is
    kept; outputs are one vector of all samples, so that losses that couple samples are
    covered.

    Parameters
    ----------
    outputs : tensor
    loss : callable
        loss(outputs), one real number.

    Attributes
    ----------
    least : float
        The curvature that rounding makes of the gradient (losses.curvature_of_rounding).
    """

    rounding = torch.finfo(torch.float32).eps

    def __init__(self, outputs: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
        self._leaf = outputs.detach().requires_grad_()
        self.dim = outputs.numel()
        self.products = 0
        self.like = self._leaf.detach().new_empty(0, dtype=torch.float64)
        with torch.enable_grad():
            value = loss(self._leaf)
            (self._slope,) = gradients(value, [self._leaf], create_graph=True)
        self.least = curvature_of_rounding(self._slope.detach(), self._leaf.detach())

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return B V."""
        self.products += vectors.shape[1]
        with torch.enable_grad():
            products = [self._times(vector) for vector in vectors.T]
        return torch.stack(products, dim=1)

    def _times(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        along = (self._slope.flatten() * vector.to(self._leaf)).sum()
        return gradients(along, [self._leaf])[0].flatten().to(vector)

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Do nothing: second derivatives by double backward are symmetric up to rounding."""


def why_no_split(objective: Objective) -> str:
    """Return the reason why H cannot be split into H_o + H_f; an empty string if it can.

    Losses of the package and the common ones of torch are known to be convex. For a
    function or any other module, the smallest eigenvalue of its Hessian d^2 l / df df
    in the outputs is computed for every batch.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import why_no_split
    >>> data = torch.nn.Linear(3, 1), torch.eye(3), torch.zeros(3, 1)
    >>> why_no_split(hessfig.Problem(*data, "mse").objective("float64"))
    ''
    >>> flat = hessfig.Problem(*data, lambda outputs, targets: -(outputs - targets).square().mean())
    >>> why_no_split(flat.objective("float64")).partition(":")[0]
    'the loss is not convex in the outputs'
    """
    if objective.witness and objective.witness.no_split:
        return objective.witness.no_split
    if isinstance(objective.loss, Inside):
        made = "computed inside the network, by compute_loss, or from several outputs"
        return f"the loss is {made}, and no outputs are declared"
    if is_convex(objective.loss):
        return ""
    for batch in objective.batches:
        with differentiable_twice(), evaluating(objective.network):
            outputs = objective.network(batch.inputs).detach()
        why = why_not_convex(outputs, _loss_at(objective, batch))
        if why:
            return why
    return ""


def _loss_at(objective: Objective, batch: Batch) -> Callable[[Tensor], Tensor]:
    return lambda outputs: objective.loss(outputs, batch.targets)


def why_not_convex(outputs: Tensor, loss: Callable[[Tensor], Tensor]) -> str:
    r"""Return the reason why loss(outputs) is not convex at these outputs; an empty string if it is.

    A twice differentiable l is convex near f only if B = d^2 l / df^2 is positive
    semi-definite there, and then H_o = J^T B J is too. With the smallest eigenvalue of B to
    `tolerance` relative to lambda, the largest one in size, l is accepted if

    .. math:: \lambda_\text{min} \ge -2 \, \text{tolerance} \, |\lambda|_\text{max}
              - \text{least},

    with the curvature `least` that rounding makes: once the tolerance for the error of the
    eigenvalue, and once for rounding of B. Other outputs are not looked at: the result is
    about the batches that are measured.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.loss_convexity import why_not_convex
    >>> why_not_convex(torch.ones(3), lambda outputs: outputs.square().sum())
    ''
    >>> why_not_convex(torch.ones(2), lambda outputs: outputs.prod())
    'the loss is not convex in the outputs: its Hessian there has the eigenvalue -1'
    """
    # Known losses are convex, and need no eigenvalue.
    from hessfig.curvature.spectral.extremes import End, extremes

    try:
        with differentiable_twice():
            operator = OutputCurvature(outputs, loss)
            found = extremes(
                operator,
                End.smallest,
                tolerance=_TOLERANCE,
                generator=stream(0, "convexity"),
            )
    except RuntimeError as error:
        return plain(f"the loss has no second derivative in the outputs: {error}")
    lowest = float(found.values[0])
    if lowest < -2 * _TOLERANCE * found.scale - operator.least:
        return f"the loss is not convex in the outputs: its Hessian there has the eigenvalue {lowest:.3g}"
    return ""
