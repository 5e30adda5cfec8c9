"""Losses and gradients of a batch and of single samples."""

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
from hessfig.errors import plain
from hessfig.rng import in_turn


class LossGradient:
    """Loss, gradient g = dL/dw and Hessian products H v = d/dw <g, v> in all parameters, by name.

    Products are computed by plain double backward: a product takes about as long as two
    gradients, and is correct for every twice differentiable network.

    Parameters
    ----------
    objective : Objective
        The loss; its network is not changed.

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

        parameters = objective.network.named_parameters()
        self._network = objective.network
        self._at = {
            name: parameter.detach().clone().requires_grad_()
            for name, parameter in parameters
        }
        with torch.enable_grad(), differentiable_twice():
            inside = {f"network.{name}": leaf for name, leaf in self._at.items()}
            self._loss = functional_call(
                Evaluated(objective.network, loss_in), inside, ()
            )
            self._gradient = gradients(
                self._loss, list(self._at.values()), create_graph=True
            )

    @property
    def recurrence_like(self) -> Tensor:
        """Type and device of vectors of recurrences (see problem.recurrence_like)."""
        leaf = next(iter(self._at.values()))
        return recurrence_like(
            self._network, leaf.dtype, sum(leaf.numel() for leaf in self._at.values())
        )

    @property
    def loss(self) -> float:
        """The value of the loss."""
        return float(self._loss.detach())

    @property
    def gradient(self) -> dict[str, Tensor]:
        """The gradient in every parameter, by name."""
        return dict(
            zip(self._at, (piece.detach() for piece in self._gradient), strict=True)
        )

    @property
    def flat(self) -> Float[Tensor, " n"]:
        """The gradient as one vector, parameter by parameter."""
        return torch.cat([piece.detach().flatten() for piece in self._gradient])

    def product(self, vector: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return H v, in the order of `flat`."""
        with torch.enable_grad(), differentiable_twice():
            return hessian_product(self._gradient, vector, list(self._at.values()))


def above_rounding(objective: Objective) -> dict[str, Bool[Tensor, "*shape"]]:
    """Return a mask of the entries of the gradient that exceed rounding, by parameter.

    An entry of the gradient in float64 counts if it exceeds a millionth of the largest
    difference to the gradient in float32 in the same parameter, or if the float32
    gradient agrees with it to within half of it (a row of an embedding with little
    effect). If the loss does not depend on a parameter (the bias of the keys under a
    softmax), rounding in float64 is about 1e-9 of that difference. If the network does
    not run in float32, every entry counts.
    """
    exact = LossGradient(objective.cast(torch.float64)).gradient
    try:
        rough = LossGradient(objective.cast(torch.float32)).gradient
    except (RuntimeError, TypeError):
        return {
            name: torch.ones_like(one, dtype=torch.bool) for name, one in exact.items()
        }
    off = {name: (one - rough[name].double()).abs() for name, one in exact.items()}
    small = {
        name: one.abs() <= _OF_ROUNDING * max(off[name].flatten().tolist(), default=0.0)
        for name, one in exact.items()
    }
    return {
        name: ~(small[name] & (off[name] > one.abs() / 2))
        for name, one in exact.items()
    }


_OF_ROUNDING = (
    1e-6  # share of the rounding of float32; rounding of float64 is a share of 2e-9
)


class WholeHessian:
    """The Hessian in all parameters as an operator of spectral methods, with its products counted."""

    def __init__(self, slope: LossGradient) -> None:
        self._slope = slope
        self.dim = len(slope.flat)
        self.products = 0
        self.like = slope.recurrence_like
        self.rounding = 100 * torch.finfo(slope.flat.dtype).eps

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return H V."""
        self.products += vectors.shape[1]
        given = vectors.to(self._slope.flat)
        return torch.stack([self._slope.product(one) for one in given.T], dim=1).to(
            vectors
        )

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Raise ArithmeticError if products by double backward are not symmetric."""
        if asymmetry > 1e5 * self.rounding * size:
            raise ArithmeticError(
                f"products of H are not symmetric: off by {asymmetry / size:.2g}"
            )


def hessian_product(
    slopes: Sequence[Tensor], vector: Float[Tensor, " n"], at: Sequence[Tensor]
) -> Float[Tensor, " n"]:
    """Return d/dw <g, v> for a gradient g with a graph, one tensor per parameter in `at`."""
    pieces = zip(slopes, vector.split([slope.numel() for slope in slopes]), strict=True)
    along = torch.stack([slope.flatten() @ piece for slope, piece in pieces]).sum()
    return torch.cat([piece.flatten() for piece in gradients(along, at)])


class Evaluated(nn.Module):
    """A function of a network as a module, so that functional_call can replace the parameters of the network."""

    def __init__(self, network: nn.Module, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.network, self._function = network, function

    def forward(self, *given: Any) -> Tensor:
        return self._function(self.network, *given)


def loss_of(objective: Objective) -> Float[Tensor, ""]:
    """Return the loss over all batches of the problem; batches are weighted by size if the loss is a mean."""
    losses = [
        objective.loss(
            scored_outputs(objective.network, one.inputs, one.scored), one.targets
        )
        for one in objective.batches
    ]
    if objective.loss.reduction == "sum":
        return torch.stack(losses).sum()
    sizes = torch.tensor(
        [one.size for one in objective.batches], dtype=torch.float64
    ).to(losses[0])
    return (torch.stack(losses) * sizes / sizes.sum()).sum()


def loss_value(objective: Objective) -> Float[Tensor, ""]:
    """Return the loss over all batches without a graph."""
    with evaluating(objective.network):
        return loss_of(objective).detach()


def is_finite(objective: Objective) -> bool:
    """Whether the weights are finite, no output is NaN, and the loss of every batch is finite."""
    names = {weight.parameter for weight in objective.layout.weights}
    if not all(
        bool(objective.network.get_parameter(name).isfinite().all()) for name in names
    ):
        return False
    with evaluating(objective.network):
        return all(
            _is_finite_on(objective, batch) for batch in objective.batches if batch.size
        )


def _is_finite_on(objective: Objective, batch: Batch) -> bool:
    outputs = scored_outputs(objective.network, batch.inputs, batch.scored)
    return not bool(outputs.isnan().any()) and bool(
        objective.loss(outputs, batch.targets).isfinite()
    )


AT_ONCE = 256  # samples per evaluation, the same on every machine, so that results have the same bits
GRADIENT_BYTES = 2**28  # limit for the gradients of single samples in one evaluation

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
    """

    def __init__(self, objective: Objective, count: int) -> None:
        def losses_in(network: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
            return per_sample(
                objective.loss,
                scored_outputs(network, inputs, objective.batch.scored),
                targets,
            )

        self.problem, self._body = objective, Evaluated(objective.network, losses_in)
        self._batch, self.count = objective.batch, count
        self._device = objective.batch.inputs.device
        self.at = {
            name: one.detach() for name, one in objective.network.named_parameters()
        }

    @property
    def dim(self) -> int:
        """Number of parameters."""
        return sum(one.numel() for one in self.at.values())

    def shaped(self, flat: Float[Tensor, " n"]) -> dict[str, Tensor]:
        """Return a vector in the order of the parameters as one tensor per parameter."""
        pieces = flat.to(next(iter(self.at.values()))).split(
            [one.numel() for one in self.at.values()]
        )
        named = zip(self.at.items(), pieces, strict=True)
        return {name: piece.view_as(one) for (name, one), piece in named}

    def moved(self, direction: Point, distance: float) -> dict[str, Tensor]:
        """Return w* + distance * direction."""
        return {name: one + distance * direction[name] for name, one in self.at.items()}

    def losses(self, at: Point | None = None) -> Float[Tensor, " samples"]:
        """Return l_i at a point, by default at the weights w*."""
        leaves = {
            name: weight.detach().requires_grad_()
            for name, weight in (at or self.at).items()
        }
        with evaluating(self._body.network):
            pieces = [self._losses(leaves, *rows).detach() for rows in self._pieces()]
        return torch.cat(pieces)

    def along(self, direction: Point) -> Along:
        """Return losses, slopes and curvatures of all samples along a direction at w*.

        Only reverse mode is used, which is correct for every network: with weights v_i
        = 1 of the samples and s = v.l(w + tu), l_i' = d/dv_i ds/dt and l_i'' = d/dv_i
        d2s/dt2. (Forward mode over forward mode is wrong for LayerNorm.)
        """
        with torch.enable_grad(), differentiable_twice():
            pieces = [self._along(direction, *rows) for rows in self._pieces()]
        losses, slopes, curvatures = (
            torch.cat(one) for one in zip(*pieces, strict=True)
        )
        return Along(losses, slopes, curvatures)

    def summed_gradient(self, order: Tensor) -> Float[Tensor, " n"]:
        """Return the sum of the gradients of the samples in `order`, as one vector in the parameters' order."""
        total_gradient = torch.zeros(self.dim, dtype=torch.float64, device=self._device)
        for chosen in order.split(AT_ONCE):
            at = {
                name: weight.clone().requires_grad_()
                for name, weight in self.at.items()
            }
            # Checkpoints would be recomputed at other weights.
            with torch.enable_grad(), differentiable_twice():
                total = self._losses(
                    at, self._batch.inputs[chosen], self._batch.targets[chosen]
                ).sum()
                pieces = gradients(total, list(at.values()))
            total_gradient += torch.cat([piece.flatten() for piece in pieces]).double()
        return total_gradient

    def gradient_lengths(self) -> Float[Tensor, " samples"]:
        """Return |grad l_i|^2 of every sample, by torch.func.grad under vmap over samples.

        If vmap fails, or is wrong for the first sample, gradients are computed sample
        by sample.
        """
        width = next(iter(self.at.values())).element_size()
        at_once = max(1, min(AT_ONCE, GRADIENT_BYTES // (self.dim * width)))
        each = vmap(grad(self._single), in_dims=(None, 0, 0))
        first = self._gradient_length(0)
        try:
            with torch.enable_grad(), differentiable_twice():
                pieces = [
                    _lengths(each(self.at, *rows)) for rows in self._pieces(at_once)
                ]
            lengths = torch.cat(pieces)
            off = (lengths[0] - first).abs()
            why = (
                f"off by {off / first:.1%}"
                if off > 1e-3 * first + 1e-9 * lengths.max()
                else ""
            )
        except Exception as error:  # the plain gradient did not fail, so vmap does
            why = plain(f"{type(error).__name__}: {error}")
        if not why:
            return lengths
        warnings.warn(
            f"gradients of single samples under vmap: {why}; one by one",
            RuntimeWarning,
            stacklevel=2,
        )
        return torch.stack(
            [first, *(self._gradient_length(sample) for sample in range(1, self.count))]
        )

    def _gradient_length(self, sample: int) -> Float[Tensor, ""]:
        return self.summed_gradient(torch.tensor([sample])).square().sum()

    def _single(self, at: Point, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._losses(at, inputs.unsqueeze(0), targets.unsqueeze(0))[0]

    def _along(
        self, direction: Point, inputs: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        step = torch.zeros(
            (),
            dtype=next(iter(self.at.values())).dtype,
            device=self._device,
            requires_grad=True,
        )
        at = {name: one + step * direction[name] for name, one in self.at.items()}
        losses = self._losses(at, inputs, targets)
        weights = torch.ones_like(losses, requires_grad=True)
        (first,) = gradients((weights * losses).sum(), [step], create_graph=True)
        (second,) = gradients(first, [step], create_graph=True)
        (slopes,), (curvatures,) = (
            gradients(first, [weights]),
            gradients(second, [weights]),
        )
        return losses.detach(), slopes, curvatures

    def _losses(self, at: Point, inputs: Tensor, targets: Tensor) -> Tensor:
        return functional_call(
            self._body,
            {f"network.{name}": one for name, one in at.items()},
            (inputs, targets),
        )

    def _pieces(self, at_once: int = AT_ONCE) -> Iterator[tuple[Tensor, Tensor]]:
        chosen = self._batch.samples(slice(self.count))
        return zip(
            chosen.inputs.split(at_once), chosen.targets.split(at_once), strict=True
        )


def _lengths(slopes: Point) -> Float[Tensor, " samples"]:
    pieces = [one.flatten(1).double().square().sum(dim=1) for one in slopes.values()]
    return torch.stack(pieces).sum(dim=0)
