"""What optimisers see of a loss: gradients of single samples, and inputs and backpropagated vectors of a linear map."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.func import functional_call

from hessfig.curvature.double_backward import differentiable_twice, gradients
from hessfig.curvature.gradients import Evaluated
from hessfig.curvature.losses import CrossEntropy, divisor, output_gradient
from hessfig.curvature.problem import Objective, evaluating, hooked, scored_outputs
from hessfig.curvature.rounding import LOSS, norm
from hessfig.errors import UserError, plain
from hessfig.weights import Weight

MOST_BYTES = 2**31  # of all gradients of single samples, and of all vectors that are sent back through a linear map


@dataclass(frozen=True)
class Signals:
    """Inputs of a linear map at every use t, and vectors g sent back to its outputs, one for each column of a root.

    H_o of its weight is the sum over columns s and samples b of vec(J) vec(J)^T with J = sum_t g_t x_t^T. The uses are
    those of a call of the whole network: all positions of all sequences, in the last layer too, scored or not.
    """

    inputs: Float[Tensor, "batch uses n"]
    sent_back: Float[Tensor, "columns batch uses m"]

    def jacobians(self) -> Iterator[Float[Tensor, "batch m n"]]:
        """Yield J of all samples, column by column."""
        for vectors in self.sent_back:
            yield vectors.mT @ self.inputs


class OutputSide:
    """A problem's loss as a function of its outputs: gradients there, and roots of its Hessian."""

    def __init__(self, problem: Objective) -> None:
        if problem.more:
            raise UserError(
                "quantities=[approximations]: the loss is that of several batches",
                got=f"{len(problem.batches)} batches",
                allowed="one batch",
                remedy="give all samples as one batch, or measure approximation.names=[diagonal,kfoc,kronecker_sum]",
            )
        self.problem, self.body = problem, Evaluated(problem.network, self._by_position)
        self._called: set[nn.Module] = set()
        linear = [module for module in problem.network.modules() if isinstance(module, nn.Linear)]
        with hooked(linear, lambda called, *_: self._called.add(called)), evaluating(problem.network):
            self.raw = scored_outputs(problem.network, problem.batch.inputs, problem.batch.scored).detach()
        self.outputs = self.raw.reshape(len(self.raw), -1, self.raw.shape[-1])

    def _by_position(
        self, network: nn.Module, inputs: Tensor, *, everywhere: bool = False
    ) -> Float[Tensor, "batch positions width"]:
        outputs = scored_outputs(network, inputs, self.problem.batch.scored, everywhere=everywhere)
        return outputs.reshape(len(outputs), -1, outputs.shape[-1])

    @property
    def slopes(self) -> Float[Tensor, "batch positions width"]:
        """The gradient of the loss in the outputs."""
        return output_gradient(self.problem.loss, self.raw, self.problem.batch.targets).view_as(self.outputs)

    def roots(self) -> Float[Tensor, "batch positions width width"]:
        """Return S with S S^T the Hessian of the loss in the outputs of each position.

        That of cross-entropy, (diag(p) - p p^T) / terms, has the root (diag(sqrt(p)) - p sqrt(p)^T) / sqrt(terms),
        which keeps its digits where the softmax saturates. Raises UserError for a loss whose Hessian couples positions,
        or has negative eigenvalues.
        """
        if isinstance(self.problem.loss, CrossEntropy):
            chances = self.outputs.softmax(-1)
            roots = chances.sqrt()
            return (roots.diag_embed() - chances[..., None] * roots[..., None, :]) / self.terms**0.5
        hessian = self._hessian()
        values, vectors = torch.linalg.eigh(hessian)
        if float(values.min()) < -LOSS.of(values.dtype) * float(values.abs().max()):
            raise self._refusal("is not convex in the outputs")
        return vectors * values.clamp(min=0).sqrt()[..., None, :]

    def sampled(self, generator: Generator) -> Float[Tensor, "batch positions width"]:
        """Return one gradient in the outputs for labels that the network draws, scaled so that E u u^T = S S^T.

        A position's label is drawn from its softmax for a loss of classes; otherwise u = S z with normal z, which is a
        gradient at a target drawn from a normal distribution.
        """
        if self.problem.batch.targets.is_floating_point():
            normal = torch.randn(self.outputs.shape, dtype=torch.float64, generator=generator).to(self.outputs)
            return (self.roots() @ normal[..., None]).squeeze(-1)
        chances = self.outputs.softmax(-1)
        drawable = chances.where(chances.isfinite(), 1.0)  # whatever is drawn there, the gradient is not finite
        drawn = torch.multinomial(drawable.flatten(0, 1).cpu(), 1, generator=generator).to(chances.device)
        ones = nn.functional.one_hot(drawn.view(chances.shape[:2]), chances.shape[-1])
        return (chances - ones) / self.terms**0.5

    @property
    def terms(self) -> float:
        """The number of terms of the loss: what its mean divides by, or 1 for a sum."""
        loss, targets = self.problem.loss, self.problem.batch.targets
        found = 1.0 if loss.reduction == "sum" else divisor(loss, self.raw, targets)
        if found is None:
            raise self._refusal("is of a type whose number of terms is not known")
        return found

    def gradients_of_samples(
        self, sent: Float[Tensor, "batch positions width"]
    ) -> dict[str, Float[Tensor, "batch ..."]]:
        """Return sum_p (d outputs_p / d w)^T sent_p of every sample, in every parameter by its name; on the CPU."""
        held = {f"network.{name}": one for name, one in self.problem.network.named_parameters()}
        _check_bytes(
            len(sent) * sum(one.numel() * one.element_size() for one in held.values()), "gradients of single samples"
        )
        at = {name: one.detach().clone().requires_grad_() for name, one in held.items()}
        found = []
        with torch.enable_grad(), differentiable_twice():
            for sample in range(len(sent)):
                rows = slice(sample, sample + 1)
                outputs = functional_call(self.body, at, (self.problem.batch.inputs[rows],))
                found.append(gradients((outputs * sent[rows]).sum(), list(at.values())))
        stacked = [torch.stack(of_parameter).double().cpu() for of_parameter in zip(*found, strict=True)]
        return dict(zip((name.removeprefix("network.") for name in at), stacked, strict=True))

    def linear_of(self, weight: Weight) -> nn.Linear | None:
        """Return the linear map that holds a weight whole and is called; None where there is none."""
        place, _, name = weight.parameter.rpartition(".")
        module = self.problem.network.get_submodule(place)
        if isinstance(module, nn.Linear) and name == "weight" and weight.index is None and module in self._called:
            return module
        return None

    def signals(self, weight: Weight) -> Signals:
        """Return what a linear map sees, by one backward pass for each scored position and column of the root.

        Raises UserError for a map whose calls do not hold one sample after the other.
        """
        module, roots = self.linear_of(weight), self.roots()
        assert module is not None, "weights of other modules were left out"
        inputs: list[Tensor] = []
        leaves: list[Tensor] = []
        with hooked([module], partial(_seen, inputs, leaves)), torch.enable_grad(), differentiable_twice():
            outputs = self._through_leaves(weight)
            _, positions, width = outputs.shape
            entries = positions * width * sum(leaf.numel() * leaf.element_size() for leaf in leaves)
            _check_bytes(entries, f"what is sent back through {weight.parameter}")
            self._check_samples(outputs, leaves, weight)
            sent_back = [
                self._joined(gradients((outputs[:, place] * roots[:, place, :, column]).sum(), leaves))
                for place in range(positions)
                for column in range(width)
            ]
        return Signals(self._joined(inputs), torch.stack(sent_back))

    def _through_leaves(self, weight: Weight) -> Float[Tensor, "batch positions width"]:
        """Return the outputs behind the leaves. Raises UserError for a network that differentiates through them."""
        try:
            return self._by_position(self.problem.network, self.problem.batch.inputs, everywhere=True)
        except RuntimeError as error:
            raise UserError(
                f"quantities=[approximations]: the outputs are no function of what {weight.parameter} returns alone",
                got=plain(f"forward() differentiates through it: {error}", most=300),
                allowed="K-FAC of networks whose forward() computes values and no derivatives",
                remedy="leave K-FAC out: Problem.approximation('diagonal', ...); approximation.names=[diagonal]",
            ) from error

    def _joined(self, calls: list[Tensor]) -> Float[Tensor, "batch uses d"]:
        """Return the vectors of every use of a map by a sample, its calls one after the other: float64, on the CPU."""
        return torch.cat([call.reshape(len(self.raw), -1, call.shape[-1]) for call in calls], dim=1).double().cpu()

    def _check_samples(self, outputs: Tensor, leaves: list[Tensor], weight: Weight) -> None:
        """Raise UserError where the first sample's outputs depend on another part of a call than its first."""
        factors = torch.linspace(-1, 1, outputs[0].numel(), dtype=outputs.dtype, device=outputs.device)
        found = gradients((outputs[0].flatten() * factors).sum(), leaves)
        count = len(outputs)
        if any(len(one) % count or bool(one.reshape(count, -1)[1:].any()) for one in found):
            raise UserError(
                f"quantities=[approximations]: the inputs of {weight.parameter} are not one sample after the other",
                got=f"calls of shape {', '.join(str(tuple(one.shape)) for one in found)} for {count} samples",
                allowed="linear maps whose inputs have the samples as their first axis, each apart from the others",
                remedy="name approximations without K-FAC: approximation.names=[diagonal,shampoo,soap,kfoc]",
            )

    def _hessian(self) -> Float[Tensor, "batch positions width width"]:
        leaf = self.raw.detach().requires_grad_()
        with torch.enable_grad():
            value = self.problem.loss(leaf, self.problem.batch.targets)
            (slope,) = gradients(value, [leaf], create_graph=True)
            rows = [gradients(slope[..., one].sum(), [leaf])[0] for one in range(leaf.shape[-1])]
            factors = torch.linspace(-1, 1, leaf.numel(), dtype=leaf.dtype, device=leaf.device).view_as(leaf)
            (product,) = gradients((slope * factors).sum(), [leaf])
        found = torch.stack(rows, dim=-2)
        off = (found @ factors[..., None]).squeeze(-1) - product
        if norm(off) > LOSS.of(found.dtype) * norm(found) * factors.numel() ** 0.5:
            raise self._refusal("couples positions, or its classes are not the last axis")
        return found.reshape(*self.outputs.shape, -1)

    def _refusal(self, what: str) -> UserError:
        return UserError(
            f"quantities=[approximations]: the loss {what}",
            got=type(self.problem.loss).__name__,
            allowed="cross_entropy, mse, or a loss that is a convex function of the outputs of each position alone",
            remedy="name approximations that need no Fisher matrix: approximation.names=[diagonal,kfoc,kronecker_sum]",
        )


def _seen(
    inputs: list[Tensor], leaves: list[Tensor], module: nn.Module, given: tuple[Tensor], output: Tensor
) -> Tensor:
    """Note inputs and outputs of a call, and let the network go on from a leaf in place of the output."""
    del module
    leaf = output.detach().requires_grad_()
    inputs.append(given[0].detach())
    leaves.append(leaf)
    return leaf


def _check_bytes(size: int, what: str) -> None:
    if size > MOST_BYTES:
        raise UserError(
            f"quantities=[approximations]: {what} would take {size / 1e9:.1f} GB",
            got=f"{size / 1e9:.1f} GB",
            allowed=f"at most {MOST_BYTES / 1e9:.1f} GB",
            remedy="a smaller task.batch_size, or approximation.names=[diagonal,kfoc,kronecker_sum]",
        )
