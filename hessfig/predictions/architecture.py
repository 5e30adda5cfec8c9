"""What a growth rate depends on: the shape of a network and of its loss, read from a run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Family of networks."""

    transformer = "transformer"
    self_attention = "self_attention"
    linear_mlp = "linear_mlp"


class Attention(StrEnum):
    """What turns scores into mixing weights."""

    softmax = "softmax"
    linear = "linear"


class Norm(StrEnum):
    """Where LayerNorm sits."""

    none = "none"
    pre = "pre"
    post = "post"


class MLP(StrEnum):
    """Activation of the MLP sublayer; `none` leaves the sublayer out."""

    relu = "relu"
    gelu = "gelu"
    linear = "linear"
    none = "none"


class QueryKey(StrEnum):
    """Scores from two weights or from one."""

    separate = "separate"
    single = "single"


@dataclass(frozen=True)
class Architecture:
    """What a growth rate depends on. `zero_targets`: Y = 0, so that the loss gradient vanishes with sigma."""

    kind: Kind = Kind.transformer
    num_layers: int = 1
    attention: Attention = Attention.softmax
    attention_skip: bool = True
    norm: Norm = Norm.none
    mlp: MLP = MLP.relu
    query_key: QueryKey = QueryKey.separate
    square_loss: bool = False
    zero_targets: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Architecture:
        """Build from the resolved settings in a manifest; every loss offered has targets of order one."""
        model = config["model"]
        return cls(
            kind=Kind(model["kind"]),
            num_layers=int(model["n_layers"]),
            attention=Attention(model["attention"]),
            attention_skip=bool(model["attention_skip"]),
            norm=Norm(model["norm"]),
            mlp=MLP(model["mlp"]),
            query_key=QueryKey(model["query_key"]),
            square_loss=config["task"]["loss"] != "cross_entropy",
        )

    @property
    def is_homogeneous(self) -> bool:
        """Whether the output is a single power of sigma, not only in the limit."""
        if self.kind == Kind.linear_mlp:
            return True
        bare = self.kind == Kind.self_attention or not (self.attention_skip or self.mlp == MLP.gelu)
        return bare and self.attention == Attention.linear
