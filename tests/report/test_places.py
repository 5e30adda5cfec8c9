"""Where a report is written: never half a site, never over something else; and outputs that hold little."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hessfig.errors import UserError
from hessfig.report.appearing import appearing
from tests.report.html import read
from tests.report.outputs import cell, report


def test_the_old_site_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    with appearing(folder, mark="mark") as new:
        (new / "mark").write_text("first")
    with pytest.raises(RuntimeError, match="in the middle"), appearing(folder, mark="mark") as new:
        (new / "mark").write_text("second")
        assert (folder / "mark").read_text() == "first"
        raise RuntimeError("in the middle")
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert (folder / "mark").read_text() == "first"


def test_a_folder_of_another_kind_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "thesis.tex").write_text("years of work")
    assert report(tmp_path) == 2
    assert "is no report, and would be replaced" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["thesis.tex"]


def test_what_killed_writers_left_is_removed_and_a_lost_site_returns(tmp_path: Path) -> None:
    for name in (".report.abc", ".report.abc.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mark").write_text(name)
        os.utime(tmp_path / name, (0, 0))
    with pytest.raises(RuntimeError), appearing(tmp_path / "report", mark="mark"):
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert (tmp_path / "report" / "mark").read_text() == ".report.abc.old"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("")
    with (
        pytest.raises(UserError, match=r"a file is in the way"),
        appearing(tmp_path / "outputs/report", mark="m"),
    ):
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
    assert "1 sweep, 0 of" in said and "hessfig run sweep=sigma" in said
    assert f"written: {tmp_path / 'report' / 'index.html'}" in said
