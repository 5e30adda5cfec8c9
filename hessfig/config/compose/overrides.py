"""Overrides, the key=value words of a command: checks them before composition, for better error messages."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from hessfig.config.compose.refusals import lone_word, unknown_key
from hessfig.config.facts import Role
from hessfig.config.schema import GROUPS
from hessfig.config.settings import is_setting, open_settings, role_of
from hessfig.config.user.user_dir import NAME
from hessfig.errors import UserError, quoted_twice, typed

MOST_ENTRIES = 2_000  # of one word: the time that Hydra takes is that of their number squared, 45 s for 30 000


def check_overrides(words: Sequence[str]) -> None:
    """Raise UserError for the first word that is not key=value, or whose key does not exist.

    Values and choices are checked by composing them.
    """
    for word in words:
        _check_size(word)
        override = _parsed(word)
        _check_form(word, override)
        if override.is_sweep_override():
            raise UserError(
                f"{override.key_or_group} has several values",
                got=word,
                allowed="one value",
                remedy="write a list as [a,b]; for one run per value, repeat the command",
            )


def command_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return {key: value} of checked words; the last of equal keys counts."""
    overrides = map(_override, words)
    return {override.key_or_group: override.value() for override in overrides}


def for_hydra(word: str) -> str:
    """Return `word` as Hydra needs it: a choice quoted (figure='6' is text), new entries of open settings as ++key.

    Its grammar has no quotes around the keys of {...}: there, what they would hold
    together is escaped.
    """
    key, _, value = word.lstrip("+").partition("=")
    if key in GROUPS and all(NAME.fullmatch(name) for name in value.split(",")):
        return f"{key}=" + ",".join(f"'{name}'" for name in value.split(","))
    if value.startswith(("{", "[")):
        word = f"{word.partition('=')[0]}={_TEXT.sub(_as_key, value)}"
    return f"++{word.lstrip('+')}" if key.startswith(open_settings()) else word


_TEXT = re.compile(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")(\s*:)?""")


def _as_key(match: re.Match[str]) -> str:
    """Return a quoted text as it is; one that is the key of a value, without its quotes."""
    if match[2] is None:
        return match[0]
    return re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", match[1][1:-1]) + match[2]


def hydra_quoted(text: str) -> str:
    """Return any text as a value of Hydra's grammar, where a backslash is itself unless a quote follows it."""
    return "'" + re.sub(r"(\\*)'", r"\1\1\\'", re.sub(r"(\\+)\Z", r"\1\1", text)) + "'"


def as_word(key: str, value: Any) -> str:
    """Return key=value with a value of Python's in the settings' grammar; texts that are not plain are quoted."""
    return f"{key}={typed(value, between=',', text=_written)}"


def _written(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_./:-]+", text) else hydra_quoted(text)


@lru_cache(maxsize=1024)
def _override(word: str) -> Override:
    """Return a word as Hydra parses it; cached, since parsing a long list is slow."""
    return OverridesParser.create().parse_override(for_hydra(word))


def _check_size(word: str) -> None:
    """Raise UserError for a list that Hydra's parser would take too long to read."""
    entries = word.count(",") + 1
    if entries > MOST_ENTRIES:
        raise UserError(
            f"the value of {word.partition('=')[0]} is too large for a command line",
            got=f"{entries} entries",
            allowed=f"at most {MOST_ENTRIES} entries",
            remedy="write it in a YAML file of yours, and name its folder: --config-dir FOLDER",
        )


def _parsed(word: str) -> Override:
    if "=" not in word and not word.startswith(("~", "+")):
        raise lone_word(word)
    try:
        return _override(word)
    except (HydraException, ValueError, RecursionError) as error:
        raise UserError(
            f"cannot read {word!r}",
            got=word,
            allowed="key=value",
            remedy=_in_quotes(word),
        ) from error


def _in_quotes(word: str) -> str:
    """Return the word as it could be pasted into a shell: its value as text, whatever letters and blanks it has."""
    key, equals, value = word.partition("=")
    if not equals or not is_setting(key) or set(value) & set("\"'\\[]{}"):
        return "quote a value with special characters, and the word for the shell: 'key=\"a, b\"'"
    return quoted_twice(key, value)


def _check_form(word: str, override: Override) -> None:
    key = override.key_or_group
    if role_of(key) == Role.flag:
        raise UserError(
            f"{key} is not given so",
            got=word,
            allowed="--config-dir",
            remedy="--config-dir FOLDER",
        )
    if key not in GROUPS and not is_setting(key):
        raise unknown_key(key, got=word)
    if override.is_delete():
        raise UserError(
            f"{key} cannot be taken away",
            got=word,
            allowed=f"{key}=VALUE",
            remedy="give it another value",
        )
    if override.package is not None or (
        word.startswith("+") and not key.startswith(open_settings())
    ):
        raise UserError(
            f"{key} is a setting: no + is needed",
            got=word,
            allowed=f"{key}=VALUE",
            remedy=f"{key}={_value(word)}",
        )


def _value(word: str) -> str:
    return word.partition("=")[2]
