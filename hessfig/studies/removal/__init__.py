"""Effects of removing or rounding weights and of leaving out samples: pruning, quantisation, rounding, influence."""

from hessfig.registry import Study
from hessfig.row_facts import RowFacts
from hessfig.studies.removal.row_names import (
    OF_INFLUENCE,
    OF_PRUNING,
    OF_QUANTISATION,
    RANK_CORRELATIONS,
    ROUNDED,
)

_OF_WEIGHTS = RowFacts(has_part=False)
STUDY = Study(
    rows={
        **dict.fromkeys((*OF_PRUNING, *OF_QUANTISATION, *ROUNDED), _OF_WEIGHTS),
        **dict.fromkeys(OF_INFLUENCE, RowFacts(has_part=False, may_be_undefined=True)),
        **dict.fromkeys(RANK_CORRELATIONS, RowFacts(may_be_undefined=True)),
        "quadratic_rank_correlation": RowFacts(
            "by second order", may_be_undefined=True
        ),
        "fisher_rank_correlation": RowFacts(
            "by the Fisher trace", may_be_undefined=True
        ),
    },
    page="docs/studies/removal.md",
)
