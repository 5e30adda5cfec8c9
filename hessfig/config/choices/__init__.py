"""The values a setting may take, for settings that are a choice."""

from hessfig.config.choices.measuring import DType, Launcher, Method, Probes, Products, Spacing
from hessfig.config.choices.network import (
    FOREIGN,
    MLP,
    Attention,
    Data,
    Initialisation,
    Kind,
    Loss,
    Norm,
    QueryKey,
    ScaledWeight,
    Scored,
    SigmaScales,
    Sink,
    State,
)
from hessfig.config.choices.reading import Average, FigureGroup, Format, Published, Style
from hessfig.config.choices.training import Curvature, Direction, Optimiser, Schedule, TrainingData

__all__ = [
    "FOREIGN",
    "MLP",
    "Attention",
    "Average",
    "Curvature",
    "DType",
    "Data",
    "Direction",
    "FigureGroup",
    "Format",
    "Initialisation",
    "Kind",
    "Launcher",
    "Loss",
    "Method",
    "Norm",
    "Optimiser",
    "Probes",
    "Products",
    "Published",
    "QueryKey",
    "ScaledWeight",
    "Schedule",
    "Scored",
    "SigmaScales",
    "Sink",
    "Spacing",
    "State",
    "Style",
    "TrainingData",
]
