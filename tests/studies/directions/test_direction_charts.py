"""Slices, critical points and descents: their artists hold the stored numbers, and damage is refused."""

import hashlib
import json
import math

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.arrays import read_courses
from hessfig.errors import UserError
from hessfig.figures.parts.page import Paper, styled
from hessfig.figures.sheets import LAYOUTS, FigureSpec
from tests.analysis.synthetic import CONFIG, make_table, write_sweep

T = np.linspace(-1, 1, 5)
PLANE = {
    "plane_places": np.stack([T, 2 * T]),
    "plane_edge": np.array([[0.5, -0.5], [0.1, np.nan]]),
}
GRID = T[None, :] ** 2 - T[:, None] ** 2
SLICES = {
    "rays": ["largest", "random"],
    "plane_rays": ["largest", "random"],
    "distances": np.stack([T, 3 * T]),
    "losses": np.stack([T**2 + T**3, T]),
    "expansions": np.stack([T**2, T]),
    "plane_losses": GRID,
    "plane_expansions": GRID,
    **PLANE,
}
STEPS = np.arange(6.0)
DESCENT = {
    "losses": 6 - STEPS,
    "model_losses": 6 - STEPS**2,
    "distances": STEPS,
    "model_distances": 2 * STEPS,
    "gaps": STEPS,
    "curvatures": STEPS[1:],
    "run_curvatures": STEPS[1:],
    "line_curvatures": STEPS[1:],
}


def kept(folder, quantity, arrays, **place):
    """Write arrays as a sweep does and return their entry in the manifest."""
    said = {
        "variant": "",
        "num_layers": 1,
        "sigma": None,
        "step": 0,
        "seed": 1234,
        "quantity": quantity,
        **place,
    }
    path = folder / f"{hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays, label=json.dumps({"key": "k", **said}))
    return {
        **said,
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def rows(numbers, **place):
    """Return a table of numbers by (quantity, index)."""
    one = make_table(
        seeds=1, sigma=None, steps=[0], blocks=[("W_Q", "W_Q")], parts=["H"]
    )
    whole = {
        "row": "",
        "col": "",
        "part": "",
        "layer": 0,
        "row_layer": 0,
        "status": "ok",
        **place,
    }
    made = [
        one.assign(quantity=name, index=index or 0, value=value, **whole)
        for (name, index), value in numbers.items()
    ]
    return pd.concat(made, ignore_index=True)


def pages(layout, folder):
    spec = FigureSpec(layout, folder.name, layout, [(None, None)], {}, paper=Paper())
    with styled(spec.paper):
        return list(LAYOUTS[layout].draw(spec, folder))


def test_slices_draw_losses_expansions_and_departures(tmp_path):
    numbers = {
        ("largest_ray_departure", 1): 0.4,
        ("largest_ray_departure", 2): 0.6,
        ("largest_ray_curvature", None): 2,
    }
    table = rows(numbers)
    entry = kept(tmp_path / "sigma", "slices", SLICES)
    lines, plane = pages(
        "slices", write_sweep(table, tmp_path, settings=CONFIG, arrays=[entry])
    )
    drawn = lines.figure.axes[0].lines
    np.testing.assert_array_equal(
        drawn[0].get_xydata(), np.stack([T, T**2 + T**3], axis=1)
    )
    np.testing.assert_array_equal(drawn[1].get_ydata(), T**2)
    assert [line.get_xdata()[0] for line in drawn[2:]] == [0.4, -0.6]
    assert lines.figure.axes[0].get_title().endswith("largest: u·Hu = 2")
    edge, state = plane.figure.axes[0].lines
    np.testing.assert_array_equal(edge.get_xydata(), PLANE["plane_edge"].T)
    np.testing.assert_array_equal(state.get_xydata(), [[0, 0]])
    np.testing.assert_array_equal(plane.numbers["loss"], GRID.ravel())


def test_critical_points_tell_what_was_found_from_what_was_not(tmp_path):
    searches = [
        rows(
            {
                ("critical_loss", None): 1.0,
                ("critical_index", None): 7,
                ("critical_gradient", None): 1e-12,
            }
        ),
        rows(
            {
                ("critical_loss", None): 2.0,
                ("critical_index", None): 9,
                ("critical_gradient", None): 1e-3,
            },
            **{"seed": 1235, "status": "not_converged"},
        ),
    ]
    table = pd.concat(searches).assign(estimator="least squares")
    (page,) = pages("critical_points", write_sweep(table, tmp_path, settings=CONFIG))
    found, lost = page.figure.axes[0].lines
    assert found.get_xydata().tolist() == [[1, 7]]
    assert found.get_fillstyle() == "full"
    assert lost.get_xydata().tolist() == [[2, 9]]
    assert lost.get_fillstyle() == "none"


def test_descents_draw_the_run_its_model_and_horizons(tmp_path):
    rates = (0.1, 0.5)
    horizons = (math.inf, 3.0)
    variants = [f"directions.rate={rate}" for rate in rates]
    tables = [
        rows(
            {("descent_horizon", None): value},
            variant=name,
            status="ok" if value < 9 else "nonfinite",
        )
        for name, value in zip(variants, horizons, strict=True)
    ]
    entries = [
        kept(tmp_path / "sigma", "descent", DESCENT, variant=name) for name in variants
    ]
    settings = {**CONFIG, "directions": {"steps": 5, "departure": 0.1, "rate": 0.5}}
    folder = write_sweep(pd.concat(tables), tmp_path, settings=settings, arrays=entries)
    courses, summary = pages("trajectories", folder)
    drawn = courses.figure.axes[1].lines
    np.testing.assert_array_equal(drawn[0].get_ydata(), 6 - STEPS)
    np.testing.assert_array_equal(drawn[1].get_ydata(), 6 - STEPS**2)
    assert drawn[-1].get_xdata()[0] == 3
    assert len(courses.figure.axes[0].lines) == 2  # no horizon
    inside, beyond = summary.figure.axes[0].lines
    assert inside.get_xydata().tolist() == [[0.5, 3]]
    assert beyond.get_xydata().tolist() == [[0.1, 6.5]]


@pytest.mark.parametrize(
    "damage",
    [
        {"losses": T},
        {"rays": ["largest"]},
        {"plane_places": GRID},
        {"distances": T.astype(np.float32)},
    ],
    ids=str,
)
def test_arrays_of_another_form_are_refused(damage, tmp_path):
    entry = kept(tmp_path / "sigma", "slices", SLICES | damage)
    folder = write_sweep(
        rows({("flat_directions", None): 1}), tmp_path, settings=CONFIG, arrays=[entry]
    )
    with pytest.raises(UserError, match="not a stored slice"):
        read_courses(folder, "slices")


def test_a_table_without_searches_is_refused(tmp_path):
    folder = write_sweep(make_table(seeds=1), tmp_path, settings=CONFIG)
    with pytest.raises(UserError, match="the table has none"):
        pages("critical_points", folder)
