"""The wheel holds the configuration and works from another folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import check_wheel

SHIPPED = [
    "hessfig/conf/config.yaml",
    "hessfig/conf/sweep/sigma.yaml",
    "hessfig/data/published_slopes.csv",
    "hessfig/data/CITATION.cff",
]
SHIPPED += ["hessfig/report/templates/index.html", "hessfig/report/assets/style.css"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, built from an sdist of a copy of the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    _, wheel = check_wheel.build(folder)  # from the sdist; it compares with one from the sources
    pip("install", "--target", folder / "site", wheel)
    return folder / "site"


def pip(command: str, *arguments: object) -> None:
    words = [sys.executable, "-m", "pip", command, "--quiet", "--no-deps", *map(str, arguments)]
    subprocess.run(words, check=True)


@pytest.mark.parametrize("name", SHIPPED)
def test_configuration_and_data_are_inside(installed: Path, name: str) -> None:
    assert (installed / name).is_file()


@pytest.mark.parametrize("arguments", [("run", "dry_run=true"), ("run", "--help"), ("status", "sweep=depth")])
def test_it_works_from_another_folder(installed: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
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
