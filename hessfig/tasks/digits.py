"""Pictures of handwritten digits: scikit-learn's bundled 8 x 8 ones, or a user's own; a fixed split, a seeded batch."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.config.enums import Data
from hessfig.config.schema import TaskConfig
from hessfig.errors import UserError, install_extra
from hessfig.files import fingerprint, is_file, read_pinned

if TYPE_CHECKING:
    import numpy as np

SIDE = 8
CLASSES = Data.digits.facts.classes or 0
BUNDLED = 1797
TRAINING_SHARE = 0.8
_BRIGHTEST = 16  # largest brightness of the bundled pictures
# Largest size of an array in bytes; largest ratio of compression of a zip file.
_LARGEST = 2**28
_DEFLATED = 1100
_DAMAGES = (
    *(
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        MemoryError,
        OverflowError,
        RecursionError,
    ),
    *(
        NotImplementedError,
        RuntimeError,
        SyntaxError,
        zipfile.BadZipFile,
        zlib.error,
        struct.error,
    ),
    tokenize.TokenError,  # a header of half a text
)
_FORM = f"a .npz file with images (n, {SIDE}, {SIDE}) and labels (n), whole numbers from 0 to {CLASSES - 1}"


@dataclass(frozen=True)
class Pictures:
    """`images` (n, 8, 8) float64 and `labels` (n) int64, as numpy arrays."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def number_of_training(path: str | None, sha256: str | None = None) -> int:
    """Return the number of training pictures. Raises UserError for a file without valid pictures."""
    return int(
        TRAINING_SHARE * (BUNDLED if path is None else len(pictures(path, sha256)))
    )


def check_batch(task: TaskConfig) -> None:
    """Raise UserError for a batch with more pictures than there are."""
    most = number_of_training(task.path, task.sha256)
    if task.batch_size > most:
        raise UserError(
            "task.batch_size: there are not as many training pictures",
            got=task.batch_size,
            allowed=f"1 to {most}",
            remedy=f"task.batch_size={min(most, 128)}",
        )


def source(task: TaskConfig) -> str:
    """Return the hash of the user's own pictures; "" for the bundled ones."""
    return "" if task.path is None else task.sha256 or fingerprint(Path(task.path))


def split(path: str | None, sha256: str | None = None) -> tuple[Pictures, Pictures]:
    """Return training and test pictures: the first 80 % of a fixed permutation, and the rest, for all seeds.

    Of the 1797 bundled pictures, 1437 are for training and 360 for tests.
    """
    import torch

    from hessfig.rng import stream

    every = pictures(path, sha256)
    order = torch.randperm(len(every), generator=stream(0, "digits", "split")).numpy()
    cut = int(TRAINING_SHARE * len(every))
    return tuple(
        Pictures(every.images[at], every.labels[at])
        for at in (order[:cut], order[cut:])
    )  # type: ignore[return-value]


def pictures(path: str | None, sha256: str | None = None) -> Pictures:
    """Return all pictures: the bundled ones with brightness 0 to 16 divided by 16, those of a file unchanged.

    Raises UserError for a file that cannot be read or has another hash than `sha256`,
    for pictures of another size, and for missing values or unknown classes.
    """
    if path is None:
        return _bundled()
    return _checked(Path(path), *_read(Path(path), sha256))


@cache
def _bundled() -> Pictures:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(
            "the bundled pictures of digits are part of scikit-learn, which is not installed",
            got="task=digits without task.path",
            allowed="a file of your own (task.path=FILE.npz), or scikit-learn",
            remedy=install_extra("digits"),
        ) from error
    bundled = load_digits()
    return Pictures(bundled.images / _BRIGHTEST, bundled.target.astype("int64"))


def _read(path: Path, sha256: str | None) -> tuple[np.ndarray, np.ndarray]:
    if not is_file(path):
        raise _refused("there is no such file", path)
    if path.stat().st_size > _LARGEST:
        raise _refused(
            "the file is too large",
            f"{path.stat().st_size} bytes, where at most {_LARGEST} may be",
        )
    content = io.BytesIO(read_pinned(path, "task.path", sha256))
    try:
        with zipfile.ZipFile(content) as archive:
            return _array(archive, "images"), _array(archive, "labels")
    except _DAMAGES as error:
        raise _refused(
            "it cannot be read as pictures", f"{type(error).__name__}: {error}"[:300]
        ) from error


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Return an array of the file after checking that its declared size is allowed and possible."""
    from numpy.lib import format as npy

    entry = archive.getinfo(f"{name}.npy")
    with archive.open(entry) as member:
        headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        shape, _, kind = headers[npy.read_magic(member)](member)
    claimed = math.prod(shape) * kind.itemsize
    stored = min(entry.file_size, _DEFLATED * entry.compress_size)
    if not 0 <= claimed <= min(_LARGEST, stored) or min(shape, default=0) < 0:
        raise ValueError(
            f"{name} claims {claimed} bytes, where {min(_LARGEST, stored)} may be"
        )
    with archive.open(entry) as member:
        return npy.read_array(member, allow_pickle=False)


def _checked(path: Path, images: np.ndarray, labels: np.ndarray) -> Pictures:
    import numpy as np

    if (
        images.shape[1:] != (SIDE, SIDE)
        or labels.shape != images.shape[:1]
        or len(labels) < 2
    ):
        raise _refused(
            "pictures of another size or number",
            f"images {images.shape}, labels {labels.shape}",
        )
    if (
        images.dtype.kind not in "fiub"
        or not np.isfinite(images.astype("float64")).all()
    ):
        raise _refused(
            "some pixels are not numbers",
            f"{path}: missing or infinite values, or {images.dtype}",
        )
    if labels.dtype.kind not in "iu" or labels.min() < 0:
        raise _refused("labels are not classes", f"{labels.dtype} from {labels.min()}")
    if labels.max() >= CLASSES:
        raise _refused(
            f"more classes than the network has outputs ({CLASSES})",
            f"labels up to {labels.max()}",
        )
    return Pictures(images.astype("float64"), labels.astype("int64"))


def _refused(what: str, got: object) -> UserError:
    return UserError(
        f"task.path: {what}",
        got=got,
        allowed=_FORM,
        remedy="numpy.savez(FILE, images=..., labels=...)",
    )
