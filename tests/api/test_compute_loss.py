"""hessfig.Problem(network, batches, compute_loss=f): any function on any batch, against dense double backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hessfig
from tests.api.any_functions import CASES, Case
from tests.double_backward import hessian
from tests.runs import here

SMALL = [name for name in CASES if not name.startswith("large")]
LARGE = [name for name in CASES if name.startswith("large")]


def problem(case: Case) -> hessfig.Problem:
    return hessfig.Problem(case.network, case.batches, compute_loss=case.compute_loss, **case.further)


def parameters(case: Case) -> dict[str, Tensor]:
    """Return the measured parameters of the user's own network."""
    named = dict(case.network.named_parameters())
    if case.further.get("weights") == "trainable":
        return {name: one for name, one in named.items() if one.requires_grad}
    return {name: one.requires_grad_() for name, one in named.items()}


def total(make: Callable[[], Case], case: Case) -> Tensor:
    """Return sum_b w_b f(network, b) / sum_b w_b; every call of f starts from the state in which it was handed over."""
    weights = case.further.get("batch_weights") or (lambda batch: 1.0)
    every = case.every
    numbers = [float(weights(copy.deepcopy(b))) for b in every] if callable(weights) else [*map(float, weights)]
    value = torch.zeros(())
    for number, weight in enumerate(numbers):
        fresh = make()
        if weight:
            own = fresh.compute_loss
            _rebind(own, case)
            value = value + weight * own(_at(fresh, case), fresh.every[number]).reshape(())
    return value / sum(numbers)


def _at(fresh: Case, case: Case) -> nn.Module:
    """Return the fresh network with the parameters of `case`, which derivatives are taken in."""
    theirs = dict(case.network.named_modules())
    for path, module in fresh.network.named_modules():
        module._parameters.update(theirs[path]._parameters)
    return fresh.network


def _rebind(function: Any, case: Case) -> None:
    """Give a function that kept the parameters of the fresh network those of `case`."""
    named = dict(case.network.named_parameters())
    for cell in getattr(function, "__closure__", None) or ():
        content = cell.cell_contents
        if isinstance(content, dict) and set(content) == set(named):
            content.update(named)


def dense(make: Callable[[], Case]) -> Tensor:
    case = make()
    return hessian(lambda: total(make, case), list(parameters(case).values()))


def measured(name: str, dtype: str) -> dict[str, float]:
    table = hessfig.measure(
        problem(CASES[name]()),
        blocks=["all"],
        parts="H",
        quantities=["frobenius", "trace", "largest_eigenvalue"],
        estimator="dense",
        dtype=dtype,
    )
    assert (table["status"] == "ok").all()
    return dict(zip(table["quantity"], table["value"], strict=True))


def check(found: Tensor, truth: Tensor, case: Case, allowed: float) -> None:
    """Compare two matrices in the rows of every parameter, relative to these, or to a thousandth of the whole."""
    sizes = [one.numel() for one in parameters(case).values()]
    for rows, other in zip(found.double().split(sizes), truth.split(sizes), strict=True):
        size = max(float(other.norm()), 1e-3 * float(truth.norm()))
        assert float((rows - other).norm()) <= allowed * size


@pytest.mark.parametrize("name", SMALL)
def test_every_function_equals_double_backward_by_parameter(name: str) -> None:
    make = CASES[name]
    truth, case = dense(make), make()
    for dtype, allowed in {"float64": 1e-9, "float32": 1e-4}.items():
        check(problem(case).operator("all", dtype=dtype).dense(), truth, case, allowed)


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_measure_and_monitor_agree_with_double_backward(name: str, tmp_path: Path) -> None:
    make = CASES[name]
    truth, case = dense(make), make()
    numbers = {
        "frobenius": float(truth.norm()),
        "trace": float(truth.trace()),
        "largest_eigenvalue": float(torch.linalg.eigvalsh(truth)[-1]),
    }
    size = numbers["frobenius"]
    options = {"blocks": ["all"], "parts": "H", "quantities": [*numbers], "estimator": "dense"}
    for dtype, allowed in {"float64": 1e-8, "float32": 1e-4}.items():
        table = hessfig.measure(problem(case), **options, dtype=dtype)
        found = dict(zip(table["quantity"], table["value"], strict=True))
        assert found == {name: pytest.approx(value, abs=allowed * size) for name, value in numbers.items()}
    case = make()
    functions = {"compute_loss": case.compute_loss, "weights": None, **case.further}
    monitor = hessfig.Monitor(case.network, case.batches, folder=tmp_path, every=1, **functions, **options)
    found = {name.partition("/")[0]: value for name, value in monitor(0).items()}
    assert found == {name: pytest.approx(value, abs=1e-8 * size) for name, value in numbers.items()}
    monitor.close()


FACTORY = """
import hessfig
from tests.api.any_functions import CASES

def make(name):
    made = CASES[name]()
    return hessfig.Problem(made.network, made.batches, compute_loss=made.compute_loss, **made.further)
"""


@pytest.mark.long
def test_the_command_line_measures_them_all(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(FACTORY)
    names = ", ".join(SMALL)
    words = ["sweep=network", "model.factory=functions.py:make", "blocks=[all]", "parts=[H]", "estimator=dense"]
    words += [f"sweep.vary={{model.options.name: [{names}]}}", "seeds=1", "workers=1", "quantities=[frobenius,trace]"]
    answer = here("run", *words, folder=tmp_path)
    assert answer.returncode == 0, answer.stderr
    table = hessfig.read(tmp_path / "outputs" / "network").table
    assert len(table) == 2 * len(SMALL)
    for (name, quantity), rows in table.groupby(["variant", "quantity"]):
        truth = dense(CASES[name.rpartition("=")[2]])
        number = float(truth.norm() if quantity == "frobenius" else truth.trace())
        assert rows["value"].item() == pytest.approx(number, abs=1e-8 * float(truth.norm())), name
