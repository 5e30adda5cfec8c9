"""The configuration schema: every setting a verb may be told, with a line of help."""

from hessfig.config.schema.everything import Config
from hessfig.config.schema.experiment import FigureConfig, SweepConfig
from hessfig.config.schema.landscape import LandscapeConfig
from hessfig.config.schema.launcher import LauncherConfig
from hessfig.config.schema.measuring import EstimatorConfig, GridConfig
from hessfig.config.schema.network import ModelConfig, StateConfig, TaskConfig, with_defaults
from hessfig.config.schema.spectrum import SpectrumConfig
from hessfig.config.schema.training import TrainingConfig

__all__ = [
    "Config",
    "EstimatorConfig",
    "FigureConfig",
    "GridConfig",
    "LandscapeConfig",
    "LauncherConfig",
    "ModelConfig",
    "SpectrumConfig",
    "StateConfig",
    "SweepConfig",
    "TaskConfig",
    "TrainingConfig",
    "with_defaults",
]
