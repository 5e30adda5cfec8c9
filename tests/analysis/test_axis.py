"""The axis: what x is, what a variant loses and gains, and slopes along something other than sigma."""

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.axis import (
    Axis,
    along,
    as_variant,
    fixed_words,
    settings_of,
    short_variant,
    varied_key,
)
from hessfig.analysis.curves import growth_curves, seed_matrix
from hessfig.analysis.slopes import fit as slopes
from hessfig.analysis.slopes.gate import summary
from hessfig.analysis.slopes.printed import label
from hessfig.errors import UserError
from tests.analysis.synthetic import CONFIG, make_table, write_sweep

WIDTHS = (16, 32, 64, 128)
STEP = Axis("step")
WIDTH = Axis("model.d_model")


def square(block, part, architecture, place):
    """Return a value that grows with the square of the place."""
    return place**2


def widths(**options):
    """Return a table that varies the width, whose values are three times its square root."""
    networks = [
        (f"model.d_model={width},model.n_heads={heads}", 1)
        for width in WIDTHS
        for heads in (1, 2)
    ]
    table = make_table(
        networks=networks, law=lambda b, p, a, s: 3.0, noise=0, wander=0, **options
    )
    return table.assign(
        value=table["value"]
        * table["variant"].str.extract(r"=(\d+)")[0].astype(float) ** 0.5
    )


def test_sigma_is_the_axis_unless_told_otherwise():
    table = make_table()
    placed = along(table)
    pd.testing.assert_series_equal(placed["x"], table["sigma"], check_names=False)
    pd.testing.assert_frame_equal(placed.drop(columns="x"), table)
    assert along(placed, WIDTH) is placed


def test_a_setting_leaves_the_variant_before_anything_is_averaged():
    curves = growth_curves(widths(sigma=[0.1]), axis=WIDTH)
    assert list(curves["variant"].unique()) == ["model.n_heads=1", "model.n_heads=2"]
    assert sorted(curves["x"].unique()) == list(WIDTHS)
    np.testing.assert_allclose(curves["mean"], 3 * curves["x"] ** 0.5)
    assert set(curves["count"]) == {5}
    assert list(growth_curves(widths(sigma=[0.1]), axis=Axis("d_model"))["x"]) == list(
        curves["x"]
    )


def test_what_varies_beside_the_axis_joins_the_variant():
    table = make_table(sigma=[0.1, 0.3], steps=[1, 10, 100], law=square)
    steps = along(table, STEP)
    assert list(steps["variant"].unique()) == ["sigma=0.1", "sigma=0.3"]
    assert list(along(table)["variant"].unique()) == ["step=1", "step=10", "step=100"]
    along_width = along(widths(sigma=[0.1, 0.3]), WIDTH)
    assert set(along_width["variant"]) == {
        f"model.n_heads={h},sigma={s}" for h in (1, 2) for s in (0.1, 0.3)
    }
    assert list(
        along(make_table(sigma=[0.1], steps=[1, 10]), STEP)["variant"].unique()
    ) == [""]


def test_depth_may_be_the_axis():
    table = make_table(networks=[("", 1), ("", 2), ("", 3)], sigma=[0.1])
    curves = growth_curves(table, axis=Axis("model.n_layers"))
    assert set(curves["num_layers"]) == {3}
    first = curves[
        (curves["layer"] == 1) & (curves["row"] == "W_Q") & (curves["part"] == "H")
    ]
    assert list(first["x"]) == [1, 2, 3]


def test_seeds_and_places_of_the_matrix():
    wide = seed_matrix(
        make_table(sigma=None, steps=[1, 10], seeds=3, law=square), axis=STEP
    )
    assert list(wide.columns) == [1, 10]
    assert len(wide) == 6 * 3


@pytest.mark.parametrize(
    ("axis", "message"),
    [
        ("model.d_modl", r"does not vary it[\s\S]*did you mean 'model.d_model'"),
        ("model.kind", "does not vary it"),
        ("layer", "does not vary it"),
    ],
)
def test_axes_that_are_none(axis, message):
    with pytest.raises(UserError, match=f"sweep.axis: [\\s\\S]*{message}"):
        along(widths(sigma=[0.1]), Axis(axis))


def test_words_are_no_axis_and_neither_is_a_half_empty_column():
    table = make_table(
        networks=[("model.norm=pre", 1), ("model.norm=post", 1)], sigma=[0.1]
    )
    with pytest.raises(UserError, match=r"values are not all numbers[\s\S]*pre, post"):
        along(table, Axis("model.norm"))
    table = make_table(sigma=[0.1])
    table.loc[0, "sigma"] = np.nan
    with pytest.raises(UserError, match="1 of 30 rows without"):
        along(table)


def test_words_for_an_axis():
    assert [axis.symbol for axis in (Axis(), STEP, WIDTH)] == ["σ", "step", "width"]
    assert label((None, 100.0), STEP.symbol) == "step ≤ 100"
    assert label((None, None), "d_model") == "all d_model"
    assert fixed_words(widths(sigma=[0.1]), WIDTH) == " At σ = 0.1."
    assert fixed_words(make_table(), Axis()) == ""


def test_slopes_along_steps_know_no_prediction(tmp_path):
    settings = {**CONFIG, "sweep": {"axis": "step"}}
    table = make_table(
        sigma=[0.1], steps=[0, 1, 10, 100, 1000], law=lambda b, p, a, s: 1.0, noise=0
    )
    table = table.assign(value=table["value"] * table["step"].clip(1) ** 0.5)
    folder = write_sweep(table, tmp_path, settings=settings)
    frame = slopes.write_slopes(folder, [(1.0, 100.0), (None, None)])
    np.testing.assert_allclose(frame["slope"], 0.5, atol=1e-12)
    assert set(frame["num_points"]) == {3, 4}  # a step 0 has no logarithm
    assert set(frame["prediction"]) == {"unknown"}
    assert set(frame["axis"]) == {"step"}
    assert frame["published"].isna().all()
    assert summary(frame, 0.1) == (
        ["no slope has a prediction: nothing was checked"],
        1,
    )


def test_slopes_along_a_setting():
    frame = slopes.fit_slopes(widths(sigma=[0.1]), {}, [(None, None)], axis=WIDTH)
    assert set(frame["variant"]) == {"model.n_heads=1", "model.n_heads=2"}
    np.testing.assert_allclose(frame["slope"], 0.5)


def test_a_table_of_single_points_has_no_slopes(tmp_path):
    with pytest.raises(
        UserError, match=r"has a sigma, so there are no curves[\s\S]*figure.layout=bars"
    ):
        slopes.write_slopes(
            write_sweep(make_table(sigma=None), tmp_path), [(None, 1.0)]
        )


def test_texts_of_variants():
    text = "model.options.widths=[8, 16],model.attention=softmax,dtype=float32"
    found = settings_of(text)
    assert found == {
        "model.options.widths": "[8, 16]",
        "model.attention": "softmax",
        "dtype": "float32",
    }
    assert as_variant(found) == text
    assert settings_of("") == {}
    assert as_variant({}) == ""
    assert short_variant(text) == "widths=[8, 16],attention=softmax,dtype=float32"
    assert varied_key("attention", [text], asked="figure.colour") == "model.attention"
    with pytest.raises(
        UserError, match=r"figure.colour: there are several settings of this name"
    ):
        varied_key("seed", ["task.seed=1,model.seed=2"], asked="figure.colour")
