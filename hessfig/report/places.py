"""Where links lead: to the files of a site, or within the one file that holds everything."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

_KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".csv": "text/csv", ".json": "application/json"}
PAGES = {"index": "index.html", "theory": "theory.html", "claims": "claims.html"}


def page_file(page: str) -> str:
    """Return the file of a page: those of sweeps are named 'sweep-NAME'."""
    return PAGES.get(page) or f"sweeps/{page.removeprefix('sweep-')}.html"


@dataclass(frozen=True)
class InSite:
    """Links of a page of a site, `depth` folders below its root."""

    depth: int = 0
    one_file: bool = False

    def page(self, page: str, part: str = "") -> str:
        """Return the link to a page, or to a part of it."""
        return self.file(page_file(page)) + (f"#{page}-{part}" if part else "")

    def file(self, path: str) -> str:
        """Return the link to a file of the site."""
        return "../" * self.depth + quote(path)


@dataclass(frozen=True)
class InOneFile:
    """Links of the one file: pages are its parts, and what lies in `folder` is written into it."""

    folder: Path
    one_file: bool = True

    def page(self, page: str, part: str = "") -> str:
        """Return the link to a page, or to a part of it."""
        return f"#{page}-{part}" if part else f"#{page}"

    def file(self, path: str) -> str:
        """Return the file as a data URI."""
        content = base64.b64encode((self.folder / path).read_bytes()).decode()
        return f"data:{_KINDS.get(Path(path).suffix, 'application/octet-stream')};base64,{content}"
