"""The values of settings of data, networks and their points of weight space."""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """The kinds of networks whose structure the engines know; `model.kind` may name any module of hessfig.models."""

    transformer = "transformer"
    self_attention = "self_attention"
    linear_mlp = "linear_mlp"
    mlp = "mlp"
    vit = "vit"
    python = "python"
    huggingface = "huggingface"
    transformer_lens = "transformer_lens"


# Networks that bring their own sizes, and their data or its vocabulary.
FOREIGN = (Kind.python, Kind.huggingface, Kind.transformer_lens)


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


class Initialisation(StrEnum):
    """Scales of the drawn weights: the paper's N(0, 0.64 / d_model), or GPT-2's N(0, 0.02^2), residual maps smaller."""

    paper = "paper"
    gpt2 = "gpt2"


class Sink(StrEnum):
    """An attention sink put in by hand: on the scores of the first key, in the first embedding, or both."""

    none = "none"
    scores = "scores"
    embedding = "embedding"
    both = "both"


class ScaledWeight(StrEnum):
    """Which drawn weight is multiplied by model.weight_scale, in every layer; `mlp`: all those of the MLP."""

    W_Q = "W_Q"
    W_K = "W_K"
    W_V = "W_V"
    W_O = "W_O"
    W_in = "W_in"
    W_out = "W_out"
    mlp = "mlp"


class SigmaScales(StrEnum):
    """Embeddings of scale sigma: tokens and positions (the published code), or tokens alone."""

    both = "both"
    tokens = "tokens"


class Data(StrEnum):
    """Digit addition; Gaussian inputs and targets (eq. 5); pictures of digits; those of model.factory; token ids."""

    addition = "addition"
    gaussian = "gaussian"
    digits = "digits"
    python = "python"
    tokens = "tokens"


class Loss(StrEnum):
    """Cross-entropy on the answer; the published code's unshifted sum of squares; the textbook MSE."""

    cross_entropy = "cross_entropy"
    mse_sum_unshifted = "mse_sum_unshifted"
    mse = "mse"


class Scored(StrEnum):
    """Positions whose next token enters the loss: the answer's (the published code), or all (the text's L = 17)."""

    answer = "answer"
    all = "all"


class State(StrEnum):
    """A point of weight space: drawn from sigma and seed, trained from there, or read from a file."""

    initialised = "initialised"
    trained = "trained"
    loaded = "loaded"
