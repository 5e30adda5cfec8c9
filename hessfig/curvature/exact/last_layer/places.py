"""The places an item passes through in the last layer, and the ways a weight enters them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from jaxtyping import Float, Int
from torch import Tensor


class Place(StrEnum):
    """Vectors of one item, in the order of the forward pass.

    `inputs` are the attention's own, which no weight of the layer changes; `mean` are the inputs mixed by the pattern,
    `mixed` the values mixed by it; `hidden` and `active` lie before and after the activation of the MLP.
    """

    inputs = "inputs"
    query = "query"
    scores = "scores"
    mean = "mean"
    mixed = "mixed"
    attended = "attended"
    normed = "normed"
    hidden = "hidden"
    active = "active"
    output = "output"
    final = "final"
    logits = "logits"


@dataclass(frozen=True)
class Entry:
    """A weight, or the part of it that belongs to `head`, enters item n as u_n = W inputs_n.

    The inputs are the item's vector at `source`; `place` depends linearly on u_n: `feature` = d place/du (None: the
    identity). `labels` groups items of equal inputs.
    """

    inputs: Float[Tensor, "n v"]
    source: Place
    place: Place
    feature: Float[Tensor, "#n place m"] | None = None
    labels: Int[Tensor, " n"] | None = None
    head: int = 0
