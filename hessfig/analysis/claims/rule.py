"""What an empirical claim is: its statement, its source, the evidence it takes, and how it is judged."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.analysis.arrays import StoredHessian, each_hessian
from hessfig.analysis.axis import with_settings
from hessfig.analysis.claims.judges import ClaimVerdict, Finding
from hessfig.analysis.manifest import Architectures, read_run
from hessfig.analysis.stored_spectra import Density, Spectrum, SpectrumKey, has_spectra, read_densities, read_spectra
from hessfig.record import FROBENIUS, LEFT_OUT
from hessfig.terms import Part

LOSSES = 5  # at which trainings are compared
OURS = "hessfig"  # how the source of a question of the package's own begins


@dataclass(frozen=True)
class Claim:
    """An empirical claim: who says what, of which networks, the sweep that decides it, its figure and its rule.

    `beside` names further sweeps that the rule needs; `statement` and `rule_words` are the claim and the rule in words.
    `there` and `here` are the scale of the source and of the shipped networks. `theorems` are the statements of
    `hessfig verify` that imply it, and `identity` is arithmetic that does. `others` says why the shipped networks are
    not what the source speaks of: then the verdict is 'not tested here'. `words` are the source's own, found at
    `where`; "" where it is not quoted. `seeds` are the numbers of seeds that its sweeps were given when the rule was
    fixed, in the order of `sweeps`, and `looks` says how often numbers were looked at before that.
    """

    id: str
    source: str
    statement: str
    sweep: str
    figure: str
    rule: Callable[[Evidence], Finding]
    rule_words: str
    beside: tuple[str, ...] = ()
    there: str = ""
    here: str = ""
    theorems: tuple[str, ...] = ()
    others: str = ""
    identity: str = ""
    words: str = ""
    where: str = ""
    seeds: tuple[int, ...] = ()
    looks: str = ""

    @property
    def follows(self) -> str:
        """From what it follows, in words; "" where from nothing."""
        return ", ".join(filter(None, [*self.theorems, self.identity]))

    @property
    def is_ours(self) -> bool:
        """Whether the package asks it, and no source claims it."""
        return self.source.startswith(OURS)

    def other_seeds(self, evidence: Evidence) -> list[str]:
        """Return the sweeps, in words, whose tables have another number of seeds than was fixed with the rule."""
        tables = {self.sweep: evidence, **evidence.beside}
        counts = {name: int(one.table["seed"].nunique()) for name, one in tables.items()}
        fixed = dict(zip(self.sweeps, self.seeds, strict=False))
        return [
            f"{name}: {count} seeds where {fixed[name]} were fixed with the rule"
            for name, count in counts.items()
            if name in fixed and count != fixed[name]
        ]

    @property
    def sweeps(self) -> tuple[str, ...]:
        """Every sweep it needs."""
        return (self.sweep, *self.beside)

    def judged(self, evidence: Evidence) -> Finding:
        """Return what the rule finds, with the verdict that is the claim's: of other networks nothing is judged.

        A theorem holds unless the numbers contradict it; either way what was measured is reported.
        """
        finding = self.rule(evidence)
        words = f"{finding.verdict}" + f" ({finding.words})" * bool(finding.words)
        if self.others:
            return replace(finding, verdict=ClaimVerdict.not_tested, words=f"{self.others}; at this scale: {words}")
        if self.follows and finding.verdict in (
            ClaimVerdict.holds,
            ClaimVerdict.holds_only_if,
            ClaimVerdict.within,
            ClaimVerdict.undecided,
        ):
            said = f"{self.follows}; measured: {words}"
            return replace(finding, verdict=ClaimVerdict.theorem, words=said)
        return finding


def claim(name: str) -> Callable[[Callable[[Evidence], Finding]], Claim]:
    """Make a rule the claim that it decides; what else is fixed with it stands under this name in records.toml.

    The rule's docstring begins with 'Claim: ' and the statement; its second paragraph is the rule in words. The figure
    has the name of the sweep unless the record names another.
    """

    def made(rule: Callable[[Evidence], Finding]) -> Claim:
        said, words = (" ".join(one.split()) for one in [*(rule.__doc__ or "").split("\n\n"), ""][:2])
        statement, record = said.removeprefix("Claim: ").removesuffix("."), dict(_records()[name])
        sweep, *beside = record.pop("sweeps")
        fields = {"figure": sweep, "beside": tuple(beside), **record}
        return Claim(name, statement=statement, sweep=sweep, rule=rule, rule_words=words, **fields)

    return made


@cache
def _records() -> dict[str, dict[str, Any]]:
    """Return what records.toml says of each claim."""
    said = tomllib.loads(Path(__file__).with_name("records.toml").read_text(encoding="utf-8"))
    return {
        name: {key: tuple(one) if isinstance(one, list) else one for key, one in fields.items()}
        for name, fields in said.items()
    }


def diagonal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of diagonal blocks within a layer."""
    return rows[(rows["row"] == rows["col"]) & (rows["row_layer"] == rows["layer"])]


def by_seed(rows: pd.DataFrame, *keys: str) -> pd.Series:
    """Return the mean value by (keys ..., seed)."""
    return rows.groupby([*keys, "seed"])["value"].mean()


def wide(values: pd.Series, level: str) -> pd.DataFrame:
    """Return a column for each value of one level of the index, rising."""
    return values.unstack(level).sort_index(axis=1)  # noqa: PD010 - one value a place is sure: nothing to aggregate


def norms(evidence: Evidence, *settings: str, part: Part = Part.H) -> pd.DataFrame:
    """Return the rows of Frobenius norms of a part of the Hessian."""
    return evidence.numbers(FROBENIUS, *settings, part=part.value)


def in_logs(rows: pd.DataFrame, log: np.ufunc = np.log10) -> pd.DataFrame:
    """Return the rows whose value is positive, with its logarithm in its place."""
    positive = rows[rows["value"] > 0]
    return positive.assign(value=log(positive["value"]))


def at_equal_losses(curves: Sequence[pd.Series]) -> list[NDArray[np.float64]]:
    """Return the values of curves (index: log losses, rising) at five losses evenly spaced, which all pass through.

    Nothing where they have no losses in common.
    """
    if not all(len(one) > 1 for one in curves):
        return []
    low, high = max(one.index[0] for one in curves), min(one.index[-1] for one in curves)
    places = np.linspace(low, high, LOSSES)
    return [np.interp(places, one.index.to_numpy(float), one.to_numpy(float)) for one in curves] if low < high else []


@dataclass(frozen=True)
class Evidence:
    """A sweep's checked table; its stored spectra (else densities) and Hessians, read when a rule asks for them.

    `beside` holds the evidence of other sweeps that the claim needs.
    """

    table: pd.DataFrame
    spectra: Callable[[Callable[[SpectrumKey], bool]], Sequence[Spectrum | Density]] = lambda wanted: []
    hessians: Callable[[], Iterable[StoredHessian]] = tuple
    beside: Mapping[str, Evidence] = field(default_factory=dict)
    architectures: Architectures = field(default_factory=dict)

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
        table = self._counted.get(quantity, self.table.iloc[:0])
        chosen = [table[name] == value for name, value in columns.items()]
        rows = table[np.logical_and.reduce(chosen)] if chosen else table
        return with_settings(rows, *settings)

    @cached_property
    def _counted(self) -> dict[object, pd.DataFrame]:
        """The rows that count, by their quantity: rules ask for many."""
        counted = self.table[~self.table["status"].isin(LEFT_OUT)]
        return dict(iter(counted.groupby("quantity", sort=False)))


def evidence_in(folder: Path) -> Evidence:
    """Return the evidence of a sweep's folder. Raises UserError as the reading of tables and arrays does."""
    run = read_run(folder)
    return Evidence(
        run.table,
        lambda wanted: (read_spectra if has_spectra(folder) else read_densities)(folder, wanted),
        lambda: each_hessian(folder),
        architectures=run.architectures,
    )
