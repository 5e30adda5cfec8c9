"""Drawing as a whole: files, bytes, settings left alone, errors, imports, time."""

import subprocess
import sys
from itertools import pairwise, product

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.manifest import read_run
from hessfig.analysis.slopes import fit as slopes
from hessfig.errors import UserError
from hessfig.figures.parts import figure_spec
from hessfig.figures.parts.figure_spec import STEPS
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.parts.panel_sheet import APART, SHARED, Sheet
from hessfig.figures.parts.saving import page_suffix
from hessfig.figures.sheets import LAYOUTS, FigureSpec, draw
from hessfig.register import REGISTER
from tests.analysis.synthetic import make_table, write_sweep
from tests.daily import thinned


def contents(paths):
    return [path.read_bytes() for path in paths]


SPEC = FigureSpec("3a", "sigma", "growth", [(None, 1.0)])


@pytest.mark.long
def test_four_files_the_same_bytes_on_every_run(tmp_path):
    write_sweep(make_table(seeds=3), tmp_path)
    paths = draw(SPEC, tmp_path)
    assert [path.name for path in paths] == [
        "fig3a.pdf",
        "fig3a.png",
        "fig3a.svg",
        "fig3a.csv",
    ]
    first = contents(paths)
    assert first == contents(draw(SPEC, tmp_path))
    assert b"CreationDate" not in first[0]
    assert b"<dc:date>" not in first[2]
    there = {*(tmp_path / "figures").iterdir()} - {tmp_path / "figures" / REGISTER}
    assert there == {*paths}


def test_the_drawn_numbers_are_written(tmp_path):
    write_sweep(make_table(seeds=3), tmp_path)
    numbers = pd.read_csv(draw(SPEC, tmp_path)[-1])
    assert len(numbers) == 60
    assert {"sigma", "mean", "sem", "count", "slope", "slope_se", "predicted"} <= set(
        numbers.columns
    )


def test_a_sweep_that_was_not_run_names_its_command(tmp_path):
    for layout in sorted(LAYOUTS):
        with pytest.raises(UserError, match="hessfig run sweep=sigma"):
            draw(FigureSpec("3a", "sigma", layout), tmp_path / "outputs")
    assert not (tmp_path / "outputs").exists()


def test_unknown_layout(tmp_path):
    with pytest.raises(UserError, match=r"did you mean 'growth'\?"):
        draw(FigureSpec("3a", "sigma", "grwth"), tmp_path)


@pytest.mark.long
def test_what_a_figure_prints_is_what_slopes_csv_holds(tmp_path):
    windows = [(None, 1.0)]
    folder = write_sweep(make_table(seeds=4, wander=0.5, noise=0.3), tmp_path)
    slopes.write_slopes(folder, windows)
    spec = FigureSpec("3a", "sigma", "growth", windows)
    drawn = pd.read_csv(draw(spec, tmp_path)[-1]).drop_duplicates(["row", "part"])
    written = pd.read_csv(folder / "slopes.csv")
    both = drawn.merge(written, on=["row", "part"], suffixes=("", "_written"))
    assert len(both) == 6
    for name in ("slope", "slope_se", "ci_low", "ci_high"):
        pd.testing.assert_series_equal(
            both[name], both[f"{name}_written"], check_names=False
        )


_REFUSED = [
    pair
    for pair in product(sorted(LAYOUTS), ("x", "colour", "dashes"))
    if pair[1] not in LAYOUTS[pair[0]].takes
]


@pytest.mark.parametrize(("layout", "key"), _REFUSED)
def test_settings_without_an_effect_are_refused(layout, key, tmp_path):
    spec = FigureSpec("3a", "sigma", layout, **{key: "model.d_model"})
    with pytest.raises(
        UserError,
        match=rf"figure\.{key}: the layout {layout} [\s\S]*figure.layout=lines",
    ):
        draw(spec, tmp_path)


NEEDY = [layout for layout, one in LAYOUTS.items() if one.requires]


@pytest.mark.parametrize("layout", thinned(NEEDY, 3))
def test_a_table_without_what_a_layout_requires_is_refused(layout, tmp_path):
    """A table of norms lacks all of it; one whose numbers are not finite lacks them too."""
    norms = make_table(seeds=1, sigma=[0.1, 1.0])
    spec = FigureSpec("x", "sigma", layout)
    with pytest.raises(UserError, match=r"has a step|figure\.layout=") as found:
        list(LAYOUTS[layout].draw(spec, write_sweep(norms, tmp_path)))
    assert "remedy:" in str(found.value)
    assert "hessfig run" in str(found.value)
    for one in LAYOUTS[layout].requires:
        if one is not STEPS:
            wanted = (
                one.quantities(spec)
                if callable(one.quantities)
                else one.quantities or [one.name]
            )
            lost = {
                "step": 0.0,
                "value": np.inf,
                "status": "nonfinite",
                "quantity": next(iter(wanted)),
            }
            folder = write_sweep(norms.assign(**lost), tmp_path / one.name)
            with pytest.raises(
                UserError,
                match=rf"figure\.layout={layout}\b[\s\S]*quantities=\[{one.name}\]",
            ):
                list(LAYOUTS[layout].draw(spec, folder))


@pytest.mark.parametrize(
    ("layout", "options"),
    [("heat", {"quantities": ["frobenius", "trace"]}), ("growth", {})],
)
def test_a_sweep_is_read_once(layout, options, tmp_path, monkeypatch):
    tables = [
        make_table(seeds=1, sigma=[0.1, 1.0], quantity=name)
        for name in ("frobenius", "trace")
    ]
    folder = write_sweep(pd.concat(tables, ignore_index=True), tmp_path)
    read = []
    monkeypatch.setattr(
        figure_spec, "read_run", lambda where: read.append(where) or read_run(where)
    )
    with styled():
        pages = list(
            LAYOUTS[layout].draw(
                FigureSpec("x", "sigma", layout, options=options), folder
            )
        )
    assert read == [folder]
    assert pages


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_options_that_a_layout_does_not_know_are_refused(layout, tmp_path):
    known = LAYOUTS[layout].options
    wrong, hint = (
        (f"{known[0]}x", f"did you mean '{known[0]}'") if known else ("colour", "none")
    )
    with pytest.raises(UserError, match=rf"figure\.options\.{wrong}: [\s\S]*{hint}"):
        draw(FigureSpec("3a", "sigma", layout, options={wrong: 1}), tmp_path)


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ("blocks", {"sigma": "large"}),
        ("blocks", {"at": [1]}),
        ("bars", {"at": True}),
        ("ablation", {"sigmas": ["x"]}),
        ("ablation", {"sigmas": [-1.0]}),
        ("one_panel", {"part": "H_x"}),
        ("growth", {"index": "first"}),
        ("growth", {"quantity": "trase"}),
    ],
)
def test_options_of_other_types_are_explained(layout, options, tmp_path):
    write_sweep(make_table(seeds=2), tmp_path)
    with pytest.raises(UserError, match="allowed"):
        draw(FigureSpec("3a", "sigma", layout, [(None, 1.0)], options), tmp_path)
    assert not (tmp_path / "figures").exists()


VARIANTS = [
    "model.a=../../up",
    "model.a=/etc/x",
    "model.a=x y",
    "model.a=x:y",
    "model.a=é%",
    "a" * 300,
    "model.a=$x$",
    "model.a=\\frac{",
    "",
]


def of_strange_variants(tmp_path):
    """Write a sweep whose variants are such texts; return its folder."""
    table = make_table(networks=[("", 1)], sigma=[0.1, 0.3, 1.0], seeds=2, parts=["H"])
    every = [
        table.assign(variant=variant, config=str(k))
        for k, variant in enumerate(VARIANTS)
    ]
    return write_sweep(pd.concat(every, ignore_index=True), tmp_path, settings=None)


@pytest.mark.long
def test_no_text_of_a_table_leads_out_of_the_figures_folder(tmp_path):
    of_strange_variants(tmp_path)
    before = {*tmp_path.rglob("*.*")}
    paths = draw(FigureSpec("../3a", "sigma", "bars", [(None, 1.0)]), tmp_path)
    assert len(set(paths)) == 4 * len(VARIANTS)
    new = {*tmp_path.rglob("fig*")} | {*tmp_path.rglob("*.*")} - before
    assert {path for path in new if REGISTER not in path.parts} >= set(paths)
    for path in new:
        assert tmp_path / "figures" in path.parents or path == tmp_path / "figures"


def test_variants_that_read_alike_have_files_of_their_own():
    networks = [("model.a=x/y", 1), ("model.a=x y", 1), ("model.b=2", 1)]
    assert [page_suffix(*one, networks) for one in networks] == [
        "_a_x_y_1",
        "_a_x_y_2",
        "_b_2",
    ]


def test_a_folder_that_cannot_be_written(tmp_path):
    write_sweep(make_table(seeds=2), tmp_path)
    (tmp_path / "figures").write_text("in the way")
    with pytest.raises(UserError, match="cannot write"):
        draw(SPEC, tmp_path)


@pytest.mark.parametrize(
    "style",
    [
        SHARED,
        APART.replace(height=[0.5, 1.0], most=3),
        SHARED.replace(left=1.0, top=0.5),
    ],
)
@pytest.mark.parametrize("width", [2.0, 5.5])
def test_panels_stand_as_many_inches_apart_as_the_style_says(style, width):
    """On a page that holds the columns, and folded: every panel has the style's height, and one width."""
    paper = Paper(width=width)
    with styled(paper):
        sheet = Sheet.grid(paper, [["a", "b"], ["c", "d"]], "a note", style)
    page, tall = sheet.figure.get_size_inches()
    boxes = {cell: ax.get_position() for cell, ax in sheet.panels.items()}
    heights = style.height if isinstance(style.height, list) else [style.height] * 2
    assert sheet.is_folded == (width < 5)
    widths = set()
    for (row, _), box in boxes.items():
        assert box.height * tall == pytest.approx(heights[row])
        widths.add(round(box.width * page, 9))
    assert len(widths) == 1
    first = boxes[sheet.lines[0][0]]
    assert (first.x0 * page, (1 - first.y1) * tall) == pytest.approx(
        (style.left, style.top)
    )
    for line in sheet.lines:
        for left, right in pairwise(line):
            gap = (boxes[right].x0 - boxes[left].x1) * page
            assert gap == pytest.approx(sheet.across)


def test_every_layout_says_how_to_read_it_and_what_it_requires():
    for name, layout in LAYOUTS.items():
        said = layout.pages.__doc__ or ""
        assert "How to read it:" in said
        assert "Requires:" in said
        assert "state.step" not in said or STEPS in layout.requires, name


@pytest.mark.long
def test_the_reading_wing_stands_alone():
    code = (
        "import sys, hessfig.figures.sheets;"
        "import hessfig.analysis.slopes.fit, hessfig.analysis.slopes.gate;"
        "heavy = {'torch', 'hydra', 'omegaconf', 'scipy', 'rich', 'matplotlib.pyplot'} & set(sys.modules);"
        "wings = [m for m in sys.modules if m.startswith('hessfig.') and m.split('.')[1] in"
        " ('config', 'rng', 'tasks', 'models', 'states', 'curvature', 'measurements', 'sweep')];"
        "print(sorted(heavy), wings)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[] []"
