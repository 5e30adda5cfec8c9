"""The figures of the benchmarks, in the house style: growth of the cost along each setting, and bars of the engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from norms import PUBLISHED
from runner import TOY_WORDS
from scaling import EXACT, TOP, WHOLE

from hessfig.figures.parts.colours import GUIDE, TONES
from hessfig.figures.parts.lettering import BACKING, TINY
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.parts.panel_sheet import ONE_SCALE, SHARED, Sheet, in_rows
from hessfig.figures.parts.panels import draw_guide, fitted
from hessfig.figures.parts.saving import save_figure

Rows = list[dict[str, Any]]
COLOURS = {WHOLE: TONES[0], TOP: TONES[1], EXACT: TONES[3]}
AXES = {"d_model": "width", "n_layers": "number of layers", "sequence_length": "tokens per sequence"}
AXES |= {"batch_size": "sequences per batch", "num_probes": "number of probes"}
BARS = {"seconds": "seconds per cell", "cost_at_equal_error": "seconds at equal error", "peak_gib": "peak memory, GiB"}


def draw_scaling(report: dict[str, Any], output: Path) -> list[Path]:
    """Draw CPU seconds against every setting next to the JSON; the exponents of the fits stand in the panels.

    How to read it: a straight line of slope p means seconds ~ x^p. Grey dashes: the fit, over the points fitted.
    """
    with styled():
        return save_figure(scaling_sheet(report), output.parent, output.stem)


def draw_norms(report: dict[str, Any], output: Path) -> list[Path]:
    """Draw one bar per engine next to the JSON: seconds, seconds at the published recipe's error, peak memory.

    How to read it: a bar's value, and in brackets the published recipe's (float32, one thread) divided by it.
    """
    with styled():
        return save_figure(norms_sheet(report), output.parent, output.stem)


def scaling_sheet(report: dict[str, Any]) -> Figure:
    """One panel per axis, and a last one for the legend."""
    names = list(dict.fromkeys(row["axis"] for row in report["points"]))
    cols = min(3, len(names) + 1)
    style = ONE_SCALE.replace(share_x=False, height=1.3, top=_top(report), down=0.4, most=cols)
    sheet = Sheet.grid(Paper(), in_rows([*names, "legend"], cols), _scaling_note(report), style)
    *panels, free = sheet.axes
    for ax, name in zip(panels, names, strict=True):
        _draw_axis(ax, report, name)
    _draw_legend(free, panels)
    for line in sheet.lines:
        sheet.panels[line[0]].set_ylabel("CPU seconds per cell")
    return _titled(sheet.figure, report)


def _draw_axis(ax: Axes, report: dict[str, Any], name: str) -> None:
    points = [row for row in report["points"] if row["axis"] == name]
    laws = {f["engine"]: f for f in report["fits"] if (f["axis"], f["clock"]) == (name, "cpu_seconds")}
    for place, engine in enumerate(engine for engine in COLOURS if any(r["engine"] == engine for r in points)):
        _draw_series(ax, [row for row in points if row["engine"] == engine], COLOURS[engine], engine)
        _write_exponent(ax, laws.get(engine), COLOURS[engine], place)
    for law in laws.values():
        draw_guide(ax, np.array([law["low"], law["high"]]), law["exponent"], law["coefficient"])
    ticks = sorted({row["x"] for row in points})
    ax.set(xscale="log", yscale="log", xlabel=AXES[name])
    ax.minorticks_off()
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.margins(y=0.25)


def _draw_series(ax: Axes, series: Rows, colour: str, label: str) -> None:
    if len(series) == 1:
        ax.axhline(series[0]["cpu_seconds"], linewidth=0.6, color=colour)
    xs, ys = [row["x"] for row in series], [row["cpu_seconds"] for row in series]
    ax.plot(xs, ys, "o-", label=label, color=colour, markeredgewidth=0)


def _write_exponent(ax: Axes, law: dict[str, Any] | None, colour: str, place: int) -> None:
    words = "(one point: no probes)" if law is None else f"p = {fitted(law['exponent'], law['standard_error'])}"
    y = 0.97 - 0.1 * place
    ax.text(0.03, y, words, transform=ax.transAxes, va="top", fontsize=TINY, color=colour, bbox=BACKING)


def _draw_legend(free: Axes, drawn: list[Axes]) -> None:
    free.set_axis_off()
    handles = {str(line.get_label()): line for ax in drawn for line in ax.get_lines()}
    known = {label: handles[label] for label in COLOURS if label in handles}
    free.legend(list(known.values()), list(known), loc="center")


def _scaling_note(report: dict[str, Any]) -> str:
    s = report["settings"]
    return (
        f"One setting varied at a time around {_network(s)}, {s['dtype']}; one thread, median of {s['rounds']} rounds. "
        "p: exponent fitted to the upper half of the axis (grey dashes), ± its standard error. Of several layers "
        "exact takes the top one. Panels share their y axis."
    )


def norms_sheet(report: dict[str, Any]) -> Figure:
    """Three panels that share the names of the engines."""
    style = SHARED.replace(left=1.36, right=0.2, top=_top(report), across=0.16, bottom=0.34, share_x=False)
    height = 0.16 * len(report["engines"])
    sheet = Sheet.grid(Paper(), [list(BARS)], _norms_note(report), style.replace(height=height))
    for ax, (key, label) in zip(sheet.axes, BARS.items(), strict=True):
        _draw_bars(ax, report["engines"], key)
        ax.set_xlabel(label)
    sheet.first.set_yticks(range(len(report["engines"])), list(report["engines"]))
    sheet.first.invert_yaxis()
    return _titled(sheet.figure, report)


def _draw_bars(ax: Axes, engines: dict[str, Any], key: str) -> None:
    values = [row[key] for row in engines.values()]
    colours = [GUIDE if name.startswith("published") else COLOURS[WHOLE] for name in engines]
    ax.barh(range(len(engines)), [value or 0 for value in values], height=0.7, color=colours)
    ax.set_xlim(0, 1.75 * max(value or 0 for value in values))
    for place, value in enumerate(values):
        words = f"{value:.2g} ({engines[PUBLISHED][key] / value:.2g}×)" if value else "no sampling error"
        spot, away = (value or 0, place), (2, 0)
        ax.annotate(words, spot, away, textcoords="offset points", va="center", fontsize=TINY)


def _norms_note(report: dict[str, Any]) -> str:
    s = report["settings"]
    return (
        f"One cell: {_network(s)}, norm: {s['norm']}; median of {s['rounds']} rounds, one thread unless the name has "
        "another number. In brackets: the published recipe (float32, one thread) divided by this one. Equal error: "
        "seconds times (mean relative standard error / that of the published recipe) squared; exact numbers count as "
        "error zero."
    )


def _network(s: dict[str, Any]) -> str:
    layers = f"{s['n_layers']} layer{'s' if s['n_layers'] > 1 else ''}"
    task = f"sums of {s['digits']} digits, batch {s['batch_size']}"
    return f"width {s['d_model']}, {layers}, {task}, {s['num_probes']} probes"


def _top(report: dict[str, Any]) -> float:
    return 0.26 if report["quick"] else 0.1


def _titled(figure: Figure, report: dict[str, Any]) -> Figure:
    """Say on top when the sizes are toy sizes."""
    if report["quick"]:
        figure.suptitle(TOY_WORDS.upper(), y=1 - 0.05 / figure.get_figheight(), va="top", color="#b2182b")
    return figure
