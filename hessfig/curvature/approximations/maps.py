"""Linear maps that a network calls: torch.nn.Linear, and convolutions as maps of the patches of their inputs."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.weights import Weight

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MAPS = (nn.Linear, *CONVOLUTIONS)
# The parameters of a module that a block may consist of.
_SIDES = (["weight"], ["bias"], ["bias", "weight"])


@dataclass(frozen=True)
class UnfoldedMap:
    """A module y_t = W x_t + b, of which a block has `names`: weight, bias or both, in the order of its vector.

    The parameters of the block form one matrix (m, n). With W, the input x_t of a
    convolution is its patch at position t, in the order of the rows of W. With b, a 1 is
    appended to x_t: W x + b = [W b] [x; 1]. The gradient in the matrix is then
    sum_t g_t x_t^T, with the gradients g_t in the outputs y_t.

    References
    ----------
    R. Grosse and J. Martens (2016), A Kronecker-factored approximate Fisher matrix for
    convolution layers, arXiv 1602.01407.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.approximations.maps import UnfoldedMap
    >>> layer = UnfoldedMap(torch.nn.Conv1d(1, 1, 2), ("weight", "bias"))
    >>> inputs = torch.tensor([[[1.0, 2.0, 3.0]]])
    >>> layer.inputs(inputs, layer.module(inputs)).tolist()
    [[[1.0, 2.0, 1.0], [2.0, 3.0, 1.0]]]
    """

    module: nn.Module
    names: tuple[str, ...]

    @classmethod
    def of(cls, network: nn.Module, side: Sequence[Weight]) -> "UnfoldedMap | None":
        """Return the map whose weight, bias, or both are `side`; None if there is none.

        Weights of grouped convolutions have none, since they act on several inputs.
        """
        paths = set()
        names: tuple[str, ...] = ()
        for weight in side:
            if weight.index is not None:
                return None
            path, _, name = weight.parameter.rpartition(".")
            paths.add(path)
            names += (name,)
        if len(paths) > 1 or sorted(names) not in _SIDES:
            return None
        module = network.get_submodule(paths.pop())
        is_grouped = getattr(module, "groups", 1) > 1 and "weight" in names
        if is_grouped or not isinstance(module, MAPS):
            return None
        return cls(module, names)

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
        self, arguments: Float[Tensor, "..."], outputs: Float[Tensor, "..."]
    ) -> Float[Tensor, "*batch n"]:
        """Return the inputs x of all uses in a call, from the arguments and the outputs of the module."""
        pieces = []
        if "weight" in self.names:
            pieces.append(self._patches(arguments))
        if "bias" in self.names:
            pieces.append(torch.ones_like(self.by_use(outputs)[..., :1]))
        return torch.cat(pieces, dim=-1)

    def _patches(self, arguments: Tensor) -> Tensor:
        """Return the patches of a convolution: its outputs with unit vectors as kernels.

        A convolution is linear in its kernel, y_t = sum_j W_j x_tj, so that the kernel e_j
        gives x_tj, whatever the stride, padding and dilation of the module.
        """
        if not isinstance(self.module, CONVOLUTIONS):
            return arguments
        shape = self.module.weight.shape[1:]
        units = torch.eye(shape.numel(), dtype=arguments.dtype, device=arguments.device)
        kernels = units.view(-1, *shape)
        return self.by_use(self.module._conv_forward(arguments, kernels, None))

    def joined(self, by_name: Sequence[Tensor]) -> Float[Tensor, "m n"]:
        """Return tensors with the shapes of `parameters` as one matrix."""
        return torch.cat([tensor.reshape(len(tensor), -1) for tensor in by_name], dim=1)

    def order(self, shape: Sequence[int]) -> Tensor:
        """Return the place of each entry of the block in the matrix (m, n), row by row.

        The vector of a block of weight and bias has all of the weight first, the matrix
        [W b] the bias at the end of every row.
        """
        places = torch.arange(shape[0] * shape[1]).view(*shape)
        weight = places
        bias = places[:, -1:]
        if len(self.names) > 1:
            weight = places[:, :-1]
        by_name = {"weight": weight, "bias": bias}
        return torch.cat([by_name[name].flatten() for name in self.names])
