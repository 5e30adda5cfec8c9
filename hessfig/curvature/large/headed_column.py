"""Products of the package's networks with a large vocabulary, from the layer of the weights on."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from hessfig.curvature.column import Rows, SidedColumn
from hessfig.curvature.large.graphs import Graphs
from hessfig.curvature.large.large_column import LargeColumn, side_by_side
from hessfig.curvature.large.readouts import VocabularyReadout
from hessfig.curvature.losses import IGNORED
from hessfig.curvature.problem import Headed, Objective, unembedding_of


class Features(nn.Module):
    """The network without its unembedding, starting from the activations after `depth` layers (None: the inputs)."""

    def __init__(self, network: Headed, depth: int | None, scored: slice) -> None:
        super().__init__()
        self.network, self.depth, self.scored = network, depth, scored
        self.ones = len(unembedding_of(network)) - 1

    def start(self, inputs: Tensor) -> Tensor:
        """Return the input of `forward`: the activations below the weights, computed once."""
        with torch.no_grad():
            return inputs if self.depth is None else self.network.hidden(inputs, self.depth)

    def forward(self, start: Tensor, kept: Tensor) -> Tensor:
        """Return the features of the scored tokens that `kept` selects, (tokens, width).

        If the unembedding has a bias, 1 is appended to the features of each token.
        """
        depth = self.depth or 0
        hidden = self.network.hidden(start, 0) if self.depth is None else start
        features = self.network.features(hidden, depth, self.scored).flatten(0, 1)
        features = features if kept.all() else features[kept]
        return F.pad(features, (0, 1), value=1.0) if self.ones else features


class _Layered:
    """The micro-batches of a headed network, with the activations below the weights computed once."""

    def __init__(self, objective: Objective, depth: int | None) -> None:
        assert isinstance(objective.network, Headed)
        self.unembedding = unembedding_of(objective.network)
        self._features = Features(objective.network, depth, objective.batch.scored)
        self._batches = [(self._features.start(batch.inputs), batch.targets) for batch in objective.batches]
        self._total = sum(int((targets != IGNORED).sum()) for _, targets in self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def keeps(self, number: int) -> bool:
        """Whether this is the only batch: micro-batches are as large as memory allows."""
        return len(self._batches) == 1 and not number

    def graphs(self, number: int, at: Mapping[str, Tensor]) -> Graphs:
        """Return the graphs of a batch."""
        start, targets = self._batches[number]
        kept = targets.flatten() != IGNORED
        matrix = side_by_side([parameter.detach() for parameter in self.unembedding])

        def features(leaves: dict[str, Tensor]) -> Tensor:
            named = {f"network.{path}": leaf for path, leaf in leaves.items()}
            value: Tensor = functional_call(self._features, named, (start, kept))
            return value

        return Graphs(features, at, VocabularyReadout(matrix, targets.flatten()[kept], self._total))


class HeadedColumn(LargeColumn):
    """The blocks of a column, by plain double backward below the head.

    Batches are evaluated one after the other, so memory is that of one batch; if there is one batch, its graphs are
    kept between calls. vmap is not used, since products through LayerNorm are wrong under it (see
    double_backward.verified_or_fallback). With features z, outputs U z and the Hessian B of the loss in the outputs,
    H_o v = J_z^T U^T B U J_z v: outputs of a large vocabulary are computed in chunks and never stored.

    Parameters
    ----------
    objective : Objective
        The loss; its network is Headed, with methods `hidden` and `features` and an `unembedding`.
    layer, col, rows
        As in ColumnOperator.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature import Batch, HeadedColumn, Objective
    >>> from hessfig.curvature.losses import CrossEntropy
    >>> from hessfig.weights import Layout, Weight
    >>> class Words(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed, self.head = torch.nn.Embedding(7, 3), torch.nn.Linear(3, 7, bias=False)
    ...     unembedding = property(lambda self: self.head.weight)
    ...     def hidden(self, inputs, depth):
    ...         return self.embed(inputs)
    ...     def features(self, hidden, depth, scored):
    ...         return hidden[:, scored].tanh()
    ...     def from_hidden(self, hidden, depth, scored):
    ...         return self.head(self.features(hidden, depth, scored))
    >>> tokens, layout = torch.arange(6).view(2, 3), Layout((Weight("W_E", "embed.weight", 21),))
    >>> problem = Objective(Words().double(), Batch(tokens, tokens, slice(None)), CrossEntropy(), layout)
    >>> products = HeadedColumn(problem, 0, "W_E", ["W_E"]).split_matmat(torch.ones(21, 1).double())
    >>> [(row, str(part), tuple(one.shape)) for (row, part), one in products.items()]
    [('W_E', 'H_o', (21, 1)), ('W_E', 'H_f', (21, 1))]
    """

    def __init__(self, objective: Objective, layer: int, col: str, rows: Sequence[str] | Rows) -> None:
        depth = objective.depth(SidedColumn(objective, layer, col, rows).weights)
        super().__init__(_Layered(objective, depth), objective, layer, col, rows, above=depth is not None)
