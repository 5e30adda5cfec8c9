"""Losses and gradients of a batch and of single samples.

A batch has the loss L(w), its gradient g and products H v; the samples i have losses
l_i(w), slopes u.grad l_i and curvatures u.H_i u along a direction u.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hessfig.curvature.double_backward import differentiable_twice, gradients
from hessfig.curvature.losses import per_sample
from hessfig.curvature.problem import (
    Batch,
    Objective,
    evaluating,
    recurrence_like,
    scored_outputs,
)
from hessfig.curvature.rounding import SYMMETRY
from hessfig.errors import plain
from hessfig.rng import in_turn


class LossGradient:
    """Loss, gradient g = dL/dw and Hessian products H v = d/dw <g, v> in all parameters, by name.

    The gradient is evaluated once, with its graph, on a copy w of the weights; every
    product is one more backward pass, through the graph of g, and takes about as long as
    two gradients. It is correct for every twice differentiable network. The graph is held
    as long as the object: the activations of all batches, and those of the backward pass.

    Parameters
    ----------
    objective : Objective
        The loss; its network is not changed.

    Attributes
    ----------
    flat : tensor, (n,)
        The gradient as one vector, parameter by parameter and each row by row, the order
        of the vectors of `product`.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import LossGradient
    >>> network = torch.nn.Linear(3, 1)
    >>> problem = hessfig.Problem(network, torch.eye(3), torch.zeros(3, 1), "mse").objective("float64")
    >>> here = LossGradient(problem)
    >>> list(here.gradient), [round(one, 4) for one in here.product(torch.tensor([1.0, 0, 0, 0]).double()).tolist()]
    (['weight', 'bias'], [0.6667, 0.0, 0.0, 0.6667])
    """

    @in_turn
    def __init__(self, objective: Objective) -> None:
        def loss_in(network: nn.Module) -> Tensor:
            return loss_of(replace(objective, network=network))

        self._network = objective.network
        self._at = {}
        for name, parameter in objective.network.named_parameters():
            self._at[name] = parameter.detach().clone().requires_grad_()
        leaves = list(self._at.values())
        evaluated = Evaluated(objective.network, loss_in)
        with torch.enable_grad(), differentiable_twice():
            self._loss = functional_call(evaluated, _of_network(self._at), ())
            self._gradient = gradients(self._loss, leaves, create_graph=True)

    @property
    def recurrence_like(self) -> Tensor:
        """Type and device of vectors of recurrences (see problem.recurrence_like)."""
        leaves = list(self._at.values())
        dim = sum(leaf.numel() for leaf in leaves)
        return recurrence_like(self._network, leaves[0].dtype, dim)

    @property
    def loss(self) -> float:
        """The value of the loss."""
        return float(self._loss.detach())

    @property
    def gradient(self) -> dict[str, Tensor]:
        """The gradient in every parameter, by name."""
        pieces = [piece.detach() for piece in self._gradient]
        return dict(zip(self._at, pieces, strict=True))

    @property
    def flat(self) -> Float[Tensor, " n"]:
        """The gradient as one vector, parameter by parameter."""
        return torch.cat([piece.detach().flatten() for piece in self._gradient])

    def product(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return H v, in the order of `flat`."""
        with torch.enable_grad(), differentiable_twice():
            return hessian_product(self._gradient, vector, list(self._at.values()))


def above_rounding(objective: Objective) -> dict[str, Bool[Tensor, "*shape"]]:
    r"""Return a mask of the entries of the gradient that exceed rounding, by parameter.

    With the gradients g in float64 and g' in float32, and d = |g - g'| with its largest
    entry d_max in the same parameter, an entry counts unless

    .. math:: |g_i| \le 10^{-6} d_\text{max} \quad \text{and} \quad d_i > |g_i| / 2.

    Rounding in float32 has the size d_max, and in float64 u_64 / u_32 = 2e-9 of it. So an
    entry that is rounding in both types (the bias of the keys under a softmax, on which
    the loss does not depend) is 2e-9 d_max, far below the first bound. An entry that is
    small but real (a row of an embedding with little effect) has the same value in both
    types, and fails the second. If the network does not run in float32, every entry counts.
    """
    exact = LossGradient(objective.cast(torch.float64)).gradient
    try:
        rough = LossGradient(objective.cast(torch.float32)).gradient
    except (RuntimeError, TypeError):
        return {name: torch.ones_like(one).bool() for name, one in exact.items()}
    masks = {}
    for name, entries in exact.items():
        difference = (entries - rough[name].double()).abs()
        largest = max(difference.flatten().tolist(), default=0.0)
        is_small = entries.abs() <= _OF_ROUNDING * largest
        differs = difference > entries.abs() / 2
        masks[name] = ~(is_small & differs)
    return masks


# Share of the rounding of float32; rounding of float64 is a share of 2e-9.
_OF_ROUNDING = 1e-6


class WholeHessian:
    """The Hessian in all parameters as an operator of spectral methods, with its products counted.

    It has the interface of spectral.lanczos.SymmetricOperator. Products in the type of the
    network are returned in the type of the vectors of the recurrence.
    """

    def __init__(self, slope: LossGradient) -> None:
        self._slope = slope
        self.dim = len(slope.flat)
        self.products = 0
        self.like = slope.recurrence_like
        self.rounding = 100 * torch.finfo(slope.flat.dtype).eps

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return H V."""
        self.products += vectors.shape[1]
        columns = vectors.to(self._slope.flat).T
        products = [self._slope.product(column) for column in columns]
        return torch.stack(products, dim=1).to(vectors)

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Raise ArithmeticError if products by double backward are not symmetric.

        The bound is 1e7 eps of the size of the products, 2e-9 in float64, but at most
        SYMMETRY: in float32 that is above 1, and no operator would exceed it.
        """
        dtype = self._slope.flat.dtype
        if asymmetry > min(1e5 * self.rounding, SYMMETRY.of(dtype)) * size:
            raise ArithmeticError(
                f"products of H are not symmetric: off by {asymmetry / size:.2g}"
            )


def hessian_product(
    slopes: Sequence[Tensor], vector: Float[Tensor, " n"], at: Sequence[Tensor]
) -> Float[Tensor, " n"]:
    r"""Return d/dw <g, v> for a gradient g with a graph, one tensor per parameter in `at`.

    .. math:: \frac{\partial}{\partial w} \sum_p g_p^\top v_p
              = \Bigl(\frac{\partial g}{\partial w}\Bigr)^\top v = H v,

    since H is symmetric. The pieces v_p of v have the sizes of the gradients, in order.
    One backward pass through the graph of g, which is kept.

    Examples
    --------
    For w_1^2 w_2 at (1, 2), H = [[2 w_2, 2 w_1], [2 w_1, 0]]:

    >>> import torch
    >>> from hessfig.curvature.gradients import hessian_product
    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> (g,) = torch.autograd.grad(w[0] ** 2 * w[1], w, create_graph=True)
    >>> hessian_product([g], torch.tensor([1.0, 0.0]), [w]).tolist()
    [4.0, 2.0]
    """
    pieces = vector.split([slope.numel() for slope in slopes])
    terms = []
    for slope, piece in zip(slopes, pieces, strict=True):
        terms.append(slope.flatten() @ piece)
    along = torch.stack(terms).sum()
    return torch.cat([product.flatten() for product in gradients(along, at)])


class Evaluated(nn.Module):
    """A function of a network as a module, so that functional_call can replace the parameters of the network."""

    def __init__(self, network: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network = network
        self._function = function

    def forward(self, *arguments: Any) -> Tensor:
        return self._function(self.network, *arguments)


def _of_network(at: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters by their names in Evaluated."""
    return {f"network.{name}": one for name, one in at.items()}


def loss_of(objective: Objective) -> Float[Tensor, ""]:
    r"""Return the loss over all batches of the problem; batches are weighted by size if the loss is a mean.

    .. math:: L = \frac{\sum_k n_k L_k}{\sum_k n_k} \text{ for a mean}, \qquad
              L = \sum_k L_k \text{ for a sum},

    with the sizes n_k of Batch.size. If n_k is the divisor of the mean over batch k, the
    first is the mean over all samples, however they are cut into batches.
    """
    losses = []
    for batch in objective.batches:
        outputs = scored_outputs(objective.network, batch.inputs, batch.scored)
        losses.append(objective.loss(outputs, batch.targets))
    if objective.loss.reduction == "sum":
        return torch.stack(losses).sum()
    sizes = torch.tensor(
        [batch.size for batch in objective.batches], dtype=torch.float64
    )
    sizes = sizes.to(losses[0])
    return (torch.stack(losses) * sizes / sizes.sum()).sum()


def loss_value(objective: Objective) -> Float[Tensor, ""]:
    """Return the loss over all batches without a graph."""
    with evaluating(objective.network):
        return loss_of(objective).detach()


def is_finite(objective: Objective) -> bool:
    """Whether the weights are finite, no output is NaN, and the loss of every batch is finite."""
    for weight in objective.layout.weights:
        parameter = objective.network.get_parameter(weight.parameter)
        if not bool(parameter.isfinite().all()):
            return False
    with evaluating(objective.network):
        batches = [batch for batch in objective.batches if batch.size]
        return all(_is_finite_on(objective, batch) for batch in batches)


def _is_finite_on(objective: Objective, batch: Batch) -> bool:
    """Whether no output of a batch is NaN, and its loss is finite."""
    outputs = scored_outputs(objective.network, batch.inputs, batch.scored)
    if bool(outputs.isnan().any()):
        return False
    return bool(objective.loss(outputs, batch.targets).isfinite())


# Samples per evaluation, the same on every machine, so that results have the same bits.
AT_ONCE = 256
# Limit for the gradients of single samples in one evaluation.
GRADIENT_BYTES = 2**28

Point = Mapping[str, Tensor]


@dataclass(frozen=True)
class Along:
    """l_i, u.grad l_i and u.H_i u of every sample at one point, for one direction u."""

    losses: Float[Tensor, " samples"]
    slopes: Float[Tensor, " samples"]
    curvatures: Float[Tensor, " samples"]


class Samples:
    """The losses l_i of the first `count` samples of the batch of a problem, as functions of all parameters.

    The samples must have equal weights and be independent of each other
    (curvature.samples.check_alike).

    Examples
    --------
    For w x of two inputs x = 1, 2 and targets 0, l_i = w^2 x^2: at w = 1 and along u =
    1 the slopes are 2 x^2, and so are the curvatures.

    >>> import torch, hessfig
    >>> from hessfig.curvature.gradients import Samples
    >>> network = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(network.weight)
    >>> problem = hessfig.Problem(network, torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1), "mse")
    >>> here = Samples(problem.objective("float64"), 2).along({"weight": torch.ones(1, 1).double()})
    >>> here.losses.tolist(), here.slopes.tolist(), here.curvatures.tolist()
    ([1.0, 4.0], [2.0, 8.0], [2.0, 8.0])
    """

    def __init__(self, objective: Objective, count: int) -> None:
        def losses_in(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
            outputs = scored_outputs(network, inputs, objective.batch.scored)
            return per_sample(objective.loss, outputs, targets)

        self.problem = objective
        self.count = count
        self._body = Evaluated(objective.network, losses_in)
        self._batch = objective.batch
        self._device = objective.batch.inputs.device
        self.at = {}
        for name, parameter in objective.network.named_parameters():
            self.at[name] = parameter.detach()

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return sum(one.numel() for one in self.at.values())

    def shaped(self, flat: Float[Tensor, " n"]) -> dict[str, Tensor]:
        """Return a vector in the order of the parameters as one tensor per parameter: the inverse of flattening."""
        weights = list(self.at.values())
        pieces = flat.to(weights[0]).split([weight.numel() for weight in weights])
        shaped = {}
        for (name, weight), piece in zip(self.at.items(), pieces, strict=True):
            shaped[name] = piece.view_as(weight)
        return shaped

    def moved(self, direction: Point, distance: float) -> dict[str, Tensor]:
        """Return w* + distance * direction."""
        return {name: one + distance * direction[name] for name, one in self.at.items()}

    def losses(self, at: Point | None = None) -> Float[Tensor, " samples"]:
        """Return l_i at a point, by default at the weights w*."""
        point = at or self.at
        leaves = {name: one.detach().requires_grad_() for name, one in point.items()}
        pieces = []
        with evaluating(self._body.network):
            for inputs, targets in self._pieces():
                pieces.append(self._losses(leaves, inputs, targets).detach())
        return torch.cat(pieces)

    def along(self, direction: Point) -> Along:
        """Return losses, slopes and curvatures of all samples along a direction at w*.

        Only reverse mode is used, which is correct for every network; forward mode over
        forward mode is wrong for LayerNorm. Let s(v, t) = sum_i v_i l_i(w* + t u). At
        t = 0 and v_i = 1,

            l_i' = d/dv_i ds/dt,    l_i'' = d/dv_i d2s/dt2,

        the gradients of two scalars: one pass serves all samples.

        Both sums are linear in v, so that their gradients in v are the coefficients l_i' and
        l_i''. Four backward passes serve a piece of at most AT_ONCE samples: ds/dt, d2s/dt2 and
        the two gradients.
        """
        pieces = []
        with torch.enable_grad(), differentiable_twice():
            for inputs, targets in self._pieces():
                pieces.append(self._along(direction, inputs, targets))
        return Along(
            torch.cat([piece.losses for piece in pieces]),
            torch.cat([piece.slopes for piece in pieces]),
            torch.cat([piece.curvatures for piece in pieces]),
        )

    def summed_gradient(self, order: Tensor) -> Float[Tensor, " n"]:
        """Return the sum of the gradients of the samples in `order`, as one vector in the parameters' order.

        The gradients of pieces of AT_ONCE samples are added in float64.

        Parameters
        ----------
        order : tensor of int
            The numbers of the samples; one that occurs twice counts twice.
        """
        total_gradient = torch.zeros(self.dim, dtype=torch.float64, device=self._device)
        for chosen in order.split(AT_ONCE):
            inputs = self._batch.inputs[chosen]
            targets = self._batch.targets[chosen]
            at = {name: one.clone().requires_grad_() for name, one in self.at.items()}
            # Checkpoints would be recomputed at other weights.
            with torch.enable_grad(), differentiable_twice():
                total = self._losses(at, inputs, targets).sum()
                pieces = gradients(total, list(at.values()))
            total_gradient += torch.cat([piece.flatten() for piece in pieces]).double()
        return total_gradient

    def gradient_lengths(self) -> Float[Tensor, " samples"]:
        r"""Return |grad l_i|^2 of every sample, by torch.func.grad under vmap over samples.

        If vmap fails, or is wrong for the first sample, gradients are computed sample by
        sample, with a warning. With the length s' of the first sample by vmap and s by a plain
        backward pass, it is wrong if

        .. math:: |s' - s| > 10^{-3} s + 10^{-9} \max_i s_i.

        The second term is for a first sample with no gradient. An evaluation takes as many
        samples as have gradients of at most GRADIENT_BYTES, and at most AT_ONCE.

        Warns
        -----
        RuntimeWarning
            If gradients are computed one by one.
        """
        width = next(iter(self.at.values())).element_size()
        at_once = max(1, min(AT_ONCE, GRADIENT_BYTES // (self.dim * width)))
        each = vmap(grad(self._single), in_dims=(None, 0, 0))
        first = self._gradient_length(0)
        why = ""
        pieces = []
        try:
            with torch.enable_grad(), differentiable_twice():
                for inputs, targets in self._pieces(at_once):
                    pieces.append(_lengths(each(self.at, inputs, targets)))
            lengths = torch.cat(pieces)
            off = (lengths[0] - first).abs()
            if off > 1e-3 * first + 1e-9 * lengths.max():
                why = f"off by {off / first:.1%}"
        except Exception as error:  # the plain gradient did not fail, so vmap does
            why = plain(f"{type(error).__name__}: {error}")
        if not why:
            return lengths
        warnings.warn(
            f"gradients of single samples under vmap: {why}; one by one",
            RuntimeWarning,
            stacklevel=2,
        )
        others = [self._gradient_length(sample) for sample in range(1, self.count)]
        return torch.stack([first, *others])

    def _gradient_length(self, sample: int) -> Float[Tensor, ""]:
        return self.summed_gradient(torch.tensor([sample])).square().sum()

    def _single(self, at: Point, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._losses(at, inputs.unsqueeze(0), targets.unsqueeze(0))[0]

    def _along(self, direction: Point, inputs: Tensor, targets: Tensor) -> Along:
        """Return losses, slopes and curvatures of some samples, as `along` says.

        With t = 0 added to the weights along u, ds/dt = sum_i v_i u.grad l_i, and d2s/dt2 =
        sum_i v_i u.H_i u. v is not used up by the first gradient: it stays in the graph.
        """
        dtype = next(iter(self.at.values())).dtype
        t = torch.zeros((), dtype=dtype, device=self._device, requires_grad=True)
        at = {name: one + t * direction[name] for name, one in self.at.items()}
        losses = self._losses(at, inputs, targets)
        v = torch.ones_like(losses, requires_grad=True)
        (first,) = gradients((v * losses).sum(), [t], create_graph=True)
        (second,) = gradients(first, [t], create_graph=True)
        (slopes,) = gradients(first, [v])
        (curvatures,) = gradients(second, [v])
        return Along(losses.detach(), slopes, curvatures)

    def _losses(self, at: Point, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional_call(self._body, _of_network(at), (inputs, targets))

    def _pieces(self, at_once: int = AT_ONCE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of `at_once` samples at a time."""
        chosen = self._batch.samples(slice(self.count))
        inputs = chosen.inputs.split(at_once)
        return zip(inputs, chosen.targets.split(at_once), strict=True)


def _lengths(slopes: Point) -> Float[Tensor, " samples"]:
    """Return the squared lengths sum_p |g_p|^2 in float64 of gradients with one sample along the first axis each."""
    pieces = [one.flatten(1).double().square().sum(dim=1) for one in slopes.values()]
    return torch.stack(pieces).sum(dim=0)
