"""The layouts of this study: slices, critical points, gradient descent, and edges of stability in other norms."""

from hessfig.figures.parts.figure_spec import STEPS, FigureLayout, Requires

_CHARTS = "hessfig.studies.directions.direction_charts"
_POINTS = Requires("critical_points", ("critical_index",))
_EDGES = Requires("norm_sharpness", ("sharpness_edge",))
LAYOUTS = {
    "slices": FigureLayout(f"{_CHARTS}:slices", ()),
    "critical_points": FigureLayout(f"{_CHARTS}:critical_points", (), (_POINTS,)),
    "trajectories": FigureLayout(f"{_CHARTS}:trajectories", ()),
    "norm_edges": FigureLayout(f"{_CHARTS}:norm_edges", (), (STEPS, _EDGES)),
}
