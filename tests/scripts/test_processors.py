"""Which numbers depend on threads and on the processor: what docs/accuracy.md promises, and what is measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hessfig.analysis.presented import marked
from scripts.processors import (
    COMMAND,
    INSTRUCTIONS,
    MARKS,
    NUMBERS,
    PAGE,
    TESTS,
    THREADS,
    UNSET,
    digests,
    elsewhere,
    promised,
    unequal,
)

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table_of_the_script() -> None:
    assert marked(PAGE.read_text("utf-8"), MARKS, COMMAND) == promised()


def test_the_tests_of_numbers_are_there() -> None:
    assert all((ROOT / path).is_file() for path in TESTS)
    assert len(THREADS) == 2 and len(INSTRUCTIONS) >= 4


def test_numbers_that_should_be_equal_and_are_not_are_found() -> None:
    """Of one that may depend on threads alone, and one on nothing, in two processes of two numbers of threads."""
    free, bound = NUMBERS[-1].what, NUMBERS[0].what
    alike = {one.what: "" for one in NUMBERS}
    first, other = list(INSTRUCTIONS)[:2]
    found = {(first, "1"): alike, (first, "2"): alike | {free: "b"}}
    assert list(unequal(found)) == [((first, "2"), free, True)]
    found |= {(other, "1"): alike | {bound: "b"}, (other, "2"): alike | {free: "c", bound: "b"}}
    assert [(what, ok) for _, what, ok in unequal(found)] == [
        (free, True),
        (bound, False),
        (bound, False),
        (free, True),
    ]


@pytest.mark.long
def test_numbers_are_equal_where_the_page_says_so() -> None:
    """On this processor, and on it without the instructions that many lack; all settings: `make test-processors`."""
    first, other = next(iter(INSTRUCTIONS)), "everything with AVX2"
    is_chosen, threads_here = any(name in os.environ for name in UNSET), torch.get_num_threads()
    try:
        here = elsewhere(first) if is_chosen else digests()
    finally:
        torch.set_num_threads(threads_here)
    each_of = {first: here, other: elsewhere(other)}
    found = {(name, threads): each for name, all_of in each_of.items() for threads, each in all_of.items()}
    assert len(found) == 4
    assert not [line for line in unequal(found) if not line[-1]]
