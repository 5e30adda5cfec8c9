"""Measures each cell with all processes of torchrun: rank 0 plans and stores, all ranks measure."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed.nn.functional  # before there is a group: its defaults would keep the first one alive
from torch import distributed

from hessfig.config.compose.job import Job
from hessfig.config.compose.provenance import command_of
from hessfig.config.enums import Products as Choice
from hessfig.config.machine import WORKER, check_machine
from hessfig.config.schema import Config
from hessfig.curvature.large.headed_column import HeadedColumn
from hessfig.curvature.large.ranks import RankedColumn, all_gather, broadcast
from hessfig.errors import UserError
from hessfig.measurements.quantity import Measured
from hessfig.models.routes import Engines
from hessfig.sweep.launchers import Say
from hessfig.sweep.measure import compute_cell, draw_problem
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.pool import CellOutcome, brief, peak_memory
from hessfig.sweep.runner import Summary, run_sweep
from hessfig.sweep.store import CellStore
from hessfig.sweep.trainings import needs

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_COMMAND = "torchrun --nproc-per-node=4 --no-python hessfig run ... ranks=true"
_BACKENDS = {"cpu": "gloo", "cuda": "cuda:nccl,cpu:gloo"}


class Ranks:
    """All processes of torchrun measure each cell of a job's sweep together; the first of them plans and stores."""

    def __init__(self, job: Job) -> None:
        check_machine(job.first)
        check_ranks(job.config)
        self._job, self._started = job, time.perf_counter()

    def run(self, sweep: Sweep, say: Say) -> Summary | None:
        """Measure the sweep; return what was done to the first rank, None to the others and for a dry run."""
        with joined_ranks(sweep.config) as is_first:
            planned = planned_shares(sweep)
            if is_first:
                say(*planned)
            if self._job.config.dry_run:
                return None
            summary = None
            if is_first:
                summary = run_sweep(sweep, on_ranks, command_of(self._job))
                broadcast(None)  # ends the other ranks
            else:
                _follow()
            shares = all_gather(_share(time.perf_counter() - self._started))
        if summary is not None:
            say(*shares)
        return summary


def check_ranks(config: Config) -> None:
    """Raise UserError for what cannot be dealt over ranks: another launcher, other networks, other products."""
    lacking = [name for name in _VARIABLES if not os.environ.get(name)]
    if lacking:
        raise UserError(
            "ranks: torchrun did not start this",
            got=f"no variable {', '.join(lacking)}",
            allowed="processes of torchrun",
            remedy=_COMMAND,
        )
    if config.shard is not None:
        raise UserError(
            "ranks: a share of the cells is measured by one process alone",
            got=f"ranks=true shard={config.shard}",
            allowed="either of them",
            remedy="leave shard out, or ranks",
        )
    if not config.task.data.facts.is_tokens or config.estimator.products != Choice.linearised:
        raise UserError(
            "ranks: only micro-batches of tokens are dealt, in products by double backward below the head",
            got=f"task.data={config.task.data}, estimator.products={config.estimator.products}",
            allowed="task=tokens or task=masked_tokens, estimator.products=linearised",
            remedy="leave ranks out; shard=auto deals whole cells",
        )


def planned_shares(sweep: Sweep) -> list[str]:
    """Return what every rank holds, one line per rank. Raises UserError where ranks would have nothing to do."""
    size, cell = int(os.environ["WORLD_SIZE"]), sweep.cells[0]
    count = len(draw_problem(cell).batches)
    if count < size:
        raise UserError(
            "ranks: some of them would have no micro-batch",
            got=f"{size} ranks, {count} micro-batches",
            allowed=f"1 to {count} ranks",
            remedy="fewer processes, more sequences (task.batch_size), or a smaller memory=",
        )
    memory = f"at most {cell.config.memory} of products in addition to the network's weights"
    return [f"rank {rank}: {len(range(rank, count, size))} of {count} micro-batches, {memory}" for rank in range(size)]


@contextmanager
def joined_ranks(config: Config) -> Iterator[bool]:
    """Join the ranks; yield whether this is rank 0. Raises UserError with the reported cause if a rank is lost."""
    device, local = config.device.partition(":")[0], os.environ.get("LOCAL_RANK", "0")
    os.environ[WORKER] = local
    torch.set_num_threads(1)
    try:
        if device == "cuda":
            torch.cuda.set_device(int(local) % torch.cuda.device_count())
        distributed.init_process_group(_BACKENDS[device], timeout=timedelta(seconds=config.ranks_timeout))
        Engines.headed_column = RankedColumn
        yield distributed.get_rank() == 0
        distributed.barrier()  # no rank leaves while another still reads the last message
    except distributed.DistError as error:
        raise _lost(error) from error
    finally:
        Engines.headed_column = HeadedColumn
        if distributed.is_initialized():
            distributed.destroy_process_group()


def on_ranks(cells: list[Cell], store: CellStore) -> Generator[CellOutcome, None, None]:
    """Yield the outcome of every cell, measured by all ranks and stored by this one, rank 0.

    A cell that fails on a rank, or whose rank is lost, ends the run; finished ones are kept.
    """
    if needs(cells):
        raise UserError(
            "ranks: networks are not trained by several ranks",
            got="state=trained",
            allowed="networks that are drawn or loaded",
            remedy="leave ranks out, or load the trained weights (model.path)",
        )
    for cell in cells:
        try:
            done = _measured(broadcast(cell))
            store.write(cell.key, cell.science, done.rows, done.arrays, cell.labels)
        except (UserError, RuntimeError) as error:
            cause = error if isinstance(error, UserError) else _lost(error)
            yield CellOutcome(cell, "failed", str(cause))
            raise cause from error
        yield CellOutcome(cell, "measured", "", peak_memory())


def _follow() -> None:
    """Measure the cells that rank 0 names until there are no more, as another rank."""
    while (cell := broadcast()) is not None:
        _measured(cell)


def _share(seconds: float) -> str:
    """Return the seconds that this rank measured, and its peak memory."""
    return f"rank {distributed.get_rank()}: {seconds:.1f} s, at most {peak_memory() / 2**30:.2f} GiB"


def _measured(cell: Cell) -> Measured:
    try:
        return compute_cell(cell)
    except UserError:
        raise
    except Exception as error:
        raise _lost(error) from error


def _lost(error: Exception) -> UserError:
    return UserError(
        f"ranks: rank {os.environ.get('RANK', '?')} could not go on",
        got=brief(error),
        allowed="every rank measures its share of a cell to the end",
        remedy="see which rank torchrun names as the first that ended; run again: finished cells are kept",
    )
