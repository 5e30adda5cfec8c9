"""One network on 1, 2 and 4 processes: products, numbers and probes against one process, and what is refused."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
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


def products(*networks, end=""):
    return [f"products:{name}{end}" for name in networks]


def planned(kind):
    """Return the cases of a kind, each with its number of ranks."""
    every = [(size, case) for size, cases in PLAN.items() for case in cases]
    return [(size, case) for size, case in every if case.startswith(f"{kind}:")]


MONITOR = "monitor:mlp:layers"
# Not the experts: 1e-12 from a jump, float32 rounds to its other side.
FLOAT32 = ["mlp:layers", "scalar:root", "mixtral:layers"]
PLAN = {
    1: [
        *products("mlp:layers", "llama:root", "experts:layers"),
        "probes",
        TABLES[0],
        MONITOR,
    ],
    2: [
        *products(*ranks.NETWORKS),
        *products(*ranks.NETWORKS, end=":H_o"),
        # H - H_o, whatever the network.
        *products(*ranks.NETWORKS[::4], end=":H_f"),
        *products(*FLOAT32, end=":H:float32"),
        *products(*FLOAT32, end=":H_f:float32"),
        # Its encoder layer has ReLUs in one kernel with other operations, if without gradients.
        *products(*FLOAT32, "encoder:layers", end=":H_o:float32"),
        "probes",
        "own_batches",
        *TABLES,
        MONITOR,
        "monitor:llama:layers",
        "monitor_refused",
        *(f"refused:{kind}" for kind in REFUSED),
    ],
    4: [*products("mlp:layers", "scalar:root", "llama:tensor"), "probes", MONITOR],
}

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
    written = 0
    since = time.monotonic()
    while process.poll() is None:
        time.sleep(0.2)
        now = len([*folder.glob("*.json")])
        if now > written:
            written = now
            since = time.monotonic()
        if time.monotonic() - since > PATIENCE:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            pytest.fail(f"no case ended in {PATIENCE} s, after {written} files")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return launched(tmp_path_factory.mktemp("ranks"), PLAN)


def trained(net):
    return {name: one for name, one in net.named_parameters() if one.requires_grad}


def flat(pieces):
    return torch.cat([one.flatten() for one in pieces])


def product(net, part, vector, pairs):
    """Return the product of a part with a vector by plain double backward; pairs of weight and batch."""
    at = [*trained(net).values()]
    total = sum(weight for weight, _ in pairs)
    found = 0
    for weight, batch in pairs:
        with sdpa_kernel(SDPBackend.MATH):
            outputs = ranks.outputs_of(net, batch)
            slope = flat(
                torch.autograd.grad(
                    ranks.loss_of(outputs, batch), at, create_graph=True
                )
            )
            whole = flat(torch.autograd.grad(slope @ vector, at, retain_graph=True))
            # J v is the derivative in u of v . J^T u.
            u = torch.zeros_like(outputs, requires_grad=True)
            pulled = flat(torch.autograd.grad(outputs, at, u, create_graph=True))
            (pushed,) = torch.autograd.grad(pulled @ vector, u, retain_graph=True)
            leaf = outputs.detach().requires_grad_()
            (bent,) = torch.autograd.grad(
                ranks.loss_of(leaf, batch), leaf, create_graph=True
            )
            (curved,) = torch.autograd.grad(bent, leaf, pushed)
            outer = flat(torch.autograd.grad(outputs, at, curved))
        parts = {"H": whole, "H_o": outer, "H_f": whole - outer}
        found = found + weight / total * parts[part]
    return found


def dense(net, part, pairs, block=None):
    """Return a part, or its block of one parameter."""
    numbers = {name: torch.full_like(one, False) for name, one in trained(net).items()}
    for name, one in numbers.items():
        one.fill_(block in (None, name))
    chosen = flat(numbers.values()).bool()
    rows = []
    for unit in torch.eye(len(chosen), dtype=torch.float64)[chosen]:
        rows.append(product(net, part, unit, pairs)[chosen])
    return torch.stack(rows)


@pytest.mark.parametrize(("size", "case"), planned("products"))
def test_products_are_those_of_one_process(found, size, case):
    _, kind, how, *parts = case.split(":")
    net = ranks.network(kind, how)
    pairs = [(1.0, batch) for batch in ranks.batches(kind)]
    vector = flat(ranks.vector_of(net).values())
    expected = product(net, parts[0] if parts else "H", vector, pairs)
    # The norms of Llama and Mixtral compute in float32, whatever the type of the
    # parameters.
    most = 2 * 2.0**-12 if kind in ("llama", "mixtral") or "float32" in parts else 1e-6
    assert len(found[case, size]) == size
    for seen in found[case, size]:
        assert seen == found[case, size][0]
        assert [*seen["product"]] == [*trained(net)]
        product_of_ranks = flat(
            torch.tensor(one, dtype=torch.float64) for one in seen["product"].values()
        )
        off = (product_of_ranks - expected).norm()
        assert off <= seen["error"] <= most * expected.norm()


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
    net = ranks.network(kind)
    pairs = [(1.0, batch) for batch in ranks.batches(kind)]
    for block, part in itertools.product(blocks, ("H", "H_o", "H_f")):
        matrix = dense(net, part, pairs, block)
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
    pairs = []
    for rank in range(2):
        pairs += zip((1.0, 2.0 + rank), ranks.batches("mlp", rank), strict=True)
    largest = float(torch.linalg.eigvalsh(dense(net, part, pairs))[-1])
    for seen in found["own_batches", 2]:
        assert seen[part] == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_refused_is_refused_by_name_on_every_rank(found, kind):
    assert len(found[f"refused:{kind}", 2]) == 2
    for seen in found[f"refused:{kind}", 2]:
        assert all(words in seen["error"] for words in REFUSED[kind]), seen
        assert seen["seconds"] < 60


@pytest.mark.parametrize(("size", "case"), planned("monitor"))
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
