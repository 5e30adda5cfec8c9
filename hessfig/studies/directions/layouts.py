"""The layouts of this study: slices, critical points, and gradient descent."""

from hessfig.figures.parts import FigureLayout, Requires

_CHARTS = "hessfig.studies.directions.direction_charts"
_POINTS = Requires("critical_points", ("critical_index",))
LAYOUTS = {
    "slices": FigureLayout(f"{_CHARTS}:slices", ()),
    "critical_points": FigureLayout(f"{_CHARTS}:critical_points", (), (_POINTS,)),
    "trajectories": FigureLayout(f"{_CHARTS}:trajectories", ()),
}
