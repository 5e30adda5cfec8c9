"""Mean curves: what is averaged, what is left out, what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from hessfig.analysis.curves import growth_curves, seed_matrix
from hessfig.analysis.table import CURVE
from tests.analysis.synthetic import SIGMA, make_table


def test_mean_error_and_count() -> None:
    table = make_table(seeds=4, blocks=[("W_Q", "W_Q")], parts=["H"], sigma=[0.1])
    (curve,) = growth_curves(table).to_dict("records")
    values = table["frob"].to_numpy()
    assert curve["mean"] == pytest.approx(values.mean())
    assert curve["sem"] == pytest.approx(values.std(ddof=1) / 2)
    assert curve["probe_sem"] == pytest.approx(np.sqrt((table["frob_sem"] ** 2).sum()) / 4)
    assert (curve["count"], curve["num_nonfinite"], curve["is_zero"]) == (4, 0, False)


def test_nonfinite_numbers_are_counted_and_left_out() -> None:
    table = make_table(seeds=3, blocks=[("W_Q", "W_Q")], parts=["H"], sigma=[0.1])
    table.loc[0, ["frob", "status"]] = [np.inf, "nonfinite"]
    (curve,) = growth_curves(table).to_dict("records")
    assert curve["mean"] == pytest.approx(table["frob"][1:].mean())
    assert (curve["count"], curve["num_nonfinite"]) == (2, 1)
    assert np.isnan(seed_matrix(table).to_numpy()).sum() == 1


def test_a_single_seed_has_no_error() -> None:
    assert growth_curves(make_table(seeds=1))["sem"].isna().all()


def test_structural_zeros_are_marked() -> None:
    curves = growth_curves(make_table())
    assert set(curves[curves["is_zero"]]["part"]) == {"H_f"}
    assert set(curves[curves["is_zero"]]["row"]) == {"W_V"}


def test_reading_order() -> None:
    variants = ["model.temperature=10.0", "model.temperature=2.0"]
    table = make_table(networks=[(variants[0], 1), (variants[1], 1)], sigma=[0.1]).sample(
        frac=1, random_state=0
    )
    table = table.sort_values("variant", key=lambda column: column.map(variants.index), kind="stable")
    curves = growth_curves(table)
    assert list(curves["variant"].unique()) == variants
    assert list(curves["part"][:3]) == ["H_o", "H_f", "H"]
    assert not curves.duplicated(CURVE).any()


def test_every_sigma_is_kept() -> None:
    assert sorted(growth_curves(make_table())["sigma"].unique()) == sorted(SIGMA)
