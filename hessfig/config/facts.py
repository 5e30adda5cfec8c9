"""The facts of a setting in the schema: its help, its role, and the values that it takes."""

import math
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from operator import ge, gt, le, lt
from typing import Any, TypeVar, cast

from hessfig.errors import UserError


class Role(StrEnum):
    """The purpose of a setting. Keys, manifests, verbs and variable settings are derived from the roles."""

    science = "science"  # makes other numbers, and enters the keys of cells
    place = (
        "place"  # says where something is, whose content enters the keys in its stead
    )
    pin = "pin"  # what a file is by content, filled in when a run is planned
    extent = "extent"  # which of the numbers are measured
    label = "label"  # names a sweep
    fit = "fit"  # how a sweep's table is read, kept with it
    hardware = "hardware"  # on what numbers are computed
    means = "means"  # how the work is done, of one folder of results
    machine = "machine"  # who measures, and how many at once
    command = "command"  # what one command does
    reading = "reading"  # how tables are read and drawn
    flag = "flag"  # set by a flag, never as key=value


VARIED = (Role.science, Role.place, Role.pin)
TABLE = (*VARIED, Role.extent, Role.label, Role.fit)
IN_MANIFEST = (*TABLE, Role.hardware)
OF_NUMBERS = (*VARIED, Role.extent, Role.hardware)


@dataclass(frozen=True)
class SettingInfo:
    """What is true of a setting: a line of `help`, its `kind` where the type alone does not say it, and its values.

    Numbers lie from `least` to `most`, or strictly between `above` and `below`, and are
    finite; texts match `pattern`; in a list this holds of every entry. Any other value
    `passes` a test; a list has a certain `size`, or names each entry `once` (and none
    only where that is the default). Null is left alone. A message continues the key by
    `why`, says what is `allowed` where that is not read from the range, and gives an
    `example` where the default is none (an opening quote of a shell then stands before
    the key); for a number with no upper end it is the least. `role`: its group's,
    unless it is given. `added`: version 0.1 did not have the setting, so that a cell
    keeps the key it had before while the setting stands at its default, and a manifest
    without it was made with that default. What is a place or a pin was added, too.
    `where`: under which others it is read, as words of a command (key=value|value or
    key!=value; all of a text, any of several texts); which kinds of network and which
    quantities read a setting, they say themselves. `implies`: words that a user who
    gives it means, unless others are given. `watches`: it changes nothing of a
    training.
    """

    help: str
    kind: str = ""
    _: KW_ONLY
    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None
    pattern: str = ""
    passes: Callable[[Any], bool] | None = None
    size: int | None = None
    once: bool = False
    why: str = ""
    allowed: str = ""
    example: str = ""
    role: Role | None = None
    added: bool = False
    where: str | tuple[str, ...] = ""
    implies: str = ""
    watches: bool = False

    def check(self, key: str, value: Any, *, kind: str, default: str) -> None:
        """Raise UserError for a value that `key` cannot have; `kind` and `default` are the setting's, as text."""

        is_whole = "whole number" in kind

        def refusal(what: str, got: object, allowed: str) -> UserError:
            example = self.example or default
            if (
                not self.example
                and self.least is not None
                and self.most is None
                and is_whole
            ):
                example = str(self.least)
            word = f"{key}={example}"
            if example.startswith("'"):
                word = f"'{key}={example[1:]}"
            return UserError(
                what, got=got, allowed=allowed, remedy=f"for example {word}"
            )

        if isinstance(value, list) and (
            what := self._of_list(value, may_be_empty=default == "[]")
        ):
            allowed = kind
            if self.size is None:
                allowed = self.allowed or kind
            raise refusal(f"{key}{what}", f"[{','.join(map(str, value))}]", allowed)
        if (
            self.passes
            and not (value is None and default == "null")
            and not self.passes(value)
        ):
            raise refusal(f"{key}{self.why}", value, self.allowed)
        entries = {key: value}
        if isinstance(value, list):
            entries = {f"{key}[{place}]": entry for place, entry in enumerate(value)}
        for name, entry in entries.items():
            if entry is not None and not self._holds(entry):
                allowed = self.allowed or self._range(
                    key.rpartition(".")[2], whole=is_whole
                )
                raise refusal(
                    f"{name}{self.why or self._outside(entry)}", entry, allowed
                )

    def _of_list(self, entries: list[Any], *, may_be_empty: bool) -> str:
        """Return what is wrong with a list as a whole; empty if nothing is."""
        if self.once and not entries and not may_be_empty:
            return " is empty"
        if self.once and (len(set(entries)) < len(entries) or "" in entries):
            return ": each is named once"
        if self.size not in (None, len(entries)):
            return f" has {len(entries)} entries"
        return ""

    def _holds(self, value: Any) -> bool:
        if self.pattern:
            return re.fullmatch(self.pattern, value) is not None
        for end, is_inside in (
            (self.least, ge),
            (self.most, le),
            (self.above, gt),
            (self.below, lt),
        ):
            if end is not None and (
                not is_inside(value, end) or abs(value) == math.inf
            ):
                return False
        return True

    def _outside(self, value: Any) -> str:
        """Return what is wrong with a value that `_holds` refuses."""
        if self.pattern:
            return " has another form"
        is_large = (
            self.most is not None and isinstance(value, int) and value > self.most
        )
        return " is too large" if is_large else " is out of range"

    def _range(self, name: str, *, whole: bool) -> str:
        """Return the allowed numbers in words."""
        ends = [
            f"{end:.15g}"
            for end in (self.least, self.above, self.most, self.below)
            if end is not None
        ]
        one, several = "a finite number", "a share"
        if whole:
            one = several = "a whole number"
        if len(ends) == 1 and self.least is None:
            return f"{one} > {ends[0]}"
        if len(ends) == 1:
            return f"{one} >= {ends[0]}"
        if self.below is None:
            return f"{several} from {ends[0]} to {ends[1]}"
        if self.least is None:
            return f"a share between {ends[0]} and {ends[1]}"
        return f"{ends[0]} <= {name} < {ends[1]}"


T = TypeVar("T")


def setting(default: T, help: str, kind: str = "", **info: Any) -> T:
    """Return the dataclass field of a setting: its default and its facts (see `SettingInfo`)."""
    says = {"says": SettingInfo(help, kind, **info)}
    if isinstance(default, list | dict):
        return cast(T, field(default_factory=lambda: deepcopy(default), metadata=says))
    return field(default=default, metadata=says)


def added(default: T, help: str, **info: Any) -> T:
    """Return the field of a setting that version 0.1 did not have."""
    return setting(default, help, added=True, **info)


def group(section: type[T], role: Role) -> T:
    """Return the field of a group of settings; `role` applies to settings without a role of their own."""
    return field(default_factory=section, metadata={"says": role})


def is_names(value: Any) -> bool:
    """Whether a value is a name, or a list of names."""
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name for name in names)


def are_windows(value: list[Any]) -> bool:
    """Whether every entry is [low, high], either of them null for an open end."""
    return all(
        isinstance(window, list) and len(window) == 2 and _rises(window)
        for window in value
    )


def are_predictions(value: dict[str, Any]) -> bool:
    """Whether every entry is {part: exponent}, 'zero' for a block that vanishes."""
    return all(
        isinstance(parts, dict) and all(map(_is_exponent, parts.values()))
        for parts in value.values()
    )


def _is_exponent(value: Any) -> bool:
    return value == "zero" or (type(value) in (int, float) and math.isfinite(value))


def _rises(window: list[Any]) -> bool:
    ends = [end for end in window if end is not None]
    return (
        all(isinstance(end, int | float) for end in ends) and sorted(set(ends)) == ends
    )


def is_workers(value: Any) -> bool:
    """Whether a value is auto, or a number of workers."""
    return value == "auto" or (type(value) is int and value >= 0)
