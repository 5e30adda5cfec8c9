"""Sheets of spectra by the data of their artists."""

import itertools
import math

import numpy as np
import pytest

from hessfig.errors import UserError
from hessfig.figures.parts.colours import part_colour
from hessfig.figures.parts.labels import symbol, variant_words
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.sheets import LAYOUTS, FigureSpec, check
from hessfig.studies.spectra.eigenvalue_plots import drawn_ranks
from hessfig.studies.spectra.scaling import outstanding, ratios
from hessfig.studies.spectra.spectral_distances import Kernel, of_eigenvalues
from tests.analysis.spectral import spectral_table, store_density, store_spectrum
from tests.analysis.synthetic import config, write_sweep
from tests.daily import thinned
from tests.figures.conftest import (
    curves,
    note_of,
    suffixes,
    texts_of,
    thin,
    titles_of,
    words,
)
from tests.figures.test_heat import colour_bar

VARIANTS = ["model.attention=softmax", "model.attention=linear"]
SINKS = {**config(sink="none", sink_beta=0.0), "sweep": {"axis": "model.sink_beta"}}
NORMS = {
    **config(scaled_weight=None, weight_scale=1.0),
    "sweep": {"axis": "model.weight_scale"},
}
MARKS = ("o", "s", "^")  # of three networks
WAVE = np.concatenate([np.linspace(-1, 1, 160), [2.0, 3.0, 8.0]])


def drawn(layout, folder, **options):
    spec = FigureSpec("x", folder.name, layout, (), options)
    check(spec)
    with styled():
        return list(LAYOUTS[layout].draw(spec, folder))


def stored(tmp_path, *, exact=True, densities=True, seeds=2):
    """Write a sweep of two networks whose whole Hessian is WAVE times 1 + seed, and W_Q the half of it."""
    folder = tmp_path / "spectra"
    entries = []
    for variant in VARIANTS:
        for seed in range(seeds):
            blocks = {
                ("all", "H"): WAVE * (1 + seed),
                ("all", "H_o"): np.abs(WAVE),
                ("W_Q", "H"): WAVE[::2],
            }
            named = {"variant": variant, "seed": seed}
            entries += [store_spectrum(folder, blocks, **named)] * exact
            entries += [store_density(folder, blocks, **named, steps=20)] * densities
    rows = []
    for variant, seed in itertools.product(VARIANTS, range(seeds)):
        here = {"variant": variant, "seed": seed, "layer": 1}
        for end, value in (("largest", 8.0), ("smallest", -1.0)):
            number = {"quantity": f"{end}_eigenvalue", "value": value * (1 + seed)}
            rows.append({**here, **number})
    return write_sweep(spectral_table(rows), tmp_path, arrays=entries)


@pytest.mark.long
def test_sorted_eigenvalues_densities_and_their_errors_have_pages_of_their_own(
    tmp_path,
):
    found = {
        page.suffix: page for page in drawn("spectra", stored(tmp_path), width=0.05)
    }
    assert list(found) == [
        "_all1",
        "_all1_density",
        "_all1_error",
        "_weights",
        "_densities",
        "_table",
    ]
    one, other = found["_all1"].figure.axes
    assert [one.get_title(), other.get_title()] == ["softmax", "linear attention"]
    assert one.get_yscale() == "symlog"
    assert one.get_xscale() == "logit"
    assert one.get_ylim() == other.get_ylim()
    thick = {line.get_color(): line for line in one.lines if line not in thin(one)}
    seeds = [line for line in thin(one) if line.get_color() == part_colour("H")]
    (full,) = (line for line in one.lines if line.get_linestyle() == "--")
    assert [line.get_ydata()[-1] for line in seeds] == pytest.approx([8.0, 16.0])
    assert full.get_ydata()[-1] == pytest.approx(12.0)  # their mean
    assert thick[part_colour("H_o")].get_ydata()[-1] == pytest.approx(8.0)
    assert texts_of(other.texts) == [symbol("H_o"), symbol("H")]
    assert not one.texts
    assert set(found["_all1"].numbers["panel"]) == {"sorted"}
    inside = found["_all1_error"].numbers
    assert set(inside["panel"]) == {"cumulative"}
    assert (
        np.abs(inside["lanczos"] - inside["exact"]) <= inside["margin"] + 0.02
    ).mean() > 0.9


def test_a_density_lies_on_the_exact_eigenvalues_under_its_kernel(tmp_path):
    page = next(
        page
        for page in drawn("spectra", stored(tmp_path), width=0.05)
        if page.suffix == "_all1_density"
    )
    ax = page.figure.axes[0]
    numbers = page.numbers[page.numbers["variant"] == VARIANTS[0]]
    truth, _ = of_eigenvalues(
        WAVE, numbers["eigenvalue"].to_numpy(), Kernel(width=0.05).deviation(-1, 8)
    )
    np.testing.assert_allclose(numbers["exact"], truth)
    area, band = ax.collections
    assert area.get_paths()[0].vertices[:, 1].max() == pytest.approx(truth.max())
    assert band.get_alpha() == 0.3
    (line,) = ax.lines
    np.testing.assert_allclose(line.get_ydata(), numbers["lanczos"])
    assert ax.get_yscale() == "log"
    assert "half_the_steps" in numbers
    note = note_of(page)
    assert "Student's t" in note
    assert "standard deviation 0.05 of the range" in note
    assert "$" not in note


def test_densities_alone_show_what_the_steps_miss(tmp_path):
    pages = drawn("spectra", stored(tmp_path, exact=False), variance=1e-3)
    assert suffixes(pages) == ["_all1", "_all1_error", "_densities", "_table"]
    density = pages[0].figure.axes[0]
    errors = pages[1].figure.axes[0]
    # No area: nothing is exact.
    assert len(density.lines) == len(density.collections) == 1
    middle, half, *_ = errors.lines
    # No exact cumulative: the error is that of half the steps.
    np.testing.assert_allclose(middle.get_ydata(), 0)
    assert np.abs(half.get_ydata()).max() > 0


def test_the_table_holds_means_and_errors(tmp_path):
    table = drawn("spectra", stored(tmp_path))[-1]
    written = texts_of(table.figure.axes[0].texts)
    assert "largest" in written
    assert "12 ± 4" in written
    assert "−1.5 ± 0.5" in written
    assert set(table.numbers["quantity"]) == {
        "largest_eigenvalue",
        "smallest_eigenvalue",
    }


def test_a_table_without_arrays_says_what_to_measure(tmp_path):
    folder = write_sweep(spectral_table([{"value": 1.0}]), tmp_path)
    for layout in ("spectra", "heterogeneity"):
        with pytest.raises(
            UserError,
            match=r"neither eigenvalues nor densities[\s\S]*quantities=\[spectrum\]",
        ):
            drawn(layout, folder)


def test_few_ranks_stand_for_many():
    assert drawn_ranks(50) == list(range(50))
    many = drawn_ranks(4000)
    assert len(many) < 200
    assert {0, 39, 3960, 3999} <= set(many)
    assert many == sorted(many)


def test_heat_maps_of_distances(tmp_path):
    folder = tmp_path / "spectra"
    entries = []
    peaked = np.concatenate([np.zeros(150), np.linspace(0.5, 1, 12)])
    for kind, third in (("transformer", peaked), ("mlp", 3 * WAVE)):
        for seed in range(3):
            blocks = {
                ("W_in", "H"): WAVE,
                ("W_out", "H"): 2 * WAVE,
                ("W_U", "H"): third,
                ("all", "H"): WAVE,
            }
            entries.append(
                store_spectrum(folder, blocks, f"model.kind={kind}", seed=seed)
            )
    write_sweep(spectral_table([{"value": 1.0}]), tmp_path, arrays=entries)
    (page,) = drawn("heterogeneity", folder)
    one, other, bar = page.figure.axes
    assert one.get_title(loc="left").splitlines()[0] == "transformer: 3 pairs"
    assert other.get_title(loc="left") == "MLP: 3 pairs\nJS⁰ = 0.000 ± 0.000"
    square = one.images[0].get_array()
    assert square.shape == (3, 3)
    assert square[0, 2] > 0.3
    assert square[0, 1] == pytest.approx(0, abs=1e-9)
    assert one.images[0].get_clim() == (0, math.log(2))
    assert bar.images is not None
    transformer = page.numbers[page.numbers["variant"] == "model.kind=transformer"]
    assert transformer["average"].iloc[0] == pytest.approx(
        transformer["mean"].sum() / 6
    )
    (fixed,) = drawn("heterogeneity", folder, kernel="fixed")
    for name in ("mean", "average", "average_low"):
        np.testing.assert_array_equal(
            fixed.numbers[f"other_{name}"], page.numbers[name]
        )
        np.testing.assert_array_equal(
            fixed.numbers[name], page.numbers[f"other_{name}"]
        )
    assert fixed.numbers["kernel"].iloc[0] == page.numbers["other_kernel"].iloc[0]
    assert "all" not in set(page.numbers["one"])
    assert set(page.numbers["count"]) == {3}
    with styled(narrow := Paper(width=3.25)):
        spec = FigureSpec("x", folder.name, "heterogeneity", paper=narrow)
        (small,) = LAYOUTS["heterogeneity"].draw(spec, folder)
    assert colour_bar(small) == pytest.approx(colour_bar(page), rel=1e-6)
    room = (
        small.figure.axes[0].get_position(original=True).size
        * small.figure.get_size_inches()
    )
    # A map is square: there is no empty space around it.
    assert room[0] == pytest.approx(room[1])


def test_two_steps_share_a_map_with_the_first_below_its_diagonal(tmp_path):
    folder = tmp_path / "spectra"
    entries = []
    peaked = np.concatenate([np.zeros(150), np.linspace(0.5, 1, 12)])
    for step in (0, 9):
        for seed in range(3):
            blocks = {
                ("W_in", "H"): WAVE,
                ("W_out", "H"): peaked if step == 0 else 2 * WAVE,
            }
            entries.append(store_spectrum(folder, blocks, seed=seed, step=step))
    along = {**config(), "sweep": {"axis": "step"}}
    write_sweep(
        spectral_table([{"value": 1.0, "step": 0.0}]),
        tmp_path,
        arrays=entries,
        settings=along,
    )
    (page,) = drawn("heterogeneity", folder)
    ax, _ = page.figure.axes
    square = ax.images[0].get_array()
    assert square[1, 0] > 0.3
    assert square[0, 1] == pytest.approx(0, abs=1e-9)
    first, last = (
        page.numbers[page.numbers["step"] == step]["average"].iloc[0] for step in (0, 9)
    )
    assert (
        ax.get_title(loc="left")
        == f"network: 1 pair\nJS⁰ = {first:.3f} ± 0.000 → {last:.3f} ± 0.000"
    )
    note = note_of(page)
    assert "Below the diagonal: step 0; above: step 9." in note


def proxy_rows():
    ratios = {
        "model.kind=transformer,model.attention=softmax": 0.5,
        "model.kind=transformer,model.attention=linear": 0.8,
        "model.kind=mlp,model.attention=softmax": 1.0,
        "model.kind=mlp,model.attention=linear": 1.0,
    }
    for variant, seed, sigma in itertools.product(ratios, range(3), (0.1, 1.0, 10.0)):
        here = {"variant": variant, "sigma": sigma, "seed": seed}
        yield {**here, "part": "H", "value": 2.0 + seed}
        yield {**here, "part": "H_o", "value": ratios[variant] * (2.0 + seed)}


def marked(ax):
    return [line for line in ax.lines if line.get_marker() in MARKS]


def test_ratios_seed_by_seed_and_one_line_for_the_mlp(tmp_path):
    table = spectral_table(list(proxy_rows()))
    (page,) = drawn("gauss_newton", write_sweep(table, tmp_path, settings=None))
    upper, lower = page.figure.axes
    named = {"transformer, softmax", "transformer, linear attention", "MLP"}
    assert set(words(upper).split("\n")) == set(words(lower).split("\n")) == named
    lines = marked(upper)
    assert [line.get_ydata()[0] for line in lines] == pytest.approx([0.5, 0.8, 1.0])
    assert len(marked(lower)) == 6
    # Seeds are thin.
    assert len({line.get_marker() for line in lines}) == 3
    assert len(upper.lines) > len(lines) + 8
    shown = page.numbers[page.numbers["shown"] == "ratio"]
    assert (shown["high"] - shown["low"]).abs().max() < 1e-12
    assert set(shown["count"]) == {3}
    with pytest.raises(
        UserError, match=r"no largest eigenvalues of H_o and H[\s\S]*parts=\[H_o,H\]"
    ):
        drawn("gauss_newton", tmp_path / "spectra", block="W_Q")


def test_labels_of_both_lines_stand_below_each_other_whatever_their_ticks(tmp_path):
    rows = [
        {**row, "value": row["value"] * (1e-9 if row["sigma"] < 1 else 1e3)}
        for row in proxy_rows()
    ]
    (page,) = drawn(
        "gauss_newton", write_sweep(spectral_table(rows), tmp_path, settings=None)
    )
    with styled():
        page.figure.draw_without_rendering()
    axes = [ax.yaxis for ax in page.figure.axes]
    widths = [
        max(label.get_window_extent().width for label in one.get_ticklabels())
        for one in axes
    ]
    places = [one.get_label().get_position()[0] for one in axes]
    assert widths[0] != widths[1]
    assert places[0] == places[1]


def test_a_ratio_needs_a_positive_eigenvalue():
    rows = [{"part": "H", "value": -1.0}, {"part": "H_o", "value": 2.0}]
    table = spectral_table(rows).assign(x=0.1)
    assert ratios(table)["ratio"].isna().all()


def sink_rows(kinds=("scores", "both")):
    for kind, beta, seed in itertools.product(kinds, (0, 4, 12), range(3)):
        variant = f"model.sink={kind},model.sink_beta={beta}"
        here = {"variant": variant, "seed": seed}
        yield {**here, "quantity": "largest_eigenvalue", "value": 5.0 + beta}
        yield {**here, "quantity": "smallest_eigenvalue", "value": -1.0}
        for percent in (5, 50, 95):
            place = {"quantity": "density_quantile", "index": percent}
            yield {**here, **place, "value": 0.01 * (percent - 50)}


def test_outliers_over_the_bulk(tmp_path):
    table = spectral_table(list(sink_rows()))
    (page,) = drawn("sinks", write_sweep(table, tmp_path, settings=SINKS))
    axes = np.reshape(page.figure.axes, (2, 2))
    assert titles_of(axes[0]) == ["sink on scores", "both sinks"]
    assert axes[1, 0].get_xlabel() == "bias of the sink β"
    assert axes[0, 0].get_yscale() == "symlog"
    (ratio,) = (line for line in axes[1, 0].lines if line.get_marker() == "o")
    np.testing.assert_allclose(ratio.get_ydata(), np.array([5, 9, 17]) / 5)
    assert set(page.numbers["shown"]) >= {
        "quantile_5",
        "quantile_95",
        "largest_eigenvalue",
    }
    assert "smallest" in words(axes[0, 1])


def test_the_outermost_eigenvalue_may_be_the_negative_one():
    rows = [
        row for row in sink_rows(["scores"]) if row["quantity"] != "largest_eigenvalue"
    ]
    found = outstanding(
        spectral_table(rows).assign(x=0.0, seed=range(len(rows))).assign(seed=0)
    )
    assert found["value"].tolist() == pytest.approx([1 / 0.9] * len(found))


def norm_rows():
    powers = {"W_Q": 2.0, "mlp": 0.0}
    for weight, alpha, seed in itertools.product(powers, (0.125, 1.0, 8.0), range(3)):
        variant = f"model.scaled_weight={weight},model.weight_scale={alpha}"
        here = {"variant": variant, "seed": seed}
        place = {"row": "W_K", "layer": 1, "row_layer": 1}
        value = alpha ** powers[weight] * 10.0 ** (seed - 1)
        yield {**here, **place, "quantity": "condition_number", "value": value}
        yield {**here, "quantity": "largest_eigenvalue", "value": 3.0}


def test_scaled_weights_are_columns_and_means_geometric(tmp_path):
    folder = write_sweep(spectral_table(list(norm_rows())), tmp_path, settings=NORMS)
    (page,) = drawn("weight_norms", folder)
    axes = np.reshape(page.figure.axes, (2, 2))
    assert titles_of(axes[0]) == [r"scaled: $W_{\mathrm{Q}}$", "scaled: MLP"]
    assert axes[0, 0].get_ylabel() == "largest eigenvalue"
    assert axes[1, 0].get_xscale() == axes[1, 0].get_yscale() == "log"
    *seeds, mean = axes[1, 0].lines[:4]
    np.testing.assert_allclose(mean.get_ydata(), [1 / 64, 1, 64])
    np.testing.assert_allclose([line.get_ydata()[1] for line in seeds], [0.1, 1, 10])
    np.testing.assert_allclose(curves(axes[1, 1])[0].get_ydata(), 1)
    for options, message in (
        ({"quantity": "trace"}, "no numbers of these quantities"),
        ({"columns": "scaled_weigh"}, "did you mean 'scaled_weight'"),
    ):
        with pytest.raises(UserError, match=message):
            drawn("weight_norms", folder, **options)


@pytest.mark.parametrize(
    ("layout", "panels"),
    thinned(
        [
            ("sinks", ["sink_both:eigenvalue", "sink_scores:ratio"]),
            (
                "weight_norms",
                ["W_K:condition_number:mlp", "all:largest_eigenvalue:W_Q"],
            ),
            ("gauss_newton", ["eigenvalue"]),
            ("spectra", ["all1:sorted:attention_softmax"]),
        ],
        2,
    ),
)
def test_panels_can_be_picked_and_narrow_pages_fold(tmp_path, layout, panels):
    tables = {
        "sinks": (sink_rows(), SINKS),
        "weight_norms": (norm_rows(), NORMS),
        "gauss_newton": (proxy_rows(), None),
    }
    folder = stored(tmp_path) if layout == "spectra" else tmp_path / "spectra"
    if layout in tables:
        rows, settings = tables[layout]
        folder = write_sweep(spectral_table(list(rows)), tmp_path, settings=settings)
    for paper in (Paper(panels=panels), Paper(width=1.6)):
        with styled(paper):
            pages = list(
                LAYOUTS[layout].draw(
                    FigureSpec("x", folder.name, layout, paper=paper), folder
                )
            )
        page = next(page for page in pages if page.figure.get_visible())
        assert set(panels) <= set(page.panels)
        lefts = {round(ax.get_position().x0, 6) for ax in page.figure.axes}
        assert len(page.figure.axes) == len(panels) if paper.panels else len(lefts) == 1


def test_variants_in_words():
    assert (
        variant_words("model.attention=linear,model.norm=pre")
        == "linear attention, pre-LN"
    )
    assert variant_words("model.kind=mlp,model.attention=linear") == "MLP"
    assert (
        variant_words("model.temperature=0.5,model.x=$a") == r"temperature 0.5, x \$a"
    )
    assert variant_words("") == ""


def test_bands_of_one_seed_are_left_out(tmp_path):
    rows = [row for row in norm_rows() if row["seed"] == 0]
    (page,) = drawn(
        "weight_norms", write_sweep(spectral_table(rows), tmp_path, settings=NORMS)
    )
    assert page.numbers["low"].isna().all()
    assert set(page.numbers["count"]) == {1}
