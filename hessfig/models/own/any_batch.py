"""Networks that take batches of any kind (dictionaries, several inputs), as functions of the indices of samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice, product
from math import inf
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessfig.curvature.gradients import Evaluated
from hessfig.curvature.problem import evaluating, real_parameters
from hessfig.curvature.rounding import SINGLES
from hessfig.curvature.samples import samples_interact
from hessfig.curvature.witness import peak, size_of_terms, step_of
from hessfig.errors import first_few, plain
from hessfig.models.own.in_place import in_its_place
from hessfig.models.own.own_checks import shape_of

LABELS = "labels"
# For every tensor of a batch, the axis that runs over samples.
Axes = tuple[int | None, ...]


@dataclass
class Given:
    """One batch as the network takes it: network(*arguments, **words), and its targets; `size` counts its samples.

    `labelled`: the targets are the entry `labels` of a dictionary, whose meaning is the
    network's matter.
    """

    arguments: tuple[Any, ...]
    words: dict[str, Any]
    targets: Any
    size: int
    labelled: bool = False

    def rows(self, rows: Tensor, axes: Axes) -> Given:
        """Return the samples at `rows`; what has no axis over samples is handed on as it is."""
        left = iter(axes)

        def chosen(one: Tensor) -> Tensor:
            axis = next(left)
            if axis is None:
                return one.clone()
            return one.index_select(axis, rows)

        return replace(self.mapped(chosen), size=len(rows))

    def first(self, count: int) -> Given:
        """Return the first samples, along the likeliest axes; targets may have several rows for each sample."""
        axes = tuple(_axes_of(tensor, self.size)[0] for _, tensor in self.tensors)
        few = self.rows(torch.arange(count, device=self.device), axes)
        rows = 1
        if isinstance(self.targets, Tensor) and self.targets.ndim:
            rows = len(self.targets) // self.size
        if rows > 1:
            return replace(few, targets=self.targets[: count * rows])
        return few

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Given:
        """Return the batch with every tensor replaced by its image."""

        def image(thing: Any) -> Any:
            if isinstance(thing, Tensor):
                return function(thing)
            return thing

        arguments = tuple(map(image, self.arguments))  # in the order of `tensors`
        words = {name: image(thing) for name, thing in self.words.items()}
        return replace(
            self, arguments=arguments, words=words, targets=image(self.targets)
        )

    @property
    def tensors(self) -> list[tuple[str, Tensor]]:
        """Every tensor of the batch with a name."""
        named = [(f"input {number}", one) for number, one in enumerate(self.arguments)]
        named += [*self.words.items(), ("targets", self.targets)]
        return [(name, one) for name, one in named if isinstance(one, Tensor)]

    @property
    def device(self) -> torch.device:
        """The device of its tensors."""
        return next((one.device for _, one in self.tensors), torch.device("cpu"))

    def __str__(self) -> str:
        named = (f"{name}: {shape_of(thing)}" for name, thing in self.words.items())
        return plain(", ".join([*map(shape_of, self.arguments), *named]), most=300)


class Shell(nn.Module):
    """A module around a network, with its parameters, buffers and modules under the same names."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        for held in ("_parameters", "_buffers", "_modules"):
            self.__dict__[held] = network.__dict__[held]
        self.training = network.training
        self._inside = (network,)  # in a tuple: not a module of this one


class KeptInputs(Shell):
    """A network that is given copies of its inputs, for it changes them."""

    def forward(self, inputs: Tensor) -> Any:
        """Return what the network returns."""
        return self._inside[0](inputs.clone())


@dataclass(frozen=True)
class _Fit:
    """A choice of axes, how far single samples are from all, and whether the loss of all is their sum, not mean."""

    axes: Axes
    off: float
    is_sum: bool = False


Read = Callable[[Any, Any], Tensor]
_MOST_CHOICES = 256  # the most choices of axes that are tried
_DIGITS = 1e5  # allowed rounding errors, in the precision of the type: below them two choices fit equally well


class Rows(Shell):
    """A network as a function of which samples of stored batches it is given: row numbers in, one tensor out.

    Inputs are (samples, 2): number of the batch, number of the sample in it. `read`
    makes the tensor of what the network returns and of the targets. `_along` has, for
    every batch, the axes that run over samples, once they are known: before, all
    samples of a batch are asked for at once.
    """

    _along: list[Axes] | None = None
    is_sum = False

    def __init__(self, network: nn.Module, given: list[Given], read: Read) -> None:
        super().__init__(network)
        self.given, self._read = given, read

    @property
    def inputs(self) -> list[Tensor]:
        """The rows of every batch."""
        pairs = []
        for number, one in enumerate(self.given):
            rows = torch.arange(one.size)
            pairs.append(torch.stack([torch.full_like(rows, number), rows], dim=1))
        return pairs

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs of all samples of one batch; of some of them where `by_sample` made the network."""
        number = int(rows[0, 0]) if len(self.given) > 1 else 0
        batch = self.given[number]
        if self._along is not None:
            batch = batch.rows(rows[:, 1], self._along[number])
        assert len(rows) == batch.size, "some samples are given to by_sample()"
        return self._outputs(batch)

    def by_sample(self) -> Rows:
        """Return the network as a function of some of the samples.

        Which axis of which tensor runs over samples is shown by the outputs: those of
        every sample alone are compared with those of all, for every choice of axes of
        that length. They are compared one step away from the weights, where terms that
        cancel at the weights do not. Raises UserError where no choice fits.
        """
        parameters = {name: one.detach() for name, one in real_parameters(self).items()}
        beside = {
            name: parameters[name] + step for name, step in step_of(parameters).items()
        }
        with evaluating(self._inside[0]):
            network = Rows(self._inside[0], self.given, self._read)
            fits = [self._fit(batch, beside) for batch in self.given]
            network._along = [fit.axes for fit in fits]
            network.is_sum = all(fit.is_sum for fit in fits)
            return network

    def of_first_samples(self, count: int) -> tuple[Rows, Tensor]:
        """Return the network for the first samples of the first batch, along the likeliest axes, and its inputs."""
        given = self.given[0].first(count)
        network = Rows(self._inside[0], [given], self._read)
        return network, network.inputs[0].to(given.device)

    def _outputs(self, one: Given) -> Tensor:
        own = one.mapped(torch.clone)  # a network may change what it is given
        with in_its_place(self._inside[0]):
            return self._read(self._inside[0](*own.arguments, **own.words), own.targets)

    def _fit(self, one: Given, beside: Mapping[str, Tensor]) -> _Fit:
        """Return the likeliest choice of those that are equal to all up to rounding, with the parameters `beside`."""
        whole = self._shown(one, beside)
        size = size_of_terms(self._shown(one), whole)
        *given, targets = (_axes_of(tensor, one.size) for _, tensor in one.tensors)
        # Targets have their samples first.
        choices = islice(product(*given, targets[:1]), _MOST_CHOICES)
        fits = [self._fit_of(one, axes, whole, size, beside) for axes in choices]
        least = min(fit.off for fit in fits)
        if least <= SINGLES.of(whole.dtype):
            return next(
                fit
                for fit in fits
                if fit.off <= max(10 * least, _DIGITS * torch.finfo(whole.dtype).eps)
            )
        shapes = [f"{name} {tuple(tensor.shape)}" for name, tensor in one.tensors]
        raise samples_interact(
            f"no choice of axes gives single samples the outputs they have among all; given {first_few(shapes)}"
        )

    def _fit_of(
        self,
        one: Given,
        axes: Axes,
        whole: Tensor,
        size: float,
        beside: Mapping[str, Tensor],
    ) -> _Fit:
        """Return how far outputs of single samples are from those of all, relative to the `size` of their terms.

        Of a loss, which has no axis of samples, their mean or their sum; losses of
        samples may have both signs, and count by their sizes. If neither a mean nor a
        sum is excluded, the choice does not fit.
        """
        nothing = _Fit(axes, inf)
        most = SINGLES.of(whole.dtype)
        is_by_sample = len(whole) == one.size
        outputs = list[Tensor]()
        for row in range(one.size):
            try:
                sample = one.rows(torch.tensor([row], device=whole.device), axes)
                outputs.append(self._shown(sample, beside))
            except Exception:  # whatever it raises: this is not what the network takes
                return nothing
            off = far(outputs[-1], whole[row : row + 1])
            if is_by_sample and not _off(off, size) <= most:
                return nothing
        alone = torch.cat(outputs)
        if is_by_sample:
            return _Fit(axes, _off(far(alone, whole), size))
        of_mean, of_sum = (
            _off(
                far(joined(alone, 0, keepdim=True), whole),
                max(size, peak(joined(alone.abs(), 0))),
            )
            for joined in (torch.mean, torch.sum)
        )
        if one.size > 1 and 0.0 < max(of_mean, of_sum) <= most:
            return nothing
        return _Fit(axes, min(of_mean, of_sum), is_sum=of_sum < of_mean)

    def _shown(self, one: Given, at: Mapping[str, Tensor] | None = None) -> Tensor:
        """Return the outputs of a batch with the parameters `at`, or with those of the network."""
        run = Evaluated(self, lambda network: network._outputs(one))
        outputs = functional_call(
            run, {f"network.{name}": tensor for name, tensor in (at or {}).items()}, ()
        ).detach()
        if outputs.ndim:
            return outputs
        return outputs[None]

    def train(self, mode: bool = True) -> Rows:
        """Set the mode of the network too, which is not a module of this one."""
        self._inside[0].training = mode
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rows:
        super()._apply(fn, recurse)
        self.given = [one.mapped(fn) for one in self.given]
        return self


def _axes_of(tensor: Tensor, size: int) -> list[int | None]:
    """Return the axes of a tensor that may run over samples, the likeliest first; None: the tensor has no such axis."""
    axes = [axis for axis, length in enumerate(tensor.shape) if length == size]
    if 0 in axes:
        return [0, None, *axes[1:]]
    return [None, *axes]


def _off(far: float, size: float) -> float:
    if size:
        return far / size
    return far


def far(first: Tensor, other: Tensor) -> float:
    """Return the largest difference of two tensors, where nan equals nan; inf if their shapes differ."""
    if first.shape != other.shape:
        return inf
    off = torch.where(
        first.isnan() & other.isnan() | (first == other), 0.0, (first - other).abs()
    )
    if off.numel():
        return float(off.max())
    return 0.0
