"""The Hessian itself, as an array beside the cell: every parameter of the network, float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config import Config, Kind
from hessfig.curvature.exact.support import probe_cost
from hessfig.measurements.frobenius.checks import check_dense
from hessfig.measurements.frobenius.cost import COUNTED
from hessfig.measurements.protocol import Arrays, Measured, Quantity, Request
from hessfig.models.protocol import Layout, Weight
from hessfig.terms import Block, Group

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem


def _measure(problem: Problem, request: Request) -> Measured:
    """Return arrays `hessian` (n, n), `names` and `sizes` of the parameters in its order, and no rows.

    A transformer's is in the order and orientation of Figure 1 (see curvature.whole); other networks' parameters come
    in their own order, flattened as they are.
    """
    published = request.model.kind == Kind.transformer
    return Measured([], _published(problem) if published else _plain(problem, request))


def _published(problem: Problem) -> Arrays:
    from hessfig.curvature.routes import dense_hessian

    whole = dense_hessian(problem)
    return {"hessian": whole.matrix.cpu().float().numpy(), "names": whole.names, "sizes": whole.sizes}


def _plain(problem: Problem, request: Request) -> Arrays:
    from hessfig.curvature.routes import Engines
    from hessfig.measurements.frobenius.dense import dense_blocks
    from hessfig.terms import Part

    side, every = problem.layout.side(0, Group.all), Block(0, Group.all, Group.all)
    engines = Engines(problem, request.model, request.estimator.products)
    blocks = dense_blocks(engines.column(0, Group.all, [every]))
    whole = blocks[every, Part.H_o] + blocks[every, Part.H_f]
    deep = problem.layout.num_layers > 1
    names = [f"{weight.name}_{weight.layer}" if deep and weight.layer else weight.name for weight in side]
    sizes = [weight.size for weight in side]
    return {"hessian": whole.cpu().float().numpy(), "names": names, "sizes": sizes}


def _check(config: Config, layout: Layout) -> None:
    side = layout.side(0, Group.all)
    number = sum(weight.size for weight in side if config.model.kind != Kind.transformer or _is_drawn(weight))
    check_dense("quantities=[hessian]", f"the Hessian of {number} parameters", config, number**2)


def _is_drawn(weight: Weight) -> bool:
    """Whether a weight of a transformer stands in Figure 1: the attention's biases and norms do not."""
    return weight.is_main or weight.name in ("W_E", "b_in", "b_out", "b_U")


def _operations(config: Config, layout: Layout) -> float:
    """One product of the whole network a parameter."""
    if config.model.kind not in COUNTED:
        return 0.0
    first = layout.weights[0]
    return layout.size(0, Group.all) * probe_cost(config.model, config.task, Block(0, first.name, first.name))


QUANTITY = Quantity("hessian", _measure, check=_check, operations=_operations)
