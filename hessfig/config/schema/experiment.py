"""Settings of a sweep and of a figure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from hessfig.config.choices import Average, FigureGroup, Format, Published


@dataclass
class SweepConfig:
    """A sweep: its name, a line about it, what it varies beside sigma, the windows slopes are fitted on (null: open).

    `vary` maps a dotted key to a list of values (or one), unless the command line gives that key.
    `axis` is what curves run along: sigma, step, or a varied setting such as model.d_model.
    """

    name: Annotated[str, "name of the sweep, and of its folder in output_dir"] = "sigma"
    about: Annotated[str, "a line about it"] = ""
    vary: Annotated[
        dict[str, Any],
        "settings it varies beside sigma, in every combination: {model.n_heads: [1, 2], ...}",
        "{setting: values}",
    ] = field(default_factory=dict)
    axis: Annotated[str, "what curves run along: sigma, step, index (k), or a varied setting"] = "sigma"
    windows: Annotated[
        list[Any], "ranges of the axis that slopes are fitted on; null: open", "a list of [low, high]"
    ] = field(default_factory=lambda: [[None, 1.0]])
    average: Annotated[
        Average, "whose logarithm slopes are fitted to: the mean over seeds, or the geometric mean"
    ] = Average.arithmetic


@dataclass
class FigureConfig:
    """A figure: which sweep it draws, in which layout, and where it stands in the gallery (`group`, `order`).

    `x`, `colour` and `dashes` name sigma, step, layer, part or a varied setting, for layouts that take them.
    `published` says what the authors published of it, hence whether `compare` can serve.
    """

    name: Annotated[str, "name of the figure and of its files"] = ""
    sweep: Annotated[str, "the sweep it draws"] = "sigma"
    layout: Annotated[str, "how it is laid out"] = ""
    group: Annotated[FigureGroup, "where it stands: in the paper, beyond it, a study, or your own"] = (
        FigureGroup.own
    )
    order: Annotated[int, "its place in `make figures`"] = 100
    published: Annotated[Published, "what the authors published of it"] = Published.nothing
    x: Annotated[str | None, "what runs along its x axis: sigma, step, or a varied setting"] = None
    colour: Annotated[str | None, "what colours tell apart"] = None
    dashes: Annotated[str | None, "what dashes tell apart"] = None
    width: Annotated[
        float | None, "inches, with type of 7 points and more; null: the style's (default 5.5)"
    ] = None
    panels: Annotated[
        list[str], "panels to draw, such as [W_V:H_o, W_Q:H]; empty: all (a name that is none lists them)"
    ] = field(default_factory=list)
    note: Annotated[bool, "the note below the panels; false writes it to a .txt beside the figure"] = True
    formats: Annotated[list[Format], "files to write; the numbers are written as CSV beside them"] = field(
        default_factory=lambda: [Format.pdf, Format.png, Format.svg]
    )
    options: Annotated[dict[str, Any], "options of the layout"] = field(default_factory=dict)
