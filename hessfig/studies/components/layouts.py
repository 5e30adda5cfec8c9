"""The layouts of this study: exponents by component, and what the ratio of blocks means for training."""

from hessfig.figures.parts.figure_spec import STEPS, FigureLayout

_CHARTS = "hessfig.studies.components.component_charts"
LAYOUTS = {
    "components": FigureLayout(f"{_CHARTS}:components", ("quantity", "part")),
    "ratio_courses": FigureLayout(f"{_CHARTS}:ratio_courses", (), (STEPS,)),
    "sgd_gap": FigureLayout(f"{_CHARTS}:sgd_gap", (), (STEPS,)),
}
