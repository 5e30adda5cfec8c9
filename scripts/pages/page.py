"""What the writers of pages share: a command that prints the parts they make, writes them to their pages, or compares.

    python scripts/pages/settings.py            # print the parts
    python scripts/pages/settings.py --write    # put each between its marks on its page
    python scripts/pages/settings.py --check    # status 1 when a page has another

Writers of measured numbers take the folder of the sweeps as well.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hessfig.analysis.presented import between_marks, marked

# A page, the name of the marks on it, and the text between them.
Part = tuple[Path, str, str]


def keep(
    about: str | None,
    command: str,
    parts: Callable[[Path | None], Iterable[Part]],
    words: Sequence[str] | None = None,
) -> int:
    """Print, write or compare the parts, which may depend on a folder of sweeps; `command` stands in the marks."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "outputs",
        type=Path,
        nargs="?",
        help="the folder of measured sweeps, for pages of numbers",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--write", action="store_true", help="put the parts between their marks"
    )
    mode.add_argument(
        "--check",
        action="store_true",
        help="say which parts stand otherwise on their page; status 1",
    )
    options = parser.parse_args(words)
    behind, separator = 0, ""
    for page, name, text in parts(options.outputs):
        if options.write:
            page.write_text(between_marks(page.read_text(), name, text, command))
        elif not options.check:
            print(f"{name} of {page.name}:", file=sys.stderr)
            sys.stdout.write(separator + text)
            separator = "\n"
        elif marked(page.read_text(), name, command) != text:
            print(f"{page.name}, {name}: behind")
            behind = 1
    return behind
