"""Shares of answers right on unseen sums: whole ones, digit by digit, and those with a cascade of three carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hessfig.config import Config, Data
from hessfig.measurements.at_state.checks import check_task
from hessfig.measurements.protocol import Measured, Quantity, Request, Row
from hessfig.models.protocol import Layout

if TYPE_CHECKING:
    from torch import Tensor

    from hessfig.curvature.problem import Problem

NAME, CASCADE = "accuracy", "cascade_accuracy"


def _measure(problem: Problem, request: Request) -> Measured:
    """Return shares of training.evaluation_size sums, each with its standard error sqrt(p (1 - p) / n).

    `accuracy`: whole answers (no index), then digits, 1 the most significant. `cascade_accuracy`: whole answers, and
    digits, of as many sums with three carries in a row (tasks.cascades.has_cascade), uniform among those. Of pictures:
    the share of the test pictures that are classified rightly.
    """
    from hessfig.states.training.loop import right_answers, right_digits
    from hessfig.tasks.addition import LONG
    from hessfig.tasks.examples import unseen_cascades

    task, size = request.at.config.task, request.at.config.training.evaluation_size
    rows = _rows(NAME, request, right_answers(problem.network, task, size))
    if task.data == Data.addition and task.digits >= LONG:
        hard = right_digits(problem.network, unseen_cascades(task, size), task.digits)
        rows += _rows(CASCADE, request, hard)
    return Measured(rows)


def _rows(name: str, request: Request, right: Tensor) -> list[Row]:
    from hessfig.measurements.at_state.measuring.rows import state_row

    places = right.unbind(1) if right.shape[1] > 1 else ()
    shares = [(None, right.all(dim=1)), *enumerate(places, 1)]
    rows = []
    for index, hits in shares:
        share = float(hits.double().mean())
        error = (share * (1 - share) / len(hits)) ** 0.5
        rows.append(state_row(name, request, share, error=error, index=index, estimator="unseen sums"))
    return rows


def _check(config: Config, layout: Layout) -> None:
    del layout
    check_task(NAME, config)


def _settings(config: Config, layout: Layout) -> dict[str, Any]:
    del layout
    return {"size": config.training.evaluation_size}


QUANTITY = Quantity(NAME, _measure, settings=_settings, check=_check, gives=(NAME, CASCADE))
