"""Run the steps of .github/workflows/ci.yml on this machine: python scripts/run_workflow.py [--list] [JOB ...].

Only `run:` steps are carried out, in the order of the file and each by its own shell,
as a runner does it; steps that use an action prepare the runner's machine. Exits with
the status of the first step that fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / ".github/workflows/ci.yml"


def workflow() -> dict[str, Any]:
    """Return the workflow as it stands in its file (YAML reads its key `on` as true)."""
    found: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text("utf-8"))
    return found


def steps(names: list[str]) -> Iterator[tuple[str, str, str]]:
    """Yield job, name and shell text of every step of the jobs `names` (none: of all) that runs something."""
    jobs = workflow()["jobs"]
    if unknown := sorted(set(names) - set(jobs)):
        sys.exit(
            f"there is no job {', '.join(unknown)}; the jobs are {', '.join(jobs)}"
        )
    for name in names or jobs:
        yield from (
            (name, step.get("name", ""), step["run"])
            for step in jobs[name]["steps"]
            if "run" in step
        )


def main(arguments: list[str]) -> None:
    """Run the steps, or list them."""
    for job, name, text in steps([word for word in arguments if word != "--list"]):
        print(f"{job}: {name}\n{text.rstrip()}", flush=True)
        if "--list" in arguments:
            continue
        start = time.perf_counter()
        variables = {**os.environ, **workflow().get("env", {})}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text],
            cwd=ROOT,
            env=variables,
        )
        print(
            f"{job}: {name}: status {done.returncode}, {time.perf_counter() - start:.0f} s",
            flush=True,
        )
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
