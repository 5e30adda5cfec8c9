"""Dense Hessians beside a table: reading, cutting out blocks, histograms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hessfig.analysis.dense import histogram, log_bins, read_dense
from hessfig.errors import UserError

NAMES, SIZES = ["W_Q", "W_V", "W_U"], [2, 3, 1]


def write_dense(folder: Path, variant: str = "", *, seed: int = 1234) -> np.ndarray:
    """Write a dense Hessian as a sweep does and return its matrix."""
    (folder / "dense").mkdir(parents=True, exist_ok=True)
    matrix = np.arange(36, dtype=np.float32).reshape(6, 6) + seed
    stem = f"{variant}_" if variant else ""
    path = folder / "dense" / f"{stem}n_layers=1_sigma=0.2_seed={seed}.npz"
    np.savez_compressed(path, hessian=matrix, names=NAMES, sizes=SIZES)
    return matrix


def test_blocks_and_restriction(tmp_path: Path) -> None:
    matrix = write_dense(tmp_path)
    (hessian,) = read_dense(tmp_path)
    assert (hessian.variant, hessian.sigma, hessian.seed) == ("", 0.2, 1234)
    np.testing.assert_array_equal(hessian.block("W_V"), matrix[2:5, 2:5])
    smaller = hessian.restricted(["W_U", "W_Q"])
    np.testing.assert_array_equal(smaller.matrix, matrix[np.ix_([0, 1, 5], [0, 1, 5])])
    assert smaller.names == ["W_Q", "W_U"] and smaller.borders().tolist() == [0, 2, 3]
    with pytest.raises(UserError, match="no parameter W_K"):
        hessian.block("W_K")


def test_the_first_seed_of_each_variant(tmp_path: Path) -> None:
    for variant in ("model.attention=softmax", "model.attention=linear"):
        write_dense(tmp_path, variant, seed=1235)
        write_dense(tmp_path, variant, seed=1234)
    found = {hessian.variant: hessian.seed for hessian in read_dense(tmp_path)}
    assert found == {"model.attention=softmax": 1234, "model.attention=linear": 1234}


def test_missing_and_bad_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hessfig run sweep=entries"):
        read_dense(tmp_path / "outputs" / "entries")
    write_dense(tmp_path)
    (path,) = (tmp_path / "dense").iterdir()
    content = path.read_bytes()
    for damaged in (content[:50], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="damaged or not a dense Hessian"):
            read_dense(tmp_path)
    np.savez(path, hessian=np.zeros((2, 2)), names=NAMES, sizes=SIZES)
    with pytest.raises(UserError, match=r"shape \(2, 2\)"):
        read_dense(tmp_path)
    np.savez(path, hessian=np.array([[object()]]), names=NAMES, sizes=SIZES)
    with pytest.raises(UserError, match="allow_pickle=False"):
        read_dense(tmp_path)
    path.rename(path.with_name("other.npz"))
    with pytest.raises(UserError, match="is not named as a dense Hessian"):
        read_dense(tmp_path)


def test_histogram_counts_shares_of_all_entries() -> None:
    entries = np.array([0.0, -1e-3, 1e-3, 1e-5])
    edges = log_bins([entries])
    shares = histogram(entries, edges)
    assert shares.sum() == pytest.approx(0.75)
    assert shares[-1] == 0.5 and edges[-1] == pytest.approx(1e-3)
