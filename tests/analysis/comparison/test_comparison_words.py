"""What a comparison writes and says: files, figures, a table, a sentence, and no word that a reference is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from hessfig.analysis.comparison import against
from hessfig.analysis.comparison.against import Comparison
from hessfig.analysis.comparison.agreement import AgreementVerdict
from hessfig.errors import UserError
from hessfig.figures.layouts.overlay import draw_overlay
from tests.analysis.authors import as_reference
from tests.analysis.comparison.test_against import compare
from tests.analysis.synthetic import CONFIG, make_table, write_sweep


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(seeds=12, wander=0.0)


@pytest.mark.long
def test_run_reads_a_file_and_writes_points_curves_ratios_and_figure(tmp_path: Path, table: pd.DataFrame) -> None:
    folder = write_sweep(table, tmp_path)
    as_reference(table).drop(columns="num_layers").to_csv(tmp_path / "reference.csv", index=False)
    found = against.compare_folder(folder, tmp_path / "reference.csv")
    against.save_comparison(found, folder)
    draw_overlay(found, tmp_path / "figures")
    assert len(pd.read_csv(folder / "comparison.csv")) == 60
    assert len(pd.read_csv(folder / "comparison_curves.csv")) == 6
    assert len(pd.read_csv(folder / "comparison_ratios.csv")) == 10
    written = {path.name for path in (tmp_path / "figures").glob("[!.]*")}
    assert written == {f"figcompare_sigma.{kind}" for kind in ("pdf", "png", "svg", "csv")}
    console = Console(width=80, record=True)
    console.print(found.rich_table())
    assert "both are zero" in console.export_text()


def of_other_seeds(**options: Any) -> pd.DataFrame:
    """Return a table of other networks: nothing in it is of a seed that make_table has."""
    table = make_table(**options)
    return table.assign(seed=table["seed"] + 1000)


@pytest.mark.long
def test_the_table_of_another_run_is_a_reference_and_nothing_is_called_published(tmp_path: Path) -> None:
    ours = write_sweep(make_table(seeds=12, wander=0.1), tmp_path / "ours")
    theirs = write_sweep(of_other_seeds(seeds=12, wander=0.2), tmp_path / "theirs")
    found = against.compare_folder(ours, theirs / "table.csv")
    against.save_comparison(found, ours)
    assert isinstance(found, Comparison)
    assert len(found.points) == 60 and found.reference == f"the run in {theirs}"
    pages = draw_overlay(found, tmp_path / "figures")
    console = Console(width=200, record=True)
    console.print(found.rich_table())
    texts = [console.export_text(), found.sentence(), *found.notes()]
    texts += [path.read_text() for path in [*(ours.glob("comparison*.csv")), *pages] if path.suffix == ".csv"]
    assert not [text for text in texts if "published" in text]


@pytest.mark.long
def test_two_runs_share_a_batch_if_their_tasks_are_the_same(tmp_path: Path) -> None:
    settings = {**CONFIG, "task": {**CONFIG["task"], "seed": 7}}
    ours = write_sweep(make_table(seeds=12), tmp_path / "ours")
    same = write_sweep(of_other_seeds(seeds=12), tmp_path / "same")
    other = write_sweep(of_other_seeds(seeds=12), tmp_path / "other", settings=settings)
    unknown = write_sweep(of_other_seeds(seeds=12), tmp_path / "unknown", settings=None)
    found = [against.compare_folder(ours, folder / "table.csv") for folder in (same, other, unknown)]
    assert [one.batch_scale for one in found if isinstance(one, Comparison)] == [0.0, 2.0, 2.0]


@pytest.mark.parametrize("name", ["../../evil", "..", "", "a/b", "-rf", "a\x1b[2J", "$(reboot)"])
def test_a_sweep_that_is_no_name_reaches_no_file_name(table: pd.DataFrame, name: str) -> None:
    with pytest.raises(UserError, match="is no name") as caught:
        compare(table.assign(sweep=name), as_reference(table))
    assert "\x1b" not in str(caught.value)


def test_one_repeat_decides_nothing() -> None:
    alone = make_table(seeds=1)
    found = compare(alone, as_reference(alone))
    assert found.verdict == AgreementVerdict.undecided
    assert "no point has standard errors on both sides" in found.sentence()


def test_the_sentence_says_what_the_verdict_rests_on(table: pd.DataFrame) -> None:
    agreed = compare(table, as_reference(table)).sentence()
    assert agreed.startswith("agrees: ") and "would have been found" in agreed
    reference = as_reference(table, factor=2.0)
    is_zero = (reference["block"] == "W_V") & (reference["part"] == "H_f")
    sentence = compare(table, reference.assign(value=reference["value"].where(~is_zero, 1e-3))).sentence()
    for words in ("differs: ", "5 curves outside", "zero on one side only: H_f of W_V in layer 1/1"):
        assert words in sentence


@pytest.mark.long
def test_names_of_a_users_own_weights_are_compared_and_drawn(tmp_path: Path) -> None:
    names = {"W_Q": "blocks.0[/x] $a^b", "W_V": "all"}
    mine = make_table(seeds=8).assign(row=lambda t: t["row"].map(names), col=lambda t: t["col"].map(names), status="ok")
    found = compare(mine, as_reference(mine))
    assert set(found.curves["block"]) == set(names.values())
    console = Console(width=120, record=True)
    console.print(found.rich_table())
    assert "blocks.0[/x] $a^b" in console.export_text()
    assert all(path.exists() for path in draw_overlay(found, tmp_path))
