"""Growth sheets by the data of their artists."""

import re

import numpy as np
import pytest
from matplotlib.colors import to_hex
from scipy import stats

from hessfig.analysis.curves import growth_curves
from hessfig.figures.parts.figure_spec import FigureSpec, Source
from hessfig.figures.parts.measured import read_measured
from tests.analysis.synthetic import SIGMA, config, make_table, single, write_sweep
from tests.daily import thinned
from tests.figures.conftest import curves, guides, note_of, thin, words

EXPONENTS = {(0, 0): 2, (0, 2): 2, (1, 0): 6, (1, 1): 5, (1, 2): 5}


def powers_of(line):
    """Return the slopes between the points of a line on logarithmic axes."""
    return np.diff(np.log(line.get_ydata())) / np.diff(np.log(line.get_xdata()))


def test_figure_3a(pages):
    table = make_table()
    (page,) = pages("growth", table)
    axes = page.figure.axes
    assert len(axes) == 6
    means = growth_curves(table)
    for index, ax in enumerate(axes):
        row, column = divmod(index, 3)
        if (row, column) == (0, 1):
            assert words(ax) == "= 0 (theorem)"
            continue
        (line,) = curves(ax)
        here = means[
            (means["row"] == ("W_V", "W_Q")[row])
            & (means["part"] == ("H_o", "H_f", "H")[column])
        ]
        np.testing.assert_allclose(line.get_ydata(), here["mean"])
        assert to_hex(line.get_color()) == ("#7570b3", "#1b9e77")[row]
        assert f"slope {EXPONENTS[row, column]}." in words(ax).replace(
            "1.99", "2."
        ).replace("4.99", "5.")
        assert {2: "σ²", 5: "σ⁵", 6: "σ⁶"}[EXPONENTS[row, column]] in words(
            ax
        ).splitlines()


def test_published_slopes_stand_below_the_slopes_of_the_same_network_only(pages):
    for preset, said in (("sigma", "published 6.00 (se 0.01)"), ("", "")):
        (page,) = pages("growth", make_table(), preset=preset)
        _, published, told = words(page.figure.axes[3]).partition("published")
        assert f"{published}{told}".partition("\n")[0] == said


def test_guides_have_the_predicted_power_and_run_below(pages):
    (page,) = pages("growth", make_table())
    for (row, column), exponent in EXPONENTS.items():
        ax = page.figure.axes[3 * row + column]
        (guide,), (curve,) = guides(ax), curves(ax)
        np.testing.assert_allclose(powers_of(guide), exponent)
        assert (guide.get_ydata() < curve.get_ydata()).all()


def test_band_is_the_interval_of_the_mean(pages):
    table = make_table(blocks=[("W_Q", "W_Q")], parts=["H"], seeds=6)
    (page,) = pages("growth", table)
    (band,) = page.figure.axes[2].collections
    curve = growth_curves(table)
    edges = band.get_paths()[0].vertices[:, 1]
    t = stats.t.ppf(0.975, curve["count"] - 1)
    # Logarithmic axes: as far up as down, as factors.
    factor = np.exp(t * curve["sem"] / curve["mean"])
    assert edges.max() == pytest.approx((curve["mean"] * factor).max())
    assert edges.min() == pytest.approx((curve["mean"] / factor).min())


def test_few_seeds_are_thin_lines_and_no_band(pages):
    table = make_table(blocks=[("W_Q", "W_Q")], parts=["H"], seeds=5)
    (page,) = pages("growth", table)
    ax = page.figure.axes[2]
    seeds = thin(ax)
    assert len(seeds) == 5
    assert not any(
        path.vertices.size > 6 for band in ax.collections for path in band.get_paths()
    )
    first = table[table["seed"] == 1234].sort_values("sigma")
    np.testing.assert_allclose(seeds[0].get_ydata(), first["value"])
    assert "thin: the seeds" in note_of(page)


def test_sigma_one_is_marked(pages):
    (page,) = pages("growth", make_table())
    for ax in page.figure.axes:
        assert any(list(line.get_xdata()) == [1.0, 1.0] for line in ax.lines)


@pytest.mark.long
def test_no_panel_is_blank(pages):
    table = make_table(parts=["H_o", "H"])
    table.loc[(table["row"] == "W_Q") & (table["part"] == "H"), ["value", "status"]] = [
        np.inf,
        "nonfinite",
    ]
    (page,) = pages("growth", table)
    assert "(not measured)" in words(page.figure.axes[1])
    assert "(not finite)" in words(page.figure.axes[5])
    for ax in page.figure.axes:
        assert words(ax)
    assert "Left out: 50 of 200 numbers that are not finite" in page.figure.get_label()


def test_without_a_manifest_fits_stand_in_for_predictions(pages):
    (page,) = pages("growth", make_table(noise=0, wander=0), settings=None)
    ax = page.figure.axes[3]
    assert words(ax) == "slope 6.00"
    assert words(page.figure.axes[1]) == "= 0 (every number)"
    (guide,) = guides(ax)
    np.testing.assert_allclose(powers_of(guide), 6)
    assert max(guide.get_xdata()) == pytest.approx(1.0)


def test_figure_3b_has_a_guide_and_a_slope_per_window(pages):
    table = make_table(sweep="layernorm", law=lambda b, p, a, s: 1 / (1 + 3 * s) ** 1.5)
    windows = [(None, 0.1), (1.0, None), (None, None)]
    (page,) = pages("growth", table, settings=config(norm="pre"), windows=windows)
    for ax in page.figure.axes:
        # The whole grid reaches over two regimes, and has no law.
        assert len(guides(ax)) == 2
        lines = [line for line in words(ax).splitlines() if ":" in line]
        assert [line.partition(":")[0] for line in lines] == [
            "σ ≤ 0.1",
            "σ ≥ 1",
            "all σ",
        ]
        for line in lines:
            assert "−" in line
            assert "±" in line
    assert "dashed and dotted grey: power laws" in note_of(page)


def test_chain_draws_both_powers_of_the_full_hessian(pages):
    settings = config(attention="linear", attention_skip=False, mlp="none")
    settings["task"] = {"loss": "mse_sum_unshifted"}
    table = make_table(
        sweep="softmax", networks=[("", 2)], sigma=SIGMA[:6], settings=settings
    )
    (page,) = pages("growth", table, settings=settings)
    full = page.figure.axes[5]
    powers = [round(powers_of(guide)[0]) for guide in guides(full)]
    assert sorted(powers) == [9, 18]
    for layer in (1, 2):
        assert re.search(rf"σ\S+ \((layer )?{layer}\)", words(full))


@pytest.mark.parametrize(
    "settings",
    [config(sigma_scales="tokens"), {**config(), "state": {"kind": "loaded"}}],
)
def test_where_no_power_rules_none_is_drawn(pages, settings):
    (page,) = pages("growth", make_table(noise=0, wander=0), settings=settings)
    for ax in page.figure.axes:
        assert not {"σ²", "σ⁵", "σ⁶"} & set(words(ax).splitlines())
    assert words(page.figure.axes[1]) == "= 0 (theorem)"
    assert words(page.figure.axes[3]) == "slope 6.00"


@pytest.mark.long
def test_names_that_nobody_knows_have_rows_and_labels(pages):
    names = ["blocks.0.attn.qkv", "a$b_{x", "mlp", "W_V"]
    blocks = single(names)
    for layout in (
        "growth",
        "growth_by_depth",
        "linear_axes",
        "one_panel",
        "pairs",
        "blocks",
        "ablation",
    ):
        (page, *_) = pages(
            layout,
            make_table(blocks=blocks, networks=[("", 1)], sigma=SIGMA[:4], seeds=2),
        )
        page.figure.draw_without_rendering()  # every label can be laid out
    (page,) = pages("growth", make_table(blocks=blocks, seeds=2))
    labels = [ax.get_ylabel() for ax in page.figure.axes[::3]]
    assert [label.partition(" block")[0] for label in labels[1:]] == [
        names[0],
        r"a\$b_{x",
        "MLP",
    ]


@pytest.mark.long
def test_along_steps_there_is_no_sigma(pages):
    table = make_table(
        sigma=[0.1],
        steps=[1, 10, 100, 1000],
        law=lambda b, p, a, s: 1.0,
        noise=0,
        wander=0,
    )
    table = table.assign(value=table["value"] / table["step"] ** 0.5)
    settings = {**config(), "sweep": {"axis": "step"}}
    for layout in ("growth", "linear_axes", "one_panel"):
        (page,) = pages(layout, table, settings=settings, windows=[(None, 100.0)])
        assert page.figure.axes[-1].get_xlabel() == "step"
        assert not any(
            list(line.get_xdata()) == [1.0, 1.0]
            for ax in page.figure.axes
            for line in ax.lines
        )
        note = page.figure.get_label().replace("\u00a0", " ")
        assert "σ = 1" not in note
        assert "At σ = 0.1." in note
        assert "step ≤ 100" in note
    (page,) = pages(
        "growth", table, settings=settings, windows=[(None, 100.0), (None, None)]
    )
    assert words(page.figure.axes[0]).split() == [
        "step",
        "≤",
        "100:",
        "−0.50",
        "all",
        "step:",
        "−0.50",
    ]


def test_other_weights_get_rows_of_their_own(pages):
    (page,) = pages(
        "growth", make_table(blocks=[("W_K", "W_K"), ("W_V", "W_V"), ("W_K", "W_V")])
    )
    labels = [ax.get_ylabel() for ax in page.figure.axes[::3]]
    assert len(labels) == 2
    assert "V" in labels[0]
    assert "K" in labels[1]


@pytest.mark.parametrize(
    "layout", thinned(["growth", "growth_by_depth", "linear_axes", "one_panel"], 2)
)
def test_a_table_of_pairs_alone_says_what_is_not_measured(pages, layout):
    table = make_table(seeds=2, sigma=[0.1, 0.3, 1.0], blocks=[("W_K", "W_Q")])
    for page in pages(layout, table):
        for ax in page.figure.axes:
            assert words(ax).startswith("(not measured)")


def test_geometric_means_are_drawn_where_slopes_are_fitted_to_them(tmp_path):
    table = make_table(seeds=6, sigma=SIGMA[:4], noise=0.5)
    folder = write_sweep(table, tmp_path)
    fields = {"average": "geometric"}
    measured = read_measured(
        FigureSpec("6", "sigma", "growth", [(None, 1.0)], **fields), Source(folder)
    )
    values = table[(table["row"] == "W_Q") & (table["part"] == "H")].groupby("sigma")[
        "value"
    ]
    logs = values.agg(lambda of_sigma: np.log(of_sigma).mean())
    query = measured.of(row="W_Q", part="H").curves
    np.testing.assert_allclose(query["mean"], np.exp(logs))
    errors = values.agg(lambda of_sigma: np.log(of_sigma).sem())
    np.testing.assert_allclose(query["sem"], np.exp(logs) * errors)
    zero = measured.of(row="W_V", part="H_f").curves
    assert (zero["mean"] == 0).all()
    assert "geometric mean over 6 seeds" in measured.how()
