"""Products with the Hessian of a sharded network and its parts, by differences, on the ranks that run it."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from hessfig.curvature.differences import ROUGHEST
from hessfig.curvature.double_backward import (
    differentiable_twice,
    gradients,
    narrowest_type,
)
from hessfig.curvature.loss_convexity import why_not_convex
from hessfig.curvature.richardson import Differenced, product_by_differences
from hessfig.curvature.sharded.held import Held
from hessfig.curvature.sharded.shards import (
    Shards,
    as_sharded,
    length,
    local,
    parameters_of,
    reshard,
    sharded_like,
)
from hessfig.errors import UserError, first_few
from hessfig.terms import Part

# Vectors of the size of this rank's shards that a product holds at most: the weights
# and the vector; three quotients of two each; of the step that is tried, its product
# and error, another product, and two differences of products; of the best step before
# it, the product and the error; two gradients that are being taken.
_TENSORS = 17
# Of H_f: the product of H and its error beside those of H_o, and their differences.
_OF_BOTH = 4
# Of Lanczos' recurrence, beside its basis: the last product, and the vector that is
# multiplied where it is not a row of the basis.
_OF_A_STEP = 2


class Product(NamedTuple):
    """H v in the entries of a block, and an estimate of the error of every entry: flat, this rank's shards."""

    product: Tensor
    deviation: Tensor


class Function(NamedTuple):
    """The function of a user: compute_loss(network, batch), or compute_loss(compute_outputs(network, batch), batch)."""

    compute_loss: Callable[[Any, Any], Tensor]
    compute_outputs: Callable[[Any, Any], Tensor] | None = None

    def loss(self, network: nn.Module, batch: Any) -> Tensor:
        return self.compute_loss(
            self.outputs(network, batch) if self.compute_outputs else network, batch
        )

    def outputs(self, network: nn.Module, batch: Any) -> Tensor:
        assert self.compute_outputs is not None
        return self.compute_outputs(network, batch)


class ShardedHessian:
    r"""One diagonal block of H, H_o or H_f of a loss on all ranks, as an operator on sharded vectors.

    With batches b of rank r, their weights w_rb and R ranks, the function is

    .. math:: L(w) = \sum_{r b} w_{rb} f_{rb}(w) \Big/ \sum_{r b} w_{rb},

    which is the same if every rank has the same batches. Each rank differentiates
    R w_rb f_rb / sum w, since FSDP2 takes the mean of the ranks' gradients. Products are
    differences of gradients,

    .. math:: H v = \frac{g(w + h v) - g(w - h v)}{2 h} + O(h^2), \qquad
              H_o v = J^\top B \, \frac{f(w + h v) - f(w - h v)}{2 h} + O(h^2), \qquad
              H_f v = H v - H_o v,

    extrapolated, with errors (richardson.product_by_differences). They take first-order
    hooks alone, so they work under FSDP2 and tensor parallelism, where double backward
    does not. H_f is a difference here, whose error is that of both.

    Parameters
    ----------
    network : torch.nn.Module
        Its parameters are DTensors, and plain tensors with the same entries and
        gradients on every rank. It is moved along each vector in place; afterwards its
        weights have the same bits.
    batches, batch_weights : list
        Those of this rank, and their weights.
    function : Function
    block : list of str
        Names of parameters; the others are constants.
    part : Part
        H_o and H_f are defined if the function is split at its outputs.
    """

    def __init__(
        self,
        network: nn.Module,
        batches: Sequence[Any],
        batch_weights: Sequence[float],
        function: Function,
        block: Sequence[str],
        part: Part = Part.H,
    ) -> None:
        self._network = network
        self._batches = batches
        self._function = function
        self._part = part
        named = parameters_of(network)
        mesh = next(
            one.device_mesh for one in named.values() if isinstance(one, DTensor)
        )
        self._parameters = {name: named[name] for name in block}
        self._moved = [as_sharded(one, mesh) for one in self._parameters.values()]
        self.shards = Shards(dict(zip(block, self._moved, strict=True)))
        total = torch.tensor(
            float(sum(batch_weights)), dtype=torch.float64, device=self._moved[0].device
        )
        distributed.all_reduce(total)
        # FSDP2 takes the mean of the ranks' gradients
        self._scales = [
            weight * distributed.get_world_size() / float(total)
            for weight in batch_weights
        ]
        self.dtype = self._moved[0].dtype
        self._weights = [one.clone() for one in self._moved]
        self._held_of_loss = Held()
        self._held_of_outputs = Held()
        with self._restored():
            self._unit = self._checked()

    def product(self, vector: Tensor) -> Product:
        r"""Return H v and the estimate of its error.

        With the estimated error e of the product p, it is returned if

        .. math:: |e| \le \frac{1}{10} \max\Bigl(|p|, |v| \frac{|H u|}{|u|}\Bigr)

        for a random u (for H_o, |H_o u|), as in differences.check_errors: the product of a
        vector that H maps to zero consists of rounding, and may have the error that is allowed
        for a typical product. The typical one is evaluated only if the first bound fails.

        Parameters
        ----------
        vector : tensor
            This rank's shards of v, in one piece (Shards).

        Raises
        ------
        UserError
            For a larger error.
        """
        done, along = self._differenced(vector, self._part)
        error = length(done.deviation)
        size = length(done.product)
        if error > ROUGHEST * size:
            size = max(size, length(along) * self._typical)
        if not error <= ROUGHEST * size:
            raise UserError(
                "products by differences of gradients are too rough",
                got=f"an error of {100 * error / size:.2g} % of the product"
                if size
                else "a product of length 0",
                allowed=f"at most {100 * ROUGHEST:g} %",
                remedy="parameters in float64, or computations in float32 (MixedPrecisionPolicy)",
            )
        return Product(self.shards.flat(done.product), self.shards.flat(done.deviation))

    def loss_and_gradient(self) -> tuple[float, dict[str, DTensor]]:
        """Return L(w) and its gradient in the parameters of the block."""
        with self._restored():
            loss, gradient = self._loss_and_gradient(self._weights)
        return loss, dict(zip(self._parameters, gradient, strict=True))

    @cached_property
    def _typical(self) -> float:
        # H_f = H - H_o may be zero up to rounding.
        """|A u| / |u| for a random vector u, which is computed once.

        For H_f it is that of H: H_f = H - H_o may be zero up to rounding.
        """
        summand = Part.H if self._part == Part.H_f else self._part
        done, along = self._differenced(self.shards.probe(0, "typical"), summand)
        return length(done.product) / length(along)

    def _differenced(
        self, vector: Tensor, part: Part
    ) -> tuple[Differenced, list[DTensor]]:
        along = self.shards.tensors(vector)
        with self._restored():
            if part == Part.H:
                return self._whole(along), along
            if part == Part.H_o:
                return self._gauss_newton(along), along
            return _difference(self._whole(along), self._gauss_newton(along)), along

    def _whole(self, along: Sequence[DTensor]) -> Differenced:
        return product_by_differences(
            self._gradient, self._weights, along, unit=self._unit, length=length
        )

    def _gauss_newton(self, along: Sequence[DTensor]) -> Differenced:
        """Return H_o v = J^T B J v: J v by differences of outputs, and J^T by a backward pass.

        The error of J v is propagated in the same way: J^T B e for the deviation e of J v, an
        estimate of the error with a sign in every entry. B (J v) is a double backward pass
        through the loss alone, as a function of outputs that are a leaf.
        """
        pushed = product_by_differences(
            self._outputs, self._weights, along, unit=self._unit, length=length
        )
        product, deviation = (
            self._pulled_back(one) for one in (pushed.product, pushed.deviation)
        )
        return Differenced(product, deviation, pushed.gradients)

    def _gradient(self, weights: Sequence[Tensor]) -> list[DTensor]:
        """Return the gradient at given weights, sharded as the parameters are."""
        return self._loss_and_gradient(weights)[1]

    def _loss_and_gradient(
        self, weights: Sequence[Tensor]
    ) -> tuple[float, list[DTensor]]:
        """Return L and its gradient at given weights.

        Every rank adds R w_rb f_rb / sum w over its batches; backward passes add up the
        gradients, which FSDP2 averages over ranks, and the losses are averaged likewise.
        """
        self._move(weights)
        summed = torch.zeros((), dtype=torch.float64, device=self._moved[0].device)
        batches = zip(self._batches, self._scales, strict=True)
        for number, (batch, scale) in enumerate(batches):
            with self._held_of_loss.piece(number):
                loss = scale * self._function.loss(self._network, batch)
                loss.backward()
            summed += (
                loss.full_tensor().detach()
                if isinstance(loss, DTensor)
                else loss.detach()
            )
        distributed.all_reduce(summed)
        return float(summed) / distributed.get_world_size(), self._gradients()

    def _outputs(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Return the outputs of this rank's batches at given weights, computed as for a gradient.

        Without gradients, torch's encoder layers run in one kernel, in which nothing
        can be held.
        """
        self._move(weights)
        outputs = []
        for number, batch in enumerate(self._batches):
            with self._held_of_outputs.piece(number):
                outputs.append(self._function.outputs(self._network, batch).detach())
        reshard(self._network)
        return outputs

    def _pulled_back(self, along: Sequence[Tensor]) -> list[DTensor]:
        r"""Return J^T B u for vectors u in the outputs, at the network's own weights.

        .. math:: \sum_b s_b J_b^\top B_b u_b, \qquad B_b u_b =
                  \frac{\partial}{\partial f} \Bigl\langle \frac{\partial l}{\partial f}, u_b
                  \Bigr\rangle

        with the scales s_b of the batches, one forward and one backward pass each.
        """
        self._move(self._weights)
        for batch, scale, vector in zip(
            self._batches, self._scales, along, strict=True
        ):
            outputs = self._function.outputs(self._network, batch)
            leaf = outputs.detach().requires_grad_()
            with differentiable_twice():
                (slope,) = gradients(
                    self._function.compute_loss(leaf, batch), [leaf], create_graph=True
                )
                (curved,) = gradients(slope, [leaf], vector)
            outputs.backward(scale * curved)
        return self._gradients()

    def _move(self, weights: Sequence[Tensor]) -> None:
        """Put the network at other weights, without gradients."""
        for moved, weight in zip(self._moved, weights, strict=True):
            moved.copy_(weight)
        self._network.zero_grad(set_to_none=True)

    def _gradients(self) -> list[DTensor]:
        pairs = zip(self._parameters.values(), self._moved, strict=True)
        return [_gradient_of(parameter, like) for parameter, like in pairs]

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Restore the weights and the gradients of the network afterwards; hooks that wait for gradients do not run."""
        kept: list[tuple[Any, Any]] = [
            (parameter, parameter.grad) for parameter in self._network.parameters()
        ]
        # Backward passes add to the tensors of gradients in place.
        self._network.zero_grad(set_to_none=True)
        hooks = [parameter._post_accumulate_grad_hooks or {} for parameter, _ in kept]
        removed = [dict(each) for each in hooks]
        for each in hooks:  # an optimiser may step in one
            each.clear()
        try:
            yield
        finally:
            for each, those in zip(hooks, removed, strict=True):
                each.update(those)
            self._move(self._weights)
            for parameter, gradient in kept:
                parameter.grad = gradient

    def _checked(self) -> float:
        """Return the roundoff of the narrowest type inside the loss. Raises UserError for what has no Hessian.

        Two gradients at the same weights have to agree to half of the digits, |a - b| <=
        sqrt(u) |a|: a loss with dropout differs by per cents.
        """
        loss = self._function.loss(self._network, self._batches[0])
        if loss.shape != () or not loss.requires_grad:
            raise UserError(
                "compute_loss: not a number with a gradient",
                got=f"shape {tuple(loss.shape)}, requires_grad={loss.requires_grad}",
                allowed="a tensor of shape () that depends on the parameters",
                remedy="the mean or the sum of the losses of samples",
            )
        unit = torch.finfo(narrowest_type(loss)).eps / 2
        loss.backward()  # until then FSDP2 keeps parameters whole
        gradient = partial(self._gradient, self._weights)
        first = gradient()
        is_first = partial(_are_alike, first, most=unit**0.5)
        if not self._held_of_loss.watch(gradient, is_first) and not is_first(
            gradient()
        ):
            raise UserError(
                "two gradients at the same weights differ: the loss is random",
                got=f"training={self._network.training}",
                allowed="a function of weights and batches",
                remedy="network.eval(), and no dropout",
            )
        self._check_plain(first, unit)
        if self._part != Part.H:
            outputs = partial(self._outputs, self._weights)
            are_plain = partial(_are_alike, outputs(), most=unit**0.5)
            self._held_of_outputs.watch(outputs, are_plain)
        return unit

    def _check_plain(self, gradients: Sequence[DTensor], unit: float) -> None:
        """Raise UserError for plain tensors with another gradient on each rank: nobody adds these up.

        A gradient that differs from its mean over ranks by more than sqrt(u) of its length is
        that of the rank's own batches.
        """
        apart = []
        for (name, parameter), gradient in zip(
            self._parameters.items(), gradients, strict=True
        ):
            if not isinstance(parameter, DTensor):
                mean = gradient.to_local() / distributed.get_world_size()
                distributed.all_reduce(mean)
                difference = gradient - sharded_like(gradient, mean)
                apart += [name] * (
                    length([difference]) > unit**0.5 * length([gradient])
                )
        if apart:
            raise UserError(
                "the network is only partly sharded: plain tensors have different gradients on each rank",
                got=first_few(apart),
                allowed="DTensors, and plain tensors with one gradient",
                remedy="fully_shard(network) at the root, after its layers",
            )


def _are_alike(plain: Sequence[Any], other: Sequence[Any], *, most: float) -> bool:
    """Whether two lists of tensors differ by at most a part of the length of the first."""
    apart = [one - two for one, two in zip(plain, other, strict=True)]
    return not length(apart) > most * length(plain)


def _difference(first: Differenced, other: Differenced) -> Differenced:
    """Return the difference of two products; the sizes of their errors add up in every entry.

    The deviation d_1 + sign(d_1) |d_2| has the size |d_1| + |d_2|: the errors of H v and
    H_o v are of different differences, and need not cancel.
    """
    product = [one - two for one, two in zip(first.product, other.product, strict=True)]
    pairs = zip(first.deviation, other.deviation, strict=True)
    deviation = [one + torch.copysign(two, one) for one, two in pairs]
    return Differenced(product, deviation, first.gradients + other.gradients)


def check_convex(
    network: nn.Module, batches: Sequence[Any], function: Function
) -> None:
    """Raise UserError, on all ranks, if the loss is not convex in the outputs of a batch.

    Each rank judges its own batches (loss_convexity.why_not_convex), and all ranks learn the
    first reason of any of them, so that none goes on alone and waits for the others.
    """
    reasons = []
    for batch in batches:
        with torch.no_grad():
            outputs = function.outputs(network, batch)
        reasons.append(why_not_convex(outputs, _loss_at(function, batch)))
    reshard(network)
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, next(filter(None, reasons), ""))
    why = next(filter(None, gathered), "")
    if why:
        raise UserError(
            f"parts: H_o and H_f are not defined here: {why}",
            got="compute_outputs",
            allowed="parts='H'",
            remedy="parts='H', or outputs in which the loss is convex",
        )


def _loss_at(function: Function, batch: Any) -> Callable[[Tensor], Tensor]:
    return lambda outputs: function.compute_loss(outputs, batch)


def is_averaged(network: nn.Module) -> bool:
    """Whether FSDP2 averages the gradients of all parameters over all ranks, so that ranks may have own batches."""
    inside: list[Any] = [
        module for module in network.modules() if isinstance(module, FSDPModule)
    ]
    sharded = {id(parameter) for module in inside for parameter in module.parameters()}
    every: list[Any] = list(network.parameters())
    return all(
        id(one) in sharded and isinstance(one, DTensor) and len(one.placements) == 1
        for one in every
    )


def say_memory(
    parameters: Mapping[str, Any], parts: Sequence[Part], basis: int
) -> None:
    """Print, on rank 0, the memory that products and a basis of vectors take on every rank.

    It is that of the tensors. On CPUs glibc takes up to 2.5 times as much from the
    system, because it does not join the freed pieces of its heap; with a fixed
    MALLOC_MMAP_THRESHOLD_ it takes no more, and products take more time.
    """
    count = _TENSORS + _OF_BOTH * (Part.H_f in parts)
    if basis:
        count += _OF_A_STEP + basis
    bytes_here = sum(
        local(one).numel() * one.element_size() for one in parameters.values()
    )
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, count * bytes_here / 2**20)
    if distributed.get_rank() == 0:
        sizes = ", ".join(
            f"rank {rank}: {size:.1f} MiB" for rank, size in enumerate(gathered)
        )
        print(
            f"hessfig: vectors and gradients, in addition to the network: {sizes}",
            file=sys.stderr,
            flush=True,
        )


def _gradient_of(parameter: Any, like: Any) -> Any:
    """Return the gradient of a parameter, sharded as the parameter is."""
    gradient = parameter.grad
    if gradient is None:
        return sharded_like(like, torch.zeros_like(like.to_local()))
    if not isinstance(gradient, DTensor):
        return sharded_like(like, gradient.detach())
    return gradient.redistribute(like.device_mesh, like.placements).detach()
