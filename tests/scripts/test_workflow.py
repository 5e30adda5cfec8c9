"""The workflow for whoever hosts the repository: its steps are commands that there are, and none is left out."""

import tomllib

import pytest
import yaml

from scripts import run_workflow
from tests.pages import ROOT, check_command, targets

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [line for _, _, text in run_workflow.steps([]) for line in text.splitlines()]


def minors(words):
    return [
        word.rpartition(" :: ")[2]
        for word in words
        if word.rpartition(" :: ")[2].startswith("3.")
    ]


def test_every_interpreter_of_the_metadata_is_tested():
    tested = run_workflow.workflow()["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert tested == minors(PROJECT["classifiers"])
    assert (
        PROJECT["requires-python"]
        == f">={tested[0]},<3.{int(tested[-1].partition('.')[2]) + 1}"
    )


def test_the_jobs_are_those_that_a_release_needs():
    assert set(run_workflow.workflow()["jobs"]) == {"tests", "slopes", "docs", "wheel"}
    assert {
        "make check",
        "make figure-3a",
        "make test",
        "python scripts/check_wheel.py",
    } <= set(LINES)


@pytest.mark.parametrize("line", LINES)
def test_a_step_is_a_command_that_there_is(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program, *words = line.removeprefix(".venv/bin/").split()
    if program == "make":
        assert words[0] in targets() or words[0].startswith("figure-")
    elif program == "python" and words[:3] == ["-m", "pip", "install"]:
        assert words[3:]
    elif program == "python":
        assert (ROOT / words[0]).is_file()
    else:
        check_command(line.removeprefix(".venv/bin/"))


def test_its_steps_are_run_here_until_one_fails(tmp_path, monkeypatch):
    jobs = {
        "one": {
            "steps": [
                {"uses": "x"},
                {"name": "a", "run": "echo made > a"},
                {"run": "false\ntouch b"},
            ]
        }
    }
    (tmp_path / "ci.yml").write_text(
        yaml.safe_dump({"jobs": jobs, "env": {"OMP_NUM_THREADS": "1"}})
    )
    monkeypatch.setattr(run_workflow, "WORKFLOW", tmp_path / "ci.yml")
    monkeypatch.setattr(run_workflow, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as exit:
        run_workflow.main(["one"])
    assert exit.value.code == 1
    assert (tmp_path / "a").read_text() == "made\n"
    assert not (tmp_path / "b").exists()
    with pytest.raises(SystemExit, match="there is no job two; the jobs are one"):
        run_workflow.main(["two"])


def test_the_description_of_the_package_needs_no_file_beside_it():
    described = PROJECT["readme"]["text"]
    assert "](" not in described
    assert "example.org" not in described
    assert PROJECT["authors"][0]["name"] in (ROOT / "CITATION.cff").read_text()
