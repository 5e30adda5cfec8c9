"""Checks of what a figure is asked to be: its width, its panels and files, and which slopes are printed."""

from __future__ import annotations

from typing import Any

from hessfig.config.schema import Config, FigureConfig
from hessfig.errors import UserError

NARROWEST, WIDEST = 2.0, 20.0  # inches


def check_figure(figure: FigureConfig) -> None:
    """Raise UserError for a width that no page has, for panels without a name and for no files."""
    width = figure.width
    if width is not None and not NARROWEST <= width <= WIDEST:
        raise UserError(
            "figure.width is in inches",
            got=width,
            allowed=f"{NARROWEST:g} to {WIDEST:g}, or null",
            remedy="for example figure.width=3.25, a column of two, or figure.width=6.75",
        )
    _check_once("figure.formats", list(figure.formats), "pdf, png, svg", "figure.formats=[pdf]")
    if not figure.formats:
        raise UserError(
            "figure.formats is empty",
            got="[]",
            allowed="pdf, png, svg",
            remedy="for example figure.formats=[pdf]",
        )
    _check_once("figure.panels", figure.panels, "names of panels", "for example figure.panels=[W_V:H_o]")


def check_filters(config: Config) -> None:
    """Raise UserError for rows and parts that are neither a name nor a list of names."""
    for key in ("rows", "part"):
        value = getattr(config, key)
        names = value if isinstance(value, list) else [value]
        if value is not None and not (names and all(isinstance(name, str) and name for name in names)):
            raise UserError(
                key, got=value, allowed="a name or a list of names", remedy=f"for example {_EXAMPLES[key]}"
            )


def _check_once(key: str, names: list[Any], allowed: str, example: str) -> None:
    if len(set(names)) < len(names) or "" in names:
        raise UserError(
            f"{key}: each is named once", got=f"[{','.join(names)}]", allowed=allowed, remedy=example
        )


_EXAMPLES = {"rows": "rows=W_Q or 'rows=[W_Q,W_V]'", "part": "part=H_o or 'part=[H_o,H]'"}
