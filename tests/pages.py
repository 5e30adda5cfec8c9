"""The documents taken apart: code blocks, inline commands, links and headings; and what a command needs to hold."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hessfig.cli.flags import own_words, read_command
from hessfig.config.presets import choices
from hessfig.verbs import VERBS, Verb

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "SECURITY.md",
    "CHANGELOG.md",
    *sorted(f"{path.relative_to(ROOT)}" for path in ROOT.glob("docs/**/*.md")),
]
BLOCK = re.compile(
    r"(?:`(?P<file>[^`\n]+)`\n)?```(?P<language>\w*)\n(?P<text>.*?)```", re.DOTALL
)
SHELL = ("sh", "")
PROGRAMS = ("hessfig", "make", "python", "pip", "eval")
# Words that stand for something of the reader's, and what is put in their place to
# compose the command.
STANDS_FOR = {"ID": "heads", "K/N": "1/8", "$INDEX/8": "1/8", "SWEEP": "sigma"}


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def sections(page: str) -> dict[str, list[re.Match[str]]]:
    """Return the code blocks of a page by the heading they stand under."""
    pieces = re.split(r"^## (.+)$", text_of(page), flags=re.MULTILINE)
    return {
        title: list(BLOCK.finditer(body))
        for title, body in zip(pieces[1::2], pieces[2::2], strict=True)
    }


def write_files(page: str, folder: Path) -> None:
    """Write the files that a page shows, each under the name above it."""
    for blocks in sections(page).values():
        for block in blocks:
            if block["file"] and block["language"] in ("yaml", "python"):
                path = folder / block["file"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block["text"])


def prose(text: str) -> str:
    """Return a page without its code blocks."""
    return BLOCK.sub("", text)


def spans(text: str) -> list[str]:
    """Return what stands in code marks, on one line each."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(text))]


def commands(text: str, *, inline: bool = False) -> list[str]:
    """Return every command of a page: the lines of its shell blocks (not with `inline`), and those in the prose."""
    blocks = [
        block["text"]
        for block in BLOCK.finditer(text)
        if block["language"] in SHELL and not inline
    ]
    lines = [
        line
        for block in blocks
        for line in block.splitlines()
        if line.strip() not in ("", "...")
    ]
    lines += [span for span in spans(text) if _program(span) in PROGRAMS]
    return [part for line in lines for part in _parts(line)]


def settings_named(text: str) -> list[str]:
    """Return the words of what stands in code marks and begins with key=value."""
    named = (span for span in spans(text) if re.match(r"'?[a-z][\w.]*=.", span))
    return [word for span in named for word in _words(span)]


def links(text: str) -> list[str]:
    """Return the targets of links and pictures that are not of the web."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    return [target for target in found if not target.startswith(("http:", "https:"))]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as hosts of repositories make them."""
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", text), flags=re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }


def broken(page: str, text: str) -> list[str]:
    """Return the links of a page whose file or heading is not there."""
    wrong = []
    for target in links(text):
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if (name and not path.exists()) or (
            anchor
            and anchor not in anchors(text if not name else path.read_text("utf-8"))
        ):
            wrong.append(target)
    return wrong


def check_command(command: str) -> None:
    """Raise for a command that could not be run: UserError from hessfig's own checks, AssertionError else."""
    words = _words(command)
    while words and re.fullmatch(r"[A-Z_]+=\S+", words[0]):
        del words[0]
    known = {
        "hessfig": _hessfig,
        "make": _make,
        "python": _python,
        "pip": _pip,
        ".": _activate,
    }
    assert words, f"no such program: {command}"
    assert words[0] in known, f"no such program: {command}"
    known[words[0]](words[1:])


def _parts(line: str) -> Iterator[str]:
    """Yield the commands of a line: those that && joins, and the one that is inside of an eval."""
    code = re.sub(r"(^|\s)#\s.*", "", line)
    yield from re.findall(r"\$\(([^)]*)\)", code) or (
        part.strip() for part in code.split("&&")
    )


def _program(span: str) -> str:
    return next(
        (word for word in span.split() if not re.fullmatch(r"[A-Z_]+=\S+", word)), ""
    )


def _words(command: str) -> list[str]:
    try:
        return [word for word in shlex.split(command, comments=True) if word != "..."]
    except ValueError:  # no shell: a formula, a name with an apostrophe
        return []


def _hessfig(words: list[str]) -> None:
    if not words or words == ["--help"]:
        return
    assert words[0] in VERBS, f"there is no verb {words[0]}"
    verb = VERBS[words[0]]
    rest = [_filled(word) for word in words[1:]]
    (_composed if verb.composed else _plain)(verb, rest)


def _filled(word: str) -> str:
    key, equals, value = word.partition("=")
    return f"{key}{equals}{STANDS_FOR.get(value, value)}"


def _composed(verb: Verb, words: list[str]) -> None:
    """Do all that the command does before it acts: overrides, composition, checks, and the plan of its cells."""
    from hessfig.cli.dispatch import compose_and_run
    from hessfig.cli.help import verb_help
    from hessfig.sweep.plan import Sweep

    command = read_command(words)
    if command.asks_help:
        assert verb_help(verb, command.own)
    elif not command.shows_settings:
        compose_and_run(
            verb,
            command,
            lambda job: (
                len(Sweep(job.variants).variants) * 0 if verb.makes_table else 0
            ),
        )


def _plain(verb: Verb, words: list[str]) -> None:
    if verb.name == "verify":
        _verify(words)
    else:
        places = [word for word in words if "=" not in word and verb.place]
        given = dict(word.split("=", 1) for word in words if word not in places)
        assert all(map(verb.takes, given)), words


def _verify(words: list[str]) -> None:
    from hessfig.theory.verification import parse

    asked = parse(own_words(VERBS["verify"], words))["statement_ids"]
    if asked:
        from hessfig.theory.verification import statement_ids

        assert set(asked) <= set(statement_ids()), words


def _make(words: list[str]) -> None:
    for target in words:
        name = target.removeprefix("figure-")
        figure = target.startswith("figure-") and name in choices("figure")
        assert figure or target in targets(), f"there is no target {target}"


@cache
def targets() -> set[str]:
    """The targets that the Makefile names."""
    return set(
        re.findall(
            r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE
        )
    )


def _python(words: list[str]) -> None:
    path = ROOT / words[0]
    shown = {block["file"] for page in PAGES for block in BLOCK.finditer(text_of(page))}
    assert words[0] in shown or path.is_file(), f"there is no script {words[0]}"
    shared = [path.with_name(name) for name in ("runner.py", "page.py")]
    read = [one for one in (path, *shared) if one.is_file()]
    told = "".join(one.read_text() for one in read)
    missing = [
        word for word in words[1:] if word.startswith("--") and f'"{word}"' not in told
    ]
    assert not missing, f"{words[0]} takes no {missing}"


def _pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = project["optional-dependencies"]
    extras = {one for extra in groups.values() for one in extra} | {
        f".[{name}]" for name in groups
    }
    assert words[0] == "install"
    for word in words[1:]:
        known = (
            word in ("-e", "-c", "--no-deps", ".")
            or word in extras
            or (ROOT / word).is_file()
        )
        assert known, f"pip: {word}"


def _activate(words: list[str]) -> None:
    assert words == [".venv/bin/activate"]
    assert "VENV := .venv\n" in (ROOT / "Makefile").read_text()
