"""Compares the settings in a table's manifest with those of the present command."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hessfig.config.compose.job import Job, compose
from hessfig.config.enums import Average
from hessfig.config.facts import OF_NUMBERS, Role, are_predictions
from hessfig.config.keys import added_defaults, as_plain
from hessfig.config.presets import names
from hessfig.config.settings import role_of, settings, with_role
from hessfig.errors import (
    UserError,
    command_line,
    first_few,
    plain,
    typed,
    words_of_command,
)
from hessfig.files import is_file
from hessfig.record import TABLE, manifest_in

_GROUPS = ("task", "model", "grid", "estimator", "sweep")
_UNKNOWN = object()
_text = partial(typed, comma=", ")
_VARY = "sweep.vary"  # compared by the settings that it names
# Settings that may differ without measuring something else: other draws of the same
# task are the same task.
_DRAWS = ("task.seed", "task.draw", "state.draw")
# Null in the preset: a plan puts in the sequences next to the model's files.
_FILLED = ("task.path",)


@dataclass(frozen=True)
class SettingDifference:
    """A setting whose value now, `asked`, is not the one a table was `made` with; several values where it varies."""

    key: str
    made: Any
    asked: Any

    @property
    def value(self) -> str:
        """What the table was made with, as text."""
        return _text(self.made)

    def __str__(self) -> str:
        return f"{self.key}={self.value} (now {_text(self.asked)})"


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """Return the manifest in `folder`, or None if there is none. Raises UserError for a broken one."""
    return manifest_in(
        *(folder, *_GROUPS),
        check=_check_sweep,
        allowed="the file that `hessfig run` left next to the table",
    )


def _check_sweep(manifest: Mapping[str, Any]) -> None:
    """Raise TypeError unless what is taken over from a manifest is plain: lists of values, windows of numbers."""
    sweep = manifest["config"]["sweep"]
    vary = sweep.get("vary") or {}
    windows = sweep.get("windows", [])
    if not isinstance(vary, dict) or not all(
        isinstance(values, list) for values in vary.values()
    ):
        raise TypeError("config.sweep.vary is not a dict of lists")
    if not isinstance(windows, list) or not all(
        _is_window(window) for window in windows
    ):
        raise TypeError("config.sweep.windows is not a list of windows")
    if not are_predictions(sweep.get("predictions") or {}):
        raise TypeError("config.sweep.predictions are not exponents")
    if sweep.get("average", Average.arithmetic) not in list(Average):
        raise TypeError("config.sweep.average is not an average")


def _is_window(window: Any) -> bool:
    return isinstance(window, list) and all(
        end is None or type(end) in (int, float) for end in window
    )


def setting_differences(
    recorded: Mapping[str, Any], job: Job, keys: Collection[str] | None = None
) -> list[SettingDifference]:
    """Return the settings that change numbers and differ from those of a table; only among `keys`, if given."""
    asked = as_plain(job.first)
    of_numbers = [
        key for key in settings() if key in with_role(*OF_NUMBERS) and key != _VARY
    ]
    vary = {
        **(recorded["sweep"].get("vary") or {}),
        **(asked["sweep"].get("vary") or {}),
    }
    different = []
    for key in dict.fromkeys([*of_numbers, *vary]):
        setting = SettingDifference(key, _values(recorded, key), _values(asked, key))
        # a pin that is not asked for is whatever was there when the table was made
        is_free = setting.made is _UNKNOWN or (
            setting.asked is None and key in with_role(Role.pin)
        )
        is_compared = keys is None or _is_named(key, keys, vary)
        if (
            is_compared
            and not is_free
            and not _agree(setting, is_part=keys is not None)
        ):
            different.append(setting)
    return different


def matching_folder(job: Job) -> Path:
    """Return outputs/<sweep>. Raises UserError if a given setting differs from the one that made the table."""
    folder = Path(job.config.output_dir) / job.config.sweep.name
    manifest = manifest_of(folder)
    if manifest:
        other = setting_differences(manifest["config"], job, set(job.given))
    else:
        other = []
    if other:
        first = other[0]
        raise UserError(
            f"{folder / TABLE} is from another config: {first.key} was {_text(first.made)}",
            got=f"{first.key}={_text(first.asked)}",
            allowed=f"{first.key}={_text(first.made)}",
            remedy=f"leave it out, or measure that: {_run_command(job)}",
        )
    return folder


def table_folder(job: Job) -> Path:
    """Return outputs/<sweep> with its table. Raises UserError if there is none, or one of other settings."""
    folder = matching_folder(job)
    if not is_file(folder / TABLE):
        is_known = folder.name in names("sweep", job.own) or any(
            word.startswith("sweep=") for word in job.words
        )
        raise UserError(
            f"{folder / TABLE} is missing: the sweep was not run",
            got="no table",
            allowed="the table that `hessfig run` or hessfig.Monitor writes",
            remedy=_run_command(job)
            if is_known
            else f"output_dir=FOLDER, where FOLDER/{folder.name}/{TABLE} is",
        )
    return folder


def _agree(setting: SettingDifference, *, is_part: bool) -> bool:
    """Whether the values are equal; a reader may ask for some of a table's quantities."""
    if is_part and setting.key == "quantities" and setting.asked:
        return set(setting.asked) <= set(setting.made)
    return bool(setting.made == setting.asked)


def _is_named(key: str, keys: Collection[str], vary: Collection[str]) -> bool:
    """Whether `key` is one of `keys`, in a group that is, or one of those varied where `sweep.vary` is among them."""
    by_vary = key in vary and any(name.startswith(_VARY) for name in keys)
    return by_vary or any(
        key == name or key.startswith(f"{name}.") or name.startswith(f"{key}.")
        for name in keys
    )


def _values(config: Mapping[str, Any], key: str) -> Any:
    """Return the value of `key`, or its values where the sweep varies it; a manifest from before it had its default."""
    varied = (config["sweep"].get("vary") or {}).get(key)
    if varied is not None:
        return varied
    value: Any = config
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return added_defaults().get(key, _UNKNOWN)
        value = value[name]
    return value


def _run_command(job: Job) -> str:
    """Return the command that measures the sweep of `job`."""
    sweep = next(
        (word for word in job.words if word.startswith("sweep=")),
        f"sweep={job.config.sweep.name}",
    )
    of_readers = (Role.reading, Role.fit)
    kept = [
        word
        for word in job.words
        if word != sweep and role_of(word.partition("=")[0]) not in of_readers
    ]
    return command_line(
        "run",
        sweep,
        *sorted(kept, key=lambda word: word.startswith("output_dir=")),
        *job.flags,
    )


# Settings of what is measured; the others say how, how often and where on the axis.
_OF_NETWORK = ("task.", "model.", "state.", "training.")
_SHOWN = 8


@dataclass(frozen=True)
class Preset:
    """The sweep on which a run is based, a line about it, and the settings that the run changes.

    `says_itself`: the line is the run's own (sweep.about=...), which holds whatever it
    changes. `is_whole`: no cell of the table is missing, but those whose trainings
    diverged.
    """

    name: str
    about: str
    changed: Sequence[SettingDifference]
    says_itself: bool = False
    is_whole: bool = False

    @property
    def of_network(self) -> list[SettingDifference]:
        """The changed settings of network, task and state; a part of what the preset varies is not a change."""
        return [
            setting
            for setting in self.changed
            if setting.key.startswith(_OF_NETWORK)
            and setting.key not in _DRAWS
            and not _is_part(setting)
        ]

    def words(self, name: str) -> str:
        """Return a line about the run `name`: its preset's line, and the changed settings."""
        about = plain(self.about)
        if self.says_itself or not self.changed:
            return about
        changes = first_few(
            [plain(f"{setting.key}={setting.value}") for setting in self.changed],
            most=_SHOWN,
        )
        preset = "preset"
        if self.name != name:
            preset = f"preset {self.name}"
        return f"({preset}: {about}) with {changes}"


def preset_in(folder: Path, own: Path | None) -> Preset | None:
    """Return the preset of the table in a folder, by the command in its manifest, else by the folder's name.

    None where no manifest tells, or no such sweep is known. Raises UserError for a
    broken manifest.
    """
    manifest = manifest_of(folder)
    if manifest is None:
        return None
    words = words_of_command(manifest.get("command"), "run")
    by_folder = [f"sweep={folder.name}"]
    by_command = by_folder
    if words is not None:
        by_command = _named(words)
    for named in (by_command, by_folder):
        if all(word.removeprefix("sweep=") in names("sweep", own) for word in named):
            preset = _preset(words or [], named, own, manifest["config"])
            is_whole = manifest.get("missing_cells") == manifest.get(
                "diverged_cells", 0
            )
            return replace(preset, is_whole=is_whole)
    return None


def as_made(job: Job) -> Job:
    """Return the job with the windows and average that a table was made with, where it is named and no sweep is."""
    if "sweep" in job.given or "sweep.name" not in job.given:
        return job
    manifest = manifest_of(Path(job.config.output_dir) / job.config.sweep.name)
    if manifest is None:
        return job
    return job.fitted_as(manifest["config"]["sweep"])


def command_of(job: Job) -> str:
    """Return the command line of one run: the words as they were given, the user's folder by no more than its name."""
    if job.own is None:
        return command_line("run", *job.words)
    own = job.own.name
    here = Path.cwd()
    if job.own.is_relative_to(here):
        own = str(job.own.relative_to(here))
    return command_line("run", *job.words, "--config-dir", own)


def unchanged(preset: Preset | None) -> str:
    """Return the name of a preset whose network and task a table has, "" where it has others."""
    if preset is None or preset.of_network:
        return ""
    return preset.name


def title(job: Job) -> str:
    """Return the first line about a run: its name and its description."""
    name = job.config.sweep.name
    words = _preset(job.words, _named(job.words), job.own, as_plain(job.first)).words(
        name
    )
    if words.startswith("(preset"):
        return f"sweep {name} {words}"
    return f"sweep {name}: {words}"


def _preset(
    words: Sequence[str],
    named: Sequence[str],
    own: Path | None,
    recorded: Mapping[str, Any],
) -> Preset:
    job = compose(named, own)
    sweep = job.config.sweep
    says_itself = any(word.startswith("sweep.about=") for word in words)
    about = sweep.about
    if says_itself:
        about = str(recorded["sweep"].get("about") or "")
    changed = [
        one
        for one in setting_differences(recorded, job)
        if not _is_filled(one, recorded)
    ]
    return Preset(sweep.name, about, changed, says_itself)


def _is_filled(setting: SettingDifference, recorded: Mapping[str, Any]) -> bool:
    """Whether a plan set this value, with a file in the folder of the model, since the preset leaves it open."""
    if setting.key not in _FILLED or setting.asked is not None:
        return False
    return str(Path(setting.made).parent) in _listed(_values(recorded, "model.path"))


def _named(words: Sequence[str]) -> list[str]:
    """Return the word that names a sweep; none for the sweep that is run without one."""
    return [word for word in words if word.startswith("sweep=")][-1:]


def _is_part(setting: SettingDifference) -> bool:
    return isinstance(setting.asked, list) and all(
        value in setting.asked for value in _listed(setting.made)
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
