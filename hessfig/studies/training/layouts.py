"""The layouts of this study: races of rules, thresholds of stability, surviving heterogeneity."""

from hessfig.figures.parts import STEPS, FigureLayout

_HERE = "hessfig.studies.training"
LAYOUTS = {
    "steps": FigureLayout(f"{_HERE}.races:steps", (), (STEPS,)),
    "race": FigureLayout(f"{_HERE}.races:race_of_rules", ("reference",), (STEPS,)),
    "heterogeneity_trained": FigureLayout(
        f"{_HERE}.edges:heterogeneity_trained", ("quantity",), (STEPS,)
    ),
    "edge": FigureLayout(f"{_HERE}.edges:edge", ("quantity",), (STEPS,)),
}
