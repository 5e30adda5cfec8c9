"""The report: one page that has a section for every sweep, links that lead somewhere, and nothing that runs."""

import re

import pandas as pd
import pytest

from hessfig.config.compose.job import compose
from hessfig.config.keys import as_plain
from hessfig.errors import UserError
from hessfig.report.page import Picture, SweepSection, page
from tests.analysis.synthetic import make_table, write_sweep


def write(outputs, name="sigma", about="", table=None):
    """Write a sweep of known exponents; return its folder."""
    known = "sweep" if name == "sigma" else "sweep.name"
    settings = dict(as_plain(compose([f"{known}={name}"]).first))
    settings["sweep"] = {**settings["sweep"], "about": about}
    if table is None:
        table = make_table(sweep=name)
    return write_sweep(table, outputs, settings=settings)


def test_a_sweep_has_figure_slopes_verdicts_and_links(cli, tmp_path):
    write(tmp_path / "outputs")
    answer = cli("report")
    text = (tmp_path / "outputs/report.html").read_text()
    assert answer.code == 0, answer.err
    assert "sweeps: 1, pictures: 1" in answer.out, answer.err
    assert "data:image/png;base64," in text
    assert "hessfig plot figure=3a" in text
    assert "agrees: 5, structural zero: 1" in text
    links = re.findall(r'href="([^#"]+)"', text)
    assert links
    assert all((tmp_path / "outputs" / link).is_file() for link in links)
    assert "<script" not in text
    assert not re.search(r'(?:src|href)="(?:https?:)?//', text)


@pytest.mark.long
def test_the_page_prints_what_slopes_csv_holds(cli, tmp_path):
    write(tmp_path / "outputs")
    cli("report", "tolerance=1e-9")
    assert "undecided" in (tmp_path / "outputs/report.html").read_text()
    assert "undecided" in (tmp_path / "outputs/sigma/slopes.csv").read_text()


@pytest.mark.long
def test_a_damaged_sweep_is_named_and_the_others_are_shown(cli, tmp_path):
    write(tmp_path / "outputs")
    broken = write(tmp_path / "outputs", "mine")
    (broken / "table.csv").write_text("x,y\n")
    answer = cli("report")
    text = (tmp_path / "outputs/report.html").read_text()
    assert answer.code == 0
    assert "note: mine:" in answer.out
    assert "its table cannot be read" in text
    assert "agrees: 5" in text


@pytest.mark.long
def test_a_table_without_one_quantity_to_fit_is_named_once(cli, tmp_path):
    table = make_table(sweep="mine")
    halves = [table.assign(quantity=name) for name in ("trace", "largest_eigenvalue")]
    write(tmp_path / "outputs", "mine", table=pd.concat(halves))
    answer = cli("report")
    assert "note: mine: the table has several quantities" in answer.out


def test_an_empty_folder_says_what_to_run(cli, tmp_path):
    (tmp_path / "outputs").mkdir()
    assert cli("report").code == 0
    assert "hessfig run sweep=sigma" in (tmp_path / "outputs/report.html").read_text()


def test_a_page_of_the_users_own_is_not_replaced(cli, tmp_path):
    write(tmp_path / "outputs")
    (tmp_path / "outputs/report.html").write_text("mine")
    answer = cli("report")
    assert answer.code == 2
    assert (tmp_path / "outputs/report.html").read_text() == "mine"


@pytest.mark.parametrize("place", ["name", "about", "state", "command"])
def test_words_from_files_are_text_not_markup(place):
    words = {"name": "n", "about": "", "state": "", "command": ""} | {
        place: "<script>alert(1)</script>"
    }
    problem = UserError("<b>what</b>", got="<i>", allowed="", remedy="")
    section = SweepSection(
        **words, pictures=[Picture(b"", "<u>", "")], problems=[problem]
    )
    text = page([section], "0")
    assert not re.search(r"<script|<b>|<i>|<u>", text)
