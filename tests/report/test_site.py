"""The report as a site and as one file: whole HTML, live links, everything said, nothing run."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from hessfig.cli.main import main
from tests.analysis.synthetic import SIGMA, make_table
from tests.report.html import dead_links, read
from tests.report.outputs import CAUSE, HOSTILE, report, written

pytestmark = pytest.mark.long
PAGES = [
    *("index.html", "paper.html", "theory.html", "claims.html"),
    *(f"sweeps/{name}.html" for name in ("sigma", "depth", "mine", "mlp", "layernorm")),
]


def test_there_is_a_page_a_sweep_and_no_other(site: Path) -> None:
    assert sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html")) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_whole_and_their_links_resolve(site: Path, name: str) -> None:
    page = read(site / name)
    assert page.faults == []
    assert dead_links(site / name, page) == []
    assert page.tags.count("h1") == page.tags.count("main") == page.tags.count("title") == 1


@pytest.mark.parametrize("name", PAGES)
def test_what_tables_say_is_text(site: Path, name: str) -> None:
    """A variant that is HTML makes no picture, a note of a statement no italics, and nothing runs code."""
    page = read(site / name)
    assert not {"i", "b"} & set(page.tags)
    assert all(image["src"] != "x" for image in page.images)


def test_hostile_names_are_shown_as_they_are(site: Path) -> None:
    assert HOSTILE.partition("=")[2] in read(site / "sweeps/mine.html").text
    assert CAUSE in read(site / "sweeps/depth.html").text


def test_pictures_say_their_finding_and_have_a_small_copy(site: Path) -> None:
    images = read(site / "sweeps/sigma.html").images
    assert images and all("W_V H_o 1.9" in (one["alt"] or "") or "W_V H_o 2" in (one["alt"] or "") for one in images)
    assert "predicted 2" in (images[0]["alt"] or "")
    assert {"fig3a.png", "fig3a.svg", "fig3a.csv", "small"} <= {path.name for path in (site / "sweeps/sigma").iterdir()}
    assert (site / "sweeps/sigma/small/fig3a.png").stat().st_size < (site / "sweeps/sigma/fig3a.png").stat().st_size


def test_a_sweep_says_what_it_is(site: Path) -> None:
    text = " ".join(read(site / "sweeps/depth.html").text.split())
    assert "2 cells are missing" in text
    assert f"2 cells:{CAUSE}" in text and "measured since" not in text
    assert "model.n_layers=[1,2] (preset: [1,2,3,4,5])" in text
    assert "How to read it. On a sheet, a straight line" in text
    assert "depth-data" in text and "W_Q H_o 6.0" in text


def test_a_command_of_the_manifest_is_quoted_anew(site: Path) -> None:
    """Whoever pastes it runs hessfig, and nothing else."""
    assert json.loads((site / "sweeps/depth.json").read_text())["command"] == "hessfig run 'sweep=depth;' echo harm"


def test_departures_become_the_command(site: Path) -> None:
    found = json.loads((site / "sweeps/sigma.json").read_text())
    assert found["departures"] == [
        {"key": "model.d_model", "made": "32", "usual": "128"},
        {"key": "seeds", "made": "3", "usual": "20"},
    ]
    assert found["command"].startswith("hessfig run sweep=sigma model.d_model=32 seeds=3 output_dir=")


def test_an_older_folder_says_what_to_do(site: Path) -> None:
    text = " ".join(read(site / "sweeps/layernorm.html").text.split())
    assert (
        "written by hessfig 0.0.7" in text
        and "is not a manifest of this version" in text
        and "hessfig run sweep=layernorm" in text
    )


def test_a_sweep_that_was_begun_names_the_command(site: Path) -> None:
    assert "no table yet; cells stored: 1" in read(site / "sweeps/mlp.html").text
    assert "hessfig run sweep=mlp" in read(site / "index.html").text


def test_the_front_page_shows_what_is_there_and_then_what_is_not(site: Path) -> None:
    """The paper's figures first; no tile stands for a figure whose sweep was not measured."""
    text = read(site / "index.html").text.partition("The paper")[2]
    names = ("Figure 3a", "Figure 6", "Your own", "What is not here yet", "Figure 1: not measured yet", "Figure 5b")
    places = [text.index(name) for name in names]
    assert places == sorted(places)
    assert "not measured" not in text.partition("What is not here yet")[0]


def test_a_changed_network_says_so_and_nothing_published_stands_beside_it(site: Path) -> None:
    text = " ".join(read(site / "sweeps/sigma.html").text.split())
    about = "Figure 3a: one layer, softmax, no LayerNorm, cross-entropy"
    assert f"(preset: {about}) with model.d_model=32, seeds=3" in text
    assert "(changed: width 32)" in text
    assert json.loads((site / "sweeps/sigma.json").read_text())["paper"]["verdict"] == "not compared"
    assert pd.read_csv(site / "sweeps/sigma/slopes.csv")["published"].isna().all()
    assert "±" in text.partition("Result: slopes")[2].partition("Verdict")[0]


def test_claims_stand_in_columns_that_a_page_holds(site: Path) -> None:
    text = " ".join(read(site / "claims.html").text.split())
    assert "depth counts (a paper)" in text and "0.5 [0.4, 0.6]" in text
    assert list(pd.read_csv(site / "tables/claims.csv"))[:2] == ["id", "verdict"]
    heads = (site / "claims.html").read_text().partition("<thead>")[2].partition("</thead>")[0]
    assert heads.count("<th ") == 6


def test_along_steps_no_slopes_are_printed(tmp_path: Path) -> None:
    table = make_table(seeds=2, sigma=None, steps=[1, 10, 100, 1000])
    written(tmp_path, table.assign(sweep="training"), "sweep=training")
    assert report(tmp_path) == 0
    text = " ".join(read(tmp_path / "report/sweeps/training.html").text.split())
    assert "curves along steps are no power laws" in text and "Result: slopes" not in text


def test_figures_drawn_by_hand_are_on_their_sweeps_page(tmp_path: Path) -> None:
    """Those that hessfig plot drew beside the shipped ones; a record that was spoilt is named, and steers nothing."""
    written(tmp_path, make_table(seeds=2, sigma=[0.1, 1.0, 2.0]), "sweep=sigma", "seeds=2")
    words = ["figure.name=mine", "figure.sweep=sigma", "figure.layout=bars", "figure.formats=[png]"]
    with pytest.raises(SystemExit, match="0"):
        main(["plot", *words, f"output_dir={tmp_path}"])
    record = tmp_path / "sigma" / "drawn" / "mine.json"
    (record.parent / "spoilt.json").write_text(record.read_text().replace("bars", "lines"))
    (record.parent / "odd.json").write_text(
        json.dumps({**json.loads(record.read_text()), "checksum": "", "windows": 5, "command": "reboot"})
    )
    assert report(tmp_path) == 0
    page = read(tmp_path / "report/sweeps/sigma.html")
    assert {"sweep-sigma-figure-3a", "sweep-sigma-figure-mine"} <= set(page.ids)
    assert any("figmine" in str(image["src"]) for image in page.images)
    assert "spoilt.json cannot be read" in page.text and "odd.json cannot be read" in page.text
    assert "hessfig plot figure.name=mine" in page.text and "reboot" not in page.text


def test_numbers_are_those_of_slopes_csv(site: Path) -> None:
    slopes = pd.read_csv(site / "sweeps/sigma/slopes.csv")
    said = pd.DataFrame(json.loads((site / "sweeps/sigma.json").read_text())["slopes"])
    assert slopes["slope"].to_numpy() == pytest.approx(said["slope"].astype(float).to_numpy(), nan_ok=True)
    assert f"{slopes['slope'].dropna().iloc[0]:.2f}" in read(site / "sweeps/sigma.html").text


def test_json_is_of_numbers_and_null_only(site: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    for path in site.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)


def test_ledgers_are_there(site: Path) -> None:
    assert "Theorem 3.1, p. 4" in read(site / "theory.html").text
    assert "depth-data" in read(site / "claims.html").text
    assert "Rules" in read(site / "claims.html").text and "a rule" in read(site / "claims.html").text
    assert "depth counts" in read(site / "sweeps/depth.html").text
    assert "depth counts" not in read(site / "sweeps/sigma.html").text
    assert json.loads((site / "report.json").read_text())["statements"] == {"yes": 1, "no": 1}


def test_the_paper_stands_on_one_page(site: Path) -> None:
    page = read(site / "paper.html").text
    assert "Block norms against sigma, no LayerNorm" in page and "against theory" not in page
    assert "published" not in page.split("Figure 6")[0].split("Figure 3a")[1]  # another network than the published one


def test_published_slopes_stand_beside_those_of_the_same_network(tmp_path: Path) -> None:
    written(tmp_path, make_table(sigma=SIGMA, seeds=3), "sweep=sigma", command="hessfig run sweep=sigma")
    assert report(tmp_path) == 0
    words = read(tmp_path / "report" / "paper.html").text
    assert "published" in words and "6.00 ± 0.01" in words and "W_Q H_f" in words


def test_one_page_of_results_is_a_pdf_that_replaces_only_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, make_table(sigma=SIGMA, seeds=3), "sweep=sigma", command="hessfig run sweep=sigma")
    for _ in range(2):
        assert report(tmp_path, "format=pdf") == 0
    made = tmp_path / "results-at-a-glance.pdf"
    assert made.read_bytes().startswith(b"%PDF") and "results-at-a-glance.pdf" in capsys.readouterr().out
    made.write_bytes(b"%PDF mine")
    assert report(tmp_path, "format=pdf") == 2 and made.read_bytes() == b"%PDF mine"
    assert "holds what hessfig did not write" in capsys.readouterr().err
    assert report(tmp_path, "format=csv") == 2


def test_one_page_of_no_results_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path, "format=pdf") == 2 and not any(tmp_path.iterdir())
    assert "hessfig run sweep=sigma" in capsys.readouterr().err


def test_one_file_holds_everything(site: Path) -> None:
    assert report(site.parent, "single_file=true") == 0
    path = site.parent / "report.html"
    page = read(path)
    assert page.faults == [] and dead_links(path, page) == []
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert set(read(site / "index.html").ids) <= set(page.ids)


def test_the_same_outputs_make_the_same_bytes(site: Path, tmp_path: Path) -> None:
    before = {path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert report(site.parent) == 0
    after = {path.relative_to(site): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert before == after
