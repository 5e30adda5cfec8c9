"""The configuration schema: every setting a verb may be told, and the enums of their values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from hessfig.terms import Part


class Kind(StrEnum):
    """Family of networks."""

    transformer = "transformer"
    self_attention = "self_attention"
    linear_mlp = "linear_mlp"


class Attention(StrEnum):
    """What turns scores into mixing weights; `linear` leaves the masked scores as they are."""

    softmax = "softmax"
    linear = "linear"


class Norm(StrEnum):
    """Where LayerNorm sits: nowhere, before each sublayer and the unembedding, or after each residual sum."""

    none = "none"
    pre = "pre"
    post = "post"


class MLP(StrEnum):
    """Activation of the MLP sublayer; `none` leaves the sublayer out."""

    relu = "relu"
    gelu = "gelu"
    linear = "linear"
    none = "none"


class QueryKey(StrEnum):
    """Scores from two weights W_Q W_K^T, or from the single weight W_QK (Section 4.2)."""

    separate = "separate"
    single = "single"


class Loss(StrEnum):
    """Cross-entropy on the answer; the published code's unshifted sum of squares; the textbook MSE."""

    cross_entropy = "cross_entropy"
    mse_sum_unshifted = "mse_sum_unshifted"
    mse = "mse"


class Data(StrEnum):
    """Digit addition, or Gaussian inputs and targets for a single self-attention layer (eq. 5)."""

    addition = "addition"
    gaussian = "gaussian"


class Scored(StrEnum):
    """Positions whose next token enters the loss: the answer's (the published code), or all (the text's L = 17)."""

    answer = "answer"
    all = "all"


class SigmaScales(StrEnum):
    """Embeddings of scale sigma: tokens and positions (the published code), or tokens alone."""

    both = "both"
    tokens = "tokens"


class Spacing(StrEnum):
    """How the values of sigma are spread between `low` and `high`."""

    log = "log"
    linear = "linear"


class Method(StrEnum):
    """How a block norm is found."""

    hutchinson = "hutchinson"
    aligned = "aligned"
    xtrace = "xtrace"
    dense = "dense"
    exact = "exact"
    auto = "auto"


class Products(StrEnum):
    """Whose Hessian-vector products: our linearised network, or curvlinops (reference; any differentiable model)."""

    linearised = "linearised"
    curvlinops = "curvlinops"


class DType(StrEnum):
    """Floating-point type of model and products."""

    float64 = "float64"
    float32 = "float32"


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
    """The network. `d_head: null` means d_model / n_heads, `d_mlp: null` means 4 d_model."""

    kind: Kind = Kind.transformer
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
    """How block norms are found, by whose products, and with how many probes."""

    method: Method = Method.hutchinson
    products: Products = Products.linearised
    num_probes: int = 20
    variance_share: float = 0.1


@dataclass
class SweepConfig:
    """A sweep: its name, a line about it, what it varies beside sigma, the windows slopes are fitted on (null: open).

    `vary` maps a dotted key to its values (several keys: every combination), unless the command line gives it.
    """

    name: str = "sigma"
    about: str = ""
    vary: dict[str, list[Any]] = field(default_factory=dict)
    windows: list[Any] = field(default_factory=lambda: [[None, 1.0]])
    keep_dense: bool = False


@dataclass
class FigureConfig:
    """A figure: which sweep it draws, in which layout."""

    name: str = ""
    sweep: str = "sigma"
    layout: str = ""
    about: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class Config:
    """Everything a verb may be told; every field is a command-line override."""

    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    figure: FigureConfig = field(default_factory=FigureConfig)
    blocks: Any = field(default_factory=lambda: ["W_V", "W_Q"])
    parts: list[Part] = field(default_factory=lambda: [Part.H_o, Part.H_f, Part.H])
    seeds: int = 20
    first_seed: int = 1234
    dtype: DType = DType.float64
    device: str = "cpu"
    workers: Any = "auto"
    output_dir: str = "outputs"
    dry_run: bool = False
    reference: str | None = None
    tolerance: float = 0.1
    resamples: int = 2000


def with_defaults(model: ModelConfig) -> ModelConfig:
    """Return `model` with d_head and d_mlp resolved to numbers."""
    d_head = model.d_head or model.d_model // model.n_heads
    return ModelConfig(**{**vars(model), "d_head": d_head, "d_mlp": model.d_mlp or 4 * model.d_model})
