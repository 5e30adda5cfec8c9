"""Configuration: schema, checks, and the only doors to Hydra beside the command line."""

# ruff: noqa: F401 - names for others

from hessfig.config.enums import (
    MLP,
    Attention,
    Curvature,
    Data,
    Direction,
    DType,
    Initialisation,
    Kind,
    Launcher,
    Loss,
    Method,
    Norm,
    Optimiser,
    Probes,
    Products,
    QueryKey,
    Reuse,
    ScaledWeight,
    Schedule,
    Scored,
    SigmaScales,
    Sink,
    Spacing,
    State,
    TrainingData,
)
from hessfig.config.grid import sigma_values
from hessfig.config.schema import Config, FigureConfig, LauncherConfig, SweepConfig, with_defaults
from hessfig.config.science import (
    ApproximationConfig,
    EstimatorConfig,
    GridConfig,
    LandscapeConfig,
    ModelConfig,
    SpectrumConfig,
    StateConfig,
    TaskConfig,
    TrainingConfig,
)
