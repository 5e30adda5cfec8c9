"""The house plan as a test: which module may import which, one door a library, size, and clean committed files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted((ROOT / "hessfig").rglob("*.py"))
MEASURING = ("terms", "record", "config", "rng", "tasks", "models", "curvature", "measurements", "sweep")
READING = ("analysis", "figures")
LIGHT = (
    "hessfig.terms",
    "hessfig.predictions.growth_rates",
    "hessfig.predictions.architecture",
    "hessfig.predictions.monomials",
)
DOORS = {
    "curvlinops": ("hessfig.curvature.products.curvlinops",),
    "transformer_lens": ("hessfig.models.",),
    "hydra": ("hessfig.config.compose",),
    "omegaconf": ("hessfig.config.compose",),
    "matplotlib": ("hessfig.figures.",),
}
MACHINE = re.compile(
    "/" + "work/|/" + "root/|/home" + "/[a-z]|/" + "tmp/|python" + "hosted|https?://" + "pypi"
)


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


every_module = pytest.mark.parametrize("path", MODULES, ids=name_of)


@every_module
def test_arrows_of_the_measuring_wing_point_one_way(path: Path) -> None:
    wing = wing_of(name_of(path))
    for imported in imports_of(path) if wing in MEASURING else ():
        target = wing_of(imported)
        assert target not in (*READING, "theory"), imported
        assert target not in MEASURING or MEASURING.index(target) <= MEASURING.index(wing), imported


@every_module
def test_the_reading_wing_needs_only_the_table(path: Path) -> None:
    wing = wing_of(name_of(path))
    for imported in imports_of(path) if wing in READING else ():
        assert imported.partition(".")[0] != "torch", imported
        assert wing_of(imported) not in MEASURING[1:], imported
        assert wing_of(imported) != "theory" or imported in LIGHT, imported
        assert (wing, wing_of(imported)) != ("analysis", "figures"), imported


@every_module
def test_theory_knows_nothing_of_the_runner(path: Path) -> None:
    for imported in imports_of(path) if wing_of(name_of(path)) == "theory" else ():
        assert wing_of(imported) in ("", "theory", "predictions", "terms", "rng", "errors", "files"), imported


@pytest.mark.parametrize("module", LIGHT)
def test_vocabulary_and_predictions_need_the_standard_library_only(module: str) -> None:
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    for imported in imports_of(path):
        assert imported in LIGHT or imported.partition(".")[0] in sys.stdlib_module_names, imported


@every_module
def test_each_library_has_one_door(path: Path) -> None:
    for imported in imports_of(path):
        doors = DOORS.get(imported.partition(".")[0])
        assert doors is None or name_of(path).startswith(doors), imported


@every_module
def test_modules_say_what_they_are_for_and_stay_small(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))
    assert len(path.read_text().splitlines()) <= 200


def test_every_package_is_shipped() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = {name_of(path.parent / "__init__.py") for path in MODULES if path.stem == "__init__"}
    assert set(listed) == found | {"hessfig.conf", "hessfig.data"}


def test_there_is_no_drawer_for_everything() -> None:
    assert not [path for path in MODULES if path.stem in ("utils", "helpers", "misc", "common")]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).exists()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: nothing is committed")
def test_committed_files_name_no_machine() -> None:
    found = {
        path.name: MACHINE.findall(path.read_text(errors="ignore")) for path in tracked() if _is_text(path)
    }
    assert {name: hits for name, hits in found.items() if hits} == {}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: nothing is committed")
def test_no_result_is_committed() -> None:
    names = [path.relative_to(ROOT) for path in tracked()]
    assert not [
        name for name in names if name.parts[0] in ("outputs", "multirun", "build") or name.suffix == ".log"
    ]


def test_make_alone_lists_every_target() -> None:
    shown = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^([a-z%-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"figures", "figure-%", "test", "test-slow", "lint", "slopes", "check", "clean", "help"} <= set(
        targets
    )
    assert all(f"make {target} " in shown for target in targets)


def test_constraints_hold_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert all(
        line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.+]*", line) for line in lines
    )


def _is_text(path: Path) -> bool:
    return path.suffix not in (".png", ".pdf", ".npz")
