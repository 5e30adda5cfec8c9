"""Opens a table that is named on the command line, with the settings in its manifest, for `bundle` and `export`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from hessfig.analysis.manifest import read_manifest, read_run
from hessfig.cli.flags import own_words, read_command
from hessfig.config.compose.job import Job, settled_again
from hessfig.config.user.user_code import specs_of
from hessfig.errors import UserError, first_few, plain
from hessfig.record import MANIFEST, TABLE
from hessfig.verbs import VERBS

# The setting, and the value that allows code named in a manifest.
CODE, RUN = ("code", "run")


def named_folder(
    verb: str, arguments: Sequence[str]
) -> tuple[Path, Path | None, dict[str, str]]:
    """Return the folder of the named table, the folder of --config-dir, and the key=value words."""
    command = read_command(arguments)
    places = [word for word in command.words if "=" not in word]
    given = own_words(VERBS[verb], [word for word in command.words if "=" in word])
    if not places and "sweep" in given:
        places = [f"{given.get('output_dir', 'outputs')}/{given['sweep']}"]
    if len(places) != 1 or not Path(places[0]).exists():
        raise UserError(
            f"{verb}: {'one table is needed' if len(places) != 1 else 'there is no such table'}",
            got=plain(", ".join(places) or "no folder"),
            allowed=f"a folder with {TABLE} and {MANIFEST}, as `hessfig run` writes them",
            remedy=f"for example {VERBS[verb].examples[0]}",
        )
    place = Path(places[0])
    return (place if place.is_dir() else place.parent), command.own, given


def manifest_at(folder: Path) -> Mapping[str, Any]:
    """Return the manifest of a folder whose table is the one it describes. Raises UserError otherwise."""
    read_run(folder)
    manifest = read_manifest(folder)
    if manifest is None:
        raise UserError(
            f"{folder / MANIFEST} is missing: what was measured is not known",
            got=f"{TABLE} alone",
            allowed=f"{TABLE} and the {MANIFEST} that `hessfig run` writes next to it",
            remedy="ask for the manifest, or measure the table again",
        )
    return manifest


def job_of(manifest: Mapping[str, Any], own: Path | None) -> Job:
    """Return the settings of a manifest as a job. Nothing of the user's code is imported."""
    return settled_again(manifest["config"], (), own)


def code_of(job: Job) -> list[str]:
    """Return the names of the user's own code in the settings: factories and quantities."""
    specs = [specs_of(config) for _, config in job.variants]
    return list(dict.fromkeys(chain(*specs)))


def check_code(job: Job, given: Mapping[str, str]) -> None:
    """Raise UserError for a manifest that names code, unless the command allows it to run (code=run)."""
    code = code_of(job)
    if code and given.get(CODE) != RUN:
        raise UserError(
            "the manifest names code, which runs only if the command allows it",
            got=first_few([plain(spec) for spec in code]),
            allowed=f"{CODE}={RUN}",
            remedy=f"read the code, and if you trust it, add {CODE}={RUN} (and --config-dir FOLDER, where it lies)",
        )
