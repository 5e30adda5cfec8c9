"""scripts/published_values.py: names, grids, and an unpickler that builds numbers and nothing else."""

import os
import pickle
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.comparison import compared, numbers_at
from hessfig.config.compose.job import compose
from hessfig.config.grid import sigma_values
from hessfig.config.keys import as_plain
from hessfig.errors import UserError
from hessfig.predictions.architecture import Architecture, Attention, Kind
from scripts.published_values import GRIDS, SWEEPS, load, main, write_values
from tests.analysis.synthetic import make_table, write_sweep
from tests.daily import thinned

CE = "norm=none_num_layers={}_scale=log_residual_scaling=1.0_linear_attention=False_loss=ce_frob_{}.pickle"
CHAIN = "norm=none_num_layers={}_scale=log_short_residual_scaling=0.0_linear_attention=True_loss=mse_frob_{}.pickle"


def result(num_layers, exponent=2.0, *, scale="log", repeats=3):
    """Return dict[layer][repeat] -> list of float32 along the grid, as published."""
    values = [np.float32(3 * s**exponent) for s in GRIDS[scale]]
    return {
        layer: {repeat: list(values) for repeat in range(repeats)}
        for layer in range(num_layers)
    }


def write(path, content, protocol=4):
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_numbers_and_containers_are_read(tmp_path, protocol):
    content = {
        0: OrderedDict(
            {
                0: [np.float32(1.5), np.float64(2.5), 3, 4.5],
                1: (np.int64(-7), np.float32("inf")),
            }
        )
    }
    found = load(write(tmp_path / "x.pickle", content, protocol))
    assert found == content
    assert [type(number) for number in found[0][0]] == [
        np.float32,
        np.float64,
        int,
        float,
    ]


def test_numbers_of_the_other_byte_order_are_read(tmp_path):
    swapped = np.array([1.5], dtype=np.dtype("f4").newbyteorder())[0]
    assert load(write(tmp_path / "x.pickle", [swapped])) == [1.5]


class Malicious:
    """Runs a command when unpickled by a trusting reader."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_a_command_is_refused_by_name_and_not_run(tmp_path):
    marker = tmp_path / "ran"
    path = write(tmp_path / "x.pickle", {0: {0: [Malicious(marker)]}})
    with pytest.raises(UserError, match=r"refused to load (posix|nt)\.system"):
        load(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "thing",
    [Path("x"), Fraction(1, 2), np.random.default_rng, eval, type(None), getattr],
)
def test_everything_else_is_refused_by_name(tmp_path, thing):
    with pytest.raises(UserError, match="refused to load"):
        load(write(tmp_path / "x.pickle", [thing]))


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_numbers_are_read(tmp_path, protocol):
    assert load(
        write(tmp_path / "x.pickle", {0: np.array([1.0, 2.5], "f4")}, protocol)
    ) == {0: [1.0, 2.5]}


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize(
    "array", [np.array([1.0], dtype=object), np.ones((2, 2)), np.ones(10**4)]
)
def test_other_arrays_are_refused(tmp_path, array, protocol):
    with pytest.raises(
        UserError, match=r"refused to load (a numpy\.ndarray|numpy\.dtype\('O8'\))"
    ):
        load(write(tmp_path / "x.pickle", array, protocol))


@pytest.mark.parametrize("kind", ["O", "V8", "U1", "M8[s]", "f4,f4"])
def test_a_type_that_is_no_number_is_refused_by_name(tmp_path, kind):
    with pytest.raises(UserError, match=r"refused to load numpy\.dtype\('"):
        load(write(tmp_path / "x.pickle", [np.dtype(kind)]))


@pytest.mark.parametrize("keep", [0, 1, 10, 100])
def test_a_file_cut_short_is_named(tmp_path, keep):
    path = write(tmp_path / "x.pickle", result(1))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="damaged or cut short"):
        load(path)


def read(folder, sweep):
    """Return what the script writes of a sweep."""
    into = folder / "published"
    write_values(folder, into)
    return pd.read_csv(into / f"{sweep}.csv")


def test_names_of_the_softmax_files(tmp_path):
    write(tmp_path / CE.format(2, "q_outer"), result(2, 6))
    write(tmp_path / CE.format(2, "v_func"), result(2, 3))
    write(tmp_path / "another.pickle", result(3, 5))
    frame = read(tmp_path, "depth")
    assert set(
        zip(frame["num_layers"], frame["block"], frame["part"], strict=True)
    ) == {(2, "W_Q", "H_o"), (2, "W_V", "H_f")}
    assert sorted(frame["layer"].unique()) == [1, 2]
    assert len(frame) == 2 * 2 * 3 * 20
    one = frame[
        (frame["block"] == "W_Q") & (frame["layer"] == 1) & (frame["repeat"] == 0)
    ]
    np.testing.assert_allclose(one["value"], 3 * one["sigma"] ** 6, rtol=1e-6)
    assert not (tmp_path / "published" / "sigma.csv").exists()


def test_grids_and_other_networks(tmp_path):
    write(tmp_path / CHAIN.format(1, "v"), result(1, 6, scale="log_short"))
    write(tmp_path / "mlp_num_layers=3_frob_mlp.pickle", result(3))
    chain = read(tmp_path, "softmax")
    mlp = read(tmp_path, "mlp")
    assert chain["sigma"].min() == pytest.approx(0.1)
    assert chain["sigma"].max() == pytest.approx(1.0)
    assert set(mlp["block"]) == {"W"}
    assert set(mlp["part"]) == {"H"}
    assert set(mlp["layer"]) == {1, 2, 3}


@pytest.mark.parametrize("sweep", thinned(SWEEPS, 2))
def test_networks_and_grids_are_those_of_the_shipped_sweeps(sweep):
    job = compose([f"sweep={sweep}"])
    network = Architecture.from_config(as_plain(job.variants[0][1]))
    stem = SWEEPS[sweep].stem
    depths = job.config.sweep.vary.get("model.n_layers", [1])
    assert list(SWEEPS[sweep].depths) == list(depths)
    np.testing.assert_allclose(
        GRIDS[SWEEPS[sweep].grid], list(sigma_values(job.config.grid)), rtol=1e-6
    )
    assert stem.startswith("mlp") == (network.kind == Kind.linear_mlp)
    if not stem.startswith("mlp"):
        assert f"norm={network.norm}_" in stem
        assert f"_residual_scaling={float(network.attention_skip)}_" in stem
        assert f"_linear_attention={network.attention == Attention.linear}_" in stem
        assert stem.endswith("mse" if network.square_loss else "ce")


def test_a_folder_without_matching_files(tmp_path, capsys):
    assert main([str(tmp_path), str(tmp_path / "published")]) == 2
    said = capsys.readouterr().err
    assert "no published file is here" in said
    assert CE.format(1, "v_outer") in said
    assert "Traceback" not in said
    assert not (tmp_path / "published").exists()


def test_the_checkout_serves_as_well_as_its_results_folder(tmp_path):
    (tmp_path / "results").mkdir()
    write(tmp_path / "results" / CE.format(1, "q"), result(1))
    assert len(read(tmp_path, "sigma")) == 3 * 20


def test_a_file_of_the_users_is_not_replaced(tmp_path):
    write(tmp_path / CE.format(1, "q"), result(1))
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "sigma.csv").write_text("mine\n")
    with pytest.raises(UserError, match=r"sigma\.csv"):
        read(tmp_path, "sigma")


@pytest.mark.parametrize(
    "content",
    [
        [1.0],
        {0: {0: [1.0, 2.0]}},
        {0: {0: ["a"] * 20}},
        {0: {0: [-1.0] * 20}},
        {0: {0: [1.0] * 20}, 1: {0: [1.0] * 20}},
        {},
    ],
)
def test_another_shape_is_refused_and_nothing_is_written(tmp_path, content):
    write(tmp_path / CE.format(1, "q"), content)
    with pytest.raises(
        UserError, match=r"is not shaped as a result file|refused to load"
    ):
        read(tmp_path, "sigma")
    assert not (tmp_path / "published").exists()


def test_what_the_script_writes_is_compared(tmp_path):
    sigma = GRIDS["log"].tolist()
    settings = as_plain(compose(["sweep=depth"]).variants[0][1])
    options = {
        "networks": [("", 1), ("", 2)],
        "sigma": sigma,
        "blocks": [("W_Q", "W_Q")],
        "parts": ["H_o"],
    }
    folder = write_sweep(
        make_table(sweep="depth", **options), tmp_path / "outputs", settings=settings
    )
    for depth in (1, 2):
        write(tmp_path / CE.format(depth, "q_outer"), result(depth, 6))
    write_values(tmp_path, tmp_path / "published")
    found = compared(
        numbers_at(folder), numbers_at(tmp_path / "published" / "depth.csv")
    )
    assert set(found.pairs["num_layers"]) == {1, 2}
    assert set(found.pairs["seed"]) == {1234, 1235, 1236}
