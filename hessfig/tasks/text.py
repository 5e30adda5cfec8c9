"""Texts as characters: the running Python's standard library, or a file; split into training and held-out windows."""

import hashlib
import os
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hessfig.config.schema import TaskConfig
from hessfig.errors import UserError, first_few
from hessfig.files import existing_file, fingerprint, identity, is_file, read_pinned
from hessfig.terms import CHARACTERS

Ids = NDArray[np.int64]
# Modules of one file each in the standard library of Python 3.11 to 3.14.
_NAMES = """
    _collections_abc _compat_pickle _markupbase _py_abc _pydecimal _pyio _strptime _threading_local _weakrefset abc
    argparse ast base64 bdb bisect bz2 calendar cmd code codecs codeop colorsys compileall configparser contextlib
    copy copyreg csv dataclasses difflib dis doctest enum filecmp fileinput fnmatch fractions ftplib functools
    genericpath getopt getpass gettext glob graphlib gzip hashlib heapq hmac imaplib inspect io ipaddress keyword
    linecache locale lzma mailbox mimetypes modulefinder netrc ntpath numbers opcode operator optparse os pdb pickle
    pickletools pkgutil platform plistlib poplib posixpath pprint profile pstats pty py_compile pyclbr pydoc queue
    quopri random reprlib rlcompleter runpy sched secrets selectors shelve shlex shutil signal site smtplib socket
    socketserver ssl stat statistics stringprep subprocess symtable tabnanny tarfile tempfile textwrap threading
    timeit token tokenize trace traceback tracemalloc turtle types typing uuid warnings wave weakref webbrowser
    zipapp zipimport
"""
MODULES = tuple(_NAMES.split())
EVERY = 10  # one of this many modules is held out, and the same share at the end of a user's own file
OTHER = len(CHARACTERS)
_LARGEST = 2**28  # bytes
_FORM = "a file of text, UTF-8"
_there = partial(existing_file, "task.path", _FORM)
_IDS = np.full(0x110000, OTHER, dtype=np.uint8)
_IDS[[ord(character) for character in CHARACTERS]] = np.arange(len(CHARACTERS))


@dataclass(frozen=True)
class Split:
    """The ids (uint8) of the characters for training and of the held-out ones."""

    training: NDArray[np.uint8]
    held_out: NDArray[np.uint8]


def split(task: TaskConfig) -> Split:
    """Return the text of `task` as ids, split.

    Without task.path, the text consists of the sources of MODULES, including
    docstrings, in order: modules 10, 20, ... are held out, the others are for training.
    Of a file, the last tenth is held out. Raises UserError for a file that is missing,
    is not UTF-8, has another hash than task.sha256, or is too short for windows of
    task.length.
    """
    path = None if task.path is None else _there(task.path)
    text = _standard() if path is None else _read(path, task.sha256, identity(path))
    shortest = min(len(text.training), len(text.held_out))
    if shortest < _window(task):
        raise UserError(
            "task.path: the text is shorter than a window",
            got=f"{len(text.training)} characters for training, {len(text.held_out)} held out",
            allowed=f"at least task.length={task.length} of both (the last tenth is held out)",
            remedy=f"task.length={shortest}" if shortest >= 2 else "a longer text",
        )
    return text


def source(task: TaskConfig) -> str:
    """Return the SHA-256 of the text, which differs between versions of Python's library."""
    if task.path is None:
        text = _standard()
        return hashlib.sha256(
            text.training.tobytes() + text.held_out.tobytes()
        ).hexdigest()
    return task.sha256 or fingerprint(_there(task.path))


def windows(ids: NDArray[np.uint8], starts: NDArray[np.int64], length: int) -> Ids:
    """Return the windows (windows, length) that begin at `starts`."""
    return ids[starts[:, None] + np.arange(length)].astype(np.int64)


def held_out(task: TaskConfig, size: int) -> Ids:
    """Return `size` evenly spaced windows of the held-out text; they overlap if the text is short."""
    ids = split(task).held_out
    return windows(
        ids,
        np.linspace(0, len(ids) - _window(task), size).astype(np.int64),
        _window(task),
    )


def bigram_losses(task: TaskConfig) -> NDArray[np.float64]:
    """Return -ln p(b | a), (first character a, next character b), by counts of pairs in the training text plus one."""
    ids = split(task).training.astype(np.int64)
    number = task.vocabulary
    counts = 1.0 + np.bincount(
        number * ids[:-1] + ids[1:], minlength=number**2
    ).reshape(number, number)
    losses: NDArray[np.float64] = np.log(counts.sum(axis=1, keepdims=True)) - np.log(
        counts
    )
    return losses


def as_text(ids: NDArray[np.int64]) -> str:
    """Return ids as characters; the id of all other characters is printed as an inverted question mark."""
    return "".join(
        (*CHARACTERS, "\N{INVERTED QUESTION MARK}")[number] for number in ids
    )


def as_ids(text: str) -> NDArray[np.uint8]:
    """Return a text as ids: the positions of its characters in the alphabet, and OTHER for all others."""
    return _IDS[np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)]


def _window(task: TaskConfig) -> int:
    """Return task.length. Raises UserError for a window without a predicted character."""
    length = task.length or 0
    if length < 2 or not 0 <= task.first_scored < length - 1:
        raise UserError(
            "task.length, task.first_scored: no character of a window remains to be predicted",
            got=f"task.length={task.length}, task.first_scored={task.first_scored}",
            allowed="task.length >= 2, and task.first_scored from 0 to task.length - 2",
            remedy="task.length=64 task.first_scored=0",
        )
    return length


@cache
def _standard() -> Split:
    folder = Path(os.__file__).parent
    missing = [name for name in MODULES if not is_file(folder / f"{name}.py")]
    if missing:
        raise UserError(
            "task=text: this Python comes without the sources of its standard library",
            got=f"{folder} has no {first_few(missing)}",
            allowed="sources (.py) of all modules of hessfig.tasks.text.MODULES",
            remedy="a text of your own: task.path=FILE",
        )
    texts = [as_ids((folder / f"{name}.py").read_text("utf-8")) for name in MODULES]
    chosen = [text for rank, text in enumerate(texts, 1) if rank % EVERY]
    return Split(np.concatenate(chosen), np.concatenate(texts[EVERY - 1 :: EVERY]))


@cache
def _read(path: Path, sha256: str | None, identity: tuple[int, ...]) -> Split:
    del identity  # part of the cache's key, so that a changed file is read again
    try:
        if path.stat().st_size > _LARGEST:
            raise ValueError(
                f"{path.stat().st_size} bytes, where at most {_LARGEST} may be"
            )
        text = read_pinned(path, "task.path", sha256).decode("utf-8")
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(
            f"task.path: {path} cannot be read as text",
            got=str(error)[:200],
            allowed=_FORM,
            remedy="check the file",
        ) from error
    ids = as_ids(text.replace("\r\n", "\n"))
    cut = len(ids) - len(ids) // EVERY
    return Split(ids[:cut], ids[cut:])
