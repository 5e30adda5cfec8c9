"""The vocabulary of all modules: parts of the Hessian, weights, groups, blocks, architectures, approximations."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self


class Recorded(StrEnum):
    """An enum whose members have a value and `facts`."""

    facts: Any

    def __new__(cls, value: str, *facts: Any) -> Self:
        """Return the member of a row of value and facts."""
        member = str.__new__(cls, value)
        member._value_, (member.facts,) = value, facts
        return member


class Labelled(Recorded):
    """An enum whose members have a `label` for axis titles and legends."""

    facts: str

    @property
    def label(self) -> str:
        """The label."""
        return self.facts


class Part(Labelled):
    """The full Hessian and the two terms of its Gauss-Newton split, at the outputs or at the scores.

    H = H_o + H_f (eq. 2). With T the attention scores of a layer, H = H_oT + H_fT for
    its W_Q and W_K (Remark D.1).
    """

    H_o = "H_o", "outer-product Hessian"
    H_f = "H_f", "functional Hessian"
    H = "H", "full Hessian"
    H_oT = "H_oT", "outer-product Hessian at the scores"
    H_fT = "H_fT", "functional Hessian at the scores"


# What a text is made of (task.data=text); every other character counts as one more.
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
PARTS = (Part.H_o, Part.H_f, Part.H)
AT_OUTPUTS, AT_SCORES = (Part.H_o, Part.H_f), (Part.H_oT, Part.H_fT)


class Matrix(StrEnum):
    """The weight matrices of the paper's networks, in the order in which their parameters are listed.

    Weights of other networks may have any name without commas, quotes or brackets.
    """

    W_E = "W_E"
    W_patch = "W_patch"
    W_pos = "W_pos"
    W_Q = "W_Q"
    W_K = "W_K"
    W_QK = "W_QK"
    W_V = "W_V"
    W_O = "W_O"
    W_G = "W_G"
    W_gate = "W_gate"
    W_in = "W_in"
    W_out = "W_out"
    W_U = "W_U"
    W = "W"

    @property
    def label(self) -> str:
        """Mathtext, without the dollar signs."""
        return weight_label(self.value)

    @property
    def has_layer(self) -> bool:
        """Whether every layer has this matrix (embeddings and unembedding exist once, in 'layer 0')."""
        return self not in (Matrix.W_E, Matrix.W_patch, Matrix.W_pos, Matrix.W_U)


class Group(StrEnum):
    """Groups of weights that may be one side of a block."""

    attention = "attention"
    query_key = "query_key"
    mlp = "mlp"
    norms = "norms"
    embeddings = "embeddings"
    biases = "biases"
    layer = "layer"
    all = "all"


class Kind(StrEnum):
    """The shipped kinds of networks, by name; `model.kind` may name any module of hessfig.models.kinds."""

    transformer = "transformer"
    self_attention = "self_attention"
    mlp = "mlp"
    linear_mlp = "linear_mlp"
    vit = "vit"
    cnn = "cnn"
    python = "python"
    huggingface = "huggingface"
    transformer_lens = "transformer_lens"


# Kinds whose networks are run as they are: they may ignore targets, and show nothing
# between their layers.
OPENED = (Kind.python, Kind.huggingface, Kind.transformer_lens)


class Attention(StrEnum):
    """The map from the allowed scores of a query to mixing weights (docs/networks.md has the formulas).

    `linear` uses the scores unchanged. `kernel` normalises phi(q).phi(k) with phi(z) =
    1 + z for every entry. `differential` is a difference of two softmaxes. `off_by_one`
    is a softmax with an additional logit 0 without value.
    """

    softmax = "softmax"
    linear = "linear"
    sigmoid = "sigmoid"
    sparsemax = "sparsemax"
    entmax15 = "entmax15"
    kernel = "kernel"
    differential = "differential"
    off_by_one = "off_by_one"


class AttentionBias(StrEnum):
    """The bias that sigmoid attention adds to its scores: none, or -log L for sequences of L tokens."""

    none = "none"
    log_length = "log_length"


class Scores(StrEnum):
    """The scores of queries and keys: their product, possibly normalised before (RMS or length) or capped after."""

    plain = "plain"
    qk_norm = "qk_norm"
    cosine = "cosine"
    softcap = "softcap"


class Norm(StrEnum):
    """The position of norms: none, before each sublayer and the unembedding, or after each residual sum.

    `sandwich` is `pre` with another norm after each sublayer, before its output is
    added.
    """

    none = "none"
    pre = "pre"
    post = "post"
    sandwich = "sandwich"


class NormKind(StrEnum):
    """LayerNorm, or RMSNorm, which neither subtracts the mean nor adds a shift."""

    layer = "layer"
    rms = "rms"


class Positions(StrEnum):
    """The encoding of positions: a learned embedding W_pos, rotated queries and keys, a slope in scores, or none."""

    learned = "learned"
    rope = "rope"
    alibi = "alibi"
    none = "none"


class MLP(StrEnum):
    """Activation of the MLP sublayer; `none` leaves the sublayer out.

    `swiglu` and `geglu` multiply two maps of the input: silu (or gelu) of W_gate x
    times W_in x, entry by entry.
    """

    relu = "relu"
    gelu = "gelu"
    linear = "linear"
    none = "none"
    silu = "silu"
    swiglu = "swiglu"
    geglu = "geglu"


GATED = (MLP.swiglu, MLP.geglu)
SMOOTH = (MLP.gelu, MLP.silu, *GATED)


class Gate(StrEnum):
    """The gate that multiplies the mixed values entry by entry: none, or sigmoid(W_G x) at the query's position."""

    none = "none"
    output = "output"


class QueryKey(StrEnum):
    """Scores from two weights W_Q W_K^T, or from the single weight W_QK (Section 4.2)."""

    separate = "separate"
    single = "single"


class Need(StrEnum):
    """The blocks for which an approximation exists; `linear` includes `heads`.

    `any`: all blocks. `matrix`: blocks of a single weight with two axes. `linear`:
    those of the weight of a linear map or a convolution, of its bias, and of both
    together. `heads`: those of a weight of attention, which is cut into heads.
    `moments`: all blocks at a state that adam or adamw reached. `whole`: the block of
    the whole network.
    """

    any = "any"
    matrix = "matrix"
    linear = "linear"
    heads = "heads"
    moments = "moments"
    whole = "whole"


@dataclass(frozen=True)
class Facts:
    """Facts of an approximation: the blocks that it needs, and its label in figures."""

    needs: Need
    label: str


class Approximation(Recorded):
    """An approximation A of a block B of the Hessian: its name, what it needs, and the optimiser that it belongs to.

    Settings, rows, checks and figures read their names from here.
    docs/studies/approximations.md defines each approximation; its function is in
    hessfig.curvature.approximations.named.
    """

    facts: Facts

    diagonal = "diagonal", Facts(Need.any, "diagonal")
    adam = "adam", Facts(Need.moments, "Adam, stored")
    adam_expected = "adam_expected", Facts(Need.any, "Adam, expected")
    adam_mini = "adam_mini", Facts(Need.any, "Adam-mini")
    adam_mini_head = "adam_mini_head", Facts(Need.heads, "Adam-mini, heads")
    empirical_fisher = "empirical_fisher", Facts(Need.any, "empirical Fisher")
    sampled_fisher = "sampled_fisher", Facts(Need.any, "sampled Fisher")
    muon = "muon", Facts(Need.matrix, "Muon")
    shampoo = "shampoo", Facts(Need.matrix, "Shampoo")
    soap = "soap", Facts(Need.matrix, "SOAP")
    kfac = "kfac", Facts(Need.linear, "K-FAC")
    kfac_reduce = "kfac_reduce", Facts(Need.linear, "K-FAC, reduce")
    ekfac = "ekfac", Facts(Need.linear, "EK-FAC")
    kfoc = "kfoc", Facts(Need.matrix, "best Kronecker")
    kronecker_sum = "kronecker_sum", Facts(Need.matrix, "best Kronecker sum")
    block_diagonal = "block_diagonal", Facts(Need.whole, "weights apart")
    layer_diagonal = "layer_diagonal", Facts(Need.whole, "layers apart")


class StepNorm(StrEnum):
    """A norm over all parameters whose steepest descent is a step rule (states.training.norm_descent has formulas)."""

    euclidean = "euclidean"
    spectral = "spectral"
    largest_entry = "largest_entry"
    blockwise = "blockwise"


@dataclass(frozen=True)
class RuleFacts:
    """Facts of a step rule.

    `label`: its name in figures. `made_by`: the class of `package` that it is, with
    `options` that it always gets; `of_matrices`: the class that takes the weight
    matrices of the layers, where that is another one. `reads`: which of RULE_SETTINGS
    it reads; rules without batch_size are full batch, those with damping divide the
    gradient by a curvature matrix of the whole fixed set. `moments`: what it keeps of a
    parameter; `by_axis`: those that are lists with a matrix per axis; `state`: what
    else is in a parameter's state, of TrainingConfig. `has_formula`: whether the next
    update is a formula of the moments, and the threshold of stability is known.
    """

    label: str
    made_by: str
    reads: tuple[str, ...] = ()
    moments: tuple[str, ...] = ()
    by_axis: tuple[str, ...] = ()
    package: str = "torch.optim"
    options: Mapping[str, Any] = field(default_factory=lambda: {"fused": True})
    of_matrices: str = ""
    state: Callable[[Any], Mapping[str, Any]] = lambda training: {}
    has_formula: bool = False

    @property
    def is_full_batch(self) -> bool:
        """Whether every update uses all examples of a fixed set."""
        return "batch_size" not in self.reads

    @property
    def divides(self) -> bool:
        """Whether the rule divides the gradient by a curvature matrix."""
        return "damping" in self.reads

    @property
    def is_adaptive(self) -> bool:
        """Whether the preconditioner is a function of the second moments that the rule stores."""
        return self.has_formula and "betas" in self.reads

    @property
    def is_of_extra(self) -> bool:
        """Whether the rule comes from an optional package, which counts the updates by group of parameters."""
        return self.package == _EXTRA


# Of training; not all rules read them.
RULE_SETTINGS = ("betas", "eps", "momentum", "batch_size", "damping", "refresh")
_ADAM = ("betas", "eps", "batch_size")
_MOMENTS = ("exp_avg", "exp_avg_sq")
_BUFFER = ("momentum_buffer",)
_EXTRA = "pytorch_optimizer"
_FACTORS = ("pre_cond_0", "pre_cond_1", "inv_pre_cond_0", "inv_pre_cond_1")
# Updates between two of SOAP's eigenbases, as its authors recommend.
_EVERY = {"precondition_frequency": 10}


def _steepest(label: str, norm: StepNorm) -> RuleFacts:
    package = "hessfig.states.training.norm_descent"
    return RuleFacts(
        label, "NormDescent", package=package, options={"norm": norm.value}
    )


def _dividing(label: str) -> RuleFacts:
    return RuleFacts(label, "SGD", ("momentum", "damping", "refresh"), _BUFFER)


class Optimiser(Recorded):
    """The rule of a training; `gd` is plain gradient descent on the whole of a fixed set, and the last four divide by
    a curvature matrix there.

    Shampoo: arXiv 1802.09568. SOAP: arXiv 2409.11321. `spectral_gd` (Muon without
    momentum, of every parameter) and `sign` are full-batch steepest descent in a norm
    (arXiv 2603.05002). A rule that torch or pytorch_optimizer has is one more row here;
    one that divides by another matrix, a row here and that matrix in
    hessfig.states.training.second_order.
    """

    facts: RuleFacts

    adamw = "adamw", RuleFacts("AdamW", "AdamW", _ADAM, _MOMENTS, has_formula=True)
    adam = "adam", RuleFacts("Adam", "Adam", _ADAM, _MOMENTS, has_formula=True)
    sgd = (
        "sgd",
        RuleFacts("SGD", "SGD", ("momentum", "batch_size"), _BUFFER, has_formula=True),
    )
    gd = "gd", RuleFacts("gradient descent", "SGD", has_formula=True)
    shampoo = (
        "shampoo",
        RuleFacts(
            "Shampoo", "Shampoo", ("batch_size",), _FACTORS, package=_EXTRA, options={}
        ),
    )
    soap = (
        "soap",
        RuleFacts(
            *(
                "SOAP",
                "SOAP",
                _ADAM,
                (*_MOMENTS, "GG", "Q"),
                ("GG", "Q"),
                _EXTRA,
                _EVERY,
            ),
            state=lambda training: {**_EVERY, "shampoo_beta": training.betas[1]},
        ),
    )
    muon = (
        "muon",
        RuleFacts(
            "Muon",
            "AdamW",
            (*_ADAM, "momentum"),
            (*_BUFFER, *_MOMENTS),
            of_matrices="Muon",
        ),
    )
    spectral_gd = "spectral_gd", _steepest("spectral descent", StepNorm.spectral)
    sign = "sign", _steepest("sign descent", StepNorm.largest_entry)
    newton = "newton", _dividing("Newton")
    gauss_newton = "gauss_newton", _dividing("Gauss-Newton")
    block_gauss_newton = "block_gauss_newton", _dividing("block Gauss-Newton")
    kfac = "kfac", _dividing("K-FAC")


# Those that are made from the block itself, held as a matrix where it is small.
OF_THE_BLOCK = (
    Approximation.diagonal,
    Approximation.soap,
    Approximation.kfoc,
    Approximation.kronecker_sum,
)
NUMBERS_OF_APPROXIMATIONS = ("error", "scale_error", "angle")


class SliceDirection(StrEnum):
    """A direction of unit length: eigenvectors of the largest and smallest eigenvalue of H, and one of the bulk; the
    gradient; a random one."""

    largest = "largest"
    smallest = "smallest"
    bulk = "bulk"
    gradient = "gradient"
    random = "random"


class NamedDirection(StrEnum):
    """A named direction: the gradient, its signs, the next update of each rule, the singular directions of a weight's
    gradient, a random one, and eigenvectors of the block's largest and smallest eigenvalue."""

    gradient = "gradient"
    sign = "sign"
    update = "update"
    singular = "singular"
    random = "random"
    largest = "largest"
    smallest = "smallest"


@dataclass(frozen=True, order=True)
class Block:
    """One block of the Hessian: second derivatives with respect to weights (or groups) `row` and `col`.

    `layer` is the 1-based layer of the column. If one weight belongs to no layer, it is
    the layer of the other; if neither does, it is 0. `row_layer` equals `layer` except
    for pairs across layers. A diagonal block has the same weight of the same layer on
    both sides.
    """

    layer: int
    row: str
    col: str
    row_layer: int = -1

    def __post_init__(self) -> None:
        if self.row_layer < 0:
            object.__setattr__(self, "row_layer", self.layer)

    @property
    def is_diagonal(self) -> bool:
        return self.row == self.col and self.row_layer == self.layer

    @property
    def is_across(self) -> bool:
        """Whether the two weights belong to different layers."""
        return self.row_layer != self.layer

    def __str__(self) -> str:
        if self.is_across:
            return f"({self.row} of layer {self.row_layer}, {self.col} of layer {self.layer})"
        return f"({self.row}, {self.col}) of layer {self.layer}"


def split_in(parts: Collection[Part]) -> tuple[Part, ...]:
    """Return the two parts in `parts` whose sum is H: at the outputs, otherwise at the scores; otherwise none."""
    return next(
        (split for split in (AT_OUTPUTS, AT_SCORES) if {*split} <= {*parts}), ()
    )


def weight_label(name: str) -> str:
    """Return mathtext without dollar signs for a weight of the paper's networks; other names are unchanged."""
    head, _, index = name.partition("_")
    if name not in list(Matrix):
        return rf"\mathrm{{{name}}}".replace("_", r"\_")
    return f"{head}_{{\\mathrm{{{index}}}}}" if index else head


def name_order(names: Iterable[str]) -> Callable[[str], int]:
    """Return a rank for sorting: the paper's weights in their order, then other names as given, then groups.

    A weight with several roles (W_E+W_U) has the rank of its first role.
    """
    known = [matrix.value for matrix in Matrix]
    groups = [group.value for group in Group]
    first = {name: name.partition("+")[0] for name in names}
    others = [
        head
        for head in dict.fromkeys(first.values())
        if head not in known and head not in groups
    ]
    order = {name: rank for rank, name in enumerate([*known, *others, *groups])}
    return lambda name: order[name.partition("+")[0]]
