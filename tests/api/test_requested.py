"""What figures are said to show: a sentence for each picture of the gallery, drawn above its own table alone."""

import json
import re
from pathlib import Path

import pytest

from hessfig.api.requested import figure_spec, paper_of
from hessfig.config.compose.job import compose
from hessfig.config.keys import in_manifest
from hessfig.config.presets import EVERY_PAGE, shipped_figures
from hessfig.figures.parts.page import Paper
from hessfig.record import MANIFEST
from tests.analysis.synthetic import make_table, write_sweep
from tests.daily import daily

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = re.compile(r"\(img/fig([^)]+)\.png\)")
LONGEST = 90
_IDENTIFIER = re.compile(r"\b[A-Za-z]\w*_\w+")


def test_every_picture_of_the_gallery_has_a_sentence():
    figures = {figure.name: figure for figure in shipped_figures()}
    shown = PICTURE.findall((DOCS / "gallery.md").read_text())
    assert len(shown) > 50
    for stem in shown:
        name = max(
            (name for name in figures if stem == name or stem.startswith(f"{name}_")),
            key=len,
        )
        page = stem.removeprefix(name).lstrip("_")
        seen = figures[name].seen
        assert page in seen or EVERY_PAGE in seen, stem


def test_sentences_are_short_and_without_names_of_the_code():
    for figure in shipped_figures():
        for words in figure.seen.values():
            assert 20 < len(words) <= LONGEST, words
            assert not _IDENTIFIER.search(words), words
            assert words[-1] != ".", words


def manifested(folder, *words, sweep="sigma", **counts):
    """Write outputs/sigma with a table and the manifest of a run with these words; return outputs."""
    settings = in_manifest(compose([f"sweep={sweep}", *words]).first)
    place = (
        write_sweep(make_table(seeds=2).assign(sweep=sweep), folder, settings=settings)
        / MANIFEST
    )
    place.write_text(
        json.dumps({**json.loads(place.read_text()), "missing_cells": 0, **counts})
    )
    return folder


def title(outputs, *words):
    spec = figure_spec(compose(["figure=3a", f"output_dir={outputs}", *words]))
    return spec.paper.labels("")["title"]


def test_a_figure_of_its_own_table_is_titled_by_its_sentence(tmp_path):
    (figure,) = [figure for figure in shipped_figures() if figure.name == "3a"]
    outputs = manifested(tmp_path)
    assert title(outputs, "figure.width=3.25", "style=icml") == figure.seen[EVERY_PAGE]
    assert title(outputs, "figure.title=Mine") == "Mine"
    assert title(outputs, "figure.title=''") == ""


@pytest.mark.parametrize(
    "words",
    daily(
        [["model.d_model=16"], ["seeds=3"], ["grid.high=1"], ["model.norm=pre"]],
        ["seeds=3"],
        ["model.norm=pre"],
    ),
)
def test_a_table_of_other_settings_is_not(words, tmp_path):
    assert title(manifested(tmp_path, *words)) is None


def test_a_table_with_missing_cells_is_not(tmp_path):
    assert title(manifested(tmp_path, missing_cells=3)) is None


@pytest.mark.long
def test_sequences_that_a_plan_takes_from_the_models_folder_are_no_change(tmp_path):
    (seen,) = [
        figure.seen
        for figure in shipped_figures()
        if figure.name == "trained_transformers"
    ]
    for path, expected in (
        ("outputs/trained/albert/sequences.txt", seen),
        ("mine.txt", {}),
    ):
        outputs = manifested(
            tmp_path / path, f"task.path={path}", sweep="trained_transformers"
        )
        assert (
            figure_spec(
                compose(["figure=trained_transformers", f"output_dir={outputs}"])
            ).paper.seen
            == expected
        )


def test_a_table_without_diverged_trainings_alone_is_whole(tmp_path):
    assert title(manifested(tmp_path / "all", missing_cells=3, diverged_cells=3))
    assert (
        title(manifested(tmp_path / "some", missing_cells=3, diverged_cells=2)) is None
    )


@pytest.mark.parametrize(
    "word",
    daily(
        [
            "figure.panels=[W_V:H]",
            "figure.where={seed: 1234}",
            "sweep.windows=[[1,null]]",
            "figure.layout=bars",
        ],
        "figure.where={seed: 1234}",
        "sweep.windows=[[1,null]]",
    ),
)
def test_another_figure_of_the_same_table_is_not(word, tmp_path):
    assert title(manifested(tmp_path), word) is None


def test_pages_have_titles_of_their_own():
    paper = Paper(seen={"depth1": "One layer", "": "All"})
    assert [paper.labels(suffix)["title"] for suffix in ("_depth1", "", "_depth2")] == [
        "One layer",
        "All",
        None,
    ]


def test_the_figures_of_the_theory_have_titles():
    assert paper_of(compose(["figure=bounds"])).labels("")["title"]
