"""Hashes the content of a user's own network: what its factory returns, and what the network computes."""

import hashlib
import warnings
from collections.abc import Sequence
from typing import Any

from hessfig.config.schema import Config
from hessfig.config.user.user_code import guarded
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError
from hessfig.models.fingerprint import fingerprint
from hessfig.models.identity import content_of
from hessfig.models.kinds.python import KEY
from hessfig.models.protocol import ONCE
from hessfig.rng import one_thread
from hessfig.states import point


def planned_contents(
    config: Config,
    sigma: float | None,
    seed: int,
    *,
    twice: bool,
    distances: Sequence[bool],
) -> tuple[list[str], dict[str, Any]]:
    """Return the content of the network that the factory makes now: at its weights (False), away from them (True).

    The second result is the record of its witness: how far the measured network is from
    the user's own function. Warns if no cell of it can be reused.
    """
    drawn = point.drawn(config, sigma=sigma, seed=seed)
    contents = []
    for is_far in distances:
        content, why = _content(config, drawn, twice=twice, is_far=is_far)
        contents.append(content)
        if why:
            which = "that walk away from the weights " * is_far
            words = f"{KEY}: cells of {config.model.factory} {which}are measured again by every run: {why}"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
    return contents, drawn.witness.record if drawn.witness else {}


def check_planned(
    config: Config, drawn: Objective, planned: str, *, is_far: bool
) -> None:
    """Raise UserError unless a network that is drawn again equals the planned network."""
    if planned.startswith(ONCE):
        return
    content, _ = _content(config, drawn, twice=False, is_far=is_far)
    if content != planned:
        raise UserError(
            f"{KEY}: {config.model.factory} returned something else than when this run was planned",
            got=f"content {content[:12]}",
            allowed=f"content {planned[:12]}: the same weights, data, loss, names and derivatives at every call",
            remedy="torch.manual_seed(seed) at its beginning; run the command again if its files changed meanwhile",
        )


def _content(
    config: Config, drawn: Objective, *, twice: bool, is_far: bool
) -> tuple[str, str]:
    """Return the content, and why it cannot be reused, if so."""
    with one_thread(), guarded(KEY, str(config.model.factory)):
        shown = content_of(drawn)
        prints = [
            fingerprint(drawn, shown, twice=twice, is_far=where)
            for where in (False, True)[: 1 + is_far]
        ]
    for computed in prints:
        if computed.why:
            return computed.digest, computed.why
    return hashlib.sha256(
        " ".join([shown, *(computed.digest for computed in prints)]).encode()
    ).hexdigest(), ""
