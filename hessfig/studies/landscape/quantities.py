"""The quantities of this study, and checks that they can be measured with the given settings."""

from typing import Any

from hessfig.config.checks import number_of_samples
from hessfig.config.enums import Data, Method
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.measurements.quantity import Quantity
from hessfig.measurements.requirements import (
    MATRIX_BYTES,
    entries_of_block,
    leaves_the_weights,
    num_matrices,
)
from hessfig.measurements.settings_and_costs import norm_settings, reads
from hessfig.models.blocks import blocks_of
from hessfig.terms import Group
from hessfig.weights import Layout

_SAMPLES = ("samples", "first", "points", "permutations")


def distance_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of norms at the places k; their test vectors are the same for all k, whatever the method."""
    places = reads(landscape=_SAMPLES[:-1])(config, layout)["landscape"]
    norms = norm_settings(config, layout)
    dense = config.estimator.method == Method.dense
    probes = {
        "method": Method.hutchinson.value,
        "num_probes": config.estimator.num_probes,
        "products": config.estimator.products.value,
    }
    method = norms["estimator"] if dense else probes
    return {
        **norms,
        "estimator": method,
        "landscape": places,
        "cut": config.spectrum.cut if dense else None,
    }


def check_samples(config: Config, layout: Layout) -> None:
    """Raise UserError for missing samples, and for a loss that is not defined for single samples."""
    del layout
    if config.task.data != Data.python:
        number_of_samples(config)


def check_subspace(config: Config, layout: Layout) -> None:
    """Raise UserError like check_samples, and for more directions than the network has weights."""
    check_samples(config, layout)
    size = layout.size(0, Group.all.value)
    asked = config.landscape.dimensions
    if not asked or max(asked) > size:
        raise UserError(
            "landscape.dimensions: the network has not so many directions",
            got=asked,
            allowed=f"a list of whole numbers from 1 to {size}",
            remedy="landscape.dimensions=[1]",
        )


def check_distance(config: Config, layout: Layout) -> None:
    """Raise UserError like check_samples, and for matrices that would exceed MATRIX_BYTES in a worker."""
    check_samples(config, layout)
    if config.estimator.method != Method.dense:
        return
    for block in blocks_of(config.blocks, layout, config.model):
        needed = (
            8
            * entries_of_block(block, layout)
            * num_matrices(config.parts)
            * (config.landscape.points + 1)
        )
        if needed > MATRIX_BYTES:
            raise UserError(
                f"quantities=[hessian_distance]: the matrices of block {block} at every k would take "
                f"{needed / 1e9:.1f} GB",
                got=f"{needed / 1e9:.1f} GB for landscape.points={config.landscape.points}",
                allowed=f"at most {MATRIX_BYTES / 1e9:g} GB",
                remedy="estimator=hutchinson, which needs only products (but gives no eigenvalues)",
            )


_LOSSES = "hessfig.studies.landscape.losses_of_samples"
QUANTITIES = (
    Quantity(
        "hessian_distance",
        "hessfig.studies.landscape.sample_hessians",
        distance_settings,
        check_distance,
        gives=(
            *("hessian_distance", "hessian_distance_null", "subset_norm"),
            *(
                "subset_largest_eigenvalue",
                "subset_smallest_eigenvalue",
                "subset_condition_number",
            ),
        ),
    ),
    Quantity(
        "landscape_difference",
        _LOSSES,
        reads(landscape=(*_SAMPLES, "distance", "direction", "curvatures")),
        check_samples,
        gives=(
            *(
                "landscape_difference",
                "landscape_rms",
                "landscape_prediction",
                "landscape_null",
                "landscape_bound",
            ),
            *("largest_loss", "largest_curvature", "directional_curvature"),
            *("prediction_correlation", "prediction_slope"),
        ),
        walks=lambda config: config.landscape.distance is not None,
    ),
    Quantity(
        "landscape_integrals",
        _LOSSES,
        reads(landscape=(*_SAMPLES, "draws", "spread")),
        check_samples,
        gives=("delta_1", "delta_2", "delta_2_null"),
        walks=leaves_the_weights,
    ),
    Quantity(
        "landscape_subspace",
        "hessfig.studies.landscape.top_subspace",
        reads(
            landscape=("samples", "draws", "spread", "dimensions"),
            spectrum=("tolerance", "steps"),
        ),
        check_subspace,
        gives=(
            *(
                "landscape_start",
                "landscape_full",
                "landscape_top",
                "landscape_top_share",
                "landscape_random_share",
            ),
            *(f"landscape_{name}_quadratic" for name in ("full", "top", "random")),
        ),
        walks=leaves_the_weights,
    ),
    Quantity(
        "stationarity",
        _LOSSES,
        reads(landscape=_SAMPLES),
        check_samples,
        gives=(
            "stationarity",
            "stationarity_rms",
            "stationarity_expected",
            "stationarity_null",
        ),
    ),
)
