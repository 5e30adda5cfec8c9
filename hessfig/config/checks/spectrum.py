"""Checks within the settings of spectra."""

from __future__ import annotations

import math

from hessfig.config.checks.counts import check_count
from hessfig.config.schema import SpectrumConfig
from hessfig.errors import UserError

FEWEST_STEPS, MOST = 2, 1_000_000  # beyond, a number is a slip


def check_spectrum(spectrum: SpectrumConfig) -> None:
    """Raise UserError for the first setting of a spectrum that cannot be run."""
    counts = {
        "k": (spectrum.k, 1),
        "steps": (spectrum.steps, FEWEST_STEPS),
        "num_probes": (spectrum.num_probes, 1),
    }
    for name, (value, fewest) in counts.items():
        key = f"spectrum.{name}"
        check_count(key, value, fewest=fewest, most=MOST, example=_default(key))
    for key, share in {"spectrum.tolerance": spectrum.tolerance, "spectrum.cut": spectrum.cut}.items():
        if not (math.isfinite(share) and 0 < share < 1):
            raise UserError(
                key,
                got=share,
                allowed="a number between 0 and 1",
                remedy=f"for example {key}={_default(key):g}",
            )


def _default(key: str) -> float:
    found: float = getattr(SpectrumConfig(), key.partition(".")[2])
    return found
