"""Sweeps and figures from Python: run, read and plot, by the settings of the command line."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessfig.analysis.manifest import read_manifest, read_run
from hessfig.analysis.presented import Table, described_html, table_html
from hessfig.config.compose.job import compose
from hessfig.config.compose.overrides import as_word
from hessfig.config.compose.provenance import (
    as_made,
    command_of,
    preset_in,
    table_folder,
    unchanged,
)
from hessfig.config.enums import Data, Kind
from hessfig.config.keys import in_manifest
from hessfig.config.presets import STUDY
from hessfig.config.schema import Config, FigureConfig, SweepConfig
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.config.user.user_dir import own_folder
from hessfig.errors import UserError, command_line, plain
from hessfig.files import fingerprint
from hessfig.record import COLUMNS, MANIFEST, TABLE
from hessfig.verbs import VERBS

if TYPE_CHECKING:
    import pandas as pd

    from hessfig.config.compose.job import Job
    from hessfig.figures.parts.page import ShownFigure

_GIVEN = {
    "sweep": "given",
    "config": "given",
    "seconds": 0.0,
    "seed": 0,
    "num_layers": 0,
    "variant": "",
}


@dataclass(frozen=True, repr=False)
class Run:
    """The results of a sweep or of a Monitor in a folder; files are read when an attribute is first used.

    hessfig.run and hessfig.read return one.

    Parameters
    ----------
    folder : pathlib.Path
        A relative folder is relative to the directory in which the run is made; the
        attribute `folder` is absolute.

    Examples
    --------
    >>> import tempfile, torch, hessfig
    >>> network, batch = torch.nn.Linear(3, 2), (torch.eye(3), torch.tensor([0, 1, 1]))
    >>> monitor = hessfig.Monitor(network, "cross_entropy", batch, folder=tempfile.mkdtemp(), quantities=["loss"])
    >>> values = monitor(0)
    >>> run = hessfig.Run(monitor.folder)
    >>> run.table["quantity"].tolist(), run.manifest["config"]["quantities"]
    (['loss'], ['loss'])
    """

    folder: Path

    def __post_init__(self) -> None:
        """Make the folder absolute."""
        object.__setattr__(self, "folder", Path(self.folder).absolute())

    @cached_property
    def table(self) -> pd.DataFrame:
        """The checked table, one row per measured number; see docs/table.md for its columns."""
        table = Table(read_run(self.folder).table)
        # For figures of some of its rows.
        table.attrs["config"] = self.manifest.get("config", {})
        return table

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The settings, versions and hashes of the run; empty where there is no manifest."""
        return read_manifest(self.folder) or {}

    def slopes(self, *words: str, **settings: Any) -> pd.DataFrame:
        """Return fitted slopes, one row per curve and window, as `hessfig slopes` does; written to slopes.csv too.

        A slope is the exponent b of value ~ a x^b, fitted to the logarithms along the
        axis of the sweep (sigma, step or a varied setting), next to the exponent that
        the theory predicts for it.

        Parameters
        ----------
        *words : str
            Settings as on the command line: "sweep.windows=[[null,1]]".
        **settings
            Settings by name: quantity="trace", tolerance=0.2.

        Returns
        -------
        pandas.DataFrame
            Slopes with standard errors and 95 % intervals (Student's t over seeds),
            windows and predictions.

        Raises
        ------
        UserError
            For settings that `hessfig slopes` refuses, and for a table that is missing
            or broken.
        """
        asked = _words(
            words,
            {
                "sweep.name": self.folder.name,
                "output_dir": str(self.folder.parent),
                **settings,
            },
        )
        VERBS["slopes"].check(asked)
        return fitted_slopes(as_made(compose(asked)))

    def plot(
        self, figure: str | None = None, *words: str, **settings: Any
    ) -> ShownFigure:
        """Return a figure of this run: see hessfig.plot."""
        return plot(self, figure, *words, **settings)

    def __repr__(self) -> str:
        """Return the call that makes it, with a relative folder where possible."""
        return f"Run({str(_shown(self.folder))!r})"

    def _repr_html_(self) -> str:
        facts = {
            "folder": _shown(self.folder),
            "rows": len(self.table),
            "quantities": ", ".join(self.table["quantity"].unique()),
            "made with": plain(self.manifest.get("command", "")),
        }
        return described_html(f"Run {self.folder.name}", facts) + table_html(self.table)


def _shown(folder: Path) -> Path:
    """Return a folder for display, relative to the directory of this process where possible."""
    if folder.is_relative_to(Path.cwd()):
        return folder.relative_to(Path.cwd())
    return folder


@contextmanager
def _kept_random() -> Iterator[None]:
    """Restore Python's random numbers: rich draws one when it is imported."""
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)


@_kept_random()
def run(
    sweep: str | None = None,
    *words: str,
    seeds: int | None = None,
    workers: int | str | None = None,
    output_dir: str | Path | None = None,
    config_dir: str | Path | None = None,
    **settings: Any,
) -> Run:
    """Measure a sweep as `hessfig run` does, and return it; finished cells are reused.

    Workers need no `if __name__ == "__main__"`, neither in scripts nor in notebooks.

    Parameters
    ----------
    sweep : str, optional
        The name of a sweep (`hessfig list`), "sigma" by default.
    *words : str
        Settings as on the command line: "model.d_model=32", "grid.points=10".
    seeds : int, optional
        Initial weights per point; three or more give the mean an interval
        (docs/accuracy.md).
    workers : int or "auto", optional
        Processes; by default as many as this machine has cores. With 0, this process
        measures.
    output_dir : path, optional
        Where the folder of the sweep is made; by default "outputs".
    config_dir : path, optional
        A folder with sweeps, figures and models of your own (docs/extending.md).
    **settings
        Further settings by name (docs/settings.md), such as quantities=["trace"].

    Returns
    -------
    hessfig.Run

    Raises
    ------
    UserError
        For settings that cannot be run, and if a cell fails; what was measured before
        is kept.

    Examples
    --------
    >>> import tempfile, hessfig
    >>> small = ("model.d_model=4", "model.n_heads=1", "task.digits=1", "task.batch_size=2", "grid.points=3")
    >>> run = hessfig.run("sigma", *small, "blocks=[W_V]", seeds=2, workers=1, output_dir=tempfile.mkdtemp())
    >>> len(run.table)
    18
    >>> run.slopes()[["row", "part", "predicted"]].values.tolist()
    [['W_V', 'H_o', 2.0], ['W_V', 'H_f', nan], ['W_V', 'H', 2.0]]
    """
    from hessfig.config.machine import check_machine
    from hessfig.sweep.plan import Sweep
    from hessfig.sweep.runner import run_sweep

    own = own_folder(str(config_dir)) if config_dir else None
    first = [] if sweep is None else [sweep if "=" in sweep else f"sweep={sweep}"]
    asked = [
        *first,
        *_words(
            words,
            {**_given(seeds=seeds, workers=workers, output_dir=output_dir), **settings},
        ),
    ]
    job = VERBS["run"].job(asked, own)
    _check_here(job)
    check_machine(job.first)
    summary = run_sweep(Sweep(job.variants, job.asked), command=command_of(job))
    if not summary.is_complete:
        raise UserError(
            f"{summary.failed} cells failed and {summary.missing} are missing; the causes are listed above",
            got="; ".join(summary.notes) or None,
            allowed="a sweep whose cells are all measured",
            remedy=f"{command_of(job)} tries them again; hessfig.read('{summary.table.parent}') gives what is there",
        )
    return Run(summary.table.parent)


def fitted_slopes(job: Job) -> pd.DataFrame:
    """Return the slopes of the sweep's curves as a frame, and write them next to its table."""
    from hessfig.analysis.slopes.fit import FitSettings, write_slopes

    config = job.config
    folder = table_folder(job)
    average = config.sweep.average.value
    preset = unchanged(preset_in(folder, job.own))
    settings = FitSettings(average, config.tolerance, preset, config.sweep.predictions)
    return write_slopes(
        folder,
        job.windows,
        settings,
        quantity=config.quantity,
        among=job.given.get("quantities"),
    )


def read(folder: str | Path) -> Run:
    """Return the results that `hessfig run` or hessfig.Monitor has written into a folder.

    Parameters
    ----------
    folder : path
        The folder of a sweep, such as "outputs/sigma", or of a monitor.

    Returns
    -------
    hessfig.Run

    Raises
    ------
    UserError
        For a table that is missing, broken, or not that of its manifest.

    Examples
    --------
    >>> import tempfile, torch, hessfig
    >>> network, batch = torch.nn.Linear(3, 2), (torch.eye(3), torch.tensor([0, 1, 1]))
    >>> monitor = hessfig.Monitor(network, "cross_entropy", batch, folder=tempfile.mkdtemp(), quantities=["loss"])
    >>> values = monitor(0)
    >>> hessfig.read(monitor.folder).table["status"].tolist()
    ['ok']
    """
    run = Run(Path(folder))
    read_run(run.folder)
    return run


def plot(
    what: Run | pd.DataFrame | str | Path,
    figure: str | None = None,
    *words: str,
    sheet: int = 0,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> ShownFigure:
    """Return a matplotlib figure of a run, of its folder, or of a table; nothing is written.

    Axes, labels and legends are matplotlib's: use `figure.axes` and `figure.savefig` as
    usual.

    Parameters
    ----------
    what : hessfig.Run, path or pandas.DataFrame
        A run, its folder, or a table of a run, of hessfig.measure or of several of
        these, joined.
    figure : str, optional
        One of `hessfig plot --help`, such as "3a". Without it, `layout` says how to
        draw.
    *words : str
        Settings as on the command line: "figure.width=3.3".
    sheet : int
        Of a figure with several sheets, the one to return.
    layout : str, optional
        "lines" by default, for numbers along an axis; "bars" for the numbers of one
        network, "spectra" for eigenvalues and densities, "heat" for all pairs of
        weights; docs/figures.md lists them all.
    options : dict, optional
        Options of the layout: {"quantity": "trace"}.
    **settings
        Settings of the group figure, and `style`: x="step", colour="part", width=3.3,
        title="Mine". `quantity` is short for the option of this name.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    UserError
        For settings that do not fit, and for a table that lacks what the figure needs.

    Examples
    --------
    >>> import torch, hessfig
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1]))
    >>> figure = hessfig.plot(hessfig.measure(problem), layout="bars", title="A linear map")
    >>> figure.get_suptitle(), len(figure.axes)
    ('A linear map', 3)
    """
    from hessfig.api.requested import figure_spec

    with tempfile.TemporaryDirectory() as scratch:
        folder = _folder_of(what, Path(scratch))
        if figure and "=" in figure:
            words = (figure, *words)
            figure = None
        if figure:
            chosen = {"figure": figure}
        else:
            chosen = {"name": folder.name, "layout": "lines"}
        chosen |= _given(layout=layout, options=options)
        place = {"figure.sweep": folder.name, "output_dir": str(folder.parent)}
        asked = _words(words, {**place, **_of_figures({**chosen, **settings})})
        VERBS["plot"].check(asked)
        job = compose(asked)
        if job.config.figure.layout == STUDY:
            raise UserError(
                f"figure {figure} is computed from the theory, not drawn from a run",
                got=f"figure={figure}",
                allowed="a figure of a sweep",
                remedy=f"hessfig plot figure={figure}",
            )
        return _drawn(figure_spec(job), folder, sheet)


def _drawn(spec: Any, folder: Path, sheet: int) -> ShownFigure:
    from hessfig.figures.parts.page import relabel, shown, styled
    from hessfig.figures.sheets import LAYOUTS, check

    check(spec)
    with styled(spec.paper):
        pages = [
            page
            for page in LAYOUTS[spec.layout].draw(spec, folder)
            if page.figure.get_visible()
        ]
        if not 0 <= sheet < len(pages):
            last = f"0 to {len(pages) - 1}"
            raise UserError(
                "sheet: there is no such sheet",
                got=sheet,
                allowed=last,
                remedy="sheet=0, or other panels",
            )
        figure = pages[sheet].figure
        relabel(figure, **spec.paper.labels(pages[sheet].suffix))
    return shown(figure)


def _folder_of(what: Any, scratch: Path) -> Path:
    """Return the folder of a run; for a table, a temporary folder."""
    if isinstance(what, Run):
        return what.folder
    if isinstance(what, str | Path):
        return Path(what)
    if not hasattr(what, "columns"):
        raise UserError(
            "plot: this is not a measured run or table",
            got=type(what).__name__,
            allowed="a run, its folder, or a table",
            remedy="hessfig.plot(hessfig.read('outputs/sigma'), figure='3a')",
        )
    folder = scratch / "given"
    filled = what.assign(**{k: v for k, v in _GIVEN.items() if k not in what.columns})
    folder.mkdir()
    filled.assign(sweep="given").reindex(columns=COLUMNS).to_csv(
        folder / TABLE, index=False
    )
    config = what.attrs.get("config") or _of_a_network(what)
    arrays = list(_written_arrays(what, folder))
    (folder / MANIFEST).write_text(json.dumps({"config": config, "arrays": arrays}))
    return folder


def _written_arrays(table: pd.DataFrame, folder: Path) -> Iterator[dict[str, Any]]:
    """Write the arrays that hessfig.measure leaves with its table, and yield how a manifest lists each file."""
    import numpy

    at = {"variant": "", "num_layers": 0, "sigma": None, "step": None}
    for quantity, stored in (table.attrs.get("arrays") or {}).items():
        seed = int(table["seed"].iloc[0]) if "seed" in table else 0
        label = {**at, "seed": seed, "quantity": quantity}
        path = folder / f"{quantity}.npz"
        numpy.savez(path, label=json.dumps(label), **stored)
        yield {**label, "file": path.name, "sha256": fingerprint(path)}


def _of_a_network(table: pd.DataFrame) -> dict[str, Any]:
    """Return the settings of a table without a manifest: those of a user's own network."""
    if "step" in table.columns and table["step"].notna().all():
        axis = "step"
    else:
        axis = "sigma"
    config = Config(
        TaskConfig(data=Data.python),
        ModelConfig(kind=Kind.python),
        sweep=SweepConfig(axis=axis),
    )
    return in_manifest(config)


def _check_here(job: Job) -> None:
    config = job.first
    elsewhere = {
        "launcher=slurm": config.launcher.kind != "local",
        "shard": config.shard is not None,
    }
    for word, is_asked in {**elsewhere, "dry_run=true": config.dry_run}.items():
        if is_asked:
            raise UserError(
                f"hessfig.run measures on this machine: {word} is a matter of the command line",
                got=word,
                allowed="settings without it",
                remedy=command_line("run", *job.words),
            )


def _of_figures(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments as settings: those of the group figure get its name, options one word each."""
    known = vars(FigureConfig())
    named = dict[str, Any]()
    for key, value in settings.items():
        if key == "options" and isinstance(value, Mapping):
            named |= {
                f"figure.options.{name}": option for name, option in value.items()
            }
        elif key == "quantity":
            named["figure.options.quantity"] = value
        else:
            named[f"figure.{key}" if key in known else key] = value
    return named


def _given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {key: value for key, value in settings.items() if value is not None}


def _words(words: tuple[str, ...], settings: Mapping[str, Any]) -> list[str]:
    return [*words, *(as_word(key, value) for key, value in settings.items())]
