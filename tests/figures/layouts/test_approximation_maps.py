"""Maps of approximations: what their cells hold, and what is refused."""

import numpy as np
import pandas as pd
import pytest

from hessfig.errors import UserError
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.sheets import LAYOUTS, FigureSpec
from hessfig.studies.removal.row_names import INFLUENCES
from tests.analysis.spectral import spectral_table
from tests.analysis.synthetic import CONFIG, make_table, write_sweep
from tests.figures.conftest import dots, texts_of

ERRORS = {"kfac": 0.25, "kfoc": 0.125}


def test_a_cell_is_the_mean_error_of_an_approximation(tmp_path):
    made = [
        make_table(
            seeds=2,
            sigma=[0.1, 1.0],
            blocks=[("W_Q", "W_Q"), ("W_V", "W_V")],
            parts=["H"],
        ).assign(quantity=f"{name}_{number}", value=value, status="ok")
        for name, value in ERRORS.items()
        for number in ("error", "scale_error")
    ]
    table = pd.concat(made, ignore_index=True)
    lost = (table["quantity"] == "kfac_scale_error") & (table["row"] == "W_Q")
    folder = write_sweep(table[~lost], tmp_path, settings=CONFIG)
    spec = FigureSpec(
        "maps", folder.name, "approximations", [(None, None)], {}, paper=Paper()
    )
    with styled(spec.paper):
        (page,) = LAYOUTS["approximations"].draw(spec, folder)
    shown = page.figure.axes[0].images[0].get_array().filled(np.nan)
    np.testing.assert_allclose(shown, [[np.nan, 0.125], [0.25, 0.125]])
    names = texts_of(page.figure.axes[0].get_xticklabels())
    assert names == ["K-FAC", "best Kronecker"]


def test_a_table_without_approximations_is_refused(tmp_path):
    folder = write_sweep(make_table(seeds=1), tmp_path, settings=CONFIG)
    spec = FigureSpec(
        "maps", folder.name, "approximations", [(None, None)], {}, paper=Paper()
    )
    with pytest.raises(UserError, match="the table has no approximations"):
        list(LAYOUTS["approximations"].draw(spec, folder))


def test_scores_of_predictions_stand_next_to_errors_of_matrices(tmp_path):
    numbers = {
        name: (0.9 - 0.1 * rank, 0.2 * rank) for rank, name in enumerate(INFLUENCES)
    }
    table = spectral_table(
        [
            {
                "quantity": f"{name}_influence_{which}",
                "value": value + 0.01 * seed,
                "step": step,
                "seed": seed,
            }
            for step, off in ((1.0, -0.2), (2.0, 0.0))
            for seed in range(3)
            for name, (score, error) in numbers.items()
            for which, value in (("score", score + off), ("error", error))
        ]
    )
    folder = write_sweep(
        table, tmp_path, settings={**CONFIG, "sweep": {"axis": "step"}}
    )
    spec = FigureSpec(
        "influence", folder.name, "influence", [(None, None)], {}, paper=Paper()
    )
    with styled(spec.paper):
        (page,) = LAYOUTS["influence"].draw(spec, folder)
    for column, ax in enumerate(page.figure.axes):
        (points,) = dots(ax)
        np.testing.assert_allclose(
            np.asarray(points.get_xdata(), dtype=float),
            [one[column] + 0.01 for one in numbers.values()],
            atol=2e-3,
        )
    names = texts_of(page.figure.axes[0].get_yticklabels())
    assert names == [
        "Hessian",
        "Gauss-Newton",
        "K-FAC",
        "EK-FAC",
        "diagonal",
        "identity",
    ]
    assert (page.numbers["low"] < page.numbers["mean"]).all()
