"""Composition as the verbs do it, for tests."""

from __future__ import annotations

from pathlib import Path

from hessfig.config.compose.job import Job, checked_job
from hessfig.config.schema import Config


def job(*words: str, own: Path | None = None) -> Job:
    """Return the one job that `words` ask for."""
    return checked_job(words, own)


def configs(*words: str, own: Path | None = None) -> list[tuple[str, Config]]:
    """Return the variants that `words` ask for."""
    return job(*words, own=own).variants
