"""The benchmarks at toy size, from the options to JSON, and the fit of their power laws on made-up data."""

import json
import math
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts/benchmarks"
COSTS = {"seconds", "cpu_seconds", "all_seconds", "peak_gib", "base_gib"}
DENSITY = ["density_mean", "density_quantile", "density_second_moment"]
ENVIRONMENT = {
    "date",
    "platform",
    "cpu",
    "cores",
    "threads",
    "load_average",
    "python",
    "hessfig",
    "torch",
}


@pytest.fixture(scope="module", autouse=True)
def scripts_on_path():
    """Scripts import each other by name, as when they are run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        yield


def report_of(script, folder, *words):
    """Run a script's main at toy size and return its report, once the heading is seen to."""
    output = folder / f"{script}.json"
    __import__(script)
    sys.modules[script].main(["--quick", f"--output={output}", *words])
    assert {f"{script}.json"} == {p.name for p in folder.iterdir()}
    report = json.loads(output.read_text())
    assert report["quick"]
    assert "not the paper's" in report["sizes"]
    assert set(report["environment"]) >= ENVIRONMENT
    assert report["environment"]["threads"] == 1
    return report


@pytest.mark.usefixtures("workers")
@pytest.mark.long
def test_scaling_measures_every_axis_and_says_what_it_skips(tmp_path):
    report = report_of("scaling", tmp_path)
    axes = ["d_model", "n_layers", "sequence_length", "batch_size", "num_probes"]
    assert list(dict.fromkeys(point["axis"] for point in report["points"])) == axes
    for point in report["points"]:
        assert all(map(point.get, COSTS))
        if _is_top(point):
            assert point["layers"] == [point["x"]]
    fitted = {(fit["axis"], fit["engine"]) for fit in report["fits"]}
    assert fitted >= {(axis, "hutchinson") for axis in axes} | {("d_model", "exact")}
    for fit in report["fits"]:
        assert fit["standard_error"] >= 0
    skipped = {
        (row["axis"], row["x"], row["layer"]): row["reason"]
        for row in report["skipped"]
    }
    assert "W_V: H_o (expensive" in skipped["n_layers", 3, 1]
    assert "no probes" in skipped["num_probes", 8, 1]


@pytest.mark.usefixtures("workers")
@pytest.mark.long
def test_norms_of_one_layer_compare_every_engine_with_the_exact_values(tmp_path):
    engines = report_of("norms", tmp_path)["engines"]
    assert all(set(row) >= COSTS and row["numbers"] == 5 for row in engines.values())
    for row in (engines["published, float32"], engines["hutchinson, float64"]):
        assert 0.01 < row["relative_sem"] < 0.5
        assert 0 < row["rms_deviation"] < 0.7
    published = engines["published, float32"]
    exact = engines["exact, float64"]
    assert published["cost_at_equal_error"] == pytest.approx(published["seconds"])
    assert exact["rms_deviation"] == 0
    assert exact["cost_at_equal_error"] is None


@pytest.mark.usefixtures("workers")
@pytest.mark.long
def test_norms_of_three_layers_have_no_exact_engine_to_compare_with(tmp_path):
    report = report_of("norms", tmp_path, "--n-layers=3", "--d-model=20")
    engines = report["engines"]
    auto = report["engines"]["auto, float64"]
    assert "exact, float64" not in engines
    assert auto["rms_deviation"] is None
    assert 0 < auto["sampled_numbers"] < auto["numbers"] == 17
    assert auto["cost_at_equal_error"] < auto["cost_at_equal_error_sampled"]
    assert len(report["product_gflops"]) == 4
    assert all(rate > 0 for rate in report["product_gflops"].values())


@pytest.mark.usefixtures("workers")
@pytest.mark.long
def test_eigenvalues_and_densities_are_found_not_norms(tmp_path):
    runs = report_of("spectra", tmp_path)["runs"]
    assert all(run["states"] == ["ok"] for (run,) in runs.values())
    measured = {name: run["quantities"] for name, (run,) in runs.items()}
    assert measured == {
        "largest eigenvalue to 1e-3": ["largest_eigenvalue"],
        "largest eigenvalue to 1e-6": ["largest_eigenvalue"],
        "density": DENSITY,
        "density, float32": DENSITY,
    }


def test_bad_sizes_are_told_and_nothing_is_measured(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit:
        report_of("norms", tmp_path, "--d-model=0")
    assert exit.value.code == 2
    assert "model.d_model" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_power_law_is_found_with_its_error():
    from scaling import fit_power_law

    xs = [8, 16, 32, 64]
    noise = [0.02, -0.02, -0.02, 0.02]
    law = fit_power_law(
        xs, [3e-4 * x**1.7 * math.exp(e) for x, e in zip(xs, noise, strict=True)]
    )
    assert law.exponent == pytest.approx(1.7)
    assert law.coefficient == pytest.approx(3e-4)
    spread = math.log(2) ** 2 * (1.5**2 + 0.5**2) * 2
    assert law.standard_error == pytest.approx(math.sqrt(4 * 0.02**2 / 2 / spread))
    assert (law.low, law.high) == (8, 64)


def test_two_points_have_no_error_and_an_exact_law_none_to_speak_of():
    from scaling import fit_power_law

    assert fit_power_law([2, 4], [1, 8]).standard_error is None
    assert fit_power_law([1, 2, 4], [5, 20, 80]).standard_error == pytest.approx(
        0, abs=1e-12
    )


@pytest.mark.parametrize(("count", "kept"), [(2, 2), (3, 3), (4, 3), (5, 3), (7, 4)])
def test_the_upper_half_holds_the_middle(count, kept):
    from scaling import upper_half

    rows = [{"x": x} for x in reversed(range(count))]
    assert [row["x"] for row in upper_half(rows)] == list(range(count))[-kept:]


def _is_top(point):
    return point["axis"] == "n_layers" and point["engine"] != "hutchinson"


@pytest.fixture
def in_this_process(monkeypatch):
    """Measure rows of real.py here rather than each in a process of its own."""
    import real

    def here(options, name, limit):
        return real.measured(name, quick=options.quick, device=options.device)

    monkeypatch.setattr(real, "_in_a_process", here)


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_products_of_real_models_are_measured_beside_others(tmp_path):
    """Every contender multiplies by the same Hessian; peers that are not installed are left out."""
    import real

    peers = {"pyhessian": "pyhessian", "eigenthings": "hessian_eigenthings"}
    names = [
        real.PLAIN,
        "H",
        "H_o and H_f",
        "H, over micro-batches",
        *(name for name, one in peers.items() if find_spec(one)),
    ]
    output = tmp_path / "real.json"
    real.main(["--quick", f"--output={output}", "--rows", *names])
    report = json.loads(output.read_text())
    assert [row["row"] for row in report["rows"]] == names
    assert all(row["agrees"] < 1e-5 and row["gradients"] > 0 for row in report["rows"])
    assert set(report["environment"]) >= ENVIRONMENT


def test_rows_of_real_models_are_kept_when_others_fail(tmp_path, monkeypatch):
    """A row that fails, one that is not done in time and one for which no time is left say so."""
    import real

    rows = {
        "fails": real.Row("product", 60, {"contender": "none"}),
        "slow": real.Row("product", 1.2, {"contender": "hessfig"}),
    }
    monkeypatch.setattr(real, "rows_of", lambda device: rows)
    ends = {
        "fails": "import sys; sys.exit('out of memory')",
        "slow": "import time; time.sleep(60)",
    }
    monkeypatch.setattr(
        real, "_command", lambda options, name: [sys.executable, "-c", ends[name]]
    )
    output = tmp_path / "real.json"
    real.main(
        [
            "--quick",
            "--seconds=60",
            f"--output={output}",
            "--rows",
            "fails",
            "slow",
            "fail?",
        ]
    )
    found = {
        row["row"]: row["failed"] for row in json.loads(output.read_text())["rows"]
    }
    assert found == {"fails": "out of memory", "slow": "not done after 1 s"}
    real.main(["--quick", "--seconds=0", f"--output={output}"])
    assert {row["failed"] for row in json.loads(output.read_text())["rows"]} == {
        "no time was left"
    }
    with pytest.raises(SystemExit, match="no row matches"):
        real.main(["--quick", "--rows", "other"])


@pytest.mark.long
@pytest.mark.usefixtures("in_this_process")
def test_rows_of_memory_and_spectra_of_real_models(tmp_path):
    """Each is measured through hessfig.Problem."""
    import real

    output = tmp_path / "real.json"
    names = ["H, one late weight", "memory, 4 batches", "largest eigenvalue", "norms"]
    real.main(["--quick", f"--output={output}", "--rows", *names])
    rows = {row["row"]: row for row in json.loads(output.read_text())["rows"]}
    assert rows["memory, 4 batches"]["taken_gib"] >= 0
    assert rows["H, one late weight"]["gradients"] > 0
    assert rows["largest eigenvalue"]["residual"] <= 1e-3
    assert rows["norms"]["ok"] == 36
