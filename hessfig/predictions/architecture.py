"""The properties of a network, its loss and its state that growth rates depend on, read from a run's manifest.

Only what changes an exponent is kept, so that networks with the same exponents are equal
and share one prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

from hessfig.terms import (
    MLP,
    SMOOTH,
    Attention,
    AttentionBias,
    Gate,
    Kind,
    Norm,
    Positions,
    QueryKey,
    Scores,
)

COUNTED = (Kind.transformer, Kind.self_attention, Kind.linear_mlp)
INITIALISED, BOTH = "initialised", "both"
# Settings of the network that are fields here: in every manifest, and in those since
# there is the setting.
_FIRST = ("attention", "attention_skip", "norm", "mlp", "query_key")
_LATER = (
    "attention_bias",
    "differential_lambda",
    "differential_norm",
    "centring",
    "scores",
    "positions",
    "gate",
    "tied",
    "norm_eps",
)


@dataclass(frozen=True)
class Architecture:
    """The properties that growth rates depend on.

    Settings that do not change exponents are left out: the kind of norm (RMSNorm or
    LayerNorm), rotated queries, shared keys, factors of branches, smoothed labels.

    Parameters
    ----------
    zero_targets : bool
        Y = 0, so that the loss gradient vanishes with sigma.
    no_power : str
        Why no power of sigma dominates, "" if one does; structural zeros vanish in any case.
    shifted_scores : bool
        Constants are added to the scores (slopes of positions, a sink), so that attention is
        not uniform as sigma -> 0.
    most_keys : int, optional
        How many keys a query sees at most, None if many. One key has the weight 1 at every
        score, and two have 1/2 and an odd function.
    weight_decay : float
        Adds a constant to the diagonal blocks of H and H_f.
    norm_eps : float
        Where a norm turns from linear to degree 0 (`growth_rates.edge`).

    Others are the settings of these names.
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
    attention_bias: AttentionBias = AttentionBias.none
    differential_lambda: float = 0.8
    differential_norm: bool = True
    centring: float = 0.0
    scores: Scores = Scores.plain
    shifted_scores: bool = False
    positions: Positions = Positions.learned
    gate: Gate = Gate.none
    tied: bool = False
    most_keys: int | None = None
    weight_decay: float = 0.0
    norm_eps: float = 1e-5

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Architecture:
        """Build from the resolved settings in a manifest; every loss offered has targets of order one.

        For a kind without a rule, only the kind is stored. Raises KeyError, TypeError
        or ValueError for settings that are missing or belong to another version.
        """
        model = config["model"]
        task = config["task"]
        kind = str(model["kind"])
        if kind not in COUNTED:
            return cls(kind=kind)
        types = get_type_hints(cls)
        settings: dict[str, Any] = {}
        for name in _FIRST:
            settings[name] = types[name](model[name])
        for name in _LATER:
            settings[name] = types[name](model.get(name, getattr(cls, name)))
        return cls(
            kind=Kind(kind),
            num_layers=int(model["n_layers"]),
            square_loss=task["loss"] != "cross_entropy",
            no_power=_no_power(config),
            shifted_scores=_shifts_scores(model),
            most_keys=_most_keys(kind, model, task),
            weight_decay=float(task.get("weight_decay", 0.0)),
            **settings,
        )

    @property
    def is_counted(self) -> bool:
        """Whether the powers of sigma in this kind of network are known."""
        return self.kind in COUNTED

    @property
    def has_gate(self) -> bool:
        """Whether the mixed values are multiplied by a gate."""
        return self.gate != Gate.none

    @property
    def is_homogeneous(self) -> bool:
        """Whether the output is a single power of sigma, not only in the limit.

        Then every derivative is a single power, and the exponent of H_o holds at every sigma. So
        it is for linear MLPs and linear attention without skips that add a second power, smooth
        activations, norms or constants; and for one layer with scores of unit length, which do
        not depend on sigma.
        """
        if self.kind == Kind.linear_mlp:
            return True
        is_bare = self.kind == Kind.self_attention
        if is_bare and self.scores == Scores.cosine:
            is_differential = self.attention == Attention.differential
            has_norm = is_differential and self.differential_norm
            return not self.has_gate and not has_norm
        if self.attention != Attention.linear or self.norm != Norm.none:
            return False
        if self.scores != Scores.plain or self.shifted_scores or self.has_gate:
            return False
        adds_powers = self.attention_skip or self.mlp in SMOOTH or self.tied
        return is_bare or not adds_powers


def _most_keys(
    kind: str, model: Mapping[str, Any], task: Mapping[str, Any]
) -> int | None:
    """Return how many keys a query sees at most: those of its window, to both sides without a mask, in its sequence."""
    limits = []
    if model.get("window") is not None:
        window = int(model["window"])
        is_two_sided = kind == Kind.self_attention
        limits.append(2 * window - 1 if is_two_sided else window)
    if task.get("length") is not None:
        limits.append(int(task["length"]))
    return min(limits, default=None)


def _shifts_scores(model: Mapping[str, Any]) -> bool:
    """Return whether constants are added to the scores of a query, so that its attention is not uniform."""
    if model.get("positions") == Positions.alibi:
        return True
    has_sink = model.get("sink") in ("scores", "both")
    return has_sink and float(model.get("sink_beta", 0.0)) != 0


def _no_power(config: Mapping[str, Any]) -> str:
    """Return why no power of sigma dominates. Manifests without these settings have values for which one does.

    Trained or loaded weights have no scale sigma; with fixed positions the input tends to a
    constant as sigma -> 0.
    """
    model = config["model"]
    state = config.get("state") or {}
    state_kind = state.get("kind", INITIALISED)
    if state_kind != INITIALISED:
        return f"the weights are not drawn with a scale sigma (state.kind={state_kind})"
    scales = model.get("sigma_scales", BOTH)
    if model["kind"] == Kind.transformer and scales != BOTH:
        return f"positions keep their size as sigma -> 0 (model.sigma_scales={scales})"
    return ""
