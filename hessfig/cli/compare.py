"""What `hessfig compare` does: one sweep, or every figure that has both a table and published numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hessfig.analysis.comparison import points as compare
from hessfig.analysis.comparison.outcome import Comparison
from hessfig.analysis.comparison.reference import NothingToCompare
from hessfig.analysis.table import TABLE, run_command
from hessfig.config.compose import departures
from hessfig.errors import UserError

# The figures whose numbers the authors published, and the sweep each draws.
PUBLISHED = {
    "3a": "sigma",
    "3b": "layernorm",
    "5a": "linear_axis_short",
    "5b": "linear_axis",
    "6": "depth",
    "7": "softmax",
    "8": "mlp",
}
PICTURES = "figures 1 and 4: skipped: published as pictures, without numbers"
_NAMES = {sweep: f"figure {figure}" for figure, sweep in PUBLISHED.items()}


def compare_sweep(folder: Path, reference: Path) -> None:
    """Compare the sweep in `folder`; print its curves and the verdict."""
    from hessfig.cli.terminal import show

    comparison = compare.read(folder, reference)
    _leave(comparison, folder.parent)
    show(comparison.rich_table())
    _print(_NAMES.get(comparison.sweep, "sweep"), comparison, folder.parent)


def compare_figures(folder_of: Callable[[str], Path], outputs: Path, reference: Path) -> None:
    """Compare every published figure; print a verdict a figure, and which ones were skipped and why.

    `folder_of` gives a sweep's folder in `outputs`. All tables and files are read before anything is written. Raises
    UserError when no figure can be compared.
    """
    found: dict[str, Comparison] = {}
    skipped: dict[str, str] = {}
    for figure, sweep in PUBLISHED.items():
        try:
            found[figure] = _read(folder_of(sweep), reference)
        except NothingToCompare as error:
            skipped[figure] = _reason(error)
    _check_any(found, skipped, outputs, reference)
    for figure, comparison in found.items():
        _leave(comparison, outputs)
        _print(f"figure {figure}", comparison, outputs)
    for figure, why in skipped.items():
        print(f"figure {figure} ({PUBLISHED[figure]}): skipped: {why}")
    print(PICTURES)


def _read(folder: Path, reference: Path) -> Comparison:
    if not (folder / TABLE).is_file():
        raise NothingToCompare(f"{folder / TABLE} is missing: {run_command(folder)}")
    return compare.read(folder, reference)


def _reason(error: NothingToCompare) -> str:
    looked = f"; looked for: {error.allowed}; found: {error.got}" if error.allowed else ""
    return f"{error.what}{looked}"


def _check_any(found: dict[str, Comparison], skipped: dict[str, str], outputs: Path, reference: Path) -> None:
    if not found:
        raise UserError(
            f"no figure has both a table in {outputs} and result files in {reference}",
            got="\n           ".join(f"figure {figure}: {why}" for figure, why in skipped.items()),
            allowed=f"{outputs}/SWEEP/{TABLE} and the authors' files of that sweep",
            remedy="run a sweep of the paper first, or give another reference",
        )


def _leave(comparison: Comparison, outputs: Path) -> None:
    """Write the numbers beside the table, and the overlays beside the figures."""
    from hessfig.figures.layouts.overlay import draw_overlay

    compare.save(comparison, outputs / comparison.sweep)
    draw_overlay(comparison, outputs / "figures")


def _print(name: str, comparison: Comparison, outputs: Path) -> None:
    print(f"{name} ({comparison.sweep}): {comparison.sentence()}")
    manifest = outputs / comparison.sweep / "manifest.json"
    other = departures(manifest, comparison.sweep) if comparison.sweep in _NAMES and manifest.exists() else []
    notes = [f"measured with {', '.join(other)}"] if other else []
    for line in [*notes, *comparison.left_out_lines()]:
        print(f"  {line}")
