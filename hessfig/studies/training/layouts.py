"""The layouts of this study: races of rules, batch sizes, thresholds of stability, surviving heterogeneity."""

from hessfig.figures.parts.figure_spec import STEPS, FigureLayout

_HERE = "hessfig.studies.training"
LAYOUTS = {
    "steps": FigureLayout(f"{_HERE}.races:steps", (), (STEPS,)),
    "race": FigureLayout(f"{_HERE}.races:race_of_rules", ("reference",), (STEPS,)),
    "critical_batch": FigureLayout(f"{_HERE}.edges:critical_batch", (), (STEPS,)),
    "heterogeneity_trained": FigureLayout(f"{_HERE}.edges:heterogeneity_trained", ("quantity",), (STEPS,)),
    "edge": FigureLayout(f"{_HERE}.edges:edge", ("quantity",), (STEPS,)),
}
