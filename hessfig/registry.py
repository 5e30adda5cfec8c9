"""The registry of studies: finds what each study adds to the core, by folder, and imports it when it is used."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from hessfig.row_facts import CORE_ROWS, RowFacts

_STUDIES = "hessfig.studies"


@dataclass(frozen=True)
class Study:
    """The record of a study. Reading it imports neither torch nor matplotlib.

    What a study adds is found in two modules of its folder, where it has them:
    `quantities` (QUANTITIES, rows of hessfig.measurements.quantity.Quantity) and
    `layouts` (LAYOUTS, rows of figures by name).

    Attributes
    ----------
    page : str
        Its page in docs.
    rows : mapping
        The facts of the rows that its quantities write of blocks, weights and
        directions, by name.
    """

    page: str
    rows: Mapping[str, RowFacts] = field(default_factory=dict)


@cache
def study_records() -> dict[str, Study]:
    """Return the record of every study by the name of its folder, in alphabetical order."""
    folders = import_module(_STUDIES).__path__
    names = sorted(
        module.name for module in pkgutil.iter_modules(folders) if module.ispkg
    )
    return {name: import_module(f"{_STUDIES}.{name}").STUDY for name in names}


def modules_of(subject: str) -> Iterator[ModuleType]:
    """Import and yield the module `subject` of every study that has this module."""
    for name in study_records():
        module = f"{_STUDIES}.{name}.{subject}"
        if find_spec(module):
            yield import_module(module)


def facts_of(quantity: str) -> RowFacts | None:
    """Return the facts of the rows of a quantity; None for a name that neither the core nor a study writes."""
    return row_facts().get(quantity)


@cache
def row_facts() -> dict[str, RowFacts]:
    """Return the facts of rows by name: all of the core's, and those of the studies' blocks, weights and directions."""
    rows = dict(CORE_ROWS)
    for study in study_records().values():
        rows |= study.rows
    return rows
