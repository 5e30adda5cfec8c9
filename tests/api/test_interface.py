"""The Python interface on networks that are not the package's own, against dense automatic differentiation."""

import json
import runpy
import subprocess
import sys
import warnings
from functools import cache

import numpy
import pandas as pd
import pytest
import torch
from torch import nn

import hessfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.errors import UserError
from hessfig.record import COLUMNS
from hessfig.terms import Part
from tests.daily import daily
from tests.foreign_networks import CASES, dense_parts

pytestmark = pytest.mark.filterwarnings(
    "ignore:H_f. curvlinops' product is off:RuntimeWarning"
)


def measure(problem, **settings):
    return hessfig.measure(problem, **{"estimator": "dense", **settings})


@cache
def oracle(name):
    problem, blocks = CASES[name]()
    names = [path for path, _ in problem.network.named_parameters()]
    return problem, blocks, names, dense_parts(problem, names)


def places(problem, names, side):
    """Return where the entries of a side of a block stand among all parameters."""
    start = 0
    found = {}
    for path in names:
        parameter = problem.network.get_parameter(path)
        found[path] = torch.arange(start, start + parameter.numel()).reshape(
            parameter.shape
        )
        start += parameter.numel()
    views = [
        found[w.parameter] if w.index is None else found[w.parameter][w.index]
        for w in side
    ]
    return torch.cat([view.flatten() for view in views])


TRUTH = {
    "frobenius": torch.linalg.matrix_norm,
    "trace": torch.trace,
    "largest_eigenvalue": lambda block: torch.linalg.eigvalsh(block)[-1],
    "smallest_eigenvalue": lambda block: torch.linalg.eigvalsh(block)[0],
}


@pytest.mark.parametrize("name", daily(CASES, "mlp"))
def test_every_block_and_part_is_the_oracles(name):
    problem, blocks, names, dense = oracle(name)
    layout = problem.objective("float64").layout
    diagonal = [block for block in blocks if isinstance(block, str)]
    norms = measure(problem, blocks=blocks)
    sides = norms[["row", "col", "row_layer", "layer"]].drop_duplicates()
    assert len(norms) == 3 * len(sides)
    others = measure(problem, blocks=diagonal, quantities=["trace", "spectrum"])
    for row in pd.concat([norms, others]).itertuples():
        if row.quantity not in TRUTH:
            continue
        rows = places(problem, names, layout.side(row.row_layer, row.row))
        cols = places(problem, names, layout.side(row.layer, row.col))
        truth = float(TRUTH[row.quantity](dense[Part(row.part)][rows][:, cols]))
        scale = float(dense[Part.H][rows][:, cols].norm())
        assert row.value == pytest.approx(truth, rel=1e-10, abs=1e-10 * scale), row


def test_a_wrong_operator_is_noticed_and_said():
    """Products of curvlinops under vmap are wrong here (see double_backward.fault), batched ones are right."""
    problem, _, _, _ = oracle("mlp")
    drawn = problem.objective("float64")
    column = ColumnOperator(drawn, 0, "all", ["all"])
    with pytest.warns(RuntimeWarning, match=r"curvlinops' product is off by \d"):
        column.split_matmat(torch.ones(column.dim, 1, dtype=torch.float64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        measure(problem, blocks=["all", "W_1"])


def test_the_table_is_the_record_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem, blocks, _, _ = oracle("mlp")
    table = measure(problem, blocks=blocks)
    assert list(table.columns) == [
        name for name in COLUMNS if name not in ("seconds", "config")
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_gives_the_same_bits_and_the_network_stays_as_it_was():
    network = nn.Sequential(nn.Linear(4, 30), nn.Tanh(), nn.Linear(30, 3))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    problem = hessfig.Problem(network, torch.randn(6, 4), torch.randint(0, 3, (6,)))
    tables = [
        hessfig.measure(problem, estimator="hutchinson", seed=seed)
        for seed in (1, 1, 2)
    ]
    first, again, other = (table["value"].tolist() for table in tables)
    assert first == again != other
    assert all(
        torch.equal(before[name], tensor)
        for name, tensor in network.state_dict().items()
    )


def test_left_out_weights_are_every_parameter_by_its_own_name():
    network = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    table = measure(
        hessfig.Problem(network, torch.randn(5, 4), torch.randn(5, 2), loss="mse")
    )
    assert list(dict.fromkeys(table["row"])) == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
    ]


def test_the_hessian_itself_comes_as_an_array():
    problem, _, names, dense = oracle("mlp")
    arrays = measure(problem, quantities=["hessian"]).attrs["arrays"]["hessian"]
    assert arrays["names"] == names
    numpy.testing.assert_allclose(
        arrays["hessian"], dense[Part.H].numpy(), rtol=1e-5, atol=1e-7
    )


def test_blocks_that_are_named_come_as_arrays():
    problem, blocks, names, dense = oracle("mlp")
    arrays = measure(problem, blocks=blocks, quantities=["hessian"]).attrs["arrays"][
        "hessian"
    ]
    entries = json.loads(str(arrays["entries"]))
    layout = problem.objective("float64").layout
    assert len(entries) == len(arrays) - 1
    assert "hessian" not in arrays
    for number, entry in enumerate(entries):
        rows, cols = (
            places(problem, names, layout.side(entry[layer], entry[side]))
            for layer, side in (("row_layer", "row"), ("layer", "col"))
        )
        found = arrays[f"block_{number}"]
        assert found.dtype == numpy.float64
        assert entry["dim"] == len(cols)
        truth = dense[Part(entry["part"])][rows][:, cols].numpy()
        numpy.testing.assert_allclose(found, truth, rtol=1e-8, atol=1e-12)


def test_a_problem_prints_as_a_line_without_tensors():
    problem = hessfig.Problem(
        nn.Linear(3, 2),
        torch.randn(5, 3),
        torch.tensor([0, 1, 0, 1, 0]),
        loss="cross_entropy",
    )
    assert (
        repr(problem)
        == "Problem of Linear (parameters: 8, loss: cross_entropy, weights: every parameter)"
    )


@pytest.mark.filterwarnings("error")
def test_distances_to_a_block_that_is_zero_are_no_cause_for_a_warning():
    # H_f of the last weight vanishes.
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    problem = hessfig.Problem(
        network, torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
    )
    table = hessfig.measure(problem, blocks="2.weight", quantities="approximations")
    assert table[table["part"] == "H_f"]["value"].isna().all()
    assert table[table["part"] == "H"]["value"].notna().all()


def test_the_package_is_the_command_and_has_its_error(monkeypatch, capsys):
    monkeypatch.setattr("hessfig.cli.main.main", lambda: print("the command"))
    runpy.run_module("hessfig", run_name="__main__")
    assert capsys.readouterr().out == "the command\n"
    assert hessfig.UserError is UserError


def test_completion_by_tab_shows_the_interface_and_imports_nothing():
    program = "import sys, hessfig; print([n for n in dir(hessfig) if n[0] != '_'], 'torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    names = sorted({*hessfig.__all__, "lens"} - {"__version__"})
    assert found.stdout == f"{names} False\n"
