"""Networks of real shapes with random weights, for the rows of real.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """A kind of language model of transformers, its sizes, and its batch."""

    kind: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    sequences: int
    length: int


TINY = Shape("GPT2", 2, 16, 2, 50, 4, 6)
SHAPES = {
    "small": Shape("GPT2", 4, 64, 4, 2000, 4, 64),  # 332 160 parameters
    "middle": Shape("GPT2", 6, 256, 4, 1000, 4, 64),  # 5.0 M
    "gpt2": Shape("GPT2", 12, 768, 12, 50257, 4, 1024),  # 124 M
    "llama": Shape("Llama", 22, 2048, 32, 32000, 4, 512),  # 1.1 B
    "long llama": Shape("Llama", 22, 2048, 32, 32000, 1, 2048),
}


def language_model(
    shape: Shape, device: str, attention: str = "eager"
) -> tuple[Any, Tensor]:
    """Return the network in evaluation mode and the tokens (sequences, length), both on the device."""
    import transformers

    torch.manual_seed(0)
    with torch.device(device):
        network = getattr(transformers, f"{shape.kind}{_CLASSES[shape.kind]}")(
            _config(shape, attention)
        ).eval()
    generator = torch.Generator().manual_seed(0)
    return network, torch.randint(
        shape.vocabulary, (shape.sequences, shape.length), generator=generator
    ).to(device)


_CLASSES = {"GPT2": "LMHeadModel", "Llama": "ForCausalLM"}


def _config(shape: Shape, attention: str) -> Any:
    import transformers

    sizes: dict[str, Any] = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.length,
    }
    if shape.kind == "Llama":
        sizes |= {
            "intermediate_size": 11 * shape.width // 4,
            "num_key_value_heads": max(1, shape.heads // 8),
        }
    no = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), None)
    return getattr(transformers, f"{shape.kind}Config")(
        **sizes, **no, attn_implementation=attention, use_cache=False
    )


def loss_of(network: Any, inputs: Batch) -> Tensor:
    """Return the loss as a training would compute it."""
    loss: Tensor = network(**inputs).loss
    return loss
