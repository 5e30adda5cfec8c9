"""Configuration: schema, checks, and the only doors to Hydra besides the command line."""

# ruff: noqa: F401 - names for others

from hessfig.config.enums import (
    MLP,
    Attention,
    AttentionBias,
    Curvature,
    Data,
    Direction,
    DType,
    Gate,
    Heading,
    Initialisation,
    Kind,
    Launcher,
    Loss,
    MaskedAs,
    Method,
    Norm,
    NormKind,
    Positions,
    Probes,
    Products,
    QueryKey,
    Ray,
    Reuse,
    ScaledWeight,
    Schedule,
    Scored,
    Scores,
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
    CompressionConfig,
    DirectionsConfig,
    EstimatorConfig,
    GridConfig,
    LandscapeConfig,
    ModelConfig,
    SpectrumConfig,
    StateConfig,
    TaskConfig,
    TrainingConfig,
)
from hessfig.terms import Optimiser
