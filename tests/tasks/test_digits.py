"""Pictures of digits: the bundled ones, their split and batches; files of one's own, and those that are refused."""

import io
import random
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from hessfig.config.enums import Data, DType, Loss
from hessfig.config.science import TaskConfig
from hessfig.errors import UserError
from hessfig.tasks import digits
from hessfig.tasks.batch import draw_batch
from hessfig.tasks.digits import number_of_training, pictures, split
from tests.daily import thinned


def own(path, *, images=None, labels=None):
    images = np.random.default_rng(0).random((10, 8, 8)) if images is None else images
    np.savez(
        path / "own.npz",
        images=images,
        labels=np.arange(10) if labels is None else labels,
    )
    return str(path / "own.npz")


def test_the_bundled_pictures_are_split_once_and_for_all():
    training, test = split(None)
    assert (
        (len(training), len(test))
        == (1437, 360)
        == (number_of_training(None), 1797 - 1437)
    )
    every = np.concatenate([training.images, test.images]).reshape(1797, -1)
    assert np.array_equal(
        np.sort(every, axis=0), np.sort(pictures(None).images.reshape(1797, -1), axis=0)
    )
    assert (every.min(), every.max()) == (0.0, 1.0)
    assert set(training.labels) == set(test.labels) == set(range(10))


def test_without_scikit_learn_the_bundled_pictures_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    digits._bundled.cache_clear()
    with pytest.raises(
        UserError, match=r"(?s)part of scikit-learn.*pip install '\.\[digits\]'"
    ):
        pictures(None)


def test_a_batch_comes_from_the_training_pictures_and_grows_with_its_size():
    def batch(**settings):
        return draw_batch(
            TaskConfig(data=Data.digits, **settings), width=16, dtype=DType.float64
        ).inputs

    small = batch(batch_size=4)
    large = batch(batch_size=9)
    other = batch(batch_size=4, seed=1)
    assert torch.equal(small, large[:4])
    assert not torch.equal(small, other)
    training = {image.tobytes() for image in split(None)[0].images}
    assert all(image.numpy().tobytes() in training for image in large)


@pytest.mark.parametrize("loss", [Loss.cross_entropy, Loss.mse])
def test_a_batch_of_one_picture_is_a_batch(loss):
    def batch(size):
        task = TaskConfig(data=Data.digits, batch_size=size, loss=loss)
        return draw_batch(task, width=16, dtype=DType.float64)

    one = batch(1)
    two = batch(2)
    assert torch.equal(one.inputs, two.inputs[:1])
    assert torch.equal(one.targets, two.targets[:1])


def test_targets_fit_the_loss():
    task = {"data": Data.digits, "batch_size": 5}
    classes = draw_batch(TaskConfig(**task), width=16, dtype=DType.float32)
    squares = draw_batch(
        TaskConfig(loss=Loss.mse, **task), width=16, dtype=DType.float32
    )
    assert classes.inputs.dtype == torch.float32
    assert classes.targets.shape == (5, 1)
    assert torch.equal(squares.targets.argmax(-1), classes.targets)


def test_pictures_of_ones_own(tmp_path):
    path = own(tmp_path)
    assert len(pictures(path)) == 10
    assert [len(part) for part in split(path)] == [8, 2]


BAD = {
    "another size": ({"images": np.zeros((10, 28, 28))}, "another size"),
    "too few labels": ({"labels": np.arange(9)}, "another size or number"),
    "missing values": ({"images": np.full((10, 8, 8), np.nan)}, "missing or infinite"),
    "words": ({"images": np.full((10, 8, 8), "x")}, "some pixels are not numbers"),
    "more classes": (
        {"labels": np.arange(10) + 1},
        r"more classes than the network has outputs \(10\)",
    ),
    "negative classes": ({"labels": np.arange(10) - 1}, "labels are not classes"),
    "labels that are fractions": (
        {"labels": np.arange(10) / 3},
        "labels are not classes",
    ),
}


@pytest.mark.parametrize(("held", "message"), BAD.values(), ids=BAD)
def test_pictures_that_cannot_be_taken_are_refused(tmp_path, held, message):
    with pytest.raises(UserError, match=rf"task.path(.|\n)*{message}"):
        pictures(own(tmp_path, **held))


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04broken"])
def test_files_that_are_no_pictures_are_refused(tmp_path, content):
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read as pictures"):
        pictures(str(tmp_path / "own.npz"))
    with pytest.raises(UserError, match="no such file"):
        pictures(str(tmp_path / "nowhere.npz"))
    np.savez(tmp_path / "names.npz", pictures=np.zeros((3, 8, 8)))
    with pytest.raises(UserError, match="KeyError"):
        pictures(str(tmp_path / "names.npz"))
    np.savez(tmp_path / "objects.npz", images=np.array([object()]), labels=np.arange(1))
    with pytest.raises(UserError, match="cannot be read as pictures"):
        pictures(str(tmp_path / "objects.npz"))


def header(text, *, magic=b"\x93NUMPY\x01\x00"):
    """Return an array file that says `text` and holds nothing."""
    return magic + len(text).to_bytes(2, "little") + text.encode("latin-1")


def says(shape, *, descr="<f8"):
    return header(
        f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}\n"
    )


CLAIMS = {
    "a million pictures": says((10**6, 8, 8)),
    "more than any machine has": says((10**30, 8, 8)),
    "wide pixels": says((10, 8, 8), descr="<U99999999"),
    "a negative number": says((-1, 8, 8)),
    "two negative numbers": says((-(10**6), -8, 8)),
    "numbers that are none": says(("a", 8, 8)),
    "true": says((True, 8, 8)),
    "no type": says((1, 8, 8), descr="<q9"),
    "a type without end": says((1, 8, 8), descr=[("a", "<f8", (10**9,))]),
    "depth": header("[" * 9000),
    "half a text": header("{'descr': '"),
    "another version": header("{}", magic=b"\x93NUMPY\x09\x00"),
    "no magic": b"x" * 200,
    "nothing": b"",
}


@pytest.mark.parametrize("name", thinned(CLAIMS, 2))
def test_what_a_file_claims_is_looked_at_before_memory_is_taken(tmp_path, name):
    """Alone, and blown up: zeros that a small file stands for."""
    for tail in (b"", bytes(10**7)):
        path = written(tmp_path, CLAIMS[name] + tail)
        tracemalloc.start()
        with pytest.raises(UserError, match="cannot be read as pictures"):
            pictures(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 50 * 10**6


def test_a_damaged_file_is_refused_whatever_the_damage(tmp_path):
    dice = random.Random(0)
    path = own(tmp_path)
    sound = Path(path).read_bytes()
    refused = 0
    started = time.perf_counter()
    for turn in range(400):
        damaged = bytearray(sound)
        for _ in range(1 + turn % 3):
            damaged[dice.choice([dice.randrange(200), dice.randrange(len(sound))])] = (
                dice.randrange(256)
            )
        Path(path).write_bytes(
            damaged[: dice.randrange(len(sound))] if turn % 8 == 0 else damaged
        )
        try:
            pictures(path)
        except UserError:
            refused += 1
    assert refused > 200
    assert time.perf_counter() - started < 30


def written(folder, images):
    labels = io.BytesIO()
    np.save(labels, np.arange(10))
    with zipfile.ZipFile(folder / "claims.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", images)
        archive.writestr("labels.npy", labels.getvalue())
    return str(folder / "claims.npz")
