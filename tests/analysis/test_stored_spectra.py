"""Eigenvalues and densities stored beside a table: found through the manifest, believed only where whole."""

import json

import numpy as np
import pytest

from hessfig.analysis import arrays
from hessfig.analysis.stored_spectra import (
    has_densities,
    has_spectra,
    read_densities,
    read_spectra,
)
from hessfig.errors import UserError
from tests.analysis.spectral import (
    entry_of,
    store_density,
    store_spectrum,
    write_manifest,
)

BLOCKS = {
    ("W_Q", "H"): np.array([-1.0, 0.0, 2.0]),
    ("W_V", "H_o"): np.array([0.5, 3.0]),
}


def test_what_was_written_is_read_block_by_block(tmp_path):
    entries = [store_spectrum(tmp_path, BLOCKS, seed=seed) for seed in (1, 2)]
    entries += [store_density(tmp_path, BLOCKS, "a.b=1", steps=4)]
    write_manifest(tmp_path, entries)
    found = read_spectra(tmp_path)
    assert [(one.place.seed, one.place.row, one.place.part) for one in found] == [
        (1, "W_Q", "H"),
        (1, "W_V", "H_o"),
        (2, "W_Q", "H"),
        (2, "W_V", "H_o"),
    ]
    np.testing.assert_array_equal(found[0].eigenvalues, BLOCKS["W_Q", "H"])
    (density,) = read_densities(tmp_path, lambda place: place.row == "W_V")
    assert density.place.variant == "a.b=1"
    assert density.place.dim == 2
    assert density.place.sigma == 0.2
    assert density.whole.nodes.shape == (4, 4)
    assert density.half.nodes.shape == (4, 2)
    np.testing.assert_allclose(
        np.sort(density.whole.nodes[:, :2], axis=1), [[0.5, 3.0]] * 4
    )
    assert has_spectra(tmp_path)
    assert has_densities(tmp_path)


def test_a_state_without_sigma(tmp_path):
    write_manifest(tmp_path, [store_spectrum(tmp_path, BLOCKS, sigma=None, step=30)])
    place = read_spectra(tmp_path)[0].place
    assert np.isnan(place.sigma)
    assert place.step == 30


def test_nothing_stored_names_the_command(tmp_path):
    folder = write_manifest(tmp_path / "outputs" / "spectra", [])
    with pytest.raises(
        UserError, match=r"no stored spectrum[\s\S]*hessfig run sweep=spectra"
    ):
        read_spectra(folder)
    with pytest.raises(
        UserError, match=r"no stored density[\s\S]*quantities=\[density\]"
    ):
        read_densities(folder)
    assert not has_spectra(folder)
    assert not has_densities(folder)


@pytest.mark.parametrize("content", ["half", b"", b"text", "absent", "swapped"])
def test_files_that_are_not_what_the_manifest_says(tmp_path, content):
    folder = tmp_path / "outputs" / "spectra"
    first = store_spectrum(folder, BLOCKS, "a.b=1")
    second = store_spectrum(folder, BLOCKS, "a.b=2")
    path = write_manifest(folder, [first, second]) / first["file"]
    if content == "absent":
        path.unlink()
    elif content == "swapped":
        path.write_bytes((folder / second["file"]).read_bytes())
    else:
        path.write_bytes(path.read_bytes()[:200] if content == "half" else content)
    with pytest.raises(
        UserError, match=rf"{path.name} is [\s\S]*hessfig run sweep=spectra"
    ):
        read_spectra(folder)


def test_files_under_each_others_names_and_hashes(tmp_path):
    first = store_spectrum(tmp_path, BLOCKS, "a.b=1")
    second = store_spectrum(tmp_path, BLOCKS, "a.b=2")
    write_manifest(
        tmp_path, [{**first, "file": second["file"], "sha256": second["sha256"]}]
    )
    with pytest.raises(
        UserError,
        match=r"swapped[\s\S]*it says variant=a.b=2, manifest.json says a.b=1",
    ):
        read_spectra(tmp_path)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"eigenvalues_0": np.zeros(2)}, "eigenvalues_0"),
        ({"eigenvalues_0": np.array([0.0, np.nan, 1.0])}, "not finite"),
        ({"eigenvalues_0": np.array([2.0, 1.0, 3.0])}, "do not rise"),
        ({"eigenvalues_1": None}, "eigenvalues_1"),
        ({"eigenvalues_0": np.array([object()] * 3)}, "allow_pickle=False"),
        ({"entries": None}, "entries"),
        ({"entries": "{}"}, "not a list"),
        ({"entries": json.dumps([{**entry_of("W_Q", "H", 3), "dim": 0}])}, "dim=0"),
        ({"entries": json.dumps([entry_of("\x1b[2J", "H", 3)])}, "row="),
        ({"entries": json.dumps([entry_of("W_Q", "H_x", 3)])}, "H_x"),
        ({"label": "{}"}, "variant"),
    ],
)
def test_contents_that_are_no_spectrum(tmp_path, held, message):
    write_manifest(tmp_path, [store_spectrum(tmp_path, BLOCKS, **held)])
    with pytest.raises(UserError, match=message):
        read_spectra(tmp_path)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"weights_0": np.ones((4, 12))}, "sums"),
        ({"weights_0": np.full((4, 12), -1 / 12)}, "sums"),
        ({"nodes_1": np.ones(3), "weights_1": np.ones(3) / 3}, "shape"),
        ({"half_nodes_0": None}, "half_nodes_0"),
    ],
)
def test_contents_that_are_no_density(tmp_path, held, message):
    write_manifest(tmp_path, [store_density(tmp_path, BLOCKS, **held)])
    with pytest.raises(UserError, match=message):
        read_densities(tmp_path)


def test_claims_of_absurd_size_take_no_memory(tmp_path, monkeypatch):
    write_manifest(tmp_path, [store_spectrum(tmp_path, BLOCKS)])
    monkeypatch.setattr(arrays, "_TOGETHER", 1000)
    with pytest.raises(UserError, match=r"arrays claim \d+ bytes"):
        read_spectra(tmp_path)
    monkeypatch.setattr(arrays, "_SMALL", 100)
    with pytest.raises(UserError, match=r"claims \d+ bytes"):
        read_spectra(tmp_path)
