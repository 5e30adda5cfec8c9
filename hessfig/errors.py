"""Errors that a user can fix, with their cause, the allowed values and a remedy; and words as users type them."""

import difflib
import re
import shlex
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

# And every category C: controls, directions, halves of pairs, private.
_UNPRINTABLE = ("Zl", "Zp")
_LONGEST_LINE = 2000


class UserError(ValueError):
    """Invalid input from the user; the command line prints it and exits with code 2.

    Parameters
    ----------
    what : str
        What is wrong; it names the key or the file.
    got : object
        The offending value.
    allowed : str
        What would be accepted.
    remedy : str
        The next thing to type or do.

    Examples
    --------
    >>> import hessfig
    >>> try:
    ...     hessfig.run("sigmas")
    ... except hessfig.UserError as error:
    ...     print(error.remedy)
    did you mean 'sigma'?
    """

    def __init__(
        self, what: str, *, got: object = None, allowed: str = "", remedy: str = ""
    ) -> None:
        self.what = what
        self.got = got
        self.allowed = allowed
        self.remedy = remedy
        super().__init__(self._render())

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.got, self.allowed, self.remedy))

    def _render(self) -> str:
        rows = {
            "got": self.got,
            "allowed": self.allowed or None,
            "remedy": self.remedy or None,
        }
        lines = [
            self.what,
            *(
                f"  {f'{name}:':8} {value}"
                for name, value in rows.items()
                if value is not None
            ),
        ]
        return plain_lines("\n".join(lines), most=_LONGEST_LINE)


def plain(text: object, *, most: int = 200) -> str:
    """Return untrusted text for a terminal: one line without control characters, of at most `most` characters."""
    whole = str(text)
    shown = "".join("?" if _steers(letter) else letter for letter in whole[:most])
    return shown + "..." * (len(whole) > most)


def plain_lines(text: object, *, most: int | None = None) -> str:
    """Return untrusted text of several lines, each as from `plain`; without `most`, lines may have any length."""
    lines = str(text).split("\n")
    return "\n".join(
        plain(line, most=len(line) if most is None else most) for line in lines
    )


def first_few(names: Sequence[str], *, most: int = 5) -> str:
    """Return the first names in words, and how many more there are."""
    if not names:
        return "none"
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (
        len(names) > most
    )


def closest(word: str, choices: Iterable[str]) -> str:
    """Return the closest of `choices` to a word, or an empty string; capitals are compared last.

    Examples
    --------
    >>> closest("crossentropy", ["cross_entropy", "mse"]), closest("MSE", ["mse"])
    ('cross_entropy', 'mse')
    >>> closest("hinge", ["cross_entropy", "mse"])
    ''
    """
    known = [str(choice) for choice in choices]
    alike = [choice for choice in known if choice.casefold() == word.casefold()]
    if alike:
        return alike[0]
    # Half of two letters is one slip, half of four another word.
    cutoff = 0.5 if len(word) < 4 else 0.6
    close = difflib.get_close_matches(word, known, n=1, cutoff=cutoff)
    return close[0] if close else ""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return 'did you mean X?' for the closest of `choices`, or an empty string."""
    close = closest(word, choices)
    return f"did you mean {close!r}?" if close else ""


def unknown_name(
    what: str, name: str, known: Collection[str], otherwise: str, *, got: object = None
) -> UserError:
    """Return the error for a name that is not in `known`; `otherwise` is the remedy if no known name is close."""
    remedy = did_you_mean(name, known) or otherwise
    return UserError(
        what, got=name if got is None else got, allowed=", ".join(known), remedy=remedy
    )


def _steers(letter: str) -> bool:
    category = unicodedata.category(letter)
    return category.startswith("C") or category in _UNPRINTABLE


def _rebuild(
    kind: type[UserError], what: str, got: object, allowed: str, remedy: str
) -> UserError:
    return kind(what, got=got, allowed=allowed, remedy=remedy)


def too_few_files(got: str) -> UserError:
    """Return the error for a process that may not open as many files as it needs."""
    return UserError(
        "the limit of open files is too low",
        got=got,
        allowed="at least a hundred open files (the shell's `ulimit -n` prints the limit)",
        remedy="ulimit -n 1024, then run the same command again",
    )


def run_command(folder: Path) -> str:
    """Return the command that measures the table of `folder` (outputs/<sweep>), ready to paste."""
    if folder.parent.name == "outputs":
        root = ""
    else:
        root = f" {_word('output_dir', str(folder.parent))}"
    return f"hessfig run sweep={folder.name}{root}"


def _word(key: str, value: str) -> str:
    """Return key=value for a shell and for the grammar of settings, quoted for both if it is not plain."""
    if re.fullmatch(r"[A-Za-z0-9_./-]+", value):
        return f"{key}={value}"
    return quoted_twice(key, value)


def quoted_twice(key: str, value: str) -> str:
    """Return key=value with its value as text, quoted for the grammar of settings and then for a shell."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return shlex.quote(f'{key}="{escaped}"')


def command_line(verb: str, *words: str) -> str:
    """Return a hessfig command, ready to paste."""
    return shlex.join(["hessfig", verb, *words])


def install_extra(name: str) -> str:
    """Return how to install an extra: hessfig is not on a package index, where its name may be anybody's."""
    return f"in a copy of hessfig's repository: pip install '.[{name}]'"


def words_of_command(found: object, verb: str) -> list[str] | None:
    """Return the words after the verb in a command line from a file; None if it is not a command with this verb."""
    with suppress(ValueError):  # unbalanced quotes
        words = shlex.split(str(found or ""))
        return words[2:] if words[:2] == ["hessfig", verb] else None
    return None


def typed(
    value: Any, comma: str = ",", between: str = ", ", text: Callable[[str], str] = str
) -> str:
    """Return the value of a setting as users type it: null, true, [a,b], {key: a, key: b}; `text` formats texts."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return f"[{comma.join(typed(one, comma, between, text) for one in value)}]"
    if isinstance(value, Mapping):
        named = {
            ",".join(key) if isinstance(key, tuple) else str(key): one
            for key, one in value.items()
        }
        return (
            "{"
            + between.join(
                f"{text(key)}: {typed(one, comma, between, text)}"
                for key, one in named.items()
            )
            + "}"
        )
    return text(str(value))
