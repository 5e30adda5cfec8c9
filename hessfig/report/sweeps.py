"""One sweep as its folder has it: table, manifest, slopes, comparison, failures, and what could not be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from hessfig.analysis.comparison.verdict import judge
from hessfig.analysis.curves import quantity_to_fit
from hessfig.analysis.manifest import Run, read_manifest, read_run
from hessfig.analysis.slopes.fit import fit_slopes
from hessfig.errors import UserError
from hessfig.report.asked import Asked, SweepAsked
from hessfig.report.folders import Failure, State, failures_in, made_by, state_of


@dataclass(frozen=True)
class Compared:
    """What `hessfig compare` left: its curves, the verdict on them and what it rests on."""

    curves: pd.DataFrame
    verdict: str
    reasons: list[str]


@dataclass(frozen=True)
class SweepFound:
    """A sweep on disk. `problem` says what could not be read, `no_slopes` why there are none."""

    asked: SweepAsked
    state: State
    words: str
    version: str
    manifest: Mapping[str, Any] | None = None
    run: Run | None = None
    slopes: pd.DataFrame | None = None
    no_slopes: str = ""
    compared: Compared | None = None
    failures: list[Failure] = field(default_factory=list)
    problem: UserError | None = None

    @property
    def name(self) -> str:
        """Its name, and that of its folder."""
        return self.asked.name

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings that made it; empty where they are not known."""
        return self.run.config if self.run else {}


def read_sweep(asked: Asked, name: str) -> SweepFound:
    """Return what outputs/<name> holds. Nothing in it raises: what cannot be read is said."""
    folder, about = asked.outputs / name, asked.sweeps[name]
    run, manifest, problem = _read(folder)
    state, words = state_of(folder, manifest, is_readable=run is not None)
    slopes, no_slopes = _slopes(run, about, asked) if run else (None, "")
    return SweepFound(
        about,
        state,
        words,
        made_by(folder),
        manifest,
        run,
        slopes,
        no_slopes,
        compared=_compared(folder) if run else None,
        failures=failures_in(folder),
        problem=problem if state == State.unreadable else None,
    )


def _read(folder: Path) -> tuple[Run | None, Mapping[str, Any] | None, UserError | None]:
    try:
        return read_run(folder), read_manifest(folder), None
    except UserError as error:
        return None, None, error


def _slopes(run: Run, about: SweepAsked, asked: Asked) -> tuple[pd.DataFrame | None, str]:
    """Fit what `hessfig slopes` does, on the windows of the sweep; along training steps no power law is looked for."""
    if run.axis.name == "step":
        return (
            None,
            f"curves along steps are no power laws (hessfig slopes sweep={about.name} fits them all the same)",
        )
    try:
        frame = fit_slopes(
            run.table,
            run.architectures,
            about.windows,
            axis=run.axis,
            quantity=quantity_to_fit(run.table),
            tolerance=asked.tolerance,
            resamples=asked.resamples,
            seed=run.first_seed,
            average=about.average,
            preset="" if about.other else about.preset,
        )
    except UserError as error:
        return None, error.what
    return frame, ""


def _compared(folder: Path) -> Compared | None:
    """Return the comparison that lies beside the table, judged again from its files; None where it is not whole."""
    try:
        points, curves, ratios = (
            pd.read_csv(folder / f"comparison{name}.csv") for name in ("", "_curves", "_ratios")
        )
        verdict, reasons = judge(points, curves, ratios)
    except (OSError, ValueError, KeyError, TypeError):  # none, cut short, or of another version
        return None
    return Compared(curves, verdict.value, reasons)
