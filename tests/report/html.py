"""A strict reader of HTML: tags that do not close, ids twice, links that lead nowhere, pictures without words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

VOID = {"meta", "link", "img", "source", "input", "br", "hr"}
Attributes = Sequence[tuple[str, str | None]]


@dataclass
class Read(HTMLParser):
    """What a page holds, and what is wrong with it."""

    faults: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    images: list[dict[str, str | None]] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)
    text: str = ""
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: Attributes) -> None:
        given = dict(attrs)
        self.tags.append(tag)
        if len(given) < len(attrs):
            self.faults.append(f"<{tag}> has an attribute twice")
        self.faults += [f"<{tag}> runs code: {name}" for name in given if name.startswith("on")]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given[name] or "" for name in ("href", "src", "srcset") if name in given]
        if tag == "img":
            self.images.append(given)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes what is not open, at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.text += data


def read(path: Path) -> Read:
    """Return a page, read to its end."""
    page = Read()
    page.feed(path.read_text("utf-8"))
    page.close()
    page.faults += [f"<{tag}> is not closed" for tag in page.open]
    page.faults += [f"id {one!r} twice" for one in {one for one in page.ids if page.ids.count(one) > 1}]
    return page


def dead_links(path: Path, page: Read) -> list[str]:
    """Return the links of a page that lead out of the report, to no file, or to no part of one."""
    return [link for link in page.links if not link.startswith("data:") and not _resolves(path, page, link)]


def _resolves(path: Path, page: Read, link: str) -> bool:
    name, _, part = link.partition("#")
    target = (path.parent / unquote(name)).resolve() if name else path
    if ":" in name or not target.is_file():
        return False
    return not part or unquote(part) in (page.ids if not name else read(target).ids)
