"""What is attacked: toy sweeps, reference files, and the command line, in this process or in one of its own."""

from __future__ import annotations

import csv
import pickle
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hessfig.cli.main import main
from tests.runs import COMMAND

SMALL = ["model.d_model=8", "task.batch_size=8", "task.digits=2", "workers=2"]
SIGMA = [
    "sweep=sigma",
    *SMALL,
    "grid.points=20",
    "seeds=2",
    "estimator=hutchinson",
    "estimator.num_probes=4",
]
ENTRIES = [
    "sweep=entries",
    "model.d_model=4",
    "model.d_mlp=6",
    "task.batch_size=4",
    "task.digits=1",
    "workers=2",
]
CSV = "reference.csv"
RESULTS = "results"
SCRIPT = (
    sys.executable,
    str(Path(__file__).parents[2] / "scripts" / "published_values.py"),
)
STEM = "norm=none_num_layers=1_scale=log_residual_scaling=1.0_linear_attention=False_loss=ce_frob"


# A small process starts the command: a child's peak counts that of whoever started it.
SCALES = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


@dataclass(frozen=True)
class Answer:
    """What a call left behind; `traceback` is what escaped, or was printed as one."""

    code: object
    out: str
    err: str
    traceback: str


def called(words, capfd):
    """Call the command line in this process."""
    code = None
    escaped = ""
    try:
        main(list(words))
    except SystemExit as exit:
        code = exit.code
    except BaseException as error:
        escaped = f"{' '.join(words)[:80]}: {traceback.format_exception(error)[-1].strip()[:200]}"
    out, err = capfd.readouterr()
    printed = "printed a traceback" if "Traceback" in err else ""
    odd = (
        ""
        if escaped or code in (0, 2) or words[0] == "check"
        else f"{' '.join(words)[:80]}: exit {code}"
    )
    return Answer(code, out, err, escaped or printed or odd)


def command(*words, folder, timeout=300):
    """Run the installed command in `folder`."""
    return subprocess.run(
        [COMMAND, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def script(*words, folder):
    """Run the script that reads the authors' pickles in `folder`."""
    return subprocess.run(
        [*SCRIPT, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def weighed(*words, folder, program=(str(COMMAND),)):
    """Run a program and return its exit code, its errors, and the most memory it held, in bytes."""
    started = [sys.executable, "-c", SCALES, *program, *words]
    done = subprocess.run(
        started, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    unit = 1 if sys.platform == "darwin" else 1024
    return done.returncode, done.stderr, int(done.stdout.splitlines()[-1]) * unit


def write_references(folder):
    """Write the sweep's own values as a reference CSV and as the authors' pickles."""
    rows = list(csv.DictReader((folder / "outputs/sigma/table.csv").open(newline="")))
    with (folder / CSV).open("w", newline="") as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow(
            ["num_layers", "block", "part", "layer", "repeat", "sigma", "value"]
        )
        for row in rows:
            names = ("num_layers", "row", "part", "layer", "seed", "sigma", "value")
            writer.writerow([row[name] for name in names])
    (folder / RESULTS).mkdir()
    for weight, letter in (("W_V", "v"), ("W_Q", "q")):
        for part, suffix in (("H_o", "_outer"), ("H_f", "_func"), ("H", "")):
            chosen = [
                r
                for r in rows
                if (r["row"], r["col"], r["part"]) == (weight, weight, part)
            ]
            content = {
                0: {
                    k: _along(chosen, seed)
                    for k, seed in enumerate(sorted({r["seed"] for r in chosen}))
                }
            }
            (folder / RESULTS / f"{STEM}_{letter}{suffix}.pickle").write_bytes(
                pickle.dumps(content)
            )


def _along(rows, seed):
    chosen = sorted(
        (float(r["sigma"]), float(r["value"])) for r in rows if r["seed"] == seed
    )
    return [np.float32(value) for _, value in chosen]
