"""One network on 1, 2 and 4 processes: products, numbers and probes against one process, and what is refused."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.api import ranks
from tests.pages import ROOT, write_files

REFUSED = {
    "part": ("sharded in part", "2.weight, 2.bias"),
    "batches": ("rank 1 does not measure", "other batches"),
    "weights": ("rank 1 does not measure", "other entries of 2.bias"),
    "sharded_batches": ("are not averaged", "FSDP2 does not shard"),
    "training": ("sharded over ranks", "training mode"),
    "random": ("two gradients at the same weights differ", "no dropout"),
    "quantity": ("sharded over ranks", "quantities=['gradient_norm']"),
    "parts": ("sharded over ranks", "parts=['H_o']"),
    "estimator": ("sharded over ranks", "estimator=dense"),
    "block": ("no such block", "nosuch"),
    "rough": ("too rough", "at most 10 %"),
    "dtype": ("the type of its parameters", "float32"),
    "products": ("sharded over ranks", "products=curvlinops"),
    "curvlinops": ("sharded over ranks", "products=curvlinops"),
    **dict.fromkeys(("objective", "approximation", "find_weights"), ("sharded over ranks", "on one device")),
    "bfloat16": ("cannot be moved by small steps", "torch.bfloat16: 0.weight"),
}
TABLES = ["table:mlp:layers:0.bias:2.bias", "table:tied:root:norm.weight"]
PLAN = {
    1: ["products:mlp:layers", "products:llama:root", "probes", TABLES[0]],
    2: [*(f"products:{name}" for name in ranks.NETWORKS), *TABLES, "probes", "own_batches"],
    4: ["products:mlp:layers", "products:scalar:root", "products:llama:tensor", "probes"],
}
PLAN[2] += [f"refused:{kind}" for kind in REFUSED]
PRODUCTS = [(size, case) for size, cases in PLAN.items() for case in cases if case.startswith("products")]
Found = dict[tuple[str, int], list[dict[str, Any]]]

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def launched(folder: Path, plan: dict[int, list[str]]) -> Found:
    """Run cases on some numbers of processes; return what each rank wrote, by case and number."""
    words = [f"{size}={','.join(cases)}" for size, cases in plan.items()]
    command = [sys.executable, "-m", "tests.api.ranks", str(folder), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    found: Found = {}
    for size, cases in plan.items():
        for case in cases:
            files = [folder / f"{case}.{size}.{rank}.json" for rank in range(size)]
            found[case, size] = [json.loads(path.read_text()) for path in files if path.exists()]
            assert found[case, size], f"{case} on {size} ranks: {done.stderr[-3000:]}"
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launched(tmp_path_factory.mktemp("ranks"), PLAN)


def hessian(kind: str, seeds: tuple[tuple[int, float, float], ...] = ((0, 1.0, 1.0),)) -> tuple[dict[str, Any], Tensor]:
    """Return the parameters that are trained, and H by plain double backward; seeds of batches with their weights."""
    net = ranks.network(kind)
    named = {name: one for name, one in net.named_parameters() if one.requires_grad}
    pairs = [
        (weight, batch)
        for seed, *weights in seeds
        for weight, batch in zip(weights, ranks.batches(kind, seed), strict=True)
    ]
    total = sum(weight * ranks.loss(net, batch) for weight, batch in pairs) / sum(weight for weight, _ in pairs)
    flat = torch.cat(
        [one.flatten() for one in torch.autograd.grad(total, [*named.values()], create_graph=True)]  # type: ignore[arg-type]
    )
    rows = [
        torch.cat([one.flatten() for one in torch.autograd.grad(entry, [*named.values()], retain_graph=True)])
        for entry in flat
    ]
    return named, torch.stack(rows)


def product(kind: str, how: str) -> dict[str, Tensor]:
    """Return H v by parameter, by plain double backward."""
    net = ranks.network(kind, how)
    named = {name: one for name, one in net.named_parameters() if one.requires_grad}
    vector = ranks.vector_of(net)
    with sdpa_kernel(SDPBackend.MATH):
        total = torch.stack([ranks.loss(net, batch) for batch in ranks.batches(kind)]).mean()
        gradient = torch.autograd.grad(total, [*named.values()], create_graph=True)
        slope = sum((one * vector[name]).sum() for name, one in zip(named, gradient, strict=True))
        return dict(zip(named, torch.autograd.grad(slope, [*named.values()]), strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "case"), PRODUCTS)
def test_products_are_those_of_one_process(found: Found, size: int, case: str) -> None:
    _, kind, how = case.split(":")
    expected = product(kind, how)
    whole = torch.cat([one.flatten() for one in expected.values()]).norm()
    # The norms of Llama and Mixtral compute in float32, whatever the type of the parameters.
    most = 2 * 2.0**-12 if kind in ("llama", "mixtral") else 1e-6
    assert len(found[case, size]) == size
    for seen in found[case, size]:
        errors = {
            name: (torch.tensor(seen["product"][name], dtype=torch.float64) - one).norm()
            for name, one in expected.items()
        }
        assert seen == found[case, size][0]
        assert seen["product"].keys() == expected.keys()
        assert torch.stack([*errors.values()]).norm() <= seen["error"] <= most * whole, (errors, seen["error"])


def test_probes_have_the_same_bits_for_any_number_of_ranks(found: Found) -> None:
    drawn = [json.dumps(seen) for size in PLAN for seen in found["probes", size]]
    assert len(drawn) == 7
    assert len(set(drawn)) == 1


@pytest.mark.parametrize(("case", "size"), [(TABLES[0], 1), *((case, 2) for case in TABLES)])
def test_numbers_are_those_of_the_dense_hessian(found: Found, case: str, size: int) -> None:
    _, kind, _, *blocks = case.split(":")
    named, dense = hessian(kind)
    ends = torch.tensor([one.numel() for one in named.values()]).cumsum(0).tolist()
    matrices = {}
    for block in blocks:
        place = [*named].index(block)
        inside = slice(ends[place] - named[block].numel(), ends[place])
        matrices[block] = dense[inside, inside]
    assert all(one == found[case, size][0] for one in found[case, size])
    seen = {(row, quantity): rest for row, quantity, *rest in found[case, size][0]["rows"]}
    for block, matrix in matrices.items():
        values = torch.linalg.eigvalsh(matrix)
        truth = {
            "largest_eigenvalue": values[-1],
            "smallest_eigenvalue": values[0],
            "frobenius": matrix.norm(),
            "trace": matrix.trace(),
            "density_mean": matrix.trace() / len(matrix),
            "density_second_moment": matrix.norm() ** 2 / len(matrix),
        }
        for quantity, expected in truth.items():
            value, error, status = seen[block, quantity]
            is_eigenvalue = quantity.endswith("eigenvalue")
            assert status == "ok"
            assert 0 < error < (1e-6 if is_eigenvalue else math.inf)
            assert abs(value - expected) <= (1.01 if is_eigenvalue else 5) * error + 1e-13, (block, quantity)


def test_every_rank_may_have_batches_of_its_own(found: Found) -> None:
    _, dense = hessian("mlp", ((0, 1.0, 2.0), (1, 1.0, 3.0)))
    for seen in found["own_batches", 2]:
        assert seen["value"] == pytest.approx(float(torch.linalg.eigvalsh(dense)[-1]), rel=1e-6)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_refused_by_name_on_every_rank(found: Found, kind: str) -> None:
    assert len(found[f"refused:{kind}", 2]) == 2
    for seen in found[f"refused:{kind}", 2]:
        assert all(words in seen["error"] for words in REFUSED[kind]), seen
        assert seen["seconds"] < 60


def test_a_dead_rank_ends_the_others_with_a_message(tmp_path: Path) -> None:
    (seen,) = launched(tmp_path, {2: ["killed"]})["killed", 2]
    assert "another rank was lost" in seen["error"]
    assert seen["seconds"] < 60


def test_the_page_shows_how(tmp_path: Path) -> None:
    write_files("docs/cluster.md", tmp_path)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "sharded.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        launcher, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()[1:]] == ["trace", "largest_eigenvalue"]
