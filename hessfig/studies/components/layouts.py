"""The layouts of this study: exponents by component, and centred softmax before and after training."""

from hessfig.figures.parts import STEPS, FigureLayout

_CHARTS = "hessfig.studies.components.component_charts"
LAYOUTS = {
    "components": FigureLayout(f"{_CHARTS}:components", ("quantity", "part", "ratios")),
    "centred": FigureLayout(f"{_CHARTS}:centred", (), (STEPS,)),
}
