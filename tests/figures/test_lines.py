"""The general layouts by the data of their artists: lines along anything, and blocks beside each other."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from hessfig.analysis.axis import variants_in_order
from hessfig.analysis.curves import growth_curves
from hessfig.errors import UserError
from hessfig.figures.parts.page import relabel
from tests.analysis.synthetic import CONFIG, make_table, networks, pairs, single
from tests.daily import daily
from tests.figures.conftest import (
    colours,
    guides,
    heights,
    labels_of,
    note_of,
    suffixes,
    texts_of,
    words,
)

WIDTHS = (16, 32, 64, 128)
OWN = {
    **CONFIG,
    "model": {"kind": "python", "n_layers": 0},
    "state": {"kind": "loaded"},
}


def drawn(ax):
    """Return the lines of a panel that have markers."""
    return [line for line in ax.lines if line.get_marker() not in ("", "None", None)]


def ylabels(page):
    return [ax.get_ylabel() for ax in page.figure.axes if ax.get_ylabel()]


def legend(page):
    """Return the legend above the panels, or that of the first panel."""
    found = page.figure.legends or [page.figure.axes[0].get_legend()]
    return texts_of(found[0].get_texts())


def width_table(sigma=(0.1, 1.0)):
    """Return a table that varies width and heads: sigma^2 times the root of the width, times the heads."""
    made = [(f"model.d_model={d},model.n_heads={h}", 1) for d in WIDTHS for h in (1, 2)]
    table = make_table(
        networks=made, sigma=sigma, law=lambda b, p, a, s: s**2, noise=0, wander=0
    )
    width, heads = (
        table["variant"].str.extract(r"=(\d+).*=(\d+)").astype(float).values.T
    )
    return table.assign(value=table["value"] * width**0.5 * heads)


def test_lines_along_a_setting_with_colour_and_dashes(pages):
    (page,) = pages(
        "lines", width_table(), x="model.d_model", colour="sigma", dashes="n_heads"
    )
    axes = page.figure.axes
    assert len(axes) == 6
    assert axes[-1].get_xlabel() == "width"
    assert axes[0].get_xscale() == axes[0].get_yscale() == "log"
    for ax in axes:
        found = {
            (line.get_color(), str(line.get_linestyle())): np.asarray(line.get_ydata())
            for line in drawn(ax)
        }
        assert len(found) == 4
        expected = [s**2 * h * np.sqrt(WIDTHS) for s in (0.1, 1.0) for h in (1, 2)]
        for values, truth in zip(
            sorted(found.values(), key=lambda v: v[0]), expected, strict=True
        ):
            np.testing.assert_allclose(values, truth)
    assert words(axes[0]).splitlines() == ["sigma:", "0.1", "1", "heads 1", "heads 2"]
    assert {(line.get_linestyle(), line.get_marker()) for line in drawn(axes[0])} == {
        ("-", "o"),
        ("--", "s"),
    }
    assert {"model.d_model", "mean", "sem"} <= set(page.numbers.columns)


def test_correlations_and_shares_keep_a_linear_scale(pages):
    """Their means may span decades where single seeds lie below zero."""
    table = make_table(
        blocks=[("W_Q", "W_Q")], parts=["H"], law=lambda b, p, a, s: s**2
    )
    for quantity, scale in (
        ("fisher_rank_correlation", "linear"),
        ("landscape_top_share", "linear"),
        ("trace", "log"),
    ):
        (page,) = pages("lines", table.assign(quantity=quantity), quantity=quantity)
        assert page.figure.axes[0].get_yscale() == scale


@pytest.mark.long
def test_without_names_colour_and_dashes_are_what_varies_first(pages):
    (page,) = pages("lines", width_table())
    assert sorted(legend(page)) == [
        "128",
        "32",
        "64",
        "heads 1",
        "heads 2",
        "width: 16",
    ]
    assert page.figure.axes[-1].get_xlabel() == "σ"


def test_what_is_not_seen_has_pages_of_its_own(pages):
    found = pages("lines", width_table(), x="d_model", colour="part", dashes="n_heads")
    assert suffixes(found) == ["_sigma_0.1", "_sigma_1"]
    assert [len(page.figure.axes) for page in found] == [2, 2]
    note = note_of(found[0])
    assert note.startswith("Sigma 0.1. ")


def test_weights_stand_in_one_panel_in_their_colours(pages):
    (page,) = pages(
        "lines", make_table(networks=[("", 1)], parts=["H"]), colour="weight"
    )
    (ax,) = page.figure.axes
    assert colours(drawn(ax)) == {"#7570b3", "#1b9e77"}
    named = {
        text.get_text(): text for text in ax.texts if text.get_text().endswith("$")
    }
    assert {words: to_hex(text.get_color()) for words, text in named.items()} == {
        r"$W_{\mathrm{Q}}$": "#1b9e77",
        r"$W_{\mathrm{V}}$": "#7570b3",
    }
    assert ax.get_legend() is None
    one, other = named.values()
    apart = abs(one.xy[1] - other.xy[1]) * ax.get_position().height
    # Inches: neither is written on the other.
    assert apart * ax.figure.get_figheight() >= 0.1
    assert ax.get_ylabel() == r"block $\|\cdot\|_F$"


def test_several_quantities_are_columns_and_may_be_negative(pages):
    traces = make_table(quantity="trace", law=lambda b, p, a, s: 1 - s, parts=["H"])
    both = pd.concat([make_table(parts=["H"]), traces], ignore_index=True)
    (page,) = pages("lines", both, quantity=["frobenius", "trace"])
    norms, trace = page.figure.axes[:2]
    assert (norms.get_title(), trace.get_title()) == ("block norm", "trace")
    assert (norms.get_yscale(), trace.get_yscale()) == ("log", "linear")
    assert min(drawn(trace)[0].get_ydata()) < 0
    with pytest.raises(
        UserError, match=r"no numbers of this quantity[\s\S]*frobenius, trace"
    ):
        pages("lines", both, quantity="loss")


def test_a_step_0_is_drawn(pages):
    table = make_table(
        sigma=None, steps=[0, 1, 10, 100], law=lambda b, p, a, t: 1 / (1 + t)
    )
    (page,) = pages("lines", table, settings={**CONFIG, "sweep": {"axis": "step"}})
    ax = page.figure.axes[0]
    assert ax.get_xscale() == "symlog"
    assert list(drawn(ax)[0].get_xdata()) == [0, 1, 10, 100]
    assert page.figure.axes[-1].get_xlabel() == "step"


def test_no_panel_is_blank(pages):
    (page,) = pages("lines", make_table(parts=["H_o", "H_f"]))
    assert words(page.figure.axes[3]) == "= 0 (every number)"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"x": "d_modl"}, r"figure.x: [\s\S]*did you mean 'd_model'"),
        ({"colour": "layr"}, r"figure.colour: [\s\S]*did you mean 'layer'"),
        ({"dashes": "n_layers", "colour": "num_layers"}, "are the same"),
        (
            {"x": "d_model", "colour": "d_model"},
            r"figure.colour: [\s\S]*does not vary it",
        ),
        ({"x": "step"}, "no number of this table has a step"),
    ],
)
def test_names_of_nothing(pages, settings, message):
    with pytest.raises(UserError, match=message):
        pages("lines", width_table(), **settings)


def test_a_loaded_state_is_drawn_as_points_against_names(pages):
    names = ["blocks.0.attn", "a$b_{x", "head [0]"]
    table = make_table(
        networks=[("", 0)],
        sigma=None,
        seeds=1,
        blocks=pairs(names),
        settings=OWN,
        wander=0,
        noise=0,
    )
    with pytest.raises(UserError, match="no number of this table has a sigma"):
        pages("lines", table, settings=OWN, colour="layer")
    for layout in ("bars", "lines"):
        (page,) = pages(layout, table, settings=OWN)
        assert len(page.figure.axes) == 3
        labels = texts_of(page.figure.axes[-1].get_xticklabels())
        assert labels[:2] == ["blocks.0.attn", r"blocks.0.attn, a\$b_{x"]
        assert len(labels) == 6
        for ax in page.figure.axes:
            (container,) = ax.containers
            np.testing.assert_allclose(
                container.lines[0].get_ydata().astype(float), 3.0
            )
            half = np.asarray(container.lines[2][0].get_segments()[0], dtype=float)[
                :, 1
            ]
            # A single seed: the estimate's own error.
            np.testing.assert_allclose(half, [2.85, 3.15])


def test_layers_stand_side_by_side_and_zeros_are_said(pages):
    table = make_table(
        networks=[("", 2)], sigma=[0.1, 1.0], blocks=[("W_V", "W_V"), ("W_U", "W_U")]
    )
    (page,) = pages("bars", table, at=0.11)
    outer, functional, _ = page.figure.axes
    assert "At σ = 0.1." in note_of(page)
    assert labels_of(outer.containers) == ["0", "1", "2"]
    assert "= 0" in words(functional)


def test_pairs_across_layers_and_numbers_of_no_block(pages):
    table = make_table(networks=[("", 2)], blocks=[("W_V", "W_Q")], sigma=None)
    across = table[table["layer"] == 2].assign(row_layer=1)
    (page,) = pages("bars", pd.concat([table, across], ignore_index=True))
    labels = texts_of(page.figure.axes[-1].get_xticklabels())
    assert labels == [
        r"$W_{\mathrm{V}}, W_{\mathrm{Q}}$",
        r"$W_{\mathrm{V}}$ of layer 1, $W_{\mathrm{Q}}$ of layer 2",
    ]
    with pytest.raises(
        UserError, match=r"draws blocks within a layer[\s\S]*figure.layout=lines"
    ):
        pages("growth", across)
    loss = make_table(quantity="loss").assign(
        row="", col="", part="", layer=0, row_layer=0
    )
    loss = loss.drop_duplicates(["sigma", "seed"])
    (page,) = pages("lines", loss, quantity="loss")
    assert page.figure.axes[0].get_ylabel() == "network loss"


@pytest.mark.long
def test_many_blocks_take_several_pages(pages):
    table = make_table(
        blocks=single(f"w{k}" for k in range(32)),
        sigma=[0.1, 1.0],
        seeds=2,
        parts=["H"],
    )
    assert suffixes(pages("bars", table)) == ["_sheet1", "_sheet2"]
    assert len(pages("lines", table)) == 6


@pytest.mark.parametrize(
    ("sigma", "ticks"),
    [
        ((0.01, 0.051021, 0.260314, 1.32815), ["10⁻²", "10⁻¹", "10⁰"]),
        ((0.02, 0.1, 0.5, 2.5), ["0.02", "0.1", "0.5", "2.5"]),
    ],
)
@pytest.mark.long
def test_ticks_of_ones_own_grid_are_round(pages, sigma, ticks):
    (page,) = pages(
        "lines", width_table(sigma), x="sigma", colour="model.d_model", dashes="n_heads"
    )
    page.figure.draw_without_rendering()
    ax = page.figure.axes[-1]
    low, high = ax.get_xlim()
    shown = [
        tick.label1.get_text()
        for tick in ax.xaxis.get_major_ticks()
        if low <= tick.get_loc() <= high
    ]
    assert [text for text in shown if text] == ticks


ACTIVATIONS = ("relu", "gelu", "tanh")
GROWTH = 1e-3  # at sigma = 1
VARIED = {
    **OWN,
    "model": {**OWN["model"], "options": {"activation": "relu", "width": 8}},
    "sweep": {"axis": "sigma"},
}


def activation_table():
    """Return three activations at three widths, the widths in no order; blocks grow as sigma^2."""
    made = [
        (f"model.options.activation={a},model.options.width={w}", 0)
        for a in ACTIVATIONS
        for w in (128, 16, 8)
    ]
    return make_table(
        networks=made, law=lambda b, p, a, s: GROWTH * s**2, settings=VARIED, seeds=3
    )


@pytest.mark.long
def test_three_activations_at_three_widths_are_told_apart(pages):
    """Words have colours of their own, widths dashes and marks; the legend stands above, and stretches no axis."""
    table = activation_table()
    (page,) = pages("lines", table, settings=VARIED)
    ax = page.figure.axes[0]
    lines = drawn(ax)
    assert (
        len({(to_hex(line.get_color()), line.get_marker()) for line in lines})
        == len(lines)
        == 9
    )
    assert len(colours(lines)) == len({line.get_marker() for line in lines}) == 3
    assert sorted(legend(page)) == [
        "activation: relu",
        "gelu",
        "tanh",
        "width 128",
        "width 16",
        "width 8",
    ]
    assert ax.get_legend() is None
    values = table[(table["row"] == "W_V") & (table["part"] == "H_o")]["value"]
    low, high = ax.get_ylim()
    assert high < 10 * values.max()
    assert low > values.min() / 10


@pytest.mark.long
def test_slopes_and_predicted_powers_as_in_the_paper(pages):
    stated = {**VARIED, "sweep": {"axis": "sigma", "predictions": {"W_V": {"H_o": 2}}}}
    (page,) = pages("lines", activation_table(), settings=stated)
    axes = page.figure.axes
    value = axes[3]
    assert words(value).splitlines() == ["slopes 2.00", "σ²"]
    assert words(axes[0]) == "slopes 2.00"
    (guide,) = guides(value)
    x = np.asarray(guide.get_xdata())
    y = np.asarray(guide.get_ydata())
    np.testing.assert_allclose(np.diff(np.log(y)) / np.diff(np.log(x)), 2)
    assert (
        y < min(line.get_ydata()[0] for line in drawn(value)) * (x / x[0]) ** 2
    ).all()
    assert (
        "Dashed grey: predicted power law. Slopes: least squares"
        in page.figure.get_label()
    )
    few = {"model.options.width": 8, "activation": ["relu", "tanh"]}
    (page,) = pages("lines", activation_table(), settings=stated, where=few)
    assert [line[:10] for line in words(page.figure.axes[0]).splitlines()[:2]] == [
        "relu: 2.00",
        "tanh: 2.00",
    ]
    (page,) = pages("lines", activation_table(), settings=stated, slopes=False)
    assert "slope" not in words(page.figure.axes[0])
    assert not guides(page.figure.axes[0])
    with pytest.raises(UserError, match=r"figure.options.slopes[\s\S]*true or false"):
        pages("lines", activation_table(), settings=stated, slopes="no")


def test_several_predicted_powers_name_their_lines(pages):
    made = networks("model.attention", ("softmax", "linear"))
    table = make_table(
        networks=made, blocks=[("W_V", "W_V"), ("W_K", "W_K")], parts=["H_o"], seeds=2
    )
    (page,) = pages("lines", table)
    key, value = page.figure.axes
    assert "σ² (softmax)" in words(value)
    assert "σ⁶ (linear attention)" in words(value)
    assert "σ⁶" in words(key).splitlines()


@pytest.mark.parametrize(
    ("where", "names"),
    [
        pytest.param(
            {"activation": "gelu"}, ["width: 8", "16", "128"], marks=pytest.mark.long
        ),
        pytest.param(
            {"width": [128, 8], "model.options.activation": ["tanh", "relu"]},
            ["activation: relu", "tanh", "width 8", "width 128"],
            marks=pytest.mark.long,
        ),
        (
            {"sigma": [0.01, 10], "width": 8, "row": "W_Q"},
            ["activation: relu", "gelu", "tanh"],
        ),
    ],
)
def test_some_variants_only(pages, where, names):
    (page,) = pages("lines", activation_table(), settings=VARIED, where=where)
    assert set(legend(page)) == set(names)
    assert len(drawn(page.figure.axes[0])) == max(
        1, len(names) if len(where) != 2 else 4
    )
    if "sigma" in where:
        assert set(page.numbers["sigma"]) == {0.01, 10.0}
        assert set(page.numbers["row"]) == {"W_Q"}


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            {"activation": "relux"},
            r"no number has this activation[\s\S]*relu, gelu, tanh[\s\S]*activation: relu",
        ),
        (
            {"activatin": "relu"},
            r"figure.where: the sweep does not vary it[\s\S]*did you mean",
        ),
        ({"width": [8, 9]}, r"width: 9[\s\S]*128, 16, 8"),
    ],
)
def test_variants_that_are_not_there(pages, where, message):
    with pytest.raises(UserError, match=message):
        pages("lines", activation_table(), settings=VARIED, where=where)


@pytest.mark.long
def test_rows_keep_their_names_beside_an_own_label(pages):
    (page,) = pages("lines", activation_table(), settings=VARIED)
    relabel(page.figure, ylabel=r"$\|H\|$")
    assert ylabels(page) == [r"$W_{\mathrm{Q}}$: $\|H\|$", r"$W_{\mathrm{V}}$: $\|H\|$"]
    (page,) = pages("lines", activation_table(), settings=VARIED, where={"row": "W_Q"})
    relabel(page.figure, ylabel="norm")
    assert ylabels(page) == ["norm"]


def test_values_that_are_weights_have_the_colours_of_weights(pages):
    made = networks("model.scaled_weight", ("W_Q", "W_K", "W_V"))
    own = {**CONFIG, "model": {**CONFIG["model"], "scaled_weight": None}}
    table = make_table(networks=made, parts=["H"], settings=own)
    (page,) = pages("lines", table, settings=own, colour="scaled_weight")
    assert colours(drawn(page.figure.axes[0])) == {"#1b9e77", "#a6c84c", "#7570b3"}


def test_variants_come_in_natural_order():
    found = variants_in_order(activation_table()["variant"])
    widths = [variant.rpartition("=")[2] for variant in found]
    assert widths == ["8", "16", "128"] * 3
    assert [one.partition(",")[0][-4:] for one in found[::3]] == list(ACTIVATIONS)
    assert variants_in_order(["a.b=10", "a.b=9", "", "a.b=1e-3"]) == [
        "",
        "a.b=1e-3",
        "a.b=9",
        "a.b=10",
    ]
    shown = list(dict.fromkeys(growth_curves(activation_table())["variant"]))
    assert shown == found


@pytest.mark.parametrize("tall", daily(["H_o", "H_f", "H"], "H_f"))
def test_limits_hold_the_points_of_all_panels_of_a_row(pages, tall):
    """Slopes were written, and limits kept, when only the first panel of a row was drawn."""
    table = make_table(
        law=lambda b, p, a, s: s**2 * (1e4 if p == tall else 1.0), settings=VARIED
    )
    (page,) = pages(
        "lines",
        table,
        settings={**VARIED, "sweep": {"predictions": {"W_V": {"H_o": 2}}}},
    )
    for ax in page.figure.axes:
        low, high = ax.get_ylim()
        found = np.concatenate(heights(drawn(ax)))
        assert len(found)
        assert low < found.min()
        assert found.max() < high


@pytest.mark.parametrize(
    "variants",
    [
        ("", "model.mlp=gelu"),
        pytest.param(("model.mlp=gelu", ""), marks=pytest.mark.long),
    ],
)
def test_a_variant_that_does_not_change_a_setting_is_named_by_its_value(
    pages, variants
):
    table = make_table(networks=[(variants[0], 1), (variants[1], 1)])
    (page,) = pages("lines", table, colour="mlp")
    assert sorted(legend(page)) == sorted(
        {"mlp: relu", "gelu"} if not variants[0] else {"mlp: gelu", "relu"}
    )


def test_variants_that_differ_in_several_settings_have_a_colour_each(pages):
    several = "model.mlp=gelu,model.norm=pre,model.n_heads=2,model.temperature=2.0"
    (page,) = pages(
        "lines", make_table(networks=[("", 1), (several, 1)]), colour="variant"
    )
    assert legend(page) == [
        "variant: plain",
        "mlp gelu, pre-LN, heads 2, temperature 2.0",
    ]
    assert len(colours(drawn(page.figure.axes[0]))) == 2


def test_values_of_a_setting_stand_side_by_side(pages):
    """Trained and random weights share a panel, each with its colour and mark, and their page is that of the rest."""
    made = networks("model.random", (False, True))
    settings = {**CONFIG, "model": {**CONFIG["model"], "random": False}}
    blocks = [("W_V", "W_V"), ("W_Q", "W_Q")]
    table = make_table(
        networks=made, sigma=[1.0], blocks=blocks, parts=["H"], settings=settings
    )
    (page,) = pages("bars", table, settings=settings, colour="model.random")
    (ax,) = page.figure.axes
    trained, random = (container.lines[0] for container in ax.containers)
    assert trained.get_color() != random.get_color()
    assert trained.get_marker() != random.get_marker()
    assert np.all(trained.get_xdata() < random.get_xdata())
    assert len(page.numbers) == 4
    (legend,) = page.figure.legends
    assert texts_of(legend.get_texts()) == ["trained weights", "random weights"]
