"""Hessians stored beside a table: found through the manifest, checked, cut into blocks, counted."""

import hashlib
import json

import numpy as np
import pytest

from hessfig.analysis import arrays
from hessfig.analysis.arrays import histogram, log_bins, read_hessians
from hessfig.errors import UserError
from tests.analysis.synthetic import CONFIG

NAMES = ["W_Q", "W_V", "W_U"]
SIZES = [2, 3, 1]


def store(folder, variant="", **changes):
    """Write a Hessian as a sweep does, with its label inside, and return its entry in the manifest.

    `changes`: seed, sigma, step or other words of the label; hessian, names, sizes or
    label (arrays) themselves.
    """
    said = {
        "variant": variant,
        "num_layers": 1,
        "sigma": 0.2,
        "step": None,
        "seed": 1234,
        "quantity": "hessian",
    }
    said |= {key: value for key, value in changes.items() if key in said}
    matrix = np.arange(36, dtype=np.float32).reshape(6, 6) + said["seed"]
    held = {
        "hessian": matrix,
        "names": NAMES,
        "sizes": SIZES,
        "label": json.dumps({"key": "k", **said}),
    }
    held |= {key: value for key, value in changes.items() if key in held}
    name = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:24]
    path = folder / "cells" / name[:2] / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path, **{key: value for key, value in held.items() if value is not None}
    )
    return {**said, "file": str(path.relative_to(folder)), "sha256": digest(path)}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def listed(folder, *entries):
    """Write a manifest that lists the entries; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(
        json.dumps({"config": CONFIG, "arrays": list(entries)})
    )
    return folder


def test_blocks_and_restriction(tmp_path):
    (hessian,) = read_hessians(listed(tmp_path, store(tmp_path)))
    matrix = np.arange(36, dtype=np.float32).reshape(6, 6) + 1234
    assert (hessian.variant, hessian.sigma, hessian.seed) == ("", 0.2, 1234)
    np.testing.assert_array_equal(hessian.block("W_V"), matrix[2:5, 2:5])
    smaller = hessian.restricted(["W_U", "W_Q"])
    np.testing.assert_array_equal(smaller.matrix, matrix[np.ix_([0, 1, 5], [0, 1, 5])])
    assert smaller.names == ["W_Q", "W_U"]
    assert smaller.borders().tolist() == [0, 2, 3]
    with pytest.raises(UserError, match="no parameter W_K"):
        hessian.block("W_K")
    with pytest.raises(
        UserError, match=r"no parameter W_K, W_O[\s\S]*figure.options.weights"
    ):
        hessian.restricted(["W_K", "W_O"])


def test_the_lowest_sigma_and_first_seed_of_each_variant_by_number(tmp_path):
    variants = ("model.attention=softmax", "model.attention=linear")
    # As text, 10.0 and 10000 would come first.
    coordinates = [(10.0, 999), (2.0, 10000), (2.0, 9999)]
    entries = [
        store(tmp_path, variant, sigma=s, seed=k)
        for variant in variants
        for s, k in coordinates
    ]
    found = read_hessians(
        listed(tmp_path, *entries, {**entries[0], "quantity": "density"})
    )
    assert [(one.variant, one.sigma, one.seed) for one in found] == [
        (v, 2.0, 9999) for v in variants
    ]


def test_a_state_without_sigma(tmp_path):
    (hessian,) = read_hessians(listed(tmp_path, store(tmp_path, sigma=None, step=300)))
    assert np.isnan(hessian.sigma)


def test_nothing_stored_names_the_command(tmp_path):
    for folder in (
        tmp_path / "outputs" / "entries",
        listed(tmp_path / "outputs" / "entries"),
    ):
        with pytest.raises(
            UserError, match=r"no stored Hessian[\s\S]*hessfig run sweep=entries"
        ):
            read_hessians(folder)


@pytest.mark.parametrize("content", ["half", b"", b"text", "absent", "swapped"])
def test_files_that_are_not_what_the_manifest_says(tmp_path, content):
    folder = tmp_path / "outputs" / "entries"
    first = store(folder, "a.b=1")
    second = store(folder, "a.b=2")
    path = listed(folder, first, second) / first["file"]
    if content == "absent":
        path.unlink()
    elif content == "swapped":
        path.write_bytes((folder / second["file"]).read_bytes())
    else:
        path.write_bytes(path.read_bytes()[:200] if content == "half" else content)
    with pytest.raises(
        UserError, match=rf"{path.name} is [\s\S]*hessfig run sweep=entries"
    ):
        read_hessians(folder)


def test_files_under_each_others_names_and_hashes(tmp_path):
    first = store(tmp_path, "a.b=1")
    second = store(tmp_path, "a.b=2")
    swapped = {**first, "file": second["file"], "sha256": second["sha256"]}
    with pytest.raises(
        UserError,
        match=r"swapped[\s\S]*it says variant=a.b=2, manifest.json says a.b=1",
    ):
        read_hessians(listed(tmp_path, swapped))


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"hessian": np.zeros((2, 2))}, r"shape \(2, 2\)"),
        ({"sizes": [2, 3]}, "shape"),
        ({"hessian": np.array([[object()]])}, "allow_pickle=False"),
        ({"label": None}, "label"),
        ({"label": "{}"}, "variant"),
        ({"names": None}, "names"),
    ],
)
def test_contents_that_are_no_hessian(tmp_path, held, message):
    with pytest.raises(UserError, match=message):
        read_hessians(listed(tmp_path, store(tmp_path, **held)))


def test_a_claim_of_absurd_size_takes_no_memory(tmp_path, monkeypatch):
    entry = store(tmp_path)
    monkeypatch.setattr(arrays, "_LARGEST", 100)
    with pytest.raises(UserError, match=r"hessian claims \d+ bytes"):
        read_hessians(listed(tmp_path, entry))


@pytest.mark.parametrize(
    "change",
    [
        {"file": "/etc/passwd"},
        {"file": "../other/cells/x.npz"},
        {"file": "cells/\0.npz"},
        {"file": 3},
        {"sha256": None},
        {"sigma": "0.2"},
        {"seed": 1.5},
        {"variant": None},
    ],
)
def test_entries_of_a_broken_list(tmp_path, change):
    with pytest.raises(UserError, match="lists an array that is none"):
        read_hessians(listed(tmp_path, {**store(tmp_path), **change}))
    with pytest.raises(UserError, match="lists an array that is none"):
        read_hessians(listed(tmp_path, "text"))


def test_histogram_counts_shares_of_all_entries():
    entries = np.array([0.0, -1e-3, 1e-3, 1e-5])
    edges = log_bins([entries])
    shares = histogram(entries, edges)
    assert shares.sum() == pytest.approx(0.75)
    assert shares[-1] == 0.5
    assert edges[-1] == pytest.approx(1e-3)
    with pytest.raises(UserError, match="nothing to count"):
        log_bins([entries, np.zeros(4)])
