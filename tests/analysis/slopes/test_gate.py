"""The gate passes what agrees and names what does not; a wrong exponent cannot pass."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest

from hessfig.analysis.manifest import architectures
from hessfig.analysis.slopes.fit import fit_slope, fit_slopes
from hessfig.analysis.slopes.gate import asymptotic, checked, summary, violations
from hessfig.analysis.slopes.printed import SlopeVerdict, judge
from hessfig.terms import Part
from tests.analysis.synthetic import CONFIG, config, make_table, predicted_law

SIGMAS = (0.01, 0.03, 0.1, 0.3)


def frame_of(settings=CONFIG, **options):
    """Return the slopes on sigma <= 1 of a synthetic table."""
    table = make_table(**options)
    return fit_slopes(table, architectures(table, {"config": settings}), [(None, 1.0)])


def five_for_six(block, part, architecture, sigma):
    """Return the predicted norm, but sigma^5 where the query block's H_o should go like sigma^6."""
    value = predicted_law(block, part, architecture, sigma)
    return value / sigma if part == Part.H_o and block.row == "W_Q" else value


def test_agreement_passes():
    assert violations(frame_of(), 0.1) == []


@pytest.mark.parametrize("tolerance", [0.1, 0.3, 0.45])
def test_five_instead_of_six_fails(tolerance):
    (line,) = violations(frame_of(law=five_for_six), tolerance)
    assert "H_o(W_Q, W_Q)" in line
    assert "deviates: slope 5.0" in line
    assert "predicted 6" in line


def test_noise_that_hides_a_wrong_exponent_is_no_pass():
    lines = violations(frame_of(noise=2.0, seeds=3, blocks=[("W_Q", "W_Q")]), 0.1)
    assert len(lines) == 3
    assert all("undecided" in line or "deviates" in line for line in lines)


def test_seeds_that_change_nothing_are_one_seed():
    frame = frame_of(seeds=3, noise=0, wander=0)
    assert set(frame["num_seeds"]) <= {0, 1}
    assert all("undecided" in line for line in violations(frame, 0.1))


def test_numbers_outside_of_a_window_change_no_verdict_in_it():
    """A number that is not finite, beyond the window, of a block that vanishes within it."""
    table = make_table(sigma=[0.01, 0.03, 0.1, 0.3, 5.0])
    outside = (table["sigma"] == 5.0) & (table["status"] == "structural_zero")
    assert outside.any()
    table.loc[outside, "status"] = "nonfinite"
    frame = fit_slopes(table, architectures(table, {"config": CONFIG}), [(None, 1.0)])
    assert violations(frame, 0.1) == []


def test_zeros_where_theory_has_zeros_agree_whatever_their_status():
    table = make_table(sigma=[0.01, 0.03, 0.1, 0.3])
    table.loc[table["status"] == "structural_zero", "status"] = "ok"
    frame = fit_slopes(table, architectures(table, {"config": CONFIG}), [(None, 1.0)])
    assert violations(frame, 0.1) == []


def test_few_seeds_do_not_refute():
    """Over 200 tables of three seeds of which each has a slope of its own, true exponents hardly ever deviate."""
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        slopes = 6 + 0.15 * rng.normal(size=3)
        values = np.array([[sigma**slope for sigma in SIGMAS] for slope in slopes])
        fit = fit_slope(values, np.array(SIGMAS), average="geometric")
        row = SimpleNamespace(
            **asdict(fit),
            is_zero=False,
            predicted=6.0,
            prediction="exponent",
            regime="sigma -> 0",
        )
        wrong += judge(row, 0.05) == SlopeVerdict.deviates
    assert wrong <= 8  # of 200; two errors, without Student, call 18 of them deviating


def test_one_seed_is_no_pass():
    assert all(
        "undecided" in line for line in violations(frame_of(seeds=1, noise=0), 0.1)
    )
    assert len(violations(frame_of(seeds=1, noise=0), 0.1)) == 5


def test_no_points_is_no_pass():
    lines = violations(frame_of(sigma=[3.0, 4.0, 5.0]), 0.1)
    assert len(lines) == 6  # a block that vanishes by theory is not judged either
    assert all("too few points: 0 sigmas" in line for line in lines)


def bending(block, part, architecture, sigma):
    """Return a norm that starts out on its prediction and bends upwards before sigma = 1."""
    return predicted_law(block, part, architecture, sigma) * float(np.exp(2 * sigma**2))


def test_drift_is_noted_and_is_no_violation():
    frame = frame_of(law=bending, blocks=[("W_Q", "W_Q")])
    assert violations(frame, 0.1) == []
    assert len(asymptotic(frame, 0.1)) == 3
    assert all(
        "asymptote only" in line and "lower half" in line
        for line in asymptotic(frame, 0.1)
    )


def test_a_wrong_exponent_does_not_pass_as_drift():
    frame = frame_of(law=five_for_six, blocks=[("W_Q", "W_Q")], parts=["H_o"])
    assert asymptotic(frame, 0.1) == []
    unsure = frame.assign(lower_half=5.0, lower_half_se=0.6)
    assert asymptotic(unsure, 0.1) == []
    assert "deviates" in violations(unsure, 0.1)[0]


def test_only_windows_where_a_prediction_applies_are_checked():
    table = make_table(law=five_for_six, blocks=[("W_Q", "W_Q")], parts=["H_o"])
    windows = [(None, 1.0), (None, None), (1.0, None), (None, 3.0), (0.01, 0.9)]
    frame = fit_slopes(table, architectures(table, {"config": CONFIG}), windows)
    assert checked(frame)["window_high"].tolist() == [1.0, 0.9]
    assert len(violations(frame, 0.1)) == 2
    short = frame_of(
        law=five_for_six,
        blocks=[("W_Q", "W_Q")],
        parts=["H_o"],
        sigma=[0.1, 0.3, 0.6, 1.0],
    )
    assert len(violations(short.assign(window_high=np.nan), 0.1)) == 1


def test_a_prediction_for_every_sigma_is_checked_on_every_window():
    settings = {
        **config(kind="linear_mlp"),
        "task": {**CONFIG["task"], "loss": "mse_sum_unshifted"},
    }
    table = make_table(settings=settings, blocks=[("W", "W")], parts=["H"])
    frame = fit_slopes(
        table, architectures(table, {"config": settings}), [(None, None), (1.0, None)]
    )
    assert len(checked(frame)) == 2


def test_a_zero_that_is_not_zero_fails():
    (line,) = violations(
        frame_of(blocks=[("W_V", "W_V")], parts=["H_f"], law=lambda b, p, a, s: s), 0.1
    )
    assert "not zero, predicted to vanish (Theorem 3.2" in line


def test_a_norm_that_is_zero_fails():
    (line,) = violations(
        frame_of(blocks=[("W_Q", "W_Q")], parts=["H_f"], law=lambda b, p, a, s: 0.0),
        0.1,
    )
    assert "every number is zero, predicted exponent 5" in line


@pytest.mark.parametrize(
    ("value", "status", "said"),
    [
        (np.inf, "nonfinite", "not finite: 1"),
        (1.0, "not_converged", "did not converge: 1"),
    ],
)
def test_numbers_without_a_value_fail(value, status, said):
    table = make_table()
    table.loc[table["sigma"].idxmin(), ["value", "status"]] = [value, status]
    frame = fit_slopes(table, architectures(table, {"config": CONFIG}), [(None, 1.0)])
    (line,) = violations(frame, 0.1)
    assert said in line


def test_the_summary_counts_what_was_checked():
    assert summary(frame_of(), 0.1) == (
        ["6 slopes checked, 6 pass, 0 outside tolerance 0.1"],
        0,
    )
    lines, code = summary(frame_of(law=five_for_six), 0.1)
    assert (code, len(lines)) == (1, 2)
    assert "H_o(W_Q, W_Q)" in lines[0]
    assert lines[-1] == "6 slopes checked, 5 pass, 1 outside tolerance 0.1"
    lines, code = summary(frame_of(law=bending, blocks=[("W_Q", "W_Q")]), 0.1)
    assert code == 0
    assert all(line.startswith("note: ") for line in lines[:-1])
    assert (
        lines[-1]
        == "3 slopes checked, 0 pass, 0 outside tolerance 0.1, 3 asymptote only (notes above)"
    )


@pytest.mark.parametrize(
    ("change", "counted"),
    [
        ({"slope_se": 0.06}, "1 undecided (the error is too large to tell)"),
        ({"slope_se": np.nan}, "1 undecided (the error is too large to tell)"),
        ({"num_points": 2}, "1 with too few points"),
        ({"num_nonfinite": 3}, "1 with numbers left out"),
        ({"num_nonfinite": 3, "num_not_converged": 1}, "1 with numbers left out"),
    ],
)
def test_what_cannot_be_told_is_counted_apart_from_what_deviates(change, counted):
    frame = frame_of()
    frame = frame.astype(dict.fromkeys(change, float))
    frame.loc[frame["prediction"].eq("exponent").idxmax(), list(change)] = list(
        change.values()
    )
    lines, code = summary(frame, 0.1)
    assert code == 1
    assert lines[-1] == f"6 slopes checked, 5 pass, 0 outside tolerance 0.1, {counted}"


def test_where_nothing_is_predicted_the_summary_says_so_and_fails():
    nothing = ["no slope has a prediction: nothing was checked"]
    assert summary(
        frame_of(config(sigma_scales="tokens"), blocks=[("W_Q", "W_Q")]), 0.1
    ) == (nothing, 1)
    assert summary(frame_of(config(kind="python")), 0.1) == (nothing, 1)
