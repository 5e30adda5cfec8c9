"""The split at the scores: against plain double backward, the theorem's formulas, and by its zeros."""

import pytest
import torch
from torch.func import functional_call

from hessfig.config.enums import (
    MLP,
    Attention,
    Data,
    DType,
    Kind,
    Method,
    Norm,
    Products,
    QueryKey,
    Sink,
)
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.curvature.column import squared_norms, summands
from hessfig.curvature.problem import rademacher
from hessfig.measurements.block_norms import Estimator, dense_blocks
from hessfig.models.exact.exact_blocks import ExactEngine
from hessfig.models.networks import BareAttention
from hessfig.models.protocol import kind
from hessfig.models.routes import Engines
from hessfig.rng import stream
from hessfig.terms import AT_OUTPUTS, AT_SCORES, PARTS, Block, Group, Part
from tests.daily import daily, thinned
from tests.toys import toy_problem

BOTH = {"d_model": 4, "d_mlp": 6, "n_layers": 2, "n_heads": 2}
NETWORKS = {
    "bare": ModelConfig(kind=Kind.self_attention, d_model=4, d_head=3, temperature=0.6),
    "bare heads": ModelConfig(
        kind=Kind.self_attention, d_model=4, n_heads=2, attention=Attention.linear
    ),
    "bare single": ModelConfig(
        kind=Kind.self_attention, d_model=3, query_key=QueryKey.single
    ),
    "pre": ModelConfig(**BOTH, norm=Norm.pre, temperature=1.7),
    "pre linear": ModelConfig(
        **BOTH, norm=Norm.pre, temperature=0.5, attention=Attention.linear, mlp=MLP.gelu
    ),
    "post": ModelConfig(**BOTH, norm=Norm.post, sink=Sink.scores, sink_beta=0.7),
    "single": ModelConfig(**BOTH, query_key=QueryKey.single),
    "vit": ModelConfig(kind=Kind.vit, patch=4, norm=Norm.pre, **BOTH),
}
DEPTHS = [
    (name, layer)
    for name, model in NETWORKS.items()
    for layer in range(1, model.n_layers + 1)
]


def problem_of(name):
    is_vit = NETWORKS[name].kind == Kind.vit
    return toy_problem(
        NETWORKS[name], TaskConfig(data=Data.digits, batch_size=3) if is_vit else None
    )


def bare_scores(network, hidden, shift, seen):
    """Return equation 1 with `shift` added to the scores, which are put into `seen`."""
    query = network.q(hidden)
    value = network.v(hidden)
    heads = network.n_heads
    key = (
        torch.cat([hidden] * heads, dim=-1) if network.is_single else network.k(hidden)
    )
    rows = []
    for head in range(heads):
        q, k = (one.chunk(heads, dim=-1)[head] for one in (query, key))
        seen.append(torch.einsum("bid,bjd->bij", q, k) / network.divisor)
    scores = torch.stack(seen, dim=1)
    seen[:] = [scores]
    shifted = scores + shift
    for head in range(heads):
        pattern = (
            shifted[:, head]
            if network.model.attention == Attention.linear
            else shifted[:, head].softmax(-1)
        )
        rows.append(pattern @ value.chunk(heads, dim=-1)[head])
    return torch.cat(rows, dim=-1)


def scores_and_loss(objective, layer):
    """Return the query-key weights, and the function of them and of a shift of the scores: scores and loss."""
    side = objective.layout.side(layer, Group.query_key)
    paths = [weight.parameter for weight in side]
    network = objective.network
    at = [network.get_parameter(path).detach().clone() for path in paths]

    def forward(weights, shift):
        seen = []

        class Shifted(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.network = network

            def forward(self, inputs):
                if isinstance(network, BareAttention):
                    return bare_scores(network, network.hidden(inputs, 0), shift, seen)
                depth = len(network.layers)
                hidden = network.hidden(inputs, depth)
                final = network.head(network.ln_out(hidden))
                return (
                    network.head(network.ln_out(hidden).mean(1, keepdim=True))
                    if hasattr(network, "patch")
                    else final
                )

        attention = (
            None
            if isinstance(network, BareAttention)
            else network.layers[layer - 1].attn
        )
        if attention is not None:
            own = type(attention).scores
            attention.scores = lambda *given: (
                seen.append(own(attention, *given))
                or seen[-1] + (shift if shift.ndim else 0)
            )
        try:
            held = {}
            for path, weight in zip(paths, weights, strict=True):
                held[f"network.{path}"] = weight
            outputs = functional_call(Shifted(), held, (objective.batch.inputs,))[
                :, objective.batch.scored
            ]
        finally:
            if attention is not None:
                del attention.scores
        return seen[0], objective.loss(outputs, objective.batch.targets)

    return at, forward


def oracle(objective, layer):
    """Return H, H_oT and H_fT of the group query_key, each differentiated on its own by plain double backward."""
    at, forward = scores_and_loss(objective, layer)
    shape = forward(at, torch.zeros(()).double())[0].shape
    still = torch.zeros(shape, dtype=torch.float64)
    sizes = [weight.numel() for weight in at]
    start = torch.cat([weight.flatten() for weight in at])

    def weights(flat):
        found = []
        for piece, one in zip(flat.split(sizes), at, strict=True):
            found.append(piece.view_as(one))
        return found

    def jacobian_of_scores():
        return torch.autograd.functional.jacobian(
            lambda flat: forward(weights(flat), still)[0].flatten(), start
        )

    hessian = torch.autograd.functional.hessian
    gradient = torch.autograd.functional.jacobian(
        lambda shift: forward(at, shift)[1], still
    )
    curvature = hessian(
        lambda shift: forward(at, shift.view(shape))[1], still.flatten()
    )
    jacobian = jacobian_of_scores()
    return {
        Part.H: hessian(lambda flat: forward(weights(flat), still)[1], start),
        Part.H_oT: jacobian.T @ curvature @ jacobian,
        Part.H_fT: hessian(
            lambda flat: (gradient * forward(weights(flat), still)[0]).sum(), start
        ),
    }


def dense(objective, model, block, parts):
    column = Engines(objective, model, Products.linearised).column(
        block.layer, block.col, [block]
    )
    return {part: matrix for (_, part), matrix in dense_blocks(column, parts).items()}


@pytest.mark.parametrize(("name", "layer"), thinned(DEPTHS, 6))
def test_both_parts_are_those_of_plain_double_backward(name, layer):
    problem = problem_of(name)
    model = NETWORKS[name]
    expected = oracle(problem, layer)
    found = dense(
        problem, model, Block(layer, "query_key", "query_key"), (*AT_SCORES, Part.H)
    )
    size = expected[Part.H].abs().max()
    assert size > 1e-6
    for part in (*AT_SCORES, Part.H):
        assert (found[part] - expected[part]).abs().max() < 1e-12 * max(size, 1)
    assert (
        found[Part.H_oT] + found[Part.H_fT] - expected[Part.H]
    ).abs().max() < 1e-12 * max(size, 1)


@pytest.mark.parametrize(("name", "layer"), thinned(DEPTHS, 3))
def test_the_exact_norm_is_that_of_the_dense_part(name, layer):
    problem = problem_of(name)
    model = NETWORKS[name]
    held = [weight.name for weight in problem.layout.side(layer, "query_key")]
    for row, col in [
        ("query_key", "query_key"),
        (held[0], held[-1]),
        (held[0], held[0]),
    ]:
        block = Block(layer, row, col)
        norm = ExactEngine(problem, model).column(layer, col, [row], [Part.H_fT])[
            row, Part.H_fT
        ]
        matrix = dense(problem, model, block, (Part.H_fT,))[Part.H_fT]
        assert norm == pytest.approx(float(matrix.norm()), rel=1e-12, abs=1e-300)
        vanishes = kind(model.kind).is_structural_zero(model, block, Part.H_fT)
        assert vanishes == (norm == 0.0) == (not matrix.any())


def test_products_do_not_cancel():
    model = ModelConfig(kind=Kind.self_attention, d_model=4)
    outer = {}
    for dtype in DType:
        problem = toy_problem(model, dtype=dtype, sigma=1e-3)
        outer[dtype] = dense(
            problem, model, Block(1, "query_key", "query_key"), AT_SCORES
        )
    small, large = (float(outer[DType.float64][part].norm()) for part in AT_SCORES)
    off = (
        outer[DType.float32][Part.H_oT].double() - outer[DType.float64][Part.H_oT]
    ).norm()
    assert small < 1e-3 * large
    assert off < 1e-5 * small


@pytest.mark.parametrize(
    "parts",
    [(Part.H, *AT_SCORES), (Part.H, Part.H_oT), (Part.H, *AT_OUTPUTS, Part.H_fT)],
)
def test_the_full_hessian_is_the_sum_of_a_split(parts):
    problem = problem_of("pre")
    model = NETWORKS["pre"]
    block = Block(1, "query_key", "query_key")
    column = Engines(problem, model, Products.linearised).column(
        1, "query_key", [block]
    )
    probes = rademacher(
        column.dim, 3, generator=stream(1, "probes"), dtype=torch.float64
    )
    alone = squared_norms(column, [Part.H], probes)[block, Part.H].values
    beside = squared_norms(column, parts, probes)
    assert {part for _, part in beside} == {*parts}
    torch.testing.assert_close(beside[block, Part.H].values, alone, rtol=1e-12, atol=0)


def test_which_products_make_the_full_hessian():
    assert summands(PARTS) == AT_OUTPUTS
    assert summands([Part.H, *AT_SCORES]) == AT_SCORES
    assert summands([Part.H, Part.H_fT]) == (*AT_OUTPUTS, Part.H_fT)


@pytest.mark.parametrize(
    "method", daily([Method.hutchinson, Method.dense, Method.auto], Method.hutchinson)
)
def test_norms_by_every_estimator(method):
    problem = problem_of("pre")
    model = NETWORKS["pre"]
    block = Block(2, "query_key", "query_key")
    expected = oracle(problem, 2)
    settings = EstimatorConfig(method=method, num_probes=20)
    found = Estimator(problem, model, settings).column_norms(
        2, "query_key", [block], [*AT_SCORES, Part.H], generator=stream(3, "probes")
    )
    for part in (*AT_SCORES, Part.H):
        estimate = found[block, part]
        truth = float(expected[part].norm())
        assert abs(estimate.value - truth) <= 4 * estimate.error + 1e-11 * truth
    assert (found[block, Part.H_fT].by == Method.exact) == (method == Method.auto)
