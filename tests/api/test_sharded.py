"""One network on 1, 2 and 4 processes: products, numbers and probes against one process, and what is refused."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import hessfig
from tests.api import ranks
from tests.pages import ROOT, write_files

REFUSED = {
    "part": ("only partly sharded", "2.weight, 2.bias"),
    "batches": ("rank 1 does not measure", "other batches"),
    "weights": ("rank 1 does not measure", "other entries of 2.bias"),
    "sharded_batches": ("are not averaged", "FSDP2 does not shard"),
    "training": ("sharded over ranks", "training mode"),
    "random": ("two gradients at the same weights differ", "no dropout"),
    "quantity": ("sharded over ranks", "quantities=['residual_norm']"),
    "parts": ("sharded over ranks", "parts=['H_o']"),
    "convex": ("H_o and H_f are not defined here", "not convex"),
    "estimator": ("sharded over ranks", "estimator=dense"),
    "block": ("no such block", "nosuch"),
    "rough": ("too rough", "at most 10 %"),
    "dtype": ("the type of its parameters", "float32"),
    "products": ("sharded over ranks", "products=curvlinops"),
    "curvlinops": ("sharded over ranks", "products=curvlinops"),
    **dict.fromkeys(
        ("objective", "approximation", "find_weights"),
        ("sharded over ranks", "on one device"),
    ),
    "bfloat16": ("cannot be moved by small steps", "torch.bfloat16: 0.weight"),
}
TABLES = ["table:mlp:layers:0.bias:2.bias", "table:tied:root:norm.weight"]
PLAN = {
    1: [
        "products:mlp:layers",
        "products:llama:root",
        "products:experts:layers",
        "probes",
        TABLES[0],
    ],
    2: [
        *(f"products:{name}" for name in ranks.NETWORKS),
        *TABLES,
        "probes",
        "own_batches",
    ],
    4: [
        "products:mlp:layers",
        "products:scalar:root",
        "products:llama:tensor",
        "probes",
    ],
}
PLAN[2] += [f"products:{name}:H_o" for name in ranks.NETWORKS]
# H - H_o, whatever the network.
PLAN[2] += [f"products:{name}:H_f" for name in ranks.NETWORKS[::4]]
PLAN[2] += [
    f"products:{name}:{part}:float32"
    for name in ranks.NETWORKS[::7]
    for part in ("H", "H_o", "H_f")
]
# Its encoder layer has ReLUs in one kernel with other operations, if without gradients.
PLAN[2] += ["products:encoder:layers:H_o:float32"]
PLAN[2] += [f"refused:{kind}" for kind in REFUSED]
MONITORED = [(size, "monitor:mlp:layers") for size in PLAN] + [
    (2, "monitor:llama:layers")
]
for size, case in MONITORED:
    PLAN[size] += [case]
PLAN[2] += ["monitor_refused"]
PRODUCTS = [
    (size, case)
    for size, cases in PLAN.items()
    for case in cases
    if case.startswith("products")
]
Batch = tuple[Tensor, Tensor]
Found = dict[tuple[str, int], list[dict[str, Any]]]

# Seconds without a case that ends, after which the processes are taken to hang: a limit
# of all cases would depend on what else the processors do.
PATIENCE = 600
pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]


def launched(folder, plan):
    """Run cases on some numbers of processes; return what each rank wrote, by case and number."""
    words = [f"{size}={','.join(cases)}" for size, cases in plan.items()]
    command = [sys.executable, "-m", "tests.api.ranks", str(folder), *words]
    said = folder / "stderr.txt"
    with said.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    wait_for(process, folder)
    found = {}
    for size, cases in plan.items():
        for case in cases:
            files = [folder / f"{case}.{size}.{rank}.json" for rank in range(size)]
            found[case, size] = [
                json.loads(path.read_text()) for path in files if path.exists()
            ]
            stderr = said.read_text()[-3000:]
            assert found[case, size], f"{case} on {size} ranks: {stderr}"
    return found


def wait_for(process, folder):
    """Wait for the end of the processes, which write a file after each case; end them if they write nothing more."""
    written, since = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        now = len([*folder.glob("*.json")])
        if now > written:
            written, since = now, time.monotonic()
        if time.monotonic() - since > PATIENCE:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            pytest.fail(f"no case ended in {PATIENCE} s, after {written} files")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return launched(tmp_path_factory.mktemp("ranks"), PLAN)


def product(net, part, vector, pairs):
    """Return the product of a part with a vector by parameter, by plain double backward; pairs of weight and batch."""
    named = {name: one for name, one in net.named_parameters() if one.requires_grad}
    weights, total = [*named.values()], sum(weight for weight, _ in pairs)
    found = {name: torch.zeros_like(one) for name, one in named.items()}
    for weight, batch in pairs:
        with sdpa_kernel(SDPBackend.MATH):
            outputs = ranks.outputs_of(net, batch)
            whole = _along(ranks.loss_of(outputs, batch), weights, [*vector.values()])
            leaf = outputs.detach().requires_grad_()
            (curved,) = _along(
                ranks.loss_of(leaf, batch),
                [leaf],
                [_pushed(outputs, weights, [*vector.values()])],
            )
            outer = torch.autograd.grad(outputs, weights, curved)
        for name, one, other in zip(named, whole, outer, strict=True):
            found[name] += (
                weight / total * {"H": one, "H_o": other, "H_f": one - other}[part]
            )
    return found


def _along(value, at, vectors):
    """Return the Hessian of a value times vectors."""
    slopes = torch.autograd.grad(value, at, create_graph=True)
    slope = torch.stack(
        [(one * along).sum() for one, along in zip(slopes, vectors, strict=True)]
    ).sum()
    return torch.autograd.grad(slope, at, retain_graph=True)


def _pushed(outputs, weights, vectors):
    """Return J v, the derivative in u of v . J^T u."""
    cotangent = torch.zeros_like(outputs, requires_grad=True)
    slopes = torch.autograd.grad(outputs, weights, cotangent, create_graph=True)
    slope = torch.stack(
        [(one * along).sum() for one, along in zip(slopes, vectors, strict=True)]
    ).sum()
    return torch.autograd.grad(slope, cotangent, retain_graph=True)[0]


def dense(kind, block, part):
    """Return a block of one parameter."""
    net = ranks.network(kind)
    zeros = {
        name: torch.zeros_like(one)
        for name, one in net.named_parameters()
        if one.requires_grad
    }
    pairs = [(1.0, batch) for batch in ranks.batches(kind)]
    units = torch.eye(zeros[block].numel()).double().view(-1, *zeros[block].shape)
    return torch.stack(
        [
            product(net, part, {**zeros, block: unit}, pairs)[block].flatten()
            for unit in units
        ]
    )


@pytest.mark.parametrize(("size", "case"), PRODUCTS)
def test_products_are_those_of_one_process(found, size, case):
    _, kind, how, *parts = case.split(":")
    net = ranks.network(kind, how)
    pairs = [(1.0, batch) for batch in ranks.batches(kind)]
    expected = product(net, parts[0] if parts else "H", ranks.vector_of(net), pairs)
    whole = torch.cat([one.flatten() for one in expected.values()]).norm()
    # The norms of Llama and Mixtral compute in float32, whatever the type of the
    # parameters.
    most = 2 * 2.0**-12 if kind in ("llama", "mixtral") or "float32" in parts else 1e-6
    assert len(found[case, size]) == size
    for seen in found[case, size]:
        errors = {
            name: (
                torch.tensor(seen["product"][name], dtype=torch.float64) - one
            ).norm()
            for name, one in expected.items()
        }
        assert seen == found[case, size][0]
        assert seen["product"].keys() == expected.keys()
        assert (
            torch.stack([*errors.values()]).norm() <= seen["error"] <= most * whole
        ), (errors, seen["error"])


def test_probes_have_the_same_bits_for_any_number_of_ranks(found):
    drawn = [json.dumps(seen) for size in PLAN for seen in found["probes", size]]
    assert len(drawn) == 7
    assert len(set(drawn)) == 1


@pytest.mark.parametrize(
    ("case", "size"), [(TABLES[0], 1), *((case, 2) for case in TABLES)]
)
def test_numbers_are_those_of_the_dense_hessian(found, case, size):
    _, kind, _, *blocks = case.split(":")
    assert all(one == found[case, size][0] for one in found[case, size])
    seen = {
        (row, part, quantity): rest
        for row, part, quantity, *rest in found[case, size][0]["rows"]
    }
    for block, part in itertools.product(blocks, ("H", "H_o", "H_f")):
        matrix = dense(kind, block, part)
        # H_f of the last bias: products are the rounding of H and H_o.
        if matrix.norm() < 1e-14:
            assert all(
                abs(seen[block, part, quantity][0]) < 1e-9
                for quantity in ranks.QUANTITIES[:4]
            )
            continue
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
            value, error, status = seen[block, part, quantity]
            is_eigenvalue = quantity.endswith("eigenvalue")
            assert status == "ok"
            assert 0 < error < (1e-6 if is_eigenvalue else math.inf)
            assert (
                abs(value - expected) <= (1.01 if is_eigenvalue else 5) * error + 1e-13
            ), (block, part, quantity)


@pytest.mark.parametrize("part", ["H", "H_o", "H_f"])
def test_every_rank_may_have_batches_of_its_own(found, part):
    net = ranks.network("mlp")
    weighted = [
        zip((1.0, 2.0 + rank), ranks.batches("mlp", rank), strict=True)
        for rank in range(2)
    ]
    pairs = [*itertools.chain(*weighted)]
    zeros = {name: torch.zeros_like(one) for name, one in net.named_parameters()}
    rows = []
    for name, one in zeros.items():
        for unit in torch.eye(one.numel()).double().view(-1, *one.shape):
            column = product(net, part, {**zeros, name: unit}, pairs)
            rows.append(torch.cat([each.flatten() for each in column.values()]))
    largest = float(torch.linalg.eigvalsh(torch.stack(rows))[-1])
    for seen in found["own_batches", 2]:
        assert seen[part] == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_refused_by_name_on_every_rank(found, kind):
    assert len(found[f"refused:{kind}", 2]) == 2
    for seen in found[f"refused:{kind}", 2]:
        assert all(words in seen["error"] for words in REFUSED[kind]), seen
        assert seen["seconds"] < 60


@pytest.mark.parametrize(("size", "case"), MONITORED)
def test_a_monitor_measures_on_all_ranks_and_leaves_the_training_as_it_was(
    found, size, case
):
    first, *others = found[case, size]
    assert len(others) == size - 1
    assert all(one == first for one in others)
    assert first["weights"] == first["plain"]  # to the bit
    assert first["again"] == first["seen"]
    kind = case.split(":")[1]
    net = ranks.network(kind)
    optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    own = hessfig.Problem(net, ranks.batches(kind), compute_loss=ranks.loss)
    for step, seen in enumerate(first["seen"]):
        optimiser.zero_grad()
        for batch in ranks.batches(kind):
            ranks.loss(net, batch).backward()
        if step % 2 == 0:
            names = ["loss", "gradient_norm", "largest_eigenvalue"]
            expected = hessfig.measure(
                own, blocks=["all"], parts="H", quantities=names
            )["value"].tolist()
            assert list(seen.values())[:3] == pytest.approx(expected[:3], rel=1e-9)
            assert seen["largest_eigenvalue/all/H"] == pytest.approx(
                expected[3], rel=1e-2
            )
        else:
            assert seen == {}
        optimiser.step()


def test_a_monitor_that_cannot_begin_says_so_on_every_rank(found):
    assert len(found["monitor_refused", 2]) == 2
    for seen in found["monitor_refused", 2]:
        assert "holds a table without a manifest" in seen["folder"]
        assert "rank 1 does not measure" in seen["batches"]


def test_a_dead_rank_ends_the_others_with_a_message(tmp_path):
    (seen,) = launched(tmp_path, {2: ["killed"]})["killed", 2]
    assert "another rank was lost" in seen["error"]
    assert seen["seconds"] < 60


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_tensors_take_the_memory_that_is_said_before(tmp_path, monkeypatch):
    # Without gaps in glibc's heap, which may be as large as the tensors.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**18))
    cases = ["memory:loss", "memory:trace", "memory:largest_eigenvalue"]
    _, *found = launched(tmp_path, {2: cases}).values()
    for seen in itertools.chain(*found):
        assert 0.6 * seen["said"] < seen["taken"] <= seen["said"]


def test_the_page_shows_how(tmp_path):
    write_files("docs/cluster.md", tmp_path)
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "sharded.py",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        launcher,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()[1:]] == [
        "trace",
        "largest_eigenvalue",
    ]
