"""The door to Slurm: sbatch hands a job in, squeue says what its tasks do."""

from __future__ import annotations

import shutil
import subprocess

from hessfig.errors import UserError, plain

# States in which a task may still measure; all others are ends.
ALIVE = frozenset(
    (
        *("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD"),
        *("REQUEUE_FED", "RESIZING", "SPECIAL_EXIT", "SIGNALING", "STAGE_OUT", "STOPPED", "RESV_DEL_HOLD"),
    )
)
_PATIENCE = 60.0  # seconds for an answer
_UNKNOWN = "Invalid job id"
States = dict[str, str]


def submit(script: str) -> str:
    """Hand a job in; return its number. Raises UserError without sbatch, and in Slurm's words."""
    if shutil.which("sbatch") is None:
        raise UserError(
            "there is no Slurm on this machine: the command sbatch is not found",
            got="launcher=slurm",
            allowed="a machine from which jobs are submitted",
            remedy="launcher=local, or shard=1/8, shard=2/8, ... on machines of your own (docs/cluster.md)",
        )
    done = _called("sbatch", "--parsable", text=script)
    if done.returncode:
        raise UserError(
            "Slurm refuses the job",
            got=_words(done.stderr),
            allowed="what this cluster grants (sinfo lists partitions)",
            remedy="other launcher.partition, time, memory, gpus, account or options; dry_run=true shows the script",
        )
    return done.stdout.strip().partition(";")[0]


def states(job: str) -> States | None:
    """Return what each task of a job does, by its place in the array: {'3': 'RUNNING'}.

    Empty when Slurm knows the job no more, None when it does not answer. Tasks that ended are forgotten after minutes.
    """
    if shutil.which("squeue") is None:
        return None
    done = _called("squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%K %T")
    if done.returncode:
        return {} if _UNKNOWN in done.stderr else None
    found = (line.split() for line in done.stdout.splitlines())
    return {words[0]: words[1] for words in found if len(words) == 2}


def counted(found: States) -> str:
    """Return '2 running, 1 pending'."""
    names = [state.lower() for state in found.values()]
    return ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(sorted(names, reverse=True)))


def _called(*command: str, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 1, "", str(error))


def _words(stderr: str) -> str:
    lines = [line.removeprefix("sbatch: error: ") for line in stderr.splitlines() if line.strip()]
    return plain("; ".join(lines) or "no reason given")
