"""LayerNorm as one step, with its gain and shift as weights."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from hessfig.curvature.products.linearised.node import Tangent, plus
from hessfig.curvature.products.linearised.weights import BIAS, WEIGHT, Probes


class Normalise:
    """y = w n + b with n = C x / s, C the centring matrix and s^2 = |C x|^2 / d + eps."""

    cotangent: Tensor | None = None

    def __init__(self, inputs: tuple[str, ...], output: str, x: Tensor, norm: nn.LayerNorm) -> None:
        self.inputs, self.output, self.value, self.weight = inputs, output, norm(x), norm.weight
        self.parameters, self.perturbed = dict[str, Tensor](norm.named_parameters()), dict[str, Probes]()
        centred = x - x.mean(-1, keepdim=True)
        self.s = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt().unsqueeze(2)
        self.n = centred.unsqueeze(2) / self.s

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Return w dn + dw n + db with dn = (C - n n^T / d) dx / s."""
        dw, db = self.perturbed.get(WEIGHT), self.perturbed.get(BIAS)
        dy = None if dxs[0] is None else self.weight * self._project(dxs[0])
        dy = dy if dw is None else plus(dy, dw * self.n)
        return dy if db is None else plus(dy, db.expand(*self.n.shape[:2], *db.shape))

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return the Jacobian times w dybar + dw ybar, and the Jacobian's own tangent times w ybar."""
        dn_bar, dw = None if dy_bar is None else self.weight * dy_bar, self.perturbed.get(WEIGHT)
        if dxs is not None and dw is not None:
            dn_bar = plus(dn_bar, dw * self._y_bar)
        first = None if dn_bar is None else self._project(dn_bar)
        return [first if dxs is None or dxs[0] is None else plus(first, self._second_order(dxs[0]))]

    def weight_product(self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None) -> Probes | None:
        """Return the tangent of wbar, n dybar + ybar dn, or of bbar, dybar, summed over batch and positions."""
        if name == BIAS:
            return None if dy_bar is None else dy_bar.sum(dim=(0, 1))
        product = None if dy_bar is None else self.n * dy_bar
        if dxs is not None and dxs[0] is not None:
            product = plus(product, self._y_bar * self._project(dxs[0]))
        return None if product is None else product.sum(dim=(0, 1))

    @property
    def _y_bar(self) -> Float[Tensor, "batch length 1 d"]:
        assert self.cotangent is not None
        return self.cotangent.unsqueeze(2)

    def _second_order(self, dx: Float[Tensor, "batch length k d"]) -> Float[Tensor, "batch length k d"]:
        """Apply the second derivative contracted with r = w ybar (theory.md, ln2).

        Lambda = (3 (r.n) n n^T / d - (r.n) C - n (C r)^T - (C r) n^T) / (d s^2).
        """
        r = self.weight * self._y_bar
        centred_r, d = r - r.mean(-1, keepdim=True), r.shape[-1]
        rn, ndx = (r * self.n).sum(-1, keepdim=True), (self.n * dx).sum(-1, keepdim=True)
        along_n = 3 * rn * ndx / d - (centred_r * dx).sum(-1, keepdim=True)
        centred_dx = dx - dx.mean(-1, keepdim=True)
        return (along_n * self.n - rn * centred_dx - ndx * centred_r) / (d * self.s.square())

    def _project(self, rows: Tensor) -> Tensor:
        centred = rows - rows.mean(-1, keepdim=True)
        return (centred - self.n * (self.n * rows).mean(-1, keepdim=True)) / self.s
