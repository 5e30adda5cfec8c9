"""Networks of real shapes with random weights, for the rows of real.py."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def language_model(shape: Shape, device: str, attention: str = "eager") -> tuple[Any, Tensor]:
    """Return the network in evaluation mode and the tokens (sequences, length), both on the device."""
    import transformers

    torch.manual_seed(0)
    with torch.device(device):
        network = getattr(transformers, f"{shape.kind}{_CLASSES[shape.kind]}")(_config(shape, attention)).eval()
    generator = torch.Generator().manual_seed(0)
    return network, torch.randint(shape.vocabulary, (shape.sequences, shape.length), generator=generator).to(device)


_CLASSES = {"GPT2": "LMHeadModel", "Llama": "ForCausalLM", "GPTNeoX": "ForCausalLM", "OPT": "ForCausalLM"}


def _config(shape: Shape, attention: str) -> Any:
    import transformers

    sizes: dict[str, Any] = {
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": shape.length,
    }
    wide = 11 * shape.width // 4 if shape.kind == "Llama" else 4 * shape.width
    if shape.kind == "OPT":
        sizes |= {"ffn_dim": wide, "word_embed_proj_dim": shape.width}
    elif shape.kind != "GPT2":
        sizes |= {"intermediate_size": wide}
    if shape.kind == "Llama":
        sizes |= {"num_key_value_heads": max(1, shape.heads // 8)}
    no = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), None)
    return getattr(transformers, f"{shape.kind}Config")(**sizes, **no, attn_implementation=attention, use_cache=False)


def architecture(name: str) -> tuple[nn.Module, Any, Any]:
    """Return a network of some 10^5 parameters, its inputs and, unless they hold labels, targets."""
    causal = {"GPT-2": "GPT2", "GPT-NeoX": "GPTNeoX", "OPT": "OPT", "Llama": "Llama"}
    if name in causal:
        shape = replace(SHAPES["small"], kind=causal[name], layers=2, length=32)
        network, tokens = language_model(shape, "cpu")
        return network, {"input_ids": tokens, "labels": tokens}, None
    torch.manual_seed(0)
    if name == "torch encoder":
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, activation="gelu", batch_first=True)
        network = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(16 * 64, 10))
        return network.eval(), torch.randn(8, 16, 64), torch.randint(10, (8,))
    return _encoder_of_transformers(name)


def _encoder_of_transformers(name: str) -> tuple[nn.Module, Any, None]:
    import transformers

    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 256}
    if name == "ViT":
        config = transformers.ViTConfig(
            **sizes, image_size=32, patch_size=8, num_labels=10, attn_implementation="eager"
        )
        network = transformers.ViTForImageClassification(config)
        return network.eval(), {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(10, (4,))}, None
    config = transformers.BertConfig(**sizes, vocab_size=2000, max_position_embeddings=32, attn_implementation="eager")
    tokens = torch.randint(1, 2000, (4, 32))
    return transformers.BertForMaskedLM(config).eval(), {"input_ids": tokens, "labels": tokens}, None


def loss_of(network: Any, inputs: Any, targets: Any = None) -> Tensor:
    """Return the loss as a training would compute it."""
    return network(**inputs).loss if isinstance(inputs, dict) else F.cross_entropy(network(inputs), targets)


def loss_in_double(network: Any, inputs: Any, targets: Any = None) -> Tensor:
    """Return the same loss of a network in float64; models of transformers round their logits to float32 for theirs."""
    if not isinstance(inputs, dict):
        return F.cross_entropy(network(inputs.double()), targets)
    given = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
    labels = given.pop("labels")
    logits = network(**given).logits
    if type(network).__name__.endswith(tuple(_CLASSES.values())):  # the next token
        logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())
