"""The loss next to its second-order expansion: slices, planes, critical points and gradient descent."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from pandas import DataFrame, Series, concat

from hessfig.analysis.arrays import DESCENT, SLICES, StoredLosses, read_courses
from hessfig.analysis.axis import SIGMA, settings_of, with_settings, without
from hessfig.analysis.manifest import RecordedRun
from hessfig.figures.parts import (
    APART,
    GUIDE,
    OWN_Y,
    SHARED,
    TONES,
    FigureSpec,
    Network,
    Page,
    Sheet,
    Source,
    file_words,
    in_rows,
    plain,
    say,
    set_decades,
    setting_words,
    variant_words,
    where,
)

RATE = "directions.rate"
_TRUE, _MODEL, _OTHER = "#4575b4", "black", "#d73027"
_DASHED: dict[str, Any] = {"color": _MODEL, "linestyle": (0, (3, 2)), "linewidth": 0.8}
_OWN_Y = OWN_Y.replace(top=0.26, across=0.42, down=0.26)
_APART = APART.replace(top=0.26, down=0.26, narrowest=None)
_LEVELS, _ROOM = 12, 0.15
# A range beyond this multiple of that between these quantiles has diverged.
_INNER = (0.05, 0.95)
_FAR = 20
_RAYS = {
    "largest": "largest eigenvalue's vector",
    "smallest": "smallest eigenvalue's vector",
    "bulk": "a bulk eigenvalue's vector",
    "gradient": "gradient",
    "random": "random direction",
}


_ABREAST = 3  # panels of descents
_SHOWN = ("largest", "smallest", "random")  # directions with panels


def slices(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the loss along three directions (rows) at every state (columns), then a page of the planes.

    How to read it: blue is the loss against the distance from the state, downhill to
    the right; black dashes are its second-order expansion, dotted lines the distances
    at which that departs by the stated share of the loss's largest change so far. Above
    a panel: u.H u of its direction u. In a plane, colours and solid lines are the loss,
    dashes the expansion at the same levels, red dots where it departs along rays from
    the state (black). The first seed is drawn; the CSV file has all directions, the
    table all seeds. Requires: a sweep of the quantity slices.
    """
    run, stored = _first_seed(source, SLICES)
    for suffix, states in _by_variant(stored):
        yield _lines_page(spec, run, states, suffix)
        yield _plane_page(spec, run, states, f"{suffix}_plane")


def critical_points(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw index against loss of the critical points found, and the gradient's norm where each search ended.

    How to read it: a dot is one search, its colour the step of the training that it
    began at; open dots did not reach the tolerance (dotted line) and are not critical
    points. The index is the number of negative eigenvalues of H: a minimum has none.
    Requires: a sweep of the quantity critical_points.
    """
    run = source.run
    points = _searches(source.table)
    tolerance = (run.config.get("directions") or {}).get("tolerance", math.nan)
    lost = int((points["status"] != "ok").sum())
    note = (
        f"A dot is a search for a critical point from a point of a training.{_setting(run)} Open: {lost} of "
        f"{len(points)} searches whose gradient stayed above the tolerance (dotted): no critical points."
    )
    names = [["index", "gradient"]]
    sheet = Sheet.grid(spec.paper, names, note, _OWN_Y.replace(height=1.9))
    for _, column, ax in sheet:
        _draw_searches(ax, points, names[0][column])
        if column and np.isfinite(tolerance):
            ax.axhline(tolerance, color=GUIDE, linestyle=":", linewidth=0.8)
    sheet.label(
        "loss at the end of the search",
        ["index: negative eigenvalues", "norm of the gradient"],
        [""],
    )
    sheet.first.legend(title="started at step", loc="best", ncols=2)
    yield sheet.page("", points)


def trajectories(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw descent and its quadratic model by learning rate, one page per state, then the horizons.

    How to read it: blue is gradient descent, black dashes the descent on the quadratic
    model of the state, dotted the horizon, the first step at which the model's loss has
    departed. The CSV file also has the distances of both from the state and from each
    other, and the curvature along the step: true, from second differences of losses on
    the step's line, and from three losses of the run. On the last page a dot is a seed,
    and triangles at the top did not depart within the run. Requires: a sweep of the
    quantity descent that varies directions.rate.
    """
    run, courses = _first_seed(source, DESCENT)
    states = list(dict.fromkeys(course.where for course in courses))
    for state in states:
        chosen = [course for course in courses if course.where == state]
        suffix = f"_{file_words(state)}" if len(states) > 1 else ""
        yield _descent_page(spec, run, sorted(chosen, key=_rate), suffix)
    yield _horizon_page(spec, run)


def _first_seed(
    source: Source, quantity: str
) -> tuple[RecordedRun, list[StoredLosses]]:
    courses = read_courses(source.folder, quantity)
    first = min(course.seed for course in courses)
    return source.run, [course for course in courses if course.seed == first]


def _by_variant(
    stored: Sequence[StoredLosses],
) -> Iterator[tuple[str, list[StoredLosses]]]:
    networks: dict[Network, list[StoredLosses]] = {}
    for state in stored:
        networks.setdefault((state.variant, state.num_layers), []).append(state)
    for number, states in enumerate(networks.values(), 1):
        suffix = f"_network{number}" if len(networks) > 1 else ""
        yield suffix, sorted(states, key=lambda at: (at.step, at.sigma))


def _setting(run: RecordedRun) -> str:
    return setting_words(run.config, run.table, SIGMA)


def _share(run: RecordedRun) -> str:
    return f"{100 * (run.config.get('directions') or {}).get('departure', math.nan):g}\u00a0%"


def _note(run: RecordedRun, state: StoredLosses) -> str:
    words = variant_words(without(state.variant, RATE))
    network = f" {words}." if words else ""
    return f"Blue: loss, first seed ({state.seed}); dashed: second order.{network}{_setting(run)}"


def _lines_page(
    spec: FigureSpec, run: RecordedRun, states: Sequence[StoredLosses], suffix: str
) -> Page:
    rays = list(states[0].names["rays"])
    shown = [ray for ray in _SHOWN if ray in rays] or rays[: len(_SHOWN)]
    places = [state.where or "state" for state in states]
    names = [[f"{ray}:{place}" for place in places] for ray in shown]
    note = f"{_note(run, states[0])} Dotted: the expansion is off by {_share(run)} of the loss's largest change so far."
    note += f" Directions u: {', '.join(_RAYS.get(ray, ray) for ray in shown)}."
    # Words above each panel.
    sheet = Sheet.grid(spec.paper, names, note, _APART.replace(height=1.1, down=0.36))
    for row, column, ax in sheet:
        _line(ax, run, states[column], rays.index(shown[row]))
    sheet.label_sides(["loss"] * len(shown))
    sheet.label_below("distance from the state")
    for row, column, ax in sheet:
        ray = shown[row]
        bent = _number(run, states[column], f"{ray}_ray_curvature")
        words = f"{bent:.2g}".replace("-", "−")
        ax.set_title(f"{places[column]}, {ray}: u·Hu = {words}")
    drawn: list[DataFrame] = []
    for k in range(len(rays)):
        drawn.extend(_along_ray(state, k) for state in states)
    return sheet.page(suffix, *drawn)


def _line(ax: Axes, run: RecordedRun, state: StoredLosses, k: int) -> None:
    ray = state.names["rays"][k]
    t = state.numbers["distances"][k]
    losses = state.numbers["losses"][k]
    ax.plot(t, losses, color=_TRUE)
    ax.plot(t, state.numbers["expansions"][k], **_DASHED)
    _hold(ax, losses)
    for side, sign in ((1, 1), (2, -1)):
        departure = _number(run, state, f"{ray}_ray_departure", side)
        if np.isfinite(departure) and departure <= t[-1]:
            ax.axvline(sign * departure, color=GUIDE, linestyle=":", linewidth=0.8)


def _along_ray(state: StoredLosses, k: int) -> DataFrame:
    return _of_state(
        state,
        direction=state.names["rays"][k],
        distance=state.numbers["distances"][k],
        loss=state.numbers["losses"][k],
        expansion=state.numbers["expansions"][k],
    )


def _of_state(state: StoredLosses, **columns: Any) -> DataFrame:
    """Return numbers with the step, sigma and seed of their state before them."""
    place = {"step": state.step, "sigma": state.sigma, "seed": state.seed}
    return DataFrame({**place, **columns})


def _hold(ax: Axes, losses: NDArray[np.float64]) -> None:
    """Limit a panel to the range of these numbers. An expansion, and a run that diverges, may leave the panel."""
    finite = losses[np.isfinite(losses)]
    if not finite.size or np.ptp(finite) == 0:
        return
    inner = np.quantile(finite, _INNER)
    drawn = inner if np.ptp(finite) > _FAR * np.ptp(inner) > 0 else finite
    room = _ROOM * float(np.ptp(drawn))
    ax.set_ylim(float(drawn.min()) - room, float(drawn.max()) + room)


def _number(
    run: RecordedRun, state: StoredLosses, quantity: str, index: int | None = None
) -> float:
    rows = where(
        run.table,
        quantity=quantity,
        variant=state.variant,
        num_layers=state.num_layers,
        seed=state.seed,
        step=state.step,
        sigma=state.sigma,
    )
    if index is not None:
        rows = where(rows, index=index)
    return float(rows["value"].iloc[0]) if len(rows) else math.nan


def _plane_page(
    spec: FigureSpec, run: RecordedRun, states: Sequence[StoredLosses], suffix: str
) -> Page:
    names = [[f"plane:{state.where or 'state'}" for state in states]]
    note = f"Colours and solid: loss, first seed ({states[0].seed}); dashed: second order, same levels.{_setting(run)} "
    note += f"Red: second order off by {_share(run)} along rays from the state (black)."
    sheet = Sheet.grid(spec.paper, names, note, _APART.replace(height=2.2))
    drawn = [_plane(ax, states[column]) for _, column, ax in sheet]
    first, second = (_RAYS.get(ray, ray) for ray in states[0].names["plane_rays"])
    sheet.label(
        f"along the first: {first}",
        [state.where for state in states],
        [f"along the second: {second}"],
    )
    return sheet.page(suffix, *drawn)


def _plane(ax: Axes, state: StoredLosses) -> DataFrame:
    x, y = state.numbers["plane_places"]
    losses = state.numbers["plane_losses"]
    expansions = state.numbers["plane_expansions"]
    finite = losses[np.isfinite(losses)]
    if not finite.size or np.ptp(finite) == 0:
        say(ax, "the loss is constant, or not finite")
    else:
        levels = np.linspace(float(finite.min()), float(finite.max()), _LEVELS)
        ax.contourf(x, y, losses, levels, cmap="Blues_r", alpha=0.8)
        ax.contour(x, y, losses, levels, colors=_TRUE, linewidths=0.5, linestyles="-")
        ax.contour(
            x, y, expansions, levels, colors=_MODEL, linewidths=0.5, linestyles="--"
        )
    ax.plot(*state.numbers["plane_edge"], ".", color=_OTHER, markersize=3.5)
    ax.plot(0, 0, "o", color="black", markersize=3)
    ax.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
    return _of_state(
        state,
        first=np.tile(x, len(y)),
        second=np.repeat(y, len(x)),
        loss=losses.ravel(),
        expansion=expansions.ravel(),
    )


def _searches(table: DataFrame) -> DataFrame:
    """Return one row per search: loss, index, gradient, status."""
    rows = table[
        table["quantity"].str.startswith("critical_")
        & (table["estimator"] == "least squares")
    ]
    keys = ["variant", "num_layers", "sigma", "step", "seed", "status"]
    named = rows.assign(quantity=rows["quantity"].str.removeprefix("critical_"))
    wide = named.pivot_table("value", keys, "quantity", dropna=False, aggfunc="first")
    return wide.dropna(how="all").reset_index().rename_axis(columns=None)


def _draw_searches(ax: Axes, points: DataFrame, name: str) -> None:
    tones = itertools.cycle(TONES)
    for (step, here), tone in zip(
        points.groupby("step", dropna=False), tones, strict=False
    ):
        for is_found, fill in ((True, "full"), (False, "none")):
            dots = here[(here["status"] == "ok") == is_found]
            label = None
            if len(dots) and (is_found or not (here["status"] == "ok").any()):
                label = f"{step:g}"
            ax.plot(
                dots["loss"],
                dots[name],
                "o",
                color=tone,
                label=label,
                fillstyle=fill,
                markersize=4,
                markeredgewidth=0.7,
                linestyle="none",
            )
    if name == "gradient":
        set_decades(ax, "y")
    else:
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))


def _rate(course: StoredLosses) -> float:
    return float(settings_of(course.variant).get(RATE, math.nan))


def _descent_page(
    spec: FigureSpec, run: RecordedRun, courses: Sequence[StoredLosses], suffix: str
) -> Page:
    style = _OWN_Y.replace(height=1.1, down=0.32)
    columns = min(_ABREAST, style.columns(spec.paper))
    names = in_rows([f"loss:{_rate(course):g}" for course in courses], columns)
    place = f" From {courses[0].where}." if courses[0].where else ""
    note = f"{_note(run, courses[0])}{place} Dotted: the horizon, off by {_share(run)} of the loss's largest change."
    sheet = Sheet.grid(spec.paper, names, note, style.replace(most=columns))
    for row, column, ax in sheet:
        course = courses[row * columns + column]
        _draw_descent(ax, run, course)
        ax.set_title(f"learning rate {_rate(course):g} × 2/λ")
    sheet.label_sides(["loss"] * len(names))
    sheet.label_below("step")
    return sheet.page(suffix, *map(_written, courses))


def _draw_descent(ax: Axes, run: RecordedRun, course: StoredLosses) -> None:
    ax.plot(course.numbers["losses"], color=_TRUE)
    ax.plot(course.numbers["model_losses"], **_DASHED)
    _hold(ax, course.numbers["losses"])
    horizon = _number(run, course, "descent_horizon")
    if np.isfinite(horizon):
        ax.axvline(horizon, color=GUIDE, linestyle=":", linewidth=0.8)


def _written(walk: StoredLosses) -> DataFrame:
    numbers = DataFrame({name: Series(array) for name, array in walk.numbers.items()})
    head = {
        "start": walk.step,
        "sigma": walk.sigma,
        "seed": walk.seed,
        "rate": _rate(walk),
        "step": numbers.index,
    }
    return concat([DataFrame(head), numbers], axis=1)


def _horizon_page(spec: FigureSpec, run: RecordedRun) -> Page:
    rows = where(run.table, quantity="descent_horizon")
    rows = rows.assign(
        rate=with_settings(rows, RATE, default="nan")[RATE].astype(float)
    )
    top = float(
        (run.config.get("directions") or {}).get(
            "steps", rows["value"].replace(np.inf, 1).max()
        )
    )
    off = f"the quadratic model's loss is off by {_share(run)} of the largest change"
    note = f"Dots, each one of {rows['seed'].nunique()} seeds: the first step at which {off}; triangles: not within "
    note += f"{top:g} steps.{_setting(run)}"
    sheet = Sheet.grid(
        spec.paper, [["horizon"]], note, SHARED.replace(height=1.9, top=0.3)
    )
    ax = sheet.first
    set_decades(ax, "x")
    set_decades(ax, "y")
    for (step, here), tone in zip(
        rows.groupby("step", dropna=False), itertools.cycle(TONES), strict=False
    ):
        inside = here[np.isfinite(here["value"])]
        beyond = here[np.isposinf(here["value"])]
        style: dict[str, Any] = {
            "color": tone,
            "linestyle": "none",
            "ms": 4,
            "markeredgewidth": 0,
            "alpha": 0.7,
        }
        ax.plot(
            inside["rate"], inside["value"], "o", label=plain(f"step {step:g}"), **style
        )
        ax.plot(beyond["rate"], [1.3 * top] * len(beyond), "^", **style)
    ax.set_ylim(0.7, 1.8 * top)
    ax.legend(loc="lower left", title="from")
    sheet.label(
        "learning rate over 2 / largest eigenvalue",
        [""],
        ["steps within the model's reach"],
        [""],
    )
    return sheet.page(
        "_horizon", rows[["sigma", "step", "seed", "rate", "value", "status"]]
    )
