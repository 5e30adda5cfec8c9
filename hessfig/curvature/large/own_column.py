"""Products of large networks of users: their last linear map is found, and the graphs below it are kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import debug_unwrap, functional_call
from torch.nn import functional as F

from hessfig.curvature.batched import KEPT_BYTES, is_small
from hessfig.curvature.column import SPLIT, Column, Products, Rows, to_multiply
from hessfig.curvature.double_backward import (
    DoubleBackward,
    TensorsOperator,
    fault,
    length,
)
from hessfig.curvature.gradients import LossGradient
from hessfig.curvature.large.graphs import Graphs
from hessfig.curvature.large.large_column import (
    LargeColumn,
    LargeProducts,
    side_by_side,
)
from hessfig.curvature.large.memory import Memory, bound_of, micro_batched
from hessfig.curvature.large.readouts import OutputReadout, Readout, VocabularyReadout
from hessfig.curvature.large.row_labels import Labels, LabelSearch
from hessfig.curvature.losses import IGNORED, CrossEntropy
from hessfig.curvature.problem import Batch, Layered, Objective, evaluating
from hessfig.curvature.rounding import OUTPUTS, norm
from hessfig.curvature.samples import few_samples, first_samples
from hessfig.errors import UserError, plain
from hessfig.rng import in_turn
from hessfig.terms import Part
from hessfig.weights import Weight


@dataclass(frozen=True)
class Head:
    """The last linear map of a network, whose outputs are those of the network, and the labels of these outputs.

    With the features h_t, outputs are z_t = W h_t + b; cross-entropy is a function of W, b
    and h_t alone, so that outputs need not be stored (readouts.VocabularyReadout).
    """

    module: nn.Linear
    labels: Labels

    @property
    def tensors(self) -> list[Tensor]:
        """The matrix (vocabulary, width), and the bias if there is one; tensors that are constant are buffers."""
        if self.module.bias is None:
            return [self.module.weight]
        return [self.module.weight, self.module.bias]

    def inputs_of(self, call: Callable[[], Any]) -> Tensor:
        """Return the input of the map in a call of the network, which ends there: outputs are not computed."""

        def stop(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            raise _Reached(arguments[0])

        handle = self.module.register_forward_pre_hook(stop)
        try:
            call()
        except _Reached as reached:
            return reached.features
        finally:
            handle.remove()
        raise RuntimeError("the network did not call its last linear map")


class _Reached(BaseException):
    """Ends the call of a network at its last linear map; code of users that handles exceptions lets it pass."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


def head_of(objective: Objective) -> Head | None:
    """Return the linear map whose outputs are those of the network, under cross-entropy; None if there is none.

    The map is called once in a forward pass of each batch, and the outputs of the
    network are its outputs or a view of them. A loss of the user is compared with
    cross-entropy by value (LabelSearch). Nothing is assumed from names: all of this is
    observed in a forward pass, and products are verified afterwards (LargeNetwork.holds).
    """
    loss = objective.loss
    is_known = type(loss) is CrossEntropy and not loss.smoothing
    search = LabelSearch(loss)
    last = None
    for batch in objective.batches:
        module, outputs = _last_linear(objective.network, batch.inputs)
        if module is None or last not in (None, module):
            return None
        last = module
        if not is_known:
            search.see(outputs, batch.targets)
    labels = Labels() if is_known else search.labels
    if last is None or labels is None:
        return None
    return Head(last, labels)


class _Call(NamedTuple):
    """A call of a linear map in a forward pass."""

    module: nn.Linear
    features: Tensor
    output: Tensor


def _last_linear(network: nn.Module, inputs: Tensor) -> tuple[nn.Linear | None, Tensor]:
    r"""Return the linear map whose outputs are those of the network for one batch, or None; and the outputs f.

    Among all calls of linear maps it is the one in whose memory the outputs lie, if it is the
    only call of its map. Code that changed the outputs in place after the call would
    compute another function of the weights. So the map is applied to its recorded input x
    again, and taken if

    .. math:: |W x + b - f| \le t \, (|x| |W|_F + |f|)

    with t = rounding.OUTPUTS. The bound is relative to the terms, which may cancel in f.
    """
    calls: list[_Call] = []
    with evaluating(network), _recorded(network, calls):
        outputs = network(inputs).detach()
    last = None
    for call in calls:
        if _is_view(outputs, call.output):
            last = call.module
    of_last = [call for call in calls if call.module is last]
    if len(of_last) != 1:
        return None, outputs
    module, features, _ = of_last[0]
    mapped = F.linear(features.flatten(0, -2), module.weight, module.bias).detach()
    off = norm(mapped.view_as(outputs) - outputs)
    terms = norm(features) * norm(module.weight.detach()) + norm(outputs)
    if off <= OUTPUTS.of(outputs.dtype) * terms:
        return module, outputs
    return None, outputs


@contextmanager
def _recorded(network: nn.Module, calls: list[_Call]) -> Iterator[None]:
    """Append every call of a plain linear map."""

    def record(module: nn.Linear, arguments: tuple[Any, ...], output: Any) -> None:
        if len(arguments) != 1 or not isinstance(output, Tensor):
            return
        # Not inside vmap, grad.
        if debug_unwrap(output) is output:
            calls.append(_Call(module, arguments[0].detach(), output.detach()))

    handles = []
    for module in network.modules():
        if isinstance(module, nn.Linear) and _is_plain(module):
            handles.append(module.register_forward_hook(record))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _is_plain(module: nn.Linear) -> bool:
    """Whether a linear map multiplies by its own tensor, and nothing else is done to its input or output."""
    backward = module._backward_hooks or module._backward_pre_hooks
    hooks = module._forward_hooks or module._forward_pre_hooks or backward
    own = {**module._parameters, **module._buffers}
    is_own = type(module).forward is nn.Linear.forward and "forward" not in vars(module)
    return is_own and not hooks and {*own} == {"weight", "bias"}


def _is_view(outputs: Tensor, made: Tensor) -> bool:
    """Whether the outputs are those of a map in the same memory, with the same last axis."""
    if outputs.ndim < 2 or outputs.numel() != made.numel():
        return False
    if outputs.shape[-1:] != made.shape[-1:]:
        return False
    is_dense = outputs.is_contiguous() and made.is_contiguous()
    return is_dense and outputs.data_ptr() == made.data_ptr()


def _samples_of(objective: Objective) -> list[int]:
    """Return the number of samples of every batch."""
    return [len(batch.inputs) for batch in objective.batches]


class LargeNetwork:
    """A large network of a user: its batches, and its last linear map if outputs need not be stored.

    It gives LargeProducts the graphs of each batch as a function of the weights, with the
    features h of the last linear map at the tokens that count, or the outputs as features.
    A bias b of the map is a last column of W with a constant 1 in h: W h + b = [W b] [h; 1].

    The products of a part are checked once, for all parameters: for a random and a
    constant vector they must agree with plain double backward in the rows of every
    parameter, on the first batch.

    Attributes
    ----------
    expected : float or None
        The bytes that a product with H in all parameters takes, if they were measured.
    """

    def __init__(
        self,
        objective: Objective,
        head: Head | None,
        kept: int = 0,
        expected: float | None = None,
    ) -> None:
        self.problem = objective
        self.head = head
        self.expected = expected
        self.unembedding: Sequence[Tensor] = head.tensors if head else []
        self._kept = kept
        self._sizes: dict[int, float] = {}
        self._verdicts: dict[Part, bool] = {}
        # Of checked products with H_o, by the number of samples.
        self._lengths: dict[int, Tensor] = {}
        # In all parameters, by batch.
        self._shared: dict[int, Graphs] | None = None

    @classmethod
    def of(cls, objective: Objective) -> LargeNetwork:
        """Return the network of a problem, in micro-batches that fit into memory; graphs are kept as far as they fit.

        Another call for the same objective returns the same network, with what was
        checked. Its columns share graphs if those of all batches take at most
        KEPT_BYTES; otherwise every column has its own.

        Raises UserError if the product of one sample takes more memory than allowed.
        """
        other = replace(objective)  # no cycle of references
        network: LargeNetwork = objective.once("large", partial(cls._of, other))
        return network

    @classmethod
    def _of(cls, objective: Objective) -> LargeNetwork:
        """Return the network with the largest micro-batches that fit into memory, and as many kept graphs as then fit.

        With g_b the bytes of the graphs of batch b and P those of a product of the
        largest batch, its graphs included, the first n graphs are kept with g_1 + ... +
        g_n <= bound - P; all of them if only the last one does not fit.

        A product of the last batch creates its graphs in any case, so that keeping them costs
        nothing if all others are kept: then they are part of P, and the expected memory is P +
        sum_b g_b - max_b g_b.
        """
        head = head_of(objective)
        bound = bound_of(objective)
        memory = cls(objective, head).memory()
        if memory is None:
            return cls(objective, head, kept=1)
        samples = memory.fitting(bound)
        if samples < max(_samples_of(objective)):
            objective = micro_batched(objective, samples)
        sizes = _samples_of(objective)
        peak = memory.peak(max(sizes))
        graphs = [memory.graphs(size) for size in sizes]
        kept = 0
        for held in accumulate(graphs):
            if held <= bound - peak:
                kept += 1
        # A product of the last batch needs the memory of its graphs in any case.
        if kept < len(sizes) - 1:
            return cls(objective, head, kept, peak + sum(graphs[:kept]))
        every = sum(graphs)
        network = cls(objective, head, len(sizes), peak + every - max(graphs))
        if every <= KEPT_BYTES:
            network._shared = {}
        return network

    def memory(self) -> Memory | None:
        """Return the memory of a product with H in all parameters, from products on the first samples.

        H in all parameters takes the most memory of all products. Tokens that do not count are
        counted, as in the batch with the most. None, with a warning, if these products fail:
        then nothing bounds the memory of products. If no product can be computed, `holds` raises
        the error that says why.
        """
        parameters = self._parameters()
        head = None
        if self.head is not None:
            # As if all targets counted: the memory of the most tokens.
            labels = replace(self.head.labels, all_count=True)
            head = replace(self.head, labels=labels)

        def product_of(samples: int) -> Callable[[], object]:
            network = LargeNetwork(first_samples(self.problem, samples), head, kept=1)
            products = LargeProducts(network, parameters)

            def product() -> object:
                vector = []
                for parameter in parameters.values():
                    vector.append(torch.ones_like(parameter).unsqueeze(-1))
                products.of_batches([0], vector, [Part.H])
                return None

            return product

        count = len(self.problem.batch.inputs)
        try:
            return Memory.measured(product_of, count, list(parameters.values()))
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            why = plain(f"{type(error).__name__}: {error}", most=200)
            warnings.warn(
                f"the memory of products could not be measured ({why})",
                RuntimeWarning,
                stacklevel=2,
            )
            return None

    def _parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that have weights, each once, by path."""
        parameters = {}
        for weight in self.problem.layout.weights:
            path = weight.parameter
            parameters[path] = self.problem.network.get_parameter(path)
        return parameters

    @staticmethod
    def can_take(objective: Objective) -> bool:
        """Whether the network is a user's own and not small."""
        network = objective.network
        return not isinstance(network, Layered) and not is_small(network)

    def __len__(self) -> int:
        return len(self.problem.batches)

    def keeps(self, number: int) -> bool:
        """Whether the graphs of a batch are kept."""
        return number < self._kept

    @property
    def shares_graphs(self) -> bool:
        """Whether the graphs of all batches are kept, and are those of every column."""
        return self._shared is not None

    def graphs(self, number: int, at: Mapping[str, Tensor]) -> Graphs:
        """Return the graphs of a batch. Raises UserError if its features have changed since the first time."""
        every = self._parameters()
        if self._shared is None or not self.keeps(number) or not set(at) <= set(every):
            return self._graphs(number, at)
        if number not in self._shared:
            self._shared[number] = self._graphs(number, every)
        return self._shared[number].of(at)

    def _graphs(self, number: int, at: Mapping[str, Tensor]) -> Graphs:
        """Return new graphs of a batch, in the parameters `at`."""
        batch = self.problem.batches[number]
        readout = self._readout(batch, self.problem.shares[number])
        graphs = Graphs(partial(self._features, batch), at, readout)
        self._check_same(number, graphs.value)
        return graphs

    def _features(self, batch: Batch, leaves: dict[str, Tensor]) -> Tensor:
        """Return the inputs of the last linear map at the tokens that count; without a map, the outputs.

        Tokens whose label is ignored have no part in the loss, and so none in any derivative.
        With a bias, a constant 1 is the last entry.
        """
        call = partial(functional_call, self.problem.network, leaves, (batch.inputs,))
        if self.head is None:
            outputs: Tensor = call()
            return outputs
        features = self.head.inputs_of(call).flatten(0, -2)
        counts = self.head.labels.of(batch.targets) != IGNORED
        if not counts.all():
            features = features[counts]
        if len(self.unembedding) > 1:  # a bias
            return F.pad(features, (0, 1), value=1.0)
        return features

    def _readout(self, batch: Batch, share: float) -> Readout:
        """Return the loss of a batch, times its share, as a function of its features.

        The share s_k of the batch enters the divisor: s_k sum_t l_t / K = sum_t l_t / (K / s_k).
        """
        if self.head is None:
            return OutputReadout(
                lambda outputs: share * self.problem.loss(outputs, batch.targets)
            )
        labels = self.head.labels.of(batch.targets)
        counting = labels[labels != IGNORED]
        matrix = side_by_side([tensor.detach() for tensor in self.unembedding])
        total = self.head.labels.divisor(labels) / share
        return VocabularyReadout(matrix, counting, total)

    def _check_same(self, number: int, features: Tensor) -> None:
        """Raise UserError if the features of a batch have another length than the first time.

        Outputs may be zero up to rounding, also those that are a loss: their length is
        compared beside the size of the terms of the loss.
        """
        size = norm(features)
        before = self._sizes.setdefault(number, size)
        terms = 0.0
        if self.problem.witness and self.head is None:
            terms = self.problem.witness.size
        rounding = 100 * torch.finfo(features.dtype).eps
        if abs(size - before) > rounding * max(size, before, terms):
            raise UserError(
                "the function has changed since this operator was created: network or loss read other values",
                got=f"features of length {size:.9g}, and {before:.9g} before",
                allowed="a network and a loss that give the same value at the same weights",
                remedy="make the operator again: problem.operator(...)",
            )

    def holds(self, part: Part) -> bool:
        """Whether the products of a part agree with plain double backward on the first batch; warns once if not.

        Its first samples are enough if products on them are finite and reach every
        parameter (samples.few_samples).
        """
        if part not in self._verdicts:
            self._verdicts[part] = self._agrees(part)
        return self._verdicts[part]

    def _agrees(self, part: Part) -> bool:
        """Compare the products of a part, on few samples if these say enough; warn if they disagree.

        Few samples take a fraction of the time and memory of the batch; if they say nothing
        (`_fault`), or raise, the first batch is taken.
        """
        first = replace(self.problem, more=())
        why = None
        count = few_samples(self.problem)
        if count:
            with suppress(Exception):  # a function that takes the whole batch alone
                why = self._fault(part, first_samples(first, count), count)
        if why is None:
            why = self._fault(part, first)
        if why:
            warnings.warn(
                f"{part}: {why}; plain double backward is used instead",
                RuntimeWarning,
                stacklevel=2,
            )
        return not why

    def _fault(self, part: Part, objective: Objective, count: int = 0) -> str | None:
        """Return what is wrong with the products on one batch; None if `count` samples of it say nothing.

        The test is double_backward.fault, for all parameters at once. Few samples say
        something if their products are finite and not zero, and reach every parameter (a token
        that does not occur gives its row of an embedding the product 0, right or wrong; the
        whole parameter must not be of this kind).
        """
        by_name = self._parameters()
        parameters = list(by_name.values())
        suffix = objective.suffix(objective.layout.weights)
        products = LargeProducts(LargeNetwork(objective, self.head, kept=1), by_name)
        truth = _Reliable(suffix, part, parameters)
        # Products with H_f, which may vanish, are compared beside those with H_o.
        other: TensorsOperator = truth
        if part == Part.H_f and count in self._lengths:
            other = _OfLengths(self._lengths[count])
        elif part == Part.H_f:
            other = _Reliable(suffix, Part.H_o, parameters)
        why = fault(
            _PartOf(products, part),
            truth,
            other,
            by_name,
            engine="hessfig.curvature.large",
            computed_in=products.graphs(0).computed_in,
        )
        if part == Part.H_o:
            self._lengths[count] = truth.lengths
        if not count:
            return why
        if truth.says_something and _reach(objective, by_name, truth.reached):
            return why
        return None


def _reach(objective: Objective, names: Iterable[str], reached: Sequence[bool]) -> bool:
    """Whether samples reach every parameter, by products or by the gradient (H_f has no row of an output's bias)."""
    if all(reached):
        return True
    gradient = LossGradient(objective).gradient
    for name, is_reached in zip(names, reached, strict=True):
        if not is_reached and not bool(gradient[name].any()):
            return False
    return True


class _Reliable(DoubleBackward):
    """Plain double backward of a part, which keeps the lengths of its products, (1, k), and which rows vanish."""

    lengths = torch.zeros(1, 1)

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        products = super().__matmul__(columns)
        lengths = []
        for k in range(columns[0].shape[-1]):
            lengths.append(length(product[..., k] for product in products))
        self.lengths = torch.tensor([lengths])
        are_finite = all(bool(product.isfinite().all()) for product in products)
        self.says_something = are_finite and bool((self.lengths > 0).all())
        self.reached = [bool(product.any()) for product in products]
        return products


class _OfLengths:
    """Products of which no more than the lengths are known."""

    def __init__(self, lengths: Tensor) -> None:
        self._lengths = lengths

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        del columns
        return [self._lengths]


class _PartOf:
    """A part of the Hessian on the first batch, with the interface that the checks of operators need."""

    def __init__(self, products: LargeProducts, part: Part) -> None:
        self._products, self._part = products, part

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        products = self._products.of_batches([0], list(columns), [self._part])
        return products[self._part].tensors()


class OwnColumn(LargeColumn):
    """The blocks of a column of a LargeNetwork.

    ColumnOperator computes the products of a part whose products do not agree with
    plain double backward.

    Parameters
    ----------
    network : LargeNetwork
        The batches, which all columns of a problem share.
    objective, layer, col, rows
        As in ColumnOperator.
    """

    def __init__(
        self,
        network: LargeNetwork,
        objective: Objective,
        layer: int,
        col: str,
        rows: Rows,
    ) -> None:
        super().__init__(network, objective, layer, col, rows)
        self.network = network
        self._given = (objective, layer, col, rows)

    @cached_property
    def _other(self) -> Column:
        from hessfig.curvature.curvlinops import ColumnOperator

        return ColumnOperator(*self._given)

    def kept_product(
        self, row: Hashable, part: Part
    ) -> Callable[[Tensor], Tensor] | None:
        """Return v -> A v, as SidedColumn says; None for H_o and H_f, where a zero takes another way."""
        are_kept = all(
            self.network.keeps(number) for number in range(len(self.network))
        )
        if not (part == Part.H and are_kept and self.network.holds(part)):
            return None
        return partial(self._product, self.rows[row])

    def shares_graphs(self, part: Part) -> bool:
        """Whether graphs are those of all columns, as SidedColumn says."""
        return self.network.holds(part) and self.network.shares_graphs

    def _product(self, row: Sequence[Weight], vector: Tensor) -> Tensor:
        """Return H v in the weights of a row, through graphs that are kept: one backward pass per batch."""
        totals = self.products.of_batches(
            range(len(self.network)), self.spread(vector.unsqueeze(1)), [Part.H]
        )
        return self._gather(totals[Part.H].tensors(), row).squeeze(1)

    @in_turn
    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V by (row, part), for every row and each of `parts`."""
        if not all(self.network.holds(part) for part in to_multiply(parts)):
            return self._other.split_matmat(probes, parts)
        return super().split_matmat(probes, parts)
