"""Mean curves: what is averaged, what is left out, what is counted."""

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.curves import growth_curves, seed_matrix
from hessfig.errors import UserError
from hessfig.record import CURVE
from tests.analysis.synthetic import SIGMA, make_table


def test_mean_error_and_count():
    table = make_table(seeds=4, blocks=[("W_Q", "W_Q")], parts=["H"], sigma=[0.1])
    (curve,) = growth_curves(table).to_dict("records")
    values = table["value"].to_numpy()
    assert curve["mean"] == pytest.approx(values.mean())
    assert curve["sem"] == pytest.approx(values.std(ddof=1) / 2)
    assert curve["probe_sem"] == pytest.approx(np.sqrt((table["error"] ** 2).sum()) / 4)
    assert (curve["count"], curve["num_nonfinite"], curve["is_zero"]) == (4, 0, False)


@pytest.mark.parametrize(
    ("value", "status"), [(np.inf, "nonfinite"), (1.0, "not_converged")]
)
def test_numbers_without_a_value_are_counted_and_left_out(value, status):
    table = make_table(seeds=3, blocks=[("W_Q", "W_Q")], parts=["H"], sigma=[0.1])
    table.loc[0, ["value", "status"]] = [value, status]
    (curve,) = growth_curves(table).to_dict("records")
    assert curve["mean"] == pytest.approx(table["value"][1:].mean())
    assert curve["count"] == 2
    for name in ("nonfinite", "not_converged"):
        assert curve[f"num_{name}"] == (name == status)
    assert np.isnan(seed_matrix(table).to_numpy()).sum() == 1


def test_a_single_seed_has_no_error():
    assert growth_curves(make_table(seeds=1))["sem"].isna().all()


def test_structural_zeros_are_marked():
    curves = growth_curves(make_table())
    assert set(curves[curves["is_zero"]]["part"]) == {"H_f"}
    assert set(curves[curves["is_zero"]]["row"]) == {"W_V"}


def test_reading_order():
    variants = ["model.temperature=2.0", "model.temperature=10.0"]
    table = make_table(
        networks=[(variants[0], 1), (variants[1], 1)], sigma=[0.1]
    ).sample(frac=1, random_state=0)
    table = table.sort_values(
        "variant", key=lambda column: column.map(variants.index), kind="stable"
    )
    curves = growth_curves(table)
    assert list(curves["variant"].unique()) == variants
    assert list(curves["part"][:3]) == ["H_o", "H_f", "H"]
    assert not curves.duplicated(CURVE).any()


def test_every_sigma_is_kept():
    assert sorted(growth_curves(make_table())["x"].unique()) == sorted(SIGMA)


def test_numbers_without_a_sigma_are_averaged_over_seeds():
    table = make_table(seeds=4, sigma=None)
    curves = growth_curves(table)
    assert len(curves) == 6
    assert curves["x"].isna().all()
    assert set(curves["count"]) == {4}
    first = table[(table["row"] == "W_Q") & (table["part"] == "H_o")]["value"]
    assert curves["mean"].iloc[0] == pytest.approx(first.mean())


def test_quantities_are_never_mixed():
    norms = make_table()
    traces = make_table(
        quantity="trace", law=lambda b, p, a, s: -7.0, noise=0, wander=0
    )
    both = pd.concat([norms, traces], ignore_index=True)
    pd.testing.assert_frame_equal(growth_curves(both), growth_curves(norms))
    assert set(growth_curves(both, quantity="trace")["mean"]) == {-7.0}
    with pytest.raises(
        UserError,
        match=r"no numbers of this quantity[\s\S]*trase[\s\S]*did you mean 'trace'",
    ):
        growth_curves(both, quantity="trase")


def test_values_of_one_quantity_are_told_apart_by_their_index():
    table = make_table(quantity="eigenvalue", indices=[1, 2], law=lambda b, p, a, s: s)
    assert len(growth_curves(table, quantity="eigenvalue")) == 2 * 6 * len(SIGMA)
    assert set(growth_curves(table, quantity="eigenvalue", index=2)["index"]) == {2}
    with pytest.raises(UserError, match="no such number"):
        growth_curves(table, quantity="eigenvalue", index=3)


def test_an_error_that_is_not_known_makes_that_of_the_mean_unknown():
    table = make_table(seeds=2, blocks=[("W_Q", "W_Q")], parts=["H"], sigma=[0.1, 1.0])
    table.loc[0, "error"] = np.nan
    assert list(growth_curves(table)["probe_sem"].isna()) == [True, False]


def test_names_that_nobody_knows_come_as_they_do_in_the_table():
    names = ["head.weight", "W_Q", "mlp", "body.weight"]
    curves = growth_curves(
        make_table(blocks=[(name, name) for name in names], sigma=[0.1], parts=["H"])
    )
    assert list(curves["row"]) == ["W_Q", "head.weight", "body.weight", "mlp"]


def test_a_pair_across_layers_is_a_curve_of_its_own():
    table = make_table(
        networks=[("", 2)], blocks=[("W_V", "W_V")], parts=["H"], sigma=[0.1]
    )
    across = table[table["layer"] == 2].assign(row_layer=1)
    curves = growth_curves(pd.concat([table, across], ignore_index=True))
    assert list(zip(curves["row_layer"], curves["layer"], strict=True)) == [
        (1, 1),
        (1, 2),
        (2, 2),
    ]
