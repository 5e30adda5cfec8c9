"""The problem of a stored network that was opened last, kept for further cells of the same network and data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hessfig.config.enums import State
from hessfig.config.schema import Config
from hessfig.curvature.problem import Objective
from hessfig.models.own.kept_checks import MOST_BYTES, size_of, versions_of
from hessfig.tasks.tokens import Ids


def opening(config: Config, seed: int, ids: Ids, at_once: int, content: Any) -> Any:
    """Return what a stored network and its data are made of; `content` stands for the content of its files.

    None for a state whose weights are replaced: such a network is its caller's alone.
    """
    if config.state.kind != State.initialised:
        return None
    settings = (config.model, config.task, config.dtype, config.device, config.memory)
    return repr(settings), seed, at_once, ids.shape, ids.tobytes(), content


class KeptProblem:
    """The last problem that was opened and compared with the network itself, returned again for the same opening.

    Cells that differ in their quantity have the same network, and the comparison takes
    longer than a small quantity does. It is made again for other files, data, settings
    or seeds, and after a measurement has changed the network in place.
    """

    def __init__(self) -> None:
        # The problem, what it was made of, and the versions of its tensors.
        self._last: tuple[Objective, Any, list[int]] | None = None

    def problem(self, made_of: Any, opened: Callable[[], Objective]) -> Objective:
        """Return the kept problem if it is `made_of` the same; else the one `opened` now, kept unless it is large."""
        if self._last is not None:
            problem, *made = self._last
            if made == [made_of, versions_of(problem)]:
                return problem
            del problem  # as large as the network
        self._last = None
        problem = opened()
        if made_of is not None and size_of(problem) <= MOST_BYTES:
            self._last = problem, made_of, versions_of(problem)
        return problem


KEPT = KeptProblem()
