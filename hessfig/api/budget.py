"""The budget of a Monitor: the share of a training's time that measuring may take."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hessfig.errors import UserError


class Budget:
    """Seconds of a training and of measuring it, and whether another measurement would exceed its share.

    The first measurement is always made, because its time is not known before. A note
    in the manifest between two measurements counts as spent; notes take a tenth of the
    share, or else are made each time the list has doubled.
    """

    def __init__(self, max_fraction: float | None) -> None:
        self.max_fraction = _fraction(max_fraction)
        self.spent = 0.0
        self.training = 0.0
        self._last, self._left = 0.0, float("nan")
        self._note = 0.0
        self._noted = 0.0
        self._count = 0

    def arrive(self) -> None:
        """Count the time since `leave` as the training's."""
        if self._left == self._left:
            self.training += time.perf_counter() - self._left

    def leave(self) -> None:
        """Let the training go on."""
        self._left = time.perf_counter()

    def allows(self) -> bool:
        """Whether one more measurement, as long as the last, is within max_fraction of the training so far."""
        share = self.max_fraction
        return (
            not self._last
            or share is None
            or self.spent + self._last <= share * self.training
        )

    @property
    def pace(self) -> tuple[float, float]:
        """Seconds that the last measurement took, and of training to every one of as many seconds."""
        return self._last, self._last / (self.max_fraction or math.inf)

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time of the block as spent."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._last = time.perf_counter() - start
            self.spent += self._last

    def allows_note(self, count: int) -> bool:
        """Whether `count` skipped or failed steps are written down: twice as many as last time, or time for a note."""
        share = self.max_fraction
        since = self.training - self._noted
        return (
            count >= 2 * self._count
            or share is None
            or self._note <= 0.1 * share * since
        )

    @contextmanager
    def noting(self, count: int) -> Iterator[None]:
        """Count the time of the block as that of a note of `count` steps."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._note = time.perf_counter() - start
            self._noted = self.training
            self._count = count
            self.spent += self._note

    def resume(self, record: Mapping[str, float | None]) -> None:
        """Go on from the record of an earlier process."""
        self.spent = record.get("spent_seconds") or 0.0
        self.training = record.get("training_seconds") or 0.0

    def record(self) -> dict[str, Any]:
        """Return the record that the manifest holds."""
        spent = round(self.spent, 3)
        training = round(self.training, 3)
        return {
            "max_fraction": self.max_fraction,
            "spent_seconds": spent,
            "training_seconds": training,
        }


def _fraction(given: Any) -> float | None:
    if given is None or (
        isinstance(given, int | float) and not isinstance(given, bool) and given > 0
    ):
        return given
    raise UserError(
        "max_fraction: a share of the training's time",
        got=repr(given),
        allowed="> 0, or None",
        remedy="0.05",
    )
