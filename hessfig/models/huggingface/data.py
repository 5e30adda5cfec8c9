"""What a causal language model is measured on: sequences in micro-batches, their part in keys, what does not fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from hessfig.config.choices import Loss, Method, Scored, State
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.models.huggingface.batches import Plan, Shape, planned
from hessfig.models.huggingface.folder import pin_of
from hessfig.models.protocol import Layout
from hessfig.tasks.tokens import Encode, Ids, is_text, length_of, sequences
from hessfig.tasks.tokens import source as source_of_tokens


@runtime_checkable
class Reader(Shape, Protocol):
    """What reads sequences: a network of a vocabulary, with a longest sequence."""

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""


def plan_of(config: Config, sizes: Reader, layout: Layout) -> Plan:
    """Return the micro-batches. Raises UserError when not even one sequence fits into config.memory."""
    return planned(config, sizes, layout, length_of(config.task, sizes.context))


def ids_of(config: Config, sizes: Reader, place: Path | None) -> Ids:
    """Return the configured sequences; a text goes through the tokenizer in the model's folder `place`."""

    def encode() -> Encode:
        from hessfig.models.huggingface.loading import encoder

        return encoder(place, pin_of(config, 1))

    return sequences(config.task, vocabulary=sizes.vocabulary, context=sizes.context, encode=encode)


def source_of(config: Config, weights: str, plan: Plan, ids: Callable[[], Ids], *marks: str) -> str:
    """Return a hash of weights (by their own hash) and tokens, and of the micro-batch where there are several.

    A text counts by the ids too that the tokenizer makes of it. `marks`: what else tells the cell from others.
    """
    batches = [] if plan.sequences == plan.total else [plan.sequences]
    encoded = [hashlib.sha256(ids().tobytes()).hexdigest()] if is_text(config.task) else []
    found = [weights, source_of_tokens(config.task), *encoded, *batches, *marks]
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def check_measured(config: Config, *, is_random: bool) -> None:
    """Raise UserError for a loss, a state or an estimator that such a network has not."""
    model, task = config.model, config.task
    if task.loss != Loss.cross_entropy or task.scored != Scored.all:
        raise UserError(
            "task: tokens are scored by cross-entropy, at every position from task.first_scored on",
            got=f"task.loss={task.loss}, task.scored={task.scored}",
            allowed="task.loss=cross_entropy, task.scored=all",
            remedy="task=tokens",
        )
    if config.state.kind == State.loaded and not is_random:
        raise UserError(
            "state=loaded: the weights are those of model.path already",
            got=f"model.path={model.path}, state.path={config.state.path}",
            allowed="one of them",
            remedy="leave state=loaded out, or model.random=true with model=huggingface",
        )
    if config.estimator.method == Method.exact:
        raise UserError(
            "estimator=exact knows the package's own networks alone",
            got=f"model.kind={model.kind}",
            allowed="auto, hutchinson, aligned, dense, xtrace",
            remedy="estimator=auto",
        )
