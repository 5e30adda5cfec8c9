"""Hutchinson's estimator of block norms: shared probes, all columns in one product, bounded memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Generator

from hessfig.curvature.column import PROBES_AT_ONCE, Column, chunks, squared_norms
from hessfig.curvature.problem import rademacher
from hessfig.measurements.estimate import Estimate
from hessfig.measurements.frobenius.norms import frobenius
from hessfig.terms import Part


def hutchinson(
    column: Column, parts: Sequence[Part], num_probes: int, *, generator: Generator
) -> dict[tuple[Hashable, Part], Estimate]:
    """Estimate ||.||_F of every row and part of `column` from `num_probes` shared Rademacher probes."""
    probes = rademacher(column.dim, num_probes, generator=generator, dtype=column.dtype)
    samples = [squared_norms(column, parts, chunk) for chunk in chunks(probes, column, PROBES_AT_ONCE)]
    return {key: frobenius(torch.cat([sample[key] for sample in samples])) for key in samples[0]}
