"""What the studies add to the core: found by folder, named in records of strings, imported when it is used."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import ModuleType

from hessfig.row_facts import CORE_ROWS, RowFacts

_STUDIES = "hessfig.studies"


@dataclass(frozen=True)
class Study:
    """The record of a study: names only, so that reading it imports neither torch nor matplotlib.

    Attributes
    ----------
    quantities : tuple of str
        The keys of QUANTITIES in the module `quantities` of the study.
    layouts : tuple of str
        The keys of LAYOUTS in its module `layouts`.
    claims : tuple of str
        The names of the claims in its module `rules`, in the order of the ledger.
    rows : mapping
        The facts of the rows that its quantities write (see `RowFacts`), by name.
    page : str
        Its page in docs.
    """

    quantities: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    rows: Mapping[str, RowFacts] = field(default_factory=dict)
    page: str = ""


@cache
def studies() -> dict[str, Study]:
    """Return the record of every study by the name of its folder, in alphabetical order."""
    folders = import_module(_STUDIES).__path__
    names = sorted(module.name for module in pkgutil.iter_modules(folders) if module.ispkg)
    return {name: import_module(f"{_STUDIES}.{name}").STUDY for name in names}


def modules_of(subject: str) -> Iterator[ModuleType]:
    """Yield the module called `subject` of every study that has such entries, imported now."""
    for name, study in studies().items():
        if getattr(study, "claims" if subject == "rules" else subject):
            yield import_module(f"{_STUDIES}.{name}.{subject}")


def facts_of(quantity: str) -> RowFacts | None:
    """Return the facts of the rows of a quantity; None for a name that neither the core nor a study writes."""
    return row_facts().get(quantity)


@cache
def row_facts() -> dict[str, RowFacts]:
    """Return the facts of all rows whose names say less than what is true of them."""
    rows = dict(CORE_ROWS)
    for study in studies().values():
        rows |= study.rows
    return rows
