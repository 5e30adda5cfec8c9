"""`hessfig verify`: check statements against automatic differentiation, print a table, write CSV and errata
sheet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hessfig.errors import UserError, did_you_mean
from hessfig.theory.formulas.attention.literal import literal_bytes
from hessfig.theory.verify import report
from hessfig.theory.verify.catalogue import CATALOGUE
from hessfig.theory.verify.statement import Dims, Outcome, check

LITERAL_LIMIT = 2**30
MOST_SEEDS = 1000


def run(
    statement_ids: list[str] | None,
    *,
    output_dir: Path,
    dims: Dims,
    seeds: int,
    dtype: str,
    show: Callable[[Table], None] | None = None,
) -> int:
    """Check `statement_ids` (None: all) at `dims` and with d_K on the other side of d_V, `seeds` draws each.

    Writes output_dir/verify/statements.csv and report.md; `show` prints the table. Returns 0, or 1 when a verdict
    differs from the recorded one or a correction fails. Raises UserError for an unknown id, L < 3, equal or huge dims,
    seeds < 1, or float32.
    """
    chosen = _chosen(statement_ids)
    check_settings(dims, seeds, dtype)
    sizes = [dims, dims.other_side()]
    statements = track(
        [CATALOGUE[name] for name in chosen], "checking", console=Console(stderr=True), transient=True
    )
    outcomes = [check(statement, sizes, seeds) for statement in statements]
    paths = report.write(outcomes, output_dir / "verify", sizes, seeds)
    report.print_table(outcomes, paths, show or Console().print)
    return int(not all(outcome.as_recorded for outcome in outcomes))


def statement_ids() -> list[str]:
    """Every id, in the order of the report."""
    return list(CATALOGUE)


def check_settings(dims: Dims, seeds: int, dtype: str) -> None:
    """Raise UserError for settings under which the checks would mean nothing."""
    if dtype != "float64":
        raise UserError(
            f"dtype: a check in {dtype} proves nothing",
            got=dtype,
            allowed="float64",
            remedy="leave dtype out: rounding of 1e-7, times the cancellation in third moments, hides errors",
        )
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError(
            "seeds: no draws, no check" if seeds < 1 else "seeds: that would take days",
            got=seeds,
            allowed=f"a whole number from 1 to {MOST_SEEDS}",
            remedy="for example seeds=3",
        )
    _check_dims(dims)


def _chosen(names: list[str] | None) -> list[str]:
    for name in names or []:
        if name not in CATALOGUE:
            raise UserError(
                "statement: there is no such id",
                got=name,
                allowed=", ".join(CATALOGUE),
                remedy=did_you_mean(name, CATALOGUE) or f"for example statement={next(iter(CATALOGUE))}",
            )
    return [name for name in CATALOGUE if names is None or name in names]


def _check_dims(dims: Dims) -> None:
    if dims.L < 3:
        raise UserError(
            "L: too short a sequence",
            got=dims.L,
            allowed="L >= 3",
            remedy="one token: all query and key blocks are zero; two: M_3 of uniform attention vanishes by "
            "accident",
        )
    for size in (dims, dims.other_side()):
        widths = [size.L, size.d_V, size.d_K, size.d_ff]
        if len(set(widths)) < len(widths) or size.d_V < 3 or min(size.d_K, size.d_ff) < 2:
            raise UserError(
                "dims: L, d_V, d_K, d_ff must be pairwise different, d_V at least 3, d_K and d_ff at least 2",
                got=f"{', '.join(f'{k}={v}' for k, v in vars(dims).items())} (and d_K={dims.other_side().d_K})",
                allowed="four different widths, also with d_K on the other side of d_V",
                remedy="equal sizes hide transposed matrices, and LayerNorm of two numbers is a sign; "
                f"for example {Dims()}",
            )
    _check_literal_size(dims)


def _check_literal_size(dims: Dims) -> None:
    size = max(literal_bytes(d.L, d.d_V, d.d_K) for d in (dims, dims.other_side()))
    if size > LITERAL_LIMIT:
        raise UserError(
            "dims: the literal formulas of Theorem 3.2 would not fit",
            got=f"{dims}: one matrix of {size / 2**30:,.1f} GiB",
            allowed=f"at most {LITERAL_LIMIT / 2**30:g} GiB",
            remedy="smaller dims; for large ones use the contracted form "
            "hessfig.theory.formulas.attention.softmax.attention_hessian, "
            "whose largest matrix is d_V^2 x d_V^2",
        )


__all__ = ["Dims", "Outcome", "check_settings", "run", "statement_ids"]
