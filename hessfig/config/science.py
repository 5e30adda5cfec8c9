"""The settings that make other numbers: data, network, state, training, grid, and how it is measured."""

from dataclasses import dataclass
from typing import Any

from hessfig.config import enums
from hessfig.config.facts import Role, added, setting
from hessfig.terms import Approximation, Optimiser

# Beyond these, sizes are slips: deeper networks take minutes to be planned.
MOST_PROBES = 100_000  # far beyond what an error of a thousandth takes
_MOST, _MOST_OF_A_SPECTRUM, _MOST_STEPS = 10_000_000, 1_000_000, 100_000_000


@dataclass
class TaskConfig:
    """The data: one batch, drawn once from `seed`, shared by every sigma and every repeat.

    `digits` and `scored` are for addition and Gaussian rows.
    """

    data: enums.Data = setting(enums.Data.addition, "where the batch comes from")
    digits: int = setting(5, "digits of each number that is added; sequences have 3 digits + 3 tokens", least=1)
    batch_size: int = setting(64, "sequences in the batch", least=1)
    seed: int = setting(0, "seed of the batch, the same for every network")
    loss: enums.Loss = setting(
        enums.Loss.cross_entropy, "the loss; mse_sum_unshifted is the published code's sum of squares"
    )
    scored: enums.Scored = setting(enums.Scored.answer, "positions whose next token enters the loss")
    base: int = added(
        10, "for addition, the base of the numbers; the vocabulary has base + 2 tokens", least=2, most=1_000_000
    )
    path: str | None = setting(
        None,
        "for data digits, pictures of your own: FILE.npz with images (n, 8, 8) and labels (n); for data tokens, "
        "FILE.npy of ids, or a text for the model's tokenizer (null: random ids); for data masked_tokens too, the text "
        "with a sequence per line (null: sequences.txt of model.path); for data text, FILE of UTF-8 (null: the "
        "standard library's sources)",
        role=Role.place,
    )
    sha256: str | None = setting(
        None, "SHA-256 that the file of task.path must have; null: what it has when planned", role=Role.pin
    )
    length: int | None = added(
        None,
        "for data tokens and text, tokens of a sequence, at most those of a file's rows; null: as the file has it",
        least=1,
    )
    first_scored: int = added(0, "for data tokens and text, the first position whose next token enters the loss")
    correlation: float = added(
        0.0, "for data gaussian, the correlation of the entries of any two tokens of a sequence", least=0, below=1
    )
    label_smoothing: float = added(
        0.0, "share of a target's probability that cross-entropy spreads evenly over all words", least=0, below=1
    )
    weight_decay: float = added(
        0.0, "adds weight_decay / 2 |w|^2, over all parameters w, to the loss: to H and, with it, to H_f", least=0
    )
    masked_share: float = added(
        0.15, "for data masked_tokens, the share of a sequence's words that are masked (one at least)", above=0, below=1
    )
    masked_as: enums.MaskedAs = added(enums.MaskedAs.mask, "for data masked_tokens, what a masked token becomes")
    mask_id: int | None = added(
        None,
        "for data masked_tokens, the mask's word; null: the tokenizer's, or the last word for ids without one",
        least=0,
    )

    @property
    def vocabulary(self) -> int:
        """Different tokens, or classes: the digits, + and = of addition; the characters of a text and one more."""
        return self.data.facts.classes or self.base + 2

    @property
    def num_tokens(self) -> int:
        """Tokens of a sequence: a window of text; two numbers, two signs and their sum."""
        return (self.length or 0) if self.data == enums.Data.text else 3 * self.digits + 3

    @property
    def num_scored(self) -> int:
        """Positions of a sequence whose next token enters the loss."""
        if self.data == enums.Data.text:
            return self.num_tokens - 1 - self.first_scored
        return self.digits + 1 if self.scored == enums.Scored.answer else self.num_tokens - 1


@dataclass
class ModelConfig:
    """The network. `d_head: null` means d_model / n_heads, `d_mlp: null` 4 d_model (kind mlp: a transformer's size).

    `kind` names a module of hessfig.models.kinds; `factory` (with its `options`) is for kind python.
    """

    kind: str = setting("transformer", "kind of network: a module of hessfig.models.kinds, or python for model.factory")
    n_layers: int = setting(1, "number of layers; for kind cnn, a sixth of its convolutions", least=1, most=2_000)
    n_heads: int = setting(1, "attention heads of a layer; for kind cnn, groups of its GroupNorm", least=1)
    d_model: int = setting(128, "width of the residual stream", least=1)
    d_head: int | None = setting(None, "width of a head; null: d_model / n_heads", least=1)
    d_mlp: int | None = setting(
        None, "width inside the MLP; null: 4 d_model; for kind cnn, channels; null: d_model / 2", least=1
    )
    attention: enums.Attention = setting(enums.Attention.softmax, "what turns scores into mixing weights")
    attention_skip: bool = setting(True, "whether attention is added to the residual stream or replaces it")
    norm: enums.Norm = setting(
        enums.Norm.none,
        "where norms sit; sandwich: before and after each sublayer; for kind cnn, post is GroupNorm behind each layer",
    )
    mlp: enums.MLP = setting(enums.MLP.relu, "activation of the MLP sublayer; none leaves it out")
    query_key: enums.QueryKey = setting(
        enums.QueryKey.separate, "scores from W_Q and W_K, or from the single weight W_QK"
    )
    temperature: float = setting(1.0, "divides the attention scores", above=0)
    sigma_scales: enums.SigmaScales = setting(
        enums.SigmaScales.both, "what sigma scales: tokens and positions, or tokens alone"
    )
    initialisation: enums.Initialisation = added(
        enums.Initialisation.paper, "scales of the drawn weights: the paper's, or GPT-2's"
    )
    sink: enums.Sink = added(
        enums.Sink.none, "an attention sink put in by hand: on the first key's scores, in its embedding"
    )
    sink_beta: float = added(
        0.0, "its size: added to the scores, 1 + sink_beta times the embedding", least=0, example="4"
    )
    scaled_weight: enums.ScaledWeight | None = added(
        None, "the weight whose draw model.weight_scale multiplies, in every layer"
    )
    weight_scale: float = added(1.0, "factor on the draw of model.scaled_weight", above=0, example="2")
    attention_bias: enums.AttentionBias = added(
        enums.AttentionBias.none, "added to the scores of sigmoid attention: nothing, or -log of the sequence's length"
    )
    differential_lambda: float = added(
        0.8, "for differential attention, the fixed factor of the second softmax", least=0, below=1
    )
    differential_norm: bool = added(
        True, "for differential attention, an RMSNorm of every head's output, times 1 - differential_lambda"
    )
    scores: enums.Scores = added(
        enums.Scores.plain, "how queries and keys make scores; qk_norm and cosine have learned gains"
    )
    softcap: float = added(50.0, "for scores=softcap, the c of c tanh(scores / c)", above=0, example="50")
    norm_kind: enums.NormKind = added(enums.NormKind.layer, "LayerNorm, or RMSNorm with a gain and no shift")
    norm_eps: float = added(
        1e-5, "added to the variance in LayerNorm, and to the mean square in every RMSNorm", above=0, example="1e-6"
    )
    positions: enums.Positions = added(
        enums.Positions.learned, "learned embeddings, rotary queries and keys, slopes in the scores (alibi), or none"
    )
    n_kv_heads: int | None = added(
        None, "heads of keys and values, each shared by n_heads / n_kv_heads heads; null: n_heads", least=1
    )
    gate: enums.Gate = added(
        enums.Gate.none, "output: the mixed values are multiplied by the sigmoid of W_G x, before W_O"
    )
    tied: bool = added(False, "whether the unembedding is the token embedding, one weight W_E+W_U")
    window: int | None = added(
        None, "keys i - window < j < i + window are seen, of those a mask allows; null: all", least=1
    )
    residual_scale: float = added(1.0, "factor on the output of every sublayer, before it is added", above=0)
    patch: int = added(2, "for kind vit, pixels along a patch's side", least=1)
    factory: str | None = setting(
        None, "for kind python, the function that makes it: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"
    )
    options: dict[str, Any] = setting(
        {}, "arguments of model.factory by name; for kinds huggingface and transformer_lens, settings of random weights"
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
    random: bool = added(False, "for kind huggingface, random weights for the config.json of model.path")
    download: bool = setting(False, "for kind huggingface, whether a name may be fetched from the hub", role=Role.place)
    name: str | None = added(
        None,
        "for kind transformer_lens without model.path: native, or an architecture of TransformerLens's registry "
        "(GPT2LMHeadModel, LlamaForCausalLM, ...), with random weights",
    )
    architecture: str = added("gpt2", "for kind huggingface without model.path: gpt2, gpt_neox, llama, ...")
    vocabulary: int | None = added(
        None, "for kind huggingface without model.path: words; null: the architecture's", least=1
    )


@dataclass
class StateConfig:
    """The point of weight space: drawn for each sigma and seed, trained from there, or loaded from `path`."""

    kind: enums.State = setting(
        enums.State.initialised, "weights drawn from sigma and seed, trained from there, or read from a file"
    )
    path: str | None = setting(None, "for kind loaded, the file: safetensors, or a state_dict")
    sha256: str | None = setting(
        None, "SHA-256 that the file of state.path must have; null: what it has when planned", role=Role.pin
    )
    step: Any = setting(
        None, "for kind trained: the steps of the training; null: the last", "null, a step, or a list of steps"
    )


@dataclass
class GridConfig:
    """The values of sigma: `points` between `low` and `high`, or the explicit list `values`."""

    spacing: enums.Spacing = setting(enums.Spacing.log, "how the values of sigma are spread")
    low: float = setting(0.01, "smallest sigma")
    high: float = setting(10.0, "largest sigma")
    points: int = setting(20, "number of values of sigma")
    values: list[float] | None = setting(None, "the values of sigma, in place of the four settings above")


@dataclass
class EstimatorConfig:
    """How block norms are found, by whose products, and with how many probes (`auto`: at most; see variance_share)."""

    method: enums.Method = setting(enums.Method.auto, f"how a block norm is found; auto: {enums.AUTO}")
    products: enums.Products = setting(enums.Products.linearised, "whose Hessian-vector products")
    num_probes: int = setting(
        20, "random vectors for each column of blocks; with auto at most", least=1, most=MOST_PROBES
    )
    variance_share: float = setting(
        0.1, "with auto, the share of the spread over seeds that probing may add", above=0, below=1
    )


@dataclass
class SpectrumConfig:
    """How eigenvalues are found. Recurrences are float64 whatever the products are (`dtype`)."""

    k: int = setting(1, "how many of the outermost eigenvalues at either end", least=1, most=_MOST_OF_A_SPECTRUM)
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
    num_probes: int = setting(10, "random start vectors of a density", least=1, most=_MOST_OF_A_SPECTRUM)
    probes: enums.Probes = setting(enums.Probes.rademacher, "how the start vectors of a density are drawn")
    cut: float = setting(
        1e-10,
        "eigenvalues below this share of the largest in size count as zero in shares and condition numbers",
        above=0,
        below=1,
    )


@dataclass
class LandscapeConfig:
    """How L_k(w) = (l_1(w) + ... + l_k(w)) / k is looked at, l_i the loss of sample i of the task's batch.

    k runs from `first` to the number of samples, evenly in its logarithm. w* is the configured state.
    """

    samples: int | None = setting(
        None, "samples of the task's batch, the first ones; null: all of them", least=2, most=_MOST
    )
    distance: float | None = setting(
        None, "|w - w*|; null: at w* itself", above=0, allowed="a finite number > 0; null is w* itself"
    )
    direction: enums.Direction = setting(
        enums.Direction.random, "of w - w*: a random unit vector, or along the gradient of the batch"
    )
    permutations: int = setting(200, "orders of the samples that means and bands are over", least=2, most=_MOST)
    first: int = setting(1, "the smallest k", least=1, most=_MOST)
    points: int = setting(25, "places of k", least=2, most=_MOST)
    draws: int = setting(20, "random w of the integrals Delta_1 and Delta_2", least=2, most=_MOST)
    spread: float = setting(0.01, "standard deviation s of these w, N(w*, s^2 I)", above=0)
    dimensions: list[int] = added(
        [1, 4, 16], "numbers D of eigenvectors that span the w of landscape_subspace", least=1, most=1_000, once=True
    )
    curvatures: int = setting(
        8, "samples whose Hessian's largest eigenvalue in size is found, for the bound", least=1, most=_MOST
    )


@dataclass
class ApproximationConfig:
    """Which approximations of a block the quantity `approximations` compares with it."""

    names: list[Approximation] = setting(
        [],
        "approximations that are compared with each block; none named: all that a block can have",
        once=True,
        allowed=f"a list of {', '.join(Approximation)}",
        example="[kfac,kfoc]",
    )
    rank: int = setting(3, "Kronecker products in kronecker_sum", least=1, most=1_000)
    subsets: int = added(64, "sets of samples that `influence` leaves out, each a training", least=3, most=10_000)
    left_out: float = added(0.1, "share of the samples in such a set", above=0, below=1)


@dataclass
class DirectionsConfig:
    """How the loss is compared with its second-order expansion: on rays, along gradient descent, at critical points."""

    along: list[enums.Ray] = setting(
        list(enums.Ray),
        "directions of slices: eigenvectors of H (largest, smallest, bulk), the gradient, random",
        once=True,
        allowed=f"a list of {', '.join(enums.Ray)}",
        example="[largest,gradient]",
    )
    plane: list[enums.Ray] = setting(
        [enums.Ray.largest, enums.Ray.smallest],
        "the two directions that span the plane of a slice",
        size=2,
        once=True,
        allowed=f"two of {', '.join(enums.Ray)}",
        example="[largest,gradient]",
    )
    reach: float | None = setting(
        None,
        "how far slices go from the state; null: one and a half times as far as where the expansion departs",
        above=0,
        allowed="a finite number > 0, or null",
        example="1",
    )
    points: int = setting(41, "points of a slice, and along each side of a plane", least=3, most=1_001)
    departure: float = setting(
        0.1,
        "the expansion departs where its error exceeds this share of the largest change of the loss",
        above=0,
        below=1,
    )
    rate: float = setting(0.5, "learning rate of descent, as a share of 2 / (largest eigenvalue)", above=0)
    steps: int = setting(100, "steps of descent", least=2, most=_MOST_STEPS)
    evaluations: int = setting(200, "gradients that a search for a critical point may take", least=1, most=_MOST_STEPS)
    tolerance: float = setting(1e-8, "a critical point is found where the gradient's norm is no larger", above=0)
    named: list[enums.Heading] = added(
        [one for one in enums.Heading if one != enums.Heading.smallest],
        "directions of the quantity along: gradient, its signs, update, singular, random, eigenvectors",
        once=True,
        allowed=f"a list of {', '.join(enums.Heading)}",
        example="[gradient,update]",
    )
    rules: list[Optimiser] = added(
        [],
        "step rules whose updates along takes at the same state; none named: the training's own",
        once=True,
        allowed=f"a list of {', '.join(Optimiser)}",
        example="[adamw,muon]",
    )
    gradients: int = added(
        20, "gradients at the state that make the moments of a rule which is not the training's", least=1, most=10_000
    )
    starts: int = added(
        4, "random starts of each search for the largest curvature in a unit ball", least=0, most=10_000
    )


@dataclass
class CompressionConfig:
    """How the quantities `pruning` and `quantisation` remove and round weights."""

    damping: float = setting(
        0.01, "added to the diagonal before a matrix is inverted, as a share of its mean entry", above=0
    )
    shares: list[float] = setting(
        [place / 20 for place in range(1, 20)], "shares of the weights that are removed", least=0, most=1, once=True
    )
    bits: list[int] = setting([8, 4, 3], "bits of a rounded weight", least=1, most=16, once=True)


@dataclass
class TrainingConfig:
    """How a network is trained for `state=trained`; names and meanings are those of torch.optim.

    Which states are kept, and how it is tested on the way, change nothing of the trajectory: asking for more of them
    goes on from what is there. A constant schedule does not depend on `steps` either.
    """

    optimiser: Optimiser = setting(
        Optimiser.adamw, "the step rule; gd and those that divide by a curvature matrix are full batch"
    )
    learning_rate: float = setting(1e-3, "the largest learning rate", above=0)
    betas: list[float] = setting(
        [0.9, 0.98],
        "for adamw and adam: decay of the two moments",
        "two numbers",
        size=2,
        least=0,
        below=1,
        allowed="0 <= beta < 1",
    )
    eps: float = setting(1e-8, "for adamw and adam: added to the root of the second moment", above=0)
    weight_decay: float = setting(0.1, "of every parameter: decoupled for adamw, added to the gradient else", least=0)
    momentum: float = setting(0.0, "for sgd, muon and the step rules that divide by curvature", least=0, below=1)
    clip_norm: float = added(0.0, "the largest norm of a gradient; longer ones are scaled down (0: none are)", least=0)
    damping: float = added(0.01, "for the rules that divide by curvature: added to every eigenvalue", above=0)
    curvature: enums.Curvature = added(
        enums.Curvature.none,
        "what divides the learning rate: nothing, the largest eigenvalue, its blocks', or a stand-in",
    )
    refresh: int = added(100, "updates between two estimates of the curvature", least=1, most=_MOST_STEPS)
    schedule: enums.Schedule = setting(
        enums.Schedule.cosine, "after the warm-up: cosine to zero at the last step, or constant"
    )
    warmup: int = setting(100, "steps over which the learning rate rises to its largest", least=0, most=_MOST_STEPS)
    batch_size: int = setting(128, "sums of a batch; gd takes the whole fixed set", least=1, most=_MOST_STEPS)
    steps: int = setting(4000, "updates of a whole run", least=1, most=_MOST_STEPS)
    data: enums.TrainingData = setting(
        enums.TrainingData.fresh, "fresh sums at every step, or a fixed set: the task's batch, which is measured too"
    )
    cascades: float = setting(0.2, "share of a fresh batch that is enriched with cascades of carries", least=0, most=1)
    checkpoints: list[int] = setting([], "steps whose states are kept in addition to those of state.step and the last")
    evaluate_every: int = setting(
        500, "steps between tests on held-out examples (training.csv)", least=1, most=_MOST_STEPS
    )
    evaluation_size: int = setting(
        10_000, "held-out sums of a test, and of the quantity accuracy", least=1, most=_MOST_STEPS
    )
    dtype: enums.DType = setting(
        enums.DType.float32, "floating-point type of the training; states are measured in dtype"
    )
