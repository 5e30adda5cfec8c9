"""What a figure is asked to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hessfig.analysis.slopes.bootstrap import ARITHMETIC
from hessfig.analysis.windows import Window


@dataclass(frozen=True)
class FigureSpec:
    """A figure's name, the sweep it draws, its layout (see sheets.LAYOUTS), how slopes are fitted, and options."""

    name: str
    sweep: str
    layout: str
    windows: Sequence[Window] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    average: str = ARITHMETIC
