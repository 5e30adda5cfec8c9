"""The configuration schema: every setting of a command, with its facts.

Those that make other numbers are in hessfig.config.science and
hessfig.config.training_settings. A setting is `setting(default, a line of help, ...)`,
a group `group(its class, the role of its settings)`; see hessfig.config.facts for what
a setting may state. A new setting needs no other entry.
"""

from dataclasses import dataclass, fields
from typing import Any

from hessfig.config import enums
from hessfig.config.facts import (
    Role,
    are_predictions,
    are_windows,
    group,
    is_names,
    is_workers,
    setting,
)
from hessfig.config.of_quantities import (
    ApproximationConfig,
    CompressionConfig,
    DirectionsConfig,
    LandscapeConfig,
)
from hessfig.config.science import (
    EstimatorConfig,
    GridConfig,
    ModelConfig,
    SpectrumConfig,
    TaskConfig,
)
from hessfig.config.training_settings import StateConfig, TrainingConfig
from hessfig.terms import PARTS, Part

MOST_SHARDS = 100_000
SIZE = r"(?i)([1-9]\d{0,8})\s?([KMGT])B?"
_TIME = r"[1-9]\d{0,6}|(?=.*[1-9])(\d{1,3}-)?\d{1,3}:[0-5]\d:[0-5]\d"  # 0 is no limit to Slurm
_WORD, _NAMED = r"[\w.,@+:-]+", "a name as Slurm has it, without blanks"
_SLURM = "launcher.kind=slurm"
_NAMES: Any = {"passes": is_names, "allowed": "a name or a list of names"}


def with_defaults(model: ModelConfig) -> ModelConfig:
    """Return `model` with d_head and d_mlp resolved to numbers; d_mlp of kind mlp needs its task (kinds.mlp)."""
    d_head = model.d_head or model.d_model // model.n_heads
    d_mlp = model.d_mlp or (None if model.kind == enums.Kind.mlp else 4 * model.d_model)
    return ModelConfig(**{**vars(model), "d_head": d_head, "d_mlp": d_mlp})


@dataclass
class SweepConfig:
    """A sweep: its name, a description, what it varies besides sigma, and the windows of the fits (null: open).

    `vary` maps a dotted key to a list of values (or one), unless the command line gives
    that key. `axis` is what curves run along: sigma, step, or a varied setting such as
    model.d_model.
    """

    name: str = setting(
        "sigma", "name of the sweep, and of its folder in output_dir", role=Role.label
    )
    about: str = setting("", "a line about it", role=Role.label)
    vary: dict[str, Any] = setting(
        {},
        "settings it varies in addition to sigma, in every combination: {model.n_heads: [1, 2], ...}",
        "{setting: values}",
        role=Role.extent,
    )
    variants: list[Any] = setting(
        [],
        "networks that change a few settings each: [{}, {model.scores: cosine}, ...]; empty: one that changes none",
        "a list of {setting: value}",
        role=Role.extent,
        passes=lambda value: True,
        example="'[{}, {model.scores: cosine}]'",
    )
    axis: str = setting(
        "sigma",
        "what curves run along: sigma, step, index (k), or a varied setting",
        role=Role.extent,
    )
    windows: list[Any] = setting(
        [[None, 1.0]],
        "ranges of the axis that slopes are fitted on; null: open",
        "a list of [low, high]",
        role=Role.fit,
        passes=are_windows,
        why=": a window is two sigmas, low before high",
        allowed="[low, high], null for an open end",
        example="'[[null,1]]'",
    )
    predictions: dict[str, Any] = setting(
        {},
        "exponents that `slopes` and `check` compare with, in place of theory's: {W_Q: {H: 5}, 'W_Q,W_V': {H_f: zero}}",
        "{block: {part: exponent}}",
        role=Role.fit,
        passes=are_predictions,
        why=": an exponent is a number, or zero",
        allowed="{block: {part: exponent}}, zero for a block that vanishes",
        example="'{W_Q: {H: 5}}'",
    )
    average: enums.Average = setting(
        enums.Average.arithmetic,
        "whose logarithm slopes are fitted to: the mean over seeds, or the geometric mean",
        role=Role.fit,
    )


@dataclass
class FigureConfig:
    """A figure: which sweep it draws, in which layout, and its place in the gallery (`group`, `order`).

    `x`, `colour` and `dashes` name sigma, step, layer, part or a varied setting, for
    layouts that take them. `published` says what the authors published of it, hence
    whether `compare` can serve.
    """

    name: str = setting("", "name of the figure and of its files")
    sweep: str = setting("sigma", "the sweep it draws")
    layout: str = setting("", "how it is laid out")
    group: enums.FigureGroup = setting(
        enums.FigureGroup.own,
        "its group: in the paper, beyond it, a study, or your own",
    )
    order: int = setting(100, "its place in `make figures`")
    published: enums.Published = setting(
        enums.Published.nothing, "what the authors published of it"
    )
    x: str | None = setting(
        None, "what runs along its x axis: sigma, step, or a varied setting"
    )
    colour: str | None = setting(None, "what colours distinguish")
    dashes: str | None = setting(None, "what dashes and marks distinguish")
    where: dict[str, Any] = setting(
        {}, "which numbers to draw: {sigma: [0.1, 1], model.n_heads: 2}; empty: all"
    )
    width: float | None = setting(
        None,
        "inches, with type of 7 points and more; null: the style's (default 5.5)",
        least=2,
        most=20,
        why=" is in inches",
        allowed="2 to 20, or null",
        example="3.25, a column of two, or figure.width=6.75",
    )
    panels: list[str] = setting(
        [],
        "panels to draw, such as [W_V:H_o, W_Q:H]; empty: all (a name that is none lists them)",
        once=True,
        allowed="names of panels",
        example="[W_V:H_o]",
    )
    title: str | None = setting(None, "a line above the panels")
    xlabel: str | None = setting(
        None, "label of the x axes that have one; null: the layout's"
    )
    ylabel: str | None = setting(
        None, "label of the y axes that have one; null: the layout's"
    )
    legend: str | None = setting(
        None,
        "where legends are placed, or none; null: the layout's place",
        "a place or null",
        pattern="none|best|center|(upper|lower) (left|right|center)|center (left|right)",
        allowed="none, best, or a place such as 'upper left'",
        example="none",
    )
    note: bool = setting(
        True, "the note below the panels; false writes it to a .txt next to the figure"
    )
    formats: list[enums.Format] = setting(
        [enums.Format.pdf, enums.Format.png, enums.Format.svg],
        "files to write; the numbers are written as CSV next to them",
        once=True,
        example="[pdf]",
    )
    options: dict[str, Any] = setting({}, "options of the layout")


@dataclass
class LauncherConfig:
    """Who measures. All but `kind` are for kind slurm (submitit); what is null is left to the cluster's own defaults.

    None of them changes a number: the key of a cell knows nothing of them.
    """

    kind: enums.Launcher = setting(
        enums.Launcher.local,
        "workers of this machine, or the tasks of a Slurm job array",
    )
    tasks: int = setting(
        4,
        "tasks of the job array; each measures its share of the cells",
        least=1,
        most=MOST_SHARDS,
        example="1",
        where=_SLURM,
    )
    cpus_per_task: int = setting(
        1,
        "cores of a task; with workers=auto it has as many workers",
        least=1,
        most=10_000,
        where=_SLURM,
    )
    gpus: int = setting(
        0,
        "GPUs of a task (with device=cuda)",
        least=0,
        most=1_000,
        example="1",
        where=_SLURM,
    )
    memory: str | None = setting(
        None,
        "memory of a task: 16GB, 500MB",
        "a size or null",
        pattern=SIZE,
        allowed="a number with KB, MB, GB or TB",
        example="16GB",
        where=_SLURM,
    )
    time: str = setting(
        "4:00:00",
        "time limit of a task, which is then queued again: minutes, HH:MM:SS or D-HH:MM:SS",
        "a time",
        pattern=_TIME,
        allowed="minutes, HH:MM:SS or D-HH:MM:SS",
        example="1:30:00",
        where=_SLURM,
    )
    partition: str | None = setting(
        None,
        "partition of the cluster",
        pattern=_WORD,
        allowed=_NAMED,
        example="main",
        where=_SLURM,
    )
    account: str | None = setting(
        None,
        "account that is charged",
        pattern=_WORD,
        allowed=_NAMED,
        example="mine",
        where=_SLURM,
    )
    options: list[str] = setting(
        [],
        "more options of sbatch: '[\"--qos=short\"]'",
        pattern="--[a-z][a-z0-9-]*(=[ -~]*)?",
        why=": an option of sbatch is --NAME or --NAME=VALUE",
        allowed="a list of options",
        example="'[\"--qos=short\"]'",
        where=_SLURM,
    )
    wait: bool = setting(
        True,
        "wait with progress and collect; false: submit, return, and collect later",
        where=_SLURM,
    )


@dataclass
class Config:
    """All settings of a command; every field is a command-line override."""

    task: TaskConfig = group(TaskConfig, Role.science)
    model: ModelConfig = group(ModelConfig, Role.science)
    state: StateConfig = group(StateConfig, Role.science)
    training: TrainingConfig = group(TrainingConfig, Role.science)
    grid: GridConfig = group(GridConfig, Role.science)
    estimator: EstimatorConfig = group(EstimatorConfig, Role.science)
    spectrum: SpectrumConfig = group(SpectrumConfig, Role.science)
    landscape: LandscapeConfig = group(LandscapeConfig, Role.science)
    approximation: ApproximationConfig = group(ApproximationConfig, Role.science)
    directions: DirectionsConfig = group(DirectionsConfig, Role.science)
    compression: CompressionConfig = group(CompressionConfig, Role.science)
    launcher: LauncherConfig = group(LauncherConfig, Role.machine)
    sweep: SweepConfig = group(SweepConfig, Role.label)
    figure: FigureConfig = group(FigureConfig, Role.reading)
    quantities: list[str] = setting(
        ["frobenius"],
        "what is measured: frobenius, trace, spectrum, density, ...",
        role=Role.extent,
    )
    blocks: Any = setting(
        ["W_V", "W_Q"],
        "blocks of the Hessian: [W_V, [W_Q, W_V]]",
        "each, pairs, or a list of weights and pairs",
        role=Role.extent,
    )
    parts: list[Part] = setting(
        list(PARTS),
        "parts of the Hessian: full, outer-product, functional; H_oT and H_fT at the scores of query_key",
        role=Role.extent,
        once=True,
        allowed="a list of H, H_o, H_f; of H_oT, H_fT for blocks=[query_key]",
        example="[H]",
    )
    seeds: int = setting(20, "number of initialisations", role=Role.extent, least=1)
    first_seed: int = setting(
        1234, "the first of their seeds; the others follow it", role=Role.extent
    )
    dtype: enums.DType = setting(
        enums.DType.float64,
        "floating-point type of networks and products",
        role=Role.science,
    )
    device: str = setting("cpu", "cpu, cuda or cuda:N", role=Role.hardware)
    workers: Any = setting(
        "auto",
        "worker processes; auto: one per core; 0: the calling process measures",
        "auto or a whole number",
        role=Role.machine,
        passes=is_workers,
        allowed="auto or a whole number >= 0",
    )
    force_workers: bool = setting(
        False, "take more workers than there are cores", role=Role.machine
    )
    shard: str | None = setting(
        None,
        "measure a share of the cells only: 2/8 is the second of eight; auto: that of this task of a Slurm array",
        "K/N, auto or null",
        role=Role.command,
    )
    output_dir: str = setting("outputs", "folder of all results", role=Role.command)
    memory: str = setting(
        "8GB",
        "for task=tokens, what the products of a worker may take: its micro-batches",
        role=Role.means,
        where="task.data=tokens|masked_tokens",
    )
    reuse: enums.Reuse = setting(
        enums.Reuse.content,
        "for model.factory, which finished cells are reused: those of networks that it still returns (content: it is "
        "called for each), or of unchanged code (sources: for factories that take long)",
        role=Role.means,
        where="model.kind=python",
    )
    dry_run: bool = setting(
        False, "say what would be done, and do nothing", role=Role.command
    )
    config_dir: str | None = setting(None, "set by --config-dir", role=Role.flag)
    tolerance: float = setting(
        0.1, "how far a slope may be from its prediction", above=0
    )
    levels: bool = setting(
        False,
        "in place of slopes, mean levels in each window and how they go with settings",
    )
    quantity: str | None = setting(
        None,
        "fit this quantity of the table; null: frobenius where it was measured, else the only one there is",
        "a name or null",
    )
    rows: Any = setting(
        None,
        "print blocks of these row weights only: W_Q, or [W_Q, W_V]",
        "a name or a list",
        **_NAMES,
        example="W_Q or 'rows=[W_Q,W_V]'",
    )
    part: Any = setting(
        None,
        "print these parts only: H_o, or [H_o, H]",
        "a part or a list",
        **_NAMES,
        example="H_o or 'part=[H_o,H]'",
    )
    format: enums.Printed = setting(
        enums.Printed.table,
        "how rows are printed: predictions as csv; slopes as csv, json, latex or markdown; check and status as json",
    )
    powers_of: enums.PowersOf = setting(
        enums.PowersOf.sigma,
        "what predicted exponents are powers of: sigma, a weight's scale, or model.residual_scale",
    )
    style: enums.Style = setting(
        enums.Style.default, "type and width of figures: our own, or a conference's"
    )


# The groups: their settings have dotted keys, and a folder of files each in conf.
GROUPS = tuple(
    field.name for field in fields(Config) if isinstance(field.metadata["says"], Role)
)
