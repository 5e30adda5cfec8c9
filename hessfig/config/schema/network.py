"""Settings of what is measured: the data, the network and its point of weight space."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from hessfig.config.choices import (
    MLP,
    Attention,
    Data,
    Initialisation,
    Kind,
    Loss,
    Norm,
    QueryKey,
    ScaledWeight,
    Scored,
    SigmaScales,
    Sink,
    State,
)


@dataclass
class TaskConfig:
    """The data: one batch, drawn once from `seed`, shared by every sigma and every repeat.

    `digits` and `scored` are for addition and Gaussian rows.
    """

    data: Annotated[Data, "where the batch comes from"] = Data.addition
    digits: Annotated[int, "digits of each number that is added; sequences have 3 digits + 3 tokens"] = 5
    batch_size: Annotated[int, "sequences in the batch"] = 64
    seed: Annotated[int, "seed of the batch, the same for every network"] = 0
    loss: Annotated[Loss, "the loss; mse_sum_unshifted is the published code's sum of squares"] = (
        Loss.cross_entropy
    )
    scored: Annotated[Scored, "positions whose next token enters the loss"] = Scored.answer
    base: Annotated[int, "for addition, the base of the numbers; the network knows base + 2 tokens"] = 10
    path: Annotated[
        str | None,
        "for data digits, pictures of your own: FILE.npz with images (n, 8, 8) and labels (n); for data tokens, "
        "FILE.npy of ids, or a text for the model's tokenizer (null: random ids)",
    ] = None
    sha256: Annotated[
        str | None, "SHA-256 that the file of task.path must have; null: what it has when planned"
    ] = None
    length: Annotated[
        int | None,
        "for data tokens, tokens of a sequence, at most those of a file's rows; null: as the file has it",
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
    initialisation: Annotated[Initialisation, "scales of the drawn weights: the paper's, or GPT-2's"] = (
        Initialisation.paper
    )
    sink: Annotated[Sink, "an attention sink put in by hand: on the first key's scores, in its embedding"] = (
        Sink.none
    )
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
        dict[str, Any],
        "arguments of model.factory by name; for kind huggingface, settings of its random weights",
    ] = field(default_factory=dict)
    path: Annotated[
        str | None,
        "for kinds huggingface and transformer_lens, the folder with config.json and weights (or a name of the hub); "
        "null: random weights",
    ] = None
    sha256: Annotated[
        str | None,
        "hash that the files of model.path or model.factory must have; null: what they have when planned",
    ] = None
    random: Annotated[bool, "for kind huggingface, random weights for the config.json of model.path"] = False
    download: Annotated[bool, "for kind huggingface, whether a name may be fetched from the hub"] = False
    architecture: Annotated[str, "for kind huggingface without model.path: gpt2, gpt_neox, llama, ..."] = (
        "gpt2"
    )
    vocabulary: Annotated[
        int | None, "for kind huggingface without model.path: words; null: the architecture's"
    ] = None


@dataclass
class StateConfig:
    """The point of weight space: drawn anew for every sigma and seed, trained from there, or loaded from `path`."""

    kind: Annotated[State, "weights drawn from sigma and seed, trained from there, or read from a file"] = (
        State.initialised
    )
    path: Annotated[str | None, "for kind loaded, the file: safetensors, or a state_dict"] = None
    sha256: Annotated[
        str | None, "SHA-256 that the file of state.path must have; null: what it has when planned"
    ] = None
    step: Annotated[
        Any, "for kind trained: the steps of the training; null: the last", "null, a step, or a list of steps"
    ] = None


def with_defaults(model: ModelConfig) -> ModelConfig:
    """Return `model` with d_head and d_mlp resolved to numbers; d_mlp of kind mlp needs its task (models.mlp)."""
    d_head = model.d_head or model.d_model // model.n_heads
    d_mlp = model.d_mlp or (None if model.kind == Kind.mlp else 4 * model.d_model)
    return ModelConfig(**{**vars(model), "d_head": d_head, "d_mlp": d_mlp})
