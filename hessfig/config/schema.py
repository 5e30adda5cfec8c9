"""The configuration schema: every setting a verb may be told, with a line of help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

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

    data: Annotated[Data, "where the batch comes from"] = Data.addition
    digits: Annotated[int, "digits of each number that is added; sequences have 3 digits + 3 tokens"] = 5
    batch_size: Annotated[int, "sequences in the batch"] = 64
    seed: Annotated[int, "seed of the batch, the same for every network"] = 0
    loss: Annotated[Loss, "the loss; mse_sum_unshifted is the published code's sum of squares"] = (
        Loss.cross_entropy
    )
    scored: Annotated[Scored, "positions whose next token enters the loss"] = Scored.answer


@dataclass
class ModelConfig:
    """The network. `d_head: null` means d_model / n_heads, `d_mlp: null` means 4 d_model.

    `kind` names a module of hessfig.models; `factory` (with its `options`) is for kind python.
    """

    kind: Annotated[str, "kind of network: a module of hessfig.models, or python for model.factory"] = (
        "transformer"
    )
    n_layers: Annotated[int, "number of layers"] = 1
    n_heads: Annotated[int, "attention heads of a layer"] = 1
    d_model: Annotated[int, "width of the residual stream"] = 128
    d_head: Annotated[int | None, "width of a head; null: d_model / n_heads"] = None
    d_mlp: Annotated[int | None, "width inside the MLP; null: 4 d_model"] = None
    attention: Annotated[Attention, "what turns scores into mixing weights"] = Attention.softmax
    attention_skip: Annotated[bool, "whether attention is added to the residual stream or replaces it"] = True
    norm: Annotated[Norm, "where LayerNorm sits"] = Norm.none
    mlp: Annotated[MLP, "activation of the MLP sublayer; none leaves it out"] = MLP.relu
    query_key: Annotated[QueryKey, "scores from W_Q and W_K, or from the single weight W_QK"] = (
        QueryKey.separate
    )
    temperature: Annotated[float, "divides the attention scores"] = 1.0
    sigma_scales: Annotated[SigmaScales, "what sigma scales: tokens and positions, or tokens alone"] = (
        SigmaScales.both
    )
    factory: Annotated[
        str | None, "for kind python, the function that makes it: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"
    ] = None
    options: Annotated[dict[str, Any], "arguments of model.factory by name"] = field(default_factory=dict)


@dataclass
class StateConfig:
    """The point of weight space: drawn anew for every sigma and seed, or loaded from the file `path`."""

    kind: Annotated[State, "weights drawn from sigma and seed, or read from a file"] = State.initialised
    path: Annotated[str | None, "for kind loaded, the file: safetensors, or a state_dict"] = None


@dataclass
class GridConfig:
    """The values of sigma: `points` between `low` and `high`, or the explicit list `values`."""

    spacing: Annotated[Spacing, "how the values of sigma are spread"] = Spacing.log
    low: Annotated[float, "smallest sigma"] = 0.01
    high: Annotated[float, "largest sigma"] = 10.0
    points: Annotated[int, "number of values of sigma"] = 20
    values: Annotated[list[float] | None, "the values of sigma, in place of the four settings above"] = None


@dataclass
class EstimatorConfig:
    """How block norms are found, by whose products, and with how many probes (`auto`: at most; see variance_share)."""

    method: Annotated[
        Method, "how a block norm is found; auto: exact where that is cheap, probes elsewhere"
    ] = Method.auto
    products: Annotated[Products, "whose Hessian-vector products"] = Products.linearised
    num_probes: Annotated[int, "random vectors for each column of blocks; with auto at most"] = 20
    variance_share: Annotated[float, "with auto, the share of the spread over seeds that probing may add"] = (
        0.1
    )


@dataclass
class SweepConfig:
    """A sweep: its name, a line about it, what it varies beside sigma, the windows slopes are fitted on (null: open).

    `vary` maps a dotted key to a list of values (or one), unless the command line gives that key.
    `axis` is what curves run along: sigma, step, or a varied setting such as model.d_model.
    """

    name: Annotated[str, "name of the sweep, and of its folder in output_dir"] = "sigma"
    about: Annotated[str, "a line about it"] = ""
    vary: Annotated[
        dict[str, Any],
        "settings it varies beside sigma, in every combination: {model.n_heads: [1, 2], ...}",
        "{setting: values}",
    ] = field(default_factory=dict)
    axis: Annotated[str, "what curves run along: sigma, step, or a varied setting"] = "sigma"
    windows: Annotated[
        list[Any], "ranges of the axis that slopes are fitted on; null: open", "a list of [low, high]"
    ] = field(default_factory=lambda: [[None, 1.0]])
    average: Annotated[
        Average, "whose logarithm slopes are fitted to: the mean over seeds, or the geometric mean"
    ] = Average.arithmetic


@dataclass
class FigureConfig:
    """A figure: which sweep it draws, in which layout, and where it stands in the gallery (`group`, `order`).

    `x`, `colour` and `dashes` name sigma, step, layer, part or a varied setting, for layouts that take them.
    `published` says what the authors published of it, hence whether `compare` can serve.
    """

    name: Annotated[str, "name of the figure and of its files"] = ""
    sweep: Annotated[str, "the sweep it draws"] = "sigma"
    layout: Annotated[str, "how it is laid out"] = ""
    group: Annotated[FigureGroup, "where it stands: in the paper, beyond it, a study, or your own"] = (
        FigureGroup.own
    )
    order: Annotated[int, "its place in `make figures`"] = 100
    published: Annotated[Published, "what the authors published of it"] = Published.nothing
    x: Annotated[str | None, "what runs along its x axis: sigma, step, or a varied setting"] = None
    colour: Annotated[str | None, "what colours tell apart"] = None
    dashes: Annotated[str | None, "what dashes tell apart"] = None
    options: Annotated[dict[str, Any], "options of the layout"] = field(default_factory=dict)


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
    quantities: Annotated[list[str], "what is measured: frobenius, trace, hessian, ..."] = field(
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
    output_dir: Annotated[str, "folder of all results"] = "outputs"
    dry_run: Annotated[bool, "say what would be measured, and measure nothing"] = False
    config_dir: Annotated[str | None, "set by --config-dir"] = None
    reference: Annotated[
        str | None, "published values: a CSV file, or a folder of the authors' result files"
    ] = None
    tolerance: Annotated[float, "how far a slope may be from its prediction"] = 0.1
    resamples: Annotated[int, "bootstrap resamples behind a slope's error"] = 2000


def with_defaults(model: ModelConfig) -> ModelConfig:
    """Return `model` with d_head and d_mlp resolved to numbers."""
    d_head = model.d_head or model.d_model // model.n_heads
    return ModelConfig(**{**vars(model), "d_head": d_head, "d_mlp": model.d_mlp or 4 * model.d_model})
