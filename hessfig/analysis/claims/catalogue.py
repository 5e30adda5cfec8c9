"""All empirical claims by their ids, family by family."""

from __future__ import annotations

from hessfig.analysis.claims import along, growth, kinds, samples, scales, shares, sublayers
from hessfig.analysis.claims.rule import Claim
from hessfig.errors import UserError, did_you_mean

_FAMILIES = (growth, shares, kinds, scales, samples, sublayers, along)


def claims() -> dict[str, Claim]:
    """Return every claim by its id."""
    return {claim.id: claim for family in _FAMILIES for claim in family.CLAIMS}


def claim_of(name: str) -> Claim:
    """Return the claim of this id. Raises UserError when there is none."""
    known = claims()
    if name not in known:
        raise UserError(
            "claim: there is no such claim",
            got=name,
            allowed=", ".join(known),
            remedy=did_you_mean(name, known) or f"for example claim={next(iter(known))}",
        )
    return known[name]
