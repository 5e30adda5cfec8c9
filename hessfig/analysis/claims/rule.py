"""The record of an empirical claim: its statement, its source, its evidence, and its rule."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hessfig.analysis.arrays import StoredHessian, each_hessian
from hessfig.analysis.axis import with_settings
from hessfig.analysis.claims.judges import Finding, by_theorem, parts_by_theorem
from hessfig.analysis.manifest import Architectures, read_run
from hessfig.record import LEFT_OUT

OURS = "hessfig"  # how the source of a question of the package's own begins


@dataclass(frozen=True)
class Claim:
    """An empirical claim: its source, statement and networks, the sweep that decides it, its figure and its rule.

    `beside` names further sweeps that the rule needs; `statement` and `rule_words` are the claim and the rule in words.
    `scale_source` and `scale_here` are the networks of the source and the shipped ones. `theorems` are the statements
    of `hessfig verify` that imply it, `part_theorems` those that imply one of its parts. `words` are the source's own,
    found at `where`; "" where it is not quoted. `seeds` are the numbers of seeds that its sweeps were given when the
    rule was fixed, in the order of `sweeps`. `effect_words` name the number that the rule calls the effect.
    """

    id: str
    source: str
    statement: str
    sweep: str
    figure: str
    rule: Callable[[Evidence], Finding]
    rule_words: str
    effect_words: str = ""
    beside: tuple[str, ...] = ()
    scale_source: str = ""
    scale_here: str = ""
    theorems: tuple[str, ...] = ()
    part_theorems: Mapping[str, str] = field(default_factory=dict)
    words: str = ""
    where: str = ""
    seeds: tuple[int, ...] = ()

    @property
    def follows(self) -> str:
        """The theorems from which it follows, in words; "" where from none."""
        return ", ".join(self.theorems)

    @property
    def is_ours(self) -> bool:
        """Whether the claim is a question of the package, without a source."""
        return self.source.startswith(OURS)

    def other_seeds(self, evidence: Evidence) -> list[str]:
        """Return the sweeps, in words, whose tables have another number of seeds than was fixed with the rule."""
        tables = {self.sweep: evidence, **evidence.beside}
        counts = {name: int(table.table["seed"].nunique()) for name, table in tables.items()}
        fixed = dict(zip(self.sweeps, self.seeds, strict=False))
        return [
            f"{name}: {count} seeds where {fixed[name]} were fixed with the rule"
            for name, count in counts.items()
            if name in fixed and count != fixed[name]
        ]

    @property
    def sweeps(self) -> tuple[str, ...]:
        """Every sweep that the claim needs."""
        return (self.sweep, *self.beside)

    def judged(self, evidence: Evidence) -> Finding:
        """Return the finding of the rule; a theorem's implication holds unless the numbers contradict it."""
        return parts_by_theorem(by_theorem(self.rule(evidence), self.follows), self.part_theorems)


def claim(name: str) -> Callable[[Callable[[Evidence], Finding]], Claim]:
    """Return the claim that a rule decides. The file claims.toml next to the rule's module says what is fixed with it.

    The rule's docstring begins with 'Claim: ' and the statement; its second paragraph is the rule in words. The figure
    has the name of the sweep unless the record names another.
    """

    def claim_of(rule: Callable[[Evidence], Finding]) -> Claim:
        first, words = (" ".join(text.split()) for text in [*(rule.__doc__ or "").split("\n\n"), ""][:2])
        statement, record = first.removeprefix("Claim: ").removesuffix("."), dict(_records(rule.__module__)[name])
        sweep, *beside = record.pop("sweeps")
        fields = {"figure": sweep, "beside": tuple(beside), **record}
        return Claim(name, statement=statement, sweep=sweep, rule=rule, rule_words=words, **fields)

    return claim_of


@cache
def _records(module: str) -> dict[str, dict[str, Any]]:
    """Return the record of each claim in the claims.toml next to a module of rules."""
    path = Path(str(sys.modules[module].__file__)).with_name("claims.toml")
    records = tomllib.loads(path.read_text(encoding="utf-8"))
    return {
        name: {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
        for name, fields in records.items()
    }


@dataclass(frozen=True)
class Evidence:
    """A sweep's checked table, and its stored Hessians, which are read when a rule needs them.

    `beside` holds the evidence of other sweeps that the claim needs.
    """

    table: pd.DataFrame
    hessians: Callable[[], Iterable[StoredHessian]] = tuple
    beside: Mapping[str, Evidence] = field(default_factory=dict)
    architectures: Architectures = field(default_factory=dict)

    def other(self, sweep: str) -> Evidence:
        """Return the evidence of another sweep; an empty table where there is none."""
        return self.beside.get(sweep, Evidence(self.table.iloc[:0]))

    def steps(self) -> list[float]:
        """Return the measured steps of the training, ascending; empty without a training."""
        return sorted(self.table["step"].dropna().unique())

    def of_step(self, step: float) -> Evidence:
        """Return the evidence of one step, including Hessians."""
        return replace(
            self,
            table=self.table[self.table["step"] == step],
            hessians=lambda: (hessian for hessian in self.hessians() if hessian.step == step),
        )

    def at_step(self, number: int) -> Evidence:
        """Return the evidence of the first (0) or last (-1) step; all of it if there are no steps."""
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
    return Evidence(run.table, lambda: each_hessian(folder), architectures=run.architectures)
