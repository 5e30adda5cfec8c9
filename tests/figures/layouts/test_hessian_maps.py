"""Heat maps and histograms of stored Hessians, by the data of their artists."""

import numpy as np
import pytest

from hessfig.errors import UserError
from hessfig.figures.parts.page import styled
from hessfig.figures.sheets import LAYOUTS, FigureSpec
from tests.analysis.test_arrays import listed, store
from tests.figures.conftest import suffixes, titles_of

VARIANTS = ["model.attention=softmax", "model.attention=linear"]


def entry_pages(layout, folder, **options):
    with styled():
        return list(
            LAYOUTS[layout].draw(
                FigureSpec("1", "entries", layout, (), options), folder
            )
        )


@pytest.fixture
def stored(tmp_path):
    """Return a folder with Hessians of two variants over the parameters of attention."""
    generator = np.random.default_rng(0)
    names = ["W_E", "W_Q", "W_K", "W_V", "W_O", "b_U"]
    sizes = [9, 8, 8, 8, 8, 1]
    entries = [
        store(
            tmp_path,
            variant,
            names=names,
            sizes=sizes,
            hessian=scale * generator.normal(size=(42, 42)).astype(np.float32),
        )
        for scale, variant in zip((1.0, 10.0), VARIANTS, strict=True)
    ]
    return listed(tmp_path, *entries)


def test_entries(stored):
    (page,) = entry_pages("entries", stored, variant=VARIANTS[0])
    whole, attention, *_ = page.figure.axes
    assert page.suffix == ""
    assert "42" in whole.get_title()
    assert "attention: 32" in attention.get_title()
    low, high = whole.images[0].get_clim()
    # One scale from the floor to the half decade above the largest number.
    assert (low, high) == attention.images[0].get_clim()
    assert low == -6
    largest = max(ax.images[0].get_array().max() for ax in (whole, attention))
    assert largest < high <= largest + 0.5
    assert whole.images[0].get_cmap().name == "viridis"
    borders = [
        line.get_ydata()[0]
        for line in attention.lines
        if line.get_ydata()[0] == line.get_ydata()[1]
    ]
    assert borders == [8, 16, 24]
    assert len(whole.get_xticklabels()) == 5
    shares = page.numbers.groupby("block")["share"].sum()
    assert (shares <= 1).all()
    assert (shares > 0.98).all()


def test_every_variant_has_a_page_and_a_plain_name(stored):
    found = suffixes(entry_pages("entries", stored))
    assert found == ["_attention_softmax", "_attention_linear"]


def test_histograms_of_variants_share_their_bins(stored):
    (page,) = entry_pages("histograms", stored)
    assert titles_of(page.figure.axes) == ["softmax", "linear attention"]
    assert list(page.numbers["variant"].unique()) == VARIANTS
    shown = page.numbers[page.numbers["block"] == "W_V"]
    mean = {
        name: np.average(np.log10(rows["bin_low"]), weights=rows["share"])
        for name, rows in shown.groupby("variant")
    }
    # Ten times as large.
    assert mean[VARIANTS[1]] - mean[VARIANTS[0]] == pytest.approx(1, abs=0.1)
    for ax, variant in zip(page.figure.axes, VARIANTS, strict=True):
        tops = {patch.get_data().values.max() for patch in ax.patches}
        assert tops == set(
            page.numbers[page.numbers["variant"] == variant]
            .groupby("block")["share"]
            .max()
        )
    with pytest.raises(UserError, match="variant was not measured"):
        entry_pages("entries", stored, variant="model.attention=cubic")


def test_weights_of_other_networks_are_named_by_options(tmp_path):
    listed(tmp_path, store(tmp_path, names=["fc.weight", "a$b", "head"]))
    with pytest.raises(
        UserError, match=r"no parameter W_Q, W_K, W_V, W_O[\s\S]*figure.options.weights"
    ):
        entry_pages("entries", tmp_path)
    with pytest.raises(
        UserError, match=r"no parameter W_V[\s\S]*figure.options.blocks"
    ):
        entry_pages("entries", tmp_path, weights=["head"])
    (page,) = entry_pages(
        "entries", tmp_path, weights="a$b", blocks=["fc.weight", "a$b"]
    )
    assert set(page.numbers["block"]) == {"fc.weight", "a$b"}
    assert "some weights: 3" in page.figure.axes[1].get_title()
