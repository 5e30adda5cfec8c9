"""Lists all settings of the schema by dotted key, and by role."""

import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cache, cached_property, reduce
from types import NoneType, UnionType
from typing import Any, cast

from hessfig.config.facts import Role, SettingInfo
from hessfig.config.schema import GROUPS, Config
from hessfig.errors import UserError, closest, did_you_mean, typed


@dataclass(frozen=True)
class Setting:
    """A setting: its dotted key, type, facts in the schema, role, and default as typed text."""

    key: str
    type: Any
    says: SettingInfo
    role: Role
    default: str

    @property
    def about(self) -> str:
        """A line of help."""
        return self.says.help

    @cached_property
    def kind(self) -> str:
        """Its type in words."""
        return self.says.kind or _words(self.type)

    @property
    def added(self) -> bool:
        """Whether version 0.1 did not have it."""
        return self.says.added or self.role in (Role.place, Role.pin)

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The values of a setting that is a choice."""
        return _choices(self.type)

    @property
    def named(self) -> tuple[str, ...]:
        """The values that have names, also where it may be null."""
        return tuple(
            value
            for kind in typing.get_args(self.type) or (self.type,)
            for value in _choices(kind)
        )

    @cached_property
    def is_flat(self) -> bool:
        """Whether a list of its values holds no lists."""
        return Any not in (self.type, *typing.get_args(self.type))

    def check(self, value: object) -> None:
        """Raise UserError for a value of the right type that the setting cannot take."""
        self.says.check(self.key, value, kind=self.kind, default=self.default)


@cache
def settings() -> dict[str, Setting]:
    """Return {dotted key: setting} in the order of the schema, those of a group first."""
    return {
        key: setting for key, setting in _every().items() if setting.role != Role.flag
    }


def value_of(config: Any, key: str) -> Any:
    """Return the value of a setting."""
    return reduce(_entry, key.split("."), config)


def _entry(section: Any, name: str) -> Any:
    """Return an attribute, or an entry of an open setting."""
    return section.get(name) if isinstance(section, dict) else getattr(section, name)


@cache
def default_of(key: str) -> Any:
    """Return the schema's value of a setting."""
    return value_of(Config(), key)


@cache
def with_role(*roles: Role) -> frozenset[str]:
    """Return the dotted keys of the settings of these roles."""
    return frozenset(key for key, setting in _every().items() if setting.role in roles)


@cache
def top_level(*roles: Role) -> tuple[str, ...]:
    """Return the groups and single settings of the schema that these roles cover."""
    keys = with_role(*roles)
    return tuple(
        dict.fromkeys(key.partition(".")[0] for key in _every() if key in keys)
    )


def role_of(key: str) -> Role | None:
    """Return the role of a setting, of an entry of an open setting, or of a group's choice; None for other keys."""
    if key in GROUPS:
        return cast(Role, Config.__dataclass_fields__[key].metadata["says"])
    name = next((name for name in open_settings() if key.startswith(f"{name}.")), key)
    return _every()[name].role if name in _every() else None


@cache
def open_settings() -> tuple[str, ...]:
    """Return the settings whose entries may have any names."""
    return tuple(
        key
        for key, setting in settings().items()
        if typing.get_origin(setting.type) is dict
    )


def is_setting(key: str) -> bool:
    """Whether `key` is a setting, or an entry of one that takes any names."""
    return key in settings() or any(
        key.startswith(f"{name}.") for name in open_settings()
    )


def siblings(key: str) -> list[str]:
    """Return the settings near `key`: those of its group, or groups and single settings."""
    group = key.rpartition(".")[0]
    beside = [name for name in settings() if name.rpartition(".")[0] == group]
    if group and beside:
        return beside
    return [*GROUPS, *(name for name in settings() if "." not in name)]


def meant(key: str) -> str:
    """Return suggestions for the unknown `key`: the same name in another group, similar spellings, or the list."""
    top = [name for name in settings() if "." not in name]
    same = [
        name
        for name in settings()
        if name.rpartition(".")[2] == key and not did_you_mean(key, top)
    ]
    known = [*settings(), *GROUPS]
    group, _, last = key.rpartition(".")
    if group and any(name.startswith(f"{group}.") for name in settings()):
        known = [
            name for name in known if did_you_mean(last, [name.rpartition(".")[2]])
        ]
    hint = f"did you mean {same[0]!r}?" if same else did_you_mean(key, known)
    return hint or "`hessfig run --help` lists the settings"


def wrong_kind(key: str, got: object, *, where: str = "") -> UserError:
    """Return the error for a value that setting `key` cannot take; `where`: its file."""
    setting = settings()[key]
    allowed = ", ".join(setting.choices) or setting.kind
    return UserError(
        f"{where}{key} must be {'one of ' * bool(setting.choices)}{allowed}",
        got=got,
        allowed=allowed,
        remedy=_repaired(setting, got)
        or _in_brackets(setting, got)
        or f"for example {key}={setting.default}",
    )


def _repaired(setting: Setting, got: object) -> str:
    """Return the remedy for named values with slips, such as ReLU for relu or Ho for H_o; empty if one is unknown."""
    typed_value = re.sub(rf"^{re.escape(setting.key)}(=|: )", "", str(got))
    words = re.findall(r"\w+", typed_value)
    repaired = [closest(word, setting.named) for word in words]
    if not repaired or not all(repaired):
        return ""
    if typing.get_origin(setting.type) is list:
        return f"did you mean {setting.key}=[{','.join(repaired)}]?"
    if len(repaired) > 1:
        return ""
    return f"did you mean {setting.key}={repaired[0]}?"


def _in_brackets(setting: Setting, got: object) -> str:
    """Return the remedy for a single entry of a list: [entry]; empty for anything else."""
    entry = str(got).removeprefix(f"{setting.key}=")
    if setting.kind.startswith("a list of numbers"):
        is_entry = re.fullmatch(r"[-+.\deE]+", entry)
    else:
        if setting.kind == "a list of names":
            is_entry = re.fullmatch(r"[\w.@*]+", entry)
        else:
            is_entry = None
    return f"{setting.key}=[{entry}], a list of one" if is_entry else ""


@cache
def _every() -> Mapping[str, Setting]:
    return {
        setting.key: setting for setting in _settings_of(Config(), "", Role.reading)
    }


def _settings_of(section: Any, prefix: str, role: Role) -> Iterator[Setting]:
    types = typing.get_type_hints(type(section))
    for name, info in (
        (entry.name, entry.metadata["says"]) for entry in fields(section)
    ):
        value = getattr(section, name)
        key = f"{prefix}{name}"
        if isinstance(info, Role):
            yield from _settings_of(value, f"{key}.", info)
        else:
            yield Setting(key, types[name], info, info.role or role, typed(value))


def _choices(kind: Any) -> tuple[str, ...]:
    is_choice = isinstance(kind, type) and issubclass(kind, Enum)
    return tuple(str(member.value) for member in kind) if is_choice else ()


def _words(kind: Any) -> str:
    """Return a type as a user would write it: int or null, list of text."""
    if isinstance(kind, UnionType):
        return " or ".join(_words(argument) for argument in typing.get_args(kind))
    if typing.get_origin(kind) is list:
        return f"a list of {_plural(typing.get_args(kind)[0])}"
    if typing.get_origin(kind) is dict:
        return "{name: value}"
    return _WORDS.get(kind, "|".join(_choices(kind)))


def _plural(kind: Any) -> str:
    return {float: "numbers", str: "names", Any: "entries"}.get(kind, _words(kind))


_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    Any: "anything",
}
