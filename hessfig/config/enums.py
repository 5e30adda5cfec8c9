"""The values a setting may take, for settings that are a choice."""

# ruff: noqa: F401 - choices of the common vocabulary are settings too

from dataclasses import dataclass
from enum import StrEnum

from hessfig import terms
from hessfig.terms import (
    MLP,
    Attention,
    AttentionBias,
    Gate,
    Kind,
    NamedDirection,
    Norm,
    NormKind,
    Positions,
    QueryKey,
    Scores,
    SliceDirection,
)


class Printed(StrEnum):
    """The output formats of a verb."""

    table = "table"
    csv = "csv"
    json = "json"
    latex = "latex"
    markdown = "markdown"


class PowersOf(StrEnum):
    """The base of predicted powers; `residual_scale` is the factor of every branch."""

    sigma = "sigma"
    W_Q = "W_Q"
    W_K = "W_K"
    W_QK = "W_QK"
    W_V = "W_V"
    W_G = "W_G"
    W_O = "W_O"
    W_gate = "W_gate"
    W_in = "W_in"
    W_out = "W_out"
    W_U = "W_U"
    residual_scale = "residual_scale"


class Spacing(StrEnum):
    """The spacing of the values of sigma between `low` and `high`."""

    log = "log"
    linear = "linear"


@dataclass(frozen=True)
class Estimation:
    """The facts of a method of estimation.

    `fewest`: the probes it takes at least, 0 for a method without probes; `multiple`:
    what divides their number; `at_once`: whether all of them are held at once.
    `symmetric`: it serves diagonal blocks of single weight matrices alone. `traces`: it
    gives traces in addition to norms. `products`: its norms depend on
    estimator.products.
    """

    fewest: int = 1
    multiple: int = 1
    at_once: bool = False
    symmetric: bool = False
    traces: bool = True
    products: bool = True


# What estimator=auto does, in the words of every page.
AUTO = (
    "exact by a formula where that is cheap, dense where a column of a small network has at most 256 entries, "
    "else by probes"
)


class Method(terms.Recorded):
    """The methods that estimate block norms; their functions are in hessfig.measurements.block_norms."""

    facts: Estimation

    hutchinson = "hutchinson", Estimation(at_once=True)
    aligned = (
        "aligned",
        Estimation(fewest=4, at_once=True, symmetric=True, traces=False),
    )
    xtrace = "xtrace", Estimation(fewest=2, multiple=2, symmetric=True, products=False)
    dense = "dense", Estimation(fewest=0)
    exact = "exact", Estimation(fewest=0, products=False)
    auto = "auto", Estimation(fewest=4, at_once=True)


class Products(StrEnum):
    """The source of products: our linearised network, curvlinops (any differentiable model), or differences."""

    linearised = "linearised"
    curvlinops = "curvlinops"
    differences = "differences"


class Probes(StrEnum):
    """Random start vectors of Lanczos runs: entries +1 or -1, or normal ones."""

    rademacher = "rademacher"
    gaussian = "gaussian"


class DType(StrEnum):
    """Floating-point type of model and products."""

    float64 = "float64"
    float32 = "float32"


class Launcher(StrEnum):
    """The processes that measure: workers of this machine, or the tasks of a Slurm job array."""

    local = "local"
    slurm = "slurm"


class Reuse(StrEnum):
    """The test that a user's own network was measured before: by what its factory returns, or by its code."""

    content = "content"
    sources = "sources"


class Draws(StrEnum):
    """Random streams: one of its own for every name, or the generators of the published code in its order."""

    named = "named"
    published = "published"


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
    """Which drawn weight is multiplied by model.weight_scale, in every layer; `mlp`: all those of the MLP; `query_key`:
    W_Q and W_K (with model.temperature = weight_scale^2 the scores stay what they are)."""

    W_Q = "W_Q"
    W_K = "W_K"
    W_V = "W_V"
    W_O = "W_O"
    W_G = "W_G"
    W_gate = "W_gate"
    W_in = "W_in"
    W_out = "W_out"
    mlp = "mlp"
    query_key = "query_key"


class SigmaScales(StrEnum):
    """Embeddings of scale sigma: tokens and positions (the published code), or tokens alone."""

    both = "both"
    tokens = "tokens"


@dataclass(frozen=True)
class DataFacts:
    """The facts of a kind of data.

    `length`: the setting of the task that says how long sequences made here are;
    `classes`: of how many a target is one, where the task's base does not tell.
    `is_trainable`: there are examples besides the batch. `is_real`: targets are real
    numbers. `is_tokens`: word ids of a stored model, in micro-batches.
    """

    length: str = ""
    classes: int | None = None
    is_trainable: bool = False
    is_real: bool = False
    is_tokens: bool = False


class Data(terms.Recorded):
    """Digit addition; Gaussian inputs and targets (eq. 5); pictures of digits; those of model.factory; token ids, whose
    next token is predicted, or some of which are masked and predicted; characters of a text."""

    facts: DataFacts

    addition = "addition", DataFacts("digits", is_trainable=True)
    gaussian = "gaussian", DataFacts("digits", is_real=True)
    digits = "digits", DataFacts(classes=10, is_trainable=True)
    python = "python", DataFacts()
    tokens = "tokens", DataFacts(is_tokens=True)
    text = "text", DataFacts("length", len(terms.CHARACTERS) + 1, is_trainable=True)
    masked_tokens = "masked_tokens", DataFacts(is_tokens=True)


class MaskedAs(StrEnum):
    """The replacement of a masked token: the mask's word; or, as in BERT's training, that in 8 of 10 draws, any word in
    1, and itself in 1."""

    mask = "mask"
    mixed = "mixed"


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


class Average(StrEnum):
    """The average to which slopes are fitted: the mean over seeds, or the geometric mean (for many decades)."""

    arithmetic = "arithmetic"
    geometric = "geometric"


class FigureGroup(StrEnum):
    """Figures of the paper, of its claims beyond it, of follow-ups, and of theory studies that need no sweep."""

    paper = "paper"
    beyond = "beyond"
    follow_up = "follow_up"
    study = "study"
    own = "own"


class Published(StrEnum):
    """The published data of a figure: numbers, pictures only, or nothing."""

    numbers = "numbers"
    pictures = "pictures"
    nothing = "nothing"


class Style(StrEnum):
    """Type and width of a figure: our own, or those of a conference (by tueplots)."""

    default = "default"
    iclr = "iclr"
    neurips = "neurips"
    icml = "icml"


class Format(StrEnum):
    """The files of a figure; its numbers are written as CSV next to them."""

    pdf = "pdf"
    png = "png"
    svg = "svg"


class Curvature(StrEnum):
    """The divisor of a learning rate, refreshed during the training: the loss's largest Hessian eigenvalue in all
    parameters, or in each by itself (of mean 1); or a stand-in from gradient norms."""

    none = "none"
    whole = "whole"
    blocks = "blocks"
    gradient_norm = "gradient_norm"


class Schedule(StrEnum):
    """The learning rate after its warm-up: a cosine that reaches zero at the last step, or constant."""

    cosine = "cosine"
    constant = "constant"


class TrainingData(StrEnum):
    """The data of a training: fresh sums at every step, or always the task's own batch."""

    fresh = "fresh"
    fixed = "fixed"


class SampleDirection(StrEnum):
    """The direction in which the landscape is evaluated, starting from the state."""

    random = "random"
    gradient = "gradient"
