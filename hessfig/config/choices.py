"""The values a setting may take, for settings that are a choice."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The kinds of networks whose structure the engines know; `model.kind` may name any module of hessfig.models."""

    transformer = "transformer"
    self_attention = "self_attention"
    linear_mlp = "linear_mlp"
    python = "python"
    huggingface = "huggingface"


FOREIGN = (Kind.python, Kind.huggingface)  # networks that bring their own sizes and data


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
    """Digit addition; Gaussian inputs for a single self-attention layer (eq. 5); those of model.factory; token ids."""

    addition = "addition"
    gaussian = "gaussian"
    python = "python"
    tokens = "tokens"


class State(StrEnum):
    """A point of weight space: drawn from sigma and seed, or read from a file."""

    initialised = "initialised"
    loaded = "loaded"


class FigureGroup(StrEnum):
    """Figures of the paper, of its claims beyond it, of follow-ups, and of theory studies that need no sweep."""

    paper = "paper"
    beyond = "beyond"
    follow_up = "follow_up"
    study = "study"
    own = "own"


class Published(StrEnum):
    """What the authors published of a figure: numbers, pictures alone, or nothing."""

    numbers = "numbers"
    pictures = "pictures"
    nothing = "nothing"


class Scored(StrEnum):
    """Positions whose next token enters the loss: the answer's (the published code), or all (the text's L = 17)."""

    answer = "answer"
    all = "all"


class SigmaScales(StrEnum):
    """Embeddings of scale sigma: tokens and positions (the published code), or tokens alone."""

    both = "both"
    tokens = "tokens"


class Average(StrEnum):
    """Whose logarithm slopes are fitted to: the mean over seeds, or the geometric mean (for norms of many decades)."""

    arithmetic = "arithmetic"
    geometric = "geometric"


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
