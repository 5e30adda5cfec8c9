"""What hessfig reproduce does: a table measured again, or compared with another one, number by number."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessfig.cli.flags import own_words
from hessfig.cli.flags import read as read_flags
from hessfig.cli.terminal import say, show
from hessfig.cli.verbs import VERBS
from hessfig.errors import UserError, plain, run_command
from hessfig.files import is_file, write_text
from hessfig.record import MANIFEST, TABLE

if TYPE_CHECKING:
    from hessfig.analysis.manifest import Run
    from hessfig.config.compose import Job
    from hessfig.figures.sheets import FigureSpec

OWN, FIGURES, SUMS = "own", "figures", "SHA256SUMS"  # in the folder of a bundle
ROWS = "reproduced.csv"
_LARGEST_SUMS = 2**20
Made = tuple["Run", Mapping[str, Any]]


def reproduce(arguments: Sequence[str]) -> int:
    """Measure a table again, or compare it with another one; print verdicts, and write a row for every number.

    Returns 0 when every number is equal (to the bit, to 1e-9, or within its stated errors), else 1. Raises UserError
    for what cannot be measured again or compared.
    """
    place, own, given = words_of("reproduce", arguments)
    first = made(place)
    if "beside" in given:
        _check_alone(given)
        return _compared(first, made(Path(given["beside"])), given, is_repeat=False)
    folder = place if place.is_dir() else place.parent
    job = job_again(folder, first[1], own, given)
    with _folder(given.get("output_dir"), folder, job.config.sweep.name) as output:
        again = _measured(job.in_folder(str(output)), str(first[1].get("command") or ""))
        code = _compared(first, made(again), given, is_repeat=True)
        _compare_figures(folder, again, job.own)
    return code


def words_of(verb: str, arguments: Sequence[str]) -> tuple[Path, Path | None, dict[str, str]]:
    """Return the place that is named, the folder of --config-dir, and the key=value words."""
    command = read_flags(arguments)
    places = [word for word in command.words if "=" not in word]
    given = own_words(VERBS[verb], [word for word in command.words if "=" in word])
    if verb == "bundle" and not places and "sweep" in given:
        places = [f"{given.get('output_dir', 'outputs')}/{given['sweep']}"]
    if len(places) != 1 or not Path(places[0]).exists():
        raise UserError(
            f"{verb}: {'one table is needed' if len(places) != 1 else 'there is no such table'}",
            got=plain(", ".join(places) or "no folder"),
            allowed=f"a folder with {TABLE} and {MANIFEST}, as `hessfig run` or an unpacked bundle has them",
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


def made(place: Path) -> Made:
    """Return a table and the manifest next to it; a file of another name than table.csv has none."""
    from hessfig.analysis.manifest import Run, read_manifest, read_run
    from hessfig.analysis.table import read_table

    folder = place.parent if place.name == TABLE else place
    if folder.is_dir():
        return read_run(folder), read_manifest(folder) or {}
    return Run(read_table(place), {}), {}


def job_again(folder: Path, manifest: Mapping[str, Any], own: Path | None, given: Mapping[str, str]) -> Job:
    """Return what the manifest's settings ask for. Raises UserError where there are none, or the files have changed."""
    from hessfig.config.compose import settled_again

    if not manifest:
        raise UserError(
            f"{folder / MANIFEST} is missing: what was measured is not known",
            got=f"{TABLE} alone",
            allowed=f"{TABLE} and the {MANIFEST} that `hessfig run` writes next to it",
            remedy=f"ask for the manifest, or compare two tables: hessfig reproduce {folder} beside=OTHER",
        )
    _check_sums(folder)
    inside = (folder / OWN).absolute()
    words = [f"{key}={given[key]}" for key in ("workers", "device") if key in given]
    return settled_again(manifest["config"], words, own or (inside if inside.is_dir() else None))


def _check_sums(folder: Path) -> None:
    """Raise UserError where a file of a bundle is not the one that was packed."""
    from hessfig.files import fingerprint, read_small

    if not is_file(folder / SUMS):
        return
    for line in read_small(folder / SUMS, _LARGEST_SUMS).decode("utf-8", "replace").splitlines():
        packed, _, name = line.partition("  ")
        if Path(name).is_absolute() or ".." in Path(name).parts:
            continue  # not of the bundle
        found = fingerprint(folder / name) if is_file(folder / name) else "no such file"
        if found != packed:
            raise UserError(
                f"{folder / name} is not the file that was packed",
                got=found,
                allowed=plain(packed),
                remedy="unpack the archive again",
            )


@contextmanager
def _folder(output_dir: str | None, folder: Path, name: str) -> Iterator[Path]:
    """Give the folder that is named, else one that is removed in the end."""
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
    from hessfig.config.machine import check_device, check_workers
    from hessfig.sweep import preview, runner
    from hessfig.sweep.plan import Sweep

    config = job.variants[0][1]
    check_device(config.device)
    check_workers(config)
    sweep = Sweep(job.variants)
    say(preview.describe(sweep))
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


def _compared(first: Made, second: Made, given: Mapping[str, str], *, is_repeat: bool) -> int:
    from hessfig.analysis.comparison.reproduced import compare_repeat, machines

    found = compare_repeat(first[0], second[0], is_repeat=is_repeat)
    path = write_text(Path(given.get("rows", ROWS)), found.csv())
    show(found.table())
    if first[1] or second[1]:
        show(machines(first[1], second[1]))
    say(found.sentence(), *found.notes(), f"written: {path}")
    return 0 if found.is_reproduced else 1


def _compare_figures(folder: Path, again: Path, own: Path | None) -> None:
    """Draw the figures of a bundle from the new table, and say how many files are equal to the byte."""
    kept = sorted(path for path in (folder / FIGURES).glob("*") if is_file(path))
    if not kept:
        return
    with tempfile.TemporaryDirectory(prefix="hessfig-") as temporary:
        drawn = {path.name: path.read_bytes() for path in draw_all(again, own, Path(temporary), by_hand=folder)}
    other = [path.name for path in kept if drawn.get(path.name) != path.read_bytes()]
    differ = f"; different: {', '.join(map(plain, other))}" if other else ""
    say(f"figures drawn again: {len(kept) - len(other)} of {len(kept)} files equal to the byte{differ}")


def draw_all(folder: Path, own: Path | None, into: Path, *, by_hand: Path | None = None) -> list[Path]:
    """Draw every figure of the sweep in `folder`, the shipped ones and those drawn before, into another folder.

    The folder has the name of its sweep. How figures of the user's own were drawn stands in `by_hand` (None: in
    `folder`). A figure that its table cannot give is named in a note, and left out.
    """
    from hessfig.figures.sheets import draw

    paths = []
    for spec in _specs(folder, own, by_hand or folder):
        try:
            if isinstance(spec, UserError):
                raise spec
            paths += draw(spec, folder.parent, into=into)
        except UserError as error:
            say(f"note: a figure is left out: {error.what} ({error.got})")
    return paths


def _specs(folder: Path, own: Path | None, by_hand: Path) -> Iterator[FigureSpec | UserError]:
    from hessfig.cli.plot import remembered, spec_of
    from hessfig.config.compose import compose
    from hessfig.config.compose.overrides import quoted
    from hessfig.config.presets import shipped_figures
    from hessfig.config.schema import Config

    for figure in shipped_figures():
        if figure.sweep == folder.name:
            yield spec_of(compose([f"figure={figure.name}", f"output_dir={quoted(str(folder.parent))}"], own))
    yield from (spec for spec, _, _ in remembered(by_hand, folder.name, Config().resamples))
