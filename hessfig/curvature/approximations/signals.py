"""Ingredients of approximations: gradients of single samples, and inputs and backpropagated vectors of linear maps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor, nn
from torch.func import functional_call

from hessfig.curvature.approximations.maps import MAPS, UnfoldedMap
from hessfig.curvature.double_backward import differentiable_twice, gradients
from hessfig.curvature.gradients import Evaluated
from hessfig.curvature.losses import (
    CrossEntropy,
    class_weights,
    curvature_of_rounding,
    divisor,
    output_gradient,
    takes_numbers,
)
from hessfig.curvature.problem import Objective, evaluating, hooked, scored_outputs
from hessfig.curvature.rounding import LOSS, SINGLES, norm
from hessfig.curvature.samples import alone, check_sum, sample_weights, samples_interact
from hessfig.errors import UserError, plain
from hessfig.weights import Weight

# Limit for gradients of single samples, and for vectors backpropagated through a linear
# map.
MOST_BYTES = 2**31


@dataclass(frozen=True)
class Signals:
    """Inputs x of a linear map at every use t, and backpropagated vectors g, one for each column of the root S.

    H_o of the weight is the sum of vec(J) vec(J)^T over columns s and samples b, with J
    = sum_t g_t x_t^T. The uses are those of a call of the whole network: all positions
    of all sequences, scored or not, in the last layer as well. A use without an effect
    whose own target is ignored (padding), or whose sample has no target, does not
    count: its x is not among the inputs of K-FAC.
    """

    inputs: Float[Tensor, "batch uses n"]
    sent_back: Float[Tensor, "columns batch uses m"]
    counts: Bool[Tensor, "batch uses"]

    @property
    def expanded(self) -> tuple[Float[Tensor, "k m"], Float[Tensor, "count n"]]:
        """All g, and the inputs of the uses that count: every use is a sample of its own."""
        return self.sent_back.flatten(0, 2), self.inputs[self.counts]

    @property
    def reduced(self) -> tuple[Float[Tensor, "k m"], Float[Tensor, "count n"]]:
        """sum_t g_t, and the mean of the inputs of the uses that count, for every sample that has one."""
        sent_back = self.sent_back.sum(dim=2).flatten(0, 1)
        any_use = self.counts.any(dim=1)
        if bool(self.counts.all()):
            return sent_back, self.inputs.mean(dim=1)
        sums = (self.inputs * self.counts[..., None]).sum(dim=1)[any_use]
        return sent_back, sums / self.counts.sum(dim=1)[any_use][:, None]

    def squares(
        self, left: Float[Tensor, "m m"], right: Float[Tensor, "n n"]
    ) -> Float[Tensor, "m n"]:
        """Return the sum over columns and samples of the squared entries of left^T J right.

        Vectors are rotated, not the matrices J: left^T J right = sum_t (left^T g_t)
        (right^T x_t)^T. With one use for each sample, the squares are products: sum_b
        (sum_s (left^T g_sb)^2) ((right^T x_b)^2)^T.
        """
        inputs = self.inputs @ right
        if inputs.shape[1] == 1:
            sums = sum((vectors[:, 0] @ left).square() for vectors in self.sent_back)
            return sums.T @ inputs[:, 0].square()
        total = torch.zeros(left.shape[1], right.shape[1], dtype=inputs.dtype)
        for vectors in self.sent_back:
            total += ((vectors @ left).mT @ inputs).square_().sum(dim=0)
        return total


class OutputSide:
    """The term of one batch, `share` times its own loss, as a function of the outputs: gradients, roots of Hessians."""

    def __init__(self, objective: Objective, share: float = 1.0) -> None:
        assert not objective.more, "a batch at a time"
        self.problem = objective
        self.share = share
        self.body = Evaluated(objective.network, self._by_position)
        self._called: set[nn.Module] = set()
        maps = [
            module for module in objective.network.modules() if isinstance(module, MAPS)
        ]
        with (
            hooked(maps, lambda called, *_: self._called.add(called)),
            evaluating(objective.network),
        ):
            self.raw = scored_outputs(
                objective.network, objective.batch.inputs, objective.batch.scored
            ).detach()
        if not self.raw.dim():
            raise UserError(
                "approximations: a network that returns its loss has no outputs to approximate from",
                got="an output of shape ()",
                allowed="networks that return one row per sample",
                remedy="return the outputs and give the loss: hessfig.Problem(network, inputs, targets, loss)",
            )
        self.outputs = self.raw.reshape(len(self.raw), -1, self.raw.shape[-1])

    def _by_position(
        self, network: nn.Module, inputs: Tensor, *, everywhere: bool = False
    ) -> Float[Tensor, "batch positions width"]:
        outputs = scored_outputs(
            network, inputs, self.problem.batch.scored, everywhere=everywhere
        )
        return outputs.reshape(len(outputs), -1, outputs.shape[-1])

    @property
    def slopes(self) -> Float[Tensor, "batch positions width"]:
        """The gradient of the loss in the outputs."""
        slope = output_gradient(self.problem.loss, self.raw, self.problem.batch.targets)
        return self.share * slope.view_as(self.outputs)

    def roots(self) -> Float[Tensor, "batch positions width width"]:
        """Return S with S S^T the Hessian of the loss in the outputs of each position.

        For cross-entropy the Hessian is (diag(p) - p p^T) / terms, with the root
        (diag(sqrt(p)) - p sqrt(p)^T) / sqrt(terms), which is accurate even if the
        softmax saturates. Raises UserError for a loss whose Hessian couples positions
        or has negative eigenvalues.
        """
        if isinstance(self.problem.loss, CrossEntropy):
            chances = self.outputs.softmax(-1)
            roots = chances.sqrt()
            root = (
                roots.diag_embed() - chances[..., None] * roots[..., None, :]
            ) / self.terms**0.5
            return self._weighted(root.flatten(2)).view_as(root)
        hessian = self._hessian(self.raw)
        values, vectors = torch.linalg.eigh(hessian)
        least = curvature_of_rounding(self.slopes, self.raw)
        if (
            float(values.min())
            < -LOSS.of(values.dtype) * float(values.abs().max()) - least
        ):
            raise self._refusal("is not convex in the outputs")
        return vectors * values.clamp(min=0).sqrt()[..., None, :]

    def sampled(self, generator: Generator) -> Float[Tensor, "batch positions width"]:
        """Return a gradient u in the outputs at labels drawn from the network, scaled so that E u u^T = S S^T.

        For a loss of classes whose Hessian is that of cross-entropy, the label of a
        position is drawn from its softmax. Otherwise u = S z with normal z, which is
        the gradient at a target drawn from a normal distribution.
        """
        if self._class_weights is None:
            normal = torch.randn(
                self.outputs.shape, dtype=torch.float64, generator=generator
            ).to(self.outputs)
            return (self.roots() @ normal[..., None]).squeeze(-1)
        chances = self.outputs.softmax(-1)
        # The gradient is not finite for any label there.
        drawable = chances.where(chances.isfinite(), 1.0)
        drawn = torch.multinomial(
            drawable.flatten(0, 1).cpu(), 1, generator=generator
        ).to(chances.device)
        ones = nn.functional.one_hot(drawn.view(chances.shape[:2]), chances.shape[-1])
        return self._weighted((chances - ones) / self._class_weights[1] ** 0.5)

    def _weighted(
        self, vectors: Float[Tensor, "batch positions k"]
    ) -> Float[Tensor, "batch positions k"]:
        """Return vectors times the root of the weight of their position; exactly zero if a position does not count."""
        assert self._class_weights is not None, "asked of losses of classes"
        weights = self._class_weights[0][..., None]
        return torch.where(weights > 0, vectors * weights.sqrt(), 0.0)

    @cached_property
    def _class_weights(self) -> tuple[Float[Tensor, "batch positions"], float] | None:
        """The weight w of every position and the divisor K: the Hessian in its outputs is w (diag(q) - q q^T) / K.

        For a loss of classes of unknown type, w is inferred from the Hessian at outputs
        of zero, and then checked at the outputs. None for all other losses.
        """
        loss, targets = self.problem.loss, self.problem.batch.targets
        if targets.is_floating_point():
            return None
        known = class_weights(loss, self.raw, targets)
        if known is not None:
            return self.share * known.reshape(self.outputs.shape[:2]), self.terms
        classes, chances = self.raw.shape[-1], self.outputs.softmax(-1)
        even, here = self._hessian(torch.zeros_like(self.raw)), self._hessian(self.raw)
        # Of one class: 0.
        weights = even.diagonal(dim1=-2, dim2=-1).sum(dim=-1) / max(
            1 - 1 / classes, 0.5
        )
        shaped = weights[..., None, None] * (
            chances.diag_embed() - chances[..., None] * chances[..., None, :]
        )
        is_so = float((here - shaped).norm()) <= LOSS.of(here.dtype) * float(
            weights.norm()
        )
        counting = weights * (
            weights.abs() > 100 * torch.finfo(weights.dtype).eps * weights.abs().max()
        )
        return (counting, 1.0) if is_so and bool((counting >= 0).all()) else None

    @property
    def terms(self) -> float:
        """The number of terms of the batch's own loss: the divisor of its mean, or 1 for a sum.

        For a loss of unknown type that is cross-entropy with equal weights, it follows
        from these.
        """
        loss, targets = self.problem.loss, self.problem.batch.targets
        count = 1.0 if loss.reduction == "sum" else divisor(loss, self.raw, targets)
        if count is not None:
            return count
        weights = self._class_weights[0] if self._class_weights else torch.zeros(1)
        largest = float(weights.max())
        if not largest or not torch.allclose(
            weights[weights > 0], weights.max(), rtol=LOSS.of(weights.dtype)
        ):
            raise self._refusal("is of a type whose number of terms is not known")
        return self.share / largest

    def gradients_of_samples(
        self, sent: Float[Tensor, "batch positions width"], apart: nn.Module
    ) -> dict[str, Float[Tensor, "batch ..."]]:
        """Return sum_p (d outputs_p / d w)^T sent_p of every sample, by parameter and on the CPU.

        `apart` is the network as a function of any of the samples (see `by_sample`).
        Raises UserError if the gradients do not add up to the result for the whole
        batch, so that samples interact.
        """
        parameters = {
            f"network.{name}": p for name, p in self.problem.network.named_parameters()
        }
        at = {
            name: p.detach().clone().requires_grad_() for name, p in parameters.items()
        }
        body, inputs = Evaluated(apart, self._by_position), self.problem.batch.inputs
        with torch.enable_grad(), differentiable_twice(), alone():
            of_samples = [
                _pulled(body, at, *pair)
                for pair in zip(inputs.split(1), sent.split(1), strict=True)
            ]
        stacked = [
            torch.stack(of_parameter).double().cpu()
            for of_parameter in zip(*of_samples, strict=True)
        ]
        each = dict(
            zip((name.removeprefix("network.") for name in at), stacked, strict=True)
        )
        with torch.enable_grad(), differentiable_twice():
            whole = dict(zip(each, _pulled(self.body, at, inputs, sent), strict=True))
        sizes = [
            float(gradient.reshape(len(gradient), -1).norm(dim=1).sum())
            for gradient in each.values()
        ]
        check_sum(
            whole, {name: gradient.sum(dim=0) for name, gradient in each.items()}, sizes
        )
        return each

    @property
    def counted(self) -> Bool[Tensor, " batch"]:
        """A mask of the samples that count in the loss. Raises UserError for a loss in which samples interact."""
        return sample_weights(self.problem, self.problem.batch).weights > 0

    def map_of(self, side: Sequence[Weight]) -> UnfoldedMap | None:
        """Return the linear map that the network calls and whose weight, bias, or both are `side`; None without one."""
        linear = UnfoldedMap.of(self.problem.network, side)
        return linear if linear and linear.module in self._called else None

    def signals(self, side: Sequence[Weight]) -> Signals:
        """Return the signals of a linear map, by one backward pass for each scored position and column of the root.

        Raises UserError unless the samples are the first axis of the inputs of the map.
        """
        linear = self.map_of(side)
        roots = self.roots()
        weight = side[0]
        assert linear is not None, "other blocks were left out"
        inputs: list[Tensor] = []
        calls: list[Tensor] = []
        with torch.enable_grad(), differentiable_twice():
            with hooked([linear.module], partial(_seen, linear, inputs, calls)):
                outputs = self._through_leaves(weight)
            _, positions, width = outputs.shape
            entries = (
                positions
                * width
                * sum(call.numel() * call.element_size() for call in calls)
            )
            check_bytes(entries, f"what is sent back through {weight.parameter}")
            self._check_samples(outputs, calls, weight)
            self._check_gradient(outputs, inputs, calls, linear, weight)
            sent_back = [
                self._joined(
                    _sent(
                        (outputs[:, place] * roots[:, place, :, column]).sum(),
                        calls,
                        linear,
                    )
                )
                for place in range(positions)
                for column in range(width)
            ]
        columns = torch.stack(sent_back)
        return Signals(
            self._joined(inputs), columns, self._counted_uses(linear, calls, columns)
        )

    def _counted_uses(
        self,
        linear: UnfoldedMap,
        calls: list[Tensor],
        sent_back: Float[Tensor, "columns batch uses m"],
    ) -> Bool[Tensor, "batch uses"]:
        """Return which uses of a map count: those of a sample with a target, unless their own target is ignored.

        Uses of a call that has as many positions as the outputs have a target of their
        own. If it is ignored, a use still counts where it sends something back (words
        of a prompt, to which the answer attends).
        """
        by_position, own = self._counted_positions.cpu(), list[Tensor]()
        for call in calls:
            uses = linear.by_use(call)[..., 0].numel() // len(by_position)
            of_sample = by_position.any(dim=1, keepdim=True).expand(-1, uses)
            own.append(by_position if uses == by_position.shape[1] else of_sample)
        return torch.cat(own, dim=1) | sent_back.any(dim=-1).any(dim=0)

    @cached_property
    def _counted_positions(self) -> Bool[Tensor, "batch positions"]:
        """The positions whose target counts in the loss; all of them for a loss of numbers."""
        if self._class_weights is not None:
            return self._class_weights[0] > 0
        if takes_numbers(self.problem.loss):
            return torch.ones(
                self.outputs.shape[:2], dtype=torch.bool, device=self.outputs.device
            )
        return self.slopes.any(dim=-1) | self.roots().flatten(2).any(dim=-1)

    def _through_leaves(self, weight: Weight) -> Float[Tensor, "batch positions width"]:
        """Return the outputs as a function of the leaves. Raises UserError if the network differentiates inside."""
        try:
            return self._by_position(
                self.problem.network, self.problem.batch.inputs, everywhere=True
            )
        except RuntimeError as error:
            raise UserError(
                f"quantities=[approximations]: the outputs do not only depend on the result of {weight.parameter}",
                got=plain(f"forward() differentiates through it: {error}", most=300),
                allowed="K-FAC for networks whose forward() computes no derivatives",
                remedy="leave K-FAC out: Problem.approximation('diagonal', ...); approximation.names=[diagonal]",
            ) from error

    def _joined(self, calls: list[Tensor]) -> Float[Tensor, "batch uses d"]:
        """Return the vectors of a map by sample and use, with its calls in order; in float64 on the CPU."""
        return (
            torch.cat(
                [call.reshape(len(self.raw), -1, call.shape[-1]) for call in calls],
                dim=1,
            )
            .double()
            .cpu()
        )

    def _check_samples(
        self, outputs: Tensor, calls: list[Tensor], weight: Weight
    ) -> None:
        """Raise UserError if outputs of a sample depend on rows of a call that belong to other samples.

        Samples are divided in two by each binary digit of their numbers; any two
        samples differ in one digit.
        """
        count = len(outputs)
        factors, numbers = _factors(outputs), torch.arange(count, device=outputs.device)
        parts = [
            (numbers >> digit) % 2 == side
            for digit in range((count - 1).bit_length())
            for side in (0, 1)
        ]
        is_apart = not any(len(call) % count for call in calls)
        for chosen in parts if is_apart else ():
            slopes = gradients((outputs * factors)[chosen].sum(), calls)
            is_apart = is_apart and not any(
                bool(slope.reshape(count, -1)[~chosen].any()) for slope in slopes
            )
        if not is_apart:
            raise UserError(
                f"quantities=[approximations]: the first axis of {weight.parameter}'s inputs does not run over samples",
                got=f"calls of shape {', '.join(str(tuple(call.shape)) for call in calls)} for {count} samples",
                allowed="linear maps whose inputs have independent samples as their first axis",
                remedy="name approximations without K-FAC: approximation.names=[diagonal,shampoo,soap,kfoc]",
            )

    def _check_gradient(
        self,
        outputs: Tensor,
        inputs: list[Tensor],
        calls: list[Tensor],
        linear: UnfoldedMap,
        weight: Weight,
    ) -> None:
        """Raise UserError if the sum of g x^T over all uses is not the gradient: the weight is used elsewhere, too."""
        factors, place = _factors(outputs), weight.parameter.rpartition(".")[0]
        paths = [f"{place}.{name}" if place else name for name in linear.parameters]
        leaves = [
            self.problem.network.get_parameter(path).detach().clone().requires_grad_()
            for path in paths
        ]
        at = {f"network.{path}": leaf for path, leaf in zip(paths, leaves, strict=True)}
        body = Evaluated(
            self.problem.network, partial(self._by_position, everywhere=True)
        )
        again = functional_call(body, at, (self.problem.batch.inputs,))
        whole = linear.joined(gradients((again * factors).sum(), leaves))
        sent = _sent((outputs * factors).sum(), calls, linear)
        pairs = [
            (back.flatten(0, -2), given.flatten(0, -2))
            for back, given in zip(sent, inputs, strict=True)
        ]
        size = sum(
            float((back.norm(dim=1) * given.norm(dim=1)).sum()) for back, given in pairs
        )
        off = float(
            (
                torch.stack([back.T @ given for back, given in pairs]).sum(dim=0)
                - whole
            ).norm()
        )
        if bool(whole.isfinite().all()) and not off <= SINGLES.of(whole.dtype) * size:
            raise UserError(
                f"quantities=[approximations]: {weight.parameter} is also used outside its linear map",
                got=f"the sum of g x^T over its calls is off by {off / size:.2g} of its terms",
                allowed="a weight that is used only by calls of one torch.nn.Linear or convolution",
                remedy="name approximations without K-FAC: approximation.names=[diagonal,shampoo,soap,kfoc]",
            )

    def _hessian(self, at: Tensor) -> Float[Tensor, "batch positions width width"]:
        leaf = at.detach().requires_grad_()
        with torch.enable_grad():
            value = self.problem.loss(leaf, self.problem.batch.targets)
            (slope,) = gradients(value, [leaf], create_graph=True)
            rows = [
                gradients(slope[..., place].sum(), [leaf])[0]
                for place in range(leaf.shape[-1])
            ]
            factors = torch.linspace(
                -1, 1, leaf.numel(), dtype=leaf.dtype, device=leaf.device
            ).view_as(leaf)
            (product,) = gradients((slope * factors).sum(), [leaf])
        hessian = torch.stack(rows, dim=-2)
        off = (hessian @ factors[..., None]).squeeze(-1) - product
        rounding = curvature_of_rounding(slope.detach(), at) * hessian.numel() ** 0.5
        if (
            norm(off)
            > LOSS.of(hessian.dtype) * norm(hessian) * factors.numel() ** 0.5 + rounding
        ):
            raise self._refusal(
                "couples positions, or its classes are not the last axis"
            )
        return self.share * hessian.reshape(*self.outputs.shape, -1)

    def _refusal(self, what: str) -> UserError:
        return UserError(
            f"quantities=[approximations]: the loss {what}",
            got=type(self.problem.loss).__name__,
            allowed="cross_entropy, mse, or a loss that is a convex function of the outputs of each position alone",
            remedy="name approximations that need no Fisher matrix: approximation.names=[diagonal,kfoc,kronecker_sum]",
        )


def _factors(outputs: Tensor) -> Tensor:
    """Return distinct nonzero factors, one for every entry of the outputs."""
    return torch.linspace(
        1, 2, outputs.numel(), dtype=outputs.dtype, device=outputs.device
    ).view_as(outputs)


def _pulled(
    body: nn.Module, at: Mapping[str, Tensor], inputs: Tensor, sent: Tensor
) -> list[Tensor]:
    """Return the cotangents `sent` of the outputs, pulled back to the parameters `at`."""
    outputs = functional_call(body, dict(at), (inputs,))
    if outputs.shape != sent.shape:
        raise samples_interact(
            f"outputs of shape {tuple(outputs.shape)} where {tuple(sent.shape)} belong to the samples"
        )
    return gradients((outputs * sent).sum(), list(at.values()))


def _seen(
    linear: UnfoldedMap,
    inputs: list[Tensor],
    calls: list[Tensor],
    module: nn.Module,
    given: tuple[Tensor, ...],
    output: Tensor,
) -> Tensor:
    """Record inputs and outputs of a call; the network continues with a copy, which it may modify in place.

    Outputs keep their graph, so that vectors backpropagated to an early call include
    paths through later calls.
    """
    del module
    if not given:
        raise UserError(
            "quantities=[approximations]: a linear map is called with its input by keyword",
            got="a call of a torch.nn.Linear or convolution as map(input=x)",
            allowed="calls with the input as the first argument, map(x)",
            remedy="call map(x), or leave K-FAC out: approximation.names=[diagonal,shampoo,soap,kfoc]",
        )
    inputs.append(linear.inputs(given[0].detach(), output.detach()))
    calls.append(output if output.requires_grad else output.detach().requires_grad_())
    return calls[-1].clone()


def _sent(scalar: Tensor, calls: list[Tensor], linear: UnfoldedMap) -> list[Tensor]:
    """Return the gradients of a scalar in the outputs of all calls, with the features as the last axis."""
    return [linear.by_use(gradient) for gradient in gradients(scalar, calls)]


def check_bytes(size: int, what: str) -> None:
    """Raise UserError if `what` takes more than MOST_BYTES."""
    if size > MOST_BYTES:
        raise UserError(
            f"quantities=[approximations]: {what} would take {size / 1e9:.1f} GB",
            got=f"{size / 1e9:.1f} GB",
            allowed=f"at most {MOST_BYTES / 1e9:.1f} GB",
            remedy="a smaller task.batch_size, or approximation.names=[diagonal,kfoc,kronecker_sum]",
        )
