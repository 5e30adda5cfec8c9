"""Products by central differences of gradients, without double backward; a second step estimates their error."""

from collections.abc import Hashable, Sequence
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.column import SPLIT, Products, Rows, SidedColumn, completed, to_multiply
from hessfig.curvature.double_backward import differentiable_twice, gradients, summed
from hessfig.curvature.losses import output_gradient
from hessfig.curvature.problem import Objective, Scalar, along, evaluating
from hessfig.terms import AT_OUTPUTS, Part


def step(weights: Float[Tensor, " dim"], probe: Float[Tensor, " dim"]) -> float:
    """Return the step h = u^(1/3) |w| / |v| with the unit roundoff u of the type of the weights; |w| = 1 if w = 0.

    Central differences of gradients g have a truncation error h^2 |g'''| / 6 and a rounding error of about u |g| / h.
    The sum is smallest at h = (3 u |g| / |g'''|)^(1/3). If gradients vary on the length scale of the weights, this is
    u^(1/3) |w| for a probe of length one.
    """
    unit = torch.finfo(weights.dtype).eps / 2
    return float(unit ** (1 / 3) * (weights.double().norm() or 1.0) / probe.double().norm())


class DifferencedColumn(SidedColumn):
    """A column of blocks by differences, H v = (g(w + h v) - g(w - h v)) / 2h.

    The step h is `stretch` times that of the function `step`. H_f v is the same difference for the gradient of
    <dl/df, f> with dl/df fixed. H_o v = J^T (s(w + h v) - s(w - h v)) / 2h with s = dl/df at the moved outputs and J at
    the weights. Each part has its own difference; H, if requested alone, is the difference of gradients.

    Parameters
    ----------
    objective : Objective
        The loss.
    layer, col
        Layer and name of the weight or group; layers count from 1 (0: outside the layers).
    rows : names in the same layer, or {key: (layer, name)}
        The rows of the blocks.
    stretch : float
        Factor of the step h.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import DifferencedColumn
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> column = DifferencedColumn(problem, 0, "weight", ["weight", "bias"])
    >>> products = column.split_matmat(torch.ones(6, 1).double())
    >>> sorted((row, str(part), tuple(one.shape)) for (row, part), one in products.items())
    [('bias', 'H_f', (2, 1)), ('bias', 'H_o', (2, 1)), ('weight', 'H_f', (6, 1)), ('weight', 'H_o', (6, 1))]
    """

    def __init__(
        self, objective: Objective, layer: int, col: str, rows: Sequence[str] | Rows, *, stretch: float = 1.0
    ) -> None:
        super().__init__(objective, layer, col, rows)
        self._suffix, self._stretch = objective.suffix(self.weights), stretch
        self.bytes_per_probe = self._suffix.bytes_per_probe
        names = {parameter: name for name, parameter in self._suffix.named_parameters()}
        self._names = [names[parameter] for parameter in self.parameters]
        constants = objective.witness.constants if objective.witness else frozenset()
        self._constants = {id(objective.network.get_parameter(name)) for name in constants}
        self._squares: dict[tuple[Hashable, Part], Tensor] = {}

    def split_matmat(self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V by (row, part), for every row and each of `parts`; record the difference to a step of 2 h."""
        asked, probes = to_multiply(parts), probes.to(self.parameters[0])
        near, far = (self._products(probes, asked, self._stretch * factor) for factor in (1, 2))
        every = [*asked, Part.H] if {*AT_OUTPUTS} <= {*asked} else asked
        fine, coarse = completed(near, every), completed(far, every)
        for key, product in fine.items():
            pair = torch.stack([(product - coarse[key]).double().square().sum(), product.double().square().sum()])
            self._squares[key] = self._squares.get(key, 0) + pair
        return completed(near, parts)

    def relative_error(self, row: Hashable, part: Part) -> float:
        """Return |D_h - D_2h| / |D_h|, Frobenius norms of the differences D of all products so far.

        The truncation error of D_h is a third of |D_h - D_2h|, and its rounding error is at most about |D_h - D_2h|
        (that of D_2h is half as large). The ratio therefore estimates both errors; it is too small if the series has
        not begun to converge. By the triangle inequality, a norm of the products has at most the error of the products.
        The ratio is infinite if all products are zero, because products that are lost in rounding look the same.
        """
        apart, size = self._squares[row, part].tolist()
        return float((apart / size) ** 0.5) if size else float("inf")

    def _products(self, probes: Tensor, parts: Sequence[Part], stretch: float) -> Products:
        here = torch.cat([parameter.detach().flatten() for parameter in self._own()])
        spread, products = self.spread(probes), {}
        for parameter, direction in zip(self.parameters, spread, strict=True):
            if id(parameter) in self._constants:
                direction.zero_()
        steps = [stretch * step(here, probe) for probe in probes.T]
        for part in parts:
            each = [self._product([direction[..., k] for direction in spread], h, part) for k, h in enumerate(steps)]
            products[part] = [torch.stack(of_parameter, dim=-1) for of_parameter in zip(*each, strict=True)]
        return self.gathered(products)

    def _own(self) -> list[Tensor]:
        flat = [parameter.detach().unsqueeze(-1) for parameter in self.parameters]
        return [self._gather(flat, [weight]) for weight in self.col]

    def _product(self, vector: Sequence[Tensor], h: float, part: Part) -> list[Tensor]:
        moved = [[p.detach() + sign * h * v for p, v in zip(self.parameters, vector, strict=True)] for sign in (1, -1)]
        if part == Part.H_o:
            return self._pulled(moved, h)
        plus, minus = (self._gradient(weights, part) for weights in moved)
        return [(a - b) / (2 * h) for a, b in zip(plus, minus, strict=True)]

    def _gradient(self, weights: Sequence[Tensor], part: Part) -> list[Tensor]:
        return summed(self._of(weights, start, scalar) for start, scalar in self._suffix.terms(part))

    def _of(self, weights: Sequence[Tensor], start: Tensor, scalar: Scalar) -> list[Tensor]:
        at = [weight.clone().requires_grad_() for weight in weights]
        with torch.enable_grad(), differentiable_twice():  # checkpoints would be recomputed at other weights
            return gradients(scalar(self._outputs(at, start)), at)

    def _pulled(self, moved: Sequence[Sequence[Tensor]], h: float) -> list[Tensor]:
        pieces, here = [], [parameter.detach() for parameter in self.parameters]
        for (start, targets), share in zip(self._suffix.data, self._suffix.shares, strict=True):
            with evaluating(self._suffix.network):
                ends = [self._outputs([one.requires_grad_() for one in some], start).detach() for some in moved]
            plus, minus = (output_gradient(self._suffix.loss, end, targets) for end in ends)
            curved = share * (plus - minus) / (2 * h)
            pieces.append(self._of(here, start, partial(along, curved)))
        return summed(pieces)

    def _outputs(self, weights: Sequence[Tensor], start: Tensor) -> Tensor:
        return self._suffix.at(dict(zip(self._names, weights, strict=True)), start)
