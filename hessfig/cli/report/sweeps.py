"""Sweeps as the settings have them: what departs from the preset, and the commands that make them again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hessfig.config.compose import Job, compose, manifest_of, preset_in
from hessfig.config.compose.made import Difference
from hessfig.config.shipped import choices
from hessfig.errors import UserError
from hessfig.files import is_file
from hessfig.record import TABLE
from hessfig.report.asked import Departure, SweepAsked


def asked_of(job: Job, name: str) -> SweepAsked:
    """Return a sweep as the settings have it; one that was named by hand has its manifest's windows."""
    is_known, folder = name in choices("sweep", job.own), Path(job.config.output_dir) / name
    of_sweep = composed(job, f"sweep={name}" if is_known else f"sweep.name={name}")
    manifest = _made(folder)
    config = None if manifest is None else manifest["config"]
    if config and not is_known:
        of_sweep = of_sweep.fitted_as(config["sweep"])
    fitted, preset = of_sweep.config.sweep, preset_in(folder, job.own) if manifest else None
    departures = None if preset is None else _departures(preset.changed)
    about = fitted.about if is_known else str((config or {"sweep": {}})["sweep"].get("about") or "")
    other = preset.of_network if preset else []
    again = quoted_anew((manifest or {}).get("command"), "run")
    return SweepAsked(
        name,
        preset.words(name) if preset else about,
        [(low, high) for low, high in fitted.windows],
        fitted.average.value,
        again or _again(job, name, config, departures or [], is_known=is_known),
        departures,
        is_known,
        preset=preset.name if preset else "",
        other=_departures(other),
    )


def composed(job: Job, *words: str) -> Job:
    """Return what other words ask of the same output folder."""
    return compose([*words, *(word for word in job.words if word.startswith("output_dir="))], job.own)


def place(job: Job) -> list[str]:
    """Return the words that say where results and the user's folder are."""
    own = ["--config-dir", str(job.own)] if job.own else []
    return [*(word for word in job.words if word.startswith("output_dir=")), *own]


def command(verb: str, *words: str) -> str:
    """Return a command ready to be pasted."""
    return shlex.join(["hessfig", verb, *words])


def is_measured(job: Job, sweep: str) -> bool:
    """Whether a sweep has a table."""
    return bool(sweep) and is_file(Path(job.config.output_dir) / sweep / TABLE)


def _made(folder: Path) -> Mapping[str, Any] | None:
    try:
        return manifest_of(folder)
    except UserError:  # the sweep's page says why
        return None


def quoted_anew(found: object, verb: str) -> str:
    """Return a command line that stands in a file, if it is one of `verb`: pasting it runs hessfig and nothing else."""
    with suppress(ValueError):  # quotes that do not close
        words = shlex.split(str(found or ""))
        return shlex.join(words) if words[:2] == ["hessfig", verb] else ""
    return ""


def _departures(found: Sequence[Difference]) -> list[Departure]:
    return [Departure(one.key, _text(one.made), _text(one.asked)) for one in found]


def _again(
    job: Job, name: str, config: Mapping[str, Any] | None, departures: list[Departure], *, is_known: bool
) -> str:
    """Return the command that makes a sweep again: what departs from the preset is given."""
    vary = ((config or {}).get("sweep") or {}).get("vary") or {}
    words = [f"{one.key}={one.made}" for one in departures if one.key not in vary]
    if any(one.key in vary for one in departures):
        words.append(f"sweep.vary={_text(vary)}")
    return command("run", f"sweep={name}" if is_known else f"sweep.name={name}", *words, *place(job))


def _text(value: Any) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value)
