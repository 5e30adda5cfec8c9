"""Blocks as operators: products against dense double backward, the protocols of other libraries, linear systems."""

import pickle
from functools import cache

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator, eigsh, lobpcg, svds
from torch.testing import assert_close

import hessfig
from hessfig.config.enums import DType
from hessfig.config.science import ModelConfig
from hessfig.errors import UserError
from hessfig.terms import Approximation, Need
from tests.daily import daily, thinned
from tests.draws import draws, labels
from tests.foreign_networks import CASES, dense_parts
from tests.toys import build_model

PARTS = ("H", "H_o", "H_f")


def own():
    model = ModelConfig(d_model=4, n_heads=2, d_mlp=6, n_layers=1)
    network = build_model(model, sigma=0.7, seed=0, length=6, dtype=DType.float64)
    tokens = labels(2, 6, classes=10)
    weights = {"W_V@1": "layers.0.attn.v.weight", "W_Q@1": "layers.0.attn.q.weight"}
    return hessfig.Problem(network, tokens, tokens.roll(1, 1), weights=weights), [
        "W_V@1",
        ("W_Q", "W_V"),
    ]


NETWORKS = {"transformer": own, "cnn": CASES["convolutional"], "mlp": CASES["mlp"]}


@cache
def case(name):
    """Return a problem, its blocks, dense matrices by part, and where each parameter's entries stand in these."""
    torch.manual_seed(5)
    problem, blocks = NETWORKS[name]()
    sizes = {name: p.numel() for name, p in problem.network.named_parameters()}
    places = dict(
        zip(
            sizes,
            torch.arange(sum(sizes.values())).split(list(sizes.values())),
            strict=True,
        )
    )
    dense = {}
    for part, matrix in dense_parts(problem, list(sizes)).items():
        dense[part.value] = matrix
    return problem, blocks, dense, places


def oracle(name, block, part):
    problem, _, dense, places = case(name)
    row, col = block if isinstance(block, tuple) else (block, block)
    return dense[part][_entries(problem, places, row)][
        :, _entries(problem, places, col)
    ]


def _entries(problem, places, name):
    weights = problem.weights if isinstance(problem.weights, dict) else {}
    spec = weights.get(name) or weights.get(f"{name}@1") or name
    if name == "all":
        return torch.cat(list(places.values()))
    path, index = spec if isinstance(spec, tuple) else (spec, ...)
    return places[path].view(problem.network.get_parameter(path).shape)[index].flatten()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.long
def test_products_are_those_of_the_dense_hessian(name):
    problem, blocks, _, _ = case(name)
    for block in blocks:
        for part in PARTS:
            operator = problem.operator(block, part)
            truth = oracle(name, block, part)
            assert operator.shape == tuple(truth.shape)
            assert_close(operator.dense(), truth, rtol=0, atol=1e-10)
            vectors = draws(truth.shape[0], 7, seed=1)
            assert_close(
                operator.rmatmat(vectors), truth.T @ vectors, rtol=0, atol=1e-10
            )


@pytest.mark.parametrize("name", NETWORKS)
def test_parts_share_their_products_and_add_up(name):
    problem, blocks, _, _ = case(name)
    operator = problem.operator(blocks[-1])
    vector = np.random.default_rng(0).normal(size=operator.shape[1])
    found = operator.split(vector)
    np.testing.assert_array_equal(found["H"], found["H_o"] + found["H_f"])
    np.testing.assert_allclose(found["H"], operator @ vector, atol=1e-12)


@pytest.mark.parametrize("name", daily(NETWORKS, "transformer", "mlp"))
def test_scipy_finds_eigenvalues_and_singular_values(name):
    problem, blocks, _, _ = case(name)
    square = blocks[0]
    across = next(block for block in blocks if isinstance(block, tuple))
    whole = problem.operator(square)
    pair = problem.operator(across, "H_f")
    truth = torch.linalg.eigvalsh(oracle(name, square, "H"))
    start = np.random.default_rng(0).normal(size=(whole.shape[0], 2))
    one = start[:, 0]
    assert eigsh(whole.to_scipy(), k=1, which="LA", v0=one)[0] == pytest.approx(
        float(truth[-1]), rel=1e-9
    )
    assert lobpcg(aslinearoperator(whole), start, tol=1e-9, maxiter=200)[0][
        0
    ] == pytest.approx(float(truth[-1]), rel=1e-8)
    sizes = torch.linalg.svdvals(oracle(name, across, "H_f"))
    found = svds(pair.to_scipy(), k=1, v0=np.ones(min(pair.shape)))[1]
    assert found == pytest.approx(float(sizes[0]), rel=1e-9)


@pytest.mark.parametrize("name", daily(NETWORKS, "transformer", "mlp"))
def test_estimators_of_curvlinops_take_it(name):
    from curvlinops import hutchinson_squared_fro, hutchinson_trace

    problem, blocks, _, _ = case(name)
    square = blocks[0]
    across = next(block for block in blocks if isinstance(block, tuple))
    whole = problem.operator(square).to_curvlinops()
    pair = problem.operator(across)
    torch.manual_seed(0)
    traces = [float(hutchinson_trace(whole, 5)) for _ in range(20)]
    # Of a wide matrix it asks for `.T`, which its own lack.
    tall = pair if pair.shape[0] >= pair.shape[1] else pair.T
    squares = [
        float(hutchinson_squared_fro(tall.to_curvlinops(), 5)) for _ in range(20)
    ]
    truths = (
        float(oracle(name, square, "H").trace()),
        float(oracle(name, across, "H").square().sum()),
    )
    for found, truth in zip((traces, squares), truths, strict=True):
        assert (
            abs(np.mean(found) - truth) < 4 * np.std(found, ddof=1) / len(found) ** 0.5
        )
    vector = torch.ones(pair.shape[0], dtype=torch.float64)
    assert_close(pair.to_curvlinops().adjoint() @ vector, pair.T @ vector)


SYSTEMS = [(name, part, None) for name in NETWORKS for part in ("H", "H_o")]
SYSTEMS += [
    (name, *helped)
    for name in ("transformer", "mlp")
    for helped in (("H_o", "kfac"), ("H", "diagonal"))
]


@pytest.mark.parametrize(("name", "part", "preconditioner"), SYSTEMS)
@pytest.mark.long
def test_linear_systems_agree_with_a_dense_solver(name, part, preconditioner):
    problem, blocks, _, _ = case(name)
    operator = problem.operator(blocks[0], part)
    matrix = oracle(name, blocks[0], part)
    b = draws(len(matrix), 2, seed=3)
    damping = 0.05
    helper = (
        None
        if preconditioner is None
        else problem.approximation(preconditioner, blocks[0])
    )
    x, residual = operator.solve(
        b, damping=damping, tolerance=1e-10, preconditioner=helper
    )
    system = matrix + damping * torch.eye(len(matrix), dtype=torch.float64)
    assert float(residual.max()) <= 1e-10
    assert_close(x, torch.linalg.solve(system, b), rtol=1e-6, atol=1e-7)
    single = operator.solve(b[:, 0].numpy(), damping=damping, tolerance=1e-10)
    np.testing.assert_allclose(single.x, x[:, 0], rtol=1e-6, atol=1e-7)


def test_a_system_without_a_solution_is_told():
    # Softmax is blind to a shift of all logits.
    operator = case("mlp")[0].operator("W_2", "H_o")
    with pytest.warns(
        RuntimeWarning, match="relative residual .* is above the tolerance"
    ):
        x, residual = operator.solve(torch.ones(operator.shape[0], dtype=torch.float64))
    assert residual > 1e-3
    assert bool(x.isfinite().all())


@pytest.mark.parametrize(
    "name",
    thinned(
        [one.value for one in Approximation if one.facts.needs not in (Need.moments,)],
        6,
    ),
)
def test_approximations_are_operators(name):
    """Their distance to the block is the number in the table, and their systems are solved."""
    approximation = Approximation(name)
    if approximation.facts.needs == Need.heads:
        pytest.skip("heads are those of the package's transformers")
    problem = case("mlp")[0]
    block = "all" if approximation.facts.needs == Need.whole else "W_1"
    made = problem.approximation(name, block)
    dense = made.dense()
    truth = problem.operator(block).dense()
    table = hessfig.measure(
        problem,
        blocks=[block],
        parts="H",
        quantities=["approximations"],
        estimator="dense",
    )
    (error,) = table.loc[table["quantity"] == f"{name}_error", "value"]
    assert float((dense - truth).norm() / truth.norm()) == pytest.approx(
        error, rel=1e-9
    )
    b = torch.ones(len(dense), dtype=torch.float64)
    x, residual = made.solve(b, damping=0.7)
    assert residual < 1e-10
    system = dense + 0.7 * torch.eye(len(dense), dtype=torch.float64)
    assert_close(x, torch.linalg.solve(system, b), rtol=1e-6, atol=1e-8)


def test_an_operator_stays_what_it_is_while_its_network_moves_on():
    problem, _ = CASES["mlp"]()
    operator = problem.operator("W_1")
    vector = torch.ones(30, dtype=torch.float64)
    before = operator @ vector
    with torch.no_grad():
        for parameter in problem.network.parameters():
            parameter.zero_()
        problem.inputs.zero_()
    assert torch.equal(operator @ vector, before)
    with torch.inference_mode():
        assert torch.equal(
            problem.operator("W_1") @ vector, torch.zeros(30, dtype=torch.float64)
        )


def test_vectors_by_name():
    operator = case("mlp")[0].operator("all", "H_o")
    tensors = operator.unflatten(
        operator @ torch.ones(operator.shape[1], dtype=torch.float64)
    )
    assert list(tensors) == operator.names
    assert [one.numel() for one in tensors.values()] == operator.sizes
    alone = operator.flatten({operator.names[0]: tensors[operator.names[0]]})
    assert torch.equal(alone[: operator.sizes[0]], tensors[operator.names[0]].flatten())
    assert not bool(alone[operator.sizes[0] :].any())


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        (lambda p: p.operator("nothing"), "there is no weight named 'nothing'"),
        (lambda p: p.operator("W_1", "H_x"), "parts: there is no such choice"),
        (lambda p: p.operator("W_*"), "matches several blocks"),
        (lambda p: p.operator("W_1") @ torch.ones(3), "the vector does not fit"),
        (
            lambda p: p.operator("W_1").flatten({"W_2": torch.ones(3, 6)}),
            "not tensors of the block's weights",
        ),
        (
            lambda p: p.operator(("W_1", "W_2")).solve(torch.ones(30)),
            "the matrix is not symmetric",
        ),
        (
            lambda p: p.operator("W_1").solve(torch.ones(30), damping=-1.0),
            "damping is out of range",
        ),
        (
            lambda p: p.operator("W_1", "H_o").solve(
                torch.ones(30), preconditioner=p.operator("W_1")
            ),
            "does not fit",
        ),
        (lambda p: p.approximation("kfac", "gain"), "kfac is not defined here"),
        (
            lambda p: p.approximation("empirical_fisher", "W_1").solve(torch.ones(30)),
            "is singular",
        ),
    ],
)
def test_what_does_not_fit_is_refused(wrong, match):
    with pytest.raises(UserError, match=match):
        wrong(case("mlp")[0])


def test_large_matrices_are_not_made_dense(monkeypatch):
    monkeypatch.setattr("hessfig.curvature.implicit_matrix.MOST_BYTES", 1000)
    with pytest.raises(UserError, match="dense: the matrix is too large"):
        case("mlp")[0].operator("W_1").dense()


def test_an_operator_is_not_pickled():
    operator = case("mlp")[0].operator("W_1")
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(operator)


def test_blocks_by_pattern():
    problem = CASES["encoder"]()[0]
    problem = hessfig.Problem(problem.network, problem.inputs, problem.targets)
    table = hessfig.measure(problem, blocks=["*.linear?.weight"], parts="H_o")
    known = []
    for name, _ in problem.network.named_parameters():
        if "linear" in name and name.endswith("weight"):
            known.append(name)
    assert list(table["col"]) == known
    pairs = hessfig.measure(
        problem, blocks=[("*linear1.weight", "1.weight")], parts="H_o"
    )
    assert len(pairs) == 2
    with pytest.raises(UserError, match="no weight matches"):
        hessfig.measure(problem, blocks=["*.nothing"])
