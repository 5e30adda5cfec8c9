"""Critical points: where the gradient vanishes, found by least squares from a state, and the index of the Hessian."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import root
from torch import Tensor

from hessfig.curvature.problem import Objective
from hessfig.curvature.spectral.densities import eigenvalues
from hessfig.measurements.directions.loss_surface import Surface
from hessfig.measurements.quantity import Estimate, Measured, Request
from hessfig.measurements.training_dynamics import state_row

Array = NDArray[np.float64]
_FIRST = 0.1  # how long the first step may be beside |w0|, the least that MINPACK takes
_ENDS = 1e-15  # relative changes of |g|^2 and w at which a search stops: rounding


def critical_points(problem: Objective, request: Request) -> Measured:
    """Return what a search for a critical point from the state has found: Levenberg-Marquardt on |grad L|^2.

    The Jacobian of the gradient is the whole Hessian (scipy.optimize.root, MINPACK's lmder).
    `critical_gradient`: |g| in the end; `critical_loss`; `critical_index`: how many eigenvalues are below minus
    spectrum.cut times the largest in size; `critical_flat`: how many lie within that; `critical_distance`: |w - w0|
    from the state w0; `critical_start`: the loss there. All have the status not_converged where |g| is above
    directions.tolerance: such a point (a local minimum of |g|^2, or one that was not reached) is no critical point.
    Array: `eigenvalues`, rising, at the point found.
    """
    surface = Surface(problem, request.model, request.estimator.products)
    end = _searched(surface, request.at.config.directions.evaluations)
    values, norm = eigenvalues(surface.hessian(end)), float(surface.at(end).gradient.norm())
    cut = request.spectrum.cut * float(values.abs().max())
    found = {
        "gradient": norm,
        "loss": surface.loss(end),
        "index": float((values < -cut).sum()),
        "flat": float((values.abs() <= cut).sum()),
        "distance": float((end - surface.start).norm()),
        "start": surface.loss(surface.start),
    }
    is_found = norm <= request.at.config.directions.tolerance
    made = {name: Estimate(one, 0.0, 0, "least squares", is_rough=not is_found) for name, one in found.items()}
    rows = [state_row(f"critical_{name}", request, one) for name, one in made.items()]
    return Measured(rows, {"eigenvalues": values.numpy()})


def _searched(surface: Surface, evaluations: int) -> Tensor:
    """Return where the search ends; the state itself where its gradient or Hessian is not finite."""
    start = surface.start.numpy()
    same = {"diag": np.ones_like(start)}  # MINPACK's own scaling takes giant steps along flat directions
    options = {"xtol": _ENDS, "ftol": _ENDS, "gtol": _ENDS, "factor": _FIRST, "maxiter": evaluations, **same}

    def gradient(w: Array) -> Array:
        found: Array = surface.at(torch.from_numpy(w)).gradient.numpy()
        return found

    def hessian(w: Array) -> Array:
        found: Array = surface.hessian(torch.from_numpy(w)).numpy()
        return found

    if not (np.isfinite(gradient(start)).all() and np.isfinite(hessian(start)).all()):
        return surface.start
    return torch.from_numpy(root(gradient, start, jac=hessian, method="lm", options=options).x)
