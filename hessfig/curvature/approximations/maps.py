"""Linear maps that a network calls: torch.nn.Linear, and convolutions as maps of the patches of their inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.weights import Weight

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MAPS = (nn.Linear, *CONVOLUTIONS)
_HELD = (["weight"], ["bias"], ["bias", "weight"])


@dataclass(frozen=True)
class UnfoldedMap:
    """A module y_t = W x_t + b, of which a block has `names`: weight, bias or both, in the order of its vector.

    The parameters of the block form one matrix. With W, the input x_t of a convolution
    is its patch at position t, in the order of the rows of W (Grosse and Martens 2016,
    arXiv 1602.01407). With b, a 1 is appended to x_t.
    """

    module: nn.Module
    names: tuple[str, ...]

    @classmethod
    def of(cls, network: nn.Module, side: Sequence[Weight]) -> "UnfoldedMap | None":
        """Return the map whose weight, bias, or both are `side`; None if there is none.

        Weights of grouped convolutions have none, since they act on several inputs.
        """
        place, *others = {weight.parameter.rpartition(".")[0] for weight in side}
        names = tuple(weight.parameter.rpartition(".")[2] for weight in side)
        if (
            others
            or sorted(names) not in _HELD
            or any(weight.index is not None for weight in side)
        ):
            return None
        module = network.get_submodule(place)
        is_one = isinstance(module, MAPS)
        is_grouped = getattr(module, "groups", 1) > 1 and "weight" in names
        return cls(module, names) if is_one and not is_grouped else None

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters in the order of the columns of the matrix: the bias is the last one."""
        return sorted(self.names, reverse=True)

    def by_use(self, outputs: Float[Tensor, "..."]) -> Float[Tensor, "*batch m"]:
        """Return outputs of a call with the features as the last axis."""
        if not isinstance(self.module, CONVOLUTIONS):
            return outputs
        return outputs.movedim(-1 - len(self.module.kernel_size), -1)

    def inputs(
        self, given: Float[Tensor, "..."], outputs: Float[Tensor, "..."]
    ) -> Float[Tensor, "*batch n"]:
        """Return the inputs x of all uses in a call."""
        pieces = [
            self._patches(given)
            if name == "weight"
            else torch.ones_like(self.by_use(outputs)[..., :1])
            for name in self.parameters
        ]
        return torch.cat(pieces, dim=-1)

    def _patches(self, given: Tensor) -> Tensor:
        if not isinstance(self.module, CONVOLUTIONS):
            return given
        weight = self.module.weight
        unit = torch.eye(
            weight[0].numel(), dtype=given.dtype, device=given.device
        ).view(-1, *weight.shape[1:])
        return self.by_use(self.module._conv_forward(given, unit, None))

    def joined(self, by_name: Sequence[Tensor]) -> Float[Tensor, "m n"]:
        """Return tensors with the shapes of `parameters` as one matrix."""
        return torch.cat([tensor.reshape(len(tensor), -1) for tensor in by_name], dim=1)

    def order(self, shape: Sequence[int]) -> Tensor:
        """Return the place of each entry of the block in the matrix (m, n), row by row."""
        places = torch.arange(shape[0] * shape[1]).view(*shape)
        cut = len(self.names) - 1
        of = {"weight": places[:, : shape[1] - cut], "bias": places[:, -1:]}
        return torch.cat([of[name].flatten() for name in self.names])
