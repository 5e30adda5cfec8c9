"""The settings of what is measured and how: data, network, grid, estimator and spectrum."""

from dataclasses import dataclass
from typing import Any

from hessfig.config import enums
from hessfig.config.facts import Role, added, setting

# Larger sizes are probably mistakes: deeper networks take minutes to plan.
MOST_PROBES = 100_000  # far beyond what an error of a thousandth takes
_MOST_OF_A_SPECTRUM = 1_000_000
_MOST_SIGMAS = 100_000
# Under which settings others are read (see SettingInfo.where).
_SUMS = "task.data=addition"
_WINDOWS = "task.data=tokens|text"
_MASKS = "task.data=masked_tokens"
_DRAWN, _FILES = "task.data!=python", "task.data=digits|tokens|masked_tokens|text"
_OWN_DATA = "task.data=addition|gaussian|digits|text"
_NORMED, _EVEN = "model.norm!=none", "grid.values=null"


@dataclass
class TaskConfig:
    """The data: one batch, drawn once from `seed`, shared by every sigma and every repeat.

    `digits` is for addition and Gaussian rows, `scored` for addition.
    """

    data: enums.Data = setting(enums.Data.addition, "where the batch comes from")
    digits: int = setting(
        5,
        "digits of each number that is added; sequences have 3 digits + 3 tokens",
        least=1,
        where="task.data=addition|gaussian",
    )
    batch_size: int = setting(64, "sequences in the batch", least=1, where=_DRAWN)
    seed: int = setting(
        0, "seed of the batch, the same for every network", where=_DRAWN
    )
    loss: enums.Loss = setting(
        enums.Loss.cross_entropy,
        "the loss; mse_sum_unshifted is the published code's sum of squares",
        where=_DRAWN,
    )
    scored: enums.Scored = setting(
        enums.Scored.answer,
        "positions whose next token enters the loss",
        where="task.data=addition|tokens|masked_tokens",
    )
    base: int = added(
        10,
        "for addition, the base of the numbers; the vocabulary has base + 2 tokens",
        least=2,
        most=1_000_000,
        where=_SUMS,
    )
    path: str | None = setting(
        None,
        "for data digits, pictures of your own: FILE.npz with images (n, 8, 8) and labels (n); for data tokens, "
        "FILE.npy of ids, or a text for the model's tokenizer (null: random ids); for data masked_tokens too, the text "
        "with a sequence per line (null: sequences.txt of model.path); for data text, FILE of UTF-8 (null: the "
        "standard library's sources)",
        role=Role.place,
        where=_FILES,
    )
    sha256: str | None = setting(
        None,
        "SHA-256 that the file of task.path must have; null: what it has when planned",
        role=Role.pin,
        where=_FILES,
    )
    length: int | None = added(
        None,
        "for data tokens and text, tokens of a sequence, at most those of a file's rows; null: as the file has it",
        least=1,
        where="task.data=tokens|text|masked_tokens",
    )
    first_scored: int = added(
        0,
        "for data tokens and text, the first position whose next token enters the loss",
        where=_WINDOWS,
    )
    correlation: float = added(
        0.0,
        "for data gaussian, the correlation of the entries of any two tokens of a sequence",
        least=0,
        below=1,
        where="task.data=gaussian",
    )
    label_smoothing: float = added(
        0.0,
        "share of a target's probability that cross-entropy spreads evenly over all words",
        least=0,
        below=1,
        where="task.loss=cross_entropy task.data=addition|digits|text",
    )
    weight_decay: float = added(
        0.0,
        "adds weight_decay / 2 |w|^2, over all parameters w, to the loss: to H and, with it, to H_f",
        least=0,
        where=f"estimator.method=hutchinson|dense {_OWN_DATA}",
    )
    draw: enums.Draws = added(
        enums.Draws.named,
        "where sums come from: a stream of task.seed, or as the published code drew them (task.seed=1234)",
        where=_SUMS,
    )
    masked_share: float = added(
        0.15,
        "for data masked_tokens, the share of a sequence's words that are masked (one at least)",
        above=0,
        below=1,
        where=_MASKS,
    )
    masked_as: enums.MaskedAs = added(
        enums.MaskedAs.mask,
        "for data masked_tokens, what a masked token becomes",
        where=_MASKS,
    )
    mask_id: int | None = added(
        None,
        "for data masked_tokens, the mask's word; null: the tokenizer's, or the last word for ids without one",
        least=0,
        where=_MASKS,
    )

    @property
    def vocabulary(self) -> int:
        """Different tokens, or classes: the digits, + and = of addition; the characters of a text and one more."""
        return self.data.facts.classes or self.base + 2

    @property
    def num_tokens(self) -> int:
        """Tokens of a sequence: a window of text; two numbers, two signs and their sum."""
        if self.data == enums.Data.text:
            return self.length or 0
        return 3 * self.digits + 3

    @property
    def num_scored(self) -> int:
        """Positions of a sequence whose next token enters the loss."""
        if self.data == enums.Data.text:
            return self.num_tokens - 1 - self.first_scored
        if self.scored == enums.Scored.answer:
            return self.digits + 1
        return self.num_tokens - 1


@dataclass
class ModelConfig:
    """The network. `d_head: null` means d_model / n_heads, `d_mlp: null` 4 d_model (kind mlp: a transformer's size).

    `kind` names a module of hessfig.models.kinds; `factory` (with its `options`) is for
    kind python.
    """

    kind: str = setting(
        "transformer",
        "kind of network: a module of hessfig.models.kinds, or python for model.factory",
    )
    n_layers: int = setting(
        1,
        "number of layers; for kind cnn, a sixth of its convolutions",
        least=1,
        most=2_000,
    )
    n_heads: int = setting(
        1, "attention heads of a layer; for kind cnn, groups of its GroupNorm", least=1
    )
    d_model: int = setting(128, "width of the residual stream", least=1)
    d_head: int | None = setting(
        None, "width of a head; null: d_model / n_heads", least=1
    )
    d_mlp: int | None = setting(
        None,
        "width inside the MLP; null: 4 d_model; for kind cnn, channels; null: d_model / 2",
        least=1,
        where="model.mlp!=none",
    )
    attention: enums.Attention = setting(
        enums.Attention.softmax, "what turns scores into mixing weights"
    )
    attention_skip: bool = setting(
        True, "whether attention is added to the residual stream or replaces it"
    )
    norm: enums.Norm = setting(
        enums.Norm.none,
        "where norms sit; sandwich: before and after each sublayer; for kind cnn, post is GroupNorm behind each layer",
    )
    mlp: enums.MLP = setting(
        enums.MLP.relu, "activation of the MLP sublayer; none leaves it out"
    )
    query_key: enums.QueryKey = setting(
        enums.QueryKey.separate,
        "scores from W_Q and W_K, or from the single weight W_QK",
    )
    temperature: float = setting(
        1.0, "divides the attention scores", above=0, where="model.attention!=kernel"
    )
    sigma_scales: enums.SigmaScales = setting(
        enums.SigmaScales.both,
        "what sigma scales: tokens and positions, or tokens alone",
        where="model.positions=learned",
    )
    initialisation: enums.Initialisation = added(
        enums.Initialisation.paper,
        "scales of the drawn weights: the paper's, or GPT-2's",
    )
    sink: enums.Sink = added(
        enums.Sink.none,
        "an attention sink put in by hand: on the first key's scores, in its embedding",
        where="model.sink_beta!=0.0",
    )
    sink_beta: float = added(
        0.0,
        "its size: added to the scores, 1 + sink_beta times the embedding",
        least=0,
        example="4",
        where="model.sink!=none",
    )
    scaled_weight: enums.ScaledWeight | None = added(
        None,
        "the weight whose draw model.weight_scale multiplies, in every layer",
        where="model.weight_scale!=1.0",
    )
    weight_scale: float = added(
        1.0,
        "factor on the draw of model.scaled_weight",
        above=0,
        example="2",
        where="model.scaled_weight!=null",
    )
    attention_bias: enums.AttentionBias = added(
        enums.AttentionBias.none,
        "added to the scores of sigmoid attention: nothing, or -log of the sequence's length",
        where="model.attention=sigmoid",
    )
    differential_lambda: float = added(
        0.8,
        "for differential attention, the fixed factor of the second softmax",
        least=0,
        below=1,
        where="model.attention=differential",
    )
    differential_norm: bool = added(
        True,
        "for differential attention, an RMSNorm of every head's output, times 1 - differential_lambda",
        where="model.attention=differential",
    )
    centring: float = added(
        0.0,
        "for softmax attention, lambda: every mixing weight minus lambda over the number of allowed keys",
        least=0,
        most=1,
        example="0.9",
        where="model.attention=softmax",
    )
    scores: enums.Scores = added(
        enums.Scores.plain,
        "how queries and keys make scores; qk_norm and cosine have learned gains",
    )
    softcap: float = added(
        50.0,
        "for scores=softcap, the c of c tanh(scores / c)",
        above=0,
        example="50",
        where="model.scores=softcap",
    )
    norm_kind: enums.NormKind = added(
        enums.NormKind.layer,
        "LayerNorm, or RMSNorm with a gain and no shift",
        where=_NORMED,
    )
    norm_eps: float = added(
        1e-5,
        "added to the variance in LayerNorm, and to the mean square in every RMSNorm",
        above=0,
        example="1e-6",
        where=(
            _NORMED,
            "model.scores=qk_norm",
            "model.attention=differential model.differential_norm=true",
        ),
    )
    positions: enums.Positions = added(
        enums.Positions.learned,
        "learned embeddings, rotary queries and keys, slopes in the scores (alibi), or none",
    )
    n_kv_heads: int | None = added(
        None,
        "heads of keys and values, each shared by n_heads / n_kv_heads heads; null: n_heads",
        least=1,
    )
    gate: enums.Gate = added(
        enums.Gate.none,
        "output: the mixed values are multiplied by the sigmoid of W_G x, before W_O",
    )
    tied: bool = added(
        False, "whether the unembedding is the token embedding, one weight W_E+W_U"
    )
    window: int | None = added(
        None,
        "keys i - window < j < i + window are seen, of those a mask allows; null: all",
        least=1,
    )
    residual_scale: float = added(
        1.0, "factor on the output of every sublayer, before it is added", above=0
    )
    patch: int = added(2, "for kind vit, pixels along a patch's side", least=1)
    factory: str | None = setting(
        None,
        "for kind python, the function that makes it: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION",
        implies="model=python task=python",
    )
    options: dict[str, Any] = setting(
        {},
        "arguments of model.factory by name; for kinds huggingface and transformer_lens, settings of random weights",
    )
    path: str | None = setting(
        None,
        "for kinds huggingface and transformer_lens, the folder with config.json and weights (or a name of the hub); "
        "null: random weights",
        role=Role.place,
    )
    sha256: str | None = setting(
        None,
        "hash that the files of model.path or model.factory must have; null: what they have when planned",
        role=Role.pin,
    )
    random: bool = added(
        False, "for kind huggingface, random weights for the config.json of model.path"
    )
    download: bool = setting(
        False,
        "for kind huggingface, whether a name may be fetched from the hub",
        role=Role.place,
    )
    name: str | None = added(
        None,
        "for kind transformer_lens without model.path: native, or an architecture of TransformerLens's registry "
        "(GPT2LMHeadModel, LlamaForCausalLM, ...), with random weights",
    )
    architecture: str = added(
        "gpt2", "for kind huggingface without model.path: gpt2, gpt_neox, llama, ..."
    )
    vocabulary: int | None = added(
        None,
        "for kind huggingface without model.path: words; null: the architecture's",
        least=1,
    )


@dataclass
class GridConfig:
    """The values of sigma: `points` between `low` and `high`, or the explicit list `values`."""

    spacing: enums.Spacing = setting(
        enums.Spacing.log, "how the values of sigma are spread", where=_EVEN
    )
    low: float = setting(0.01, "smallest sigma", above=0, where=_EVEN)
    high: float = setting(10.0, "largest sigma", above=0, where=_EVEN)
    points: int = setting(
        20, "number of values of sigma", least=1, most=_MOST_SIGMAS, where=_EVEN
    )
    values: list[float] | None = setting(
        None,
        "the values of sigma, in place of the four settings above",
        above=0,
        once=True,
        allowed="a list of finite numbers > 0",
        example="[0.1,1]",
    )


@dataclass
class EstimatorConfig:
    """The estimator of block norms, its products, and its number of probes (`auto`: at most; see variance_share)."""

    method: enums.Method = setting(
        enums.Method.auto, f"how a block norm is found; auto: {enums.AUTO}"
    )
    products: enums.Products = setting(
        enums.Products.linearised, "whose Hessian-vector products"
    )
    num_probes: int = setting(
        20,
        "random vectors for each column of blocks; with auto at most",
        least=1,
        most=MOST_PROBES,
    )
    variance_share: float = setting(
        0.1,
        "with auto, the share of the spread over seeds that probing may add",
        above=0,
        below=1,
        where="estimator.method=auto",
    )
    probes: enums.Draws = added(
        enums.Draws.named,
        "where probes come from: a stream of each column, or numpy's generator, each part's in the published order",
        where="estimator.method=hutchinson state.draw=published",
    )
    rules: int = added(
        2,
        "with auto, 2: exact norms, turned probes and pilots where they are worth their time; 1: wherever possible",
        least=1,
        most=2,
        where="estimator.method=auto",
        role=Role.means,
    )


@dataclass
class SpectrumConfig:
    """The computation of eigenvalues. Recurrences are float64; those of long vectors in float32 are float32."""

    k: int = setting(
        1,
        "how many of the outermost eigenvalues at either end",
        least=1,
        most=_MOST_OF_A_SPECTRUM,
    )
    tolerance: float = setting(
        1e-6,
        "residual at which an extreme eigenvalue is found, relative to the largest eigenvalue in size",
        above=0,
        below=1,
    )
    steps: int = setting(
        100,
        "Lanczos steps: nodes of a probe of a density; of an extreme eigenvalue, vectors before a restart",
        least=2,
        most=_MOST_OF_A_SPECTRUM,
    )
    starts: int = added(
        2,
        "random starts of the largest or smallest eigenvalue, which must agree; 1 takes half the products",
        least=1,
        most=2,
    )
    num_probes: int = setting(
        10, "random start vectors of a density", least=1, most=_MOST_OF_A_SPECTRUM
    )
    probes: enums.Probes = setting(
        enums.Probes.rademacher, "how the start vectors of a density are drawn"
    )
    cut: float = setting(
        1e-10,
        "eigenvalues below this share of the largest in size count as zero in shares and condition numbers",
        above=0,
        below=1,
    )
