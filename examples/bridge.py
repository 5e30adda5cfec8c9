"""Blocks of a TransformerLens model under its own names, its attention, and a block compared with plain PyTorch."""

import torch
from torch.nn import functional
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge.sources.native import boot

import hessfig

torch.manual_seed(0)
sizes = {
    "n_layers": 2,
    "n_heads": 2,
    "d_model": 16,
    "d_head": 8,
    "d_mlp": 32,
    "n_ctx": 12,
    "d_vocab": 20,
}
bridge = boot(
    TransformerBridgeConfig(**sizes, act_fn="gelu", normalization_type="LN", seed=0)
).eval()
tokens = torch.randint(0, 20, (8, 12))

# Every token is to predict the next one; weights have the names of the paper, heads are
# counted from 1.
problem = hessfig.Problem(bridge, tokens)
table = hessfig.measure(
    problem, blocks=["W_V", "W_Q.h2@1", ("W_Q", "W_K")], parts="H", estimator="dense"
)
print(table[["layer", "row", "col", "value"]])

# Through the bridge's hooks, at the same weights: how far attention reaches back, and
# how long the stream is.
patterns = hessfig.lens.attention_patterns(problem)
norms = hessfig.lens.residual_norms(problem)
places = torch.arange(12.0)
print(
    "mean distance of attention by layer and head:",
    ((places[:, None] - places) * patterns).sum(-1).mean((1, 3)),
)
print(
    "mean norm of the residual stream below and behind the layers:", norms.mean((1, 2))
)

# The same block of W_V in layer 2 by double backward through the bridge's own model.
network = bridge.original_model.double()
path = next(
    name
    for name, _ in network.named_parameters()
    if "layers.1." in name and ".v." in name and "weight" in name
)


def loss(weight: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of the next token with another W_V in layer 2."""
    logits = torch.func.functional_call(network, {path: weight}, (tokens,))
    return functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    )


expected = (
    torch.autograd.functional.hessian(loss, network.get_parameter(path).detach())
    .norm()
    .item()
)
measured = table[(table["row"] == "W_V") & (table["layer"] == 2)]["value"].item()
print(
    f"norm of the block of W_V in layer 2: hessfig {measured:.12f}, torch {expected:.12f}"
)
