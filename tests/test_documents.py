"""The documents are true: the files they show are written, the commands they show are run, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import Answer
from tests.test_architecture import tracked

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(?:`(?P<file>[^`\n]+)`\n)?```(?P<language>\w*)\n(?P<text>.*?)```", re.DOTALL)
Cli = Callable[..., Answer]


def sections(page: str) -> dict[str, list[re.Match[str]]]:
    """Return the code blocks of a page by the heading they stand under."""
    pieces = re.split(r"^## (.+)$", (ROOT / page).read_text(), flags=re.MULTILINE)
    return {title: list(BLOCK.finditer(body)) for title, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def write_files(page: str, folder: Path) -> None:
    for blocks in sections(page).values():
        for block in blocks:
            if block["file"] and block["language"] in ("yaml", "python"):
                path = folder / block["file"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(block["text"])


def run(command: str, cli: Cli, folder: Path) -> str:
    """Run one line of a document as its reader would (hessfig in this process: its imports are slow)."""
    import shlex

    words = shlex.split(command)
    if words[0] == "hessfig":
        answer = cli(*words[1:])
        assert answer.code == 0, answer.err
        return answer.out
    assert words[0] == "python"
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder / "my")]))
    found = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("title", sections("docs/extending.md"))
def test_what_extending_shows_works(
    title: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    write_files("docs/extending.md", tmp_path)
    for block in sections("docs/extending.md")[title]:
        for command in block["text"].splitlines() if block["language"] == "sh" else ():
            run(command, cli, tmp_path)
    outcomes = {
        "A sweep, and its figure": _width,
        "A quantity": _quantities,
        "A network": _network,
        "An ablation": _gate,
    }
    outcomes.get(title, lambda folder: None)(tmp_path)


def _width(folder: Path) -> None:
    table = pd.read_csv(folder / "outputs/width/table.csv")
    assert set(table["variant"]) == {f"model.d_model={width}" for width in (4, 8, 16)}
    assert (folder / "outputs/figures/figwidth.png").is_file()
    slopes = pd.read_csv(folder / "outputs/width/slopes.csv")
    assert set(slopes["num_points"]) <= {0, 3} and set(slopes["prediction"]) == {"unknown"}


def _quantities(folder: Path) -> None:
    table = pd.read_csv(folder / "outputs/width/table.csv")
    assert set(table["quantity"]) == {"frobenius", "largest_entry"}
    wide = table.pivot_table(index=["variant", "row", "part", "seed"], columns="quantity", values="value")
    assert (wide["largest_entry"] <= wide["frobenius"] * (1 + 1e-12)).all()
    lines = (folder / "my/largest_entry.py").read_text().splitlines()
    assert len(lines) < 40


def _network(folder: Path) -> None:
    table = pd.read_csv(folder / "outputs/network/table.csv")
    assert set(table["row"]) == {"filters", "readout"} and set(table["quantity"]) == {"frobenius", "trace"}
    assert list((folder / "outputs/figures").glob("fignetwork*.png"))


def _gate(folder: Path) -> None:
    slopes = pd.read_csv(folder / "outputs/gate/slopes.csv")
    assert {name.rpartition("=")[2] for name in slopes["variant"]} == {"softmax", "sigmoid"}
    assert list((folder / "outputs/figures").glob("figgate*.png"))


KIND = '''
"""A network of two weights: one file is one kind."""
from hessfig.models.protocol import Kind, Layout, Weight

def layout(config):
    size = config.model.d_model
    return Layout((Weight("A", "first.weight", 12 * size, 1), Weight("B", "second.weight", 12 * size, 2)))

def skeleton(config):
    from torch import nn
    import torch

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Embedding(12, config.model.d_model)
            self.second = nn.Linear(config.model.d_model, 12, bias=False)

        def forward(self, tokens):
            return self.second(torch.tanh(self.first(tokens)))[:, 3:5]

    return Two()

KIND = Kind(layout=layout, skeleton=skeleton)
'''


def test_a_new_kind_of_network_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hessfig import models
    from hessfig.config import Config, EstimatorConfig, Method, ModelConfig, TaskConfig
    from hessfig.models.registry import kinds
    from hessfig.sweep.measure import measure
    from hessfig.sweep.plan import Cell, Setup

    (tmp_path / "two.py").write_text(KIND)
    monkeypatch.setattr(models, "__path__", [*models.__path__, str(tmp_path)])
    assert "two" in kinds()
    config = Config(
        model=ModelConfig(kind="two", d_model=4),
        task=TaskConfig(digits=1, batch_size=3),
        estimator=EstimatorConfig(Method.dense),
        blocks="all",
        quantities=["frobenius", "trace"],
    )
    setup = Setup("", config)
    assert [str(block) for block in setup.blocks] == ["(A, A) of layer 1", "(B, B) of layer 2"]
    rows = measure(Cell(setup, 0.3, 1)).rows
    assert {row["status"] for row in rows} == {"ok"} and all(row["value"] >= 0 for row in rows)
    probed = measure(
        Cell(Setup("", Config(**{**vars(config), "estimator": EstimatorConfig(num_probes=6)})), 0.3, 1)
    )
    assert all(
        abs(p["value"] / r["value"] - 1) < 1 for p, r in zip(probed.rows, rows, strict=True) if r["value"]
    )


@pytest.mark.usefixtures("workers")
def test_the_readmes_way_for_ones_own_network(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    factory, commands, program = sections("README.md")["Your own network"]
    (tmp_path / "mynet.py").write_text(factory["text"])
    for command in commands["text"].splitlines():
        run(command, cli, tmp_path)
    assert list((tmp_path / "outputs/figures").glob("fignetwork*.png"))
    (tmp_path / "program.py").write_text(program["text"])
    assert "frob" not in run("python program.py", cli, tmp_path)


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/extending.md", "docs/theory.md"])
def test_files_a_page_names_are_there(page: str) -> None:
    """Paths in code marks: of the package where it names no folder of the repository."""
    named = re.findall(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|yaml|md)|(?:[\w.-]+/)+)`", (ROOT / page).read_text())
    mine = {"my", "outputs", "largest_entry.py", "mynet.py", "report.md"}
    there = {path.relative_to(ROOT).as_posix() for path in tracked()}
    folders = {parent.as_posix() for name in there for parent in Path(name).parents}
    missing = [name for name in named if not mine & set(Path(name).parts)]
    missing = [
        name
        for name in missing
        if not any(f"/{one}".endswith(f"/{name.rstrip('/')}") for one in there | folders)
    ]
    assert len(named) > 0 and not missing
