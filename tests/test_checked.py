"""Shapes are checked at run time in every module that computes, but in the tape."""

import importlib
import sys

import pytest
import torch
from jaxtyping import TypeCheckError

from tests.checked import CHECKED, COMPUTING, TYPECHECKER, UNCHECKED, begin, jaxtyped

_UNCHECKED = tuple(f"{one}." for one in UNCHECKED)


def test_the_exception_is_a_package_and_the_only_one():
    left = [name for name in COMPUTING if name not in CHECKED]
    assert left, "a name of more"
    assert all(f"{name}.".startswith(_UNCHECKED) for name in left), "a name of more"
    assert all(
        any(f"{name}.".startswith(one) for name in left) for one in _UNCHECKED
    ), "a name that matches nothing"
    inside = [
        name for name in CHECKED for one in _UNCHECKED if one.startswith(f"{name}.")
    ]
    assert not inside, "a hook holds for what is inside"
    assert {
        "hessfig.curvature.curvlinops",
        "hessfig.states.training.second_order",
    } <= set(CHECKED)


@pytest.mark.parametrize("name", COMPUTING)
def test_a_module_that_computes_is_loaded_with_checks(name):
    if name.startswith("hessfig.integrations."):
        pytest.importorskip(name.rpartition(".")[2])
    module = importlib.import_module(name)
    assert (type(module.__loader__).__module__.partition(".")[0] == "jaxtyping") == (
        name in CHECKED
    )
    assert sys.modules[name] is module


def test_another_shape_is_refused():
    from hessfig.curvature.column import _columnwise
    from hessfig.states.training.step_rules import largest_ritz

    with pytest.raises(TypeCheckError, match="start"):
        largest_ritz(lambda vector: vector, torch.zeros(2, 2), 1)
    with pytest.raises(TypeCheckError, match="products"):
        _columnwise(torch.zeros(2))


def test_another_type_is_refused_where_there_are_no_shapes():
    from hessfig.rng import stream

    with pytest.raises(TypeCheckError, match="seed"):
        stream("zero", "name")


@pytest.mark.parametrize(
    ("is_thorough", "expected"), [(False, [1, 2, 4]), (True, [1, 2, 3, 4, 5])]
)
def test_the_calls_of_a_test_that_are_checked(is_thorough, expected):
    from hessfig.rng import stream

    begin(is_thorough=is_thorough)
    checked = []
    for number in range(1, 6):
        try:
            stream("zero", "name")
        except TypeCheckError:
            checked.append(number)
        except ValueError:
            pass
    assert checked == expected


@pytest.mark.parametrize(("is_thorough", "expected"), [(False, [1]), (True, [1, 2, 4])])
def test_the_definitions_in_a_test_that_are_checked(is_thorough, expected):
    begin(is_thorough=is_thorough)
    checked = []
    for number in range(1, 6):

        def half(x: float):
            return x / 2 if isinstance(x, float) else None

        try:
            jaxtyped(half, typechecker=TYPECHECKER)("one")
        except TypeCheckError:
            checked.append(number)
    assert checked == expected
