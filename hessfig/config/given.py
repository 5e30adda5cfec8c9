"""Finds the settings that a user gives and a configuration does not read: each is noted, not refused."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hessfig.config.schema import Config
from hessfig.config.settings import open_settings, settings, value_of
from hessfig.errors import UserError, typed

# Nothing is claimed by these where they are the default too.
_OFF: tuple[Any, ...] = (None, False, 0, "none", [], {})


@dataclass(frozen=True)
class GivenSetting:
    """A setting as the user gives it (`word`), or a preset of the settings `keys`.

    `of`: the places of the variants that have it; None: all. `note` says that nothing
    reads it, where that is known.
    """

    word: str
    keys: tuple[str, ...]
    of: tuple[int, ...] | None = None
    note: str = ""


Refusal = Callable[[int, str], UserError | None]


def unread_given(
    given: Iterable[GivenSetting], count: int, refusal: Refusal
) -> Iterator[tuple[GivenSetting, str]]:
    """Yield each setting that none of `count` variants reads, with a note; `refusal` returns the reason.

    Raises UserError for a setting that the sweep varies, whose variants would be the
    same, and for what contradicts the others: a file that is given where nothing takes
    one, or a setting that means others (`implies`).
    """
    for setting in given:
        places = range(count) if setting.of is None else setting.of
        refusals = [refusal(place, key) for place in places for key in setting.keys]
        if not refusals or not all(refusals):
            continue
        assert refusals[0] is not None
        if len(setting.keys) == 1:
            reason = refusals[0]
        else:
            reason = _of_preset(setting, refusals[0])
        if setting.of is not None or any(map(_contradicts, setting.keys)):
            raise reason
        yield setting, reason.what


def _contradicts(key: str) -> bool:
    return key.endswith((".path", ".sha256")) or bool(
        settings()[setting_of(key)].says.implies
    )


def setting_of(key: str) -> str:
    """Return the setting of a key: the key itself, or the open setting of which it is an entry."""
    return next((name for name in open_settings() if key.startswith(f"{name}.")), key)


def is_off(config: Config, key: str) -> bool:
    """Whether a setting has a neutral value: null, none, false or zero."""
    value = value_of(config, key)
    return value in _OFF and typed(value) == settings()[key].default


def holds(config: Config, where: str) -> bool:
    """Whether all words of `where` (see SettingInfo) hold."""
    return all(_is_so(config, word) for word in where.split())


def setting_not_read(
    config: Config, key: str, where: str | tuple[str, ...], reader: str = ""
) -> UserError | None:
    """Return the error for a setting that is read with other settings only; None if it is read. `reader` reads it."""
    ways = (where,) if isinstance(where, str) else where
    if any(holds(config, way) for way in ways):
        return None
    others = dict.fromkeys(
        _key(word) for way in ways for word in way.split() if _key(word) != key
    )
    got = ", ".join(
        f"{setting}={typed(value_of(config, setting))}" for setting in (key, *others)
    )
    allowed = " or ".join(" ".join(map(_shown, way.split())) for way in ways)
    what = f"{key}: {reader} reads it" if reader else f"{key} is read"
    remedy = f"{_remedy(config, ways[0], key)}leave {key} out"
    return UserError(
        f"{what} with {allowed} alone", got=got, allowed=allowed, remedy=remedy
    )


def _of_preset(given: GivenSetting, first: UserError) -> UserError:
    return UserError(
        f"{given.word}: nothing that it sets is read here ({first.what})",
        got=f"{given.word}; {first.got}",
        allowed=first.allowed,
        remedy=first.remedy.rpartition("leave ")[0]
        + f"leave {given.word.partition('=')[0]} out",
    )


def _is_so(config: Config, word: str) -> bool:
    return (_text(value_of(config, _key(word))) in _values(word).split("|")) != (
        "!" in word
    )


def _key(word: str) -> str:
    return word.partition("=")[0].rstrip("!")


def _text(value: object) -> str:
    return typed(value) if value is None or isinstance(value, bool) else str(value)


def _remedy(config: Config, way: str, key: str) -> str:
    """Return the words with which the setting would be read, followed by `or`."""
    words = [
        _typed(word)
        for word in way.split()
        if not _is_so(config, word) and _key(word) != key
    ]
    return f"{' '.join(words)}, or " if words else ""


def _typed(word: str) -> str:
    """Return a word as a user may type it."""
    if "!" not in word or _left(word):
        return _shown(word).partition("|")[0]
    return f"{_key(word)}={settings()[_key(word)].says.example or 'VALUE'}"


def _shown(word: str) -> str:
    """Return a word for a message: key!=value as the remaining named values."""
    if "!" not in word:
        return word
    if _left(word):
        return f"{_key(word)}={'|'.join(_left(word))}"
    return f"{_key(word)} other than {_values(word)}"


def _left(word: str) -> list[str]:
    """Return the named values that key!=value leaves."""
    return [
        name
        for name in settings()[_key(word)].named
        if name not in _values(word).split("|")
    ]


def _values(word: str) -> str:
    return word.partition("=")[2]
