"""The registry of layouts, and the one call that draws a figure."""

from pathlib import Path

from hessfig import registry
from hessfig.errors import UserError, did_you_mean, unknown_name
from hessfig.figures.layouts.core_layouts import CORE_LAYOUTS
from hessfig.figures.parts import FigureLayout, FigureSpec, save_sheets, styled

__all__ = ["LAYOUTS", "FigureLayout", "FigureSpec", "draw"]

LAYOUTS: dict[str, FigureLayout] = dict(CORE_LAYOUTS)
for _module in registry.modules_of("layouts"):
    LAYOUTS |= _module.LAYOUTS


def draw(spec: FigureSpec, outputs: Path, *, into: Path | None = None) -> list[Path]:
    """Draw `spec` from outputs/<sweep> into a folder (None: outputs/figures) and return the paths written.

    Width, note, formats and panels are those of `spec.paper`. Raises UserError for an
    unknown layout, for settings that the layout does not accept, for unknown panels,
    and for a sweep that was not run or has an invalid table.
    """
    check(spec)
    folder = into or outputs / "figures"
    with styled(spec.paper):
        pages = LAYOUTS[spec.layout].draw(spec, outputs / spec.sweep)
        return save_sheets(pages, folder, spec.name, spec.paper)


def check(spec: FigureSpec) -> None:
    """Raise UserError for a layout that does not exist, and for a setting that has no effect on it."""
    if spec.layout not in LAYOUTS:
        what = "figure.layout: there is no such layout"
        otherwise = "for example figure.layout=growth"
        raise unknown_name(what, spec.layout, LAYOUTS, otherwise)
    layout = LAYOUTS[spec.layout]
    for key in ("x", "colour", "dashes"):
        if getattr(spec, key) is not None and key not in layout.takes:
            takers = []
            for name, other in LAYOUTS.items():
                if key in other.takes:
                    takers.append(f"figure.layout={name}")
            raise UserError(
                f"figure.{key}: the layout {spec.layout} does not take it",
                got=f"figure.{key}={getattr(spec, key)}",
                allowed="no such setting with this layout",
                remedy=" or ".join(takers),
            )
    for key in spec.options:
        if key not in layout.options:
            raise UserError(
                f"figure.options.{key}: the layout {spec.layout} does not take it",
                got=f"figure.options.{key}={spec.options[key]}",
                allowed=", ".join(layout.options) or "none: it takes no options",
                remedy=did_you_mean(key, layout.options) or "leave it out",
            )
