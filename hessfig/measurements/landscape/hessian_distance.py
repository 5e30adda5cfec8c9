"""How far the Hessian of the first k samples is from that of all of them, block by block, against k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hessfig.config import Config, Method
from hessfig.errors import UserError
from hessfig.measurements.frobenius.settings import settings as of_norms
from hessfig.measurements.landscape import settings as landscape
from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.measurements.spectra.checks import MATRIX_BYTES, matrices
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

NAME = "hessian_distance"
GIVES = (
    *(NAME, "hessian_distance_null", "subset_norm"),
    *("subset_largest_eigenvalue", "subset_smallest_eigenvalue", "subset_condition_number"),
)


def _measure(problem: Problem, request: Request) -> Measured:
    from hessfig.measurements.landscape.measuring.hessians import measure

    return measure(problem, request)


def _settings(config: Config, layout: Layout) -> dict[str, Any]:
    places = landscape.settings_of()(config, layout)["landscape"]
    del places["permutations"]
    norms = of_norms(config, layout)
    dense = config.estimator.method == Method.dense
    probes = {
        "method": Method.hutchinson.value,  # whatever norms would be made of: test vectors, the same for all k
        "num_probes": config.estimator.num_probes,
        "products": config.estimator.products.value,
    }
    method = norms["estimator"] if dense else probes
    return {**norms, "estimator": method, "landscape": places, "cut": config.spectrum.cut if dense else None}


def _check(config: Config, layout: Layout) -> None:
    """Raise UserError as the landscape's check does, and for matrices that would exceed MATRIX_BYTES in a worker."""
    landscape.check(config, layout)
    if config.estimator.method != Method.dense:
        return
    for block in blocks_of(config.blocks, layout, config.model):
        sides = layout.size(block.row_layer, str(block.row)) * layout.size(block.layer, str(block.col))
        needed = 8 * sides * matrices(config.parts) * (config.landscape.points + 1)
        if needed > MATRIX_BYTES:
            raise UserError(
                f"quantities=[{NAME}]: the matrices of block {block} at every k would take {needed / 1e9:.1f} GB",
                got=f"{needed / 1e9:.1f} GB for landscape.points={config.landscape.points}",
                allowed=f"at most {MATRIX_BYTES / 1e9:g} GB",
                remedy="estimator=hutchinson, which needs products alone (and gives no eigenvalues)",
            )


QUANTITY = Quantity(NAME, _measure, settings=_settings, check=_check, gives=GIVES)
