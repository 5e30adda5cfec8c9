"""Which vectors an operator takes, and what autograd and torch.func make of its products and solutions."""

from functools import cache

import numpy as np
import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vmap
from torch.testing import assert_close

import hessfig
from hessfig.curvature.implicit_matrix import _inverse_of
from hessfig.errors import UserError
from tests.draws import draws, tanh_network

pytestmark = pytest.mark.long

DOUBLE = torch.float64


def problem(scale=1.0):
    torch.manual_seed(0)
    network = tanh_network(3, 4, 2).double()
    x = torch.randn(6, 3).double()
    y = torch.randn(6, 2).double()
    return hessfig.Problem(
        network,
        x,
        y,
        lambda outputs, targets: scale * (outputs - targets).square().mean(),
    )


def close(found, truth, atol=1e-12):
    assert_close(found, truth, rtol=0, atol=atol)


@cache
def matrices():
    made = {
        "square": problem().operator("0.weight"),
        "pair": problem().operator(("2.weight", "0.weight")),
        "approximation": problem().approximation("kfac", "0.weight"),
        "float32": problem().operator("0.weight", dtype="float32"),
    }
    return {name: (one, one.dense()) for name, one in made.items()}


def drawn(*shape, seed=0):
    return draws(*shape, seed=seed)


@pytest.mark.parametrize("name", ["square", "pair", "approximation"])
def test_a_product_is_linear_to_autograd(name):
    operator, dense = matrices()[name]
    x = drawn(dense.shape[1], 2).requires_grad_()
    g = drawn(dense.shape[0], 2, seed=1).requires_grad_()
    (there,) = torch.autograd.grad(operator @ x, x, g, create_graph=True)
    close(there, dense.T @ g)
    (again,) = torch.autograd.grad(there, g, x)
    close(again, dense @ x)
    (back,) = torch.autograd.grad(operator.rmatmat(g), g, x)
    close(back, dense @ x)


def test_parts_that_are_multiplied_together_have_their_gradients():
    pair = matrices()["pair"][0]
    x = drawn(12).requires_grad_()
    found = pair.split(x)
    sent = {part: drawn(8, seed=place) for place, part in enumerate(found)}
    (there,) = torch.autograd.grad(list(found.values()), x, list(sent.values()))
    truth = sum(
        problem().operator(("2.weight", "0.weight"), part).dense().T @ one
        for part, one in sent.items()
    )
    close(there, truth)


def test_torch_func_sees_a_matrix():
    for name in ("square", "pair", "approximation"):
        operator, dense = matrices()[name]
        many = drawn(3, dense.shape[1])
        along = drawn(dense.shape[1], seed=2)
        close(vmap(lambda x, a=operator: a @ x)(many), many @ dense.T)
        close(jacrev(lambda x, a=operator: a @ x)(along), dense)
        value, tangent = jvp(lambda x, a=operator: a @ x, (many[0],), (along,))
        close(tangent, dense @ along)
        close(value, dense @ many[0])
    square, dense = matrices()["square"]
    found = vmap(grad(lambda x: x @ (square @ x)))(drawn(3, 12))
    close(found, 2 * drawn(3, 12) @ dense)
    twice = hessian(lambda x: x @ (square @ x))(drawn(12))
    close(twice, 2 * dense)


@pytest.mark.parametrize("name", ["square", "approximation"])
def test_a_solution_has_its_gradient_in_the_right_hand_side(name):
    operator, dense = matrices()[name]
    system = dense + torch.eye(12, dtype=DOUBLE)
    b = drawn(12).requires_grad_()
    g = drawn(12, seed=1)
    solution = operator.solve(b, damping=1.0, tolerance=1e-12)
    (there,) = torch.autograd.grad(solution.x, b, g)
    close(there, torch.linalg.solve(system, g), 1e-09)
    assert not matrices()[name][0].solve(drawn(12), damping=1.0).x.requires_grad
    many = vmap(lambda side: operator.solve(side, damping=1.0, tolerance=1e-12).x)(
        drawn(3, 12)
    )
    close(many, torch.linalg.solve(system, drawn(3, 12).T).T, 1e-09)


SMALL = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
)


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("name", ["square", "approximation", "float32"])
def test_right_hand_sides_of_any_real_type_are_solved_for(name, dtype):
    operator, dense = matrices()[name]
    b = (torch.arange(12) % 3).to(dtype)
    truth = torch.linalg.solve(dense.double() + torch.eye(12, dtype=DOUBLE), b.double())
    found = operator.solve(b, damping=1.0)
    assert found.x.dtype == dense.dtype
    close(found.x.double(), truth, 1e-06)
    close((operator @ b).double(), dense.double() @ b.double(), 1e-06)
    if dtype != torch.bfloat16:
        array = operator.solve(b.numpy(), damping=1.0)
        np.testing.assert_allclose(array.x, truth, atol=1e-6)
        np.testing.assert_allclose(
            operator @ b.numpy(), dense.double() @ b.double(), atol=1e-6
        )


@pytest.mark.parametrize("size", [1e-300, 1e-170, 1e-120, 1e120, 1e170, 1e300])
@pytest.mark.parametrize("name", ["square", "approximation"])
def test_right_hand_sides_of_any_size_are_solved_for(name, size):
    operator, dense = matrices()[name]
    b = torch.stack(
        [drawn(12), size * drawn(12, seed=1), torch.zeros(12, dtype=DOUBLE)], dim=1
    )
    found = operator.solve(b, damping=1.0)
    truth = torch.linalg.solve(
        dense + torch.eye(12, dtype=DOUBLE),
        torch.stack([drawn(12), drawn(12, seed=1)], dim=1),
    )
    close(found.x[:, :2] / torch.tensor([1.0, size], dtype=DOUBLE), truth, 1e-07)
    assert not found.x[:, 2].any()
    assert float(found.residual.max()) <= 1e-8
    assert float(found.residual[2]) == 0.0
    np.testing.assert_allclose(
        operator @ (size * drawn(12)).numpy() / size, dense @ drawn(12), atol=1e-12
    )


@pytest.mark.parametrize("scale", [1e-250, 1e-170, 1e170, 1e250])
def test_a_matrix_of_any_size_is_solved_with(scale):
    dense = matrices()["square"][1]
    found = problem(scale).operator("0.weight").solve(drawn(12), damping=scale)
    truth = torch.linalg.solve(dense + torch.eye(12, dtype=DOUBLE), drawn(12))
    assert found.residual <= 1e-8
    close(found.x * scale, truth, 1e-07)


def test_no_column_gives_no_column():
    for name, (operator, dense) in matrices().items():
        none = torch.zeros(dense.shape[1], 0)
        assert (operator @ none).shape == (dense.shape[0], 0), name
        assert (operator @ none.numpy()).shape == (dense.shape[0], 0)
        if name != "pair":
            found = operator.solve(none)
            assert found.x.shape == (12, 0)
            assert len(found.residual) == 0
    assert matrices()["pair"][0].split(torch.zeros(12, 0))["H"].shape == (8, 0)


def test_vectors_of_inference_mode_read_only_memory_and_other_layouts():
    operator, dense = matrices()["square"]
    with torch.inference_mode():
        inferred = drawn(12) + 0
    close(operator @ inferred, dense @ drawn(12))
    assert_close(
        operator.solve(inferred, damping=1.0).x,
        operator.solve(drawn(12), damping=1.0).x,
    )
    array = drawn(24).numpy()[::-2]
    array.flags.writeable = False
    np.testing.assert_allclose(operator @ array, dense @ array.copy(), atol=1e-12)
    swapped = array.astype(array.dtype.newbyteorder())
    np.testing.assert_allclose(operator @ swapped, dense @ array.copy(), atol=1e-12)


def test_tensors_by_name_keep_their_numbers():
    operator = problem().operator("all")
    shapes = {"0.weight": (4, 3), "0.bias": (4,), "2.weight": (2, 4), "2.bias": (2,)}
    given = {
        "0.weight": torch.full((4, 3), 100_001),
        "0.bias": torch.ones(4, dtype=torch.float16),
    }
    vector = operator.flatten(given)
    assert vector.dtype == DOUBLE
    assert float(vector[0]) == 100_001
    assert {
        name: tuple(one.shape) for name, one in operator.unflatten(vector).items()
    } == shapes


SQUARE = "square"


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda a: a @ (1j * drawn(12)), "no real numbers"),
        (lambda a: a.solve(1j * drawn(12)), "no real numbers"),
        (lambda a: a @ np.array(["a"] * 12), "no real numbers"),
        (lambda a: a @ torch.ones(12, device="meta"), "no real numbers"),
        (lambda a: a @ torch.ones(12).to_sparse(), "no real numbers"),
        (lambda a: a @ np.ones(3), r"ndarray of shape \(3,\)"),
        (lambda a: a.solve(drawn(12) / 0), "right-hand side is not finite"),
        (lambda a: _inverse_of("kfac", 0.0, 12), "preconditioner does not fit"),
        (
            lambda a: a.solve(torch.zeros(12, 0), damping=-1.0),
            "damping is out of range",
        ),
        (lambda a: a.unflatten(drawn(11)), "not one vector of the block's weights"),
        (lambda a: a.unflatten(np.ones(12)), "not one vector of the block's weights"),
        (lambda a: a.flatten({"0.weight": np.ones((4, 3))}), "0.weight: ndarray"),
        (lambda a: a.flatten({"0.weight": torch.ones(3, 4)}), r"0.weight: \(3, 4\)"),
    ],
)
def test_what_is_no_vector_is_refused_by_name(wrong, match):
    with pytest.raises(UserError, match=match) as told:
        wrong(matrices()[SQUARE][0])
    for word in ("got", "allowed"):
        assert word in str(told.value)


def test_a_product_with_what_is_not_finite_is_not_finite():
    operator, _ = matrices()[SQUARE]
    assert bool((operator @ torch.full((12,), torch.nan)).isnan().any())
