"""Fits recover known exponents, their errors cover the truth, and verdicts follow the stated rule."""

import json
import math
import time

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from hessfig.analysis.manifest import architectures
from hessfig.analysis.presented import as_json, latex_table, markdown_table, unmarked
from hessfig.analysis.slopes import fit as slopes
from hessfig.analysis.slopes import gate, levels
from hessfig.analysis.slopes.fit import ARITHMETIC, GEOMETRIC, Fit, fit_slope
from hessfig.analysis.slopes.printed import SlopeVerdict, cells, rich_table
from hessfig.errors import UserError
from hessfig.predictions.growth_rates import Prediction
from hessfig.predictions.network_series import Regime
from tests.analysis.synthetic import (
    CONFIG,
    config,
    make_table,
    predicted_law,
    write_sweep,
)
from tests.daily import thinned

WINDOW = [(None, 1.0)]


def fitted(table, settings=CONFIG, **options):
    """Return the slopes table on sigma <= 1."""
    known = architectures(table, {"config": settings})
    windows = options.pop("windows", WINDOW)
    return slopes.fit_slopes(table, known, windows, slopes.FitSettings(**options))


def test_noiseless_power_law_is_exact():
    sigma = np.logspace(-2, 0, 8)
    found = fit_slope(np.outer([1.0, 2.0, 5.0], sigma**6), sigma)
    assert found.slope == pytest.approx(6, abs=1e-12)
    assert found.slope_se == pytest.approx(0, abs=1e-12)
    assert (found.num_points, found.num_seeds) == (8, 3)


def test_the_error_is_the_spread_over_repetitions():
    generator = np.random.default_rng(1)
    sigma = np.logspace(-1, 0, 6)
    tilts = 0.3 * generator.normal(size=(200, 20, 1))
    values = sigma ** (2 + tilts) * np.exp(0.05 * generator.normal(size=(200, 20, 6)))
    fits = [fit_slope(one, sigma) for one in values]
    spread = np.std([fit.slope for fit in fits], ddof=1)
    mean_error = np.mean([fit.slope_se for fit in fits])
    assert mean_error == pytest.approx(spread, rel=3 * 200**-0.5)
    centre = np.mean([fit.slope for fit in fits])
    covered = np.mean([fit.ci_low <= centre <= fit.ci_high for fit in fits])
    assert 0.91 <= covered <= 0.99


def test_the_error_of_geometric_means_is_that_of_the_mean_of_the_seeds_slopes():
    sigma = np.geomspace(0.1, 1, 6)
    values = np.exp(np.random.default_rng(3).normal(size=(4, 6)))
    found = fit_slope(values, sigma, average=GEOMETRIC)
    alone = np.array([fit_slope(one[None], sigma).slope for one in values])
    assert found.slope == pytest.approx(alone.mean())
    assert found.slope_se == pytest.approx(alone.std(ddof=1) / 2)
    reach = 3.182446 * found.slope_se  # t(0.975, 3)
    assert (found.ci_low, found.ci_high) == pytest.approx(
        (found.slope - reach, found.slope + reach)
    )


def test_a_place_that_a_single_seed_holds_does_not_hide_its_error():
    """Without that seed the slope rests on the other places; at two places only there would be none."""
    sigma = np.geomspace(0.1, 1, 5)
    values = np.outer([1.0, 1.0, 1.0], sigma**2)
    values[:, 4] = math.nan, math.nan, 4.0
    found = fit_slope(values, sigma)
    without = fit_slope(values[:, :4], sigma[:4]).slope
    assert found.slope_se == pytest.approx(2 / 3 * abs(found.slope - without))
    values[:2, 2:] = math.nan
    values[:2, 1] = math.nan
    assert math.isnan(fit_slope(values, sigma).slope_se)


def test_norms_spread_over_decades_are_known_by_their_geometric_mean():
    """Each number off by a factor of exp(N(0, 9)): the slope of geometric means errs by its stated error, and less."""
    generator = np.random.default_rng(2)
    sigma = np.logspace(-1, 0, 8)
    values = sigma**54 * np.exp(3.0 * generator.normal(size=(60, 20, 8)))
    both = {
        average: [fit_slope(one, sigma, average=average) for one in values]
        for average in (ARITHMETIC, GEOMETRIC)
    }
    z = np.array([(fit.slope - 54) / fit.slope_se for fit in both[GEOMETRIC]])
    assert 0.8 < z.std() < 1.3
    assert abs(z.mean()) < 3 * 60**-0.5
    spread = {
        average: np.std([fit.slope for fit in fits]) for average, fits in both.items()
    }
    assert spread[GEOMETRIC] < 0.8 * spread[ARITHMETIC]


def test_zeros_and_missing_values_are_left_out_of_geometric_means():
    """Seeds differ in scale: a point whose mean lacks one of them moves the slope, and so would its loss."""
    sigma = np.logspace(-1, 0, 5)
    values = np.outer([1.0, 2.0, 4.0, 8.0], sigma**3)
    values[0, 2], values[1, 3] = math.nan, 0.0
    found = fit_slope(values, sigma, average=GEOMETRIC)
    log_means = np.nanmean(np.log(np.where(values > 0, values, math.nan)), axis=0)
    by_hand = np.polyfit(np.log(sigma), log_means, 1)[0]
    assert found.slope == pytest.approx(by_hand)
    assert abs(by_hand - 3) > 0.01
    assert found.num_seeds == 4


def test_missing_values_leave_their_mean_only():
    sigma = np.logspace(-1, 0, 5)
    values = np.outer(np.ones(4), sigma**3)
    values[0, 2] = math.nan
    assert fit_slope(values, sigma).slope == pytest.approx(3)


def test_the_lower_half_of_five_points_is_the_three_smallest():
    sigma = np.logspace(-1, 0, 5)
    values = np.outer([1.0, 2.0], np.where(np.arange(5) < 3, sigma**3, sigma**7))
    assert fit_slope(values, sigma).lower_half == pytest.approx(3, abs=1e-12)


def test_too_few_points_and_single_seeds():
    sigma = np.array([0.1, 0.2])
    assert repr(fit_slope(np.ones((3, 2)), sigma)) == repr(Fit(num_points=2))
    alone = fit_slope(np.ones((1, 4)), np.logspace(-1, 0, 4))
    assert alone.slope == 0
    assert math.isnan(alone.slope_se)
    assert math.isnan(alone.ci_low)


def test_paper_preset_agrees_with_its_predictions():
    frame = fitted(make_table(seeds=8))
    assert list(frame["predicted"].fillna(0)) == [6, 5, 5, 2, 0, 2]
    assert set(frame["verdict"]) == {SlopeVerdict.agrees, SlopeVerdict.structural_zero}
    assert (frame["slope"].dropna() - frame["predicted"].dropna()).abs().max() < 0.05


def test_published_slopes_stand_beside():
    frame = fitted(
        make_table(), windows=[(None, 1.0), (None, None), (0.1, None)], preset="sigma"
    )
    query = frame[(frame["row"] == "W_Q") & (frame["part"] == "H_o")]
    assert list(query["published"])[:2] == [6.005, 5.67]
    assert math.isnan(query["published"].iloc[2])


def test_nothing_published_stands_beside_a_network_that_is_no_presets():
    """A sweep called sigma may be of any network: its name alone says nothing."""
    assert fitted(make_table(sweep="sigma"))["published"].isna().all()


def of_quantities(*names):
    """Return a table with the same numbers under several names."""
    return pd.concat(
        [make_table(seeds=3).assign(quantity=name) for name in names], ignore_index=True
    )


@pytest.mark.parametrize(
    ("measured", "asked", "fits", "others"),
    thinned(
        [
            (["erank"], {}, "erank", []),
            (["trace", "frobenius"], {}, "frobenius", ["trace"]),
            (["frobenius", "erank"], {"quantity": "erank"}, "erank", ["frobenius"]),
            (["frobenius", "erank"], {"among": ["erank"]}, "erank", ["frobenius"]),
            (
                ["frobenius", "erank"],
                {"among": ["frobenius", "mine.py:ERANK"]},
                "frobenius",
                ["erank"],
            ),
        ],
        2,
    ),
)
def test_slopes_and_levels_are_of_any_quantity(tmp_path, measured, asked, fits, others):
    folder = write_sweep(of_quantities(*measured), tmp_path)
    frame = slopes.write_slopes(folder, WINDOW, slopes.FitSettings(), **asked)
    assert frame.attrs["others"] == others
    assert set(pd.read_csv(folder / slopes.SLOPES)["quantity"]) == {fits}
    assert frame["predicted"].notna().any() == (fits == "frobenius")
    found, _ = levels.run(folder, WINDOW, **asked)
    assert set(found["quantity"]) == {fits}


def test_one_of_several_quantities_is_asked_for_by_name(tmp_path):
    folder = write_sweep(of_quantities("trace", "erank"), tmp_path)
    with pytest.raises(
        UserError, match=r"(?s)several quantities.*trace, erank.*quantity=trace"
    ):
        slopes.write_slopes(folder, WINDOW)
    with pytest.raises(
        UserError, match=r"(?s)no numbers of this quantity.*did you mean 'erank'"
    ):
        slopes.write_slopes(folder, WINDOW, quantity="erang")


def bent(block, part, architecture, sigma):
    """Return the prediction, bending upwards near sigma = 1."""
    return predicted_law(block, part, architecture, sigma) * math.exp(2 * sigma**2)


def wrong(block, part, architecture, sigma):
    """Return one power of sigma too few."""
    return predicted_law(block, part, architecture, sigma) / sigma


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        ({"law": bent}, SlopeVerdict.asymptote_only),
        ({"law": wrong}, SlopeVerdict.deviates),
        ({"seeds": 1}, SlopeVerdict.undecided),
        ({"sigma": [0.1, 1.0]}, SlopeVerdict.too_few_points),
        ({"noise": 3.0}, SlopeVerdict.undecided),
    ],
)
def test_verdicts(options, verdict):
    frame = fitted(make_table(blocks=[("W_Q", "W_Q")], parts=["H_o"], **options))
    assert list(frame["verdict"]) == [verdict]


def test_a_window_is_matched_with_its_regime():
    table = make_table(
        law=lambda b, p, a, s: s ** (0.0 if s < 1 else -2.0),
        sigma=np.geomspace(0.01, 10, 13).tolist(),
    )
    windows = [(None, 0.5), (1.0, None), (None, None)]
    frame = fitted(table, config(norm="pre"), windows=windows)
    value = frame[(frame["row"] == "W_V") & (frame["part"] == "H_o")]
    assert list(value["regime"].iloc[:2]) == [Regime.between, Regime.large_sigma]
    assert list(value["predicted"].iloc[:2]) == [0.0, -2.0]
    assert value["prediction"].iloc[2] == Prediction.unknown
    assert (
        "reaches from 0.01 to 10; regimes begin or end at 3.2e-08, 0.0032, 1"
        in value["reference"].iloc[2]
    )


def test_run_writes_the_contract(tmp_path):
    folder = write_sweep(make_table(), tmp_path)
    frame = slopes.write_slopes(
        folder, [(None, 0.1), (1.0, None)], slopes.FitSettings(tolerance=0.1)
    )
    written = pd.read_csv(folder / "slopes.csv", keep_default_na=False)
    contract = "num_layers layer row col part window_low window_high slope slope_se ci_low ci_high predicted verdict"
    assert [
        name for name in written.columns if name in contract.split()
    ] == contract.split()
    assert len(frame) == len(written) == 12
    assert list(written["window_low"][:2]) == ["", "1"]
    assert not list(folder.glob(".slopes*"))


@pytest.mark.parametrize("windows", [[], [(1.0, 0.1)], [(0.1, 0.1)], [(0.1, 0.2, 0.3)]])
def test_bad_windows(windows):
    with pytest.raises(UserError, match=r"sweep\.windows"):
        fitted(make_table(), windows=windows)


def test_verdicts_come_with_their_tolerance(tmp_path):
    folder = write_sweep(make_table(law=wrong), tmp_path)
    for tolerance, verdict in ((0.1, "deviates"), (1.5, "agrees")):
        slopes.write_slopes(folder, WINDOW, slopes.FitSettings(tolerance=tolerance))
        written = pd.read_csv(folder / "slopes.csv").set_index(["row", "part"])
        assert written.loc[("W_Q", "H"), ["verdict", "tolerance"]].tolist() == [
            verdict,
            tolerance,
        ]


def test_numbers_in_latex_have_minus_signs_and_powers():
    cells_of_a_row = (
        "-0.02 ± 0.01",
        "[-0.04, -1.2e-05]",
        "model.positions=a-1",
        "2.5e+03",
        "-",
    )
    row = latex_table(["one"], [cells_of_a_row])[4]
    assert row == (
        r"$-$0.02 $\pm$ 0.01 & [$-$0.04, $-$1.2$\cdot10^{-5}$] & model.positions=a-1 & 2.5$\cdot10^{3}$ & - \\"
    )


def test_rows_as_json_have_null_where_no_number_is():
    frame = pd.DataFrame(
        {
            "slope": [1e-20, math.nan, -math.inf],
            "row": ["W_Q", "W_V", "W_K"],
            "num_seeds": [3, 1, 2],
        }
    )
    rows = json.loads(as_json({"rows": frame, "passes": True}))
    assert rows["rows"][0] == {"slope": 1e-20, "row": "W_Q", "num_seeds": 3}
    assert rows["passes"] is True
    assert [row["slope"] for row in rows["rows"][1:]] == [None, None]


def test_rich_table_shows_predictions_and_zeros():
    console = Console(width=80, record=True)
    console.print(rich_table(fitted(make_table(), preset="sigma")))
    text = console.export_text()
    for word in ("W_Q", "σ ≤ 1", "agrees", "= 0", "paper"):
        assert word in text
    assert "variant" not in text


def test_a_sweep_may_state_exponents_itself():
    """In place of theory's, and for networks that theory knows nothing of; the gate checks them."""
    own = {"predictions": {"W_Q": {"H_o": 6, "H_f": 4.0}, "W_V": {"H_f": "zero"}}}
    frame = fitted(make_table(), settings=config(kind="python"), **own).set_index(
        ["row", "part"]
    )
    assert frame.loc[("W_Q", "H_o"), ["predicted", "verdict"]].tolist() == [
        6.0,
        "agrees",
    ]
    assert frame.loc[
        ("W_Q", "H_f"), ["predicted", "verdict", "reference"]
    ].tolist() == [4.0, "deviates", "sweep.predictions"]
    assert frame.loc[("W_V", "H_f"), "verdict"] == "structural zero"
    assert frame.loc[("W_V", "H"), "verdict"] == "no prediction"
    lines, code = gate.summary(frame.reset_index(), 0.1)
    assert code == 1
    assert "3 slopes checked, 2 pass, 1 outside tolerance" in lines[-1]


@pytest.mark.parametrize(("block", "part"), [("W_X", "H"), ("W_Q", "H_x")])
def test_an_exponent_of_nothing_measured_is_refused(block, part):
    with pytest.raises(UserError, match="no such block and part"):
        fitted(make_table(), predictions={block: {part: 5.0}})


@pytest.mark.parametrize("stated", ["x", {"W_Q": 5}, {"W_Q": {"H": "five"}}])
def test_a_manifest_that_states_no_exponents_is_refused(stated):
    with pytest.raises(UserError, match="not exponents"):
        slopes.own_predictions({"sweep": {"predictions": stated}})


def test_slopes_can_be_printed_for_a_paper_and_a_page():
    """Every row has as many cells as the head, and neither LaTeX nor Markdown reads a name as its own."""
    _, heads, rows = cells(
        fitted(make_table()).assign(variant="model.mlp=a&b_c|d<e>*~")
    )
    markdown = markdown_table(heads, (map(unmarked, row) for row in rows))
    latex = latex_table(heads, rows)
    assert r"a&b\_c\|d&lt;e>\*\~" in markdown[2]
    assert r"W\_Q" in markdown[2]
    assert len({line.replace("\\|", "").count("|") for line in markdown}) == 1
    assert len(markdown) == len(rows) + 2
    body = latex[4:-2]
    assert len(body) == len(rows)
    assert {line.replace(r"\&", "").count("&") for line in body} == {len(heads) - 1}
    assert r"a\&b\_c$|$d$<$e$>$*\textasciitilde{}" in body[0]
    assert r"W\_Q" in body[0]
    assert r"$\sigma$ $\le$ 1" in body[0]
    assert latex[0] == rf"\begin{{tabular}}{{{'l' * len(heads)}}}"
    assert "_" not in "".join(body).replace(r"\_", "")


@pytest.mark.long
def test_depth_five_takes_less_than_two_seconds():
    table = make_table(
        networks=[("", depth) for depth in range(1, 6)],
        seeds=20,
        sigma=np.logspace(-2, 1, 20).tolist(),
    )
    started = time.process_time()
    frame = fitted(table)
    assert len(frame) == 90
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("share", "dtype", "verdict"),
    [
        (0.0, "float64", "structural zero"),
        (1e-13, "float64", "structural zero"),
        (1e-6, "float64", "deviates"),
        (1e-6, "float32", "structural zero"),
        (1e-2, "float32", "deviates"),
    ],
)
def test_a_stated_zero_is_one_up_to_rounding_beside_h(share, dtype, verdict):
    """Numbers of a network of one's own have the status ok, also where they vanish."""
    table = make_table(
        law=lambda b, p, a, s: s**2 * (share if p == "H_f" else 1.0)
    ).assign(dtype=dtype, status="ok")
    frame = fitted(table, predictions={"W_V": {"H_f": "zero"}})
    row = frame[(frame["row"] == "W_V") & (frame["part"] == "H_f")].iloc[0]
    assert row["verdict"] == verdict
    assert bool(row["is_zero"]) == (verdict == "structural zero")
    alone = fitted(table[table["part"] == "H_f"], predictions={"W_V": {"H_f": "zero"}})
    alone = alone[alone["row"] == "W_V"].iloc[0]
    assert (alone["verdict"] == "structural zero") == (share == 0)
