"""The examples in docstrings run, and print what they show."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

from hessfig import curvature
from tests.test_architecture import MODULES, name_of

WITH_EXAMPLES = [name_of(path) for path in MODULES if "\n    >>> " in path.read_text()]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_print_what_they_show(module: str) -> None:
    found = doctest.testmod(import_module(module))
    assert found.attempted and not found.failed


@pytest.mark.parametrize("name", curvature.__all__)
def test_every_public_name_of_the_library_has_an_example(name: str) -> None:
    assert "\n    >>> " in str(getattr(curvature, name).__doc__) or "\n>>> " in str(getattr(curvature, name).__doc__)


def test_the_public_interface_has_examples() -> None:
    assert {"hessfig.api.arguments", "hessfig.curvature.block_operator"} <= {*WITH_EXAMPLES}
