"""Sums whose carries cascade."""

import itertools

import pytest
import torch

from hessfig.rng import stream
from hessfig.tasks.addition import has_cascade, with_cascades


def carries_in_a_row(x, y, digits):
    """Return the longest run of carries of which each but the first is made by the one before, by hand."""
    longest = row = carry = 0
    for place in range(digits):
        total = x // 10**place % 10 + y // 10**place % 10
        made_by_carry = total == 9 and carry == 1
        row = row + 1 if made_by_carry else int(total >= 10)
        carry = int(total + carry >= 10)
        longest = max(longest, row)
    return longest


def digits_of(number):
    return [number // 100, number // 10 % 10, number % 10]


@pytest.mark.long
def test_cascades_of_three_digit_sums_are_those_found_by_hand():
    pairs = [
        *itertools.product(range(0, 1000, 7), range(0, 1000, 3)),
        (999, 1),
        (990, 19),
        (555, 445),
    ]
    x, y = (torch.tensor([digits_of(pair[side]) for pair in pairs]) for side in (0, 1))
    by_hand = [carries_in_a_row(*pair, 3) >= 3 for pair in pairs]
    assert has_cascade(x, y).tolist() == by_hand
    assert any(by_hand)


def test_a_share_of_the_sums_gets_one_run_of_nines_and_the_others_stay():
    x, y = torch.zeros(2, 40, 5, dtype=torch.long)
    same, changed = with_cascades(x, y, 0.25, generator=stream(0, "test"))
    assert torch.equal(same, x)
    assert torch.equal(changed[10:], y[10:])
    for row in changed[:10].tolist():
        assert set(row) <= {0, 9}
        assert 9 in row
        assert "".join(map(str, row)).strip("0") == "9" * row.count(9)


def test_runs_have_every_length_and_place():
    zeros = torch.zeros(400, 3, dtype=torch.long)
    _, changed = with_cascades(zeros, zeros, 1.0, generator=stream(1, "test"))
    # Three runs of one, two of two, one of three.
    assert len({tuple(row) for row in changed.tolist()}) == 6
