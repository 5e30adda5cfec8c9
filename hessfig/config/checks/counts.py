"""The check that all counts share."""

from __future__ import annotations

from hessfig.errors import UserError


def check_count(
    key: str, value: int | None, *, fewest: int = 1, most: int | None = None, example: object
) -> None:
    """Raise UserError for a count below `fewest` or above `most`; None, where a setting may be null, is no count."""
    if value is None or (fewest <= value and (most is None or value <= most)):
        return
    raise UserError(
        key if value < fewest else f"{key} is too large",
        got=value,
        allowed=f"a whole number >= {fewest}" if most is None else f"a whole number from {fewest} to {most}",
        remedy=f"for example {key}={example}",
    )
