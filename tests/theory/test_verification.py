"""The runner: exit codes, files, settings it refuses."""

import csv
from pathlib import Path

import pytest

from hessfig.cli.flags import own_words
from hessfig.errors import UserError
from hessfig.theory import verification as verify
from hessfig.theory.statement import Dims, Statement, StatementVerdict
from hessfig.theory.verification import CATALOGUE, parse
from hessfig.verbs import VERBS

COLUMNS = [
    "statement",
    "reference",
    "holds_as_printed",
    "error_as_printed",
    "error_corrected",
    "note",
]


def run(ids, folder, *, dims=None, seeds=1, dtype="float64"):
    return verify.run(
        ids, output_dir=folder, dims=dims or Dims(), seeds=seeds, dtype=dtype
    )


def rows(folder):
    with (folder / "verify" / "statements.csv").open(newline="") as file:
        reader = csv.DictReader(file)
        assert reader.fieldnames == COLUMNS
        return list(reader)


def test_chosen_statements_are_checked_and_written(tmp_path, capsys):
    assert run(["lem41", "thm31", "rem31-Z2", "thm31-K"], tmp_path) == 0
    found = {row["statement"]: row for row in rows(tmp_path)}
    verdicts = {name: row["holds_as_printed"] for name, row in found.items()}
    assert verdicts == {
        "lem41": "no",
        "thm31": "yes",
        "rem31-Z2": "ill-typed",
        "thm31-K": "left out",
    }
    assert float(found["lem41"]["error_as_printed"]) > 1
    assert float(found["lem41"]["error_corrected"]) < 1e-10
    assert found["rem31-Z2"]["error_as_printed"] == ""
    assert "thm31" in capsys.readouterr().out


def test_errata_sheet_has_every_section_and_nothing_else_is_left(tmp_path):
    run(["lem41", "thm31", "thm31-K"], tmp_path)
    text = (tmp_path / "verify" / "report.md").read_text()
    for heading in (
        "1. What needs a correction",
        "2. What the sources leave out",
        "3. What holds as printed",
    ):
        assert f"## {heading}" in text
    assert sorted(p.name for p in (tmp_path / "verify").glob("[!.]*")) == [
        "report.md",
        "statements.csv",
    ]


def test_same_settings_give_the_same_bytes(tmp_path):
    for name in ("first", "second"):
        run(["eq13", "D-pairs"], tmp_path / name)
    texts = [
        (tmp_path / name / "verify" / "statements.csv").read_bytes()
        for name in ("first", "second")
    ]
    assert texts[0] == texts[1]


def test_a_changed_verdict_fails(tmp_path, monkeypatch, capsys):
    eq13 = CATALOGUE["eq13"]
    monkeypatch.setitem(
        CATALOGUE, "eq13", Statement(**{**vars(eq13), "recorded": StatementVerdict.yes})
    )
    assert run(["eq13"], tmp_path) == 1
    assert "eq13 is recorded as yes, found no" in " ".join(
        capsys.readouterr().out.split()
    )


def test_ids_are_listed():
    assert verify.statement_ids() == list(CATALOGUE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ids": ["lemm41"]}, "(?s)no such id.*did you mean 'lem41'"),
        ({"dims": Dims(L=1)}, "(?s)too short.*L >= 3.*one token"),
        ({"dims": Dims(L=2)}, "(?s)too short.*vanishes by accident"),
        ({"dims": Dims(d_K=5)}, "(?s)pairwise different.*transposed"),
        (
            {"dims": Dims(L=17, d_V=128, d_K=64)},
            "(?s)would not fit.*GiB.*attention_hessian",
        ),
        ({"seeds": 0}, "(?s)seeds.*from 1 to 1000"),
        ({"dtype": "float32"}, "(?s)proves nothing.*rounding"),
    ],
)
def test_bad_settings_are_refused(tmp_path, change, message):
    settings = {"ids": ["eq13"], **change}
    with pytest.raises(UserError, match=message):
        run(settings.pop("ids"), tmp_path, **settings)
    assert not list(tmp_path.iterdir())


def test_arguments_become_the_runner_s_settings():
    settings = parse(
        {"statement": "thm31,lem41", "output_dir": "here", "seeds": "2", "d_K": "2"}
    )
    assert settings == {
        "statement_ids": ["thm31", "lem41"],
        "output_dir": Path("here"),
        "dims": Dims(d_K=2),
        "seeds": 2,
        "dtype": "float64",
    }
    assert parse({})["statement_ids"] is None


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("thm31", "(?s)cannot read.*statement=thm31"),
        ("statment=thm31", "(?s)no setting.*did you mean 'statement'"),
        ("seeds=many", "(?s)seeds.*whole number"),
    ],
)
def test_bad_words_are_refused(word, message):
    with pytest.raises(UserError, match=message):
        parse(own_words(VERBS["verify"], [word]))
