"""Settings of what is measured: the data, the network and its point of weight space."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from hessfig.config.choices import MLP, Attention, Data, Loss, Norm, QueryKey, Scored, SigmaScales, State


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
    path: Annotated[
        str | None,
        "for data tokens, the file: .npy of ids, or text for the model's tokenizer; null: random ids",
    ] = None
    length: Annotated[int | None, "for data tokens, tokens of a sequence; null: as the file has it"] = None
    first_scored: Annotated[int, "for data tokens, the first position whose next token enters the loss"] = 0


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
    options: Annotated[
        dict[str, Any],
        "arguments of model.factory by name; for kind huggingface, settings of its random weights",
    ] = field(default_factory=dict)
    path: Annotated[
        str | None, "for kind huggingface, the folder with config.json (or a name); null: random weights"
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
    """The point of weight space: drawn anew for every sigma and seed, or loaded from the file `path`."""

    kind: Annotated[State, "weights drawn from sigma and seed, or read from a file"] = State.initialised
    path: Annotated[str | None, "for kind loaded, the file: safetensors, or a state_dict"] = None


def with_defaults(model: ModelConfig) -> ModelConfig:
    """Return `model` with d_head and d_mlp resolved to numbers."""
    d_head = model.d_head or model.d_model // model.n_heads
    return ModelConfig(**{**vars(model), "d_head": d_head, "d_mlp": model.d_mlp or 4 * model.d_model})
