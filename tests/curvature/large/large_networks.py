"""Large networks of others: tiny models of transformers, rows by plain double backward, and the engine of a problem."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hessfig
from hessfig.config.enums import Products
from hessfig.config.science import ModelConfig
from hessfig.curvature.large.own_column import OwnColumn
from hessfig.models.routes import Engines
from hessfig.terms import Block, Part

Case = tuple[nn.Module, Tensor, Tensor]
COMMON = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 32,
    "vocab_size": 1500,
}
TEXT: dict[str, dict[str, Any]] = {
    "GPT2LMHeadModel": {
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 32,
        "vocab_size": 1500,
        "n_positions": 256,
    },
    "GPTNeoXForCausalLM": {
        **COMMON,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    },
    "OPTForCausalLM": {
        **COMMON,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 32,
    },
    "LlamaForCausalLM": {
        **COMMON,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    },
    "BertForMaskedLM": {
        **COMMON,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
    },
}


def of_transformers(name: str, length: int = 8) -> Case:
    """Return a model of transformers with random weights, and 4 sequences of tokens; some targets are ignored."""
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, name)
    config = model.config_class(**TEXT[name], attn_implementation="eager")
    tokens = torch.randint(3, 1500, (4, length))
    targets = torch.randint(0, 1500, (4, length))
    targets[0, 3:] = targets[2, 0] = -100
    return model(config).eval(), tokens, targets


def vit() -> Case:
    """Return a ViT of transformers with random weights, and five pictures."""
    import transformers

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
    }
    config = transformers.ViTConfig(
        **sizes, image_size=12, patch_size=4, num_labels=7, attn_implementation="eager"
    )
    return (
        transformers.ViTForImageClassification(config).eval(),
        torch.randn(5, 3, 12, 12),
        torch.arange(5),
    )


def encoder() -> Case:
    """Return an encoder of torch in front of a linear map."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True, activation="gelu")
    network = nn.Sequential(
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(48, 7)
    ).eval()
    return network, torch.randn(3, 6, 48), torch.randint(0, 7, (3, 6))


CASES: dict[str, Callable[[], Case]] = {
    **{name: lambda name=name: of_transformers(name) for name in TEXT},
    "ViT": vit,
    "TransformerEncoder": encoder,
}


def problem_of(
    network: nn.Module, inputs: Any, targets: Any, **more: Any
) -> hessfig.Problem:
    """Return the problem of one batch under cross-entropy; of models of transformers the logits are scored."""
    outputs = "logits" if hasattr(network, "config") else None
    return hessfig.Problem(
        network, inputs, targets, "cross_entropy", outputs=outputs, **more
    )


def engines(problem: hessfig.Problem, dtype: str = "float64") -> Engines:
    """Return the engines of a problem."""
    return Engines(problem.objective(dtype), ModelConfig("python"), Products.linearised)


def column_of(
    problem: hessfig.Problem, dtype: str = "float64", name: str = "all"
) -> OwnColumn:
    """Return one column of a problem; its rows are those of the same name."""
    column = engines(problem, dtype).column(0, name, [Block(0, name, name)])
    assert isinstance(column, OwnColumn)
    return column


def products(column: OwnColumn, vectors: Tensor, *parts: Part) -> dict[Part, Tensor]:
    """Return the products of a column of one block, by part."""
    made = column.split_matmat(vectors.to(column.dtype), parts)
    return {part: one for (_, part), one in made.items()}


def check_close(found: Mapping[Any, Tensor], truth: Mapping[Any, Tensor]) -> None:
    """Compare products with the true ones."""
    for key, one in found.items():
        size = float(truth[key].norm())
        torch.testing.assert_close(one, truth[key], rtol=1e-9, atol=1e-12 * size)


def by_parameter(network: nn.Module, entries: Tensor) -> dict[str, Tensor]:
    """Return the entries of a vector over all parameters, by parameter."""
    named = dict(network.named_parameters())
    return dict(
        zip(named, entries.split([one.numel() for one in named.values()]), strict=True)
    )


class Plain:
    """H, H_o and H_f of cross-entropy by plain double backward, through objects of the user.

    H_f is that of the outputs times the gradient of the loss in the outputs, and H_o
    the rest.
    """

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        network, inputs, targets = case
        network = copy.deepcopy(network).to(dtype)
        self.network = network
        self.at = list(network.parameters())
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
            returned = network(
                inputs.to(dtype) if inputs.is_floating_point() else inputs
            )
        outputs: Tensor = returned if isinstance(returned, Tensor) else returned.logits
        leaf = outputs.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self._loss(leaf, targets), leaf)
        self._of_whole = torch.autograd.grad(
            self._loss(outputs, targets), self.at, create_graph=True
        )
        self._of_outputs = torch.autograd.grad(
            (outputs * slope).sum(), self.at, create_graph=True
        )
        self.gradient = self._flat(self._of_whole).detach()

    def products(self, vector: Tensor) -> dict[Part, Tensor]:
        """Return the products with a vector over all parameters."""
        whole = self._along(self._of_whole, vector)
        functional = self._along(self._of_outputs, vector)
        return {Part.H: whole, Part.H_f: functional, Part.H_o: whole - functional}

    def _along(self, slopes: tuple[Tensor, ...], vector: Tensor) -> Tensor:
        along = (slopes := self._flat(slopes)) @ vector
        return self._flat(
            torch.autograd.grad(
                along, self.at, retain_graph=True, materialize_grads=True
            )
        )

    @staticmethod
    def _flat(pieces: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([piece.flatten() for piece in pieces])

    @staticmethod
    def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def off_by_parameter(
    network: nn.Module, mine: Tensor, truth: Tensor, longest: float
) -> Mapping[str, float]:
    """Return the difference in the rows of every parameter, relative to their true length.

    Rows that vanish (of biases of keys) are compared with a hundredth of what each
    would have of the `longest` product of all parts if its entries were equal.
    """
    share = 1e-2 * longest / len(truth) ** 0.5
    pairs = zip(
        by_parameter(network, mine.double()).items(),
        by_parameter(network, truth).values(),
        strict=True,
    )
    found = {}
    for (name, one), other in pairs:
        found[name] = float((one - other).norm()) / max(
            float(other.norm()), share * other.numel() ** 0.5
        )
    return found
