"""Attention sinks put in by hand: the first key's scores raised, or the first position's embedding made longer."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config import ModelConfig, Sink


def score_sink(model: ModelConfig) -> float:
    """Return what is added to every head's score of the first key, before mask and softmax."""
    return model.sink_beta if model.sink in (Sink.scores, Sink.both) else 0.0


def embedding_sink(model: ModelConfig) -> float:
    """Return by how much more than itself the first position's embedding counts."""
    return model.sink_beta if model.sink in (Sink.embedding, Sink.both) else 0.0


def with_sink(scores: Float[Tensor, "*rows keys"], beta: float) -> Float[Tensor, "*rows keys"]:
    """Return scores + beta e_1^T: a constant, so that every derivative is that of softmax at other scores."""
    return scores + beta * at_first(scores.shape[-1], scores) if beta else scores


def position_factors(length: int, beta: float, like: Tensor) -> Float[Tensor, "length 1"]:
    """Return (1 + beta, 1, 1, ...): a fixed factor of the network; W_E and W_pos stay its parameters."""
    return (1 + beta * at_first(length, like)).unsqueeze(1)


def at_first(length: int, like: Tensor) -> Float[Tensor, " length"]:
    """Return (1, 0, 0, ...) with the type and device of `like`."""
    return (torch.arange(length, device=like.device) == 0).to(like.dtype)
