"""What the benchmarks share: options, cells, rounds in fresh processes, times and memory, the machine's rate, reports.

Every number is measured in a process of its own, forked from one that has done its
imports and nothing else, and after a warm-up of the same work. `peak_gib` is the most
memory that process ever held, `base_gib` what it held of that before the work began.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from hessfig.config.checks import check_config
from hessfig.config.enums import Norm
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.files import write_text
from hessfig.sweep.plan import Cell
from hessfig.sweep.pool import ALLOCATOR, PRELOAD, THREADS
from hessfig.sweep.variant import Variant

PACKAGES = ("hessfig", "torch", "curvlinops-for-pytorch", "transformer-lens", "numpy")
# Positions times d_model times d_mlp of the paper's cell; a large one.
PRODUCTS = ((1152, 128, 512), (1024, 1024, 1024))
SIGMA, SEED = 0.5, 1234  # of the embeddings; of the first network
TOY_WORDS = "toy sizes, not the paper's"
ALLOCATORS = "memory settings of every process: those of `hessfig run` (sweep, the default) or the system's own"
DEVICES = "cpu or cuda, of all contenders; peaks are the device's (cpu)"
Result = TypeVar("Result")
Name = TypeVar("Name")
Run = dict[str, Any]


def parse(
    about: str | None,
    extra: Callable[[argparse.ArgumentParser], None],
    toy: Mapping[str, Any],
    words: Sequence[str] | None,
    **usual: Any,
) -> argparse.Namespace:
    """Parse the options all benchmarks have and those `extra` adds; `usual` are defaults, with --quick `toy`."""
    parser = argparse.ArgumentParser(
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    extra(parser)
    parser.add_argument(
        "--rounds",
        type=_count,
        default=3,
        help="measure everything so often, in turn (3)",
    )
    parser.add_argument(
        "--output", type=Path, help="the JSON to write; a figure goes next to it"
    )
    parser.add_argument(
        "--allocator", choices=("sweep", "system"), default="sweep", help=ALLOCATORS
    )
    parser.add_argument(
        "--quick", action="store_true", help=f"{TOY_WORDS}: a smoke test in seconds"
    )
    given = sys.argv[1:] if words is None else list(words)
    parser.set_defaults(**usual | (dict(toy) if "--quick" in given else {}))
    return parser.parse_args(given)


def _count(word: str) -> int:
    if int(word) < 1:
        raise argparse.ArgumentTypeError("a whole number >= 1")
    return int(word)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the sizes of a cell but its depth."""
    parser.add_argument("--d-model", type=int, default=128, help="width (128)")
    parser.add_argument(
        "--digits", type=int, default=5, help="digits of the summands (5)"
    )
    parser.add_argument("--batch-size", type=int, default=64, help="sequences (64)")


def cell_of(
    sizes: Any,
    n_layers: int,
    *,
    sigma: float = SIGMA,
    seed: int = SEED,
    norm: str = "none",
    **more: Any,
) -> Cell:
    """Return the cell of a transformer of these sizes on sums. Exits with 2 when it cannot be run."""
    task = TaskConfig(digits=sizes.digits, batch_size=sizes.batch_size)
    config = Config(
        task=task,
        model=ModelConfig(n_layers=n_layers, norm=Norm(norm), d_model=sizes.d_model),
        **more,
    )
    try:
        check_config(config)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    return Cell(Variant("", config), sigma, seed)


def prepare(allocator: str) -> None:
    """Hold every process that is started from here to one thread and give it its allocator's settings."""
    os.environ.update(THREADS | (ALLOCATOR if allocator == "sweep" else {}))
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)


def in_fresh_process(work: Callable[..., Result], *arguments: object) -> Result:
    """Return work(*arguments) as found in a process of its own. Exits with its traceback if it fails."""
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        succeeded, answer = ours.recv()
    except EOFError:
        succeeded, answer = False, "its process died, perhaps out of memory"
    process.join()
    if not succeeded:
        raise SystemExit(f"{work.__name__} failed: {answer}")
    return answer


def in_turn(
    rounds: Sequence[Mapping[Name, tuple[Callable[..., Run], *tuple[Any, ...]]]],
) -> dict[Name, list[Run]]:
    """Return what the work of every name gave, once a round: each in a fresh process, all in turn."""
    runs: dict[Name, list[Run]] = {name: [] for name in rounds[0]}
    for number, each in enumerate(rounds, 1):
        for name, (work, *arguments) in each.items():
            found = in_fresh_process(work, *arguments)
            runs[name].append(found)
            told = found.get(
                "failed", f"{found['seconds']:.3g} s" if "seconds" in found else "done"
            )
            print(f"round {number}/{len(rounds)}: {name}, {told}", file=sys.stderr)
    return runs


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every number of the first run over all of them."""
    return {key: median(run[key] for run in runs) for key in runs[0]}


def _answer(
    pipe: Connection, work: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    try:
        pipe.send((True, work(*arguments)))
    except Exception:
        pipe.send((False, traceback.format_exc()))


def after_warm_up(
    run: Callable[[], Result], *, threads: int = 1
) -> tuple[Result, dict[str, float]]:
    """Call `run` twice; return the second call's result with its times, and this process's memory."""
    import torch

    torch.set_num_threads(threads)
    base = peak_gib()
    run()
    result, times = timed(run)
    return result, {**times, "peak_gib": peak_gib(), "base_gib": base}


def timed(
    run: Callable[[], Result], device: str = "cpu"
) -> tuple[Result, dict[str, float]]:
    """Return what `run` returns, and its seconds: by the clock, and this process's own."""
    wall = time.perf_counter()
    cpu = time.process_time()
    result = run()
    synchronised(device)
    return result, {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }


def said(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    folder: Path | None = None,
    status: int = 0,
) -> str:
    """Return what a command prints. Exits with its last words if it ends with another status."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != status:
        raise SystemExit(
            f"{command} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return done.stdout


def peak_gib(device: str = "cpu") -> float:
    """Return the most memory this process has held on a device; on the host as Linux tells, else as getrusage says."""
    if device != "cpu":
        import torch

        return torch.cuda.max_memory_allocated(device) / 2**30
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+)", status.read_text())
    else:
        found = None
    if found:
        return int(found[1]) / 2**20
    import resource

    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest / (2**30 if sys.platform == "darwin" else 2**20)


def synchronised(device: str) -> None:
    """Wait until a device has done what was asked of it, so that a clock that is read next has seen it."""
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def product_rates(seconds: float) -> dict[str, float]:
    """Return the GFLOP/s of plain matrix products on one thread: of each, the median over `seconds` of repeats."""
    import torch

    torch.set_num_threads(1)
    rates = {}
    for rows, inner, cols in PRODUCTS:
        for dtype in (torch.float64, torch.float32):
            left = torch.randn(rows, inner, dtype=dtype)
            right = torch.randn(inner, cols, dtype=dtype)
            taken = _median_seconds(
                partial(torch.mm, left, right, out=left @ right), seconds
            )
            rates[f"{rows}x{inner} @ {inner}x{cols}, {dtype}"] = (
                2e-9 * rows * inner * cols / taken
            )
    return {name.replace("torch.", ""): rate for name, rate in rates.items()}


def _median_seconds(run: Callable[[], object], seconds: float) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return median(times)


def heading(
    options: argparse.Namespace, settings: Iterable[str], **more: Any
) -> dict[str, Any]:
    """Return what every report begins with: whether it is a toy, where and when it ran (no host, user or path).

    And its settings: some options by name, and `more`.
    """
    return {
        "quick": options.quick,
        "sizes": TOY_WORDS if options.quick else "as in settings",
        "environment": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "platform": f"{platform.system()} {platform.machine()}",
            "cpu": _cpu_model(),
            "cores": os.cpu_count(),
            "threads": int(THREADS["OMP_NUM_THREADS"]),
            "load_average": round(os.getloadavg()[0], 2),
            "allocator": options.allocator,
            "python": platform.python_version(),
            **{name: version(name) for name in PACKAGES},
        },
        "settings": {name: getattr(options, name) for name in settings} | more,
    }


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        found = re.search(r"model name\s*:\s*(.+)", path.read_text())
    else:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def write_report(
    options: argparse.Namespace, name: str, report: Mapping[str, Any]
) -> None:
    """Write the report as JSON, whole or not at all."""
    path: Path = options.output or Path(f"outputs/benchmarks/{name}.json")
    write_text(path, json.dumps(report, indent=1, allow_nan=False) + "\n")


def print_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None
) -> None:
    """Print rows under their heads."""
    from rich.console import Console

    from hessfig.analysis.presented import terminal_table

    Console(width=130).print(terminal_table(heads, rows, title=title))
