"""Sequences of token ids, from a file of ids, from a text and a tokenizer, or drawn at random (numpy only)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessfig.config.schema import TaskConfig
from hessfig.errors import UserError
from hessfig.files import fingerprint, is_file

Encode = Callable[[str], Sequence[int]]
Ids = NDArray[np.int64]
_IDS = ".npy"
_FORMS = (
    "a .npy file of whole numbers, (sequences, length) or one long row; or a text for the model's tokenizer"
)


def sequences(task: TaskConfig, *, vocabulary: int, context: int, encode: Callable[[], Encode]) -> Ids:
    """Return task.batch_size sequences of ids, (batch, length).

    A file's first sequences, each cut to task.length; a long row or a text is cut into pieces of task.length. Without
    a file ids are uniform, drawn from task.seed. `encode` makes the tokenizer, for a text. Raises UserError for what
    is no such file, for ids that are no words, for sequences that are too long, too short or too few.
    """
    found = _drawn(task, vocabulary, context) if task.path is None else _cut(task, _ids(task, encode))
    _check(task, found, vocabulary, context)
    return np.array(found[: task.batch_size], dtype=np.int64)


def source(task: TaskConfig) -> str:
    """Return the SHA-256 of the file of ids or text; nothing for random ids."""
    if task.path is None:
        return ""
    return fingerprint(_there(task.path))


def is_of_ids(path: str) -> bool:
    """Whether a file holds ids, and no text."""
    return Path(path).suffix == _IDS


def length_of(task: TaskConfig, context: int) -> int:
    """Return the tokens of a sequence, without reading more of a file than its header (a text: as configured)."""
    if task.length is None and task.path is not None and is_of_ids(task.path):
        shape = _loaded(_there(task.path)).shape
        return int(shape[-1]) if len(shape) == 2 else context
    return task.length or context


def _drawn(task: TaskConfig, vocabulary: int, context: int) -> Ids:
    generator = np.random.default_rng([task.seed, int.from_bytes(b"tokens")])
    return generator.integers(vocabulary, size=(task.batch_size, task.length or context), dtype=np.int64)


def _ids(task: TaskConfig, encode: Callable[[], Encode]) -> NDArray[Any]:
    path = _there(str(task.path))
    if is_of_ids(str(path)):
        return _loaded(path)
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    return np.asarray(encode()(text), dtype=np.int64)


def _cut(task: TaskConfig, ids: NDArray[Any]) -> NDArray[Any]:
    """Return rows of task.length ids."""
    if ids.ndim == 2:
        return ids[:, : task.length]
    if task.length is None:
        raise UserError(
            "task.length is missing: this file is one long row",
            got=f"{task.path}: {ids.size} tokens",
            allowed="a whole number >= 2",
            remedy="for example task.length=64",
        )
    rows = ids.size // task.length
    return ids[: rows * task.length].reshape(rows, task.length)


def _check(task: TaskConfig, ids: NDArray[Any], vocabulary: int, context: int) -> None:
    rows, length = ids.shape
    if rows < task.batch_size or length < (task.length or 2):
        raise UserError(
            "task.path: the file holds too little",
            got=f"{rows} sequences of {length} tokens",
            allowed=f"at least task.batch_size={task.batch_size} of task.length={task.length or 'at least 2'}",
            remedy=f"task.batch_size={max(rows, 1)}, or a smaller task.length",
        )
    if length > context:
        raise UserError(
            "task.length: sequences are longer than the network's context",
            got=f"{length} tokens",
            allowed=f"at most {context}",
            remedy=f"task.length={context}",
        )
    if length < 2:
        raise UserError(
            "task.length: no token is left to be predicted",
            got=f"{length} tokens",
            allowed=f"2 to {context}",
            remedy=f"task.length={context}",
        )
    if not 0 <= task.first_scored < length - 1:
        raise UserError(
            "task.first_scored: no token is left to be predicted",
            got=task.first_scored,
            allowed=f"0 to {length - 2}",
            remedy="task.first_scored=0",
        )
    used = ids[: task.batch_size]
    if used.min() < 0 or used.max() >= vocabulary:
        bad = int(used.max() if used.max() >= vocabulary else used.min())
        raise UserError(
            "task.path: ids that are no words of the network's vocabulary",
            got=bad,
            allowed=f"0 to {vocabulary - 1}",
            remedy="make the ids with the model's own tokenizer",
        )


def _there(name: str) -> Path:
    path = Path(name)
    if not is_file(path):
        raise UserError("task.path: there is no such file", got=name, allowed=_FORMS, remedy="check the path")
    return path


def _loaded(path: Path) -> NDArray[Any]:
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _unreadable(path, str(error)) from error
    if ids.ndim not in (1, 2) or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise _unreadable(path, f"shape {ids.shape}, {ids.dtype}")
    return ids


def _unreadable(path: Path, why: str) -> UserError:
    return UserError(
        f"task.path: {path} holds no ids",
        got=why[:200],
        allowed=_FORMS,
        remedy="numpy.save(FILE, ids)",
    )
