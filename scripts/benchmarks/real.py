"""Measure networks of real sizes: products, eigenvalues and norms next to the gradient and to other packages.

    python scripts/benchmarks/real.py [--device cuda] [--seconds 520] [--rows "H*"
    curvlinops] [--output FILE.json]

On the CPU: the shape of GPT-2 with 332 160 parameters, 4 sequences of 64 tokens, CPU
time, one thread, median of 5 after 1. On a card: GPT-2 small (124 M parameters), 4
sequences of 1024 tokens, median of 20 after 5, and TinyLlama (1.1 B). Weights are
random, products are float32. Every row is a process of its own with a limit of time;
the JSON is written after every row, so an interrupted run keeps its rows, and a row
that fails says why.

`gradients` is the time of a product divided by that of the gradient of the same loss,
measured in turn with it in the same process. `build` and `build_peak_gib` are of the
operator with its checks, `peak_gib` of one product; `gradient_peak_gib` of one
gradient. Peaks are the device's; on the CPU they are those of the process. `agrees`
compares v.Hv with plain double backward, for the same v.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any

import real_rows
import runner
from real_rows import PLAIN
from runner import Run

PACKAGES = ("curvlinops", "pyhessian", "eigenthings")
FIGURE = "figure 3a"
MATRICES = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_out")


@dataclass(frozen=True)
class Row:
    """A function of real_rows, its arguments, and the seconds it may take."""

    work: str
    limit: float = 60
    arguments: dict[str, Any] = field(default_factory=dict)


def _product(contender: str, limit: float = 60, **more: Any) -> Row:
    return Row("product", limit, {"contender": contender, **more})


_OF_BOTH = {
    "H": _product("hessfig"),
    "H_o and H_f": _product("hessfig", parts=["H_o", "H_f"]),
    "H, 4 batches": _product("hessfig", batches=4),
    "H, over micro-batches": _product("hessfig", micro=True),
    PLAIN: _product(PLAIN),
    "H, one late weight": _product("hessfig", block="late"),
    **{name: _product(name) for name in PACKAGES},
}
_EIGENVALUE = Row("largest_eigenvalue", 400)
_NORMS = Row("norms", 300, {"num_probes": 8, "names": list(MATRICES)})
CPU_ROWS = {
    **_OF_BOTH,
    **{
        f"memory, {count} batches": Row("memory", 300, {"batches": count})
        for count in (4, 16, 64)
    },
    **{
        f"memory, {count} tokens": Row("memory", 600, {"length": count})
        for count in (16, 64, 256, 1024)
    },
    "largest eigenvalue": _EIGENVALUE,
    "norms": _NORMS,
}
CUDA_ROWS = {
    **_OF_BOTH,
    "gradient, fused attention": _product("gradient", attention="sdpa"),
    "1.1 B, 4 x 512 tokens": _product("hessfig", 90, shape="llama"),
    "1.1 B, 1 x 2048 tokens": _product("hessfig", 150, shape="long llama"),
    f"{FIGURE}, CPU, 2 workers": Row("figure", 120, {"workers": 2, "device": "cpu"}),
    **{
        f"{FIGURE}, {count} workers": Row("figure", 120, {"workers": count})
        for count in (8, 1, 4, 16)
    },
    "norms": _NORMS,
    "largest eigenvalue": _EIGENVALUE,
    **{
        f"largest eigenvalue, {count} of 16 batches": Row(
            "largest_eigenvalue", 200, {"batches": count}
        )
        for count in (1, 4)
    },
    "norms of W_Q and W_V": Row(
        "norms", 120, {"num_probes": 8, "names": ["W_Q", "W_V"]}
    ),
}


def main(words: Sequence[str] | None = None) -> None:
    """Measure the rows, writing the JSON after each, and print them."""
    options = runner.parse(__doc__, _options, {}, words, rounds=1, allocator="system")
    if options.one is not None:
        print(
            json.dumps(
                measured(options.one, quick=options.quick, device=options.device)
            )
        )
        return
    rows = chosen(options.device, options.rows)
    end = time.monotonic() + options.seconds
    report = {
        **runner.heading(options, ("device", "seconds", "quick")),
        **_software(options.device),
        "rows": [],
    }
    for name in rows:
        row = {
            "row": name,
            **_in_a_process(
                options, name, min(rows[name].limit, end - time.monotonic())
            ),
        }
        report["rows"] = compared([*report["rows"], row])
        runner.write_report(options, "real", report)
        print(_said(report["rows"][-1]), flush=True)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help=runner.DEVICES)
    parser.add_argument(
        "--seconds",
        type=float,
        default=1800,
        help="of the whole run; rows beyond are left out (1800)",
    )
    parser.add_argument(
        "--rows", nargs="+", default=["*"], help="patterns of names of rows (all)"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)  # a row, in this process


def rows_of(device: str) -> dict[str, Row]:
    """Return the rows of a kind of device, the most important ones first."""
    return CPU_ROWS if device == "cpu" else CUDA_ROWS


def chosen(device: str, patterns: Sequence[str]) -> dict[str, Row]:
    """Return the rows that match, in the order of the patterns."""
    names = {
        name: row
        for pattern in patterns
        for name, row in rows_of(device).items()
        if fnmatch(name, pattern)
    }
    if not names:
        raise SystemExit(
            f"error: no row matches {patterns}: there are {', '.join(rows_of(device))}"
        )
    return names


def measured(name: str, *, quick: bool, device: str) -> Run:
    """Measure one row in this process."""
    row = rows_of(device)[name]
    found: Run = getattr(real_rows, row.work)(
        real_rows.Place(device, quick), **row.arguments
    )
    return found


def _in_a_process(options: argparse.Namespace, name: str, limit: float) -> Run:
    """Return the row as measured in a process of its own, or why it failed; its children end with it."""
    if limit < 1:
        return {"failed": "no time was left"}
    is_host = options.device == "cpu"
    if is_host:
        own = {"OMP_NUM_THREADS": "1"}
    else:
        own = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    # What is freed is given back.
    own |= {"MALLOC_MMAP_THRESHOLD_": "65536"} if name.startswith("memory") else {}
    pipes: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    process = subprocess.Popen(
        _command(options, name),
        env={**os.environ, **own},
        start_new_session=True,
        **pipes,
    )
    try:
        said, complaints = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"failed": f"not done after {limit:.0f} s"}
    if process.returncode:
        last = " | ".join(complaints.strip().splitlines()[-4:])
        return {"failed": last[-600:] or f"status {process.returncode}"}
    found: Run = json.loads(said.strip().splitlines()[-1])
    return found | {
        "warned": [
            line[:300] for line in complaints.splitlines() if "RuntimeWarning" in line
        ][:5]
    }


def _command(options: argparse.Namespace, name: str) -> list[str]:
    quick = ["--quick"] if options.quick else []
    return [
        sys.executable,
        __file__,
        f"--device={options.device}",
        f"--one={name}",
        *quick,
    ]


def compared(rows: list[Run]) -> list[Run]:
    """Add to every product with the same H how far its v.Hv is from that of plain double backward."""
    truth = next(
        (
            row["curvature"]
            for row in rows
            if row["row"] == PLAIN and "curvature" in row
        ),
        None,
    )
    for row in rows:
        if truth is not None and row.get("comparable"):
            row["agrees"] = abs(row["curvature"] - truth) / max(abs(truth), 1e-300)
    return rows


def _said(row: Run) -> str:
    numbers = {
        name: float(f"{value:.3g}")
        for name, value in row.items()
        if isinstance(value, int | float)
    }
    return f"{row['row']:26} {row.get('failed') or json.dumps(numbers)}"


def _software(device: str) -> dict[str, str]:
    import torch
    import transformers

    names = {"transformers": transformers.__version__, "cuda": str(torch.version.cuda)}
    if device == "cpu":
        return names
    return {**names, "card": torch.cuda.get_device_name(device)}


if __name__ == "__main__":
    main()
