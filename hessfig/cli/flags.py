"""Parses a command: its flags, the user's folder, and the remaining key=value words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hessfig.config.enums import Printed
from hessfig.errors import UserError, did_you_mean, unknown_name
from hessfig.verbs import Verb

HELP = {
    "--config-dir FOLDER, -cd": "your own sweep/*.yaml, figure/*.yaml, model/*.yaml, ... next to the shipped ones",
    "--cfg job, -c": "print the resolved settings and do nothing",
    "--help, -h": "this text",
}
FLAGS = [words.partition(",")[0].partition(" ")[0] for words in HELP]
_SHORT = dict(zip((words.rpartition(" ")[2] for words in HELP), FLAGS, strict=True))
_WITH_VALUE = ("--config-dir", "--cfg")


@dataclass(frozen=True)
class Command:
    """The arguments after a verb. `own` is the absolute path of --config-dir."""

    words: tuple[str, ...]
    own: Path | None
    shows_settings: bool
    asks_help: bool


def read_command(arguments: Sequence[str]) -> Command:
    """Return the command. Raises UserError for a flag that does not exist, and for a folder that cannot serve."""
    words: list[str] = []
    flags: dict[str, str] = {}
    rest = iter(arguments)
    for word in rest:
        if word.startswith("-"):
            flags.update([_flag(word, rest)])
        else:
            words.append(word)
    if flags.get("--cfg", "job") != "job":
        raise UserError(
            "--cfg", got=flags["--cfg"] or "nothing", allowed="job", remedy="--cfg job"
        )
    own = None
    if "--config-dir" in flags:
        from hessfig.config.user.user_dir import own_folder

        own = own_folder(flags["--config-dir"])
    return Command(
        words=tuple(words),
        own=own,
        shows_settings="--cfg" in flags,
        asks_help="--help" in flags,
    )


def own_words(
    verb: Verb, arguments: Sequence[str], *, otherwise: str = "leave it out"
) -> dict[str, str]:
    """Return {key: value} of the words of a verb that is not composed from the configuration.

    Raises UserError for a word without "=", and for a key that the verb does not read;
    `otherwise` is then the remedy where none is spelt alike.
    """
    given = {}
    for word in arguments:
        key, equals, value = word.partition("=")
        if not equals or not value:
            example = verb.examples[-1].rpartition(" ")[2]
            what = f"{verb.name}: cannot read {word!r}"
            raise UserError(
                what, got=word, allowed="key=value", remedy=f"for example {example}"
            )
        if key not in verb.reads:
            raise unknown_name(
                f"{verb.name}: there is no setting {key!r}",
                key,
                verb.reads,
                otherwise,
                got=word,
            )
        given[key] = value
    return given


def _flag(word: str, rest: Iterator[str]) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    name = _SHORT.get(name, name)
    if name not in FLAGS or (equals and name not in _WITH_VALUE):
        raise UserError(
            f"there is no flag {word!r}",
            got=word,
            allowed=", ".join([*FLAGS, *_SHORT]),
            remedy=_without_dashes(word)
            or did_you_mean(name, FLAGS)
            or "settings are given as key=value",
        )
    return name, value if equals or name not in _WITH_VALUE else next(rest, "")


def _without_dashes(word: str) -> str:
    """Return the key=value form of a setting given as a flag; nothing for other words."""
    from hessfig.config.schema import GROUPS
    from hessfig.config.settings import is_setting

    key, equals, value = word.lstrip("-").partition("=")
    key = key.replace("-", "_")
    known = key in GROUPS or is_setting(key)
    if known:
        return (
            f"settings have no dashes: {key}={value if equals and value else 'VALUE'}"
        )
    return ""


def check_format(given: Printed, *allowed: Printed) -> None:
    """Raise UserError for an output format that a verb does not support."""
    if given not in allowed:
        raise UserError(
            "format: this command does not print in that way",
            got=f"format={given}",
            allowed=", ".join(allowed),
            remedy=f"format={allowed[-1]}, or leave it out",
        )
