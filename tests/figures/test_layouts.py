"""The other sheets by the data of their artists."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from hessfig.analysis.axis import short_variant, varied_setting
from hessfig.analysis.curves import functional_shares
from hessfig.errors import UserError
from hessfig.figures.layouts.block_maps import norm_matrix
from hessfig.figures.parts.page import styled
from hessfig.figures.parts.panels import name_ends
from hessfig.terms import Matrix
from tests.analysis.synthetic import config, depths, make_table, networks, pairs
from tests.figures.artists import under_legends
from tests.figures.conftest import (
    colours,
    curves,
    guides,
    heights,
    labels_of,
    suffixes,
    texts_of,
    words,
)

BARE = config(kind="self_attention", mlp="none", attention_skip=False) | {
    "task": {"loss": "mse"}
}
TRIANGLE = pairs(("W_Q", "W_K", "W_V"))


def test_linear_axes_draw_the_predicted_power(pages):
    table = make_table(
        sweep="linear_axis", sigma=np.linspace(0.1, 1, 10).tolist(), noise=0, wander=0
    )
    (page,) = pages("linear_axes", table, windows=[(None, None)])
    ax = page.figure.axes[3]
    assert ax.get_xscale() == ax.get_yscale() == "linear"
    (guide,) = guides(ax)
    np.testing.assert_allclose(guide.get_ydata(), 3 * guide.get_xdata() ** 6)
    assert words(page.figure.axes[1]) == "= 0 (theorem)"


@pytest.mark.long
def test_overview_shows_every_fitted_slope_and_prediction(pages, deep):
    *sheets, overview = pages("growth_by_depth", deep)
    assert len(sheets) == 3
    assert overview.suffix == "_overview"
    ax = overview.figure.axes[3]
    assert len(ax.containers) == 6
    slopes = [container.lines[0].get_ydata()[0] for container in ax.containers]
    np.testing.assert_allclose(slopes, 6, atol=0.1)
    assert "last layer: = 0 (theorem)" in words(overview.figure.axes[1])


def test_one_panel_for_all_layers_of_all_depths(pages):
    settings = config(kind="linear_mlp") | {"task": {"loss": "mse_sum_unshifted"}}
    table = make_table(
        sweep="mlp",
        networks=depths(1, 2, 3),
        blocks=[("W", "W")],
        parts=["H"],
        settings=settings,
    )
    (page,) = pages("one_panel", table, settings=settings)
    (ax,) = page.figure.axes
    drawn = curves(ax)
    assert len(drawn) == 1 + 2 + 3
    assert len(colours(drawn)) == 3
    one, two, three = (line.get_linewidth() for line in drawn[3:])
    assert one >= two >= three
    assert "Layers: slope of each" in words(ax).splitlines()
    assert not under_legends(page.figure)


@pytest.mark.long
def test_pairs_show_measured_beside_predicted(pages):
    made = networks("model.attention", ("softmax", "linear"))
    table = make_table(
        sweep="eq5", networks=made, blocks=TRIANGLE, settings=BARE, seeds=4
    )
    softmax, linear = pages("pairs", table, settings=BARE)
    assert [softmax.suffix, linear.suffix] == [
        "_attention_softmax",
        "_attention_linear",
    ]
    grid = np.reshape(softmax.figure.axes, (3, 3))
    for (row, col), expected in {
        (0, 0): (6, 5),
        (0, 1): (6, 3),
        (0, 2): (4, 3),
        (1, 1): (6, 5),
    }.items():
        for exponent in expected:
            assert f"({exponent})" in words(grid[row, col])
    assert "= 0 (theorem)" in words(grid[2, 2])
    assert "(2)" in words(grid[2, 2])
    assert "transpose of" in words(grid[1, 0])
    assert "= 0 (theorem)" in words(np.reshape(linear.figure.axes, (3, 3))[0, 0])


def test_matrix_of_block_norms(pages):
    blocks = pairs(("W_E", "W_Q", "W_K", "W_V", "W_O", "W_U"))
    table = make_table(
        sweep="blocks", blocks=blocks, sigma=[0.1, 1.0], noise=0, wander=0
    )
    found = pages("blocks", table, sigma=0.12)
    assert suffixes(found) == ["_H_o", "_H_f", "_H"]
    written = texts_of(found[1].figure.axes[0].texts)
    assert len(written) == 36
    assert written[3 * 6 + 3] == "= 0"
    assert written[1 * 6 + 2] == f"{np.log10(3e-3):.1f}".replace("-", "−")


def test_norm_matrix_is_symmetric_and_knows_what_is_missing():
    norms = pd.DataFrame(
        {"row": ["W_Q", "W_Q"], "col": ["W_Q", "W_V"], "mean": [1.0, 2.0]}
    )
    square = norm_matrix(norms, [Matrix.W_Q, Matrix.W_V])
    np.testing.assert_array_equal(square, [[1, 2], [2, np.nan]])


def test_ablation_draws_shares_against_the_varied_setting(pages):
    def law(block, part, architecture, sigma):
        return {"H_o": 4.0, "H_f": 3.0, "H": 5.0}[part] * sigma**5

    made = networks("model.temperature", (0.5, 1.0, 4.0))
    table = make_table(
        sweep="temperature", networks=made, sigma=[0.1, 1.0], law=law, noise=0
    )
    (page,) = pages("ablation", table)
    assert page.panels == ("W_V", "W_Q")
    share = page.figure.axes[1]
    assert [words(share).splitlines()] == [["σ = 0.1", "σ = 1"]]
    assert share.get_xlabel() == "temperature"
    for container in share.containers:
        np.testing.assert_allclose(
            container.lines[0].get_xdata().astype(float), [0.5, 1.0, 4.0]
        )
        np.testing.assert_allclose(container.lines[0].get_ydata().astype(float), 3 / 7)


def test_blocks_without_a_functional_part_count_in_the_share_of_all_blocks(pages):
    def law(block, part, architecture, sigma):
        functional = 0.0 if block.row == "W_V" else 4.0
        return {"H_o": 6.0 if functional == 0 else 8.0, "H_f": functional, "H": 9.0}[
            part
        ]

    made = networks("model.n_heads", (1, 2))
    table = make_table(
        sweep="heads", networks=made, sigma=[0.1, 1.0], law=law, noise=0, wander=0
    )
    table.loc[(table["row"] == "W_V") & (table["part"] == "H_f"), "status"] = (
        "structural_zero"
    )
    (page,) = pages("ablation", table)
    query, both = page.figure.axes[:2]
    # 10: the root of 6^2 + 8^2.
    for ax, share in ((query, 4 / 12), (both, 4 / (4 + 10))):
        for container in ax.containers:
            np.testing.assert_allclose(
                container.lines[0].get_ydata().astype(float), share
            )
    assert "(V, V)" in str(page.figure.get_label())
    assert "together" in both.get_title()
    lost = (table["row"] == "W_V") & (table["part"] == "H_o") & (table["sigma"] == 1.0)
    table.loc[lost, ["value", "status"]] = [np.nan, "nonfinite"]
    (page,) = pages("ablation", table)
    # A sum with a number left out is left out.
    assert [len(ax.containers) for ax in page.figure.axes[:2]] == [2, 1]


def _at_scores(pages, varied, functional, **options):
    """Draw norms 3 of H_oT and `functional` of H_fT by network; return the page, its only panel and the table."""
    tables = []
    for network, size in zip(varied, functional, strict=True):
        norms = {"H_oT": 3.0, "H_fT": size, "H": 5.0}
        one = make_table(
            sweep="temperature",
            networks=[network],
            blocks=[("query_key", "query_key")],
            parts=[*norms],
            sigma=[0.1, 1.0],
            law=lambda b, p, a, s, norms=norms: norms[p.value] * s,
            **options,
        )
        tables.append(one)
    table = pd.concat(tables, ignore_index=True)
    (page,) = pages("score_split", table)
    (ax,) = [one for one in page.figure.axes if one.get_title()]
    return page, ax, table


def test_shares_at_the_scores_are_of_norms_and_have_bands_over_seeds(pages):
    varied = networks("model.temperature", (0.25, 1.0, 4.0))
    page, ax, table = _at_scores(pages, varied, [4.0] * 3, noise=0.3)
    assert len(ax.collections) == len(page.numbers["sigma"].unique()) == 2
    wide = table.pivot_table(
        index=["variant", "sigma", "seed"], columns="part", values="value"
    )
    share = wide["H_fT"] / (wide["H_oT"] + wide["H_fT"])
    by_place = share.groupby(["variant", "sigma"])
    means = by_place.mean()
    deviations = by_place.std()
    for row in page.numbers.itertuples():
        here = row.variant, row.sigma
        assert row.mean == pytest.approx(means[here])
        assert row.high - row.mean == pytest.approx(
            2.7764 * deviations[here] / 5**0.5, rel=1e-4
        )


def test_a_setting_without_numbers_has_a_line_per_value(pages):
    varied = networks("model.query_key", ("separate", "single"))
    _, ax, _ = _at_scores(pages, varied, [4.0, 0.0], noise=0.0)
    lines = dict(zip(labels_of(ax.lines), heights(ax.lines), strict=True))
    np.testing.assert_allclose(lines["two weights"], [4 / 7, 4 / 7])
    np.testing.assert_allclose(lines["one weight"], [0, 0])


def test_a_table_without_parts_at_the_scores_is_refused(pages):
    with pytest.raises(UserError, match=r"parts=\[H_oT,H_fT,H\]"):
        pages("score_split", make_table(networks=[("model.temperature=1.0", 1)]))


def test_share_is_taken_seed_by_seed():
    table = make_table(
        blocks=[("W_Q", "W_Q")],
        sigma=[0.1],
        law=lambda b, p, a, s: {"H_f": 1.0}.get(p, 2.0),
        noise=0,
    )
    (row,) = functional_shares(table).to_dict("records")
    assert row["mean"] == pytest.approx(1 / 3)
    assert row["sem"] == pytest.approx(0, abs=1e-12)


def test_a_short_variant_keeps_its_numbers_whole():
    assert (
        short_variant("model.temperature=0.25,model.n_heads=2")
        == "temperature=0.25,n_heads=2"
    )
    assert short_variant("") == ""


def test_varied_setting():
    assert varied_setting(["model.attention=softmax", "model.attention=linear"]) == (
        "attention",
        ["softmax", "linear"],
    )
    assert varied_setting(["a.x=1,b.y=2"]) == ("x, y", ["1, 2"])


@pytest.mark.parametrize("moved", [-1e-15, 0.0, 1e-15])
def test_names_of_lines_that_end_together_keep_their_order(moved):
    """Else the rounding of a processor would decide which of two names is above the other."""
    with styled():
        ax = Figure().subplots()
        ax.set_ylim(0, 1)
        name_ends(ax, [(0.43, "first", "k"), (0.43 + moved, "second", "k")])
    assert words(ax).splitlines() == ["first", "second"]
