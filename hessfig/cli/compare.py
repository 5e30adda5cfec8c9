"""Implements `hessfig compare`: one sweep, or every figure that has both a table and published numbers."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from hessfig.analysis.comparison import against
from hessfig.analysis.comparison.against import Comparison
from hessfig.analysis.comparison.one_by_one import OneByOne
from hessfig.analysis.comparison.paired import Paired
from hessfig.analysis.comparison.references import NothingToCompare
from hessfig.cli.terminal import show
from hessfig.config.compose.provenance import departures
from hessfig.config.enums import Published
from hessfig.config.presets import shipped_figures
from hessfig.errors import UserError, run_command
from hessfig.record import MANIFEST, TABLE


def compare_sweep(folder: Path, reference: Path) -> None:
    """Compare the sweep in `folder`; print its curves, the verdict and the written files."""

    comparison = against.compare_folder(folder, reference)
    written = _leave(comparison, folder)
    show(comparison.rich_table())
    names = {sweep: f"figure {figure}" for figure, sweep in _published().items()}
    _print(names.get(comparison.sweep, "sweep"), comparison, folder, written)


def compare_figures(folder_of: Callable[[str], Path], outputs: Path, reference: Path) -> None:
    """Compare every published figure; print a verdict per figure, and which figures were skipped and why.

    `folder_of` gives a sweep's folder in `outputs`. All tables and files are read before anything is written. Raises
    UserError when no figure can be compared.
    """
    compared: dict[str, tuple[Path, Comparison | Paired | OneByOne]] = {}
    skipped: dict[str, str] = {}
    for figure, sweep in _published().items():
        try:
            folder = folder_of(sweep)
            compared[figure] = (folder, _read(folder, reference))
        except NothingToCompare as error:
            skipped[figure] = _reason(error)
    if not compared:
        raise _nothing_compared(skipped, outputs, reference)
    for figure, (folder, comparison) in compared.items():
        _print(f"figure {figure}", comparison, folder, _leave(comparison, folder))
    for figure, why in skipped.items():
        print(f"figure {figure} ({_published()[figure]}): skipped: {why}")
    names = sorted(figure.name for figure in shipped_figures() if figure.published == Published.pictures)
    print(f"figures {' and '.join(names)}: skipped: published as pictures, without numbers")


def _published() -> dict[str, str]:
    """Return the sweep of every figure whose numbers the authors published."""
    figures = shipped_figures()
    return {figure.name: figure.sweep for figure in figures if figure.published == Published.numbers}


def _read(folder: Path, reference: Path) -> Comparison | Paired | OneByOne:
    if not (folder / TABLE).is_file():
        raise NothingToCompare(f"{folder / TABLE} is missing: {run_command(folder)}")
    return against.compare_folder(folder, reference)


def _reason(error: NothingToCompare) -> str:
    looked = f"; looked for: {error.allowed}; found: {error.got}" if error.allowed else ""
    return f"{error.what}{looked}"


def _nothing_compared(skipped: dict[str, str], outputs: Path, reference: Path) -> UserError:
    return UserError(
        f"no figure has both a table in {outputs} and values in {reference}",
        got="\n           ".join(f"figure {figure}: {why}" for figure, why in skipped.items()),
        allowed=f"{outputs}/SWEEP/{TABLE} and {reference}/SWEEP.csv",
        remedy="run a sweep of the paper first, or give another reference",
    )


def _leave(comparison: Comparison | Paired | OneByOne, folder: Path) -> list[Path]:
    """Write the numbers next to the table, and the overlays next to the figures; return their paths."""
    from hessfig.figures.layouts.overlay import draw_overlay

    saved = against.save_comparison(comparison, folder)
    if isinstance(comparison, Comparison):
        return [*saved, *draw_overlay(comparison, folder.parent / "figures")]
    return saved


def _print(name: str, comparison: Comparison | Paired | OneByOne, folder: Path, written: Sequence[Path]) -> None:
    print(f"{name} ({comparison.sweep}) against {comparison.reference}: {comparison.sentence()}")
    manifest = folder / MANIFEST
    known = comparison.sweep in _published().values() and manifest.exists()
    other = departures(manifest, comparison.sweep) if known else []
    notes = [f"measured with {', '.join(other)}"] if other else []
    for line in [*notes, *comparison.notes(), f"written: {', '.join(_short(written))}"]:
        print(f"  {line}")


def _short(paths: Sequence[Path]) -> list[str]:
    """Return paths that differ by their ending as one: 'outputs/figures/x.{pdf,png}'."""
    groups = groupby(paths, lambda path: path.with_suffix(""))
    stems = [(stem, [path.suffix[1:] for path in same]) for stem, same in groups]
    return [f"{stem}.{{{','.join(ends)}}}" if len(ends) > 1 else f"{stem}.{ends[0]}" for stem, ends in stems]
