"""Power laws and the landscape by the data of their artists."""

import numpy as np
import pandas as pd
import pytest

from hessfig.errors import UserError
from tests.analysis.spectral import spectral_table
from tests.analysis.synthetic import CONFIG, make_table, networks
from tests.figures.conftest import curves, heights, labels_of, words

PLACES = (8, 16, 32, 64, 128)
ALONG_K = {
    **CONFIG,
    "sweep": {"axis": "index"},
    "landscape": {"distance": None, "direction": "random"},
}


def k_rows(laws, variant="", numbers=None):
    """Return a table of quantities of the network along k, three seeds; `laws` are functions of k."""
    values = {(name, 0): value for name, value in (numbers or {}).items()}
    for name, law in laws.items():
        values |= {(name, k): law(k) for k in PLACES}
    rows = []
    for (name, k), value in values.items():
        for seed in range(3):
            row = {"variant": variant, "quantity": name, "index": k, "seed": seed}
            rows.append({**row, "value": value * (1 + 0.1 * seed)})
    table = spectral_table(rows, sweep="sigma")
    return table.assign(row="", col="", part="", sigma=0.1, estimator="orders")


def test_curves_along_k_with_chance_beside_them(pages):
    table = k_rows(
        {"stationarity": lambda k: 3 * k**-0.5, "chance": lambda k: 2 * k**-0.5}
    )
    (page,) = pages(
        "power_laws",
        table,
        settings=ALONG_K,
        windows=[(None, None)],
        quantity=["stationarity"],
        chance={"stationarity": ["chance"]},
        published={"stationarity": -2.0},
    )
    (ax,) = page.figure.axes
    (curve,) = curves(ax)
    np.testing.assert_allclose(curve.get_ydata(), 3.3 * np.array(PLACES) ** -0.5)
    (grey,) = [line for line in ax.lines if line.get_linestyle() == "--"]
    np.testing.assert_allclose(grey.get_ydata(), 2.2 * np.array(PLACES) ** -0.5)
    assert "−0.500" in words(ax)
    assert "published slope −2" in words(ax)
    assert "chance: slope −0.500" in words(ax)
    assert ax.get_xlabel() == "k"
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert page.numbers.query("quantity == 'stationarity'")["slope"].iloc[
        0
    ] == pytest.approx(-0.5)
    assert set(page.numbers["index"]) == set(PLACES)


def test_blocks_are_rows_and_quantities_columns(pages):
    table = make_table(
        networks=networks("model.d_model", (16, 32, 64)),
        sigma=(0.1,),
        parts=("H",),
        law=lambda b, p, a, s: s,
        noise=0,
        wander=0,
    )
    table["value"] *= table["variant"].str.extract(r"=(\d+)")[0].astype(float)
    both = pd.concat([table, table.assign(quantity="trace", value=table["value"] ** 2)])
    settings = {**CONFIG, "sweep": {"axis": "model.d_model"}}
    (page,) = pages(
        "power_laws",
        both,
        settings=settings,
        windows=[(None, None)],
        quantity=["frobenius", "trace"],
    )
    axes = page.figure.axes
    assert len(axes) == 4
    assert axes[-1].get_xlabel() == "width"
    assert "1.00" in words(axes[0])
    assert "2.00" in words(axes[1])


def landscape_table():
    laws = {
        "landscape_difference": lambda k: 0.8 / (k + 1),
        "landscape_rms": lambda k: 1 / (k + 1),
        "landscape_null": lambda k: (1 + 1 / k) ** 0.5 / (k + 1),
        "landscape_bound": lambda k: 20 / (k + 1),
    }
    far = {**laws, "landscape_prediction": lambda k: 0.7 / (k + 1)}
    agreed = {"prediction_correlation": 0.9, "prediction_slope": 0.5}
    places = [("None", laws, {}), ("0.5", far, agreed)]
    return pd.concat(
        [k_rows(rows, f"landscape.distance={d}", one) for d, rows, one in places]
    )


@pytest.mark.long
def test_the_landscape_has_a_panel_a_distance_with_bound_and_prediction(pages):
    (page,) = pages(
        "landscape", landscape_table(), settings=ALONG_K, windows=[(None, None)]
    )
    at_state, far = page.figure.axes
    assert at_state.get_ylabel().endswith("at $w^*$")
    assert far.get_ylabel().endswith("at distance 0.5")
    lines = dict(zip(labels_of(far.lines), heights(far.lines), strict=True))
    k = np.array(PLACES)
    np.testing.assert_allclose(lines["mean"], 1.1 * 0.8 / (k + 1))
    np.testing.assert_allclose(lines["2nd order"], 1.1 * 0.7 / (k + 1))
    np.testing.assert_allclose(lines["bound"], 1.1 * 20 / (k + 1))
    assert "correlation 0.99, slope 0.55" in words(far)
    assert "bound / mean: 25" in words(far)
    assert page.numbers["prediction_slope"].max() == pytest.approx(0.55)
    assert "2nd order" not in {*labels_of(at_state.lines)}


def test_a_table_without_a_landscape_says_what_to_run(pages):
    with pytest.raises(UserError, match=r"landscape_difference[\s\S]*hessfig run"):
        pages("landscape", make_table())
