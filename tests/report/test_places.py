"""Where a report is written: never half a site, never over something else; and outputs that hold little."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hessfig.errors import UserError
from hessfig.record import CHECKSUM, checksum
from hessfig.report.written import SEAL, appearing, check_file, with_mark
from tests.report.html import read
from tests.report.outputs import cell, report


def sealed(folder: Path, text: str) -> Path:
    """Make a folder as hessfig makes it, with one file; return the file."""
    with appearing(folder) as new:
        (new / "page").write_text(text)
    return folder / "page"


def test_the_old_site_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    page = sealed(tmp_path / "report", "first")
    with pytest.raises(RuntimeError, match="in the middle"), appearing(tmp_path / "report") as new:
        (new / "page").write_text("second")
        assert page.read_text() == "first"
        raise RuntimeError("in the middle")
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert page.read_text() == "first"
    assert sealed(tmp_path / "report", "third").read_text() == "third"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]


def _thesis(folder: Path) -> None:
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")


def _thesis_and_index(folder: Path) -> None:
    _thesis(folder)
    (folder / "report.json").write_text('{"hessfig": "0.2.0"}')


def _one_more_file(folder: Path) -> None:
    sealed(folder, "page")
    (folder / "notes").mkdir()
    (folder / "notes" / "mine.txt").write_text("years of work")


def _edited(folder: Path) -> None:
    sealed(folder, "page").write_text("years of work")


def _link_inside(folder: Path) -> None:
    sealed(folder, "page")
    (folder / "data").symlink_to(folder.parent)


def _page_is_a_link(folder: Path) -> None:
    page = sealed(folder, "page")
    page.rename(folder.parent / "elsewhere")
    page.symlink_to(folder.parent / "elsewhere")


def _link(folder: Path) -> None:
    sealed(folder.parent / "site", "page")
    folder.symlink_to(folder.parent / "site")


def _dead_link(folder: Path) -> None:
    folder.symlink_to(folder.parent / "nowhere")


def _file(folder: Path) -> None:
    folder.write_text("years of work")


def _seal_of_another(folder: Path) -> None:
    sealed(folder, "page")
    (folder / SEAL).write_text('{"files": {"page": "0"}}')


def _listed(folder: Path) -> dict[str, str]:
    found = {
        path: path.readlink() if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in folder.rglob("*")
    }
    return {path.relative_to(folder).as_posix(): str(content) for path, content in found.items()}


@pytest.mark.parametrize(
    "there",
    [
        *(_thesis, _thesis_and_index, _one_more_file, _edited, _link_inside, _page_is_a_link),
        *(_link, _dead_link, _file, _seal_of_another),
    ],
)
def test_what_hessfig_did_not_write_is_refused(tmp_path: Path, there: Callable[[Path], None]) -> None:
    there(tmp_path / "report")
    before = _listed(tmp_path)
    with pytest.raises(UserError, match="holds what hessfig did not write"), appearing(tmp_path / "report"):
        raise AssertionError("begun all the same")
    assert _listed(tmp_path) == before


def test_what_comes_while_a_report_is_made_is_kept(tmp_path: Path) -> None:
    sealed(tmp_path / "report", "first")
    with (
        pytest.raises(UserError, match=r"notes\.txt, which hessfig did not write"),
        appearing(tmp_path / "report") as new,
    ):
        (new / "page").write_text("second")
        (tmp_path / "report" / "notes.txt").write_text("mine")
    assert (tmp_path / "report" / "page").read_text() == "first"


def test_the_verb_refuses_before_it_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _thesis_and_index(tmp_path / "report")
    (tmp_path / "report.html").write_text("<p>mine</p>")
    before = _listed(tmp_path)
    for words in ((), ("single_file=true",)):
        assert report(tmp_path, *words) == 2
        said = capsys.readouterr().err
        assert "holds what hessfig did not write" in said and "mv " in said
    assert _listed(tmp_path) == before


@pytest.mark.parametrize("kind", ["edited", "link", "folder", "other"])
def test_a_single_file_that_is_no_report_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "report.html"
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        (tmp_path / "elsewhere").write_text(with_mark("<p>"))
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text({"edited": with_mark("<p>") + "\n", "other": "<p>"}[kind])
    with pytest.raises(UserError, match="holds what hessfig did not write"):
        check_file(path)
    path.rename(tmp_path / "away")
    path.write_text(with_mark("<p>"))
    check_file(path)


def test_what_killed_writers_left_is_removed_and_a_lost_site_returns(tmp_path: Path) -> None:
    """Leftovers are known by the exact form of their names and by their seals; whatever else is hidden stays."""
    folder, unfinished = tmp_path / "report", tmp_path / ".report.abcdefgh"
    sealed(folder, "first")
    folder.rename(tmp_path / ".report.ijklmnop.old")
    with pytest.raises(KeyboardInterrupt), appearing(folder) as new:
        (new / "half").write_text("")
        shutil.copytree(new, unfinished)
        raise KeyboardInterrupt
    name = json.loads((unfinished / SEAL).read_text())["unfinished"]
    unfinished.rename(tmp_path / name)
    mine = (".report.backup", ".report.original", ".report.abcdefgh", ".report.backup_2.old")
    for one in mine:
        _thesis(tmp_path / one)
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    with pytest.raises(RuntimeError), appearing(folder):
        raise RuntimeError
    assert {path.name for path in tmp_path.iterdir()} == {"report", *mine}
    assert (folder / "page").read_text() == "first"
    assert all((tmp_path / one / "thesis.tex").read_text() == "years of work" for one in mine)


def test_a_forged_seal_removes_nothing_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("years of work")
    sealed(tmp_path / "report", "first")
    seal = json.loads((tmp_path / "report" / SEAL).read_text())
    content = {"files": {**seal["files"], "../mine": "0"}}
    (tmp_path / "report" / SEAL).write_text(json.dumps({**content, CHECKSUM: checksum(content)}))
    assert sealed(tmp_path / "report", "second").read_text() == "second"
    assert (tmp_path / "mine").read_text() == "years of work"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("")
    with pytest.raises(UserError, match=r"a file is in the way"), appearing(tmp_path / "outputs/report"):
        raise AssertionError


@pytest.mark.parametrize("words", [(), ("single_file=true",)])
def test_an_empty_outputs_folder_is_a_list_of_commands(tmp_path: Path, words: tuple[str, ...]) -> None:
    assert report(tmp_path / "outputs", *words) == 0
    page = read(tmp_path / "outputs" / ("report.html" if words else "report/index.html"))
    assert page.faults == []
    assert "Nothing is measured in this outputs folder yet" in page.text
    assert "hessfig run sweep=sigma" in page.text and "hessfig verify" in page.text


def test_a_half_finished_folder_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell(tmp_path / "sigma", "aa11")
    assert report(tmp_path) == 0
    said = capsys.readouterr().out
    assert "1 sweep; 0 of the" in said and "hessfig run sweep=sigma" in said
    assert f"written: {tmp_path / 'report' / 'index.html'}" in said
