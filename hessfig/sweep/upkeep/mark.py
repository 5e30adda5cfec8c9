"""The mark of a run at work: a file in its folder that other commands see, on any machine, while it is fresh."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

from hessfig.files import MARK, OLD, age, clock_of

_RENEWED = 60.0  # seconds; a mark counts for an hour
_OURS: set[Path] = set()  # marks of this process


@contextmanager
def at_work(folder: Path) -> Iterator[None]:
    """Tell other commands, on any machine, that a run is at work in `folder`: by a mark that is renewed every minute.

    Who is killed leaves it behind; an hour later it counts no more.
    """
    mark, ended = folder / f".running.{secrets.token_hex(8)}", Event()
    keeper = Thread(target=_renew, args=(mark, ended), daemon=True)
    _OURS.add(mark)
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()
        _leave(mark)


def leave_all() -> None:
    """Take this process's marks away: it ends without unwinding."""
    for mark in list(_OURS):
        _leave(mark)


def is_at_work(folder: Path) -> bool:
    """Whether a run has a fresh mark in `folder`."""
    marks = [path for path in folder.glob(".running.*") if MARK.fullmatch(path.name)]
    return bool(marks) and any(age(path, clock_of(folder)) < OLD for path in marks)


def _renew(mark: Path, ended: Event) -> None:
    """Renew a mark until the run has ended; a disk that is full or gone is found by whoever writes results."""
    while not ended.is_set():
        with suppress(OSError):
            mark.touch()
        ended.wait(_RENEWED)


def _leave(mark: Path) -> None:
    with suppress(OSError):
        mark.unlink(missing_ok=True)
    _OURS.discard(mark)
