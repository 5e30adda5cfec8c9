"""Errors a user can mend: what was wrong, the value, what is allowed, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input found at the border of the program; the command line prints it and exits with 2.

    `what` says what is wrong (it names the key or the file), `got` is the offending value,
    `allowed` describes what would be accepted, `remedy` is the next thing to type or do.
    """

    def __init__(self, what: str, *, got: object = None, allowed: str = "", remedy: str = "") -> None:
        self.what, self.got, self.allowed, self.remedy = what, got, allowed, remedy
        super().__init__(self._render())

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.what, self.got, self.allowed, self.remedy))

    def _render(self) -> str:
        lines = [self.what]
        if self.got is not None:
            lines.append(f"  got:     {self.got}")
        if self.allowed:
            lines.append(f"  allowed: {self.allowed}")
        if self.remedy:
            lines.append(f"  remedy:  {self.remedy}")
        return "\n".join(lines)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return 'did you mean X?' for the closest of `choices`, or an empty string."""
    close = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else ""


def _rebuild(what: str, got: object, allowed: str, remedy: str) -> UserError:
    return UserError(what, got=got, allowed=allowed, remedy=remedy)
