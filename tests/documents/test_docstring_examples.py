"""The examples in docstrings run, and print what they show."""

import doctest
import inspect
import re
from importlib import import_module
from operator import attrgetter

import pytest

import hessfig
from hessfig import curvature
from tests.test_architecture import MODULES, name_of

WITH_EXAMPLES = [name_of(path) for path in MODULES if "\n    >>> " in path.read_text()]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_print_what_they_show(module):
    found = doctest.testmod(import_module(module))
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("name", curvature.__all__)
def test_every_public_name_of_the_library_has_an_example(name):
    assert "\n    >>> " in str(getattr(curvature, name).__doc__) or "\n>>> " in str(
        getattr(curvature, name).__doc__
    )


PUBLIC = [
    *(name for name in hessfig.__all__ if name != "__version__"),
    "Problem.operator",
    "Problem.approximation",
    "lens.attention_patterns",
    "lens.attention_scores",
    "lens.residual_norms",
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_has_an_example_and_its_parameters_described(name):
    public = attrgetter(name)(hessfig)
    text = str(inspect.getdoc(public))
    assert "\nExamples\n---" in text
    assert ">>> " in text
    assert public.__module__ in WITH_EXAMPLES
    described = "\n".join(re.findall(r"^\*{0,2}\w.*$", text, flags=re.MULTILINE))
    missing = [
        each
        for each in inspect.signature(public).parameters
        if not re.search(rf"\b{each}\b", described)
    ]
    # Problem.operator makes them.
    assert set(missing) <= {"self"} or name == "BlockOperator"
