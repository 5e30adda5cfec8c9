"""The documentation site: every page in one place of its navigation, a build without warnings, no broken link."""

import ast
import itertools
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

import hessfig
from hessfig.analysis.presented import marked
from hessfig.config.presets import names
from hessfig.config.schema import GROUPS
from hessfig.config.settings import settings
from scripts.pages import settings as settings_page
from tests.pages import PAGES, ROOT, text_of

KINDS = ["Tutorial", "How-to guides", "Reference", "Explanation"]


def navigation(text):
    """Return the pages of every toctree of index.rst by its caption."""
    trees = re.findall(r"^\.\. toctree::\n((?:\n|   .*\n)+)", text, flags=re.MULTILINE)
    found = {}
    for tree in trees:
        (caption,) = re.findall(r":caption: (.+)", tree)
        found[caption] = re.findall(
            r"^   (?:.+ <)?(\w[\w/-]*)>?$", tree, flags=re.MULTILINE
        )
    return found


def below():
    """Return the pages that docs/conf.py and the list of studies put below others."""
    (text,) = re.findall(
        r"^BELOW = (\{.*?^\})", text_of("docs/conf.py"), flags=re.MULTILINE | re.DOTALL
    )
    studies = re.findall(
        r"^   .+ <([\w-]+)>$", text_of("docs/studies/index.rst"), flags=re.MULTILINE
    )
    return sum(ast.literal_eval(text).values(), [f"studies/{x}" for x in studies])


def misplaced(listed, there):
    """Return the pages that do not stand in exactly one place of the navigation."""
    return [
        page
        for page in sorted({*there, *listed})
        if listed.count(page) != 1 or page not in there
    ]


def test_every_page_stands_in_one_place_of_the_navigation():
    docs = ROOT / "docs"
    there = []
    for path in (*docs.rglob("*.md"), *docs.rglob("*.rst")):
        there.append(str(path.relative_to(docs).with_suffix("")))
    there.remove("index")
    kinds = navigation(text_of("docs/index.rst"))
    listed = [*itertools.chain(*kinds.values())]
    assert list(kinds) == KINDS
    assert len(listed) <= 20
    assert misplaced([*listed, *below()], there) == []


def test_a_page_without_a_place_or_with_two_is_found():
    text = ".. toctree::\n   :caption: Tutorial\n   :hidden:\n\n   a\n   B <b>\n\n"
    text += ".. toctree::\n   :caption: Reference\n\n   b\n   c\n"
    assert navigation(text) == {"Tutorial": ["a", "b"], "Reference": ["b", "c"]}
    assert misplaced(["a", "b", "b", "c"], ["a", "b", "d"]) == ["b", "c", "d"]


def test_the_interface_is_on_the_page_of_the_api():
    documented = set(
        re.findall(
            r"auto(?:class|function):: hessfig\.(\w+)$",
            text_of("docs/api.rst"),
            re.MULTILINE,
        )
    )
    assert documented == set(hessfig.__all__) - {"__version__"}


@pytest.mark.parametrize("page", PAGES)
def test_a_page_reads_plainly_on_a_code_host(page):
    """No directive or role of MyST, which hosts of repositories show as text."""
    found = re.findall(
        r"^(?:```|:::)\{.*|\{[\w:-]+\}`[^`]*`", text_of(page), flags=re.MULTILINE
    )
    assert found == []


def test_the_page_of_settings_is_up_to_date():
    shown = marked(
        settings_page.PAGE.read_text("utf-8"), "settings", settings_page.COMMAND
    )
    assert shown == settings_page.tables(), f"behind: run {settings_page.COMMAND}"


def test_the_page_of_settings_shows_each_one_once_and_every_preset():
    listed = re.findall(
        r"^\| `(?:\w+=)?([\w.]+)` \|", settings_page.tables(), flags=re.MULTILINE
    )
    groups = [group for group in GROUPS if group not in settings_page.IN_GALLERIES]
    presets = [name for group in groups for name in names(group)]
    assert sorted(listed) == sorted([*settings(), *presets])


@pytest.fixture
def check_site(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return import_module("check_site")


def test_a_broken_link_of_the_site_is_found(check_site, tmp_path):
    good = '<p id="top"><a href="b.html#x">b</a><a href="#top">t</a><a href="https://example.org/none">w</a>'
    bad = '<p id="x"><a href="a.html#none">a</a><img src="none.png"><a href="c.html">c</a>'
    (tmp_path / "a.html").write_text(good)
    (tmp_path / "b.html").write_text(bad)
    assert list(check_site.broken(tmp_path)) == [
        "b.html: a.html#none",
        "b.html: none.png",
        "b.html: c.html",
    ]


@pytest.mark.long
@pytest.mark.skipif(
    not all(map(find_spec, ("sphinx", "myst_parser", "furo"))),
    reason="sphinx is not installed (extra docs)",
)
def test_the_site_is_built_without_warnings_and_its_links_are_whole(
    check_site, tmp_path
):
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-d",
        str(tmp_path / "trees"),
    ]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(check_site.broken(tmp_path / "site")) == []
    assert 'id="hessfig.measure"' in (tmp_path / "site/api.html").read_text("utf-8")
    assert "functional_call" in (tmp_path / "site/tutorial.html").read_text("utf-8")
