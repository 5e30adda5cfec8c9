"""Write the tables of settings into docs/settings.md, from the schema and the shipped presets.

    python scripts/pages/settings.py [--write | --check]

`hessfig run --help` prints the same texts in a terminal; a test compares the page with
the schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from hessfig.analysis.presented import markdown_table
from hessfig.config.presets import choices
from hessfig.config.schema import GROUPS
from hessfig.config.settings import Setting, settings
from hessfig.verbs import VERBS

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"
COMMAND = "python scripts/pages/settings.py --write"
HEADS = ("setting", "meaning, values, default")
IN_GALLERIES = ("figure",)  # groups whose presets the galleries list


def parts(_outputs: Path | None) -> Iterator[tuple[Path, str, str]]:
    """Yield the tables."""
    yield PAGE, "settings", tables()


def tables() -> str:
    """Return a section for each group, one for the single settings of a run, and one for those of other verbs."""
    run = VERBS["run"]
    single = [one for one in settings().values() if "." not in one.key]
    lines = [line for group in GROUPS for line in _group(group)]
    lines += [
        "## Settings without a group",
        "",
        *_table(one for one in single if run.takes(one.key)),
        "",
    ]
    lines += [
        "## Settings of other commands",
        "",
        *_table(one for one in single if not run.takes(one.key)),
        "",
    ]
    return "\n".join(lines)


def _group(group: str) -> Iterator[str]:
    """Yield the lines of a group: its presets, and its settings."""
    presets = choices(group) if group not in IN_GALLERIES else {}
    yield from (f"## {group}", "")
    if presets:
        rows = [(f"`{group}={name}`", _plain(about)) for name, about in presets.items()]
        yield from (*markdown_table(("preset", "meaning"), rows), "")
    yield from (
        *_table(one for key, one in settings().items() if key.startswith(f"{group}.")),
        "",
    )


def _table(listed: Iterable[Setting]) -> list[str]:
    return markdown_table(HEADS, ((f"`{one.key}`", _meaning(one)) for one in listed))


def _meaning(one: Setting) -> str:
    """Return what a setting is for, in italics what it takes, and its default; a browser may break any list."""
    values = _plain(re.sub(r"(?<=\w)\|(?=\w)", ", ", one.kind))
    default = f"; default `{one.default}`" if one.default else ""
    return f"{_plain(one.about)}: *{values}*{default}"


def _plain(text: str) -> str:
    """Return a text without characters that Markdown reads as emphasis or as a link, except in code marks."""
    return re.sub(
        r"`[^`]*`|[*\[\]]",
        lambda found: found[0] if len(found[0]) > 1 else f"\\{found[0]}",
        text,
    )


if __name__ == "__main__":
    from page import keep

    raise SystemExit(keep(__doc__, COMMAND, parts))
