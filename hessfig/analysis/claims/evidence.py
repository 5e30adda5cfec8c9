"""What a rule looks at: the numbers of a sweep that count, their varied settings in columns, and stored spectra."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.arrays.hessian import StoredHessian, each_hessian
from hessfig.analysis.arrays.spectra import Place, Spectrum, read_spectra
from hessfig.analysis.manifest import read_run
from hessfig.analysis.variants import assignments
from hessfig.record import LEFT_OUT

Spectra = Callable[[Callable[[Place], bool]], list[Spectrum]]
Hessians = Callable[[], Iterable[StoredHessian]]


def no_spectra(wanted: Callable[[Place], bool]) -> list[Spectrum]:
    """Have no stored spectra."""
    del wanted
    return []


def no_hessians() -> Iterable[StoredHessian]:
    """Have no stored Hessians."""
    return ()


@dataclass(frozen=True)
class Evidence:
    """A sweep's checked table; its stored spectra and Hessians, read when a rule asks for them.

    `beside` holds the evidence of other sweeps that the claim needs.
    """

    table: pd.DataFrame
    spectra: Spectra = no_spectra
    hessians: Hessians = no_hessians
    beside: Mapping[str, Evidence] = field(default_factory=dict)

    def other(self, sweep: str) -> Evidence:
        """Return the evidence of another sweep; an empty table where there is none."""
        return self.beside.get(sweep, Evidence(self.table.iloc[:0]))

    def steps(self) -> list[float]:
        """Return the steps of the training that were measured, rising; none where there is no training."""
        return sorted(self.table["step"].dropna().unique())

    def of_step(self, step: float) -> Evidence:
        """Return what was measured at one step, spectra and Hessians too."""
        return replace(
            self,
            table=self.table[self.table["step"] == step],
            spectra=lambda wanted: self.spectra(lambda place: place.step == step and wanted(place)),
            hessians=lambda: (one for one in self.hessians() if one.step == step),
        )

    def at_step(self, number: int) -> Evidence:
        """Return what was measured at the first (0) or last (-1) step; everything where there are no steps."""
        steps = self.steps()
        return self.of_step(steps[number]) if steps else self

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
    return Evidence(
        read_run(folder).table, lambda wanted: read_spectra(folder, wanted), lambda: each_hessian(folder)
    )
