"""What `hessfig run` and `hessfig status` do: measure a sweep or a share of it, or say how much of it is there."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.cli.terminal import say
from hessfig.config.compose.job import Job, Variants, compose
from hessfig.config.compose.overrides import quoted
from hessfig.config.compose.provenance import SettingDifference, command_of, differences, manifest_of, title
from hessfig.config.enums import Launcher
from hessfig.config.facts import Role
from hessfig.config.machine import check_device_name
from hessfig.config.presets import choices
from hessfig.config.settings import role_of
from hessfig.errors import UserError, command_line, plain
from hessfig.files import is_file
from hessfig.record import FROBENIUS, MANIFEST, TABLE, Status, read_checked

if TYPE_CHECKING:
    from hessfig.sweep.garbage import Unused
    from hessfig.sweep.plan import Sweep
    from hessfig.sweep.runner import Summary
    from hessfig.sweep.slurm import SlurmJob

_SHOWN = 5
_OTHER_CONTENT = "these settings, but other files or code, or another version of hessfig"


def run(job: Job) -> int:
    """Measure what is not finished and write the table; return 1 when a cell failed or is missing."""
    from hessfig.config.machine import check_machine
    from hessfig.sweep import pool, preview, runner
    from hessfig.sweep.plan import Sweep

    config = job.first
    if config.launcher.kind == Launcher.slurm:
        collected = run_slurm(job, command_of(job))
        return 0 if collected is None else report(collected)
    check_machine(config)
    if config.ranks:
        summary = run_ranks(job, command_of(job))
        return report(summary) if summary else 0
    if config.dry_run:
        return status(job)
    if not is_file(Path(config.output_dir) / config.sweep.name / TABLE):  # else there may be nothing to measure
        pool.warm()
    sweep = Sweep(job.variants, job.asked)
    if not sys.stderr.isatty():
        say(f"start: {command_of(job)}\n{preview.describe(sweep, title=title(job))}")
    if config.shard is not None:
        return run_shard(job, sweep)
    return report(runner.run_sweep(sweep, command=command_of(job)))


def measure_and_draw(job: Job) -> int:
    """Measure a sweep as `run` does, then draw it with the figure of the sweep that the verb stands for."""
    from hessfig.cli.results import plot

    code = run(job)
    if code == 0:
        sweep = job.given["sweep"]
        plot(compose([*job.words, f"figure={sweep}", f"figure.sweep={job.config.sweep.name}"], job.own))
    return code


def run_shard(job: Job, sweep: Sweep) -> int:
    """Measure one share of the cells and say how to collect; return 1 when a cell of it failed."""
    from hessfig.sweep import preview, shards

    shard = shards.Shard.parse(job.config.shard or "")
    done = shards.run_shard(sweep, shard)
    say(f"shard {shard}: {preview.did(done)}; cells: {sweep.store.folder}")
    if done.missing:
        print(f"note: {done.missing} pilot cells are not there, so no other was measured: run it again")
    say(f"collect, with all shards in one folder: {_command(job)}")
    return 0 if done.is_complete else 1


def run_ranks(job: Job, command: str) -> Summary | None:
    """Measure a sweep by all processes of torchrun; return what the first of them, which plans and stores, did."""
    import time

    from hessfig.sweep import together
    from hessfig.sweep.plan import Sweep

    together.check_ranks(job.config)
    start = time.perf_counter()
    with together.joined(job.config) as is_first:
        sweep = Sweep(job.variants, job.asked)
        planned = together.planned_shares(sweep)
        if is_first:
            say(*planned)
        if job.config.dry_run:
            return None
        summary = together.lead(sweep, command) if is_first else None
        if summary is None:
            together.serve()
        done = together.shares(time.perf_counter() - start)
    if summary is not None:
        say(*map(str, done))
    return summary


def run_slurm(job: Job, command: str) -> Summary | None:
    """Submit what is not finished, or go on with the job that is at it; wait and collect, unless told not to wait.

    `command` goes into the manifest. Returns what was collected; None when the job is left alone or only shown.
    """
    from hessfig.sweep.plan import Sweep
    from hessfig.sweep.runner import run_sweep
    from hessfig.sweep.slurm import SlurmJob

    check_device_name(job.config.device)
    sweep = Sweep(job.variants, job.asked)
    slurm = SlurmJob(sweep, [*job.flags, *_words(job)])
    if job.config.dry_run:
        shards = slurm.shards()
        print(slurm.script(shards) if shards else "nothing to do\n", end="")
        return None
    wait = job.config.launcher.wait
    if not wait and (slurm.is_alive() or (slurm.number is None and slurm.shards())):
        _leave(job, slurm)
        return None
    summary = run_sweep(sweep, slurm.run if wait else slurm.watched, command)
    slurm.forget()
    return summary


def _leave(job: Job, slurm: SlurmJob) -> None:
    """Submit unless a job is at it, and say what to type."""
    if slurm.number is None:
        slurm.submit()
    else:
        print(f"slurm job {slurm.number} is still at it")
    words = [word for word in job.words if not word.startswith("launcher")]
    say(f"how far:  {command_line('status', *job.flags, *words)}")
    say(f"collect:  {command_line('run', *job.flags, *job.words)}")


def _command(job: Job) -> str:
    words = [word for word in job.words if _key(word) != "shard" and role_of(_key(word)) != Role.machine]
    return command_line("run", *job.flags, *words)


def _words(job: Job) -> list[str]:
    """Return the settings of a share: those that were given, and the folder that -m may have moved."""
    kept = [word for word in job.words if role_of(_key(word)) not in (Role.machine, Role.command)]
    return [*kept, f"output_dir={quoted(job.config.output_dir)}"]


def _key(word: str) -> str:
    return word.partition("=")[0]


def report(summary: Summary) -> int:
    """Say what a run did; return 1 when a cell failed or is missing."""
    from hessfig.sweep import preview

    say(preview.summarise(summary))
    found = out_of_range(summary.table) if summary.is_written else []
    say(*(f"note: {note}" for note in summary.notes), *found)
    if summary.is_written:
        say(f"written: {summary.table}, {summary.table.with_name(MANIFEST)}")
    return 0 if summary.is_complete else 1


def status(job: Job) -> int:
    """Say what is measured, what is to do, and what table is there."""
    from hessfig.sweep import preview
    from hessfig.sweep.plan import Sweep
    from hessfig.sweep.slurm import said_of

    sweep = Sweep(job.variants, job.asked)
    said = preview.describe(sweep, title=title(job))
    say(said, *said_of(sweep.folder), f"table: {table_there(job, sweep)}")
    return 0


def clean(job: Job) -> int:
    """List what nothing uses any more, and remove it once told so; the folder of one sweep if one is named."""
    from hessfig.sweep.garbage import remove, sweep_folders, unused

    outputs = Path(job.config.output_dir)
    is_named = bool({"sweep", "sweep.name"} & {*job.given})
    named = [outputs / job.config.sweep.name] if is_named else sweep_folders(outputs)
    every = [unused(folder, _current(job, folder.name)) for folder in named]
    found = [one for one in every if one.files]
    for one in every:
        say(*_of_folder(one))
    if not found:
        say(f"nothing to remove in {outputs}: every cell is in a table, needed by a sweep, or kept as reported")
        return 0
    if job.config.dry_run or not _consents(job, sum(len(one.files) for one in found)):
        print("nothing was removed")
        return 0
    print(f"removed: {sum(map(remove, found))} files")
    return 0


def _of_folder(found: Unused) -> list[str]:
    """Return what may go from a folder, and what stays although no table and no sweep uses it."""
    lines = []
    if found.why:
        lines.append(f"{found.folder}: every cell stays: {found.why}")
    if found.young:
        lines.append(
            f"{found.folder}: {found.young} unused cells stay: they were written less than a day ago, perhaps by a "
            "run that will be resumed"
        )
    if found.files:
        rest = f", {len(found.leftovers)} leftovers of interrupted writers" * bool(found.leftovers)
        files = f"{len(found.cells)} files of unused cells{rest}, {_size(found.size)}"
        lines.append(f"{found.folder}: {files}; {found.kept} cells stay")
    return [*lines, *(f"  {path}" for path in found.files)]


def _current(job: Job, sweep: str) -> Variants | None:
    """Return what the sweep asks for now, with the settings given here; None for one that is no more."""
    known = sweep in choices("sweep", job.own) or sweep == job.config.sweep.name
    return (job if sweep == job.config.sweep.name else job.of_sweep(sweep)).variants if known else None


def _consents(job: Job, count: int) -> bool:
    """Return whether to remove: yes=true, or the answer of the user. Raises UserError without a terminal."""
    if job.config.yes:
        return True
    if not (sys.stdin and sys.stdin.isatty()):
        raise UserError(
            f"clean: there is no terminal to confirm that {count} files are removed",
            got="yes=false, and no terminal",
            allowed="yes=true removes what is listed; dry_run=true lists it only",
            remedy=command_line("clean", *job.words, "yes=true"),
        )
    return input(f"Remove these {count} files? [y/N] ").strip().lower() in ("y", "yes")


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def table_there(job: Job, sweep: Sweep) -> str:
    """Return which table the sweep's folder holds: where, rows, when, and the settings in which it is another one."""
    from hessfig.sweep.outputs import config_hash

    path = sweep.folder / TABLE
    if not is_file(path):
        return f"none yet ({path})"
    what = f"{path}, {_rows(path)}"
    try:
        manifest = manifest_of(path.parent)
    except UserError as error:
        return f"{what}, with a manifest that cannot be read ({plain(error.got)})"
    if manifest is None:
        return f"{what}, without a manifest: its settings are not known"
    other = differences(manifest["config"], job)
    is_same = manifest.get("config_hash") == config_hash(sweep.variants)
    same = "these settings" if is_same else _OTHER_CONTENT
    made = plain(_shortly(other), most=1000) if other else same
    return f"{what}, of {plain(manifest.get('end'))}, made with {made}"


def _rows(path: Path) -> str:
    try:
        with path.open(newline="", encoding="utf-8", errors="replace") as handle:
            return f"{sum(1 for _ in csv.reader(handle)) - 1} rows"
    except (OSError, csv.Error) as error:
        return f"which cannot be read ({error})"


def _shortly(other: Sequence[SettingDifference]) -> str:
    more = f", and {len(other) - _SHOWN} more" if len(other) > _SHOWN else ""
    return ", ".join(map(str, other[:_SHOWN])) + more


def out_of_range(table: Path) -> list[str]:
    """Return a line each for numbers that are not finite, did not converge, or underflowed to 0; none if all is well.

    Any quantity may overflow; only a norm, and of a network whose zeros are known, has underflowed where it is 0.
    """
    with table.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    norms = [row for row in _of_status(rows, Status.ok) if row["quantity"] == FROBENIUS]
    underflowed = [row for row in norms if float(row["value"]) == 0.0] if _knows_zeros(table) else []
    ends = {
        "are not finite": (_of_status(rows, Status.nonfinite), "recorded as such and left out of means"),
        "did not converge": (_of_status(rows, Status.not_converged), "recorded and left out of means"),
        "are 0 where theory knows no zero": (
            underflowed,
            "0 in every product: an underflow on the way, or a zero that theory does not state; kept as 0",
        ),
    }
    return [
        f"{len(bad)} numbers of {len(rows)} {what}: {_where(bad, rows)}: {end}"
        for what, (bad, end) in ends.items()
        if bad
    ]


def _knows_zeros(table: Path) -> bool:
    """Return whether theory knows which blocks of this network vanish; those of a user's own network are not known."""
    from hessfig.predictions.architecture import COUNTED

    manifest = table.with_name(MANIFEST)
    return not manifest.exists() or read_checked(manifest)["config"]["model"]["kind"] in COUNTED


def _of_status(rows: Iterable[dict[str, str]], status: Status) -> list[dict[str, str]]:
    return [row for row in rows if row["status"] == status]


def _where(bad: list[dict[str, str]], rows: list[dict[str, str]]) -> str:
    """Return the places of the bad rows, network by network and quantity by quantity."""
    groups = dict.fromkeys(map(_group, bad))
    return ", ".join(f"{_places(_of(bad, one), _of(rows, one))} ({one})" for one in groups)


def _group(row: dict[str, str]) -> str:
    variant, quantity = row["variant"], row["quantity"]
    names = [variant, f"n_layers={row['num_layers']}", "" if quantity == FROBENIUS else quantity]
    return ", ".join(filter(None, names))


def _of(rows: Iterable[dict[str, str]], group: str) -> tuple[str, list[float]]:
    """Return what the rows of a group lie along (of sigma and step what has more places), and these in rising order."""
    here = [row for row in rows if _group(row) == group]
    found = {name: len({row[name] for row in here} - {""}) for name in ("sigma", "step")}
    axis = max(found, key=lambda name: found[name]) if any(found.values()) else ""
    return axis, sorted({float(row[axis]) for row in here if row[axis]}) if axis else []


def _places(bad: tuple[str, list[float]], grid: tuple[str, list[float]]) -> str:
    """Return which places of the grid are bad: every one, an end of it, or a list."""
    (axis, found), (_, known) = bad, grid
    if not axis:
        return "at the one point measured"
    if found == known:
        return f"every {axis}"
    if found == known[-len(found) :]:
        return f"{axis} >= {found[0]:.3g}"
    if found == known[: len(found)]:
        return f"{axis} <= {found[-1]:.3g}"
    return f"{axis} {', '.join(f'{place:.3g}' for place in found)}"
