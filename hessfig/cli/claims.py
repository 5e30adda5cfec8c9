"""Implements `hessfig claims`: judges every claim and writes the ledger, or explains one claim."""

from collections.abc import Sequence
from pathlib import Path

from hessfig.cli.flags import own_words
from hessfig.verbs import VERBS

_LEAVE_OUT = "leave it out: `hessfig run` takes settings, this verb reads tables"


def claims_verb(arguments: Sequence[str]) -> int:
    """Judge every claim and write output_dir/claims.csv and claims.md; with claim=ID explain that one, writing nothing.

    Raises UserError for an unknown word or claim, a missing folder, and a damaged table.
    """
    from hessfig.analysis.claims import ledger
    from hessfig.analysis.claims.ledger import all_claims, claim_of, judge_claims
    from hessfig.cli.terminal import show

    given = own_words(VERBS["claims"], arguments, otherwise=_LEAVE_OUT)
    outputs = Path(given.get("output_dir", "outputs"))
    if "claim" in given:
        (claim,) = judge_claims([claim_of(given["claim"])], outputs, _departures)
        show(ledger.explanation_table(claim))
        if ledger.parts(claim):
            show(ledger.part_table(claim))
        return 0
    judged = judge_claims(list(all_claims().values()), outputs, _departures)
    paths = ledger.write_ledger(judged, outputs)
    show(ledger.verdict_table(judged))
    print(f"{ledger.summary_of_verdicts(judged)}\nwritten: {', '.join(map(str, paths))}")
    return 0


def _departures(folder: Path, sweep: str) -> list[str]:
    """Return the settings of network and task in which a table is not the shipped sweep's."""
    from hessfig.config.presets import choices
    from hessfig.record import MANIFEST

    if not (folder / MANIFEST).exists() or sweep not in choices("sweep"):
        return []
    from hessfig.config.compose.provenance import departures  # slow to import

    return departures(folder / MANIFEST, sweep)
