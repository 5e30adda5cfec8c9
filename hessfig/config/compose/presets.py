"""What a run changes of its preset, the sweep that its command names: words and references follow the settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessfig.config.compose.job import Job, compose
from hessfig.config.compose.made import Difference, differences, manifest_of
from hessfig.config.plain import as_plain
from hessfig.config.shipped import names
from hessfig.errors import first_few, plain

# Settings of what is measured; the others say how, how often and where on the axis.
_OF_NETWORK = ("task.", "model.", "state.", "training.")
_FREE = ("task.seed",)  # other draws of the same task
_SHOWN = 8


@dataclass(frozen=True)
class Preset:
    """The sweep that a run began with, a line about it, and the settings in which the run is another.

    `says_itself`: the line is the run's own (sweep.about=...), which holds whatever it changes.
    """

    name: str
    about: str
    changed: Sequence[Difference]
    says_itself: bool = False

    @property
    def of_network(self) -> list[Difference]:
        """The changed settings of network, task and state; a part of what the preset varies is no change."""
        return [
            one
            for one in self.changed
            if one.key.startswith(_OF_NETWORK) and one.key not in _FREE and not _is_part(one)
        ]

    def words(self, name: str) -> str:
        """Return a line about the run `name`: its preset's, and what it changes of that."""
        about = plain(self.about)
        if self.says_itself or not self.changed:
            return about
        said = first_few([plain(f"{one.key}={one.value}") for one in self.changed], most=_SHOWN)
        return f"({'preset' if self.name == name else f'preset {self.name}'}: {about}) with {said}"


def preset_of(job: Job) -> Preset:
    """Return the preset of what is asked for."""
    return _preset(job.words, _named(job.words), job.own, as_plain(job.variants[0][1]))


def preset_in(folder: Path, own: Path | None) -> Preset | None:
    """Return the preset of the table in a folder, by the command in its manifest, else by the folder's name.

    None where no manifest tells, or no such sweep is known. Raises UserError for a broken manifest.
    """
    manifest = manifest_of(folder)
    if manifest is None:
        return None
    words, by_folder = _words(manifest), [f"sweep={folder.name}"]
    for named in (by_folder if words is None else _named(words), by_folder):
        if all(word.removeprefix("sweep=") in names("sweep", own) for word in named):
            return _preset(words or [], named, own, manifest["config"])
    return None


def title(job: Job) -> str:
    """Return the first line on a run: its name, and what it is."""
    name, words = job.config.sweep.name, preset_of(job).words(job.config.sweep.name)
    return f"sweep {name}{'' if words.startswith('(preset') else ':'} {words}"


def _preset(words: Sequence[str], named: Sequence[str], own: Path | None, made: Mapping[str, Any]) -> Preset:
    job = compose(named, own)
    sweep, says_itself = job.config.sweep, any(word.startswith("sweep.about=") for word in words)
    about = str(made["sweep"].get("about") or "") if says_itself else sweep.about
    return Preset(sweep.name, about, differences(made, job), says_itself)


def _named(words: Sequence[str]) -> list[str]:
    """Return the word that names a sweep; none for the sweep that is run without one."""
    return [word for word in words if word.startswith("sweep=")][-1:]


def _words(manifest: Mapping[str, Any]) -> list[str] | None:
    with suppress(ValueError):  # quotes that do not close
        words = shlex.split(str(manifest.get("command") or ""))
        return words[2:] if words[:2] == ["hessfig", "run"] else None
    return None


def _is_part(one: Difference) -> bool:
    made, usual = (value if isinstance(value, list) else [value] for value in (one.made, one.asked))
    return isinstance(one.asked, list) and all(value in usual for value in made)
