"""The loss and its curvature along directions: named ones, slices, critical points, descent, and other norms."""

from hessfig.registry import Study
from hessfig.row_facts import RowFacts
from hessfig.studies.directions.row_names import ALONG, NORM_SHARPNESS, WITHOUT_PART
from hessfig.terms import SliceDirection

STUDY = Study(
    rows={
        **dict.fromkeys(NORM_SHARPNESS, RowFacts()),
        **dict.fromkeys(
            [f"{ray}_ray_departure" for ray in SliceDirection],
            RowFacts(may_be_undefined=True),
        ),
        "descent_horizon": RowFacts(may_be_undefined=True),
        **dict.fromkeys(ALONG, RowFacts(may_be_undefined=True)),
        **dict.fromkeys(WITHOUT_PART, RowFacts(has_part=False, may_be_undefined=True)),
        "curvature_exponent": RowFacts(
            "exponent α of the curvature", may_be_undefined=True
        ),
        "adamw_update_curvature": RowFacts(
            "along AdamW's update", may_be_undefined=True
        ),
        "muon_update_curvature": RowFacts("along Muon's update", may_be_undefined=True),
        "euclidean_sharpness": RowFacts("sharpness"),
        "spectral_sharpness": RowFacts("spectral sharpness"),
        "largest_entry_sharpness": RowFacts("sharpness, largest entry"),
    },
    page="docs/studies/directions.md",
)
