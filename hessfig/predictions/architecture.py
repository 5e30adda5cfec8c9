"""What a growth rate depends on: the shape of a network, of its loss and of its state, read from a run's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hessfig.terms import MLP, Attention, Kind, Norm, QueryKey

COUNTED = (Kind.transformer, Kind.self_attention, Kind.linear_mlp)
INITIALISED, BOTH = "initialised", "both"


@dataclass(frozen=True)
class Architecture:
    """What a growth rate depends on. `zero_targets`: Y = 0, so that the loss gradient vanishes with sigma.

    `no_power`: why no power of sigma rules, empty where one does; blocks that vanish by structure vanish all the same.
    """

    kind: str = Kind.transformer
    num_layers: int = 1
    attention: Attention = Attention.softmax
    attention_skip: bool = True
    norm: Norm = Norm.none
    mlp: MLP = MLP.relu
    query_key: QueryKey = QueryKey.separate
    square_loss: bool = False
    zero_targets: bool = False
    no_power: str = ""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Architecture:
        """Build from the resolved settings in a manifest; every loss offered has targets of order one.

        Of a kind that nobody has counted, only the kind is kept. Raises KeyError, TypeError or ValueError for settings
        that are missing or of another version.
        """
        model = config["model"]
        kind = str(model["kind"])
        if kind not in COUNTED:
            return cls(kind=kind)
        return cls(
            kind=Kind(kind),
            num_layers=int(model["n_layers"]),
            attention=Attention(model["attention"]),
            attention_skip=bool(model["attention_skip"]),
            norm=Norm(model["norm"]),
            mlp=MLP(model["mlp"]),
            query_key=QueryKey(model["query_key"]),
            square_loss=config["task"]["loss"] != "cross_entropy",
            no_power=_no_power(config),
        )

    @property
    def is_counted(self) -> bool:
        """Whether the powers of sigma in this kind of network are known."""
        return self.kind in COUNTED

    @property
    def is_homogeneous(self) -> bool:
        """Whether the output is a single power of sigma, not only in the limit."""
        if self.kind == Kind.linear_mlp:
            return True
        bare = self.kind == Kind.self_attention or not (self.attention_skip or self.mlp == MLP.gelu)
        return bare and self.attention == Attention.linear


def _no_power(config: Mapping[str, Any]) -> str:
    """Return why no power of sigma rules; manifests from before these settings had the values that let one rule."""
    model, state = config["model"], config.get("state") or {}
    if state.get("kind", INITIALISED) != INITIALISED:
        return f"the weights are not drawn with a scale sigma (state.kind={state['kind']})"
    scales = model.get("sigma_scales", BOTH)
    if model["kind"] == Kind.transformer and scales != BOTH:
        return f"positions keep their size as sigma -> 0 (model.sigma_scales={scales})"
    return ""
