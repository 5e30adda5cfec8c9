"""Memory of the products of a large network: measured for one sample and for two, and kept below a bound."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_leaves

from hessfig.curvature.dispatch import Dispatch
from hessfig.curvature.problem import Batch, Objective, evaluating
from hessfig.curvature.rounding import SINGLES
from hessfig.curvature.samples import (
    BySample,
    alone,
    by_sample,
    sample_weights,
    samples_interact,
)
from hessfig.curvature.witness import leaves_of, size_of_terms, step_of, terms_of
from hessfig.errors import UserError

# What products may take on the host, unless another bound is given.
HOST_BYTES = 8e9
# Share of the free memory of a card.
_OF_FREE = 0.8


@dataclass(frozen=True)
class Memory:
    """Bytes of a product with H in all parameters: `fixed`, and `each` for every sample of a batch.

    peak(b) = fixed + b each for b samples: vectors and gradients have the size of the
    network, activations and their derivatives that of the samples. The graphs of a batch
    remain after the product: graphs(b) = graph + b kept.

    Examples
    --------
    >>> from hessfig.curvature.large.memory import Memory
    >>> memory = Memory(fixed=1e9, each=1e8, kept=5e7)
    >>> memory.peak(10), memory.graphs(10), memory.fitting(3e9)
    (2000000000.0, 500000000.0, 20)
    """

    fixed: float
    each: float
    kept: float
    graph: float = 0.0

    @classmethod
    def measured(
        cls,
        product_of: Callable[[int], Callable[[], object]],
        samples: int,
        beside: Sequence[Tensor],
    ) -> Memory:
        r"""Return the memory of products on `samples` samples, from those on the first one and the first two.

        With the peaks P_1, P_2 and the bytes K_1, K_2 that remain, the lines through both are

        .. math:: P_b = (2 P_1 - P_2) + b \, (P_2 - P_1), \qquad
                  K_b = \max(0, 2 K_1 - K_2) + b \, (K_2 - K_1).

        With a single sample in the batch there is no second point: what remains is taken to
        belong to the sample, the rest to be fixed.

        Parameters
        ----------
        product_of : callable
            Returns a function that multiplies on the first samples.
        samples : int
            The samples of the batch; only whether it is one matters.
        beside : sequence of tensors
            These are not counted, the parameters for example.
        """
        peak, kept = live_bytes(product_of(1), beside)
        if samples == 1:
            return cls(fixed=peak - kept, each=kept, kept=kept)
        # Lines through the numbers of one sample and of two.
        peak_of_two, kept_of_two = live_bytes(product_of(2), beside)
        return cls(
            fixed=2 * peak - peak_of_two,
            each=peak_of_two - peak,
            kept=kept_of_two - kept,
            graph=max(0, 2 * kept - kept_of_two),
        )

    def graphs(self, samples: int) -> float:
        """Return the bytes that remain after a product on a batch."""
        return self.graph + samples * self.kept

    def peak(self, samples: int) -> float:
        """Return the bytes of a product on a batch."""
        return self.fixed + samples * self.each

    def fitting(self, bound: float) -> int:
        """Return the number of samples whose product takes at most `bound` bytes: (bound - fixed) / each, rounded down.

        Raises
        ------
        UserError
            If the product of one sample takes more.
        """
        if self.peak(1) > bound:
            raise UserError(
                "memory: too little for the product of one sample, or of one batch of a compute_loss",
                got=f"{bound / 1e9:.3g} GB",
                allowed=f"at least {self.peak(1) / 1e9:.3g} GB",
                remedy="several smaller batches in place of one, shorter sequences, float32, or a larger memory=",
            )
        if self.each <= 0:
            return _UNBOUNDED
        return int((bound - self.fixed) / self.each)


_UNBOUNDED = 2**62


def bound_of(objective: Objective) -> float:
    """Return the bytes that products may take: as given, 8 GB on the host, or most of the free memory of a card.

    On a card it is 0.8 (free + reserved - allocated): PyTorch uses again what it holds in
    reserve, and the rest is left to fragments and to kernels.
    """
    if objective.memory is not None:
        return objective.memory
    device = next(objective.network.parameters()).device
    if device.type == "cuda":
        return _OF_FREE * _free_bytes(device)
    return HOST_BYTES


def _free_bytes(device: torch.device) -> int:
    """Return the bytes of a card that no tensor takes, those that PyTorch holds in reserve included."""
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + reserve


class _Live(Dispatch):
    """Counts the bytes of all storages that operations create, while they live.

    A storage is counted once, when the first tensor of it is returned, and subtracted when
    Python frees it; views share the storage of their base. Temporary memory inside a
    kernel is not seen.
    """

    def __init__(self, beside: Iterable[Tensor]) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        # By address: storages that were counted and live, and those that do not count.
        self._storages = dict[int, object]()
        for tensor in beside:
            self._storages[tensor.untyped_storage()._cdata] = None

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = function(*args, **(kwargs or {}))
        # Most operations return one tensor.
        leaves = [results] if isinstance(results, Tensor) else tree_leaves(results)
        for result in leaves:
            if isinstance(result, Tensor):
                self._add(result.untyped_storage())
        return results

    def _add(self, storage: torch.UntypedStorage) -> None:
        address = storage._cdata
        if address in self._storages:
            return
        size = storage.nbytes()
        ended = weakref.ref(storage, lambda _: self._remove(address, size))
        self._storages[address] = ended
        self.now += size
        self.peak = max(self.peak, self.now)

    def _remove(self, address: int, size: int) -> None:
        self.now -= size
        self._storages.pop(address, None)


def live_bytes(work: Callable[[], object], beside: Sequence[Tensor]) -> tuple[int, int]:
    """Return the largest number of bytes during `work`, and those that its result and its caches keep.

    Examples
    --------
    Two vectors of 8 000 bytes live at once, and none remains:

    >>> import torch
    >>> from hessfig.curvature.large.memory import live_bytes
    >>> live_bytes(lambda: float((torch.ones(1000).double() + 1).sum()), [])
    (16000, 0)
    """
    with _Live(beside) as live:
        result = work()
    del result
    return live.peak, live.now


def micro_batched(objective: Objective, samples: int) -> Objective:
    r"""Return the same loss over batches of at most `samples` samples.

    For a loss sum_i w_i l_i / d the pieces P have the losses L_P = sum_{i in P} w_i l_i /
    d_P and the sizes n d_P / d, with n the size of the batch, so that

    .. math:: \sum_P \frac{n d_P}{d} L_P \Big/ \sum_P \frac{n d_P}{d}
              = \sum_i w_i l_i / d.

    Products then hold the graphs of one piece at a time.

    Raises
    ------
    UserError
        If samples interact, or if the loss is not a weighted mean or a sum over samples.
    """
    pieces = list[Batch]()
    try:
        apart = by_sample(objective)
        for batch in objective.batches:
            pieces += _split(apart, batch, samples)
        split = replace(apart, batch=pieces[0], more=tuple(pieces[1:]))
        _check_split(objective, split, samples)
    except UserError as error:
        raise UserError(
            "memory: the batch must be split, but its samples interact or cannot be taken apart",
            got=error.got,
            allowed="outputs and losses of a sample that do not depend on the others, with samples as the first axis",
            remedy="a larger memory=, or smaller batches",
        ) from error
    return split


def _check_split(objective: Objective, split: Objective, samples: int) -> None:
    """Raise UserError if samples interact: at the weights, or a step away, where a weight that is zero here is not.

    Outputs of pieces are compared with those of a batch; of networks that are functions
    of the samples, the losses. Differences are relative to the terms of both points
    (witness.size_of_terms), since terms may cancel at one. The tolerance is
    rounding.SINGLES: kernels for other numbers of samples add in other orders, and some
    networks compute in float32 inside.
    """
    names = []
    for name, parameter in objective.network.named_parameters():
        if parameter.is_floating_point():
            names.append(name)
    here = leaves_of(objective, names)
    steps = step_of({name: one.detach() for name, one in here.items()})
    beside = {}
    for name, leaf in here.items():
        beside[name] = (leaf + steps[name]).detach().requires_grad_()
    points = (here, beside)
    if isinstance(objective.network, BySample):
        _check_value(objective, split, points)
    else:
        for batch in objective.batches:
            _check_apart(objective, batch, samples, points)


def _check_value(
    objective: Objective, split: Objective, points: Sequence[dict[str, Tensor]]
) -> None:
    r"""Raise UserError if losses of pieces do not add up to those of batches, relative to the sizes of all terms.

    .. math:: \Bigl|\sum_\text{pieces} L_p - \sum_\text{batches} L_b\Bigr| \le t \,
              \max\Bigl(\sum |L_p|, \sum |L_b|, \text{terms}\Bigr)

    at both points, with t = rounding.SINGLES and the size of terms of the whole
    (witness.size_of_terms); sums are exact (math.fsum), so that what is
    left is that of the evaluations.
    """
    wholes = []
    sums = []
    size = 0.0
    for at in points:
        batches = _values(objective, at)
        pieces = _values(split, at)
        wholes.append(math.fsum(batches))
        sums.append(math.fsum(pieces))
        for terms in (batches, pieces):
            size = max(size, math.fsum(map(abs, terms)))
    size = max(size, size_of_terms(*map(torch.tensor, wholes)))
    for whole, sum_of_pieces in zip(wholes, sums, strict=True):
        if abs(sum_of_pieces - whole) > SINGLES.of(objective.dtype) * size:
            raise samples_interact(
                f"a loss of {sum_of_pieces:.9g} from pieces, and of {whole:.9g} from all samples"
            )


def _values(objective: Objective, at: dict[str, Tensor]) -> list[float]:
    """Return the terms of the loss, one per batch."""
    with alone():
        return [float(term().detach()) for term in terms_of(objective, at)]


def _check_apart(
    objective: Objective,
    batch: Batch,
    samples: int,
    points: Sequence[dict[str, Tensor]],
) -> None:
    """Raise UserError if outputs of pieces of a batch are not those of the batch, relative to the outputs' terms.

    The largest difference of an output at both points, over the largest of the terms
    (witness.size_of_terms), is compared with rounding.SINGLES.
    """
    if len(batch.inputs) <= samples:
        return
    wholes = []
    largest = 0.0
    for at in points:
        outputs_of = partial(functional_call, objective.network, at)
        pieces = []
        with evaluating(objective.network), alone():
            whole = outputs_of((batch.inputs,)).detach()
            for piece in batch.inputs.split(samples):
                pieces.append(outputs_of((piece,)).detach())
            outputs = torch.cat(pieces)
        wholes.append(whole)
        off = math.inf
        if outputs.shape == whole.shape:
            off = float((outputs - whole).abs().max())
        largest = max(largest, off)
    if largest > SINGLES.of(wholes[0].dtype) * size_of_terms(*wholes):
        raise samples_interact(
            f"outputs of {samples} samples that differ from those of all {len(batch.inputs)}"
        )


def _split(objective: Objective, batch: Batch, samples: int) -> list[Batch]:
    r"""Return a batch in pieces of at most `samples` samples; pieces without weight are left out.

    A piece has the share of its samples in the loss,

    .. math:: \text{size} \cdot \sum_{i \in P} w_i / \text{divisor}

    (samples.SampleWeights); the shares of all pieces sum to the size of the batch if the
    loss is a mean.
    """
    count = len(batch.inputs)
    if count <= samples:
        return [replace(batch, weight=batch.size)]
    of_batch = sample_weights(objective, batch)
    inputs = batch.inputs.split(samples)
    targets = batch.targets.split(samples * (len(batch.targets) // count))
    pieces = []
    for place, weights in enumerate(of_batch.weights.split(samples)):
        weight = batch.size * float(weights.sum()) / of_batch.divisor
        if weight:
            piece = Batch(inputs[place], targets[place], batch.scored, weight)
            pieces.append(piece)
    return pieces
