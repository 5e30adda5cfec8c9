"""The authors' result files: names, grids, and an unpickler that builds numbers and nothing else."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hessfig.analysis.comparison import against
from hessfig.analysis.comparison.agreement import Batches
from hessfig.analysis.comparison.pickles import load
from hessfig.analysis.comparison.references import GRIDS, NothingToCompare, read_reference, read_results
from hessfig.analysis.manifest import architectures
from hessfig.errors import UserError
from hessfig.predictions.architecture import MLP, Architecture, Attention, Kind, Norm
from tests.analysis.synthetic import CONFIG, make_table

CE = "norm=none_num_layers={}_scale=log_residual_scaling=1.0_linear_attention=False_loss=ce_frob_{}.pickle"
CHAIN = "norm=none_num_layers={}_scale=log_short_residual_scaling=0.0_linear_attention=True_loss=mse_frob_{}.pickle"


def result(num_layers: int, exponent: float = 2.0, *, scale: str = "log", repeats: int = 3) -> dict[int, Any]:
    """Return dict[layer][repeat] -> list of float32 along the grid, as published."""
    values = [np.float32(3 * s**exponent) for s in GRIDS[scale]]
    return {layer: {repeat: list(values) for repeat in range(repeats)} for layer in range(num_layers)}


def write(path: Path, content: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_numbers_and_containers_are_read(tmp_path: Path, protocol: int) -> None:
    content = {0: OrderedDict({0: [np.float32(1.5), np.float64(2.5), 3, 4.5], 1: (np.int64(-7), np.float32("inf"))})}
    found = load(write(tmp_path / "x.pickle", content, protocol))
    assert found == content
    assert [type(number) for number in found[0][0]] == [np.float32, np.float64, int, float]


def test_numbers_of_the_other_byte_order_are_read(tmp_path: Path) -> None:
    swapped = np.array([1.5], dtype=np.dtype("f4").newbyteorder())[0]
    assert load(write(tmp_path / "x.pickle", [swapped])) == [1.5]


class Malicious:
    """Runs a command when unpickled by a trusting reader."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def test_a_command_is_refused_by_name_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = write(tmp_path / "x.pickle", {0: {0: [Malicious(marker)]}})
    with pytest.raises(UserError, match=r"refused to load (posix|nt)\.system"):
        load(path)
    assert not marker.exists()


@pytest.mark.parametrize("thing", [Path("x"), Fraction(1, 2), np.random.default_rng, eval, type(None), getattr])
def test_everything_else_is_refused_by_name(tmp_path: Path, thing: Any) -> None:
    with pytest.raises(UserError, match="refused to load"):
        load(write(tmp_path / "x.pickle", [thing]))


@pytest.mark.parametrize("dtype", [object, "f4"])
def test_arrays_are_refused(tmp_path: Path, dtype: Any) -> None:
    with pytest.raises(UserError, match=r"refused to load numpy\._core\.\S*(_reconstruct|_frombuffer)"):
        load(write(tmp_path / "x.pickle", np.array([1.0], dtype=dtype)))


@pytest.mark.parametrize("kind", ["O", "V8", "U1", "M8[s]", "f4,f4"])
def test_a_type_that_is_no_number_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(UserError, match=r"refused to load numpy\.dtype\('"):
        load(write(tmp_path / "x.pickle", [np.dtype(kind)]))


@pytest.mark.parametrize("keep", [0, 1, 10, 100])
def test_a_file_cut_short_is_named(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path / "x.pickle", result(1))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="damaged or cut short"):
        load(path)


def test_names_of_the_softmax_files(tmp_path: Path) -> None:
    write(tmp_path / CE.format(2, "q_outer"), result(2, 6))
    write(tmp_path / CE.format(2, "v_func"), result(2, 3))
    write(tmp_path / CE.format(3, "q"), result(3, 5))
    deep = {("", depth): Architecture(num_layers=depth) for depth in (1, 2)}
    frame = read_results(tmp_path, deep, GRIDS["log"])
    assert set(zip(frame["num_layers"], frame["block"], frame["part"], strict=True)) == {
        (2, "W_Q", "H_o"),
        (2, "W_V", "H_f"),
    }
    assert sorted(frame["layer"].unique()) == [1, 2]
    assert len(frame) == 2 * 2 * 3 * 20
    one = frame[(frame["block"] == "W_Q") & (frame["layer"] == 1) & (frame["repeat"] == 0)]
    np.testing.assert_allclose(one["value"], 3 * one["sigma"] ** 6, rtol=1e-6)


def test_grids_and_other_networks(tmp_path: Path) -> None:
    write(tmp_path / CHAIN.format(1, "v"), result(1, 6, scale="log_short"))
    chain = Architecture(attention=Attention.linear, attention_skip=False, mlp=MLP.none, square_loss=True)
    frame = read_results(tmp_path, {("", 1): chain}, GRIDS["log_short"][:5])
    assert frame["sigma"].min() == pytest.approx(0.1) and frame["sigma"].max() == pytest.approx(1.0)
    write(tmp_path / "mlp_num_layers=3_frob_mlp.pickle", result(3))
    mlp = read_results(tmp_path, {("", 3): Architecture(Kind.linear_mlp, 3, square_loss=True)}, GRIDS["log"])
    assert set(mlp["block"]) == {"W"} and set(mlp["part"]) == {"H"} and set(mlp["layer"]) == {1, 2, 3}


def test_a_folder_without_matching_files(tmp_path: Path) -> None:
    write(tmp_path / CE.format(1, "q"), result(1))
    with pytest.raises(NothingToCompare, match="no result file for this sweep") as caught:
        read_results(tmp_path, {("", 1): Architecture(norm=Norm.pre)}, GRIDS["log"])
    assert caught.value.got == CE.format(1, "q")
    assert "norm=pre_num_layers=1_scale=log_" in caught.value.allowed and "and 5 more" in caught.value.allowed
    with pytest.raises(NothingToCompare, match=r"manifest\.json"):
        read_results(tmp_path, {}, GRIDS["log"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingToCompare, match="an empty folder"):
        read_results(tmp_path / "empty", {("", 1): Architecture()}, GRIDS["log"])


def test_the_checkout_serves_as_well_as_its_results_folder(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    write(tmp_path / "results" / CE.format(1, "q"), result(1))
    assert len(read_results(tmp_path, {("", 1): Architecture()}, GRIDS["log"])) == 3 * 20


@pytest.mark.parametrize(
    "content",
    [
        [1.0],
        {0: [1.0]},
        {0: {0: [1.0, 2.0]}},
        {0: {0: ["a"] * 20}},
        {0: {0: ["1.5"] * 20}},
        {0: {0: [True] * 20}},
        {0: {0: [-1.0] * 20}},
        {0: {0: [[1.0] for _ in range(20)]}},
        {0: {0: [1.0] * 20}, 1: {0: [1.0] * 20}},
        {},
        3.0,
    ],
)
def test_another_shape_is_refused(tmp_path: Path, content: Any) -> None:
    write(tmp_path / CE.format(1, "q"), content)
    with pytest.raises(UserError, match="is not shaped as a result file"):
        read_results(tmp_path, {("", 1): Architecture()}, GRIDS["log"])


def test_a_folder_is_compared_like_a_file(tmp_path: Path) -> None:
    sigma = GRIDS["log"].tolist()
    table = make_table(networks=[("", 1), ("", 2)], sigma=sigma, blocks=[("W_Q", "W_Q")], parts=["H_o"])
    for depth in (1, 2):
        write(tmp_path / CE.format(depth, "q_outer"), result(depth, 6))
    known = architectures(table, {"config": CONFIG})
    found = against.compare(table, read_reference(tmp_path, table, known), Batches(known))
    assert len(found.points) == 20 * 3
    assert set(found.curves["num_layers"]) == {1, 2}
