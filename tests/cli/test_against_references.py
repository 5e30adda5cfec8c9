"""`hessfig compare` from the command line: every figure at once, one sweep, what it says, writes and refuses."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hessfig.config.enums import Published
from hessfig.config.presets import shipped_figures
from hessfig.figures.layouts import overlay
from hessfig.figures.parts.page import Paper
from hessfig.register import REGISTER
from scripts.published_values import write_values
from tests.analysis.authors import as_reference, file_name, publish, settings, toy_table, write_toy_sweep
from tests.analysis.synthetic import write_sweep
from tests.conftest import Answer, Cli

PUBLISHED = {
    **{"3a": "sigma", "3b": "layernorm", "5a": "linear_axis_short", "5b": "linear_axis"},
    **{"6": "depth", "7": "softmax", "8": "mlp"},
}


@pytest.fixture
def svg_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlays are drawn in one format: these tests are about words."""
    monkeypatch.setattr(overlay, "Paper", lambda: Paper(formats=("svg",)))


def files_under(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and REGISTER not in path.parts
    }


def lines_of(answer: Answer, figure: str) -> list[str]:
    return [line for line in answer.out.splitlines() if line.startswith(f"figure {figure} ")]


def convert(folder: Path) -> None:
    """Write the result files in folder/results as CSV files into folder/published."""
    write_values(folder / "results", folder / "published")


def change(path: Path, edit: Callable[[Any], object]) -> None:
    """Rewrite a result file after `edit` changed its content in place."""
    content = pickle.loads(path.read_bytes())
    edit(content)
    path.write_bytes(pickle.dumps(content))


def test_the_figures_that_have_numbers_are_those_of_the_configuration() -> None:
    found = {figure.name: figure.sweep for figure in shipped_figures() if figure.published == Published.numbers}
    assert found == PUBLISHED


@pytest.mark.usefixtures("svg_alone")
@pytest.mark.long
def test_every_figure_gets_one_verdict(cli: Cli, tmp_path: Path) -> None:
    for sweep in PUBLISHED.values():
        write_toy_sweep(sweep, tmp_path / "outputs")
        publish(sweep, tmp_path / "results", factor=3.0 if sweep == "mlp" else 1.0)
    convert(tmp_path)
    answer = cli("compare", "reference=published")
    assert answer.code == 0, answer.err
    for figure, sweep in PUBLISHED.items():
        (line,) = lines_of(answer, figure)
        expected = "differs" if figure == "8" else "agrees"
        assert line.startswith(f"figure {figure} ({sweep}) against the published values: {expected}: "), line
    assert "figures 1 and 4: skipped: published as pictures" in answer.out
    assert len([line for line in answer.out.splitlines() if not line.startswith(" ")]) == len(PUBLISHED) + 1
    for path in ("outputs/mlp/comparison_curves.csv", "outputs/figures/figcompare_softmax_depth2.{svg,csv}"):
        assert path in answer.out
    written = files_under(tmp_path / "outputs")
    assert {f"{sweep}/comparison_curves.csv" for sweep in PUBLISHED.values()} <= written
    assert {"figures/figcompare_sigma.csv", "figures/figcompare_softmax_depth2.svg"} <= written


@pytest.mark.usefixtures("svg_alone")
@pytest.mark.long
def test_figures_without_table_or_files_are_skipped_with_the_reason(cli: Cli, tmp_path: Path) -> None:
    for sweep in ("sigma", "softmax"):
        write_toy_sweep(sweep, tmp_path / "outputs")
    publish("sigma", tmp_path / "results")
    convert(tmp_path)
    answer = cli("compare", "reference=published")
    assert answer.code == 0
    assert "agrees" in lines_of(answer, "3a")[0]
    assert "skipped: outputs/layernorm/table.csv is missing: hessfig run sweep=layernorm" in answer.out
    (chain,) = lines_of(answer, "7")
    assert (
        "skipped: published has no values of this sweep; looked for: softmax.csv; found: depth.csv and 1 more" in chain
    )
    assert not (tmp_path / "outputs/softmax/comparison.csv").exists()


@pytest.mark.usefixtures("svg_alone")
@pytest.mark.long
def test_a_named_sweep_is_compared_alone(cli: Cli, tmp_path: Path) -> None:
    for sweep in ("sigma", "mlp"):
        write_toy_sweep(sweep, tmp_path / "outputs")
        publish(sweep, tmp_path / "results")
    convert(tmp_path)
    answer = cli("compare", "sweep=mlp", "reference=published")
    assert answer.code == 0
    assert "figure 8 (mlp) against the published values: agrees" in answer.out and "mean shift" in answer.out
    assert "3a" not in answer.out
    assert not (tmp_path / "outputs/sigma/comparison.csv").exists()


@pytest.mark.usefixtures("svg_alone")
@pytest.mark.long
def test_lost_numbers_are_named_below_their_figure(cli: Cli, tmp_path: Path) -> None:
    write_toy_sweep("softmax", tmp_path / "outputs")
    publish("softmax", tmp_path / "results")

    def lose(content: Any) -> None:
        content[0][0][0], content[0][1][0], content[1][2][19] = (np.float32(0), np.float32("nan"), np.float32("inf"))

    change(tmp_path / "results" / file_name("softmax", 2, "W_V", "H_o"), lose)
    convert(tmp_path)
    answer = cli("compare", "sweep=softmax", "reference=published")
    assert "figure 7 (softmax) against the published values: agrees" in answer.out
    assert "  left out of the published values at n_layers=2: " in answer.out
    for words in ("1 zero (sigma 0.1 to 0.1)", "1 NaN (sigma 0.1 to 0.1)", "1 infinite (sigma 1 to 1)"):
        assert words in answer.out


@pytest.mark.usefixtures("svg_alone")
@pytest.mark.long
def test_a_toy_model_is_called_one(cli: Cli, tmp_path: Path) -> None:
    write_sweep(toy_table("sigma"), tmp_path / "outputs", settings=settings("sigma", "model.d_model=32"))
    publish("sigma", tmp_path / "results")
    convert(tmp_path)
    answer = cli("compare", "reference=published")
    assert "  measured with model.d_model=32 (the paper: 128)" in answer.out


@pytest.mark.long
def test_another_run_is_called_by_its_folder_and_every_path_written_is_printed(cli: Cli, tmp_path: Path) -> None:
    write_toy_sweep("sigma", tmp_path / "outputs")
    again = toy_table("sigma").assign(value=lambda table: as_reference(table, seed=3)["value"])
    again["seed"] += 1000
    write_sweep(again[again["sigma"] > 0.02], tmp_path / "elsewhere", settings=settings("sigma"))
    before = files_under(tmp_path)
    answer = cli("compare", "sweep=sigma", "reference=elsewhere/sigma")
    assert answer.code == 0, answer.err
    assert "figure 3a (sigma) against the run in elsewhere/sigma: agrees: " in answer.out
    assert "  without a partner: 12 points of ours, 0 of the run in elsewhere/sigma" in answer.out
    assert "  one batch, shared by both sides" in answer.out
    assert "published" not in answer.out
    for name in files_under(tmp_path) - before:
        stem, _, ending = name.rpartition(".")
        assert f"{stem}." in answer.out and ending in answer.out, name


@pytest.mark.usefixtures("svg_alone")
@pytest.mark.long
def test_two_batches_are_allowed_for(cli: Cli, tmp_path: Path) -> None:
    write_toy_sweep("sigma", tmp_path / "outputs")
    again = toy_table("sigma").assign(value=lambda table: as_reference(table, seed=3)["value"])
    write_sweep(again, tmp_path / "elsewhere", settings=settings("sigma", "task.seed=5"))
    answer = cli("compare", "sweep=sigma", "reference=elsewhere/sigma/table.csv")
    assert "  two batches: their spread is allowed for (data/batch_spread.csv)" in answer.out


@pytest.mark.parametrize("sweep", ["../../evil", "..", "/evil"])
def test_a_sweeps_name_in_a_table_leads_nowhere(cli: Cli, tmp_path: Path, sweep: str) -> None:
    folder = write_sweep(toy_table("sigma"), tmp_path / "outputs", settings=None)
    text = (folder / "table.csv").read_text().replace("\nsigma,", f"\n{sweep},")
    (folder / "table.csv").write_text(text)
    publish("sigma", tmp_path / "results")
    convert(tmp_path)
    before = files_under(tmp_path.parent)
    answer = cli("compare", "sweep=sigma", "reference=published")
    assert answer.code == 2 and "name" in answer.err
    assert files_under(tmp_path.parent) == before


def test_what_a_foreign_file_says_cannot_steer_the_terminal(cli: Cli, tmp_path: Path) -> None:
    folder = write_toy_sweep("sigma", tmp_path / "outputs")
    evil = toy_table("sigma").assign(row="\x1b[2J[/x]", col="\x1b[2J[/x]", status="ok")
    evil["value"] = evil["value"].clip(lower=1e-9)
    write_sweep(evil.drop_duplicates(["part", "sigma", "seed"]), tmp_path / "elsewhere")
    answer = cli("compare", "sweep=sigma", "reference=elsewhere/sigma/table.csv")
    assert answer.code == 2 and "Traceback" not in answer.err
    assert "\x1b" not in answer.out + answer.err
    assert not list(folder.glob("comparison*"))


def test_a_folder_without_matching_files_says_what_it_holds(cli: Cli, tmp_path: Path) -> None:
    write_toy_sweep("sigma", tmp_path / "outputs")
    publish("mlp", tmp_path / "results")
    convert(tmp_path)
    before = files_under(tmp_path)
    for sweep in ([], ["sweep=sigma"]):
        answer = cli("compare", "reference=published", *sweep)
        assert answer.code == 2
        for words in ("no values of this sweep", "mlp.csv", "sigma.csv"):
            assert words in answer.err, answer.err
        assert files_under(tmp_path) == before


def test_without_any_table_the_sweeps_are_named(cli: Cli, tmp_path: Path) -> None:
    publish("sigma", tmp_path / "results")
    convert(tmp_path)
    answer = cli("compare", "reference=published")
    assert answer.code == 2
    assert "no figure has both a table" in answer.err and "hessfig run sweep=depth" in answer.err
    assert not (tmp_path / "outputs").exists()


@pytest.mark.parametrize("words", [(), ("sweep=sigma",), ("sweep=mlp",)])
def test_pickles_are_refused_with_the_script_that_reads_them(cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
    for sweep in ("sigma", "mlp"):
        write_toy_sweep(sweep, tmp_path / "outputs")
    (first, *_) = publish("sigma", tmp_path / "checkout/results")
    first.with_name("one.pickle").write_bytes(first.read_bytes())
    before = files_under(tmp_path)
    files = ["checkout/results/one.pickle"] if words else []
    for reference in ("checkout", "checkout/results", *files):
        answer = cli("compare", f"reference={reference}", *words)
        assert answer.code == 2 and "Traceback" not in answer.err
        assert "is a pickle" in answer.err and "python scripts/published_values.py" in answer.err, answer.err
    assert files_under(tmp_path) == before


@pytest.mark.long
def test_published_networks_are_compared_number_by_number(cli: Cli, tmp_path: Path) -> None:
    """A toy run stands in for the published values, one of its numbers changed, and one lost to float32."""
    words = ("sweep=sigma", "model.d_model=8", "task.batch_size=4", "grid.points=2", "seeds=2", "workers=1")
    assert cli("run", *words, "state=published", "estimator=published").code == 0
    table = pd.read_csv(tmp_path / "outputs" / "sigma" / "table.csv")
    values = table.rename(columns={"row": "block"}).assign(repeat=table["seed"] - 1234)
    values = values[["block", "part", "layer", "repeat", "sigma", "value"]]
    place = values[(values["block"] == "W_Q") & (values["part"] == "H")].index
    values.loc[place[0], "value"] *= 1.002
    values.loc[place[1], "value"] = np.inf
    values.to_csv(tmp_path / "theirs.csv", index=False)
    answer = cli("compare", "sweep=sigma", "reference=theirs.csv")
    assert answer.code == 0
    line = next(line for line in lines_of(answer, "3a"))
    assert "not equal: 18 of 19 numbers within 0.0005 (relative), 18 within 1e-06; worst 0.002 (H of W_Q" in line
    assert "not compared: 1 overflowed in float32" in answer.out
    assert "not compared: 4 zero on both sides" in answer.out
    assert "the paper:" in answer.out and "draw" not in answer.out
    numbers = pd.read_csv(tmp_path / "outputs" / "sigma" / "numbers.csv")
    assert len(numbers) == 24
