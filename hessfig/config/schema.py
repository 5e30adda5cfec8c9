"""The configuration schema: every setting a verb may be told, with a line of help."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from hessfig.config.enums import (
    MLP,
    Attention,
    Average,
    Curvature,
    Data,
    Direction,
    DType,
    FigureGroup,
    Format,
    Initialisation,
    Kind,
    Launcher,
    Loss,
    Method,
    Norm,
    Optimiser,
    Probes,
    Products,
    Published,
    QueryKey,
    Reuse,
    ScaledWeight,
    Schedule,
    Scored,
    SigmaScales,
    Sink,
    Spacing,
    State,
    Style,
    TrainingData,
)
from hessfig.terms import PARTS, Part


@dataclass
class TaskConfig:
    """The data: one batch, drawn once from `seed`, shared by every sigma and every repeat.

    `digits` and `scored` are for addition and Gaussian rows.
    """

    data: Annotated[Data, "where the batch comes from"] = Data.addition
    digits: Annotated[int, "digits of each number that is added; sequences have 3 digits + 3 tokens"] = 5
    batch_size: Annotated[int, "sequences in the batch"] = 64
    seed: Annotated[int, "seed of the batch, the same for every network"] = 0
    loss: Annotated[Loss, "the loss; mse_sum_unshifted is the published code's sum of squares"] = Loss.cross_entropy
    scored: Annotated[Scored, "positions whose next token enters the loss"] = Scored.answer
    base: Annotated[int, "for addition, the base of the numbers; the network knows base + 2 tokens"] = 10
    path: Annotated[
        str | None,
        "for data digits, pictures of your own: FILE.npz with images (n, 8, 8) and labels (n); for data tokens, "
        "FILE.npy of ids, or a text for the model's tokenizer (null: random ids)",
    ] = None
    sha256: Annotated[str | None, "SHA-256 that the file of task.path must have; null: what it has when planned"] = None
    length: Annotated[
        int | None, "for data tokens, tokens of a sequence, at most those of a file's rows; null: as the file has it"
    ] = None
    first_scored: Annotated[int, "for data tokens, the first position whose next token enters the loss"] = 0

    @property
    def vocabulary(self) -> int:
        """Tokens of the addition task: the digits, + and =."""
        return self.base + 2


@dataclass
class ModelConfig:
    """The network. `d_head: null` means d_model / n_heads, `d_mlp: null` 4 d_model (kind mlp: a transformer's size).

    `kind` names a module of hessfig.models; `factory` (with its `options`) is for kind python.
    """

    kind: Annotated[str, "kind of network: a module of hessfig.models, or python for model.factory"] = "transformer"
    n_layers: Annotated[int, "number of layers"] = 1
    n_heads: Annotated[int, "attention heads of a layer"] = 1
    d_model: Annotated[int, "width of the residual stream"] = 128
    d_head: Annotated[int | None, "width of a head; null: d_model / n_heads"] = None
    d_mlp: Annotated[int | None, "width inside the MLP; null: 4 d_model"] = None
    attention: Annotated[Attention, "what turns scores into mixing weights"] = Attention.softmax
    attention_skip: Annotated[bool, "whether attention is added to the residual stream or replaces it"] = True
    norm: Annotated[Norm, "where LayerNorm sits"] = Norm.none
    mlp: Annotated[MLP, "activation of the MLP sublayer; none leaves it out"] = MLP.relu
    query_key: Annotated[QueryKey, "scores from W_Q and W_K, or from the single weight W_QK"] = QueryKey.separate
    temperature: Annotated[float, "divides the attention scores"] = 1.0
    sigma_scales: Annotated[SigmaScales, "what sigma scales: tokens and positions, or tokens alone"] = SigmaScales.both
    initialisation: Annotated[Initialisation, "scales of the drawn weights: the paper's, or GPT-2's"] = (
        Initialisation.paper
    )
    sink: Annotated[Sink, "an attention sink put in by hand: on the first key's scores, in its embedding"] = Sink.none
    sink_beta: Annotated[float, "its size: added to the scores, 1 + sink_beta times the embedding"] = 0.0
    scaled_weight: Annotated[
        ScaledWeight | None, "the weight whose draw model.weight_scale multiplies, in every layer"
    ] = None
    weight_scale: Annotated[float, "factor on the draw of model.scaled_weight"] = 1.0
    patch: Annotated[int, "for kind vit, pixels along a patch's side"] = 2
    factory: Annotated[
        str | None, "for kind python, the function that makes it: FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"
    ] = None
    options: Annotated[
        dict[str, Any], "arguments of model.factory by name; for kind huggingface, settings of its random weights"
    ] = field(default_factory=dict)
    path: Annotated[
        str | None,
        "for kinds huggingface and transformer_lens, the folder with config.json and weights (or a name of the hub); "
        "null: random weights",
    ] = None
    sha256: Annotated[
        str | None, "hash that the files of model.path or model.factory must have; null: what they have when planned"
    ] = None
    random: Annotated[bool, "for kind huggingface, random weights for the config.json of model.path"] = False
    download: Annotated[bool, "for kind huggingface, whether a name may be fetched from the hub"] = False
    architecture: Annotated[str, "for kind huggingface without model.path: gpt2, gpt_neox, llama, ..."] = "gpt2"
    vocabulary: Annotated[int | None, "for kind huggingface without model.path: words; null: the architecture's"] = None


@dataclass
class StateConfig:
    """The point of weight space: drawn anew for every sigma and seed, trained from there, or loaded from `path`."""

    kind: Annotated[State, "weights drawn from sigma and seed, trained from there, or read from a file"] = (
        State.initialised
    )
    path: Annotated[str | None, "for kind loaded, the file: safetensors, or a state_dict"] = None
    sha256: Annotated[str | None, "SHA-256 that the file of state.path must have; null: what it has when planned"] = (
        None
    )
    step: Annotated[
        Any, "for kind trained: the steps of the training; null: the last", "null, a step, or a list of steps"
    ] = None


def with_defaults(model: ModelConfig) -> ModelConfig:
    """Return `model` with d_head and d_mlp resolved to numbers; d_mlp of kind mlp needs its task (models.mlp)."""
    d_head = model.d_head or model.d_model // model.n_heads
    d_mlp = model.d_mlp or (None if model.kind == Kind.mlp else 4 * model.d_model)
    return ModelConfig(**{**vars(model), "d_head": d_head, "d_mlp": d_mlp})


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
    axis: Annotated[str, "what curves run along: sigma, step, index (k), or a varied setting"] = "sigma"
    windows: Annotated[
        list[Any], "ranges of the axis that slopes are fitted on; null: open", "a list of [low, high]"
    ] = field(default_factory=lambda: [[None, 1.0]])
    average: Annotated[Average, "whose logarithm slopes are fitted to: the mean over seeds, or the geometric mean"] = (
        Average.arithmetic
    )


@dataclass
class FigureConfig:
    """A figure: which sweep it draws, in which layout, and where it stands in the gallery (`group`, `order`).

    `x`, `colour` and `dashes` name sigma, step, layer, part or a varied setting, for layouts that take them.
    `published` says what the authors published of it, hence whether `compare` can serve.
    """

    name: Annotated[str, "name of the figure and of its files"] = ""
    sweep: Annotated[str, "the sweep it draws"] = "sigma"
    layout: Annotated[str, "how it is laid out"] = ""
    group: Annotated[FigureGroup, "where it stands: in the paper, beyond it, a study, or your own"] = FigureGroup.own
    order: Annotated[int, "its place in `make figures`"] = 100
    published: Annotated[Published, "what the authors published of it"] = Published.nothing
    x: Annotated[str | None, "what runs along its x axis: sigma, step, or a varied setting"] = None
    colour: Annotated[str | None, "what colours tell apart"] = None
    dashes: Annotated[str | None, "what dashes tell apart"] = None
    width: Annotated[float | None, "inches, with type of 7 points and more; null: the style's (default 5.5)"] = None
    panels: Annotated[
        list[str], "panels to draw, such as [W_V:H_o, W_Q:H]; empty: all (a name that is none lists them)"
    ] = field(default_factory=list)
    note: Annotated[bool, "the note below the panels; false writes it to a .txt beside the figure"] = True
    formats: Annotated[list[Format], "files to write; the numbers are written as CSV beside them"] = field(
        default_factory=lambda: [Format.pdf, Format.png, Format.svg]
    )
    options: Annotated[dict[str, Any], "options of the layout"] = field(default_factory=dict)


@dataclass
class LandscapeConfig:
    """How L_k(w) = (l_1(w) + ... + l_k(w)) / k is looked at, l_i the loss of sample i of the task's batch.

    k runs from `first` to the number of samples, evenly in its logarithm. w* is the configured state.
    """

    samples: Annotated[int | None, "samples of the task's batch, the first ones; null: all of them"] = None
    distance: Annotated[float | None, "|w - w*|; null: at w* itself"] = None
    direction: Annotated[Direction, "of w - w*: a random unit vector, or along the gradient of the batch"] = (
        Direction.random
    )
    permutations: Annotated[int, "orders of the samples that means and bands are over"] = 200
    first: Annotated[int, "the smallest k"] = 1
    points: Annotated[int, "places of k"] = 25
    draws: Annotated[int, "random w of the integrals Delta_1 and Delta_2"] = 20
    spread: Annotated[float, "standard deviation s of these w, N(w*, s^2 I)"] = 0.01
    curvatures: Annotated[int, "samples whose Hessian's largest eigenvalue in size is found, for the bound"] = 8


@dataclass
class LauncherConfig:
    """Who measures. All but `kind` are for kind slurm; what is null is left to the cluster's own defaults.

    None of them changes a number: the key of a cell knows nothing of them.
    """

    kind: Annotated[Launcher, "workers of this machine, or the tasks of a Slurm job array"] = Launcher.local
    tasks: Annotated[int, "tasks of the job array; each measures its share of the cells"] = 4
    cpus_per_task: Annotated[int, "cores of a task; with workers=auto it has as many workers"] = 1
    gpus: Annotated[int, "GPUs of a task (with device=cuda)"] = 0
    memory: Annotated[str | None, "memory of a task: 16GB, 500MB", "a size or null"] = None
    time: Annotated[str | None, "time limit of a task: minutes, HH:MM:SS or D-HH:MM:SS", "a time or null"] = None
    partition: Annotated[str | None, "partition of the cluster"] = None
    account: Annotated[str | None, "account that is charged"] = None
    options: Annotated[list[str], "more options of sbatch: '[\"--qos=short\"]'"] = field(default_factory=list)
    wait: Annotated[bool, "wait with progress and collect; false: submit, return, and collect later"] = True


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

    method: Annotated[Method, "how a block norm is found; auto: exact where that is cheap, probes elsewhere"] = (
        Method.auto
    )
    products: Annotated[Products, "whose Hessian-vector products"] = Products.linearised
    num_probes: Annotated[int, "random vectors for each column of blocks; with auto at most"] = 20
    variance_share: Annotated[float, "with auto, the share of the spread over seeds that probing may add"] = 0.1


@dataclass
class SpectrumConfig:
    """How eigenvalues are found. Recurrences are float64 whatever the products are (`dtype`)."""

    k: Annotated[int, "how many of the outermost eigenvalues at either end"] = 1
    tolerance: Annotated[
        float, "residual at which an extreme eigenvalue is found, relative to the largest eigenvalue in size"
    ] = 1e-6
    steps: Annotated[
        int, "Lanczos steps: nodes of a probe of a density; of an extreme eigenvalue, vectors before a restart"
    ] = 100
    num_probes: Annotated[int, "random start vectors of a density"] = 10
    probes: Annotated[Probes, "how the start vectors of a density are drawn"] = Probes.rademacher
    cut: Annotated[
        float, "eigenvalues below this share of the largest in size count as zero in shares and condition numbers"
    ] = 1e-10


@dataclass
class TrainingConfig:
    """How a network is trained for `state=trained`; names and meanings are those of torch.optim.

    Which states are kept, and how it is tested on the way, change nothing of the trajectory: asking for more of them
    goes on from what is there. A constant schedule does not depend on `steps` either.
    """

    optimiser: Annotated[Optimiser, "adamw, adam and sgd on mini-batches; gd: plain gradient descent, full batch"] = (
        Optimiser.adamw
    )
    learning_rate: Annotated[float, "the largest learning rate"] = 1e-3
    betas: Annotated[list[float], "for adamw and adam: decay of the two moments"] = field(
        default_factory=lambda: [0.9, 0.98]
    )
    eps: Annotated[float, "for adamw and adam: added to the root of the second moment"] = 1e-8
    weight_decay: Annotated[float, "of every parameter: decoupled for adamw, added to the gradient else"] = 0.1
    momentum: Annotated[float, "for sgd"] = 0.0
    curvature: Annotated[
        Curvature, "what divides the learning rate: nothing, the largest eigenvalue, its blocks', or a stand-in"
    ] = Curvature.none
    refresh: Annotated[int, "updates between two looks at the curvature"] = 100
    schedule: Annotated[Schedule, "after the warm-up: cosine to zero at the last step, or constant"] = Schedule.cosine
    warmup: Annotated[int, "steps over which the learning rate rises to its largest"] = 100
    batch_size: Annotated[int, "sums of a batch; gd takes the whole fixed set"] = 128
    steps: Annotated[int, "updates of a whole run"] = 4000
    data: Annotated[
        TrainingData, "fresh sums at every step, or a fixed set: the task's batch, which is measured too"
    ] = TrainingData.fresh
    cascades: Annotated[float, "share of a fresh batch that is enriched with cascades of carries"] = 0.2
    checkpoints: Annotated[list[int], "steps whose states are kept beside those of state.step and the last"] = field(
        default_factory=list
    )
    evaluate_every: Annotated[int, "steps between tests on unseen sums (training.csv)"] = 500
    evaluation_size: Annotated[int, "unseen sums of a test, and of the quantity accuracy"] = 10_000
    dtype: Annotated[DType, "floating-point type of the training; states are measured in dtype"] = DType.float32


@dataclass
class Config:
    """Everything a verb may be told; every field is a command-line override."""

    task: TaskConfig = field(default_factory=TaskConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    state: StateConfig = field(default_factory=StateConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    estimator: EstimatorConfig = field(default_factory=EstimatorConfig)
    spectrum: SpectrumConfig = field(default_factory=SpectrumConfig)
    landscape: LandscapeConfig = field(default_factory=LandscapeConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    figure: FigureConfig = field(default_factory=FigureConfig)
    quantities: Annotated[list[str], "what is measured: frobenius, trace, spectrum, density, ..."] = field(
        default_factory=lambda: ["frobenius"]
    )
    blocks: Annotated[Any, "blocks of the Hessian: [W_V, [W_Q, W_V]]", "all, or a list of weights and pairs"] = field(
        default_factory=lambda: ["W_V", "W_Q"]
    )
    parts: Annotated[
        list[Part], "parts of the Hessian: full, outer-product, functional; H_oT and H_fT at the scores of query_key"
    ] = field(default_factory=lambda: list(PARTS))
    seeds: Annotated[int, "number of initialisations"] = 20
    first_seed: Annotated[int, "the first of their seeds; the others follow it"] = 1234
    dtype: Annotated[DType, "floating-point type of networks and products"] = DType.float64
    device: Annotated[str, "cpu, cuda or cuda:N"] = "cpu"
    workers: Annotated[Any, "worker processes; auto: one a core", "auto or a whole number"] = "auto"
    force_workers: Annotated[bool, "take more workers than there are cores"] = False
    shard: Annotated[str | None, "measure a share of the cells only: 2/8 is the second of eight", "K/N or null"] = None
    output_dir: Annotated[str, "folder of all results"] = "outputs"
    memory: Annotated[str, "for task=tokens, what the products of a worker may take: its micro-batches"] = "8GB"
    reuse: Annotated[
        Reuse,
        "for model.factory, which finished cells are reused: those of networks that it still returns (content: it is "
        "called for each), or of unchanged code (sources: for factories that take long)",
    ] = Reuse.content
    dry_run: Annotated[bool, "say what would be done, and do nothing"] = False
    yes: Annotated[bool, "remove what `clean` lists without asking"] = False
    config_dir: Annotated[str | None, "set by --config-dir"] = None
    reference: Annotated[str | None, "published values: a CSV file, or a folder of the authors' result files"] = None
    single_file: Annotated[bool, "the report as one file to mail, in place of a folder of pages"] = False
    tolerance: Annotated[float, "how far a slope may be from its prediction"] = 0.1
    resamples: Annotated[int, "bootstrap resamples behind a slope's error"] = 2000
    levels: Annotated[bool, "in place of slopes, mean levels in each window and how they go with settings"] = False
    quantity: Annotated[
        str | None,
        "fit this quantity of the table; null: frobenius where it was measured, else the only one there is",
        "a name or null",
    ] = None
    rows: Annotated[Any, "print blocks of these row weights only: W_Q, or [W_Q, W_V]", "a name or a list"] = None
    part: Annotated[Any, "print these parts only: H_o, or [H_o, H]", "a part or a list"] = None
    style: Annotated[Style, "type and width of figures: our own, or a conference's"] = Style.default
