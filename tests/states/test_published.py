"""The published draws: known first numbers of batch, weights, embeddings and signs, and known norms."""

from itertools import product

import numpy as np
import pytest
import torch

from hessfig.config.compose.job import checked_job
from hessfig.config.grid import sigma_values
from hessfig.errors import UserError
from hessfig.states import published
from hessfig.states.initialised import initialised
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from hessfig.terms import Part
from tests.daily import thinned
from tests.measured_rows import values

FULL = ("state=published", "estimator=published", "dtype=float64")


def config_of(*words):
    return checked_job([*FULL, *words]).first


def network_of(config, place=0, seed=1234):
    objective = initialised(config, sigma=sigma_values(config.grid)[place], seed=seed)
    return {
        name: value.detach() for name, value in objective.network.named_parameters()
    }


def starts(matrix, *numbers):
    """Whether a matrix, row by row, starts with these numbers, in all the seven digits that they were noted with."""
    for found, noted in zip(matrix.flatten().tolist(), numbers, strict=False):
        if f"{found:.7g}" != f"{noted:.7g}":
            return False
    return True


def test_the_batch_is_the_published_one():
    config = config_of("sweep=sigma")
    tokens = initialised(
        config, sigma=sigma_values(config.grid)[0], seed=1234
    ).batch.inputs
    assert tokens[:2].tolist() == [
        [5, 1, 6, 5, 6, 10, 7, 3, 8, 9, 1, 11, 1, 2, 5, 5, 4, 7],
        [4, 2, 5, 5, 9, 10, 3, 4, 4, 8, 1, 11, 0, 7, 7, 0, 4, 0],
    ]
    counts = torch.bincount(tokens[:, 11:17].flatten(), minlength=12)
    assert counts.tolist() == [65, 66, 16, 30, 19, 27, 29, 21, 25, 22, 0, 64]


def test_weights_are_the_published_ones_in_every_layer():
    weights = network_of(config_of("sweep=depth", "model.n_layers=5"))
    for name, numbers in {
        "layers.0.attn.q": (-0.03721144, -0.156439, 0.07406554),
        "layers.0.attn.o": (0.08232989, -0.1388494, 0.02109908),
        "layers.0.attn.k": (-0.005336995, 0.04270468, -0.05137595),
        "layers.0.attn.v": (0.02484076, 0.05229771, -0.1460855),
        "layers.0.mlp.fc_in": (0.07879857, 0.04532942, -0.0260677),
        "layers.0.mlp.fc_out": (0.01121352, 0.08001643, 0.04090359),
        "layers.1.attn.q": (0.08826485, -0.0265633, -0.03940951),
        "layers.4.attn.q": (0.0826375, -0.07565619, -0.1155703),
        "head": (-0.0400224, 0.1065278, 0.1125724),
    }.items():
        assert starts(weights[f"{name}.weight"].T, *numbers), name
    for name, value in weights.items():
        assert value.any() or name.endswith("bias")
        assert not (name.endswith("bias") and value.any())


def test_without_an_mlp_its_weights_are_not_drawn():
    weights = network_of(config_of("sweep=softmax", "model.n_layers=2"))
    assert starts(
        weights["layers.1.attn.q.weight"].T, 0.07879857, 0.04532942, -0.0260677
    )
    assert starts(weights["head.weight"].T, 0.01121352, 0.08001643, 0.04090359)


def test_embeddings_advance_with_sigma_and_not_with_depth():
    for words in (["sweep=sigma"], ["sweep=depth", "model.n_layers=3"]):
        first, later = (network_of(config_of(*words), place) for place in (0, 7))
        np.testing.assert_allclose(
            first["tok_embed.weight"][0, :4],
            [-0.016164904, 0.0056845522, -0.005102247, -0.0091133937],
            rtol=1e-7,
        )
        np.testing.assert_allclose(
            later["tok_embed.weight"][0, :4],
            [0.12477093, -0.19747476, -0.1881924, 0.096146405],
            rtol=1e-7,
        )
        np.testing.assert_allclose(
            later["pos.weight"][0, :2] / 0.12742749857,
            [0.22303131, 0.1486344],
            rtol=2e-7,
        )
    last = network_of(config_of("sweep=sigma"), 19, seed=1253)
    np.testing.assert_allclose(
        last["tok_embed.weight"][0, :3], [-2.83913, -7.91608, 3.63358], rtol=1e-5
    )


def test_linear_mlps_continue_one_stream():
    one, two = (config_of("sweep=mlp", f"model.n_layers={depth}") for depth in (1, 2))
    first = network_of(one)
    later = network_of(one, 7)
    deeper = network_of(two)
    assert starts(first["layers.0.weight"], 0.02136034, -0.08350439, -0.03084075)
    assert starts(deeper["layers.1.weight"], 0.06356800, -0.00826536, -0.04063843)
    for network, numbers in (
        (first, [-0.001622945, 0.01807890, -0.01053307]),
        (later, [0.1284562, -0.1853121, -0.1711664]),
        (deeper, [0.01660195, 0.008610602, -0.006190733]),
    ):
        np.testing.assert_allclose(
            network["tok_embed.weight"][0, :3], numbers, rtol=5e-7
        )


def test_numbers_of_numpy_are_the_same_from_any_position():
    whole = np.random.RandomState(77).random_sample(1000)
    for first, count in ((0, 10), (500, 20), (100, 50), (520, 5), (300, 700)):
        assert np.array_equal(
            published.numpy_numbers(77, first, count), whole[first : first + count]
        )


def test_every_part_has_signs_of_its_own_in_the_published_order():
    config = config_of("sweep=depth", "model.n_layers=2", "grid.points=2")
    shape = torch.Size([128, 128])
    whole = np.random.RandomState(1234).random_sample(2 * 2 * 6 * 20 * 16384)
    expected = np.where(whole > 0.5, 1.0, -1.0).reshape(2, 2, 2, 3, 20, 128, 128)
    for place, layer, col, part in ((0, 1, 0, 0), (1, 2, 1, 2), (1, 1, 0, 1)):
        drawn = published.signs(
            config,
            shape,
            sigma=sigma_values(config.grid)[place],
            seed=1234,
            layer=layer,
            col=("W_Q", "W_V")[col],
            part=(Part.H, Part.H_o, Part.H_f)[part],
        )
        # As (inputs, outputs).
        vectors = drawn.T.reshape(20, 128, 128).transpose(1, 2).numpy()
        assert np.array_equal(vectors, expected[place, layer - 1, col, part])


def test_linear_mlps_start_where_numpy_was_left():
    config = config_of("sweep=mlp", "model.n_layers=1")
    drawn = published.signs(
        config,
        torch.Size([12, 128]),
        sigma=0.01,
        seed=1234,
        layer=1,
        col="W",
        part=Part.H,
    )
    assert drawn[:10, 0].tolist() == [1, -1, -1, -1, 1, 1, -1, 1, -1, 1]


def test_the_stream_of_linear_mlps_has_no_gap():
    """Through depths, repeats, sigmas and layers every estimate starts where the last one ended."""
    expected = 0
    for depth in range(1, 6):
        config = config_of("sweep=mlp", f"model.n_layers={depth}")
        for seed, place, layer in product(
            range(1234, 1254), range(20), range(1, depth + 1)
        ):
            assert published._entries_before(config, place, seed, layer) == expected
            expected += 128 * (12 if layer == depth else 128)


@pytest.mark.long
def test_cuda_draws_of_linear_mlps_start_where_they_should(monkeypatch):
    asked = list[int]()
    monkeypatch.setattr(
        published,
        "cuda_normal",
        lambda count, *, seed, offset: (
            asked.append(offset // 4) or np.zeros(count, "f4")
        ),
    )
    for depth in range(1, 6):
        network_of(config_of("sweep=mlp", f"model.n_layers={depth}"))
    network_of(config_of("sweep=mlp", "model.n_layers=5"), place=19, seed=1253)
    firsts = [0, 440, 900, 1380, 1880]
    assert asked == [
        *(first + depth + 1 for depth, first in enumerate(firsts, start=1)),
        2399,
    ]


def cell_of(folder, *words, place):
    """Return the norms of repeat 0 at one sigma by layer, block and part."""
    job = checked_job(
        [*FULL, *words, "sweep.vary={}", "seeds=1", f"output_dir={folder}"]
    )
    cell = Sweep(job.variants).cells[place]
    return values(compute_cell(cell).rows, "layer", "row", "part")


# Norms of repeat 0 by a code that shares nothing with hessfig: settings, place of
# sigma, {block: H, H_o, H_f}.
KNOWN = [
    (("sweep=sigma",), 0, {(1, "W_Q"): (7.0252718e-10, 3.0263346e-12, 7.2755941e-10)}),
    (("sweep=sigma",), 7, {(1, "W_V"): (0.049458952, 0.047737300, 0.0)}),
    (
        ("sweep=layernorm",),
        7,
        {
            (1, "W_Q"): (2.7999766, 2.2675170, 3.4285875),
            (1, "W_V"): (6.4354545, 7.8864387),
        },
    ),
    (
        ("sweep=linear_axis_short",),
        7,
        {(1, "W_Q"): (0.10974855, 0.023298413, 0.11687629)},
    ),
    (("sweep=linear_axis",), 0, {(1, "W_V"): (0.043443674, 0.041104156, 0.0)}),
    (
        ("sweep=depth", "model.n_layers=2"),
        7,
        {(1, "W_V"): (0.13165215, 0.12210663, 6.6162938e-3)},
    ),
    (
        ("sweep=softmax", "model.n_layers=2"),
        7,
        {(1, "W_Q"): (8.2110584, 0.096065459, 8.4542474)},
    ),
    (("sweep=mlp", "model.n_layers=1"), 7, {(1, "W"): (2029.2100,)}),
    (
        ("sweep=mlp", "model.n_layers=2"),
        0,
        {(1, "W"): (4.1506694,), (2, "W"): (3.8288175,)},
    ),
]


@pytest.mark.parametrize(("words", "place", "blocks"), KNOWN)
@pytest.mark.long
def test_norms_are_the_known_ones(words, place, blocks, tmp_path):
    norms = cell_of(tmp_path, *words, place=place)
    for at, known in blocks.items():
        for part, norm in zip(("H", "H_o", "H_f"), known, strict=False):
            assert norms[*at, part] == pytest.approx(norm, rel=1e-6)


@pytest.mark.long
def test_a_small_sweep_of_published_draws_is_measured_by_every_engine(tmp_path):
    """The products agree to rounding, whichever engine multiplies; the published order is known to all of them."""
    words = ("sweep=sigma", "model.d_model=8", "task.batch_size=4")
    sides = [
        cell_of(tmp_path, *words, f"estimator.products={by}", place=3)
        for by in ("linearised", "curvlinops")
    ]
    assert sides[0].keys() == sides[1].keys()
    np.testing.assert_allclose(
        [*sides[0].values()], [*sides[1].values()], rtol=1e-9, atol=1e-18
    )


@pytest.mark.long
def test_keys_change_with_the_grid_and_with_the_draws(tmp_path):
    def key(*words):
        job = checked_job(["sweep=sigma", "seeds=1", f"output_dir={tmp_path}", *words])
        return Sweep(job.variants).cells[0].key

    variants = (
        [],
        ["estimator=hutchinson"],
        ["state=published"],
        ["state=published", "estimator=published"],
    )
    keys = [key(*words) for words in (*variants, [*variants[3], "grid.points=19"])]
    assert len({*keys}) == len(keys)
    assert key("estimator=hutchinson", "grid.points=19") == keys[1]


@pytest.mark.parametrize(
    ("words", "what"),
    thinned(
        [
            (["sweep=sigma", *FULL, "blocks=[W_K]"], "draws no probes for this"),
            (["sweep=sigma", *FULL, "quantities=[trace]"], "draws no probes for this"),
            (["sweep=sigma", "estimator=published"], "draws no probes for this"),
            (
                ["sweep=sigma", "state=published", "model.n_heads=2"],
                "does not draw this network",
            ),
            (
                ["sweep=sigma", "state=published", "model.mlp=swiglu"],
                "does not draw this network",
            ),
            (["sweep=mlp", "state=published", "first_seed=2000"], "one stream"),
            (["sweep=mlp", "state=published", "grid.points=5"], "one stream"),
            (["sweep=training", "state.draw=published"], r"state\.draw is read with"),
        ],
        4,
    ),
)
def test_what_was_not_published_is_refused(words, what):
    with pytest.raises(UserError, match=what):
        Sweep(checked_job(words).variants)


def test_a_sigma_beside_the_grid_is_refused():
    with pytest.raises(UserError, match="go through the grid"):
        published.sigma_index(config_of("sweep=sigma"), 0.011)
