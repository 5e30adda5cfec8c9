"""Check the built documentation site: every relative link, picture and anchor of its pages is there.

    python scripts/check_site.py build/site

The web is not asked. Exits with 1 and one line per broken link, and with 2 for a folder
without pages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The targets that a page points to, and the anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets, self.anchors = list[str](), set[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect ids, links and sources of one element."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.targets.append(value)


@cache
def page_of(path: Path) -> Page:
    """Return a page, read once."""
    return Page(path.read_text("utf-8"))


def broken(site: Path) -> Iterator[str]:
    """Yield a line for every relative link of the site whose file or anchor is not there."""
    for path in sorted(site.rglob("*.html")):
        for target in page_of(path).targets:
            link = urlsplit(target)
            if link.scheme or link.netloc:
                continue
            file = (path.parent / unquote(link.path)).resolve() if link.path else path
            file = file / "index.html" if file.is_dir() else file
            anchor = unquote(link.fragment)
            lost = (
                file.suffix == ".html"
                and anchor
                and file.is_file()
                and anchor not in page_of(file).anchors
            )
            if not file.is_file() or lost:
                yield f"{path.relative_to(site)}: {target}"


def main() -> int:
    """Print what is broken, or how many pages and links were followed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", type=Path, help="the folder that sphinx has written")
    site = parser.parse_args().site
    pages = list(site.rglob("*.html"))
    if not pages:
        print(f"no pages in {site}: run make docs", file=sys.stderr)
        return 2
    found = list(broken(site))
    print(
        "\n".join(found)
        or f"{len(pages)} pages, {sum(len(page_of(page).targets) for page in pages)} links: whole"
    )
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
