"""The ledger of claims on disk: every claim judged, its files and tables, what is missing, and bad input."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pandas as pd
import pytest
from rich.markup import escape

import hessfig
from hessfig.analysis.claims import ledger
from hessfig.analysis.claims.ledger import all_claims, claim_of, judge_claims
from hessfig.analysis.presented import between_marks, marked
from hessfig.config.compose.job import compose
from hessfig.config.presets import choices
from hessfig.errors import UserError
from scripts.pages import claims as claims_page
from tests.analysis import claim_tables as tables
from tests.analysis.synthetic import write_sweep
from tests.cli.test_commands import imported
from tests.conftest import Cli

SCALES = ("scale in the source", "scale here")


def none(folder: Path, sweep: str) -> list[str]:
    del folder, sweep
    return []


def write_softmax(outputs: Path) -> Path:
    """Write the table of a claim that holds; return its folder."""
    return write_sweep(tables.softmax(3.0, 0.0, 0.02).table.assign(sweep="eq5"), outputs)


def test_a_claim_is_judged_when_all_its_tables_are_there(tmp_path: Path) -> None:
    both = tables.depths(48.0, 0.0, 0.1)
    write_sweep(both.table.assign(sweep="softmax"), tmp_path)
    (lacking,) = judge_claims([claim_of("depth-data")], tmp_path, none)
    assert lacking.verdict == "follows from a theorem" and lacking.finding is None
    assert lacking.words == f"depth, mlp; hessfig run sweep=mlp output_dir={tmp_path}"
    write_sweep(both.other("mlp").table.assign(sweep="mlp"), tmp_path)
    (found,) = judge_claims([claim_of("depth-data")], tmp_path, none)
    assert found.verdict == "follows from a theorem" and found.finding == claim_of("depth-data").judged(both)


def test_both_files_say_the_same_and_nothing_else_is_written(tmp_path: Path) -> None:
    write_softmax(tmp_path)
    judged = judge_claims(all_claims().values(), tmp_path, lambda folder, sweep: ["model.d_model=4"])
    paths = ledger.write_ledger(judged, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["claims.csv", "claims.md", "eq5"]
    frame = pd.read_csv(paths[0], keep_default_na=False).set_index("id")
    assert list(frame.index) == list(all_claims()) and list(frame.columns) == ledger.COLUMNS[1:]
    one = frame.loc["softmax-heterogeneity"]
    assert (
        one["verdict"] == "follows from a theorem"
        and one["scale_here"].endswith("20 seeds")
        and float(one["effect"]) == pytest.approx(3.0, abs=0.1)
    )
    fewer = "eq5: 6 seeds where 20 were fixed with the rule"
    assert one["departures"] == f"eq5: model.d_model=4; {fewer}" and one["run"] == "" and one["seeds"] == "20"
    assert one["quoted"].startswith('"Removing the softmax') and one["quoted"].endswith("(section 4.1)")
    assert frame.loc["depth-data", "run"].count("hessfig run sweep=") == 2
    assert frame.loc["depth-data", "effect"] == "" and frame.loc["depth-data", "departures"] == ""
    text = paths[1].read_text()
    free = sum(bool(claim.follows) for claim in all_claims().values())
    assert f"{len(all_claims())} claims: " in text and f", {len(all_claims()) - free} not run. Of 0 verdicts" in text
    assert frame.loc["layers", "verdict"] == "not run"
    assert frame.loc["layers", "run"].startswith("hessfig run sweep=")
    assert all(f"## {name}\n" in text and f"(#{name})" in text for name in all_claims())
    assert "| softmax attention | 3" in text and "measured with eq5: model.d_model=4" in text
    assert all(line.count("|") - line.count("\\|") in (7,) for line in text.splitlines() if line.startswith("| "))


def test_tables_for_the_terminal(tmp_path: Path) -> None:
    write_softmax(tmp_path)
    judged = judge_claims([claim_of("softmax-heterogeneity"), claim_of("values-trained")], tmp_path, none)
    table = ledger.verdict_table(judged)
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["softmax-heterogeneity", "values-trained"]
    assert (
        cells[3] == ["[green]follows from a theorem[/]", "[dim]not run[/]"]
        and "sweep=values-trained" not in cells[5][1]
    )
    assert "sweep=curvature_flow" in cells[5][1] and cells[4][0].startswith("any self-attention layer")
    assert all(said.startswith(escape(one.claim.statement)) for said, one in zip(cells[5], judged, strict=True))
    words = list(ledger.explanation_table(judged[0]).columns[0].cells)
    named = ["claim", "source", "the source's words", "sweeps", "seeds", *SCALES, "rule", "effect", "verdict"]
    assert words == [*named, "note", "figure"]
    parts = ledger.part_table(judged[0])
    assert list(parts.columns[0].cells) == ["softmax attention", "linear attention"]
    assert list(parts.columns[3].cells) == ["6", "6"] and list(parts.columns[4].cells) == ["[green]holds[/]"] * 2


def test_every_claim_names_a_sweep_and_a_figure_that_are_shipped() -> None:
    for claim in all_claims().values():
        assert set(claim.sweeps) <= set(choices("sweep")), claim.id
        assert claim.figure in set(choices("figure")), claim.id


def test_the_pages_of_claims_are_written_from_the_records() -> None:
    for page, name, text in claims_page.parts(None):
        assert marked(page.read_text(), name, claims_page.COMMAND) == text, f"behind: run {claims_page.COMMAND}"
    text, rules = claims_page.PAGE.read_text(), claims_page.RULES.read_text()
    assert all(f"| {name} |" in text and f"- **{name}**: " in rules for name in all_claims())
    assert all(claim.effect_words for claim in all_claims().values())
    with pytest.raises(ValueError, match="lacks the marks"):
        between_marks("no marks", "rules", "", claims_page.COMMAND)


def test_the_summary_has_a_line_of_result_per_claim_and_names_parts_where_only_some_hold() -> None:
    numbers = [
        "| heads | with heads | a source | 0.7 | [0.6, 0.8] | holds only if | entries | 20 |",
        "| layers | in layers | a source | 2 | [1, 3] | holds | the effect is that of lower | 20 |",
        "| wide-key | with keys | source |  |  | not measured under this rule yet | `hessfig run sweep=wide_keys` |  |",
    ]
    details = [
        "| heads | entries | 0.7 | [0.6, 0.8] | holds |  |",
        "| heads | norm | -1 | [-2, 0] | does not hold |  |",
        "| layers | lower | 2 | [1, 3] | holds |  |",
    ]
    lines = claims_page.summary(*("\n".join(["head", "---", *rows]) for rows in (numbers, details))).splitlines()
    in_words = claim_of("heads").effect_words
    assert one_line(lines, "heads") == (
        f"| heads | with heads | holds only if | {in_words}: 0.7 [0.6, 0.8]; holds: entries; does not hold: norm |"
    )
    assert one_line(lines, "layers").endswith(
        " | holds | decades by which the value block of the top layer exceeds "
        "that of the first for sigma &lt;= 1: 2 [1, 3] |"
    )
    assert one_line(lines, "wide-key").endswith(" | not measured under this rule yet | `hessfig run sweep=wide_keys` |")


def test_a_measured_claim_is_written_anew_and_others_keep_their_numbers(tmp_path: Path) -> None:
    write_softmax(tmp_path)
    judged = claims_page.measured(tmp_path)
    line = "| wide-key | with keys | a source | 1 | [0, 2] | holds | of before | 20 |"
    lines = claims_page.verdicts(judged, f"head\n---\n{line}", tmp_path).splitlines()
    assert "| 1 | [0, 2] | holds | of before | 20 |" in one_line(lines, "wide-key")
    measured = one_line(lines, "softmax-heterogeneity")
    assert "| follows from a theorem | eq5, tab1; measured: holds (a gap of exponents) | 6 |" in measured
    assert "| not measured under this rule yet | `hessfig run sweep=depth` and " in one_line(lines, "layers")
    theorem = one_line(lines, "depth-data")
    assert "| follows from a theorem | " in theorem and "not measured under this rule yet: `hessfig run" in theorem
    assert claims_page.verdicts(judged, "\n".join(lines), tmp_path).splitlines() == lines
    part = "| layers | lower | 1 | [0, 2] | holds |  |"
    parts = claims_page.conditions(judged, f"head\n---\n{part}").splitlines()
    assert part in parts and any(one.startswith("| softmax-heterogeneity | linear attention | ") for one in parts)


def one_line(lines: list[str], name: str) -> str:
    (line,) = [line for line in lines if line.startswith(f"| {name} |")]
    return line


@pytest.mark.long
def test_the_record_fixes_the_seeds_that_the_sweeps_have_and_quotes_at_most_25_words() -> None:
    for claim in all_claims().values():
        assert claim.seeds == tuple(compose([f"sweep={sweep}"]).config.seeds for sweep in claim.sweeps), claim.id
        assert len(claim.words.split()) <= 25 and bool(claim.words) == bool(claim.where), claim.id
    files = Path(hessfig.__file__).parent.rglob("claims.toml")
    assert {name for file in files for name in tomllib.loads(file.read_text())} == set(all_claims())


def test_a_damaged_table_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such folder"):
        judge_claims(all_claims().values(), tmp_path / "nowhere", none)
    folder = write_softmax(tmp_path)
    (folder / "table.csv").write_text("sweep,variant\na,b\n")
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"lacks columns"):
        judge_claims(all_claims().values(), tmp_path, none)


def test_claims_are_judged_without_torch(tmp_path: Path) -> None:
    (write_softmax(tmp_path) / "manifest.json").unlink()
    modules = imported("claims", "claim=softmax-heterogeneity", f"output_dir={tmp_path}")
    assert "pandas" in modules and not modules & {"torch", "hydra", "transformer_lens", "matplotlib"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["claim=layer"], "did you mean 'layers'?"),
        (["claim="], "cannot read 'claim='"),
        (["claims"], "key=value"),
        (["clam=heads"], "did you mean 'claim'?"),
        (["seeds=3"], "this verb reads tables"),
        (["output_dir=nowhere"], "no such folder"),
        ([], "run a sweep first, for example hessfig run sweep=sigma"),
    ],
)
def test_bad_words_are_refused_and_nothing_is_written(words: list[str], said: str, cli: Cli, tmp_path: Path) -> None:
    answer = cli("claims", *words)
    assert answer.code == 2 and said in answer.err and "\n  remedy: " in answer.err
    assert list(tmp_path.rglob("*")) == []


def test_the_verb_judges_all_and_explains_one(cli: Cli, tmp_path: Path) -> None:
    write_softmax(tmp_path / "outputs")
    (tmp_path / "outputs/eq5/manifest.json").unlink()
    answer = cli("claims")
    assert answer.code == 0, answer.err
    assert "written: outputs/claims.csv, outputs/claims.md" in answer.out
    assert "hessfig run sweep=softmax && hessfig run sweep=mlp" in " ".join(answer.out.split())
    for name in ("claims.csv", "claims.md"):
        (tmp_path / "outputs" / name).unlink()
    one = cli("claims", "claim=softmax-heterogeneity")
    assert one.code == 0 and "hessfig plot figure=eq5" in one.out and "gap of exponents" in one.out
    assert not (tmp_path / "outputs/claims.csv").exists()
