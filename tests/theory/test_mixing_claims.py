"""The theorem of mixing weights: the same numbers as the rule that counts, and every step of its proof is needed."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import growth_rate
from hessfig.predictions.network_series import mixing
from hessfig.rng import stream
from hessfig.terms import (
    Attention,
    AttentionBias,
    Block,
    Kind,
    Matrix,
    Part,
    QueryKey,
    Scores,
)
from hessfig.theory import mixing_claims
from hessfig.theory.mixing_claims import (
    CASES,
    STATEMENTS,
    MixingCase,
    Surroundings,
    mixing_exponents,
)
from hessfig.theory.statement import Dims, check
from hessfig.theory.verification import CATALOGUE

Q = Matrix.W_Q
K = Matrix.W_K
V = Matrix.W_V
BARE = Architecture(kind=Kind.self_attention, square_loss=True, differential_norm=False)
PLAIN = Surroundings()
COSINE = Surroundings(scores=0.0, bend=True)
PAGE = Path(__file__).parents[2] / "docs" / "studies" / "constant-term.md"


@pytest.mark.parametrize(
    ("architecture", "around"),
    [
        (BARE, PLAIN),
        (replace(BARE, attention=Attention.linear), Surroundings()),
        (replace(BARE, attention=Attention.sigmoid), Surroundings()),
        (
            replace(
                BARE,
                attention=Attention.sigmoid,
                attention_bias=AttentionBias.log_length,
            ),
            Surroundings(),
        ),
        (replace(BARE, attention=Attention.sparsemax), Surroundings()),
        (
            replace(BARE, attention=Attention.differential, differential_lambda=1.0),
            Surroundings(),
        ),
        (replace(BARE, centring=0.9), Surroundings()),
        (replace(BARE, centring=1.0), Surroundings()),
        (replace(BARE, query_key=QueryKey.single), Surroundings()),
        (replace(BARE, scores=Scores.cosine), COSINE),
        (replace(BARE, zero_targets=True), Surroundings(gradient=1.0)),
        (
            replace(BARE, zero_targets=True, attention=Attention.linear),
            Surroundings(gradient=3.0),
        ),
    ],
)
def test_the_theorem_and_the_rule_that_counts_agree(architecture, around):
    degrees = mixing(architecture).degrees or ()
    single = architecture.query_key == QueryKey.single
    found = mixing_exponents(degrees, around, single=single)
    matrices = (V, Matrix.W_QK) if single else (V, Q, K)
    for part in (Part.H_o, Part.H_f, Part.H):
        for row in matrices:
            for col in matrices[matrices.index(row) :]:
                counted = growth_rate(Block(1, row, col), part, architecture).exponent
                assert found.get((part, row, col)) == counted, (part, row, col)


def _twice_from_one(degrees, around=PLAIN, **more):
    return mixing_exponents(degrees, replace(around, bend=True), **more)


def _values_meet_scores(degrees, around=PLAIN, **more):
    return mixing_exponents([n for n in degrees if n > 0], around, **more)


def _every_degree(degrees, around=PLAIN, **more):
    return mixing_exponents((0, 1, 2, 3), around, **more)


def _no_bend_after(degrees, around=PLAIN, **more):
    return mixing_exponents(degrees, replace(around, second=math.inf), **more)


def _no_norm_after(degrees, around=PLAIN, **more):
    return mixing_exponents(degrees, replace(around, first=0.0), **more)


def _scores_not_normalised(degrees, around=PLAIN, **more):
    return mixing_exponents(degrees, replace(around, scores=2.0), **more)


def _gradient_of_order_one(degrees, around=PLAIN, **more):
    return mixing_exponents(degrees, replace(around, gradient=0.0), **more)


@pytest.fixture(scope="module")
def exponents():
    statement = STATEMENTS["mixing-exponents"]
    drawn = statement.draw(Dims(), stream(0, "mixing"))
    return drawn, dict(statement.oracle(drawn))


def _largest_error(drawn, found):
    predicted = STATEMENTS["mixing-exponents"].printed
    assert predicted is not None
    return max(
        float((value - found[name]).abs()) for name, value in predicted(drawn).items()
    )


@pytest.mark.long
def test_every_block_is_named_by_the_theorem(exponents):
    drawn, found = exponents
    assert _largest_error(drawn, found) < 0.01
    assert len(CASES) > 20
    assert len(found) > 27 * 20


@pytest.mark.parametrize(
    "mutation",
    [
        _twice_from_one,
        _values_meet_scores,
        _every_degree,
        _no_bend_after,
        _no_norm_after,
        _scores_not_normalised,
        _gradient_of_order_one,
    ],
)
def test_a_step_of_the_proof_that_is_wrong_is_caught(mutation, exponents, monkeypatch):
    monkeypatch.setattr(mixing_claims, "mixing_exponents", mutation)
    assert _largest_error(*exponents) > 0.9


@pytest.mark.parametrize("name", ["zeroth", "first", "second", "twice"])
def test_a_wrong_leading_term_is_caught(name, monkeypatch):
    right = mixing_claims.polynomial_terms
    monkeypatch.setattr(mixing_claims, "_POWERS", ((0, 1, 2), (2,)))
    monkeypatch.setattr(
        mixing_claims,
        "polynomial_terms",
        lambda *given: replace(
            right(*given), **{name: 1.01 * getattr(right(*given), name)}
        ),
    )
    assert (
        float(check(CATALOGUE["mixing-constants"], [Dims()], 1).error_as_printed or 0)
        > 1e-3
    )


def test_tokens_of_any_mean_are_no_exception():
    drawn = mixing_claims._draw_cancelling(Dims(), stream(0, "mean"))
    usual = {
        name: replace(net, X=net.X + 1.0)
        for name, net in drawn.items()
        if name.endswith("mean zero")
    }
    found = mixing_claims._cancelling_exponents(usual)
    assert all(abs(float(found[f"{name}: H_o(W_V, W_V)"]) - 2) < 0.1 for name in usual)


def test_the_table_of_the_page_is_the_theorem():
    text = (
        PAGE.read_text()
        .partition("# Exponents by mixing weights")[2]
        .partition("\n##")[0]
    )
    rows = re.findall(
        r"^\| ([^|]+) \| ([\d, ]+) \| (\w+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$",
        text,
        re.M,
    )
    kinds = {"plain": Surroundings(), "unit": COSINE, "before": Surroundings(0.0, 0.0)}
    kinds["after"] = Surroundings(first=-1.0, second=-2.0)
    assert len(rows) >= 10
    for name, degrees, around, value, query, gap in rows:
        found = mixing_exponents([int(n) for n in degrees.split(",")], kinds[around])
        H = [found[Part.H, one, one] for one in (V, Q)]
        assert [float(value), float(query), float(gap)] == [*H, H[1] - H[0]], name


def test_a_case_without_powers_is_softmax():
    X = torch.eye(3, dtype=torch.float64)
    weights = {m: torch.eye(3, dtype=torch.float64) for m in (Q, K, V)}
    rows = MixingCase("softmax", None).network(X, weights, {}, X.new_zeros(()))
    assert torch.allclose(rows.sum(-1), torch.ones(3, dtype=torch.float64))
