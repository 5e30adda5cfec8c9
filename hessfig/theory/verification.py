"""`hessfig verify`: the chosen statements, checked on random instances and printed."""

import csv
import io
import statistics
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hessfig.errors import UserError, unknown_name
from hessfig.register import publish
from hessfig.theory.attention_formulas import literal_bytes
from hessfig.theory.statement import (
    FIRST_SEED,
    Dims,
    ErrorMeasure,
    StatementOutcome,
    StatementVerdict,
    check,
    stated,
)


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Header and rows; floats keep all their digits."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return buffer.getvalue()


def quartiles(values: Sequence[float]) -> list[float]:
    """Lower quartile, median, upper quartile."""
    return statistics.quantiles(values, n=4, method="inclusive")


DEFAULT_SEEDS = 3
LARGEST = 10**9
_SIZES = tuple(vars(Dims()))


def parse(given: Mapping[str, str]) -> dict[str, Any]:
    """Return the keyword arguments of `hessfig verify`: statement=a,b output_dir=DIR seeds=N dtype=float64 L=
    d_V= d_K= d_ff=, given as {key: text}.

    Raises UserError for a size that is not a whole number.
    """
    names = None
    if "statement" in given:
        names = given["statement"].strip("[]").split(",")
        names = [name.strip() for name in names]
    sizes = {name: _whole_number(name, given[name]) for name in _SIZES if name in given}
    return {
        "statement_ids": names,
        "output_dir": Path(given.get("output_dir", "outputs")),
        "dims": Dims(**sizes),
        "seeds": _whole_number("seeds", given.get("seeds", str(DEFAULT_SEEDS))),
        "dtype": given.get("dtype", "float64"),
    }


def _whole_number(key: str, text: str) -> int:
    try:
        if abs(number := int(text)) > LARGEST:
            raise ValueError("no size is as large")
        return number
    except ValueError as error:
        example = f"for example {key}={getattr(Dims(), key, DEFAULT_SEEDS)}"
        raise UserError(
            f"verify: {key}", got=text[:100], allowed="a whole number", remedy=example
        ) from error


def _checks() -> dict[str, Any]:
    """Return the checks of all statements: STATEMENTS of every module of this folder whose name ends in _claims."""
    checks: dict[str, Any] = {}
    for path in sorted(Path(__file__).parent.glob("*_claims.py")):
        checks |= import_module(f"{__package__}.{path.stem}").STATEMENTS
    return checks


_CHECKS = _checks()
_TEXTS = tomllib.loads(
    Path(__file__).with_name("statement_texts.toml").read_text("utf-8")
)
CATALOGUE = {name: stated(name, _CHECKS[name], **text) for name, text in _TEXTS.items()}


_OPENING = """\
# Errata: *What Does It Mean to Be a Transformer? Insights from a Theoretical Hessian Analysis*

Every formula below was evaluated on random data and compared with automatic differentiation. This sheet
lists what needs a correction, what the sources leave out, and what holds as it stands. Sources: the paper
(ICLR 2025 submission, pages of the anonymous version), the talk about it, and the follow-up arXiv 2510.16927
with a blog post about that (the copy at hand has lost its formulas).

**Notation.** One self-attention layer F = softmax(T) X W_V, T = X W_Q W_K^T X^T / sqrt(d_K), on the L rows
x_i of X; A = softmax(T); loss ||F - Y||²/(L d_V), c = 2/(L d_V); D = F - Y has rows d_i, δ = vec D. Moments
of attention: M_1 = A X with rows m_i; z_ij = x_j - m_i; M_2,i = Σ_j A_ij z_ij z_ij^T;
M_3,i = Σ_j A_ij z_ij ⊗ z_ij z_ij^T. vec stacks rows; K_{m,n} vec B = vec B^T for B with n rows and m columns;
R_Q = I ⊗ W_K, R_K = (W_Q ⊗ I) K_{d_K,d_V}. H = H_o + H_f, the outer-product (Gauss-Newton) and the functional
Hessian; H_o^T and H_f^T are split at T instead of F. Z_1, Z_2, S, U, B are the paper's. For linear attention
Σ = X^T X/L, Ω = X^T D/L. σ is the scale of X.
"""


def markdown(outcomes: list[StatementOutcome], sizes: list[Dims], seeds: int) -> str:
    """The sheet: corrections first, then what was left out, then what holds, then how it was checked."""
    groups: dict[StatementVerdict, list[StatementOutcome]] = {}
    for verdict in StatementVerdict:
        groups[verdict] = [one for one in outcomes if one.verdict == verdict]
    wrong = groups[StatementVerdict.no] + groups[StatementVerdict.ill_typed]
    left_out = groups[StatementVerdict.left_out]
    whole = groups[StatementVerdict.yes]
    sections = [
        _OPENING,
        f"**Result.** {summary(outcomes)}.\n",
        *_section("1. What needs a correction", _erratum, wrong),
        *_section("2. What the sources leave out", _addition, left_out),
        *_section("3. What holds as printed", _confirmation, whole),
        _method(sizes, seeds),
    ]
    return "\n".join(sections)


def summary(outcomes: list[StatementOutcome]) -> str:
    """How many statements of each verdict, and how many corrections hold."""
    counts = Counter(outcome.verdict for outcome in outcomes)
    words = {
        StatementVerdict.yes: "hold as printed",
        StatementVerdict.no: "do not",
        StatementVerdict.ill_typed: "ill-typed",
        StatementVerdict.left_out: "left out by their source",
    }
    listed = ", ".join(f"{counts[v]} {word}" for v, word in words.items() if counts[v])
    corrections = [
        o.correction_holds for o in outcomes if o.error_corrected is not None
    ]
    verified = (
        f"{sum(corrections)} of {len(corrections)} corrected or added forms verified"
    )
    return f"{len(outcomes)} statements: {listed}; {verified}"


def number(error: float | None) -> str:
    """Three digits; empty for a formula that does not exist or is ill-typed."""
    if error is None or error == float("inf"):
        return ""
    return f"{error:.3g}"


def _section(
    title: str,
    render: Callable[[StatementOutcome], str],
    outcomes: list[StatementOutcome],
) -> list[str]:
    if not outcomes:
        return []
    return [f"## {title}\n", *map(render, outcomes)]


def _erratum(outcome: StatementOutcome) -> str:
    s = outcome.statement
    lines = [f"- **Printed:** {s.claim}", f"- **Found:** {_found(outcome)}"]
    if s.correction:
        lines.append(f"- **Correct:** {s.correction}{_verified(outcome)}")
    return _entry(outcome, lines)


def _addition(outcome: StatementOutcome) -> str:
    s = outcome.statement
    lines = [
        f"- **Missing:** {s.claim}",
        f"- **Here:** {s.correction}{_verified(outcome)}",
    ]
    if s.note:
        lines.append(f"- **Note:** {s.note}")
    return _entry(outcome, lines)


def _entry(outcome: StatementOutcome, lines: list[str]) -> str:
    s = outcome.statement
    return "\n".join([f"### `{s.id}`: {s.reference}\n", *lines]) + "\n"


def _confirmation(outcome: StatementOutcome) -> str:
    s = outcome.statement
    meaning = f" ({s.error_is})" if s.error_is else ""
    text = f"- **`{s.id}`** ({s.reference}): {s.claim} *Error {number(outcome.error_as_printed)}{meaning}.*"
    if s.note:
        text += f" {s.note}"
    if s.correction:
        text += f" {s.correction}{_verified(outcome)}"
    return text


def _found(outcome: StatementOutcome) -> str:
    s = outcome.statement
    if outcome.verdict == StatementVerdict.ill_typed:
        return f"not defined as written. {s.note}"
    return f"error {number(outcome.error_as_printed)} ({s.error_is or s.measure}). {s.note}"


def _verified(outcome: StatementOutcome) -> str:
    if outcome.error_corrected is None:
        return ""
    word = "verified" if outcome.correction_holds else "NOT verified"
    return f" *({word}, error {number(outcome.error_corrected)})*"


def _method(sizes: list[Dims], seeds: int) -> str:
    where = " and ".join(map(_listed, sizes))
    allowed = "; ".join(
        f"{measure} at most {measure.tolerance:g}" for measure in ErrorMeasure
    )
    return f"""
## How this was checked

Random problems in float64, {seeds} seeds from {FIRST_SEED} on, at {where}: sizes pairwise different and d_K
on both sides of d_V, so that no transposition hides. The reference is automatic differentiation (torch.func):
H is the Hessian of the loss, H_o that of the loss of the linearised network, H_f that of the network paired
with the frozen loss gradient; none is found by subtraction. Errors are the largest over all draws. A statement
holds when its error is within: {allowed}.

The formulas are in `hessfig/theory`, one module per subject; `hessfig verify statement=ID` repeats one check.
"""


def _listed(dims: Dims) -> str:
    return ", ".join(f"{name} = {value}" for name, value in vars(dims).items())


COLUMNS = (
    "statement",
    "reference",
    "holds_as_printed",
    "error_as_printed",
    "error_corrected",
    "note",
)

_COLOURS = {
    StatementVerdict.yes: "green",
    StatementVerdict.no: "red",
    StatementVerdict.ill_typed: "red",
    StatementVerdict.left_out: "yellow",
}


def write(
    outcomes: list[StatementOutcome], directory: Path, sizes: list[Dims], seeds: int
) -> list[Path]:
    """Write statements.csv (errors empty where no formula is, or it is ill-typed) and report.md; return their paths."""
    table = csv_text(COLUMNS, map(_row, outcomes))
    texts = {
        directory / "statements.csv": table,
        directory / "report.md": markdown(outcomes, sizes, seeds),
    }
    return publish(texts, "verification")


def print_table(
    outcomes: list[StatementOutcome], paths: list[Path], show: Callable[[Table], None]
) -> None:
    """Print one row per statement (by `show`), the count of verdicts, and what differs from the record."""
    console = Console()
    table = Table()
    for name in ("statement", "reference", "as printed"):
        table.add_column(name, no_wrap=True, overflow="fold")
    table.add_column("error as printed")
    table.add_column("error corrected")
    for outcome in outcomes:
        statement, reference, verdict, *errors, _ = _row(outcome)
        coloured = f"[{_COLOURS[outcome.verdict]}]{verdict}[/]"
        table.add_row(statement, reference, coloured, *errors)
    show(table)
    seconds = sum(outcome.seconds for outcome in outcomes)
    console.print(
        f"{summary(outcomes)}; {seconds:.0f} s", soft_wrap=True, highlight=False
    )
    for outcome in outcomes:
        if not outcome.as_recorded:
            console.print(f"[bold red]changed:[/] {_change(outcome)}")
    console.print(
        "written: " + ", ".join(map(str, paths)), soft_wrap=True, highlight=False
    )


def _row(outcome: StatementOutcome) -> tuple[str, ...]:
    s = outcome.statement
    errors = (number(outcome.error_as_printed), number(outcome.error_corrected))
    return (s.id, s.reference, outcome.verdict.value, *errors, s.note)


def _change(outcome: StatementOutcome) -> str:
    if outcome.verdict != outcome.statement.recorded:
        return f"{outcome.statement.id} is recorded as {outcome.statement.recorded}, found {outcome.verdict}"
    return f"{outcome.statement.id}: the correction is off by {number(outcome.error_corrected)}"


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

    Writes output_dir/verify/statements.csv and report.md; `show` prints the table.
    Returns 0, or 1 when a verdict differs from the recorded one or a correction fails.
    Raises UserError for an unknown id, L < 3, equal or huge dims, seeds < 1, or
    float32.
    """
    chosen = _chosen(statement_ids)
    check_settings(dims, seeds, dtype)
    sizes = [dims, dims.other_side()]
    statements = track(
        [CATALOGUE[name] for name in chosen],
        "checking",
        console=Console(stderr=True),
        transient=True,
    )
    outcomes = [check(statement, sizes, seeds) for statement in statements]
    paths = write(outcomes, output_dir / "verify", sizes, seeds)
    print_table(outcomes, paths, show or Console().print)
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
        reason = "no draws, no check" if seeds < 1 else "that would take days"
        raise UserError(
            f"seeds: {reason}",
            got=seeds,
            allowed=f"a whole number from 1 to {MOST_SEEDS}",
            remedy="for example seeds=3",
        )
    _check_dims(dims)


def _chosen(names: list[str] | None) -> list[str]:
    for name in names or []:
        if name not in CATALOGUE:
            otherwise = f"for example statement={next(iter(CATALOGUE))}"
            raise unknown_name(
                "statement: there is no such id", name, CATALOGUE, otherwise
            )
    return [name for name in CATALOGUE if names is None or name in names]


def _check_dims(dims: Dims) -> None:
    if dims.L < 3:
        raise UserError(
            "L: too short a sequence",
            got=dims.L,
            allowed="L >= 3",
            remedy="one token: all query and key blocks are zero; two: M_3 of uniform attention vanishes by accident",
        )
    for size in (dims, dims.other_side()):
        widths = set(vars(size).values())
        if len(widths) < 4 or size.d_V < 3 or min(size.d_K, size.d_ff) < 2:
            listed = ", ".join(f"{name}={width}" for name, width in vars(dims).items())
            raise UserError(
                "dims: L, d_V, d_K, d_ff must be pairwise different, d_V at least 3, d_K and d_ff at least 2",
                got=f"{listed} (and d_K={dims.other_side().d_K})",
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
            "hessfig.theory.attention_formulas.attention_hessian, "
            "whose largest matrix is d_V^2 x d_V^2",
        )
