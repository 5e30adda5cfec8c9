"""What hessfig did not write, or what was changed since, is never replaced or removed, by any verb."""

import json
import os
import shutil
import time

import pytest

from hessfig.errors import UserError
from hessfig.record import CHECKSUM, checksum, read_checked
from hessfig.register import (
    REGISTER,
    check_replaceable,
    publish,
    remove_own,
    trusted_hashes,
)
from tests.analysis.synthetic import make_table, write_sweep
from tests.cli.test_jobs import SMALL
from tests.runs import here

MINE = "years of work"


def _edited(path):
    path.write_bytes(path.read_bytes() + b" ")


def _a_file(path):
    _gone(path)
    shutil.rmtree(path.parent / REGISTER, ignore_errors=True)
    path.write_text(MINE)


def _a_folder(path):
    _gone(path)
    path.mkdir()
    (path / "thesis.tex").write_text(MINE)


def _a_link(path):
    target = path.with_name("thesis.tex")
    target.write_text(MINE)
    _gone(path)
    path.symlink_to(target.name)


def _a_pipe(path):
    _gone(path)
    os.mkfifo(path)


def _gone(path):
    path.unlink(missing_ok=True)


IN_THE_WAY = {
    "an edited file": _edited,
    "a file": _a_file,
    "a folder": _a_folder,
    "a link": _a_link,
    "a pipe": _a_pipe,
}


@pytest.mark.parametrize("kind", IN_THE_WAY)
def test_what_is_in_the_way_stays(tmp_path, kind):
    path = tmp_path / "a.csv"
    other = tmp_path / "b.csv"
    publish({path: "1"}, "table")
    IN_THE_WAY[kind](path)
    before = _state(tmp_path)
    with pytest.raises(
        UserError, match=r"a\.csv contains what hessfig did not write(.|\n)*mv "
    ):
        publish({other: "2", path: "2"}, "table")
    assert not remove_own(path)
    assert _state(tmp_path) == before


def _state(folder):
    found = {}
    for path in sorted(folder.rglob("*")):
        is_plain = path.is_file() and not path.is_symlink()
        found[str(path)] = path.read_bytes() if is_plain else path.lstat().st_ino
    return found


def test_what_hessfig_wrote_is_replaced_by_its_kind_alone(tmp_path):
    path = tmp_path / "a.csv"
    for text in ("1", "2", "2", "1"):
        assert publish({path: text}, "table") == [path]
        assert path.read_text() == text
    with pytest.raises(UserError, match="a table of hessfig's, not a bundle"):
        check_replaceable([path], "bundle")
    moved = tmp_path / "moved"
    shutil.copytree(
        tmp_path, moved, ignore=lambda folder, names: {"moved"} & set(names)
    )
    publish({moved / "a.csv": "3"}, "table")
    assert remove_own(path)
    assert not path.exists()
    assert remove_own(path)


def test_equal_content_is_nobodys_loss(tmp_path):
    """A picture of a version that kept no register is taken over where it is drawn as it was."""
    path = tmp_path / "a.csv"
    path.write_text("as 0.2.1 wrote it")
    publish({path: "as 0.2.1 wrote it"}, "figure")
    publish({path: "as it is now"}, "figure")
    assert path.read_text() == "as it is now"


def test_who_is_killed_between_register_and_file_leaves_what_may_be_replaced(
    tmp_path, monkeypatch
):
    path = tmp_path / "a.csv"
    publish({path: "1"}, "table")
    with monkeypatch.context() as killed, pytest.raises(KeyboardInterrupt):
        killed.setattr("hessfig.register.write_together", _killed)
        publish({path: "2"}, "table")
    publish({path: "3"}, "table")
    assert path.read_text() == "3"


def _killed(contents):
    raise KeyboardInterrupt


def test_a_forged_entry_of_the_register_says_nothing(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(MINE)
    (tmp_path / REGISTER).mkdir()
    for text in (
        "",
        "[]",
        '{"kind": "table", "sha256": []}',
        '{"kind": 1, "sha256": 2, "checksum": "x"}',
        "[" * 9999,
    ):
        (tmp_path / REGISTER / "a.csv.json").write_text(text)
        with pytest.raises(UserError, match="in no register"):
            publish({path: "1"}, "table")
    assert path.read_text() == MINE


# The verbs, each with a file that it would write beside the tables in `outputs`.
VERBS = {
    "run": (("run", "sweep=sigma", *SMALL, "seeds=2"), "outputs/sigma/table.csv"),
    "run, manifest": (
        ("run", "sweep=sigma", *SMALL, "seeds=2"),
        "outputs/sigma/manifest.json",
    ),
    "slopes": (("slopes", "sweep=sigma"), "outputs/sigma/slopes.csv"),
    "levels": (("slopes", "sweep=sigma", "levels=true"), "outputs/sigma/levels.csv"),
    "compare": (("compare", "outputs/sigma", "other", "rows=rows.csv"), "rows.csv"),
    "plot": (
        ("plot", "figure=3a", "figure.formats=[pdf]"),
        "outputs/figures/fig3a.pdf",
    ),
    "plot, numbers": (
        ("plot", "figure=3a", "figure.formats=[svg]"),
        "outputs/figures/fig3a.csv",
    ),
    "plot of one's own": (
        (
            "plot",
            "figure=none",
            "figure.sweep=sigma",
            "figure.name=mine",
            "figure.layout=lines",
            "figure.formats=[svg]",
        ),
        "outputs/sigma/drawn/mine.json",
    ),
    "report": (("report",), "outputs/report.html"),
    "bundle": (("bundle", "sweep=sigma"), "sigma.zip"),
    "bundle, named": (("bundle", "sweep=sigma", "file=mine.zip"), "mine.zip"),
    "export": (
        ("export", "outputs/sigma", "seed=1234", "sigma=0.01", "into=net.zip"),
        "net.zip",
    ),
    "verify": (("verify", "statement=lem41", "seeds=1"), "outputs/verify/report.md"),
}


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swept")
    done = here("run", "sweep=sigma", *SMALL, "seeds=2", folder=folder)
    assert done.returncode == 0, done.stderr
    shutil.copytree(folder / "outputs/sigma", folder / "other")
    return folder


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.long
def test_no_verb_replaces_a_file_of_the_users(cli, swept, tmp_path, verb):
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    words, name = VERBS[verb]
    path = tmp_path / name
    for _ in range(2):  # what it wrote itself, it replaces
        answer = cli(*words)
        assert answer.code == 0, answer.out + answer.err
        assert path.is_file(), answer.out + answer.err
    for spoil in (_edited, _a_folder):
        # A folder for a table is refused before.
        if not (verb.startswith("run") and spoil is _a_folder):
            spoil(path)
        before = _state(tmp_path)
        answer = cli(*words)
        assert answer.code == 2, answer.out + answer.err
        assert "mv " in answer.err, answer.out + answer.err
        changed = {
            key for key, value in _state(tmp_path).items() if before.get(key) != value
        }
        assert str(path) not in changed, changed
        assert set(before) <= set(_state(tmp_path)), changed


@pytest.mark.parametrize(
    "words",
    [
        ("bundle", "sweep=sigma", "file=outputs/sigma/table.csv"),
        ("bundle", "sweep=sigma", "file=x.csv"),
        ("export", "outputs/sigma", "sigma=0.01", "seed=1234", "into=other"),
    ],
)
def test_a_place_that_is_named_is_not_that_of_another_kind(cli, swept, tmp_path, words):
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    before = _state(tmp_path)
    answer = cli(*words)
    assert answer.code == 2, answer.out + answer.err
    assert "remedy" in answer.err, answer.out + answer.err
    assert _state(tmp_path) == before


@pytest.mark.usefixtures("workers")
def test_a_run_takes_away_its_own_slopes_and_no_others(cli, swept, tmp_path):
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    assert cli("slopes", "sweep=sigma").code == 0
    mine = tmp_path / "outputs/sigma/levels.csv"
    mine.write_text(MINE)
    answer = cli("run", "sweep=sigma", *SMALL, "seeds=1")
    assert answer.code == 0
    assert "levels.csv is not as hessfig left it: it is kept" in answer.out
    assert not mine.with_name("slopes.csv").exists()
    assert mine.read_text() == MINE


@pytest.mark.usefixtures("workers")
def test_hidden_files_of_the_users_stay_however_they_are_called(cli, swept, tmp_path):
    shutil.copytree(swept, tmp_path, dirs_exist_ok=True)
    names = (
        ".notes.csv.abcdefgh",
        ".table.csv.abcd1234",
        ".running.0123456789abcdef",
        "cells/.ab.json.abcdefgh",
    )
    for name in names:
        path = tmp_path / "outputs/sigma" / name
        path.write_text(MINE)
        os.utime(path, (time.time() - 7200,) * 2)
    assert cli("run", "sweep=sigma", *SMALL, "seeds=2").code == 0
    assert [(tmp_path / "outputs/sigma" / name).read_text() for name in names] == [
        MINE
    ] * len(names)


def test_tables_of_0_2_1_are_replaced_and_those_without_a_seal_are_not(tmp_path):
    """They have no register: the manifest vouches for both, by its own checksum and the table's hash."""
    folder = write_sweep(make_table(seeds=1), tmp_path)
    assert trusted_hashes(folder) == []
    manifest = read_checked(folder / "manifest.json")
    (folder / "manifest.json").write_text(
        json.dumps({**manifest, CHECKSUM: checksum(manifest)})
    )
    paths = [folder / "table.csv", folder / "manifest.json"]
    check_replaceable(paths, "table", known=trusted_hashes(folder))
    _edited(folder / "table.csv")
    with pytest.raises(
        UserError, match=r"table\.csv contains what hessfig did not write"
    ):
        check_replaceable(paths, "table", known=trusted_hashes(folder))
