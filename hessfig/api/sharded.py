"""Measures a network whose parameters are DTensors (FSDP2, tensor parallelism) on the ranks that run it.

`problem` is a hessfig.Problem, which imports this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from hessfig.config.enums import DType, Method, Probes, Products
from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few, plain, unknown_name
from hessfig.measurements.quantity import Measured
from hessfig.record import Status
from hessfig.terms import PARTS, Part

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hessfig.curvature.sharded.sharded_hessian import ShardedHessian

_OF_THE_LOSS = ("loss", "gradient_norm")
_OF_PRODUCTS = (
    "frobenius",
    "trace",
    "largest_eigenvalue",
    "smallest_eigenvalue",
    "density",
)
_MEASURED = (*_OF_THE_LOSS, *_OF_PRODUCTS)


class ShardedOperator:
    """A block of H, H_o or H_f of a sharded network. Every rank calls it alike, with its shards of the same vector.

    Parameters
    ----------
    hessian : hessfig.curvature.sharded.sharded_hessian.ShardedHessian

    Attributes
    ----------
    last_error : float or None
        The error of the last product, as a norm on all ranks.
    """

    def __init__(self, hessian: ShardedHessian) -> None:
        self.hessian = hessian
        self.last_error: float | None = None

    def __matmul__(self, vector: dict[str, Tensor]) -> dict[str, Any]:
        """Return H v by the names of parameters; v has a tensor for each, sharded as the parameter is.

        Products are DTensors, also of plain parameters.
        """
        from hessfig.curvature.sharded.shards import together

        shards = self.hessian.shards
        if set(vector) != set(shards.names):
            raise UserError(
                "the vector has other parameters than the block",
                got=first_few(list(vector)),
                allowed=first_few(shards.names),
                remedy="a dictionary with a DTensor for each of them",
            )
        with together():
            done = self.hessian.product(
                shards.flat([vector[name] for name in shards.names])
            )
            self.last_error = math.sqrt(shards.dot(done.deviation, done.deviation))
        return dict(zip(shards.names, shards.tensors(done.product), strict=True))


def sharded_operator(problem: Any, config: Config, block: Any) -> Any:
    """Return one block as an operator, after the checks of all ranks. Raises UserError as `measure_sharded` does."""
    from hessfig.curvature.sharded.shards import together

    with together():
        hessian_of = _checked(problem, config, basis=0)
        return ShardedOperator(
            hessian_of(_names(problem.network, [block])[block], config.parts[0])
        )


def measure_sharded(
    problem: Any, config: Config, *, tells_memory: bool = True
) -> dict[str, Measured]:
    """Return the rows of the table by quantity, the same on every rank, in the type of the parameters.

    Raises UserError for another type, for what products alone do not give, for ranks
    that disagree, and if another rank is lost.
    """
    from hessfig.curvature.sharded.shards import together

    blocks = _names(problem.network, _asked(config))
    _check_type(problem.network, config.dtype)
    with together():
        hessian_of = _checked(
            problem, config, basis=_basis(config) if tells_memory else None
        )
        of_the_loss, of_products = (
            set(config.quantities) & set(names)
            for names in (_OF_THE_LOSS, _OF_PRODUCTS)
        )
        results = {name: Measured([], {}) for name in config.quantities}
        if of_the_loss:
            trained = _names(problem.network, ["all"])["all"]
            found = _loss_rows(hessian_of(trained, Part.H), blocks)
            results |= {name: found[name] for name in of_the_loss}
        if of_products:
            for (block, names), part in product(blocks.items(), config.parts):
                for quantity, result in _block_rows(
                    hessian_of(names, part), block, part, config
                ).items():
                    results[quantity].rows.extend(result.rows)
                    results[quantity].arrays.update(result.arrays)
    return results


def check_sharded(problem: Any, config: Config) -> None:
    """Print the memory of all ranks. Raises UserError as `measure_sharded` does, before it measures."""
    _check_type(problem.network, config.dtype)
    _ = _names(problem.network, _asked(config))
    _ = _checked(problem, config, basis=_basis(config))


def _asked(config: Config) -> list[Any]:
    if config.blocks == "each":
        return ["each"]
    if isinstance(config.blocks, str):
        return [config.blocks]
    return config.blocks


def _basis(config: Config) -> int:
    """Return the number of Krylov vectors."""
    has_basis = bool(set(config.quantities) - {*_OF_THE_LOSS, "frobenius", "trace"})
    return config.spectrum.steps * has_basis


def _checked(
    problem: Any, config: Config, *, basis: int | None
) -> Callable[[Sequence[str], Part], ShardedHessian]:
    """Check the problem and the ranks, and return what makes the Hessian of a block.

    The memory of all ranks, with a basis of vectors, is printed unless `basis` is None.
    """
    from hessfig.curvature.sharded.sharded_hessian import (
        Function,
        ShardedHessian,
        check_convex,
        is_averaged,
        say_memory,
    )
    from hessfig.curvature.sharded.shards import check_ranks, parameters_of

    network = problem.network
    _check_request(problem, config)
    function = Function(problem.compute_loss, problem.compute_outputs)
    named = parameters_of(network)
    if problem.sharded_batches and not is_averaged(network):
        raise UserError(
            "sharded_batches: the gradients of this network are not averaged over all ranks",
            got="parameters that FSDP2 does not shard over all ranks",
            allowed="fully_shard with one mesh of all ranks",
            remedy="the same batches on every rank, without sharded_batches",
        )
    estimates = (vars(config.spectrum), config.estimator.num_probes)
    settings = (
        config.quantities,
        config.blocks,
        config.parts,
        config.first_seed,
        *estimates,
    )
    check_ranks(
        settings, network, problem.inputs, sharded_batches=problem.sharded_batches
    )
    weights = problem.batch_weights
    if weights is None:
        weights = [1.0] * len(problem.inputs)
    elif callable(weights):
        weights = [float(weights(batch)) for batch in problem.inputs]
    if config.parts != [Part.H]:
        check_convex(network, problem.inputs, function)
    if basis is not None:
        say_memory(named, config.parts, basis)
    return lambda names, part: ShardedHessian(
        network, problem.inputs, list(weights), function, names, part
    )


def _check_type(network: nn.Module, dtype: str) -> None:
    """Raise UserError for a type that was asked for; float64, the default, stands for that of the parameters."""
    types = sorted(
        {str(one.dtype).removeprefix("torch.") for one in network.parameters()}
    )
    if dtype != DType.float64 and types != [dtype]:
        raise UserError(
            "dtype: a sharded network is measured in the type of its parameters",
            got=dtype,
            allowed=", ".join(types),
            remedy=f"leave dtype out, or network.to(torch.{dtype}) before fully_shard",
        )


def _check_request(problem: Any, config: Config) -> None:
    """Raise UserError for what is measured on one device only."""
    unknown = [name for name in config.quantities if name not in _MEASURED]
    parts = [Part.H] if problem.compute_outputs is None else PARTS
    wrong = {
        f"quantities={unknown}": bool(unknown),
        "no compute_loss": problem.compute_loss is None,
        f"weights={plain(problem.weights)}": problem.weights not in (None, "trainable"),
        f"parts={[str(part) for part in config.parts]}": any(
            part not in parts for part in config.parts
        ),
        f"estimator={config.estimator.method}": config.estimator.method
        not in (Method.auto, Method.hutchinson),
        "products=curvlinops": config.estimator.products == Products.curvlinops,
        f"blocks={config.blocks}": config.blocks in ("pairs", "all"),
        "training mode": problem.network.training,
    }
    found = [name for name, is_wrong in wrong.items() if is_wrong]
    if found:
        raise UserError(
            "the network is sharded over ranks, where products with H by differences of gradients are all there is",
            got=", ".join(found),
            allowed="Problem(network.eval(), batches, compute_loss=f), parts='H' (H_o and H_f with compute_outputs), "
            f"quantities {', '.join(_MEASURED)}",
            remedy="blocks=['all'] or names of parameters; for the rest, a Problem of the network on one device",
        )


def _names(network: nn.Module, asked: Sequence[Any]) -> dict[str, list[str]]:
    """Return the parameters of each block: those that require a gradient, by name, or all of them."""
    trained = [name for name, one in network.named_parameters() if one.requires_grad]
    blocks: dict[str, list[str]] = {}
    for block in asked:
        if block == "each":
            blocks |= {name: [name] for name in trained}
        elif block == "all":
            blocks["all"] = trained
        elif block in trained:
            blocks[block] = [block]
        else:
            remedy = "blocks=['all'], or names of parameters that require a gradient"
            raise unknown_name(
                "blocks: a sharded network has no such block",
                str(block),
                ["all", *trained],
                remedy,
            )
    return blocks


def _row(
    hessian: ShardedHessian,
    block: str,
    quantity: str,
    value: float,
    error: float,
    **more: Any,
) -> dict[str, Any]:
    place = {
        "layer": 0,
        "row_layer": 0,
        "row": block,
        "col": block,
        "part": "",
        "index": None,
    }
    status = Status.ok if math.isfinite(value) else Status.nonfinite
    dtype = str(hessian.dtype).removeprefix("torch.")
    number = {
        "quantity": quantity,
        "value": value,
        "error": error,
        "num_probes": 0,
        "dtype": dtype,
        "status": status,
    }
    return {**place, **number, **more}


def _loss_rows(
    hessian: ShardedHessian, blocks: dict[str, list[str]]
) -> dict[str, Measured]:
    """Return the loss, and the norm of its gradient: in all trained parameters, then in each block."""
    from hessfig.curvature.sharded.shards import length

    loss, gradient = hessian.loss_and_gradient()
    norms = {"": length([*gradient.values()])}
    norms |= {
        block: length([gradient[name] for name in names])
        for block, names in blocks.items()
    }
    rows = [
        _row(hessian, block, "gradient_norm", norm, 0.0, estimator="exact")
        for block, norm in norms.items()
    ]
    return {
        "loss": Measured([_row(hessian, "", "loss", loss, 0.0, estimator="exact")], {}),
        "gradient_norm": Measured(rows, {}),
    }


def _block_rows(
    hessian: ShardedHessian, block: str, part: Part, config: Config
) -> dict[str, Measured]:
    """Return the rows and arrays of a block, by quantity."""
    from hessfig.curvature.sharded import estimates

    seed, spectrum = config.first_seed, config.spectrum
    asked = set(config.quantities)
    found = dict[str, Measured]()

    def row(
        quantity: str, one: estimates.Estimate, estimator: str, **more: Any
    ) -> dict[str, Any]:
        return _row(
            hessian,
            block,
            quantity,
            one.value,
            one.error,
            part=part,
            estimator=estimator,
            **more,
        )

    if asked & {"frobenius", "trace"}:
        count = config.estimator.num_probes
        for quantity, one in estimates.by_probes(
            hessian, count, seed, (block,)
        ).items():
            found[quantity] = Measured(
                [row(quantity, one, "hutchinson", num_probes=count)], {}
            )
    if asked & {"largest_eigenvalue", "smallest_eigenvalue"}:
        steps, tolerance = spectrum.steps, spectrum.tolerance
        ends = estimates.extremes(
            hessian, spectrum.k, seed, (block,), steps=steps, tolerance=tolerance
        )
        allowed = tolerance * max(
            abs(one.value) for pairs in ends.values() for one in pairs
        )
        for quantity, pairs in ends.items():
            places = [None] if spectrum.k == 1 else range(1, len(pairs) + 1)
            rows = [
                row(quantity, one, "lanczos", index=index)
                for index, one in zip(places, pairs, strict=True)
            ]
            for each in rows:
                each["status"] = (
                    Status.ok if each["error"] <= allowed else Status.not_converged
                )
            found[quantity] = Measured(rows, {})
    if "density" in asked:
        count = spectrum.num_probes
        is_gaussian = spectrum.probes == Probes.gaussian
        nodes, weights = estimates.density(
            hessian, count, seed, (block,), steps=spectrum.steps, gaussian=is_gaussian
        )
        rows = []
        for quantity, power in (("density_mean", 1), ("density_second_moment", 2)):
            moments = (weights * nodes**power).sum(dim=1).tolist()
            one = estimates.Estimate(
                sum(moments) / count, estimates.standard_error(moments)
            )
            rows.append(row(quantity, one, "lanczos", num_probes=count))
        arrays = {
            f"nodes_{block}_{part}": nodes.numpy(),
            f"weights_{block}_{part}": weights.numpy(),
        }
        found["density"] = Measured(rows, arrays)
    return {quantity: result for quantity, result in found.items() if quantity in asked}
