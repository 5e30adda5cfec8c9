"""From the name of a weight to its tensor."""

from __future__ import annotations

from torch import nn

from hessfig.terms import Matrix

_PATHS: dict[Matrix, str] = {
    Matrix.W_E: "tok_embed",
    Matrix.W_pos: "pos",
    Matrix.W_Q: "attn.q",
    Matrix.W_QK: "attn.q",
    Matrix.W_K: "attn.k",
    Matrix.W_V: "attn.v",
    Matrix.W_O: "attn.o",
    Matrix.W_in: "mlp.fc_in",
    Matrix.W_out: "mlp.fc_out",
    Matrix.W_U: "head",
    Matrix.W: "",
}


def parameter_name(model: nn.Module, layer: int, matrix: Matrix) -> str:
    """Return the name of the parameter that holds `matrix` of `layer` (1-based) in `model`."""
    path = _PATHS[matrix]
    if not hasattr(model, "layers"):
        return f"{path.removeprefix('attn.')}.weight"
    parts = [f"layers.{layer - 1}"] if matrix.has_layer else []
    return ".".join([*parts, *([path] if path else []), "weight"])


def weight(model: nn.Module, layer: int, matrix: Matrix) -> nn.Parameter:
    """Return the parameter that holds `matrix` of `layer`: (outputs, inputs), or (rows, d_model) for embeddings."""
    return model.get_parameter(parameter_name(model, layer, matrix))
