"""All statements, in the order in which the report lists them."""

from __future__ import annotations

from hessfig.theory import (
    claims_attention,
    claims_block,
    claims_bounds,
    claims_calculus,
    claims_degrees,
    claims_growth,
    claims_heads,
    claims_linear,
    claims_moments,
    claims_query_key,
    claims_ranks,
    claims_scalar,
    claims_sinks,
    claims_sublayers,
    claims_theorems,
)
from hessfig.theory.statement import Statement

_MODULES = (
    claims_attention,
    claims_calculus,
    claims_moments,
    claims_theorems,
    claims_growth,
    claims_linear,
    claims_degrees,
    claims_query_key,
    claims_ranks,
    claims_heads,
    claims_scalar,
    claims_sinks,
    claims_sublayers,
    claims_block,
    claims_bounds,
)

CATALOGUE: dict[str, Statement] = {s.id: s for module in _MODULES for s in module.STATEMENTS}
