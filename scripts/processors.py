"""Run the tests of numbers on other processors, as far as this one can play them: fewer instructions, more threads.

    python scripts/processors.py                  # print which numbers depend on threads and processor, as promised
    python scripts/processors.py --write          # put that table between its marks in docs/accuracy.md
    python scripts/processors.py --try            # numbers and tests under every setting (make test-processors)
    python scripts/processors.py --try "MKL with AVX2"      # under this one, and numbers next to those of the first

Instructions are chosen by variables that torch, oneDNN, MKL and OpenBLAS read when they start, so every setting is a
process of its own. Status 1: a number that should be equal is not, or a test failed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import hessfig
from hessfig.analysis.presented import between_marks, markdown_table
from hessfig.analysis.slopes.fit import fit_slope
from hessfig.config.enums import DType, Method, Norm, State
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.config.training_settings import StateConfig, TrainingConfig
from hessfig.curvature.problem import rademacher
from hessfig.predictions.growth_rates import growth_rate
from hessfig.rng import one_thread, stream
from hessfig.states.initialised import initialised
from hessfig.states.training.checkpoints import Folder
from hessfig.states.training.loop import ensure
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import Optimiser

ROOT = Path(__file__).parents[1]
PAGE, MARKS, COMMAND = ROOT / "docs" / "accuracy.md", "processors", "python scripts/processors.py --write"
THREADS = (1, 2)
# What a processor lacks is played by a variable that forbids it.
INSTRUCTIONS: dict[str, dict[str, str]] = {
    "all there are": {},
    "torch without vectors": {"ATEN_CPU_CAPABILITY": "default"},
    "torch with AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "oneDNN with AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
    "MKL with AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "MKL compatible with all": {"MKL_CBWR": "COMPATIBLE"},
    "everything with AVX2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
}
# The tests of numbers and of the same bits; others see no number of a processor's.
TESTS = (
    "tests/models/exact/test_exact_blocks.py",
    "tests/curvature/test_linearised.py",
    "tests/curvature/test_multiply.py",
    "tests/curvature/spectral/test_extremes.py",
    "tests/measurements/test_dense.py",
    "tests/measurements/test_hutchinson.py",
    "tests/models/test_order_in_memory.py",
    "tests/states/test_order_in_memory.py",
    "tests/states/training/test_second_order.py",
    "tests/states/training/test_steepest.py",
    "tests/states/training/test_trajectory.py",
    "tests/sweep/test_measure.py",
    "tests/api/test_interface.py",
    "tests/test_rng.py",
)
UNSET = {name for chosen in INSTRUCTIONS.values() for name in chosen}


@dataclass(frozen=True)
class Number:
    """Numbers of one origin: how some are made, and whether they may depend on threads and on the processor."""

    what: str
    made: Callable[[], bytes]
    on_threads: bool = False
    on_processor: bool = True


def _network(**settings: object) -> Config:
    model = ModelConfig(d_model=9, d_mlp=11, n_heads=2, d_head=4, norm=Norm.pre)
    return Config(**{"model": model, "task": TaskConfig(digits=1, batch_size=5), **settings})  # type: ignore[arg-type]


def _bytes(tensors: Mapping[str, Tensor]) -> bytes:
    return b"".join(tensors[name].detach().contiguous().numpy().tobytes() for name in sorted(tensors))


def _drawn() -> bytes:
    probes = rademacher(50, 3, generator=stream(0, "probes"), dtype=torch.float64)
    return _bytes({"tokens": initialised(_network(), sigma=0.3, seed=0).batch.inputs, "probes": probes})


def _keys() -> bytes:
    return Cell(Variant("", _network()), 0.3, 0).key.encode()


def _rates() -> bytes:
    from hessfig.predictions.architecture import Architecture
    from hessfig.terms import Block, Part

    found = [growth_rate(Block(1, "W_Q", "W_V"), part, Architecture()) for part in (Part.H, Part.H_o, Part.H_f)]
    return repr(found).encode()


def _slope() -> bytes:
    sigma = np.logspace(-2, 0, 12)
    values = sigma**2 * np.exp(np.random.default_rng(0).normal(size=(5, 12)) / 10)
    found = fit_slope(values, sigma)
    return repr(found).encode()


def _weights() -> bytes:
    return _bytes(dict(initialised(_network(), sigma=0.3, seed=0).network.named_parameters()))


def _cell(**settings: object) -> bytes:
    with one_thread():  # as a worker
        rows = compute_cell(Cell(Variant("", _network(**settings)), 0.3, 1)).rows
    return repr([(row["value"], row["error"]) for row in rows]).encode()


def _training(kind: Optimiser) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingConfig(optimiser=kind, steps=30, warmup=5, batch_size=4, evaluation_size=5)
        config = _network(training=training, state=StateConfig(State.trained), output_dir=folder)
        trajectory = Trajectory(config, 0.3, 1)
        ensure(trajectory, [13])
        kept = Folder(trajectory).at(13)
        assert kept is not None
        return _bytes(kept.weights)


def _own(width: int) -> bytes:
    network = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3)).double()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream(0, name), dtype=torch.float64) / width**0.5)
    inputs = torch.randn(64, width, generator=stream(0, "inputs"), dtype=torch.float64)
    problem = hessfig.Problem(network.eval(), inputs, torch.arange(64) % 3)
    table = hessfig.measure(problem, blocks=["0.weight"], parts="H", num_probes=4, estimator="hutchinson")
    return bytes(table[["value", "error"]].to_numpy().tobytes())


_HUTCHINSON = EstimatorConfig(Method.hutchinson)
NUMBERS = (
    Number("keys of cells", _keys, on_processor=False),
    Number("predicted growth rates", _rates, on_processor=False),
    Number("tokens, orders of batches, probes", _drawn, on_processor=False),
    Number("initial weights", _weights),
    Number("slopes of a given table, with their errors", _slope),
    Number("exact norms", partial(_cell, estimator=EstimatorConfig(Method.exact))),
    Number("probed norms, float64", partial(_cell, estimator=_HUTCHINSON)),
    Number("probed norms, float32", partial(_cell, estimator=_HUTCHINSON, dtype=DType.float32)),
    Number("eigenvalues", partial(_cell, quantities=["largest_eigenvalue"], blocks=["W_V"])),
    Number("trained weights (AdamW)", partial(_training, Optimiser.adamw)),
    Number("trained weights (SOAP)", partial(_training, Optimiser.soap)),
    Number("`hessfig.measure`, at most 65 536 parameters", partial(_own, 40)),
    Number("`hessfig.measure`, more parameters", partial(_own, 300), on_threads=True),
)


def digests() -> dict[str, dict[str, str]]:
    """Return {threads: {what: digest}} of all numbers in this process."""
    found: dict[str, dict[str, str]] = {}
    for threads in THREADS:
        torch.set_num_threads(threads)
        found[str(threads)] = {one.what: hashlib.sha256(one.made()).hexdigest() for one in NUMBERS}
    return found


def elsewhere(instructions: str) -> dict[str, dict[str, str]]:
    """Return the digests that a process with these instructions finds."""
    found = subprocess.run(
        [sys.executable, __file__, "--digests"], env=_environment(instructions), capture_output=True, text=True
    )
    if found.returncode:
        raise RuntimeError(f"{instructions}: {found.stderr[-2000:]}")
    answer: dict[str, dict[str, str]] = json.loads(found.stdout.splitlines()[-1])
    return answer


def unequal(found: Mapping[tuple[str, str], Mapping[str, str]]) -> Iterator[tuple[tuple[str, str], str, bool]]:
    """Yield (setting, what, whether that is allowed) of each number that is not that of the first setting.

    `found` holds digests by (instructions, threads). Between instructions one number of threads is compared.
    """
    (first, least), *_ = found
    for (instructions, threads), those in found.items():
        for one in NUMBERS:
            same_threads = found[instructions, least][one.what] == those[one.what]
            same_processor = found[first, threads][one.what] == those[one.what]
            if not same_threads or not same_processor:
                allowed = (same_threads or one.on_threads) and (same_processor or one.on_processor)
                yield (instructions, threads), one.what, allowed


def _environment(instructions: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in UNSET}
    return {**kept, **INSTRUCTIONS[instructions], "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}


def tested(instructions: str, threads: int) -> tuple[int, int, float]:
    """Return how many of TESTS passed and failed under a setting, and the seconds they took."""
    start = time.monotonic()
    environment = {**_environment(instructions), "HESSFIG_TEST_THREADS": str(threads)}
    command = [sys.executable, "-m", "pytest", "--no-header", "--tb=line", "-m", "not slow and not long", *TESTS]
    out = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True).stdout
    passed, failed = (sum(map(int, re.findall(rf"(\d+) (?:{word})", out))) for word in ("passed", "failed|errors?"))
    if failed or not passed:
        print(out[-3000:], file=sys.stderr)
    return passed, failed or int(not passed), time.monotonic() - start


def tried(chosen: Sequence[str]) -> int:
    """Print numbers and tests under the chosen settings; return 1 when one is not as it should be."""
    first = next(iter(INSTRUCTIONS))
    names = [name for name in INSTRUCTIONS if name in (first, *chosen)]
    found = {(name, threads): each for name in names for threads, each in elsewhere(name).items()}
    lines = list(unequal(found))
    rows, wrong = [], 0
    for name in chosen:
        for threads in THREADS:
            passed, failed, seconds = tested(name, threads)
            of = [allowed for setting, _, allowed in lines if setting == (name, str(threads))]
            wrong += failed + of.count(False)
            counts = (threads, passed, failed, len(NUMBERS), of.count(True), of.count(False), round(seconds))
            rows.append([name, *map(str, counts)])
            print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    head = (
        "instructions",
        "threads",
        "tests passed",
        "failed",
        "numbers",
        "other as allowed",
        "wrongly other",
        "seconds",
    )
    print("\n".join(markdown_table(head, rows)))
    for setting, what, allowed in lines:
        if not allowed:
            print(f"{', '.join(setting)} threads: {what} should be equal")
    return 1 if wrong else 0


def promised() -> str:
    """Return the table of what the numbers depend on."""
    words = {True: "may differ", False: "the same"}
    rows = [(one.what, words[one.on_threads], words[one.on_processor]) for one in NUMBERS]
    return "\n".join(markdown_table(["numbers", "threads", "processor"], rows)) + "\n"


def main() -> int:
    """Do what the word of the command says."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word == "--digests":
        print(json.dumps(digests()))
    elif word == "--try":
        return tried(sys.argv[2:] or list(INSTRUCTIONS))
    elif word == "--write":
        PAGE.write_text(between_marks(PAGE.read_text(), MARKS, promised(), COMMAND))
    else:
        print(promised())
    return 0


if __name__ == "__main__":
    sys.exit(main())
