"""Rules that use the curvature: factors against dense Hessians, and the same bits however they are interrupted."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from hessfig.config.enums import Curvature, DType
from hessfig.curvature.spectral.lanczos import largest_ritz
from hessfig.states.training import loop
from hessfig.states.training.checkpoints import Folder
from hessfig.states.training.loop import ensure
from hessfig.states.training.step_rules import (
    FACTORS,
    FLATTEST,
    factors,
    products_of_a_refresh,
    refreshes_curvature,
)
from hessfig.states.training.trajectory import Trajectory
from hessfig.terms import Optimiser
from tests.draws import draws
from tests.toys import training_config


def two_parameters():
    """Return parameters a and b, and the Hessian of 1/2 x.A x + the flat b in all of them."""
    root = draws(5, 5)
    ones = torch.ones(3, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    named = dict(zip("ab", ones, strict=True))
    for one in ones:
        one.requires_grad_()
    return named, root @ root.T, root


@pytest.mark.parametrize("kind", [Curvature.whole, Curvature.blocks])
def test_factors_are_inverse_largest_eigenvalues(kind):
    named, matrix, _ = two_parameters()

    def loss():
        x = torch.cat(list(named.values()))
        return x @ matrix @ x / 2

    found = factors(kind, named, loss, seed=1, step=1)
    if kind == Curvature.whole:
        assert found.tolist() == pytest.approx(
            [1 / float(torch.linalg.eigvalsh(matrix)[-1])]
        )
    else:
        tops = []
        for block in (matrix[:3, :3], matrix[3:, 3:]):
            tops.append(float(torch.linalg.eigvalsh(block)[-1]))
        mean = (tops[0] * tops[1]) ** 0.5
        assert found.tolist() == pytest.approx([mean / top for top in tops])
        assert float(found.log().sum()) == pytest.approx(0, abs=1e-12)


def test_a_flat_block_counts_as_a_share_of_the_steepest():
    named, _, _ = two_parameters()
    found = factors(
        Curvature.blocks, named, lambda: 3 * named["a"].square().sum(), seed=1, step=1
    )
    assert float(found[1] / found[0]) == pytest.approx(1 / FLATTEST)


def test_the_stand_in_is_the_fourth_root_of_the_gradients_ratio():
    named, _, _ = two_parameters()
    (named["a"].sum() * 16 / 3**0.5 + named["b"].sum() / 2**0.5).backward()
    found = factors(
        Curvature.gradient_norm, named, lambda: named["a"].sum(), seed=1, step=1
    )
    assert found.tolist() == pytest.approx([0.5])


def test_a_ritz_value_is_never_above_and_soon_near_the_largest_eigenvalue():
    matrix = torch.diag(torch.linspace(-3, 1, 60, dtype=torch.float64))
    start = torch.ones(60, dtype=torch.float64)
    found = [largest_ritz(lambda v: matrix @ v, start, count) for count in (3, 12, 60)]
    assert found == sorted(found)
    assert found[1] > 0.9
    assert found[2] == pytest.approx(1)


@pytest.mark.parametrize(
    "kind", [Curvature.whole, Curvature.blocks, Curvature.gradient_norm]
)
@pytest.mark.parametrize("optimiser", [Optimiser.adamw, Optimiser.sgd])
@pytest.mark.long
def test_the_same_bits_after_stops_between_two_refreshes(
    tmp_path, kind, optimiser, monkeypatch
):
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    settings = {
        "optimiser": optimiser,
        "curvature": kind,
        "refresh": 4,
        "momentum": 0.5,
    }
    one = Trajectory(training_config(tmp_path / "one", **settings), 0.3, 1)
    other = Trajectory(training_config(tmp_path / "other", **settings), 0.3, 1)
    ensure(one, [9])
    for stop in (3, 4, 6, 9):
        ensure(other, [stop])
    for name in ("step_000009.safetensors", "step_000009.optimiser.safetensors"):
        assert (one.folder / name).read_bytes() == (other.folder / name).read_bytes()
    assert FACTORS in load_file(Folder(one).optimiser_path(9))


def test_a_look_changes_the_training_and_its_key_and_none_changes_neither(tmp_path):
    plain = Trajectory(training_config(tmp_path), 0.3, 1)
    assert not {"curvature", "refresh"} & set(plain.science["training"])
    assert Trajectory(training_config(tmp_path, refresh=7), 0.3, 1).key == plain.key
    looks = set()
    for refresh in (7, 8):
        look = {"curvature": Curvature.whole, "refresh": refresh}
        looks.add(Trajectory(training_config(tmp_path, **look), 0.3, 1).key)
    assert len({plain.key, *looks}) == 3


def test_sgd_divided_by_the_largest_eigenvalue_is_a_plain_step_of_that_size(tmp_path):
    settings = {
        "optimiser": Optimiser.sgd,
        "weight_decay": 0.0,
        "warmup": 0,
        "schedule": "constant",
    }
    config = training_config(
        tmp_path, curvature=Curvature.whole, refresh=100, **settings
    )
    config = replace(config, training=replace(config.training, dtype=DType.float64))
    one = Trajectory(config, 0.3, 1)
    ensure(one, [1])
    factor = float(load_file(Folder(one).optimiser_path(1))[FACTORS])
    rate = config.training.learning_rate * factor
    plain = replace(
        config,
        training=replace(config.training, curvature=Curvature.none, learning_rate=rate),
    )
    other = Trajectory(plain, 0.3, 1)
    ensure(other, [1])
    ours = load_file(Folder(one).weights_path(1))
    theirs = load_file(Folder(other).weights_path(1))
    assert factor != 1
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=1e-13, atol=0)


def test_looks_and_their_products_are_counted(tmp_path):
    training = training_config(tmp_path, refresh=10).training
    assert [step for step in range(1, 31) if refreshes_curvature(training, step)] == [
        1,
        11,
        21,
    ]
    kinds = (Curvature.none, Curvature.gradient_norm, Curvature.whole, Curvature.blocks)
    assert [products_of_a_refresh(kind, 5) for kind in kinds] == [0, 0, 12, 60]
