"""The wheel holds the configuration and works from another folder."""

import os
import subprocess
import sys
import tomllib

import pytest

from scripts import check_wheel

SHIPPED = [
    "hessfig/conf/config.yaml",
    "hessfig/conf/sweep/sigma.yaml",
    "hessfig/data/published_slopes.csv",
    "hessfig/data/CITATION.cff",
]
SHIPPED += ["hessfig/report/templates/page.html"]


def test_the_lines_for_a_smaller_pytorch_name_every_dependency():
    project = tomllib.loads((check_wheel.ROOT / "pyproject.toml").read_text())[
        "project"
    ]
    needed = {
        word
        for word in project["dependencies"]
        if not word.startswith(("torch>", "curvlinops"))
    }
    first, *lines = check_wheel.smaller("torch --index-url HERE", "hessfig.whl")
    assert first == ["torch", "--index-url", "HERE"]
    assert lines[0][:2] == ["--no-deps", "hessfig.whl"]
    assert needed < {*lines[1]}
    assert not [
        word for word in lines[1] if "torchvision" in word or "backpack" in word
    ]
    both = check_wheel.smaller("torch torchvision --index-url HERE", "hessfig.whl")
    assert both == [["torch", "torchvision", "--index-url", "HERE"], ["hessfig.whl"]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the wheel's content, built from an sdist of a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    # From the sdist; it compares with one from the sources.
    _, wheel = check_wheel.build(folder)
    pip("install", "--target", folder / "site", wheel)
    return folder / "site"


def pip(command, *arguments):
    words = [
        sys.executable,
        "-m",
        "pip",
        command,
        "--quiet",
        "--no-deps",
        *map(str, arguments),
    ]
    subprocess.run(words, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_configuration_and_data_are_inside(installed, name):
    assert (installed / name).is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("run", "dry_run=true"), ("run", "--help"), ("status", "sweep=depth")]
)
def test_it_works_from_another_folder(installed, tmp_path, arguments):
    """Without -S the editable install of the tests would lend the wheel what it lacks."""
    path = os.pathsep.join([str(installed), *check_wheel.lent()])
    found = subprocess.run(
        [sys.executable, "-S", installed / "bin/hessfig", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "sigma" in found.stdout
    assert list(tmp_path.iterdir()) == []
