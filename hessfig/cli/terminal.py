"""Tables on a terminal, and whole where there is none."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

WIDTH_OF_A_FILE = 160


def show(table: Table) -> None:
    """Print a table: as wide as the terminal, or wide enough for every column when the output goes elsewhere."""
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else WIDTH_OF_A_FILE).print(table)
