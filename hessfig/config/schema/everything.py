"""Everything a verb may be told, with a line of help for every setting."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from hessfig.config.choices import DType, Reuse, Style
from hessfig.config.schema.experiment import FigureConfig, SweepConfig
from hessfig.config.schema.landscape import LandscapeConfig
from hessfig.config.schema.launcher import LauncherConfig
from hessfig.config.schema.measuring import EstimatorConfig, GridConfig
from hessfig.config.schema.network import ModelConfig, StateConfig, TaskConfig
from hessfig.config.schema.spectrum import SpectrumConfig
from hessfig.config.schema.training import TrainingConfig
from hessfig.terms import Part


@dataclass
class Config:
    """Everything a verb may be told; every field is a command-line override."""

    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    state: StateConfig = field(default_factory=StateConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    spectrum: SpectrumConfig = field(default_factory=SpectrumConfig)
    landscape: LandscapeConfig = field(default_factory=LandscapeConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    figure: FigureConfig = field(default_factory=FigureConfig)
    quantities: Annotated[list[str], "what is measured: frobenius, trace, spectrum, density, ..."] = field(
        default_factory=lambda: ["frobenius"]
    )
    blocks: Annotated[
        Any, "blocks of the Hessian: [W_V, [W_Q, W_V]]", "all, or a list of weights and pairs"
    ] = field(default_factory=lambda: ["W_V", "W_Q"])
    parts: Annotated[list[Part], "parts of the Hessian: full, outer-product, functional"] = field(
        default_factory=lambda: [Part.H_o, Part.H_f, Part.H]
    )
    seeds: Annotated[int, "number of initialisations"] = 20
    first_seed: Annotated[int, "the first of their seeds; the others follow it"] = 1234
    dtype: Annotated[DType, "floating-point type of networks and products"] = DType.float64
    device: Annotated[str, "cpu, cuda or cuda:N"] = "cpu"
    workers: Annotated[Any, "worker processes; auto: one a core", "auto or a whole number"] = "auto"
    force_workers: Annotated[bool, "take more workers than there are cores"] = False
    shard: Annotated[
        str | None, "measure a share of the cells only: 2/8 is the second of eight", "K/N or null"
    ] = None
    output_dir: Annotated[str, "folder of all results"] = "outputs"
    memory: Annotated[str, "for task=tokens, what the products of a worker may take: its micro-batches"] = (
        "8GB"
    )
    reuse: Annotated[
        Reuse,
        "for model.factory, which finished cells are reused: those of networks that it still returns (content: it is "
        "called for each), or of unchanged code (sources: for factories that take long)",
    ] = Reuse.content
    dry_run: Annotated[bool, "say what would be done, and do nothing"] = False
    yes: Annotated[bool, "remove what `clean` lists without asking"] = False
    config_dir: Annotated[str | None, "set by --config-dir"] = None
    reference: Annotated[
        str | None, "published values: a CSV file, or a folder of the authors' result files"
    ] = None
    single_file: Annotated[bool, "the report as one file to mail, in place of a folder of pages"] = False
    tolerance: Annotated[float, "how far a slope may be from its prediction"] = 0.1
    resamples: Annotated[int, "bootstrap resamples behind a slope's error"] = 2000
    levels: Annotated[
        bool, "in place of slopes, mean levels in each window and how they go with settings"
    ] = False
    quantity: Annotated[
        str | None,
        "fit this quantity of the table; null: frobenius where it was measured, else the only one there is",
        "a name or null",
    ] = None
    rows: Annotated[Any, "print blocks of these row weights only: W_Q, or [W_Q, W_V]", "a name or a list"] = (
        None
    )
    part: Annotated[Any, "print these parts only: H_o, or [H_o, H]", "a part or a list"] = None
    style: Annotated[Style, "type and width of figures: our own, or a conference's"] = Style.default
