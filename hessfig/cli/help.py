"""The help text of each verb, generated from its record, the schema and the configuration files."""

from __future__ import annotations

from pathlib import Path

from hessfig.cli.flags import HELP
from hessfig.cli.verbs import TABLE, Verb
from hessfig.config.settings import Setting, settings
from hessfig.config.shipped import choices

_OF_A_TABLE = (
    "settings of `hessfig run` (seeds=5, model.d_model=64, ...) may be given as well: the table must have been made "
    "with them"
)


def verb_help(verb: Verb, own: Path | None = None) -> str:
    """Return usage, groups with a line for each choice (those of the user's folder too), settings and flags."""
    parts = [
        f"hessfig {verb.name}: {verb.about}",
        f"usage: hessfig {verb.name} key=value ...",
        "example:\n" + "\n".join(f"  {example}" for example in verb.examples),
    ]
    parts += [_group_help(group, own) for group in verb.groups]
    if verb.composed:
        parts += [_settings_help(verb), "flags:\n" + "\n".join(map(_line, HELP, HELP.values()))]
    elif verb.reads:
        parts.append(f"settings: {', '.join(f'{key}=' for key in verb.reads)}")
    return "\n\n".join(parts)


def _group_help(group: str, own: Path | None) -> str:
    return f"{group}=\n" + "\n".join(f"  {name:<18} {about}" for name, about in choices(group, own).items())


def _settings_help(verb: Verb) -> str:
    """Return a line a setting; those that make a table are listed where a table is made."""
    listed = {
        key: setting
        for key, setting in settings().items()
        if verb.takes(key) and (verb.makes_table or not _is_of_table(key))
    }
    lines = [_line(key, _meaning(setting)) for key, setting in listed.items()]
    return "settings:\n" + "\n".join(lines) + ("" if verb.makes_table else f"\n{_OF_A_TABLE}")


def _is_of_table(key: str) -> bool:
    return key.partition(".")[0] in TABLE and key not in ("sweep.windows", "sweep.average")


def _meaning(setting: Setting) -> str:
    default = f"; {setting.default}" if setting.default else ""
    return f"{setting.about} ({setting.kind}{default})"


def _line(key: str, meaning: str) -> str:
    return f"  {key:<26} {meaning}"
