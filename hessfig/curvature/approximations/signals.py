"""Ingredients of approximations: gradients of single samples, and inputs and backpropagated vectors of linear maps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

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

_WITHOUT_KFAC = (
    "leave K-FAC out: approximation.names=[diagonal,shampoo,soap,kfoc] of a sweep, "
    "or problem.approximation('shampoo', block)"
)
_WITHOUT_FISHER = (
    "leave Fisher matrices out: approximation.names=[diagonal,kfoc,kronecker_sum] of a sweep, "
    "or problem.approximation('kfoc', block)"
)
# Limit for gradients of single samples, and for vectors backpropagated through a linear
# map.
MOST_BYTES = 2**31


@dataclass(frozen=True)
class Signals:
    r"""Inputs x of a linear map at every use t, and backpropagated vectors g, one for each column of the root S.

    With S S^T the Hessian of the loss in the outputs of a position, and the derivative J of
    column s of sample b in the weight,

    .. math:: H_o = \sum_{b, s} \mathrm{vec}_r(J_{bs}) \, \mathrm{vec}_r(J_{bs})^\top, \qquad
              J_{bs} = \sum_t g_{bst} \, x_{bt}^\top,

    since H_o = J_f^T S S^T J_f, and J_f^T S e_s is what column s sends back through the
    outputs. The uses are those of a call of the whole network: all positions of all
    sequences, scored or not, in the last layer as well. A use without an effect whose own
    target is ignored (padding), or whose sample has no target, does not count: its x is not
    among the inputs of K-FAC.

    Attributes
    ----------
    inputs : tensor (batch, uses, n)
    sent_back : tensor (columns, batch, uses, m)
        One row for each scored position and column of its root.
    counts : tensor of bool (batch, uses)
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
        r"""Return the sum over columns and samples of the squared entries of left^T J right.

        This is the diagonal of Q^T H_o Q, Q = left (x) right: (Q^T vec_r J) squared, entry by
        entry. Vectors are rotated, not the matrices J,

        .. math:: \mathrm{left}^\top J \, \mathrm{right} = \sum_t (\mathrm{left}^\top g_t)
                  (\mathrm{right}^\top x_t)^\top.

        With one use for each sample, the squares are products: sum_b (sum_s (left^T g_sb)^2)
        ((right^T x_b)^2)^T.
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
    """The term of one batch, `share` times its own loss, as a function of the outputs: gradients, roots of Hessians.

    Outputs of any shape are taken as (batch, positions, width): samples, scored positions
    of each, and entries of a position, between which the loss does not couple.
    """

    def __init__(self, objective: Objective, share: float = 1.0) -> None:
        assert not objective.more, "a batch at a time"
        network = objective.network
        self.problem = objective
        self.share = share
        self.body = Evaluated(network, self._by_position)
        self._called: set[nn.Module] = set()
        maps = [module for module in network.modules() if isinstance(module, MAPS)]

        def record(module: nn.Module, *_: Any) -> None:
            self._called.add(module)

        batch = objective.batch
        with hooked(maps, record), evaluating(network):
            self.raw = scored_outputs(network, batch.inputs, batch.scored).detach()
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
        """Return the outputs at the scored positions; outputs without positions have a single one."""
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
        r"""Return S with S S^T the Hessian of the loss in the outputs of each position.

        For cross-entropy the Hessian is w (diag(p) - p p^T) / terms, with the root

        .. math:: S = \sqrt{w / \text{terms}} \, \bigl(\mathrm{diag}(\sqrt{p})
                  - p \sqrt{p}^\top\bigr), \qquad
                  S S^\top = \frac{w}{\text{terms}} \bigl(\mathrm{diag}(p) - 2 p p^\top
                  + p \, (\textstyle\sum_c p_c) \, p^\top\bigr),

        and the p_c sum to 1. It is accurate even if the softmax saturates, since it contains
        the small p_c themselves; a root by eigenvalues of the matrix is not, whose entries
        p - p^2 cancel. Other losses have S = V diag(sqrt(lambda)) of the eigenvectors V and
        eigenvalues of their Hessians.

        Returns
        -------
        tensor (batch, positions, width, width)

        Raises
        ------
        UserError
            For a loss whose Hessian couples positions or has negative eigenvalues.

        Examples
        --------
        >>> import torch, hessfig
        >>> from hessfig.curvature.approximations.signals import OutputSide
        >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
        >>> side = OutputSide(problem)
        >>> root, p = side.roots()[0, 0], side.outputs.softmax(-1)[0, 0]
        >>> bool(((root @ root.T) * 3 - (p.diag() - p.outer(p))).abs().max() < 1e-15)
        True
        """
        if isinstance(self.problem.loss, CrossEntropy):
            chances = self.outputs.softmax(-1)
            roots = chances.sqrt()
            products = chances[..., None] * roots[..., None, :]
            root = (roots.diag_embed() - products) / self.terms**0.5
            return self._weighted(root.flatten(2)).view_as(root)
        values, vectors = torch.linalg.eigh(self._hessian(self.raw))
        allowed = LOSS.of(values.dtype) * float(values.abs().max())
        rounding = curvature_of_rounding(self.slopes, self.raw)
        if float(values.min()) < -allowed - rounding:
            raise self._refusal("is not convex in the outputs")
        return vectors * values.clamp(min=0).sqrt()[..., None, :]

    def sampled(self, generator: Generator) -> Float[Tensor, "batch positions width"]:
        r"""Return a gradient u in the outputs at labels drawn from the network, scaled so that E u u^T = S S^T.

        For a loss of classes whose Hessian is that of cross-entropy, the label c of a position
        is drawn from its softmax p, and

        .. math:: u = \sqrt{w / \text{terms}} \, (p - e_c), \qquad E u = 0, \qquad
                  E u u^\top = \frac{w}{\text{terms}} (\mathrm{diag}(p) - p p^\top),

        the covariance of e_c. Otherwise u = S z with normal z, which is the gradient at a target
        drawn from a normal distribution. Positions are drawn independently, so that cross terms
        vanish in the mean.
        """
        if self._class_weights is None:
            shape = self.outputs.shape
            normal = torch.randn(shape, dtype=torch.float64, generator=generator)
            z = normal.to(self.outputs)[..., None]
            return (self.roots() @ z).squeeze(-1)
        chances = self.outputs.softmax(-1)
        # Where they are not finite, the gradient is not finite for any label.
        drawable = chances.where(chances.isfinite(), 1.0).flatten(0, 1).cpu()
        drawn = torch.multinomial(drawable, 1, generator=generator)
        labels = drawn.to(chances.device).view(chances.shape[:2])
        ones = nn.functional.one_hot(labels, chances.shape[-1])
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
        r"""The weight w of every position and the divisor K: the Hessian in its outputs is w (diag(q) - q q^T) / K.

        q is the softmax of the outputs. For a loss of classes of unknown type over n classes, w
        (with K = 1) is inferred from the Hessian at outputs of zero, where q = 1/n and

        .. math:: \mathrm{tr}\bigl(w (\mathrm{diag}(q) - q q^\top)\bigr) = w (1 - 1/n),

        and then checked at the outputs: |B - w (diag(q) - q q^T)| <= t |w| over all positions,
        with t = rounding.LOSS. Weights up to 100 eps of the largest count as 0. None for all
        other losses.
        """
        loss = self.problem.loss
        targets = self.problem.batch.targets
        if targets.is_floating_point():
            return None
        known = class_weights(loss, self.raw, targets)
        if known is not None:
            return self.share * known.reshape(self.outputs.shape[:2]), self.terms
        classes = self.raw.shape[-1]
        q = self.outputs.softmax(-1)
        at_zero = self._hessian(torch.zeros_like(self.raw))
        here = self._hessian(self.raw)
        traces = at_zero.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
        # Of one class: 0, whatever it is divided by.
        weights = traces / max(1 - 1 / classes, 0.5)
        softmax_hessian = q.diag_embed() - q[..., None] * q[..., None, :]
        predicted = weights[..., None, None] * softmax_hessian
        allowed = LOSS.of(here.dtype) * float(weights.norm())
        if not float((here - predicted).norm()) <= allowed:
            return None
        rounding = 100 * torch.finfo(weights.dtype).eps * weights.abs().max()
        counting = weights * (weights.abs() > rounding)
        if not bool((counting >= 0).all()):
            return None
        return counting, 1.0

    @property
    def terms(self) -> float:
        """The number of terms of the batch's own loss: the divisor of its mean, or 1 for a sum.

        For a loss of unknown type that is cross-entropy with equal weights, it follows from
        these: a mean over K terms, times its share, has w = share / K at every position that
        counts.
        """
        loss = self.problem.loss
        if loss.reduction == "sum":
            return 1.0
        count = divisor(loss, self.raw, self.problem.batch.targets)
        if count is not None:
            return count
        weights = torch.zeros(1)
        if self._class_weights is not None:
            weights = self._class_weights[0]
        largest = weights.max()
        allowed = LOSS.of(weights.dtype)
        counting = weights[weights > 0]
        if not largest or not torch.allclose(counting, largest, rtol=allowed):
            raise self._refusal("is of a type whose number of terms is not known")
        return self.share / float(largest)

    def gradients_of_samples(
        self, sent: Float[Tensor, "batch positions width"], apart: nn.Module
    ) -> dict[str, Float[Tensor, "batch ..."]]:
        """Return sum_p (d outputs_p / d w)^T sent_p of every sample, by parameter and on the CPU.

        A backward pass for each sample alone. Their sum must be the result for the whole batch
        (samples.check_sum), which takes one more.

        Parameters
        ----------
        sent : tensor (batch, positions, width)
            The cotangents of the outputs.
        apart : torch.nn.Module
            The network as a function of any of the samples (samples.by_sample).

        Raises
        ------
        UserError
            If the gradients do not add up, so that samples interact.
        """
        names = []
        leaves = {}
        for name, parameter in self.problem.network.named_parameters():
            names.append(name)
            leaves[f"network.{name}"] = parameter.detach().clone().requires_grad_()
        body = Evaluated(apart, self._by_position)
        inputs = self.problem.batch.inputs
        by_sample = []
        with torch.enable_grad(), differentiable_twice(), alone():
            for sample, vector in zip(inputs.split(1), sent.split(1), strict=True):
                by_sample.append(_pulled(body, leaves, sample, vector))
        each = {}
        for name, gradient in zip(names, zip(*by_sample, strict=True), strict=True):
            each[name] = torch.stack(gradient).double().cpu()
        with torch.enable_grad(), differentiable_twice():
            whole = _pulled(self.body, leaves, inputs, sent)
        sums = {}
        sizes = []
        for name, by_row in each.items():
            sums[name] = by_row.sum(dim=0)
            lengths = by_row.reshape(len(by_row), -1).norm(dim=1)
            sizes.append(float(lengths.sum()))
        check_sum(dict(zip(names, whole, strict=True)), sums, sizes)
        return each

    @property
    def counted(self) -> Bool[Tensor, " batch"]:
        """A mask of the samples that count in the loss. Raises UserError for a loss in which samples interact."""
        return sample_weights(self.problem, self.problem.batch).weights > 0

    def map_of(self, side: Sequence[Weight]) -> UnfoldedMap | None:
        """Return the linear map that the network calls and whose weight, bias, or both are `side`; None without one."""
        linear = UnfoldedMap.of(self.problem.network, side)
        if linear is None or linear.module not in self._called:
            return None
        return linear

    def signals(self, side: Sequence[Weight]) -> Signals:
        """Return the signals of a linear map, by one backward pass for each scored position and column of the root.

        The vectors g_t sent back for position p and column s of S are the gradients of
        sum_b outputs_bp . S_bp[:, s] in the outputs of the calls of the map. Raises
        UserError unless the samples are the first axis of the inputs of the map.
        """
        linear = self.map_of(side)
        roots = self.roots()
        weight = side[0]
        assert linear is not None, "other blocks were left out"
        inputs: list[Tensor] = []
        calls: list[Tensor] = []
        sent_back = []
        with torch.enable_grad(), differentiable_twice():
            with hooked([linear.module], partial(_seen, linear, inputs, calls)):
                outputs = self._through_leaves(weight)
            _, positions, width = outputs.shape
            size = sum(call.numel() * call.element_size() for call in calls)
            what = f"what is sent back through {weight.parameter}"
            check_bytes(positions * width * size, what)
            self._check_samples(outputs, calls, weight)
            self._check_gradient(outputs, inputs, calls, linear, weight)
            for place in range(positions):
                for column in range(width):
                    along = outputs[:, place] * roots[:, place, :, column]
                    by_call = _sent(along.sum(), calls, linear)
                    sent_back.append(self._joined(by_call))
        columns = torch.stack(sent_back)
        counts = self._counted_uses(linear, calls, columns)
        return Signals(self._joined(inputs), columns, counts)

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
        by_position = self._counted_positions.cpu()
        of_sample = by_position.any(dim=1, keepdim=True)
        by_use = []
        for call in calls:
            uses = linear.by_use(call)[..., 0].numel() // len(by_position)
            if uses == by_position.shape[1]:
                by_use.append(by_position)
            else:
                by_use.append(of_sample.expand(-1, uses))
        has_effect = sent_back.any(dim=-1).any(dim=0)
        return torch.cat(by_use, dim=1) | has_effect

    @cached_property
    def _counted_positions(self) -> Bool[Tensor, "batch positions"]:
        """The positions whose target counts in the loss; all of them for a loss of numbers."""
        if self._class_weights is not None:
            return self._class_weights[0] > 0
        if takes_numbers(self.problem.loss):
            return torch.ones_like(self.outputs[..., 0], dtype=torch.bool)
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
                remedy=_WITHOUT_KFAC,
            ) from error

    def _joined(self, calls: list[Tensor]) -> Float[Tensor, "batch uses d"]:
        """Return the vectors of a map by sample and use, with its calls in order; in float64 on the CPU."""
        by_sample = []
        for call in calls:
            by_sample.append(call.reshape(len(self.raw), -1, call.shape[-1]))
        return torch.cat(by_sample, dim=1).double().cpu()

    def _check_samples(
        self, outputs: Tensor, calls: list[Tensor], weight: Weight
    ) -> None:
        """Raise UserError if outputs of a sample depend on rows of a call that belong to other samples."""
        count = len(outputs)
        has_samples = not any(len(call) % count for call in calls)
        if has_samples and self._are_apart(outputs, calls):
            return
        shapes = ", ".join(str(tuple(call.shape)) for call in calls)
        raise UserError(
            f"quantities=[approximations]: the first axis of {weight.parameter}'s inputs does not run over samples",
            got=f"calls of shape {shapes} for {count} samples",
            allowed="linear maps whose inputs have independent samples as their first axis",
            remedy=_WITHOUT_KFAC,
        )

    def _are_apart(self, outputs: Tensor, calls: list[Tensor]) -> bool:
        """Whether outputs of half of the samples have no gradient in the rows of the other half, for several halves.

        Samples are divided in two by each binary digit of their numbers; any two samples differ
        in one digit, and so are on different sides once. 2 ceil(log2(batch)) backward passes
        find any sample that reaches another one. Outputs have distinct factors, so that
        gradients do not cancel in their sum.
        """
        count = len(outputs)
        weighted = outputs * _factors(outputs)
        numbers = torch.arange(count, device=outputs.device)
        for digit in range((count - 1).bit_length()):
            for side in (0, 1):
                chosen = (numbers >> digit) % 2 == side
                for slope in gradients(weighted[chosen].sum(), calls):
                    if bool(slope.reshape(count, -1)[~chosen].any()):
                        return False
        return True

    def _check_gradient(
        self,
        outputs: Tensor,
        inputs: list[Tensor],
        calls: list[Tensor],
        linear: UnfoldedMap,
        weight: Weight,
    ) -> None:
        r"""Raise UserError if the sum of g x^T over all uses is not the gradient: the weight is used elsewhere, too.

        For a combination c of the outputs, with the vectors g_t that it sends back to the uses,

        .. math:: \Bigl|\sum_t g_t x_t^\top - \frac{\partial \langle c, f \rangle}{\partial W}
                  \Bigr| \le t \sum_t |g_t| |x_t|,

        with t = rounding.SINGLES: the right side bounds the terms of the sum on the left.
        """
        network = self.problem.network
        factors = _factors(outputs)
        place = weight.parameter.rpartition(".")[0]
        leaves = {}
        for name in linear.parameters:
            path = f"{place}.{name}" if place else name
            leaf = network.get_parameter(path).detach().clone().requires_grad_()
            leaves[f"network.{path}"] = leaf
        body = Evaluated(network, partial(self._by_position, everywhere=True))
        again = functional_call(body, leaves, (self.problem.batch.inputs,))
        whole = linear.joined(gradients((again * factors).sum(), list(leaves.values())))
        sent = _sent((outputs * factors).sum(), calls, linear)
        products = []
        size = 0.0
        for back, used in zip(sent, inputs, strict=True):
            g = back.flatten(0, -2)
            x = used.flatten(0, -2)
            products.append(g.T @ x)
            size += float(_size_of_sum(g, x))
        off = float((torch.stack(products).sum(dim=0) - whole).norm())
        if bool(whole.isfinite().all()) and not off <= SINGLES.of(whole.dtype) * size:
            raise UserError(
                f"quantities=[approximations]: {weight.parameter} is also used outside its linear map",
                got=f"the sum of g x^T over its calls is off by {off / size:.2g} of its terms",
                allowed="a weight that is used only by calls of one torch.nn.Linear or convolution",
                remedy=_WITHOUT_KFAC,
            )

    def _hessian(self, at: Tensor) -> Float[Tensor, "batch positions width width"]:
        """Return the Hessian of the loss in the outputs of each position.

        Row c is the gradient of the sum over positions of dl / df_c: `width` backward passes
        for all positions together. It is the row of a position alone if positions do not couple.
        A product with a vector that differs in all entries tells: B v of the whole is compared
        with that of the blocks, up to rounding.LOSS and the curvature of rounding.

        Raises
        ------
        UserError
            If positions couple.
        """
        leaf = at.detach().requires_grad_()
        rows = []
        with torch.enable_grad():
            value = self.problem.loss(leaf, self.problem.batch.targets)
            (slope,) = gradients(value, [leaf], create_graph=True)
            for place in range(leaf.shape[-1]):
                (row,) = gradients(slope[..., place].sum(), [leaf])
                rows.append(row)
            factors = _factors(leaf)
            (product,) = gradients((slope * factors).sum(), [leaf])
        hessian = torch.stack(rows, dim=-2)
        off = norm((hessian @ factors[..., None]).squeeze(-1) - product)
        rounding = curvature_of_rounding(slope.detach(), at) * hessian.numel() ** 0.5
        size = norm(hessian) * factors.numel() ** 0.5
        if off > LOSS.of(hessian.dtype) * size + rounding:
            raise self._refusal(
                "couples positions, or its classes are not the last axis"
            )
        return self.share * hessian.reshape(*self.outputs.shape, -1)

    def _refusal(self, what: str) -> UserError:
        """Return the error for a loss without the Hessian that approximations need."""
        return UserError(
            f"quantities=[approximations]: the loss {what}",
            got=type(self.problem.loss).__name__,
            allowed="cross_entropy, mse, or a loss that is a convex function of the outputs of each position alone",
            remedy=_WITHOUT_FISHER,
        )


def _factors(outputs: Tensor) -> Tensor:
    """Return distinct nonzero factors, one for every entry of the outputs."""
    factors = torch.linspace(
        1, 2, outputs.numel(), dtype=outputs.dtype, device=outputs.device
    )
    return factors.view_as(outputs)


def _size_of_sum(back: Tensor, inputs: Tensor) -> Tensor:
    """Return the sum of |g| |x| over the uses of a call: the size of the terms of sum g x^T."""
    return (back.norm(dim=1) * inputs.norm(dim=1)).sum()


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
    arguments: tuple[Tensor, ...],
    output: Tensor,
) -> Tensor:
    """Record inputs and outputs of a call; the network continues with a copy, which it may modify in place.

    Outputs keep their graph, so that vectors backpropagated to an early call include
    paths through later calls.
    """
    del module
    if not arguments:
        raise UserError(
            "quantities=[approximations]: a linear map is called with its input by keyword",
            got="a call of a torch.nn.Linear or convolution as map(input=x)",
            allowed="calls with the input as the first argument, map(x)",
            remedy=f"call map(x), or {_WITHOUT_KFAC}",
        )
    inputs.append(linear.inputs(arguments[0].detach(), output.detach()))
    call = output
    if not output.requires_grad:
        call = output.detach().requires_grad_()
    calls.append(call)
    return call.clone()


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
            remedy=f"a smaller task.batch_size, or {_WITHOUT_FISHER}",
        )
