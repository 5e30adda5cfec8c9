"""The help of each verb, and what its words may be completed to, from its record, the schema and the presets."""

from collections.abc import Sequence
from pathlib import Path

from hessfig.cli.flags import FLAGS, HELP, read_command
from hessfig.config.facts import TABLE, Role
from hessfig.config.presets import choices, names
from hessfig.config.schema import GROUPS
from hessfig.config.settings import Setting, settings
from hessfig.errors import UserError
from hessfig.verbs import VERBS, Verb

_OF_A_TABLE = (
    "settings of `hessfig run` (seeds=5, model.d_model=64, ...) may be given as well: the table must have been made "
    "with them"
)


def verb_help(verb: Verb, own: Path | None = None) -> str:
    """Return usage, groups with a line for each choice (those of the user's folder too), settings and flags."""
    parts = [
        f"hessfig {verb.name}: {verb.about}",
        f"usage: hessfig {verb.name} {verb.place} key=value ...".replace("  ", " "),
        "example:\n" + "\n".join(f"  {example}" for example in verb.examples),
    ]
    parts += [_group_help(group, own) for group in verb.groups]
    if verb.composed:
        parts += [
            _settings_help(verb),
            "flags:\n" + "\n".join(map(_line, HELP, HELP.values())),
        ]
    elif verb.reads:
        parts.append(f"settings: {', '.join(f'{key}=' for key in verb.reads)}")
    return "\n\n".join(parts)


def _group_help(group: str, own: Path | None) -> str:
    return f"{group}=\n" + "\n".join(
        f"  {name:<18} {about}" for name, about in choices(group, own).items()
    )


def _settings_help(verb: Verb) -> str:
    """Return one line per setting; those that make a table are listed where a table is made."""
    listed = {}
    for key, setting in settings().items():
        is_read = setting.role not in TABLE or setting.role == Role.fit
        if verb.takes(key) and (verb.makes_table or is_read):
            listed[key] = setting
    lines = [_line(key, _meaning(setting)) for key, setting in listed.items()]
    if not verb.makes_table:
        lines.append(_OF_A_TABLE)
    return "\n".join(["settings:", *lines])


def _meaning(setting: Setting) -> str:
    default = f"; {setting.default}" if setting.default else ""
    return f"{setting.about} ({setting.kind}{default})"


def _line(key: str, meaning: str) -> str:
    return f"  {key:<26} {meaning}"


def candidates(line: Sequence[str]) -> list[str]:
    """Return what the last word of `line` may become: a verb if it is the first, else a flag, key=, or key=value."""
    *before, word = line
    if not before:
        return list(VERBS)
    if before[0] not in VERBS:
        return []
    if word.startswith("-"):
        return [*FLAGS, "-cd"]
    verb, key = VERBS[before[0]], word.partition("=")[0]
    if "=" in word:
        return [f"{key}={value}" for value in _values(key, _own(before[1:]))]
    known = [*GROUPS, *settings()] if verb.composed else verb.reads
    return [f"{name}=" for name in known if verb.takes(name)]


def _values(key: str, own: Path | None) -> Sequence[str]:
    if key in GROUPS:
        return names(key, own)
    if key in settings():
        return settings()[key].choices
    return ()


def _own(words: Sequence[str]) -> Path | None:
    try:
        return read_command(words).own
    except UserError:  # a line that is being written
        return None
