"""Claims judged from the tables in a folder of outputs; one whose sweep was not run says which command is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hessfig.analysis.claims.evidence import Evidence, evidence_in
from hessfig.analysis.claims.rule import Claim, Finding, Verdict
from hessfig.errors import UserError, run_command
from hessfig.files import is_file
from hessfig.record import TABLE

NOT_RUN = "not run"
Departures = Callable[[Path, str], list[str]]


@dataclass(frozen=True)
class Judged:
    """A claim with its finding, or with the commands that make the tables it lacks.

    `departures` are the settings in which its tables differ from the shipped sweeps.
    """

    claim: Claim
    finding: Finding | None = None
    commands: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The verdict in words."""
        return self.finding.verdict.value if self.finding else NOT_RUN

    @property
    def words(self) -> str:
        """What stands beside the verdict."""
        if self.finding is None:
            return " && ".join(self.commands)
        notes = [f"measured with {', '.join(self.departures)}"] if self.departures else []
        return "; ".join([*filter(None, [self.finding.words]), *notes])


def judge(claims: Iterable[Claim], outputs: Path, departures: Departures) -> list[Judged]:
    """Return every claim judged from outputs/<sweep>/; each table is read once, and nothing is written.

    `departures(folder, sweep)` says in which settings a table is not the shipped sweep's. Raises UserError when
    `outputs` is no folder, and as the reading of tables and arrays does for one that is damaged.
    """
    _check(outputs)
    read = cache(lambda sweep: evidence_in(outputs / sweep))
    return [_judged(claim, outputs, read, departures) for claim in claims]


def counts(judged: Iterable[Judged]) -> Mapping[str, int]:
    """Return how many claims have each verdict, those that occur."""
    found = [one.verdict for one in judged]
    return {
        word: found.count(word)
        for word in (*(verdict.value for verdict in Verdict), NOT_RUN)
        if word in found
    }


def _check(outputs: Path) -> None:
    if not outputs.is_dir():
        raise UserError(
            "output_dir: there is no such folder, hence no table to judge by",
            got=f"output_dir={outputs}",
            allowed="the folder in which `hessfig run` wrote its tables",
            remedy=f"run a sweep first, for example {run_command(outputs / 'sigma')}",
        )


def _judged(claim: Claim, outputs: Path, read: Callable[[str], Evidence], departures: Departures) -> Judged:
    lacking = [sweep for sweep in claim.sweeps if not is_file(outputs / sweep / TABLE)]
    if lacking:
        return Judged(claim, commands=tuple(run_command(outputs / sweep) for sweep in lacking))
    beside = {sweep: read(sweep) for sweep in claim.beside}
    other = [f"{sweep}: {one}" for sweep in claim.sweeps for one in departures(outputs / sweep, sweep)]
    finding = claim.rule(replace(read(claim.sweep), beside=beside))
    return Judged(claim, finding, departures=tuple(other))
