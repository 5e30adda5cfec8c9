"""Sequences of token ids, from a file of ids, from a text and a tokenizer, or drawn at random (numpy only)."""

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hessfig.config.schema import TaskConfig
from hessfig.errors import UserError
from hessfig.files import check_pin, existing_file, fingerprint, read_pinned

Encode = Callable[[str], Sequence[int]]
Ids = NDArray[np.int64]
_IDS = ".npy"
_FORMS = "a .npy file of whole numbers, (sequences, length) or one long row; or a text for the model's tokenizer"
_there = partial(existing_file, "task.path", _FORMS)
_CHUNK = 2**20  # bytes read at once; a header is never longer
_MOST = 2**28  # ids of a batch
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_UNPARSED = (
    ValueError,
    TypeError,
    OverflowError,
    RecursionError,
    MemoryError,
    SyntaxError,
    TokenError,
)


def sequences(
    task: TaskConfig, *, vocabulary: int, context: int, encode: Callable[[], Encode]
) -> Ids:
    """Return task.batch_size sequences of ids, (batch, length).

    These are the first sequences of a file, cut to task.length if they are longer; a
    single long row or a text is cut into pieces of task.length. Without a file, ids are
    uniform, drawn from task.seed. `encode` returns the tokenizer for a text. Raises
    UserError for an invalid file or one with another hash than task.sha256, for ids
    outside the vocabulary, and for sequences that are too long, too short or too few.
    """
    if task.path is None:
        _check_length(task, task.length or context, context)
        return _drawn(task, vocabulary, task.length or context)
    ids = _cut(task, _ids(task, encode))
    _check_length(task, ids.shape[1], context)
    used = ids[: task.batch_size]
    _check_words(used, vocabulary)
    return np.array(used, dtype=np.int64)


def padded_lines(
    task: TaskConfig, encode: Encode, *, vocabulary: int, context: int, padding: int
) -> Ids:
    """Return the first task.batch_size lines of a text as ids (batch, length); `encode` maps a line to ids.

    Longer lines are cut to task.length, shorter ones are padded with the id `padding`,
    and empty lines are skipped. Raises UserError as `sequences` does.
    """
    lines = [
        line
        for line in _text(task, _there(str(task.path))).splitlines()
        if line.strip()
    ]
    rows = [
        np.asarray(encode(line)[: task.length], dtype=np.int64)
        for line in lines[: task.batch_size]
    ]
    ids = np.full((len(rows), max(map(len, rows), default=0)), padding, dtype=np.int64)
    for filled, row in zip(ids, rows, strict=True):
        filled[: len(row)] = row
    ids = _cut(task, ids)
    _check_length(task, ids.shape[1], context)
    _check_words(ids, vocabulary)
    return ids


def source(task: TaskConfig) -> str:
    """Return the SHA-256 of the file of ids or text; "" for random ids."""
    if task.path is None:
        return ""
    return task.sha256 or fingerprint(_there(task.path))


def is_text(task: TaskConfig) -> bool:
    """Whether the sequences come from a text and need a tokenizer."""
    return task.path is not None and Path(task.path).suffix != _IDS


def length_of(task: TaskConfig, context: int) -> int:
    """Return the number of tokens of a sequence from the header of a file (for a text, from the settings)."""
    if task.path is None or is_text(task):
        return task.length or context
    path = _there(task.path)
    with path.open("rb") as handle:
        shape = _header(path, handle, handle.read(_CHUNK)).shape
    if len(shape) == 2:
        return min(shape[1], task.length or shape[1])
    return task.length or context


@dataclass(frozen=True)
class _Header:
    """The header of a .npy file, and its length in bytes."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    length: int


def _drawn(task: TaskConfig, vocabulary: int, length: int) -> Ids:
    generator = np.random.default_rng([task.seed, int.from_bytes(b"tokens")])
    return generator.integers(
        vocabulary, size=(task.batch_size, length), dtype=np.int64
    )


def _ids(task: TaskConfig, encode: Callable[[], Encode]) -> NDArray[Any]:
    path = _there(str(task.path))
    if is_text(task):
        return np.asarray(encode()(_text(task, path)), dtype=np.int64)
    try:
        return _loaded(task, path)
    except OSError as error:
        raise _unreadable(path, str(error)) from error


def _text(task: TaskConfig, path: Path) -> str:
    try:
        content = read_pinned(path, "task.path", task.sha256).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, str(error)) from error
    return io.StringIO(content, newline=None).read()


def _loaded(task: TaskConfig, path: Path) -> NDArray[Any]:
    """Return the needed ids of a file. The whole file is hashed, but only these ids are kept in memory."""
    with path.open("rb") as handle:
        start = handle.read(_CHUNK)
        header = _header(path, handle, start)
        shape = _needed(task, header)
        needed = header.length + prod(shape) * header.dtype.itemsize
        digest = hashlib.sha256(start)
        content = bytearray(start[:needed])
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
            content += chunk[: needed - len(content)]
    check_pin(path, "task.path", found=digest.hexdigest(), planned=task.sha256)
    if len(content) < needed:
        raise _unreadable(path, "it was cut short while it was read")
    numbers = np.frombuffer(content, header.dtype, prod(shape), offset=header.length)
    return numbers.reshape(shape, order="F" if header.is_fortran else "C")


def _needed(task: TaskConfig, header: _Header) -> tuple[int, ...]:
    """Return the shape of the part that contains the batch; arrays in column order are read completely."""
    if len(header.shape) == 1:
        return (min(header.shape[0], task.batch_size * (task.length or 1)),)
    if header.is_fortran:
        rows = header.shape[0]
    else:
        rows = min(header.shape[0], task.batch_size)
    return (rows, header.shape[1])


def _header(path: Path, handle: IO[bytes], start: bytes) -> _Header:
    """Return the header of a .npy file that begins with `start`.

    Raises UserError for anything but one or two axes of integers, and for a file that
    is shorter than declared.
    """
    stream = io.BytesIO(start)
    try:
        shape, is_fortran, dtype = _HEADERS[npy.read_magic(stream)](stream)
    except KeyError as error:
        raise _unreadable(path, f"version {error} of the format") from error
    except _UNPARSED as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error
    if (
        len(shape) not in (1, 2)
        or not all(type(n) is int and n > 0 for n in shape)
        or dtype.kind not in "iu"
    ):
        raise _unreadable(path, f"shape {shape}, {dtype}")
    size = os.fstat(handle.fileno()).st_size
    needed = stream.tell() + prod(shape) * dtype.itemsize
    if size < needed:
        raise _unreadable(
            path, f"{size} bytes, where shape {shape}, {dtype} takes {needed}"
        )
    return _Header(shape, is_fortran, dtype, stream.tell())


def _cut(task: TaskConfig, ids: NDArray[Any]) -> NDArray[Any]:
    """Return rows of task.length ids, or of the length of the file's rows. Raises UserError if there are too few."""
    if ids.ndim == 1:
        ids = _pieces(task, ids)
    if len(ids) < task.batch_size:
        raise UserError(
            "task.path: the file is too short",
            got=f"{len(ids)} sequences of {ids.shape[1]} tokens",
            allowed=f"at least task.batch_size={task.batch_size}",
            remedy=f"task.batch_size={len(ids)}",
        )
    return ids[:, : task.length]


def _pieces(task: TaskConfig, ids: NDArray[Any]) -> NDArray[Any]:
    if task.length is None:
        raise UserError(
            "task.length is missing: this file is one long row",
            got=task.path,
            allowed="a whole number >= 2",
            remedy="for example task.length=64",
        )
    rows = ids.size // task.length
    if not rows:
        raise UserError(
            "task.path: the file is too short",
            got=f"{ids.size} tokens",
            allowed=f"at least task.batch_size={task.batch_size} times task.length={task.length}",
            remedy=f"a longer file, or task.batch_size=1 task.length={max(ids.size, 2)}",
        )
    return ids[: rows * task.length].reshape(rows, task.length)


def _check_length(task: TaskConfig, length: int, context: int) -> None:
    if length > context:
        raise UserError(
            "task.length: sequences are longer than the network's context",
            got=f"{length} tokens",
            allowed=f"at most {context}",
            remedy=f"task.length={context}",
        )
    if length < 2:
        raise UserError(
            "task.length: no token remains to be predicted",
            got=f"{length} tokens",
            allowed=f"2 to {context}",
            remedy=f"task.length={context}",
        )
    if not 0 <= task.first_scored < length - 1:
        raise UserError(
            "task.first_scored: no token remains to be predicted",
            got=task.first_scored,
            allowed=f"0 to {length - 2}",
            remedy="task.first_scored=0",
        )
    if task.batch_size * length > _MOST:
        raise UserError(
            "task.batch_size: too many ids",
            got=f"{task.batch_size} sequences of {length} tokens",
            allowed=f"at most {_MOST} ids",
            remedy=f"task.batch_size={_MOST // length}",
        )


def _check_words(used: NDArray[Any], vocabulary: int) -> None:
    if used.min() < 0 or used.max() >= vocabulary:
        bad = int(used.max() if used.max() >= vocabulary else used.min())
        raise UserError(
            "task.path: ids that are not words of the network's vocabulary",
            got=bad,
            allowed=f"0 to {vocabulary - 1}",
            remedy="make the ids with the model's own tokenizer",
        )


def _unreadable(path: Path, why: str) -> UserError:
    return UserError(
        f"task.path: {path} contains no token ids",
        got=why[:200],
        allowed=_FORMS,
        remedy="numpy.save(FILE, ids)",
    )
