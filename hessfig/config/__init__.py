"""Configuration: schema, checks, and the only doors to Hydra beside the command line."""

from hessfig.config.choices import (
    MLP,
    Attention,
    Data,
    DType,
    Kind,
    Loss,
    Method,
    Norm,
    Products,
    QueryKey,
    Scored,
    SigmaScales,
    Spacing,
)
from hessfig.config.grid import sigma_values
from hessfig.config.schema import (
    Config,
    EstimatorConfig,
    FigureConfig,
    GridConfig,
    ModelConfig,
    SweepConfig,
    TaskConfig,
    with_defaults,
)

__all__ = [
    "MLP",
    "Attention",
    "Config",
    "DType",
    "Data",
    "EstimatorConfig",
    "FigureConfig",
    "GridConfig",
    "Kind",
    "Loss",
    "Method",
    "ModelConfig",
    "Norm",
    "Products",
    "QueryKey",
    "Scored",
    "SigmaScales",
    "Spacing",
    "SweepConfig",
    "TaskConfig",
    "sigma_values",
    "with_defaults",
]
