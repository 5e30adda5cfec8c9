"""The shipped figures drawn from synthetic tables of their sweeps' shapes, and every text of a page with its extent."""

from __future__ import annotations

import itertools

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from hessfig.config.science import ModelConfig
from hessfig.figures.parts.page import styled
from hessfig.figures.sheets import LAYOUTS, FigureSpec
from hessfig.models.blocks import transformer_matrices
from tests.analysis.synthetic import (
    CONFIG,
    SIGMA,
    config,
    depths,
    make_table,
    networks,
    pairs,
    single,
    write_sweep,
)
from tests.analysis.test_arrays import listed, store

OPEN = [(None, None)]
THREE = [(None, 0.1), (1.0, None), (None, None)]
_CHAIN = config(attention="linear", attention_skip=False, mlp="none") | {
    "task": {**CONFIG["task"], "loss": "mse_sum_unshifted"}
}
_LINEAR = config(kind="linear_mlp") | {
    "task": {**CONFIG["task"], "loss": "mse_sum_unshifted"}
}
_BARE = config(kind="self_attention", mlp="none", attention_skip=False) | {
    "task": {"loss": "mse"}
}
_BENT = {"law": lambda b, p, a, s: 1 / (1 + 3 * s) ** 1.5}
_ATTENTION = ("W_Q", "W_K", "W_V")
_EVERY = [m.value for m in transformer_matrices(ModelConfig())]


# By figure: layout, windows, options, settings of the run, the table.
FIGURES = {
    "3a": ("growth", [(None, 1.0)], {}, CONFIG, {}),
    "3b": ("growth", THREE, {}, config(norm="pre"), _BENT),
    "3b_levels": ("growth", THREE, {"words": "level"}, config(norm="pre"), _BENT),
    "5a": (
        "linear_axes",
        OPEN,
        {},
        CONFIG,
        {"sigma": np.linspace(0.1, 1, 10).tolist()},
    ),
    "5b": (
        "linear_axes",
        OPEN,
        {},
        CONFIG,
        {"sigma": np.linspace(0.1, 10, 10).tolist()},
    ),
    "6": (
        "growth_by_depth",
        [(None, 1.0)],
        {},
        CONFIG,
        {"networks": depths(1, 5), "sigma": SIGMA[::3]},
    ),
    "7": (
        "growth_by_depth",
        [(None, None), (None, 0.3)],
        {},
        _CHAIN,
        {"networks": depths(3), "sigma": SIGMA[:8:2], "settings": _CHAIN},
    ),
    "8": (
        "one_panel",
        OPEN,
        {},
        _LINEAR,
        {
            "networks": depths(1, 2, 3, 4, 5),
            "sigma": SIGMA[::3],
            "blocks": [("W", "W")],
            "parts": ["H"],
            "settings": _LINEAR,
        },
    ),
    "eq5": (
        "pairs",
        [(None, 0.1)],
        {},
        _BARE,
        {"blocks": pairs(_ATTENTION), "settings": _BARE},
    ),
    "blocks": (
        "blocks",
        OPEN,
        {},
        CONFIG,
        {
            "blocks": pairs(_EVERY),
            "sigma": [0.1, 1.0],
            "law": lambda b, p, a, s: 1e-5 * s,
        },
    ),
    "few_blocks": (
        "blocks",
        OPEN,
        {},
        CONFIG,
        {"blocks": pairs(_ATTENTION), "sigma": [0.1, 1.0]},
    ),
    "ablation": (
        "ablation",
        OPEN,
        {},
        CONFIG,
        {
            "networks": networks("model.temperature", 2.0 ** np.arange(-2, 5)),
            "sigma": [0.1, 0.3, 1.0],
        },
    ),
    "temperature": (
        "score_split",
        OPEN,
        {},
        _BARE,
        {
            "networks": networks("model.temperature", 2.0 ** np.arange(-6, 7)),
            "sigma": [0.1, 0.3, 1.0, 3.0],
            "blocks": [("query_key", "query_key")],
            "parts": ["H_oT", "H_fT", "H"],
            "law": lambda b, p, a, s: {"H_oT": s**5, "H_fT": s**3, "H": s**5 + s**3}[
                p.value
            ],
        },
    ),
    "lines": (
        "lines",
        OPEN,
        {},
        CONFIG,
        {"networks": depths(1, 2), "sigma": SIGMA[::3]},
    ),
    "network": (
        "bars",
        OPEN,
        {},
        config(kind="python"),
        {
            "blocks": single(f"blocks.{k}.attention.weight" for k in range(32)),
            "sigma": None,
            "law": lambda b, p, a, s: 1e-3,
        },
    ),
}
STORED = {"1": "entries", "4": "histograms"}


def pages(figure, outputs, paper):
    """Return the pages of a shipped figure, laid out for a paper."""
    with styled(paper):
        if figure in STORED:
            return _of_hessians(figure, outputs, paper)
        layout, windows, options, settings, made = FIGURES[figure]
        table = make_table(**{"seeds": 2, **made})
        folder = write_sweep(table, outputs, settings=settings)
        spec = FigureSpec(figure, folder.name, layout, windows, options, paper=paper)
        return list(LAYOUTS[layout].draw(spec, folder))


def _of_hessians(figure, outputs, paper):
    generator = np.random.default_rng(0)
    names = ["W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "W_in", "W_out", "W_U"]
    sizes = [16, 24, 8, 8, 8, 8, 32, 32, 16]
    size = sum(sizes)
    stored = [
        store(
            outputs,
            f"model.attention={name}",
            names=names,
            sizes=sizes,
            hessian=(scale * generator.normal(size=(size, size))).astype(np.float32),
        )
        for scale, name in ((1e-3, "softmax"), (1e-2, "linear"))
    ]
    spec = FigureSpec(figure, "entries", STORED[figure], paper=paper)
    return list(LAYOUTS[STORED[figure]].draw(spec, listed(outputs, *stored)))


def laid_out(figure):
    """Give every artist its place, as drawing does, but for the pixels; once, until something is changed."""
    if figure.stale or not isinstance(figure.canvas, FigureCanvasAgg):
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()


def texts(figure):
    """Return every text that is drawn: its words, its size in points, and where it stands in inches."""
    laid_out(figure)
    hidden = set(_beyond(figure))
    found = []
    for text in figure.findobj(Text):
        is_blank = not text.get_visible() or not text.get_text().strip()
        is_off = text.axes is not None and not text.axes.get_visible()
        if is_blank or is_off or text in hidden:
            continue
        box = text.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
        found.append((text.get_text(), float(text.get_fontsize()), box))
    return found


def _beyond(figure):
    """Yield the tick labels that matplotlib keeps but does not draw: outside of the view, or switched off."""
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            scaled = axis.get_transform().transform
            low, high = sorted(scaled(np.array(axis.get_view_interval())))
            slack = 1e-9 * (high - low)
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                inside = (
                    low - slack <= scaled(np.array([tick.get_loc()]))[0] <= high + slack
                )
                for label, on in (
                    (tick.label1, tick.label1.get_visible()),
                    (tick.label2, tick.label2.get_visible()),
                ):
                    if not (inside and on):
                        yield label


def overlaps(figure, *, slack=0.01):
    """Return pairs of texts that touch by more than `slack` inches both ways."""
    found = []
    for (a, _, one), (b, _, other) in itertools.combinations(texts(figure), 2):
        across = min(one.x1, other.x1) - max(one.x0, other.x0)
        up = min(one.y1, other.y1) - max(one.y0, other.y0)
        if min(across, up) > slack:
            found.append((a, b))
    return found


def outside(figure, *, slack=0.005):
    """Return texts that the page cuts."""
    width, height = figure.get_size_inches()
    found = []
    for words, _, box in texts(figure):
        beyond = max(-box.x0, -box.y0, box.x1 - width, box.y1 - height)
        if beyond > slack:
            found.append(words)
    return found
