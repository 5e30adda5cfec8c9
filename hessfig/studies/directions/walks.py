"""Walks over the loss surface: gradient descent and its quadratic model, and searches for critical points."""

import math
from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import root
from torch import Tensor

from hessfig.curvature.problem import Objective
from hessfig.curvature.spectral.densities import eigenvalues
from hessfig.curvature.spectral.extremes import End
from hessfig.curvature.spectral.lanczos import NotFinite
from hessfig.measurements.quantity import Measured, Request, exact, state_rows
from hessfig.studies.directions.loss_surface import ExpansionRule, Surface
from hessfig.terms import Group


def descent(objective: Objective, request: Request) -> Measured:
    """Return how long the quadratic model follows full-batch gradient descent from the state.

    eta = directions.rate * 2 / lambda, lambda the largest eigenvalue of H at the state
    w_0. The run is w_{t+1} = w_t - eta g(w_t), the model's v_{t+1} = v_t - eta (g + H
    (v_t - w_0)), with g and H of the state, so that v_t = w_0 - sum_{k < t} (I - eta
    H)^k eta g. `descent_rate`: eta. `descent_horizon`: the first step at which the
    model's loss Q(v_t) has departed from L(w_t) (see ExpansionRule); infinite where it
    has not within directions.steps. `descent_run_curvature` and
    `descent_line_curvature`: medians over steps of two estimates from losses alone,
    each over the true s.H(w_t) s / |s|^2 with s = w_{t+1} - w_t: of three losses of the
    run, (L_{t+1} - 2 L_t + L_{t-1}) / (2 |w_{t+1} - w_t| |w_t - w_{t-1}|), and of three
    on the line of the step, (L(w_t + s) - 2 L_t + L(w_t - s)) / |s|^2. The 2 of the
    first: along a gradient flow d^2 L / dt^2 = 2 g.H g. Arrays over steps: `losses`,
    `model_losses`, `distances` |w_t - w_0|, `model_distances`, `gaps` |w_t - v_t|;
    `curvatures` (true), `run_curvatures`, `line_curvatures`, one fewer, the first of
    the run NaN.
    """
    surface = Surface(objective, request.model, request.estimator.products)
    settings = request.at.config.directions
    largest, converged = _largest_eigenvalue(surface, request)
    rate = settings.rate * 2 / largest if largest > 0 else math.nan
    course = _course(surface, rate, settings.steps)
    rule = ExpansionRule(settings.departure, surface.rounding, surface.size)
    horizon = math.nan
    if math.isfinite(rate):
        horizon = rule.horizon(course["losses"], course["model_losses"])
    numbers = {
        "rate": rate,
        "horizon": horizon,
        "run_curvature": _ratio(course["run_curvatures"], course["curvatures"]),
        "line_curvature": _ratio(course["line_curvatures"], course["curvatures"]),
    }
    estimates = {
        f"descent_{name}": exact(one, "descent", is_unreliable=not converged)
        for name, one in numbers.items()
    }
    return Measured(
        state_rows(request, estimates),
        {name: np.array(one) for name, one in course.items()},
    )


def _course(surface: Surface, rate: float, steps: int) -> dict[str, list[float]]:
    """Return the arrays over steps, by name."""
    start = surface.at(surface.start)
    course = defaultdict[str, list[float]](list)
    sizes = list[float]()
    w = surface.start
    away = torch.zeros_like(surface.start)
    for step in range(steps + 1):
        here = surface.at(w)
        bent = start.product(away)
        course["losses"].append(here.loss)
        course["model_losses"].append(
            start.loss + float(start.gradient @ away + away @ bent / 2)
        )
        course["distances"].append(float((w - surface.start).norm()))
        course["model_distances"].append(float(away.norm()))
        course["gaps"].append(float((w - surface.start - away).norm()))
        if step == steps:
            break
        move = -rate * here.gradient
        size = float(move.norm())
        ahead = surface.loss(w + move)
        sizes.append(size)
        course["curvatures"].append(_over(float(move @ here.product(move)), size**2))
        course["line_curvatures"].append(
            _over(ahead - 2 * here.loss + surface.loss(w - move), size**2)
        )
        w, away = w + move, away - rate * (start.gradient + bent)
    return {**course, "run_curvatures": _run_curvatures(course["losses"], sizes)}


def _run_curvatures(losses: list[float], sizes: list[float]) -> list[float]:
    """Return second differences of the losses of the run over twice the product of the two step lengths."""
    seconds = np.diff(losses, n=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        curvatures = seconds / (2 * np.multiply(sizes[1:], sizes[:-1]))
    return [math.nan, *curvatures.tolist()]


def _over(number: float, by: float) -> float:
    return number / by if by else math.nan


def _ratio(estimated: list[float], true: list[float]) -> float:
    """Return the median over steps of the ratio of an estimated to the true curvature, where both are finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.divide(estimated, true)
    finite = ratios[np.isfinite(ratios)]
    return float(np.median(finite)) if finite.size else math.nan


def _largest_eigenvalue(surface: Surface, request: Request) -> tuple[float, bool]:
    try:
        extremes = surface.extreme(
            End.largest, request.spectrum, request.stream(0, Group.all.value)
        )
    except NotFinite:
        return math.nan, False
    return float(extremes.values[0]), extremes.converged


Array = NDArray[np.float64]
_FIRST = (
    0.1  # largest length of the first step over |w0|; MINPACK allows no smaller value
)
_ENDS = 1e-15  # relative changes of |g|^2 and w at which a search stops: rounding


def critical_points(objective: Objective, request: Request) -> Measured:
    """Return the result of a search for a critical point from the state, by Levenberg-Marquardt on |grad L|^2.

    The Jacobian of the gradient is the whole Hessian (scipy.optimize.root, MINPACK's
    lmder). `critical_gradient`: |g| in the end; `critical_loss`; `critical_index`: how
    many eigenvalues are below minus spectrum.cut times the largest in size;
    `critical_flat`: how many lie within that; `critical_distance`: |w - w0| from the
    state w0; `critical_start`: the loss there. All have the status not_converged where
    |g| is above directions.tolerance: such a point (a local minimum of |g|^2, or one
    that was not reached) is not a critical point. Array: `eigenvalues`, rising, at the
    point found.
    """
    surface = Surface(objective, request.model, request.estimator.products)
    end = _searched(surface, request.at.config.directions.evaluations)
    values = eigenvalues(surface.hessian(end))
    norm = float(surface.at(end).gradient.norm())
    cut = request.spectrum.cut * float(values.abs().max())
    numbers = {
        "gradient": norm,
        "loss": surface.loss(end),
        "index": float((values < -cut).sum()),
        "flat": float((values.abs() <= cut).sum()),
        "distance": float((end - surface.start).norm()),
        "start": surface.loss(surface.start),
    }
    is_found = norm <= request.at.config.directions.tolerance
    named = {
        f"critical_{name}": exact(one, "least squares", is_unreliable=not is_found)
        for name, one in numbers.items()
    }
    return Measured(state_rows(request, named), {"eigenvalues": values.numpy()})


def _searched(surface: Surface, evaluations: int) -> Tensor:
    """Return the end point of the search, or the state itself if its gradient or Hessian is not finite."""
    start = surface.start.numpy()
    # MINPACK's own scaling takes giant steps along flat directions.
    same = {"diag": np.ones_like(start)}
    options = {
        "xtol": _ENDS,
        "ftol": _ENDS,
        "gtol": _ENDS,
        "factor": _FIRST,
        "maxiter": evaluations,
        **same,
    }

    def gradient(w: Array) -> Array:
        slope: Array = surface.at(torch.from_numpy(w)).gradient.numpy()
        return slope

    def hessian(w: Array) -> Array:
        matrix: Array = surface.hessian(torch.from_numpy(w)).numpy()
        return matrix

    if not (np.isfinite(gradient(start)).all() and np.isfinite(hessian(start)).all()):
        return surface.start
    return torch.from_numpy(
        root(gradient, start, jac=hessian, method="lm", options=options).x
    )
