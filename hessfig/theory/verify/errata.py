"""report.md: an errata sheet that a stranger can read, made from the outcomes of the checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hessfig.theory.verify.statement import FIRST_SEED, Dims, Measure, Outcome, Verdict

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


def markdown(outcomes: list[Outcome], sizes: list[Dims], seeds: int) -> str:
    """The sheet: corrections first, then what was left out, then what holds, then how it was checked."""
    groups = {verdict: [o for o in outcomes if o.verdict == verdict] for verdict in Verdict}
    sections = [
        _OPENING,
        f"**Result.** {summary(outcomes)}.\n",
        *_section("1. What needs a correction", _erratum, groups[Verdict.no] + groups[Verdict.ill_typed]),
        *_section("2. What the sources leave out", _addition, groups[Verdict.left_out]),
        *_section("3. What holds as printed", _confirmation, groups[Verdict.yes]),
        _method(sizes, seeds),
    ]
    return "\n".join(sections)


def summary(outcomes: list[Outcome]) -> str:
    """How many statements of each verdict, and how many corrections hold."""
    counts = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in Verdict}
    words = {
        Verdict.yes: "hold as printed",
        Verdict.no: "do not",
        Verdict.ill_typed: "ill-typed",
        Verdict.left_out: "left out by their source",
    }
    listed = ", ".join(f"{counts[v]} {word}" for v, word in words.items() if counts[v])
    corrections = [o.correction_holds for o in outcomes if o.error_corrected is not None]
    verified = f"{sum(corrections)} of {len(corrections)} corrected or added forms verified"
    return f"{len(outcomes)} statements: {listed}; {verified}"


def number(error: float | None) -> str:
    """Three digits; empty for a formula that does not exist or is ill-typed."""
    return "" if error is None or error == float("inf") else f"{error:.3g}"


def _section(title: str, render: Callable[[Outcome], str], outcomes: Iterable[Outcome]) -> list[str]:
    body = [render(outcome) for outcome in outcomes]
    return [f"## {title}\n", *body] if body else []


def _erratum(outcome: Outcome) -> str:
    s = outcome.statement
    lines = [f"- **Printed:** {s.claim}", f"- **Found:** {_found(outcome)}"]
    if s.correction:
        lines.append(f"- **Correct:** {s.correction}{_verified(outcome)}")
    return _entry(outcome, lines)


def _addition(outcome: Outcome) -> str:
    s = outcome.statement
    lines = [f"- **Missing:** {s.claim}", f"- **Here:** {s.correction}{_verified(outcome)}"]
    return _entry(outcome, [*lines, *([f"- **Note:** {s.note}"] if s.note else [])])


def _entry(outcome: Outcome, lines: list[str]) -> str:
    return "\n".join([f"### `{outcome.statement.id}`: {outcome.statement.reference}\n", *lines]) + "\n"


def _confirmation(outcome: Outcome) -> str:
    s = outcome.statement
    meaning = f" ({s.error_is})" if s.error_is else ""
    text = f"- **`{s.id}`** ({s.reference}): {s.claim} *Error {number(outcome.error_as_printed)}{meaning}.*"
    text += f" {s.note}" if s.note else ""
    return text + (f" {s.correction}{_verified(outcome)}" if s.correction else "")


def _found(outcome: Outcome) -> str:
    s = outcome.statement
    if outcome.verdict == Verdict.ill_typed:
        return f"not defined as written. {s.note}"
    return f"error {number(outcome.error_as_printed)} ({s.error_is or s.measure}). {s.note}"


def _verified(outcome: Outcome) -> str:
    if outcome.error_corrected is None:
        return ""
    word = "verified" if outcome.correction_holds else "NOT verified"
    return f" *({word}, error {number(outcome.error_corrected)})*"


def _method(sizes: list[Dims], seeds: int) -> str:
    where = " and ".join(
        ", ".join(f"{name} = {value}" for name, value in vars(size).items()) for size in sizes
    )
    allowed = "; ".join(f"{measure} at most {measure.tolerance:g}" for measure in Measure)
    return f"""
## How this was checked

Random problems in float64, {seeds} seeds from {FIRST_SEED} on, at {where}: sizes pairwise different and d_K
on both sides of d_V, so that no transposition hides. The reference is automatic differentiation (torch.func):
H is the Hessian of the loss, H_o that of the loss of the linearised network, H_f that of the network paired
with the frozen loss gradient; none is found by subtraction. Errors are the largest over all draws. A statement
holds when its error is within: {allowed}.

The formulas are in `hessfig/theory`, one module per subject; `hessfig verify statement=ID` repeats one check.
"""
