"""How far two batches lie apart: measured by scripts/batch_spread.py, recorded in data/batch_spread.csv.

Both sides of a comparison average over networks, but each measures one batch, which shifts its curves as a whole. The
record has, for each kind of network, a standard deviation over batches (in logs) of a curve, and of the point that
moves most. Networks deeper than the deepest on record are given its values: with more layers (Figures 6 and 7) the
spread of whole curves stays the same as far as two layers were measured (softmax: 0.7 to 2.2 %), and at three layers of
chained linear attention networks answer to a batch so differently that the spread over seeds, which holds such
answers, hides what they share. Where the kind is on no record, or unknown for want of a manifest, the largest values
on record serve.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from hessfig.analysis.manifest import Architectures
from hessfig.predictions.architecture import Architecture, Attention, Kind, Norm

BATCH_SIZE = 64  # of every batch on record; the variance goes with its inverse
Task = Mapping[str, Any] | None


@dataclass(frozen=True)
class Spread:
    """Standard deviation over batches of a curve and of a single point, in logs, from `dof` + 1 batches."""

    curve: float
    point: float
    dof: int


@dataclass(frozen=True)
class Batches:
    """How two batches differ: `scale` is the variance of their difference over that of one batch on record."""

    architectures: Architectures
    scale: float = 2.0

    def spread(self, num_layers: int, block: str, part: str) -> Spread:
        """Return the spread of the difference between the two batches, for one curve."""
        network = network_of(self.architectures.get(("", num_layers)))
        one = _on_record(network, num_layers, block, part)
        return Spread(self.scale**0.5 * one.curve, self.scale**0.5 * one.point, one.dof)


def batches(architectures: Architectures, ours: Task, theirs: Task) -> Batches:
    """Return how the batches of two runs differ, from their task settings (None: not known, so a batch of its own)."""
    if ours is not None and ours == theirs:
        return Batches(architectures, scale=0.0)
    return Batches(architectures, scale=sum(_relative_variance(task) for task in (ours, theirs)))


def network_of(architecture: Architecture | None) -> str:
    """Return the name under which a network's spread is on record, "" if it is not."""
    if architecture is None or architecture.kind not in (Kind.transformer, Kind.linear_mlp):
        return ""
    if architecture.kind == Kind.linear_mlp:
        return "linear MLP"
    if architecture.attention == Attention.linear:
        return "" if architecture.attention_skip else "linear chain"
    return {Norm.none: "softmax", Norm.pre: "pre-LN"}.get(architecture.norm, "")


def _relative_variance(task: Task) -> float:
    size = (task or {}).get("batch_size")
    return BATCH_SIZE / size if isinstance(size, int) and size > 0 else 1.0


def _on_record(network: str, num_layers: int, block: str, part: str) -> Spread:
    """Return the spread of a curve: of its depth or the deepest below, else the largest of the network, else of all."""
    rows = [row for row in _record() if row[:3] == (network, block, part) and row[3] <= num_layers]
    deepest = max((row[3] for row in rows), default=0)
    found = [row[4] for row in rows if row[3] == deepest] or [
        spread for name, *_, spread in _record() if name == network or not network
    ]
    return Spread(
        max(spread.curve for spread in found),
        max(spread.point for spread in found),
        min(spread.dof for spread in found),
    )


@cache
def _record() -> tuple[tuple[str, str, str, int, Spread], ...]:
    return tuple(_rows(files("hessfig.data").joinpath("batch_spread.csv").read_text("utf-8")))


def _rows(text: str) -> Iterator[tuple[str, str, str, int, Spread]]:
    for row in csv.DictReader(text.splitlines()):
        spread = Spread(float(row["curve_sd"]), float(row["point_sd"]), int(row["num_batches"]) - 1)
        yield row["network"], row["block"], row["part"], int(row["num_layers"]), spread
