"""What is said of numbers: verdicts, alternative texts, cells of tables."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

from hessfig.report.drawn_figures import about_and_how
from hessfig.report.gathered import Failure, failures_in, find_sweeps
from hessfig.report.page_tables import MOST_ROWS, any_table, number_cell
from hessfig.report.pages import asset
from hessfig.report.readings import of_numbers
from tests.report.outputs import cell, fail

CURVE = {"num_layers": 1, "layer": 1, "prediction": "exponent"}
SLOPES = [
    {**CURVE, "row": "W_V", "col": "W_V", "part": "H", "slope": 1.9, "predicted": 2.0},
    {**CURVE, "row": "W_V", "col": "W_V", "part": "H", "slope": 2.1, "predicted": 2.0, "layer": 2},
    {**CURVE, "row": "W_Q", "col": "W_Q", "part": "H", "slope": math.nan, "predicted": 4.0},
]
MEANS = [{"row": "W_V", "col": "W_V", "part": "H", "mean": 4.0}, {"row": "W_V", "col": "W_Q", "part": "H", "mean": 0.0}]
BINS = [{"variant": "", "block": "W_V", "bin_low": low, "bin_high": 4 * low, "share": 0.4} for low in (1.0, 4.0, 16.0)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (SLOPES, "Fitted slopes: W_V H 1.90 to 2.10 in 2 curves (predicted 2)."),
        (MEANS, "Largest mean: 4 for W_V H. Smallest above zero: 4 for W_V H; 1 of 2 are zero."),
        (BINS, "Median sizes of entries: W_V near 8."),
        ([{"bound": "a", "median": 1.0}, {"bound": "a", "median": 3.0}], "Median: a from 1 to 3."),
        ([{"x": 1}], "1 numbers are drawn: x."),
    ],
)
def test_pictures_in_words(rows: list[dict[str, object]], words: str) -> None:
    assert of_numbers(pd.DataFrame(rows)) == words


def test_docstrings_are_taken_apart() -> None:
    text = "Draw it.\n\nHow to read it: a dot is\na number. `=0`: nothing.\nRequires: a table."
    assert about_and_how(text) == ("Draw it.", "a dot is a number. `=0`: nothing.")


def test_numbers_keep_their_digits_behind_what_is_shown() -> None:
    assert (number_cell(-1.23456789, ".2f").text, number_cell(-1.23456789, ".2f").value) == ("−1.23", "-1.23456789")
    assert number_cell(math.nan).text == ""


def test_long_tables_say_that_they_are_cut() -> None:
    table = any_table("long", "Long", pd.DataFrame({"x": range(3 * MOST_ROWS + 1)}))
    assert len(table.rows) <= MOST_ROWS and table.cut == 3 * MOST_ROWS + 1
    assert table.numeric == [True]


def test_causes_are_counted(tmp_path: Path) -> None:
    for key, cause in (("a", "one"), ("b", "two"), ("c", "two"), ("d", "gone")):
        fail(tmp_path, key, cause)
    cell(tmp_path, "d")
    assert failures_in(tmp_path) == [Failure("two", 2), Failure("one", 1)]


def test_only_plain_names_are_sweeps(tmp_path: Path) -> None:
    for name in ("good", "<b>bad", ".hidden", "figures"):
        (tmp_path / name).mkdir()
        if name != "figures":
            cell(tmp_path / name, "aa")
    assert find_sweeps(tmp_path) == ["good"]
    assert find_sweeps(tmp_path / "absent") == []


def test_colours_can_be_read() -> None:
    """WCAG AA: 4.5 to 1 for every pair of ink and ground that the style sheet names, light and dark."""
    light, dark = asset("style.css").split("prefers-color-scheme: dark")[:2]
    for scheme in (light, dark.partition("* {")[0]):
        colours = dict(_colours(scheme))
        pairs = [(ink, ground) for ink in ("ink", "muted", "link") for ground in ("paper", "card", "stripe")]
        pairs += [(f"{kind}-ink", kind) for kind in ("good", "bad", "open", "none")]
        for ink, ground in pairs:
            assert _contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def _colours(text: str) -> list[tuple[str, str]]:
    pieces = [piece.strip() for piece in text.replace("{", ";").split(";")]
    return [(name[2:], value.strip()) for name, _, value in (p.partition(":") for p in pieces) if name.startswith("--")]


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
