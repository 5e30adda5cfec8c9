"""Rules of empirical claims on synthetic tables of each outcome: a rule that cannot fail is none."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.claims.ledger import claim_of, claims
from hessfig.analysis.claims.rule import (
    Evidence,
    Verdict,
    alike,
    all_of,
    any_of,
    by_condition,
    departs,
    exceeds,
    stays_below,
)
from hessfig.analysis.claims.training_rules import STAND_INS
from hessfig.analysis.intervals import Interval
from hessfig.analysis.stored_spectra import Place, Spectrum
from hessfig.errors import UserError
from tests.analysis import claim_tables as tables
from tests.analysis.claim_tables import SEEDS, normal
from tests.analysis.spectral import spectral_table

HOLDS, NOT, OPEN = Verdict.holds, Verdict.does_not_hold, Verdict.undecided


def of_kinds(shift: float, noise: float) -> Evidence:
    """Return spectra of three blocks: alike in MLPs; in transformers the third one is another shape, by `shift`."""

    def spectra(wanted: Callable[[Place], bool]) -> list[Spectrum]:
        found = []
        for kind in ("transformer", "mlp"):
            for seed in SEEDS:
                change = (shift + noise * normal(seed, kind)) * (kind == "transformer")
                change += noise * normal(seed, "m") * (kind == "mlp")
                for k, name in enumerate(("W_in", "W_out", "W_U")):
                    values = np.linspace(-1, 1, 200) + change * 0.3 * (k == 2)
                    variant = f"model.kind={kind}"
                    place = Place(variant, 1, 0.2, math.nan, seed, 1, 1, name, name, "H", 200)
                    found.append(Spectrum(place, np.sort(values)))
        return [one for one in found if wanted(one.place)]

    return Evidence(spectral_table([{}]), spectra)


def of_proxies(shift: float, noise: float) -> Evidence:
    """Return eigenvalues whose ratio H_o / H departs from one by `shift` more in transformers than in MLPs."""

    def rows() -> Iterator[dict[str, Any]]:
        for kind in ("transformer", "mlp"):
            for seed in SEEDS:
                for sigma in (0.1, 1.0):
                    misfit = 0.1 + shift * (kind == "transformer") + noise * normal(seed, kind)
                    place = {"variant": f"model.kind={kind},model.attention=softmax", "seed": seed}
                    yield {**place, "sigma": sigma, "part": "H", "value": 3.0}
                    yield {**place, "sigma": sigma, "part": "H_o", "value": 3.0 * math.exp(-abs(misfit))}

    return Evidence(spectral_table(list(rows())))


def of_sinks(shift: float, noise: float, kinds: dict[str, float] | None = None) -> Evidence:
    """Return outliers that grow and bulks that shrink by `shift` decades from beta 0 to 12, by kind if told."""

    def rows() -> Iterator[dict[str, Any]]:
        for kind, change in (kinds or {"scores": shift, "both": shift}).items():
            for seed in SEEDS:
                for beta in (0, 4, 12):
                    place = {"variant": f"model.sink={kind},model.sink_beta={beta}", "seed": seed}
                    up = 10 ** ((change + noise * normal(seed, kind)) * beta / 12)
                    yield {**place, "quantity": "largest_eigenvalue", "value": 5 * up}
                    yield {**place, "quantity": "smallest_eigenvalue", "value": -1.0}
                    for percent, side in ((5, -1.0), (95, 1.0)):
                        place["quantity"] = "eigenvalue_quantile"
                        yield {**place, "index": percent, "value": side * 0.01 / up}

    return Evidence(spectral_table(list(rows())))


def of_norms(shift: float, noise: float, *, bend: float = 0.0) -> Evidence:
    """Return condition numbers that go with alpha^shift, and bend upwards on both sides by `bend` decades."""

    def rows() -> Iterator[dict[str, Any]]:
        for weight in ("W_Q", "W_K", "W_V"):
            for seed in SEEDS:
                for alpha in (0.125, 1.0, 8.0):
                    variant = f"model.scaled_weight={weight},model.weight_scale={alpha}"
                    log = 4 + shift * math.log10(alpha) + bend * (alpha != 1)
                    log += noise * normal(seed, weight, alpha)
                    for row in ("W_Q", "W_K"):
                        yield {
                            **{"variant": variant, "seed": seed, "row": row, "layer": 1, "row_layer": 1},
                            **{"quantity": "condition_number", "value": 10**log},
                        }

    return Evidence(spectral_table(list(rows())))


def trained(evidence: Callable[[float, float], Evidence], shift: float, noise: float) -> Evidence:
    """Return the evidence of an end of a training, beside a start at which there is neither noise nor a shift."""
    start, end = evidence(0.0, 0.0), evidence(shift, noise)
    table = pd.concat([start.table.assign(step=0.0), end.table.assign(step=9.0)], ignore_index=True)

    def spectra(wanted: Callable[[Place], bool]) -> list[Spectrum]:
        both = [(0.0, one) for one in start.spectra(lambda place: True)]
        both += [(9.0, one) for one in end.spectra(lambda place: True)]
        placed = [replace(one, place=replace(one.place, step=step)) for step, one in both]
        return [one for one in placed if wanted(one.place)]

    return Evidence(table, spectra)


def of_values(shift: float, noise: float) -> Evidence:
    """Return blocks of which values have norms `shift` decades above the larger of queries' and keys'."""

    def rows() -> Iterator[dict[str, Any]]:
        for seed in SEEDS:
            for row, level in (("W_Q", 0.0), ("W_K", -1.0), ("W_V", shift + noise * normal(seed))):
                for layer in (1, 2):
                    place = {"row": row, "layer": layer, "row_layer": layer, "num_layers": 2, "seed": seed}
                    yield {**place, "step": 9.0, "quantity": "frobenius", "value": 10**level}

    return Evidence(spectral_table(list(rows())))


def of_stand_ins(shift: float, noise: float) -> Evidence:
    """Return stand-ins that follow a growing curvature by `shift`, beside noise."""

    def rows() -> Iterator[dict[str, Any]]:
        for seed in SEEDS:
            for step in range(12):
                place = {"seed": seed, "step": float(step)}
                yield {**place, "value": 1.0 + step}
                yield {**place, "row": "W_V", "layer": 1, "row_layer": 1, "quantity": "frobenius", "value": 1 + step}
                for name in STAND_INS:
                    value = 100 + shift * step + noise * normal(seed, step, name)
                    yield {**place, "row": "", "part": "", "quantity": name, "value": value}

    return Evidence(spectral_table(list(rows())))


def of_norm_layers(shift: float, noise: float) -> Evidence:
    """Return block norms that range `shift` decades further without LayerNorm than with it."""

    def rows() -> Iterator[dict[str, Any]]:
        for norm in ("none", "pre"):
            for seed in SEEDS:
                end = 1 + shift * (norm == "none") + noise * normal(seed, norm)
                for step, log in ((0.0, 0.0), (5.0, end / 2), (9.0, end)):
                    place = {"variant": f"model.norm={norm},model.attention=softmax", "seed": seed, "step": step}
                    place |= {"row": "W_V", "layer": 1, "row_layer": 1, "quantity": "frobenius"}
                    yield {**place, "value": 10**log}

    return Evidence(spectral_table(list(rows())))


@pytest.mark.parametrize(
    ("name", "evidence", "verdict"),
    [
        ("zhang-heterogeneity", of_kinds(1.0, 0.01), HOLDS),
        ("zhang-heterogeneity", of_kinds(0.0, 0.001), NOT),
        ("zhang-heterogeneity", of_kinds(0.3, 2.0), OPEN),
        ("gauss-newton-worse", of_proxies(0.5, 0.01), HOLDS),
        ("gauss-newton-worse", of_proxies(0.0, 0.01), NOT),
        ("gauss-newton-worse", of_proxies(0.02, 0.3), OPEN),
        ("sinks-stretch", of_sinks(1.0, 0.05), HOLDS),
        ("sinks-stretch", of_sinks(-0.5, 0.05), NOT),
        ("sinks-stretch", of_sinks(0.1, 1.0), OPEN),
        ("condition-norms", of_norms(0.5, 0.05), HOLDS),
        ("condition-norms", of_norms(0.0, 0.5, bend=3.0), HOLDS),
        ("condition-norms", of_norms(0.0, 0.01), NOT),
        ("condition-norms", of_norms(0.0, 0.6), OPEN),
        ("softmax-heterogeneity", tables.softmax(3.0, 0.0, 0.02), HOLDS),
        ("softmax-heterogeneity", tables.softmax(3.0, 2.0, 0.02), NOT),
        ("softmax-heterogeneity", tables.softmax(0.0, 0.0, 0.02), NOT),
        ("softmax-heterogeneity", tables.softmax(3.0, 0.0, 0.5), OPEN),
        ("depth-data", tables.depths(12.0, 0.0, 0.1), HOLDS),
        ("depth-data", tables.depths(12.0, 3.0, 0.1), NOT),
        ("depth-data", tables.depths(0.2, 0.0, 0.1), NOT),
        ("depth-data", tables.depths(12.0, 1.0, 1.0), OPEN),
        ("prenorm-blocks", tables.prenorm(3.0, lambda s: 0.0, 0.02), HOLDS),
        ("prenorm-blocks", tables.prenorm(3.0, lambda s: 1.0, 0.02), NOT),
        ("prenorm-blocks", tables.prenorm(0.0, lambda s: 0.0, 0.02), NOT),
        ("prenorm-blocks", tables.prenorm(3.0, lambda s: 0.2, 0.5), OPEN),
        ("temperature", tables.shares("model.temperature", {0.1: (0.2, 0.8)}, 0.02), HOLDS),
        ("temperature", tables.shares("model.temperature", {0.1: (0.7, 0.9)}, 0.02), NOT),
        ("temperature", tables.shares("model.temperature", {0.1: (0.4, 0.6)}, 0.3), OPEN),
        ("heads", tables.shares("model.n_heads", {0.1: (0.8, 0.2)}, 0.02), HOLDS),
        ("heads", tables.shares("model.n_heads", {0.1: (0.9, 0.7)}, 0.02), NOT),
        ("heads", tables.shares("model.n_heads", {0.1: (0.5, 0.4)}, 0.3), OPEN),
        ("single-matrix", tables.single(0.6, 0.3, 0.02), HOLDS),
        ("single-matrix", tables.single(0.3, 0.3, 0.02), NOT),
        ("single-matrix", tables.single(0.4, 0.35, 0.3), OPEN),
        ("landscape-rate", tables.landscape(-1.0, 1.0, 0.5, 0.01), HOLDS),
        ("landscape-rate", tables.landscape(-0.5, -1.0, 0.0, 0.01), NOT),
        ("landscape-rate", tables.landscape(-1.0, 0.1, 0.1, 0.5), OPEN),
        ("stationarity-data", tables.stationarity(-0.8, 0.02), HOLDS),
        ("stationarity-data", tables.stationarity(-0.5, 0.02), NOT),
        ("stationarity-data", tables.stationarity(-0.55, 0.3), OPEN),
        ("hessian-data", tables.data(-0.5, -0.5, 0.02), HOLDS),
        ("hessian-data", tables.data(0.0, -0.5, 0.02), NOT),
        ("hessian-data", tables.data(-0.5, 0.0, 0.02), NOT),
        ("hessian-data", tables.data(-0.5, -0.5, 0.4), OPEN),
        ("values-largest", tables.sublayers({**tables.QKVO, "W_V": 1.0}, 0.02), HOLDS),
        ("values-largest", tables.sublayers({**tables.QKVO, "W_V": 1.0, "W_O": 1.5}, 0.02), NOT),
        ("values-largest", tables.sublayers({**tables.QKVO, "W_V": 0.3}, 0.5), OPEN),
        ("keys-values-highest", tables.sublayers({**tables.BLOCKS, "W_V": 1.0, "W_K": 1.2}, 0.02), HOLDS),
        ("keys-values-highest", tables.sublayers({**tables.BLOCKS, "W_V": 1.0}, 0.02), NOT),
        ("keys-values-highest", tables.sublayers({**tables.BLOCKS, "W_V": 1.0, "W_K": 0.7}, 0.6), OPEN),
        ("block-independence", tables.coupled(0.1, 0.01), HOLDS),
        ("block-independence", tables.coupled(0.8, 0.01), NOT),
        ("block-independence", tables.coupled(0.3, 0.2), OPEN),
        ("block-order", tables.ordered(tables.ORDER, 0.02), HOLDS),
        ("block-order", tables.ordered({**tables.ORDER, "W_in": 2.5}, 0.02), NOT),
        ("block-order", tables.ordered(tables.EQUAL, 0.02), NOT),
        ("block-order", tables.ordered(tables.ORDER, 1.0), OPEN),
        ("zhang-heterogeneity-trained", trained(of_kinds, 1.0, 0.01), HOLDS),
        ("zhang-heterogeneity-trained", trained(of_kinds, 0.0, 0.001), NOT),
        ("zhang-heterogeneity-trained", trained(of_kinds, 0.3, 2.0), OPEN),
        ("gauss-newton-worse-trained", trained(of_proxies, 0.5, 0.01), HOLDS),
        ("gauss-newton-worse-trained", trained(of_proxies, 0.0, 0.01), NOT),
        ("gauss-newton-worse-trained", trained(of_proxies, 0.02, 0.3), OPEN),
        ("values-trained", of_values(1.0, 0.1), HOLDS),
        ("values-trained", of_values(-0.5, 0.1), NOT),
        ("values-trained", of_values(0.1, 0.5), OPEN),
        ("proxies", of_stand_ins(1.0, 0.5), HOLDS),
        ("proxies", of_stand_ins(-1.0, 0.5), NOT),
        ("proxies", of_stand_ins(0.1, 1.5), OPEN),
        ("layernorm-stabilises", of_norm_layers(1.0, 0.1), HOLDS),
        ("layernorm-stabilises", of_norm_layers(-0.5, 0.1), NOT),
        ("layernorm-stabilises", of_norm_layers(0.1, 1.0), OPEN),
    ],
)
@pytest.mark.long
def test_every_rule_can_come_out_either_way(name: str, evidence: Evidence, verdict: Verdict) -> None:
    finding = claim_of(name).rule(evidence)
    assert finding.verdict == verdict, finding
    assert finding.low < finding.effect < finding.high


def test_every_claim_is_tried_for_each_outcome_here() -> None:
    """A claim without its three synthetic tables above is not judged by a rule that was tried."""
    tried = next(m for m in test_every_rule_can_come_out_either_way.pytestmark if m.name == "parametrize")
    for name in claims():
        assert {verdict for one, _, verdict in tried.args[1] if one == name} == {HOLDS, NOT, OPEN}


def test_stand_ins_are_told_apart() -> None:
    sound = of_stand_ins(1.0, 0.1).table
    wrong = sound["quantity"] == "score_spread"
    finding = claim_of("proxies").rule(Evidence(sound.assign(value=sound["value"].where(~wrong, -sound["value"]))))
    assert finding.verdict == Verdict.holds_only_if and finding.effect == pytest.approx(-1)
    assert "score_spread for largest eigenvalue: does not hold" in finding.words


def test_a_claim_may_hold_for_one_kind_of_sink() -> None:
    finding = claim_of("sinks-stretch").rule(of_sinks(0, 0.02, {"scores": 0.0, "embedding": 1.0}))
    assert finding.verdict == Verdict.holds_only_if and finding.effect == pytest.approx(2, abs=0.1)
    assert finding.words == "model.sink=embedding (model.sink=scores: does not hold)"
    assert {name for name, _ in finding.contrasts} >= {"embedding: growth", "scores: shrinkage"}


def test_pre_ln_may_serve_in_one_window_only() -> None:
    """The exponent bends upwards at sigma = 1: alike below 0.1, apart above."""
    finding = claim_of("prenorm-blocks").rule(tables.prenorm(3.0, lambda s: 0.0 if s < 1 else 1.0, 0.01))
    assert finding.verdict == Verdict.holds_only_if and finding.effect == pytest.approx(0, abs=0.05)
    assert finding.words.startswith("σ ≤ 0.1 (")


def test_a_claim_may_hold_at_one_sigma() -> None:
    ends = {0.1: (0.9, 0.95), 1.0: (0.2, 0.8)}
    finding = claim_of("temperature").rule(tables.shares("model.temperature", ends, 0.01))
    assert finding.verdict == Verdict.holds_only_if and finding.effect == pytest.approx(0.6, abs=0.03)
    assert finding.words == "sigma = 1 (sigma = 0.1: does not hold)"


def test_chance_may_explain_a_rate() -> None:
    finding = claim_of("landscape-rate").rule(tables.landscape(-1.0, 1.0, 0.0, 0.01))
    assert finding.verdict == Verdict.holds_only_if
    assert finding.words == "the rate or the bound (more than chance: does not hold)"
    assert "exponent, random: at w*" in dict(finding.contrasts)
    assert dict(finding.contrasts)["margin, gradient: |w - w*| = 0.5"].mean == pytest.approx(1, abs=0.03)


def test_a_rate_needs_numbers_from_ten_samples_on() -> None:
    table = tables.landscape(-1.0, 1.0, 0.0, 0.01).table
    finding = claim_of("landscape-rate").rule(Evidence(table[table["index"] < 10]))
    assert finding.verdict == OPEN and finding.words.startswith("the table has no differences")


def test_keys_and_values_may_be_highest_after_training_only() -> None:
    trained = {"W_V": 1.0, "W_K": 1.0}
    finding = claim_of("keys-values-highest").rule(tables.sublayers(tables.BLOCKS, 0.02, trained))
    assert finding.verdict == Verdict.holds_only_if and finding.effect == pytest.approx(1, abs=0.05)
    assert finding.words == "step = 1000 (step = 0: does not hold)"


def test_numbers_behind_findings_are_the_ones_put_in() -> None:
    assert claim_of("block-independence").rule(tables.coupled(0.25, 0.0)).effect == pytest.approx(0.25)
    assert claim_of("single-matrix").rule(tables.single(0.6, 0.3, 0.0)).effect == pytest.approx(0.3)
    assert claim_of("depth-data").rule(tables.depths(12.0, 0.0, 0.0)).effect == pytest.approx(12.0)
    assert claim_of("values-largest").rule(tables.sublayers({**tables.QKVO, "W_V": 0.7}, 0.0)).effect == pytest.approx(
        0.7
    )
    order = claim_of("block-order").rule(tables.ordered(tables.ORDER, 0.0))
    assert order.effect == pytest.approx(0.5)
    assert order.words.endswith("embeddings < query and key < feed-forward < value and output < norms")


def test_what_a_contrast_is_worth() -> None:
    finding = claim_of("condition-norms").rule(of_norms(0.5, 0.0))
    found = dict(finding.contrasts)
    assert len(found) == 8 and "W_V" not in "".join(found)
    assert found["exponent of kappa(W_K) in |W_Q|"].mean == pytest.approx(0.5)
    assert found["bend of kappa(W_K) in |W_Q|"].mean == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("name", list(claims()))
def test_a_table_without_the_numbers_decides_nothing(name: str) -> None:
    other = Evidence(spectral_table([{"quantity": "trace", "value": 1.0, "variant": "model.kind=mlp"}]))
    finding = claim_of(name).rule(other)
    assert finding.verdict == OPEN and finding.words.startswith("the table has no")


def test_numbers_that_did_not_converge_do_not_count() -> None:
    sound = of_sinks(1.0, 0.01)
    rough = sound.table.assign(value=1e9, status="not_converged", seed=99)
    both = Evidence(pd.concat([sound.table, rough], ignore_index=True))
    rule = claim_of("sinks-stretch").rule
    assert rule(both).effect == rule(sound).effect


def test_intervals_become_verdicts() -> None:
    def one(low: float, high: float) -> Interval:
        return Interval((low + high) / 2, 1.0, low, high, 5)

    assert [exceeds(one(*ends), 0.1) for ends in ((0.05, 0.3), (-1, 0.05), (-0.1, 0.3), (0.01, 0.12))] == [
        *[HOLDS, NOT, OPEN, OPEN]
    ]
    assert [departs(one(*ends), 0.1) for ends in ((-0.3, -0.05), (-0.05, 0.09), (-0.3, 0.2))] == [*[HOLDS, NOT, OPEN]]
    assert [alike(one(*ends), 0.1) for ends in ((-0.05, 0.09), (-0.3, -0.05), (-0.3, 0.2))] == [*[HOLDS, NOT, OPEN]]
    assert [stays_below(one(*ends), 0.1) for ends in ((-0.3, 0.09), (0.11, 0.3), (0.0, 0.2))] == [*[HOLDS, NOT, OPEN]]
    nothing = Interval(1.0, math.nan, math.nan, math.nan, 1)
    for judge in (exceeds, departs, alike, stays_below):
        assert judge(nothing, 0.1) == OPEN
    assert [all_of(found) for found in ([HOLDS, HOLDS], [HOLDS, NOT], [HOLDS, OPEN], [])] == [*[HOLDS, NOT, OPEN, OPEN]]
    assert [any_of(found) for found in ([OPEN, HOLDS], [NOT, NOT], [NOT, OPEN], [])] == [*[HOLDS, NOT, OPEN, OPEN]]
    assert by_condition({"a": NOT, "b": NOT}) == (NOT, "") and by_condition({"a": OPEN})[0] == OPEN


def test_claims_say_who_claims_what_and_how_it_is_judged() -> None:
    for name, claim in claims().items():
        assert name == claim.id and claim.source and claim.statement and claim.sweep and claim.figure
        assert "effect" in claim.rule_words
        assert re.search(r"holds (at a \w+ )?when", claim.rule_words), claim.rule_words
    with pytest.raises(UserError, match=r"did you mean 'sinks-stretch'\?"):
        claim_of("sink-stretch")
