"""The Python interface on networks that are not the package's own, against dense automatic differentiation."""

import json
import runpy
import subprocess
import sys
import warnings
from functools import cache

import numpy
import pytest
import torch
from torch import Tensor, nn

import hessfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.errors import UserError
from hessfig.record import COLUMNS
from hessfig.terms import PARTS, Part
from tests.daily import thinned
from tests.foreign_networks import CASES, dense_parts

pytestmark = pytest.mark.filterwarnings(
    "ignore:H_f. curvlinops' product is off:RuntimeWarning"
)


def measure(problem, **settings):
    return hessfig.measure(problem, **{"estimator": "dense", **settings})


def value(table, quantity, part, row, col, layers):
    chosen = table[
        (table["quantity"] == quantity)
        & (table["part"] == part)
        & (table["row"] == row)
        & (table["col"] == col)
        & (table["row_layer"] == layers[0])
        & (table["layer"] == layers[1])
    ]
    (number,) = chosen["value"]
    return float(number)


@cache
def oracle(name):
    problem, blocks = CASES[name]()
    names = [path for path, _ in problem.network.named_parameters()]
    return problem, blocks, names, dense_parts(problem, names)


def places(problem, names, side):
    """Return where the entries of a side of a block stand among all parameters."""
    start, found = 0, {}
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


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long
def test_every_block_and_part_is_the_oracles(name):
    problem, blocks, names, dense = oracle(name)
    table, layout = measure(problem, blocks=blocks), problem.objective("float64").layout
    assert len(table) == 3 * len(
        table[["row", "col", "row_layer", "layer"]].drop_duplicates()
    )
    for row in table.itertuples():
        at = [
            places(problem, names, layout.side(*side))
            for side in ((row.row_layer, row.row), (row.layer, row.col))
        ]
        truth = dense[Part(row.part)][at[0]][:, at[1]].norm().item()
        scale = dense[Part.H][at[0]][:, at[1]].norm().item()
        assert row.value == pytest.approx(truth, rel=1e-10, abs=1e-10 * scale), row


@pytest.mark.parametrize("name", CASES)
@pytest.mark.long
def test_traces_are_the_oracles(name):
    problem, blocks, names, dense = oracle(name)
    diagonal = [block for block in blocks if isinstance(block, str)]
    table = measure(problem, blocks=diagonal, quantities=["trace"])
    layout = problem.objective("float64").layout
    for row in table.itertuples():
        at = places(problem, names, layout.side(row.layer, row.col))
        block = dense[Part(row.part)][at][:, at]
        assert row.value == pytest.approx(
            block.trace().item(), abs=1e-10 * block.norm().item() + 1e-14
        ), row


def test_probes_cover_the_truth_within_their_error():
    problem, _, _, dense = oracle("mlp")
    table = measure(
        problem,
        blocks=["all"],
        quantities=["frobenius", "trace"],
        estimator="hutchinson",
        num_probes=60,
    )
    for part in PARTS:
        for quantity, truth in (
            ("frobenius", dense[part].norm().item()),
            ("trace", dense[part].trace().item()),
        ):
            (row,) = table[
                (table["part"] == part) & (table["quantity"] == quantity)
            ].itertuples()
            assert abs(row.value - truth) < 4 * row.error and row.num_probes == 60


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


def test_batches_are_weighted_by_their_size():
    problem, blocks, _, _ = oracle("mlp")
    assert isinstance(problem.inputs, Tensor) and isinstance(problem.targets, Tensor)
    inputs, targets = (
        list(side.split([2, 5])) for side in (problem.inputs, problem.targets)
    )
    apart = hessfig.Problem(problem.network, inputs, targets, weights=problem.weights)
    whole, pieces = measure(problem, blocks=blocks), measure(apart, blocks=blocks)
    numpy.testing.assert_allclose(pieces["value"], whole["value"], rtol=1e-12)


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


@pytest.mark.parametrize("name", ["mlp", "layered"] if "layered" in CASES else ["mlp"])
def test_blocks_that_are_named_come_as_arrays(name):
    problem, blocks, names, dense = oracle(name)
    arrays = measure(problem, blocks=blocks, quantities=["hessian"]).attrs["arrays"][
        "hessian"
    ]
    entries = json.loads(str(arrays["entries"]))
    layout = problem.objective("float64").layout
    assert len(entries) == len(arrays) - 1 and "hessian" not in arrays
    for number, entry in enumerate(entries):
        rows, cols = (
            places(problem, names, layout.side(entry[layer], entry[side]))
            for layer, side in (("row_layer", "row"), ("layer", "col"))
        )
        found = arrays[f"block_{number}"]
        assert found.dtype == numpy.float64 and entry["dim"] == len(cols)
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
    assert (
        table[table["part"] == "H_f"]["value"].isna().all()
        and table[table["part"] == "H"]["value"].notna().all()
    )


def test_importing_the_package_imports_no_torch():
    program = "import sys, hessfig; print('torch' in sys.modules, hessfig.__version__)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith("False")


def test_the_package_is_the_command_and_has_its_error(monkeypatch, capsys):
    monkeypatch.setattr("hessfig.cli.main.main", lambda: print("the command"))
    runpy.run_module("hessfig", run_name="__main__")
    assert capsys.readouterr().out == "the command\n" and hessfig.UserError is UserError


def test_completion_by_tab_shows_the_interface_and_imports_nothing():
    program = "import sys, hessfig; print([n for n in dir(hessfig) if n[0] != '_'], 'torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    names = sorted({*hessfig.__all__, "lens"} - {"__version__"})
    assert found.stdout == f"{names} False\n"


X, Y = torch.randn(4, 3), torch.randint(0, 2, (4,))
NET = nn.Linear(3, 2)
BAD = {
    "a copy": (
        {"weights": {"W": ("weight", ([0, 1], [1, 2]))}},
        "slice of W is not one of its",
    ),
    "a loss nobody knows": (
        {"loss": "crossentropy"},
        "loss is not known(.|\n)*did you mean 'cross_entropy'",
    ),
    "dropout": (
        {"network": nn.Sequential(nn.Dropout(0.5), NET)},
        "training mode(.|\n)*network.eval",
    ),
    "other inputs": (
        {"inputs": {"x": X}},
        "the network cannot take the batch(.|\n)*argument 'x'",
    ),
    "a function of network and batch": (
        {"inputs": (X, X), "targets": lambda network, batch: X.sum()},
        "compute_loss=f",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_problems_are_explained(case):
    changed, message = BAD[case]
    problem = hessfig.Problem(**{"network": NET, "inputs": X, "targets": Y, **changed})
    with pytest.raises(UserError, match=message) as caught:
        hessfig.measure(problem)
    assert caught.value.allowed and caught.value.remedy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"quantities": ["frobenios"]},
            "no such quantity(.|\n)*did you mean 'frobenius'",
        ),
        (
            {"blocks": [("weight", "bias")], "quantities": ["trace"]},
            "cannot be had for any of these blocks",
        ),
        ({"blocks": ["attention"]}, "no weight named 'attention'"),
        ({"parts": ["H_x"]}, "parts: there is no such choice"),
        ({"estimator": "exact"}, "no exact H"),
        ({"dtype": "float16"}, "dtype: there is no such choice"),
        ({"num_probes": 0}, "num_probes"),
    ],
)
def test_bad_requests_are_explained(settings, message):
    with pytest.raises(UserError, match=message):
        hessfig.measure(hessfig.Problem(NET, X, Y), **settings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step": 3}, "spectrum: there is no such choice(.|\n)*did you mean 'steps'"),
        ({"steps": 2.5}, "spectrum.steps is of another kind"),
        ({"probes": "normal"}, "spectrum.probes: there is no such choice"),
        ({"tolerance": 2}, "spectrum.tolerance"),
        ({"k": 7}, "fewer eigenvalues"),
    ],
)
def test_bad_settings_of_spectra_are_explained(given, message):
    with pytest.raises(UserError, match=message):
        hessfig.measure(
            hessfig.Problem(NET, X, Y),
            quantities=["largest_eigenvalue"],
            spectrum=given,
        )


@pytest.mark.parametrize("name", thinned(["mlp", "convolutional", "fused and tied"], 2))
def test_eigenvalues_are_the_oracles(name):
    problem, blocks, names, dense = oracle(name)
    diagonal = [block for block in blocks if isinstance(block, str)]
    table = measure(
        problem,
        blocks=diagonal,
        quantities=["spectrum"],
        spectrum={"probes": "gaussian"},
    )
    layout = problem.objective("float64").layout
    ends = {"largest_eigenvalue": -1, "smallest_eigenvalue": 0}
    for row in table[table["quantity"].isin(ends)].itertuples():
        at = places(problem, names, layout.side(row.layer, row.col))
        values = torch.linalg.eigvalsh(dense[Part(row.part)][at][:, at])
        scale = dense[Part.H][at][:, at].norm().item()
        assert row.value == pytest.approx(
            values[ends[row.quantity]].item(), abs=1e-10 * scale
        ), row
