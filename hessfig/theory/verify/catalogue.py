"""All statements, in the order in which the report lists them."""

from __future__ import annotations

from hessfig.theory.claims import calculus as claims_calculus
from hessfig.theory.claims.attention import bounds as claims_bounds
from hessfig.theory.claims.attention import heads as claims_heads
from hessfig.theory.claims.attention import linear as claims_linear
from hessfig.theory.claims.attention import moments as claims_moments
from hessfig.theory.claims.attention import query_key as claims_query_key
from hessfig.theory.claims.attention import ranks as claims_ranks
from hessfig.theory.claims.attention import softmax as claims_attention
from hessfig.theory.claims.attention import theorems as claims_theorems
from hessfig.theory.claims.networks import block as claims_block
from hessfig.theory.claims.networks import degrees as claims_degrees
from hessfig.theory.claims.networks import growth as claims_growth
from hessfig.theory.claims.networks import sublayers as claims_sublayers
from hessfig.theory.claims.scalar_tokens import sinks as claims_sinks
from hessfig.theory.claims.scalar_tokens import spectrum as claims_scalar
from hessfig.theory.verify.statement import Statement

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
