"""Rules of empirical claims on synthetic tables of each outcome: a rule that cannot fail is none."""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.claims.judges import (
    ClaimVerdict,
    Effect,
    Finding,
    SubRow,
    all_of,
    at_least,
    by_condition,
    departs,
    equals,
    exceeds,
    stays_below,
)
from hessfig.analysis.claims.ledger import all_claims, claim_of
from hessfig.analysis.claims.rule import Evidence
from hessfig.analysis.intervals import Interval
from hessfig.errors import UserError
from tests.analysis import claim_tables as tables
from tests.analysis.spectral import spectral_table
from tests.studies.components import test_rules as test_component_rules
from tests.studies.directions import test_rules as test_direction_rules

HOLDS, SMALL, NOT, OPEN = ClaimVerdict.holds, ClaimVerdict.small, ClaimVerdict.does_not_hold, ClaimVerdict.undecided
WITHIN = ClaimVerdict.within
# What is equal to a number, or below one, is not small.
NEVER_SMALL = {
    *("weight-powers", "depth-data", "layers: law", "layers: exact"),
    *("heterogeneity-turned: turned", "heterogeneity-turned: removed"),
}


def of_values(shift: float, noise: float, theirs: float | None = None) -> Evidence:
    """Return value blocks `shift` decades above the larger of queries' and keys', and `theirs` on addition."""
    pair = [
        tables.sublayers({"W_Q": 0.0, "W_K": -1.0, "W_V": 0.0}, noise, {"W_V": end})
        for end in (shift, shift if theirs is None else theirs)
    ]
    return replace(pair[0], beside={"curvature_flow": pair[1]})


@pytest.mark.parametrize(
    ("name", "evidence", "verdict"),
    [
        ("softmax-heterogeneity", tables.softmax(3.0, 0.0, 0.02), HOLDS),
        ("softmax-heterogeneity", tables.softmax(3.0, 2.0, 0.02), NOT),
        ("softmax-heterogeneity", tables.softmax(0.0, 0.0, 0.02), NOT),
        ("softmax-heterogeneity", tables.softmax(3.0, 0.0, 0.5), OPEN),
        ("depth-data", tables.depths(48.0, 0.0, 0.1), HOLDS),
        ("depth-data", tables.depths(48.0, 3.0, 0.1), NOT),
        ("depth-data", tables.depths(36.0, 0.0, 0.1), NOT),
        ("depth-data", tables.depths(48.0, 0.0, 5.0), OPEN),
        ("prenorm-blocks", tables.prenorm(3.0, lambda s: 0.0, 0.02), HOLDS),
        ("prenorm-blocks", tables.prenorm(3.0, lambda s: 1.0, 0.02), HOLDS),
        ("prenorm-blocks", tables.prenorm(0.1, lambda s: 0.0, 0.002), SMALL),
        ("prenorm-blocks", tables.prenorm(3.0, lambda s: 2.0, 0.02), NOT),
        ("prenorm-blocks", tables.prenorm(0.0, lambda s: 0.0, 0.02), NOT),
        ("prenorm-blocks", tables.prenorm(3.0, lambda s: 1.5, 0.5), OPEN),
        ("softmax-heterogeneity", tables.softmax(0.15, 0.0, 0.02), SMALL),
        ("softmax-entries", tables.entries(1.0, 0.1), HOLDS),
        ("softmax-entries", tables.entries(0.15, 0.02), SMALL),
        ("softmax-entries", tables.entries(-1.0, 0.1), NOT),
        ("softmax-entries", tables.entries(0.25, 1.0), OPEN),
        ("softmax-entries", tables.entries(1.0, 0.1, linear=1.0), NOT),
        ("dispersed", tables.scored(2.0, 1.0, 0.05), HOLDS),
        ("dispersed", tables.scored(0.5, 0.05, 0.005), SMALL),
        ("dispersed", tables.scored(-1.0, -1.0, 0.05), NOT),
        ("dispersed", tables.scored(1.0, 0.0, 2.0), OPEN),
        ("similar-tokens", tables.scored(-4.0, 0.0, 0.05, temperature=False), HOLDS),
        ("similar-tokens", tables.scored(-0.05, 0.0, 0.002, temperature=False), SMALL),
        ("similar-tokens", tables.scored(1.0, 0.0, 0.05, temperature=False), NOT),
        ("similar-tokens", tables.scored(-0.5, 0.0, 2.0, temperature=False), OPEN),
        *(
            ("wide-key", tables.varied("model.d_head", {("pattern_spread", "", ""): (level, 0.0)}, noise), verdict)
            for level, noise, verdict in ((1, 0.02, HOLDS), (0.05, 0.01, SMALL), (-1, 0.02, NOT), (0.1, 0.5, OPEN))
        ),
        ("weight-powers", tables.powers(0.0, 0.02), WITHIN),
        ("weight-powers", tables.powers(0.5, 0.02), NOT),
        ("weight-powers", tables.powers(0.0, 1.0), OPEN),
        ("size-spectrum", tables.sizes(0.5, 1.0, 0.02), HOLDS),
        ("size-spectrum", tables.sizes(0.05, 0.05, 0.01), SMALL),
        ("size-spectrum", tables.sizes(-0.5, 0.0, 0.02), NOT),
        ("size-spectrum", tables.sizes(0.1, 0.1, 0.8), OPEN),
        ("size-spectrum", tables.sizes(0.5, 1.0, 0.02, smallest=0.0), NOT),
        ("softmax-indefinite", tables.indefinite(0.2, 0.02), HOLDS),
        ("softmax-indefinite", tables.indefinite(0.03, 0.005), SMALL),
        ("softmax-indefinite", tables.indefinite(-0.1, 0.02), NOT),
        ("softmax-indefinite", tables.indefinite(0.05, 0.3), OPEN),
        ("temperature", tables.at_scores({0.1: (0.2, 0.8)}, 0.02), HOLDS),
        ("temperature", tables.at_scores({0.1: (0.47, 0.53)}, 0.005), SMALL),
        ("temperature", tables.at_scores({0.1: (0.7, 0.9)}, 0.02), NOT),
        ("temperature", tables.at_scores({0.1: (0.4, 0.6)}, 0.3), OPEN),
        ("single-matrix", tables.at_scores({0.1: (0.2, 0.8)}, 0.02), HOLDS),
        ("single-matrix", tables.at_scores({0.1: (0.01, 0.04)}, 0.002), SMALL),
        ("single-matrix", tables.at_scores({0.1: (-1.0, -1.0)}, 0.0), NOT),
        ("single-matrix", tables.at_scores({0.1: (-0.3, 0.4)}, 0.1), OPEN),
        ("values-trained", of_values(0.05, 0.005), SMALL),
        ("values-trained", of_values(1.0, 0.1), HOLDS),
        ("values-trained", of_values(-0.5, 0.1), NOT),
        ("values-trained", of_values(0.1, 0.5), OPEN),
        ("layernorm-stabilises", tables.beyond(2.0, 0.0, 0.05), HOLDS),
        ("layernorm-stabilises", tables.beyond(0.05, 0.0, 0.005), SMALL),
        ("layernorm-stabilises", tables.beyond(2.0, 1.0, 0.05), NOT),
        ("layernorm-stabilises", tables.beyond(0.1, 0.0, 0.5), OPEN),
    ],
)
@pytest.mark.long
def test_every_rule_can_come_out_either_way(name: str, evidence: Evidence, verdict: ClaimVerdict) -> None:
    finding = claim_of(name).rule(evidence)
    assert finding.verdict == verdict, finding
    assert finding.low <= finding.effect <= finding.high


def with_norms(entries: Evidence, norms: Evidence) -> Evidence:
    """Return tables of the two statements about heads."""
    return replace(entries, beside={"heads": norms})


ZEROS, DOMINATED = tables.of_heads(0.0, 0.75, 0.01), tables.norms_of_heads(0.6, 0.2, 0.01)


@pytest.mark.parametrize(
    ("name", "part", "evidence", "verdict"),
    [
        *(
            ("layers", part, tables.layered(effect, effect, 0.0, noise), verdict)
            for part in ("lower", "steeper")
            for effect, noise, verdict in ((1.0, 0.02, HOLDS), (0.1, 0.01, SMALL), (-1.0, 0.02, NOT), (0.3, 1.0, OPEN))
        ),
        *(
            ("layers", part, tables.layered(1.0, 1.0, off, noise), verdict)
            for part in ("law", "exact")
            for off, noise, verdict in ((0.0, 0.01, HOLDS), (0.1, 0.01, NOT), (0.02, 0.2, OPEN))
        ),
        ("heads", "entries", with_norms(ZEROS, DOMINATED), HOLDS),
        ("heads", "entries", with_norms(tables.of_heads(0.49, 0.53, 0.005), DOMINATED), SMALL),
        ("heads", "entries", with_norms(tables.of_heads(0.0, 0.2, 0.01), DOMINATED), NOT),
        ("heads", "entries", with_norms(tables.of_heads(0.4, 0.6, 0.3), DOMINATED), OPEN),
        ("heads", "norm", with_norms(ZEROS, DOMINATED), HOLDS),
        ("heads", "norm", with_norms(ZEROS, tables.norms_of_heads(0.49, 0.47, 0.003)), SMALL),
        ("heads", "norm", with_norms(ZEROS, tables.norms_of_heads(0.69, 0.79, 0.01)), NOT),
        ("heads", "norm", with_norms(ZEROS, tables.norms_of_heads(0.5, 0.45, 0.3)), OPEN),
        ("heterogeneity-turned", "removed", tables.components(0.0, 0.0, 0.02), HOLDS),
        ("heterogeneity-turned", "removed", tables.components(1.0, 0.0, 0.02), NOT),
        ("heterogeneity-turned", "removed", tables.components(0.0, 0.0, 1.0), OPEN),
        ("heterogeneity-turned", "turned", tables.components(-1.0, 0.0, 0.02), HOLDS),
        ("heterogeneity-turned", "turned", tables.components(1.0, 0.0, 0.02), NOT),
        ("heterogeneity-turned", "turned", tables.components(-1.0, 0.0, 1.0), OPEN),
        ("heterogeneity-turned", "raised", tables.components(4.0, 3.0, 0.02), HOLDS),
        ("heterogeneity-turned", "raised", tables.components(3.2, 3.0, 0.01), SMALL),
        ("heterogeneity-turned", "raised", tables.components(2.0, 3.0, 0.02), NOT),
        ("heterogeneity-turned", "raised", tables.components(3.5, 3.0, 1.0), OPEN),
    ],
)
def test_every_part_can_come_out_either_way(name: str, part: str, evidence: Evidence, verdict: ClaimVerdict) -> None:
    row = row_of(claim_of(name).rule(evidence), part)
    assert row.verdict == verdict, row
    assert row.interval.low <= row.interval.mean <= row.interval.high


def row_of(finding: Finding, name: str) -> SubRow:
    """Return the line of a part or condition."""
    (row,) = [row for row in finding.rows if row.name == name]
    return row


def verdicts_of(finding: Finding) -> dict[str, str]:
    """Return the verdicts of parts and conditions by their names."""
    return {row.name: row.word for row in finding.rows if not row.level}


def test_every_claim_is_tried_for_each_outcome_here() -> None:
    """A claim without its synthetic tables above is not judged by a rule that was tried."""
    cases = [
        next(mark for mark in test.pytestmark if mark.name == "parametrize").args[1]
        for test in (test_every_rule_can_come_out_either_way, test_every_part_can_come_out_either_way)
    ]
    tried: dict[str, set[ClaimVerdict]] = {}
    for name, _, verdict in cases[0]:
        tried.setdefault(name, set()).add(HOLDS if verdict == WITHIN else verdict)
    for name, part, _, verdict in cases[1]:
        tried.setdefault(f"{name}: {part}", set()).add(verdict)
    for name, verdicts in tried.items():
        assert verdicts == {HOLDS, NOT, OPEN} | ({SMALL} if name not in NEVER_SMALL else set()), name
    elsewhere = {*test_component_rules.TRIED, *test_direction_rules.TRIED}
    assert {name.partition(":")[0] for name in tried} | elsewhere == set(all_claims())


def test_a_claim_of_several_statements_holds_only_for_those_that_hold() -> None:
    finding = claim_of("layers").rule(tables.layered(1.0, 1.0, 0.1, 0.01))
    assert (
        finding.verdict == ClaimVerdict.holds_only_if
        and finding.words == "lower and steeper; the effect is that of lower"
    )
    assert verdicts_of(finding) == {"lower": HOLDS, "steeper": HOLDS, "law": NOT, "exact": NOT}
    exact = row_of(finding, "exact")
    assert exact.note.endswith("off by up to 10% with 2 layers, 10.0% for sigma <= 0.1")
    assert claim_of("layers").rule(tables.layered(1.0, 1.0, 0.0, 0.001)).verdict == HOLDS
    assert claim_of("layers").rule(tables.layered(-1.0, -1.0, 0.1, 0.01)).verdict == NOT
    heads = claim_of("heads").judged(with_norms(ZEROS, tables.norms_of_heads(0.69, 0.79, 0.01)))
    assert heads.verdict == ClaimVerdict.holds_only_if and heads.words == "entries"
    entries = row_of(heads, "entries")
    assert entries.verdict == ClaimVerdict.theorem and entries.note.startswith("remE1; measured: holds")
    contradicted = claim_of("heads").judged(with_norms(tables.of_heads(0.0, 0.2, 0.01), DOMINATED))
    assert row_of(contradicted, "entries").verdict == NOT and contradicted.words.startswith("norm;")


def test_pre_ln_may_serve_in_one_window_only() -> None:
    """The exponent bends upwards at sigma = 1: alike below 0.1, apart above."""
    finding = claim_of("prenorm-blocks").rule(tables.prenorm(3.0, lambda s: 0.0 if s < 1 else 2.5, 0.01))
    assert finding.verdict == ClaimVerdict.holds_only_if and finding.effect == pytest.approx(0, abs=0.05)
    assert finding.words == "σ ≤ 0.1 or all σ; the effect is that of σ ≤ 0.1"
    assert verdicts_of(finding)["σ ≥ 1"] == NOT and row_of(finding, "σ ≤ 0.1").note == "below 1/4"


def test_the_factor_of_the_temperature_is_no_contribution() -> None:
    """Blocks that change by 1 / t^2 alone neither dominate nor diminish."""
    finding = claim_of("dispersed").rule(tables.scored(0.0, 0.0, 0.02))
    assert finding.verdict == NOT and finding.effect == pytest.approx(0, abs=0.05)
    half = claim_of("dispersed").rule(tables.scored(1.8, 0.06, 0.01))
    assert half.words == "one-hot: diminishes; the effect is that of dispersed: dominates"
    assert verdicts_of(half)["dispersed: dominates"] == SMALL


def test_similar_tokens_shrink_by_a_counted_factor() -> None:
    finding = claim_of("similar-tokens").rule(tables.scored(-2.0, -2.0, 0.02, temperature=False))
    assert finding.verdict == ClaimVerdict.holds_only_if and finding.effect == pytest.approx(2, abs=0.1)
    assert finding.words == "as it is"
    assert verdicts_of(finding)["beyond the counted (1 - rho)^2"] == NOT


def test_depth_is_read_where_runs_write_it_and_what_is_missing_is_said() -> None:
    grows = tables.sizes(0.0, 2.9, 0.02)
    finding = claim_of("size-spectrum").rule(grows)
    assert finding.words == "along the depth"
    assert verdicts_of(finding)["along the width"] == NOT
    assert finding.effect == pytest.approx(2.9, abs=0.1)
    deep = grows.other("model_size_depth")
    largest = Evidence(deep.table[deep.table["quantity"] == "largest_eigenvalue"])
    half = claim_of("size-spectrum").rule(replace(grows, beside={"model_size_depth": largest}))
    assert half.verdict == OPEN and "missing: smallest eigenvalue along the depth" in half.words
    none = claim_of("size-spectrum").rule(replace(grows, beside={}))
    assert "missing: largest eigenvalue along the depth, smallest eigenvalue along the depth" in none.words


def test_a_claim_may_hold_at_one_sigma() -> None:
    ends = {0.1: (0.9, 0.95), 1.0: (0.2, 0.8)}
    finding = claim_of("temperature").rule(tables.at_scores(ends, 0.01))
    assert finding.verdict == ClaimVerdict.holds_only_if and finding.effect == pytest.approx(0.6, abs=0.03)
    (small, large) = [row for row in finding.rows if not row.level]
    assert small.name.endswith("sigma = 0.1") and small.verdict == NOT and large.name in finding.words
    assert re.match(r"1/2 at t = \d", large.note)


def test_a_limit_is_judged_only_where_the_temperature_reaches_it() -> None:
    short = tables.at_scores({0.001: (0.7, 0.9)}, 0.01)
    finding = claim_of("temperature").rule(short)
    assert finding.verdict == OPEN and "t does not reach sigma^2 / 100" in finding.rows[0].note


def test_numbers_behind_findings_are_the_ones_put_in() -> None:
    assert claim_of("depth-data").rule(tables.depths(48.0, 0.0, 0.0)).effect == pytest.approx(48.0)
    wide = claim_of("wide-key").rule(tables.varied("model.d_head", {("pattern_spread", "", ""): (0.0, 1.0)}, 0.0))
    assert wide.effect == pytest.approx(-1.0) and wide.words == "not as initialised here"
    both = claim_of("values-trained").rule(of_values(1.0, 0.0, theirs=-1.0))
    assert both.verdict == ClaimVerdict.holds_only_if and both.effect == pytest.approx(1.0)


@pytest.mark.parametrize("name", list(all_claims()))
def test_a_table_without_the_numbers_decides_nothing(name: str) -> None:
    other = Evidence(spectral_table([{"quantity": "trace", "value": 1.0, "variant": "model.kind=mlp"}]))
    finding = claim_of(name).rule(other)
    assert finding.verdict == OPEN and finding.is_lacking and finding.words.startswith("the table has no")


def test_numbers_that_did_not_converge_do_not_count() -> None:
    sound = tables.sizes(0.5, 1.0, 0.02)
    rough = sound.table.assign(value=1e9, status="not_converged", seed=99)
    both = replace(sound, table=pd.concat([sound.table, rough], ignore_index=True))
    rule = claim_of("size-spectrum").rule
    assert rule(both).effect == rule(sound).effect


def test_intervals_become_verdicts() -> None:
    def one(low: float, high: float) -> Interval:
        return Interval((low + high) / 2, 1.0, low, high, 5)

    assert [
        exceeds(one(*ends), 0.1) for ends in ((0.05, 0.3), (-1, 0.05), (-0.1, 0.3), (0.01, 0.12), (0.01, 0.09))
    ] == [*[HOLDS, NOT, OPEN, OPEN, SMALL]]
    assert [departs(one(*ends), 0.1) for ends in ((-0.3, -0.05), (-0.05, 0.09), (-0.3, 0.2), (-0.08, -0.02))] == [
        *[HOLDS, NOT, OPEN, SMALL]
    ]
    ends = ((0.95, 1.09), (0.5, 0.8), (0.5, 1.2), (1.01, 1.15), (1.01, 1.09))
    assert [equals(one(*pair), 1, 0.1) for pair in ends] == [HOLDS, NOT, OPEN, OPEN, WITHIN]
    assert [stays_below(one(*ends), 0.1) for ends in ((-0.3, 0.09), (0.11, 0.3), (0.0, 0.2))] == [*[HOLDS, NOT, OPEN]]
    nothing = Interval(1.0, math.nan, math.nan, math.nan, 1)
    for verdict in (exceeds(nothing, 0.1), departs(nothing, 0.1), equals(nothing, 1, 0.1), stays_below(nothing, 0.1)):
        assert verdict == OPEN
    assert by_condition({"a": NOT, "b": NOT}) == (NOT, []) and by_condition({"a": OPEN}) == (OPEN, [])
    assert by_condition({"a": NOT, "b": OPEN}) == (OPEN, [])
    assert by_condition({"a": HOLDS, "b": WITHIN}) == (WITHIN, [])
    assert by_condition({"a": HOLDS, "b": NOT, "c": SMALL}) == (ClaimVerdict.holds_only_if, ["a"])
    assert by_condition({"a": NOT, "b": SMALL}) == (SMALL, ["b"])


def test_conjunctions_need_no_correction_to_hold_but_to_be_refuted() -> None:
    """Six parts, each just inside its own interval, hold together; one that is just refuted alone does not refute."""

    def effect(t: float) -> Effect:
        """A sample of 4 whose mean lies t standard errors from 0 (t of 3 degrees: 3.18 at 95 %, 5.84 for six)."""
        sample = np.array([-1.0, 1.0, -1.0, 1.0])
        return Effect(sample + t * sample.std(ddof=1) / 2, at_least(0.0))

    held, refuted = effect(3.3), effect(-3.3)
    six = {str(k): held for k in range(6)}
    assert all_of(six) == HOLDS and all_of({}) == OPEN
    assert all_of({**six, "0": refuted}) == OPEN and all_of({**six, "0": effect(-9.0)}) == NOT
    small = Effect([0.019, 0.02, 0.021], at_least(0.5))
    assert all_of({"a": held, "b": small}) == SMALL


def test_a_theorem_stands_unless_contradicted() -> None:
    softmax = claim_of("softmax-heterogeneity")
    assert softmax.judged(tables.softmax(3.0, 0.0, 0.02)).verdict == ClaimVerdict.theorem
    assert softmax.judged(tables.softmax(3.0, 0.0, 0.02)).words.startswith("eq5, tab1; measured: holds (")
    assert softmax.judged(tables.softmax(0.0, 0.0, 0.02)).verdict == NOT


def test_theorems_are_statements_of_verify() -> None:
    text = (Path(__file__).parents[2] / "hessfig/theory/statement_texts.toml").read_text()
    named = {name for one in all_claims().values() for name in (*one.theorems, *one.part_theorems.values())}
    assert named <= set(tomllib.loads(text)) and named


def test_claims_say_who_claims_what_and_how_it_is_judged() -> None:
    for name, claim in all_claims().items():
        assert name == claim.id and claim.source and claim.statement and claim.sweep and claim.figure
        assert "effect" in claim.rule_words
        assert re.search(r"holds (at a \w+ )?when", claim.rule_words), claim.rule_words
    assert len(all_claims()) <= 20
    with pytest.raises(UserError, match=r"did you mean 'layers'\?"):
        claim_of("layer")
