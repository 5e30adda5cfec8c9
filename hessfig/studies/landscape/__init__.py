"""How losses, gradients and Hessians of k samples approach those of all: differences, integrals, stationarity."""

from hessfig.registry import Study
from hessfig.row_facts import RowFacts

STUDY = Study(
    rows={
        "hessian_distance": RowFacts("distance to H of all samples"),
        "hessian_distance_null": RowFacts("the same by chance"),
        "subset_norm": RowFacts("norm for k samples"),
        "subset_largest_eigenvalue": RowFacts("largest eigenvalue"),
        "subset_smallest_eigenvalue": RowFacts(),
        "subset_condition_number": RowFacts("condition number", may_be_undefined=True),
        "landscape_difference": RowFacts("change of the loss by one more sample"),
        "landscape_rms": RowFacts("its root mean square"),
        "prediction_correlation": RowFacts(may_be_undefined=True),
        "prediction_slope": RowFacts(may_be_undefined=True),
        "delta_1": RowFacts("Δ₁"),
        "delta_2": RowFacts("Δ₂"),
        "delta_2_null": RowFacts("Δ₂ by chance"),
        "landscape_top_share": RowFacts(
            "share of top eigenvectors", may_be_undefined=True
        ),
        "landscape_random_share": RowFacts(
            "share of random directions", may_be_undefined=True
        ),
        "stationarity": RowFacts("length of the gradient of k samples"),
        "stationarity_rms": RowFacts("its root mean square"),
    },
    page="docs/studies/landscape.md",
)
