"""Which diagonal blocks of the functional Hessian vanish identically, by the shape of the network alone."""

from __future__ import annotations

from hessfig.config import MLP, Attention, Kind, ModelConfig, Norm
from hessfig.terms import Block, Matrix, Part

_ALWAYS = {Matrix.W_U, Matrix.W}
_VALUE_LIKE = {Matrix.W_V, Matrix.W_O}
_SCORE_LIKE = {Matrix.W_Q, Matrix.W_K, Matrix.W_QK}


def is_structural_zero(model: ModelConfig, block: Block, part: Part) -> bool:
    """Whether H_f(W, W) = 0 because the outputs are affine (or piecewise affine) in W.

    True for W_U and for linear MLPs always; without LayerNorm, in the last layer: for W_out always, for W_in
    unless the activation is smooth, for W_V and W_O (Theorem 3.2) and, under linear attention, for W_Q and W_K
    (Remark 4.1) unless a smooth activation follows.
    """
    if part != Part.H_f or not block.is_diagonal:
        return False
    if block.row in _ALWAYS:
        return True
    if model.norm != Norm.none or block.layer != model.n_layers:
        return False
    return block.row in _affine_in_last_layer(model)


def _affine_in_last_layer(model: ModelConfig) -> set[Matrix]:
    affine = {Matrix.W_out}
    if model.mlp == MLP.gelu and model.kind != Kind.self_attention:
        return affine
    affine |= {Matrix.W_in} | _VALUE_LIKE
    return affine | _SCORE_LIKE if model.attention == Attention.linear else affine
