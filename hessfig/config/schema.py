"""The configuration schema: every setting a verb may be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hessfig.config.choices import (
    MLP,
    Attention,
    Average,
    Data,
    DType,
    FigureGroup,
    Loss,
    Method,
    Norm,
    Products,
    Published,
    QueryKey,
    Scored,
    SigmaScales,
    Spacing,
    State,
)
from hessfig.terms import Part


@dataclass
class TaskConfig:
    """The data: one batch, drawn once from `seed`, shared by every sigma and every repeat."""

    data: Data = Data.addition
    digits: int = 5
    batch_size: int = 64
    seed: int = 0
    loss: Loss = Loss.cross_entropy
    scored: Scored = Scored.answer


@dataclass
class ModelConfig:
    """The network. `d_head: null` means d_model / n_heads, `d_mlp: null` means 4 d_model.

    `kind` names a module of hessfig.models; `factory` (with its `options`) is for kind python.
    """

    kind: str = "transformer"
    n_layers: int = 1
    n_heads: int = 1
    d_model: int = 128
    d_head: int | None = None
    d_mlp: int | None = None
    attention: Attention = Attention.softmax
    attention_skip: bool = True
    norm: Norm = Norm.none
    mlp: MLP = MLP.relu
    query_key: QueryKey = QueryKey.separate
    temperature: float = 1.0
    sigma_scales: SigmaScales = SigmaScales.both
    factory: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class StateConfig:
    """The point of weight space: drawn anew for every sigma and seed, or loaded from the file `path`."""

    kind: State = State.initialised
    path: str | None = None


@dataclass
class GridConfig:
    """The values of sigma: `points` between `low` and `high`, or the explicit list `values`."""

    spacing: Spacing = Spacing.log
    low: float = 0.01
    high: float = 10.0
    points: int = 20
    values: list[float] | None = None


@dataclass
class EstimatorConfig:
    """How block norms are found, by whose products, and with how many probes (`auto`: at most; see variance_share)."""

    method: Method = Method.auto
    products: Products = Products.linearised
    num_probes: int = 20
    variance_share: float = 0.1


@dataclass
class SweepConfig:
    """A sweep: its name, a line about it, what it varies beside sigma, the windows slopes are fitted on (null: open).

    `vary` maps a dotted key to its values (several keys: every combination), unless the command line gives it.
    `axis` is what curves run along: sigma, step, or a varied setting such as model.d_model.
    """

    name: str = "sigma"
    about: str = ""
    vary: dict[str, list[Any]] = field(default_factory=dict)
    axis: str = "sigma"
    windows: list[Any] = field(default_factory=lambda: [[None, 1.0]])
    average: Average = Average.arithmetic


@dataclass
class FigureConfig:
    """A figure: which sweep it draws, in which layout, and where it stands in the gallery (`group`, `order`).

    `x`, `colour` and `dashes` name sigma, step, layer, part or a varied setting, for layouts that take them.
    `published` says what the authors published of it, hence whether `compare` can serve.
    """

    name: str = ""
    sweep: str = "sigma"
    layout: str = ""
    group: FigureGroup = FigureGroup.own
    order: int = 100
    published: Published = Published.nothing
    x: str | None = None
    colour: str | None = None
    dashes: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Config:
    """Everything a verb may be told; every field is a command-line override."""

    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    state: StateConfig = field(default_factory=StateConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    figure: FigureConfig = field(default_factory=FigureConfig)
    quantities: list[str] = field(default_factory=lambda: ["frobenius"])
    blocks: Any = field(default_factory=lambda: ["W_V", "W_Q"])
    parts: list[Part] = field(default_factory=lambda: [Part.H_o, Part.H_f, Part.H])
    seeds: int = 20
    first_seed: int = 1234
    dtype: DType = DType.float64
    device: str = "cpu"
    workers: Any = "auto"
    output_dir: str = "outputs"
    dry_run: bool = False
    config_dir: str | None = None
    reference: str | None = None
    tolerance: float = 0.1
    resamples: int = 2000


def with_defaults(model: ModelConfig) -> ModelConfig:
    """Return `model` with d_head and d_mlp resolved to numbers."""
    d_head = model.d_head or model.d_model // model.n_heads
    return ModelConfig(**{**vars(model), "d_head": d_head, "d_mlp": model.d_mlp or 4 * model.d_model})
