"""The house plan as a test: which module may import which, one door a library, size, and clean committed files."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(path for path in (ROOT / "hessfig").rglob("*.py"))
MEASURING = ("config", "rng", "tasks", "models", "curvature", "sweep")
READING = ("analysis", "figures")
DOORS = {
    "curvlinops": ("hessfig.curvature.operators",),
    "transformer_lens": ("hessfig.models.",),
    "hydra": ("hessfig.config.", "hessfig.verbs", "hessfig.overrides"),
    "omegaconf": ("hessfig.config.", "hessfig.verbs", "hessfig.overrides"),
    "matplotlib": ("hessfig.figures.",),
}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def wing_of(module: str) -> str:
    return module.split(".")[1] if module.startswith("hessfig.") else ""


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_arrows_point_one_way(path: Path) -> None:
    module, wing = name_of(path), wing_of(name_of(path))
    for imported in imports_of(path):
        target = wing_of(imported)
        if wing in READING:
            assert target not in MEASURING and imported.split(".")[0] != "torch", (module, imported)
        if wing in MEASURING:
            assert target not in READING, (module, imported)
            allowed = MEASURING.index(target) <= MEASURING.index(wing) if target in MEASURING else True
            assert allowed, (module, imported)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_each_library_has_one_door(path: Path) -> None:
    for imported in imports_of(path):
        doors = DOORS.get(imported.split(".")[0])
        assert doors is None or name_of(path).startswith(doors), imported


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_say_what_they_are_for_and_stay_small(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))
    assert len(path.read_text().splitlines()) <= 210


def test_committed_files_name_no_machine() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    pattern = re.compile("/" + "work/|/" + "root/|/home" + "/[a-z]|pythonhosted|https?://" + "pypi")
    texts = [ROOT / name for name in tracked if Path(name).suffix not in (".png", ".pdf")]
    assert not [path.name for path in texts if path.exists() and pattern.search(path.read_text())]


def test_make_help_lists_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert targets and all(f"make {target} " in shown for target in targets)
