"""Every statement has the verdict on record; integer claims and zeros are exact; corrections hold."""

import math

import pytest
import torch

from hessfig.theory.growth_claims import COMPONENTS
from hessfig.theory.statement import (
    Dims,
    ErrorMeasure,
    Statement,
    StatementOutcome,
    StatementVerdict,
    check,
)
from hessfig.theory.verification import CATALOGUE

SIZES = [Dims(), Dims().other_side()]
# Exponents of networks, minutes at two sizes: they depend on none.
EXPONENTS = {
    *COMPONENTS,
    "mixing-exponents",
    "mixing-homogeneous",
    "mixing-conditions",
    "mixing-witness",
}
EXACT_ZEROS = [
    "onehot",
    "ffn-relu-pre",
    "eq15",
    "eq16",
    "eq17",
    "eq18",
    "lemB2",
    "lemB3",
]
ASKED_FOR = """
    eq2 eq12 eq13 eq14 eq15 eq16 eq17 eq18 lemB1 lemB2 lemB3 lemC1 rem31-Z1 rem31-Z2 thm31 thm31-K
    thm32 thm32-K eq5 onehot foot3 rem41 tab1 depth mlp lem41 remD1 D-pairs lemD1 lemD2 temp remE1
    E1-low scalar scalar-cond scalar-ggn sink ln1 ln2 ffn block bound
"""


@pytest.mark.parametrize("name", CATALOGUE)
@pytest.mark.long
def test_verdict_is_as_recorded(name):
    outcome = check(CATALOGUE[name], SIZES[:1] if name in EXPONENTS else SIZES, seeds=1)
    assert outcome.verdict == CATALOGUE[name].recorded
    assert outcome.correction_holds
    if (
        CATALOGUE[name].measure in (ErrorMeasure.relative, ErrorMeasure.absolute)
        and outcome.error_corrected is not None
    ):
        assert outcome.error_corrected < 1e-10
    if CATALOGUE[name].measure == ErrorMeasure.integer:
        errors = [
            e
            for e in (outcome.error_as_printed, outcome.error_corrected)
            if e is not None
        ]
        assert errors
        assert all(error == int(error) for error in errors)


@pytest.mark.parametrize("name", EXACT_ZEROS)
def test_exact_claims_are_exact(name):
    assert check(CATALOGUE[name], SIZES, seeds=2).error_as_printed == 0


def test_catalogue_has_every_id_asked_for():
    assert set(ASKED_FOR.split()) <= set(CATALOGUE)


def test_every_failed_statement_says_what_is_right_or_why():
    for statement in CATALOGUE.values():
        if statement.recorded != StatementVerdict.yes:
            assert statement.correction or statement.note
        assert (statement.printed is None) == (
            statement.recorded == StatementVerdict.left_out
        )


def _toy(printed, recorded=StatementVerdict.yes, corrected=None):
    return Statement(
        "toy",
        "nowhere",
        "x = 2.",
        recorded,
        lambda dims, generator: None,
        oracle=lambda problem: {"x": torch.tensor(2.0, dtype=torch.float64)},
        printed=lambda problem: {"x": torch.tensor(printed, dtype=torch.float64)},
        corrected=None
        if corrected is None
        else lambda problem: {"x": torch.tensor(corrected).double()},
    )


def test_errors_are_relative_to_the_oracle():
    assert check(_toy(3.0), SIZES, seeds=1).error_as_printed == 0.5


def test_a_wrong_record_and_a_wrong_correction_are_noticed():
    assert check(_toy(2.0), SIZES, seeds=1).as_recorded
    assert not check(_toy(3.0), SIZES, seeds=1).as_recorded
    assert check(
        _toy(3.0, StatementVerdict.no, corrected=2.0), SIZES, seeds=1
    ).as_recorded
    assert not check(
        _toy(3.0, StatementVerdict.no, corrected=2.5), SIZES, seeds=1
    ).as_recorded


def test_nan_never_counts_as_agreement():
    toy = _toy(2.0)
    values = {
        "x": torch.tensor(2.0, dtype=torch.float64),
        "y": torch.tensor(math.nan, dtype=torch.float64),
    }
    broken = Statement(
        **{
            **vars(toy),
            "oracle": lambda problem: values,
            "printed": lambda problem: values,
        }
    )
    assert not check(broken, SIZES, seeds=1).as_recorded


def test_shapes_that_differ_are_ill_typed():
    outcome = StatementOutcome(_toy(2.0), math.inf, None, 0.0)
    assert outcome.verdict == StatementVerdict.ill_typed


@pytest.mark.parametrize(
    "dims", [Dims(), Dims(L=5, d_V=3, d_K=7, d_ff=4), Dims(L=3, d_V=4, d_K=5, d_ff=6)]
)
def test_other_side_keeps_sizes_different(dims):
    other = dims.other_side()
    assert (other.d_K < other.d_V) != (dims.d_K < dims.d_V)
    assert len({other.L, other.d_V, other.d_K, other.d_ff}) == 4
