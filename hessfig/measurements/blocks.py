"""What quantities of blocks share: columns of blocks, and rows of the table with their provenance and status."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hessfig.config import DType, Method
from hessfig.errors import UserError
from hessfig.measurements.estimate import Estimate
from hessfig.measurements.protocol import Quantity, Request, Row, row_of
from hessfig.models.registry import kind
from hessfig.record import Status
from hessfig.terms import Block, Part


def columns(blocks: Iterable[Block]) -> list[tuple[int, str, list[Block]]]:
    """Return (layer, col, blocks) for every column of blocks to measure; one column shares its products."""
    grouped: dict[tuple[int, str], list[Block]] = {}
    for block in blocks:
        grouped.setdefault((block.layer, block.col), []).append(block)
    return [(layer, col, members) for (layer, col), members in grouped.items()]


def check_served(quantities: Sequence[Quantity], blocks: Sequence[Block]) -> None:
    """Raise UserError for a quantity that none of the blocks has, and for a block that has none of the quantities.

    So too for two quantities that would give the same rows: the table could not tell them apart.
    """
    _check_apart(quantities)
    for quantity in quantities:
        if not any(map(quantity.serves, blocks)):
            raise _unserved(f"{quantity.name} cannot be had for any of these blocks", blocks[0])
    for block in blocks:
        if not any(quantity.serves(block) for quantity in quantities):
            raise _unserved(f"{', '.join(one.name for one in quantities)} cannot be had for a block", block)


def _check_apart(quantities: Sequence[Quantity]) -> None:
    for place, later in enumerate(quantities):
        for first in quantities[:place]:
            same = [name for name in later.rows if name in first.rows and later.name != first.name]
            if same:
                raise UserError(
                    f"quantities: {first.name} and {later.name} give the same rows",
                    got=f"both give {', '.join(same)}",
                    allowed="one of the two in a run",
                    remedy=f"quantities=[{first.name}], and {later.name} in a run with a sweep.name of its own",
                )


def _unserved(what: str, block: Block) -> UserError:
    return UserError(
        f"quantities: {what}: a pair of different weights has none",
        got=f"block {block}",
        allowed="diagonal blocks",
        remedy=f"blocks=[{block.row},{block.col}], or quantities=[frobenius] for pairs",
    )


def block_row(quantity: str, request: Request, block: Block, part: Part, found: Estimate) -> Row:
    """Return the row of one part of one block. Raises ArithmeticError for a number that must vanish and does not."""
    return row_of(
        block,
        part=part.value,
        quantity=quantity,
        value=found.value,
        error=_error(found),
        num_probes=found.num_probes,
        **_made_by(request, found),
        status=_status(quantity, request, block, part, found.value).value,
    )


def _error(found: Estimate) -> float | None:
    """Return the error: none where the estimator gives none, nan for a number that is not finite."""
    if not math.isfinite(found.value):
        return math.nan
    return None if math.isnan(found.error) else found.error


def _made_by(request: Request, found: Estimate) -> dict[str, str]:
    """Say which estimator and type made this number: exact norms are float64 whatever the probes are."""
    if found.by == Method.exact:
        return {"estimator": Method.exact.value, "dtype": DType.float64.value}
    return {"estimator": found.by or request.estimator.method.value, "dtype": request.dtype.value}


def _status(quantity: str, request: Request, block: Block, part: Part, value: float) -> Status:
    if not math.isfinite(value):
        return Status.nonfinite
    if not kind(request.model.kind).is_structural_zero(request.model, block, part):
        return Status.ok
    if value != 0.0:
        raise ArithmeticError(
            f"{quantity} of {part} of block {block} must vanish by the network's structure but is {value!r}"
        )
    return Status.structural_zero
