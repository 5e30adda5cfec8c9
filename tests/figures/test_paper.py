"""Figures for papers: every shipped layout at a column's and a page's width, by its texts' extents; panels; files."""

import re
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from hessfig.errors import UserError
from hessfig.figures.parts.labels import changed_words, plain
from hessfig.figures.parts.lettering import SMALLEST, fitting, width_of
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.parts.panel_sheet import Page
from hessfig.figures.parts.panels import beside_one
from hessfig.figures.sheets import LAYOUTS, FigureSpec, draw
from tests.analysis.synthetic import CONFIG, SIGMA, config, make_table, write_sweep
from tests.daily import thinned
from tests.figures.conftest import labels_of, titles_of, words
from tests.figures.shipped import FIGURES, STORED, outside, overlaps, pages, texts

EVERY = [*FIGURES, *STORED]
Made = Callable[[str, Paper], list[Page]]


@pytest.fixture
def made(tmp_path):
    """Return made(figure, paper) -> the first and the last page of a shipped figure."""

    def make(figure, asked):
        found = pages(figure, tmp_path, asked)
        return [found[0], found[-1]] if len(found) > 1 else found

    return make


@pytest.mark.parametrize("width", [3.25, pytest.param(6.75, marks=pytest.mark.slow)])
@pytest.mark.parametrize("figure", EVERY)
@pytest.mark.long
def test_type_is_readable_and_nothing_overlaps(made, figure, width):
    asked = Paper(width=width)
    for page in made(figure, asked):
        with styled(asked):
            assert page.figure.get_figwidth() == width
            sizes = [size for _, size, _ in texts(page.figure)]
            assert min(sizes) >= SMALLEST
            assert max(sizes) <= 9
            assert overlaps(page.figure) == []
            assert outside(page.figure) == []


@pytest.mark.parametrize(("style", "width"), [("iclr", 5.5), ("icml", 3.25)])
@pytest.mark.parametrize("figure", ["3a", "3b"])
@pytest.mark.long
def test_styles_have_the_width_and_type_of_their_conference(made, figure, style, width):
    asked = Paper(style=style)
    (page, *_) = made(figure, asked)
    with styled(asked):
        assert page.figure.get_figwidth() == width
        assert min(size for _, size, _ in texts(page.figure)) >= SMALLEST
        assert overlaps(page.figure) == [] == outside(page.figure)


def test_a_width_goes_before_the_styles(made):
    (page,) = made("3a", Paper(width=6.0, style="icml"))
    assert page.figure.get_figwidth() == 6.0


@pytest.mark.parametrize("sigma", [SIGMA, SIGMA[:6], np.linspace(0.1, 1, 10).tolist()])
@pytest.mark.parametrize("width", [3.25, 5.5])
@pytest.mark.long
def test_no_power_stands_on_the_line_at_one(tmp_path, sigma, width):
    figure = "5a" if sigma[-1] == 1 else "6"
    FIGURES["probe"] = (
        *FIGURES[figure][:4],
        {"networks": [("", 2)] if figure == "6" else [("", 1)], "sigma": sigma},
    )
    try:
        found = pages("probe", tmp_path, Paper(width=width))
    finally:
        del FIGURES["probe"]
    checked = 0
    with styled(Paper(width=width)):
        for ax in found[0].figure.axes:
            ax.figure.draw_without_rendering()
            line = ax.transData.transform((1.0, ax.get_ylim()[0]))[0]
            for text in ax.texts:
                box = text.get_window_extent()
                if text.get_text().startswith("σ") and "±" not in text.get_text():
                    checked += 1
                    assert not box.x0 < line < box.x1, text.get_text()
    assert checked >= 5


def test_words_that_fit_nowhere_beside_the_line_break(made):
    (page,) = made("3a", Paper(width=3.25))
    ax = page.figure.axes[0]
    with styled(Paper(width=3.25)):
        beside_one(ax, ["σ³ (layers 1–2)", "σ⁵ (layers 3–4)"])
    assert ax.texts[-1].get_text() == "σ³ (layers 1–2)\nσ⁵ (layers 3–4)"


@pytest.mark.long
def test_columns_fold_and_panels_say_what_they_are(made):
    (page,) = made("3a", Paper(width=3.25))
    titles = titles_of(page.figure.axes)
    assert [title.partition(",")[0] for title in titles] == [
        "$W_{\\mathrm{V}}$",
        "$W_{\\mathrm{Q}}$",
    ] * 3
    (wide,) = made("3a", Paper())
    wide_titles = titles_of(wide.figure.axes)
    assert all(wide_titles[:3])
    assert not any(wide_titles[3:])


def sweep(tmp_path, **settings):
    write_sweep(make_table(seeds=2, sigma=SIGMA[:4]), tmp_path)
    return FigureSpec("3a", "sigma", "growth", [(None, 1.0)], paper=Paper(**settings))


def test_panels_are_picked_in_their_order(tmp_path):
    (page,) = _pages_of(tmp_path, panels=["W_Q:H", "W_V:H_o"])
    assert titles_of(page.figure.axes) == [
        "$W_{\\mathrm{Q}}$, $H$: full Hessian",
        _OUTER,
    ]
    (page,) = _pages_of(tmp_path, panels=["W_Q:H_o", "W_Q:H"])
    assert titles_of(page.figure.axes) == [
        "$H_\\mathrm{o}$: outer-product Hessian",
        "$H$: full Hessian",
    ]
    assert "block" in page.figure.axes[0].get_ylabel()
    assert "slope 5." in words(page.figure.axes[1])


_OUTER = "$W_{\\mathrm{V}}$, $H_\\mathrm{o}$: outer-product Hessian"


def _pages_of(tmp_path, **settings):
    return pages("3a", tmp_path, Paper(**settings))


@pytest.mark.parametrize("figure", ["3a", "temperature", "few_blocks", "1"])
@pytest.mark.long
def test_every_panel_of_every_layout_can_stand_alone(made, figure):
    (whole, *_) = made(figure, Paper())
    for name in whole.panels[:2]:
        alone = Paper(width=3.25, panels=[name])
        shown = [page for page in made(figure, alone) if page.figure.get_visible()]
        with styled(alone):
            for page in shown:
                others = labels_of(page.figure.axes).count("<colorbar>")
                assert len(page.figure.axes) == 1 + others
                assert overlaps(page.figure) == []


def test_a_panel_that_is_not_there_lists_those_that_are(tmp_path):
    with pytest.raises(
        UserError,
        match=r"no panel 'W_V:Ho'[\s\S]*W_V:H_o, W_V:H_f, W_V:H, W_Q:H_o[\s\S]*'W_V:H_o'\?",
    ):
        draw(sweep(tmp_path, panels=["W_Q:H", "W_V:Ho"]), tmp_path)
    assert not (tmp_path / "figures").exists()


def test_formats_and_a_note_beside_the_figure(tmp_path):
    paths = draw(sweep(tmp_path, formats=["svg"], note=False), tmp_path)
    assert [path.name for path in paths] == ["fig3a.svg", "fig3a.txt", "fig3a.csv"]
    note = paths[1].read_text()
    assert note.startswith("Dots: mean over 2 seeds")
    assert "Width 128, 1 layer, batch 64." in note
    assert "; dashed: power law; dotted: σ = 1." in note
    assert b"d_model" not in paths[0].read_bytes()
    (page,) = _pages_of(tmp_path, note=False)
    assert not page.figure.texts


@pytest.mark.long
def test_the_setting_that_matters_stands_in_the_note(made, tmp_path):
    notes = {
        figure: made(figure, Paper())[0].figure.get_label()
        for figure in ("6", "7", "lines", "blocks", "network")
    }
    assert "Width 128, 1 layer, batch 64" in notes["6"]
    assert "1 to 2 layers" in notes["lines"]
    assert "Width 128" in notes["blocks"]
    assert "idth" not in notes["network"]
    varied = {
        **config(),
        "sweep": {"vary": {"model.d_model": [8, 16]}, "axis": "model.d_model"},
    }
    table = make_table(
        networks=[
            ("model.d_model=8", 1),
            ("model.d_model=16", 1),
            ("model.d_model=32", 1),
        ],
        seeds=2,
    )
    folder = write_sweep(table, tmp_path / "wide", settings=varied)
    draw(
        FigureSpec("x", folder.name, "lines", paper=Paper(note=False, formats=["png"])),
        tmp_path / "wide",
    )
    (note,) = (tmp_path / "wide" / "figures").glob("*.txt")
    assert "1 layer, batch 64." in note.read_text()
    assert "Width 128" not in note.read_text()


def test_words_are_measured_and_cut_to_fit():
    with styled():
        assert width_of("mm") == pytest.approx(2 * width_of("m"), rel=0.1)
        assert fitting(["a long title of a panel", "short"], 0.4) == "short"
        cut = fitting(["blocks.0.attention.weight"], 0.8)
        assert "…" in cut
        assert width_of(cut) <= 0.8
        assert cut.startswith("blo")
        assert cut.endswith("ght")


@pytest.mark.long
def test_a_figure_prints_the_levels_that_levels_csv_holds(made, tmp_path):
    from hessfig.analysis.slopes import levels

    (page,) = made("3b_levels", Paper())
    written, _ = levels.run(tmp_path / "sigma", FIGURES["3b_levels"][1])
    plateau = written[(written["row"] == "W_V") & (written["part"] == "H_o")].iloc[0]
    drawn = page.numbers[
        (page.numbers["row"] == "W_V") & (page.numbers["part"] == "H_o")
    ]
    assert set(drawn["level"]) == {plateau["level"]}
    assert set(drawn["level_se"]) == {plateau["level_se"]}
    (printed,) = (
        line
        for line in words(page.figure.axes[0]).splitlines()
        if line.startswith("σ ≤ 0.1: ")
    )
    assert f"{plateau['level']:.2f}" in printed
    assert "Levels: arithmetic mean over σ\xa0≤\xa00.1" in page.figure.get_label()


def test_the_default_paper_is_that_of_the_config():
    from hessfig.config.schema import Config

    figure = Config().figure
    asked = Paper(
        figure.width, figure.note, figure.formats, figure.panels, Config().style
    )
    assert (asked.inches, asked.note, list(asked.formats)) == (
        5.5,
        True,
        ["pdf", "png", "svg"],
    )


def test_no_settings_are_known_without_a_manifest(tmp_path):
    write_sweep(
        pd.DataFrame(make_table(seeds=2, sigma=SIGMA[:4])), tmp_path, settings=None
    )
    paths = draw(
        FigureSpec("3a", "sigma", "growth", paper=Paper(note=False, formats=["png"])),
        tmp_path,
    )
    assert "d_model" not in paths[1].read_text()
    assert CONFIG["model"]["d_model"] == 128


@pytest.mark.long
def test_every_note_tells_what_is_changed_from_the_preset(tmp_path):
    """Settings that a note tells already are not told twice; the page is as much higher as the note is longer."""
    changed = changed_words(
        {
            "model.norm": "post",
            "model.n_heads": "2",
            "model.d_model": "128",
            "model.n_layers": "1",
        }
    )
    assert changed == ("post-LN", "heads 2", "width 128", "1 layer")
    for asked, said in (
        (changed, ["post-LN", "heads 2"]),
        (("d_model 12", "batch 64"), ["d_model 12"]),
    ):
        (page, *_) = pages("3a", tmp_path, Paper(changed=asked))
        assert page.figure.get_label().endswith(
            f"Changed from the preset: {', '.join(said)}."
        )


@pytest.mark.parametrize("key", ["title", "xlabel", "ylabel"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (r"$\frac{1}{0$", "cannot be read at character 6"),
        (r"$\input{/etc/hostname}$", "cannot be read at character 1"),
        ("fine\n$x^$", "cannot be read at character 8"),
        ("$$", "cannot be read at character 1"),
        ("red \x1b[31m", "a control character at character 5"),
        ("a\tb", "a control character at character 2"),
    ],
)
def test_words_that_cannot_be_set_are_refused_with_the_place(key, text, message):
    with pytest.raises(UserError, match=rf"figure\.{key}: .*{message}") as refused:
        Paper(**{key: text})
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    "text", [r"width $\sigma^2$", "5 $", r"\$5 and \$6", "two\nlines", ""]
)
def test_words_that_can_be_set_pass(text):
    assert Paper(title=text).title == text


def test_names_that_steer_a_terminal_are_no_words_of_a_figure():
    assert plain("a\x1b[31m$b$") == r"a?[31m\$b\$"


@pytest.mark.parametrize("layout", thinned(LAYOUTS, 4))
def test_a_caption_names_no_settings(layout):
    how = (LAYOUTS[layout].pages.__doc__ or "").partition("How to read it:")[2]
    caption = re.split(r"\n\s*\n|Requires|Options", how)[0]
    assert caption
    assert not re.findall(r"`?figure\.\w+|[Oo]ptions? `\w+", caption)
