"""What the verbs do that read tables or nothing: slopes, check, compare and verify."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hessfig.cli.flags import own_words
from hessfig.cli.verbs import VERBS
from hessfig.config.compose import Job, manifest_of, matching_folder, table_folder, unchanged_preset
from hessfig.errors import UserError, plain


def as_made(job: Job) -> Job:
    """Return the job with the windows and average that a table was made with, where it is named and no sweep is."""
    if "sweep" in job.given or "sweep.name" not in job.given:
        return job
    manifest = manifest_of(Path(job.config.output_dir) / job.config.sweep.name)
    return job if manifest is None else job.fitted_as(manifest["config"]["sweep"])


def slopes(job: Job) -> int:
    """Fit the sweep's curves and print the slopes."""
    from hessfig.analysis.slopes import printed
    from hessfig.analysis.slopes.fit import SLOPES
    from hessfig.analysis.slopes.printed import rich_table
    from hessfig.cli.terminal import show

    job = as_made(job)
    config = job.config
    if config.levels:
        return _levels(job)
    fitted = fitted_slopes(job)
    show(rich_table(printed.chosen(fitted, rows=config.rows, parts=config.part)))
    if fitted.attrs["others"]:
        print(f"also in the table (quantity=NAME): {plain(', '.join(fitted.attrs['others']))}")
    print(f"written: {table_folder(job) / SLOPES}")
    return 0


def _levels(job: Job) -> int:
    """Print the mean levels in the windows, and their exponents in what the sweep varies."""
    from hessfig.analysis.slopes import levels, printed
    from hessfig.cli.terminal import show

    config, folder = job.config, table_folder(job)
    found = levels.run(
        folder,
        windows(job),
        average=config.sweep.average.value,
        quantity=config.quantity,
        among=job.given.get("quantities"),
        resamples=config.resamples,
    )
    for frame in found:
        if len(frame):
            show(printed.level_table(printed.chosen(frame, rows=config.rows, parts=config.part)))
    print(f"written: {folder / levels.LEVELS}, {folder / levels.TRENDS}")
    return 0


def check(job: Job) -> int:
    """Fit the sweep's curves; return 1 when a slope is outside its tolerance, or none could be checked."""
    from hessfig.analysis.slopes import gate
    from hessfig.analysis.slopes.fit import SLOPES

    job = as_made(job)
    lines, code = gate.summary(fitted_slopes(job), job.config.tolerance)
    print("\n".join([*lines, f"written: {table_folder(job) / SLOPES}"]))
    return code


def compare(job: Job) -> int:
    """Compare one sweep with a reference, or every published figure with a folder of the authors' files."""
    from hessfig.cli.compare import compare_figures, compare_sweep

    config = job.config
    if not config.reference:
        raise UserError(
            "reference is missing",
            got=f"reference={config.reference or ''}",
            allowed="reference=FILE.csv or reference=FOLDER",
            remedy="name a file of published values, or the folder of the authors' result files",
        )
    reference = Path(config.reference)
    if "sweep" not in job.given and reference.is_dir():
        compare_figures(lambda sweep: matching_folder(job.of_sweep(sweep)), Path(config.output_dir), reference)
    else:
        compare_sweep(table_folder(job), reference)
    return 0


def verify(arguments: list[str]) -> int:
    """Check statements of the theory; the settings are words of its own."""
    from hessfig.cli.terminal import show
    from hessfig.theory.verification import parse
    from hessfig.theory.verification import run as run_statements

    return run_statements(**parse(own_words(VERBS["verify"], arguments)), show=show)


def fitted_slopes(job: Job) -> Any:
    """Return the slopes of the sweep's curves as a frame, and write them next to its table."""
    from hessfig.analysis.slopes.fit import FitSettings, write_slopes

    config, folder = job.config, table_folder(job)
    average, preset = config.sweep.average.value, unchanged_preset(folder, job.own)
    settings = FitSettings(average, config.resamples, config.tolerance, preset=preset)
    quantity, among = config.quantity, job.given.get("quantities")
    return write_slopes(folder, windows(job), settings, quantity=quantity, among=among)


def windows(job: Job) -> list[tuple[float | None, float | None]]:
    """Return the windows that slopes are fitted on."""
    return [(low, high) for low, high in job.config.sweep.windows]
