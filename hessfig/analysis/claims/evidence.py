"""What a rule looks at: the numbers of a sweep that count, their varied settings in columns, and stored spectra."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.arrays.spectra import Place, Spectrum, read_spectra
from hessfig.analysis.manifest import read_run
from hessfig.analysis.variants import assignments
from hessfig.record import LEFT_OUT

Spectra = Callable[[Callable[[Place], bool]], list[Spectrum]]


def no_spectra(wanted: Callable[[Place], bool]) -> list[Spectrum]:
    """Have no stored spectra."""
    del wanted
    return []


@dataclass(frozen=True)
class Evidence:
    """A sweep's checked table, and its stored spectra, which are read when a rule asks for them."""

    table: pd.DataFrame
    spectra: Spectra = no_spectra

    def numbers(self, quantity: str, *settings: str, **columns: object) -> pd.DataFrame:
        """Return the rows of a quantity that count and have these values in their columns.

        Each of `settings` (dotted keys that the sweep varies) becomes a column of texts; "" where a variant has none.
        """
        table = self.table[~self.table["status"].isin(LEFT_OUT) & (self.table["quantity"] == quantity)]
        chosen = [table[name] == value for name, value in columns.items()]
        rows = table[np.logical_and.reduce(chosen)] if chosen else table
        varied = [assignments(variant) for variant in rows["variant"]]
        return rows.assign(**{key: [one.get(key, "") for one in varied] for key in settings})


def evidence_in(folder: Path) -> Evidence:
    """Return the evidence of a sweep's folder. Raises UserError as the reading of tables and arrays does."""
    return Evidence(read_run(folder).table, lambda wanted: read_spectra(folder, wanted))
