"""Implements `hessfig reproduce`: measures a table again, or compares it with another one, number by number."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessfig.cli.flags import own_words, read_command
from hessfig.cli.terminal import print_plain, show
from hessfig.config.user.packed import CODE, FIGURES, OWN, check_code, check_paths, is_bundle, unpacked_bundle
from hessfig.errors import UserError, first_few, plain, run_command
from hessfig.record import MANIFEST, TABLE
from hessfig.register import check_replaceable, publish
from hessfig.verbs import VERBS

if TYPE_CHECKING:
    from hessfig.analysis.manifest import RecordedRun
    from hessfig.config.compose.job import Job

ROWS, KIND = "reproduced.csv", "comparison by rows"
MeasuredTable = tuple["RecordedRun", Mapping[str, Any]]


def reproduce_verb(arguments: Sequence[str]) -> int:
    """Measure a table again, or compare it with another one; print verdicts, and write a row for every number.

    Returns 0 when every number is equal (to the bit, to 1e-9, or within its stated errors), and every figure of a
    bundle is that of its table, else 1. Raises UserError for what cannot be measured again or compared.
    """
    named, own, given = bundle_arguments("reproduce", arguments)
    rows = _rows(given)
    with unpacked_bundle(named) as place:
        first = measured_table(place)
        if "beside" in given:
            _check_alone(given)
            with unpacked_bundle(Path(given["beside"])) as other:
                return _compared(first, measured_table(other), rows, is_repeat=False)
        folder = place if place.is_dir() else place.parent
        job = job_again(folder, first[1], own, given)
        with _folder(given.get("output_dir"), folder, job.config.sweep.name) as output:
            again = _measured(job.in_folder(str(output)), str(first[1].get("command") or ""))
            beside = [*_other_arrays(folder, again), *_other_figures(folder, job.config.sweep.name, job.own)]
            return _compared(first, measured_table(again), rows, is_repeat=True, beside=beside)


def _rows(given: Mapping[str, str]) -> Path:
    """Return the path for the rows. Raises UserError for a path that holds something else."""
    path = Path(given.get("rows", ROWS))
    if path.suffix != ".csv":
        raise UserError("rows is the name of a table", got=f"rows={path}", allowed="FILE.csv", remedy=f"rows={ROWS}")
    check_replaceable([path], KIND)
    return path


def bundle_arguments(verb: str, arguments: Sequence[str]) -> tuple[Path, Path | None, dict[str, str]]:
    """Return the named folder or file, the folder of --config-dir, and the key=value words."""
    command = read_command(arguments)
    places = [word for word in command.words if "=" not in word]
    given = own_words(VERBS[verb], [word for word in command.words if "=" in word])
    if verb == "bundle" and not places and "sweep" in given:
        places = [f"{given.get('output_dir', 'outputs')}/{given['sweep']}"]
    if len(places) != 1 or not Path(places[0]).exists():
        raise UserError(
            f"{verb}: {'one table is needed' if len(places) != 1 else 'there is no such table'}",
            got=plain(", ".join(places) or "no folder"),
            allowed=f"a folder with {TABLE} and {MANIFEST}, as `hessfig run` writes them, or a bundle (NAME.zip)",
            remedy=f"for example {VERBS[verb].examples[0]}",
        )
    return Path(places[0]), command.own, given


def _check_alone(given: Mapping[str, str]) -> None:
    for key in sorted(set(given) - {"beside", "rows"}):
        raise UserError(
            f"reproduce: {key} has no effect where two tables are compared",
            got=f"{key}={given[key]}",
            allowed="beside, rows",
            remedy=f"leave {key} out, or leave beside out to measure again",
        )


def measured_table(place: Path) -> MeasuredTable:
    """Return a table and the manifest next to it; a file of another name than table.csv has none."""
    from hessfig.analysis.manifest import RecordedRun, read_manifest, read_run
    from hessfig.analysis.table import read_table

    folder = place.parent if place.name == TABLE else place
    if folder.is_dir():
        return read_run(folder), read_manifest(folder) or {}
    return RecordedRun(read_table(place), {}), {}


def job_again(folder: Path, manifest: Mapping[str, Any], own: Path | None, given: Mapping[str, str]) -> Job:
    """Return the job of the manifest's settings.

    Raises UserError where there are none, for code that the command does not allow, and for files outside of a bundle.
    """
    from hessfig.config.compose.job import settled_again
    from hessfig.config.user.user_dir import own_folder

    if not manifest:
        raise UserError(
            f"{folder / MANIFEST} is missing: what was measured is not known",
            got=f"{TABLE} alone",
            allowed=f"{TABLE} and the {MANIFEST} that `hessfig run` writes next to it",
            remedy=f"ask for the manifest, or compare two tables: hessfig reproduce {folder} beside=OTHER",
        )
    is_packed, inside = is_bundle(folder), folder / OWN
    if own is None and is_packed and inside.is_dir():
        own = own_folder(str(inside))
    words = [f"{key}={given[key]}" for key in ("workers", "device") if key in given]
    job = settled_again(manifest["config"], words, own)
    if is_packed:
        check_paths(job)
    if lines := check_code(job, given.get(CODE)):
        print_plain(*lines)
    return job


@contextmanager
def _folder(output_dir: str | None, folder: Path, name: str) -> Iterator[Path]:
    """Yield the named folder, else a temporary one."""
    if output_dir is None:
        with tempfile.TemporaryDirectory(prefix="hessfig-") as temporary:
            yield Path(temporary)
        return
    if (Path(output_dir) / name).resolve() == folder.resolve():
        raise UserError(
            "reproduce: the table would be compared with itself",
            got=f"output_dir={output_dir}",
            allowed="another folder: finished cells are reused",
            remedy="leave output_dir out, or name a new folder",
        )
    yield Path(output_dir)


def _measured(job: Job, command: str) -> Path:
    """Measure the sweep; return its folder. Raises UserError when no cell could be measured."""
    from hessfig.cli.experiment import report
    from hessfig.config.machine import check_machine
    from hessfig.sweep import preview, runner
    from hessfig.sweep.plan import Sweep

    check_machine(job.first)
    sweep = Sweep(job.variants)
    print_plain(preview.describe_plan(sweep))
    summary = runner.run_sweep(sweep, command=command)
    report(summary)
    if not summary.is_written:
        raise UserError(
            "no cell could be measured again",
            got=f"{summary.failed} failed cells",
            allowed="at least one finished cell",
            remedy=f"see why: {run_command(sweep.folder)}",
        )
    return sweep.folder


def _compared(
    first: MeasuredTable, second: MeasuredTable, path: Path, *, is_repeat: bool, beside: Sequence[str] = ()
) -> int:
    """Print and write the comparison of two tables; `beside` says what else is not reproduced."""
    from hessfig.analysis.comparison.reproduced import compare_repeat, machines

    comparison = compare_repeat(first[0], second[0], is_repeat=is_repeat)
    publish({path: comparison.csv()}, KIND)
    show(comparison.table())
    if first[1] or second[1]:
        show(machines(first[1], second[1]))
    print_plain(comparison.sentence(beside), *comparison.notes(), f"written: {path}")
    return 1 if beside or not comparison.is_reproduced else 0


def _other_arrays(folder: Path, again: Path) -> list[str]:
    """Compare the stored arrays of two tables and print which differ; return a line about differences."""
    from hessfig.analysis.comparison.reproduced import unequal_arrays

    count, other = unequal_arrays(folder, again)
    if count:
        differ = f"; different: {first_few([plain(name) for name in other], most=3)}" if other else ""
        print_plain(f"stored arrays: {count - len(other)} of {count} files equal{differ}")
    return [f"{len(other)} files of arrays different"] if other else []


def _other_figures(folder: Path, name: str, own: Path | None) -> list[str]:
    """Draw the figures of a bundle from its own table, whose numbers are compared, and say which files are not equal.

    Returns a line about differences.
    """
    below = folder / FIGURES
    kept = {path.relative_to(below).as_posix(): path for path in sorted(below.rglob("*")) if not path.is_dir()}
    if not kept:
        return []
    with tempfile.TemporaryDirectory(prefix="hessfig-") as temporary:
        (Path(temporary) / name).symlink_to(folder.resolve())
        paths = draw_all(Path(temporary) / name, own, Path(temporary) / FIGURES)
        drawn = {path.name: path.read_bytes() for path in paths}
    other = [plain(file) for file, path in sorted(kept.items()) if drawn.get(file) != path.read_bytes()]
    differ = f"; different: {', '.join(other)} (here with matplotlib {version('matplotlib')})" if other else ""
    print_plain(f"figures drawn again: {len(kept) - len(other)} of {len(kept)} files equal to the byte{differ}")
    return [f"{len(other)} files of figures different"] if other else []


def draw_all(folder: Path, own: Path | None, into: Path) -> list[Path]:
    """Draw every figure of the sweep in `folder`, the shipped ones and those drawn before, into another folder.

    The folder has the name of its sweep. A figure that its table cannot give is named in a note, and left out.
    """
    from hessfig.api.requested import figures_of
    from hessfig.figures.sheets import draw

    paths = []
    for spec in figures_of(folder, own):
        try:
            if isinstance(spec, UserError):
                raise spec
            paths += draw(spec, folder.parent, into=into)
        except UserError as error:
            print_plain(f"note: a figure is left out: {error.what} ({error.got})")
    return paths
