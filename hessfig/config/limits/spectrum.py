"""Checks within the settings of spectra."""

from __future__ import annotations

import math

from hessfig.config.schema import SpectrumConfig
from hessfig.errors import UserError

FEWEST_STEPS, MOST = 2, 1_000_000  # beyond, a number is a slip


def check_spectrum(spectrum: SpectrumConfig) -> None:
    """Raise UserError for the first setting of a spectrum that cannot be run."""
    counts = {
        "spectrum.k": (spectrum.k, 1),
        "spectrum.steps": (spectrum.steps, FEWEST_STEPS),
        "spectrum.num_probes": (spectrum.num_probes, 1),
    }
    for key, (value, fewest) in counts.items():
        if not fewest <= value <= MOST:
            raise UserError(
                key,
                got=value,
                allowed=f"a whole number from {fewest} to {MOST}",
                remedy=f"for example {key}={_default(key)}",
            )
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
