"""What a Monitor measures of a sharded network: on all ranks, in place; rank 0 decides and writes."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import distributed

from hessfig.api.sharded import check_sharded, measure_sharded
from hessfig.config.schema import Config
from hessfig.curvature.sharded.shards import hash_of_all, local, together
from hessfig.errors import UserError
from hessfig.measurements.quantity import Measured
from hessfig.models.own.preserved import evaluating

T = TypeVar("T")


class ShardedTraining:
    """The network of a sharded training, measured in evaluation mode.

    `content` is a hash of the data of all ranks and of the names of parameters. Raises
    UserError for what is not measured on ranks, and for ranks that disagree.
    """

    def __init__(self, problem: Any, config: Config) -> None:
        self._problem, self._config = problem, config
        with evaluating(problem.network), together():
            check_sharded(problem, config)
            names = [name for name, _ in problem.network.named_parameters()]
            self.content = hash_of_all(names, problem.inputs)

    def point(self) -> str:
        """Return a hash of weights, buffers, loss and gradient norm on all ranks."""
        network = self._problem.network
        tensors = [local(one) for one in (*network.parameters(), *network.buffers())]
        found = self.measured(["loss", "gradient_norm"])
        with together():
            return hash_of_all(
                tensors, [row["value"] for one in found.values() for row in one.rows]
            )

    def measured(self, quantities: Sequence[str]) -> dict[str, Measured]:
        """Return the rows of the table by quantity, the same on every rank."""
        config = replace(self._config, quantities=[*quantities])
        with evaluating(self._problem.network):
            return measure_sharded(self._problem, config, tells_memory=False)


def from_first(make: Callable[[], T]) -> T:
    """Return on every rank what `make` returns on rank 0; a UserError there is raised on every rank."""
    told: list[Any] = [None, None]
    if distributed.get_rank() == 0:
        try:
            told[0] = make()
        except UserError as error:
            told[1] = error
        except Exception as error:
            told[1] = UserError(
                "rank 0 cannot go on",
                got=f"{type(error).__name__}: {error}",
                allowed="ranks that all run to the end",
                remedy="look at the output of rank 0",
            )
            raise
        finally:
            with together():
                distributed.broadcast_object_list(told)
    else:
        with together():
            distributed.broadcast_object_list(told)
    if told[1] is not None:
        raise told[1]
    return told[0]
