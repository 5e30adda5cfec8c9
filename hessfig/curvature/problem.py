"""Objectives: a network, its batches and its loss, and the part of the network that depends on given weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Generator, Tensor, nn
from torch.func import functional_call

from hessfig.curvature.losses import output_gradient
from hessfig.curvature.rounding import OUTPUTS, deviation
from hessfig.errors import UserError
from hessfig.rng import in_turn, row_major
from hessfig.terms import Group, Part
from hessfig.weights import Layout, Weight


@runtime_checkable
class Layered(Protocol):
    """A network that can be evaluated from any layer on; other networks are evaluated whole."""

    def hidden(self, inputs: Tensor, depth: int) -> Tensor:
        """Return the activations after `depth` layers (0: the embeddings), (batch, length, width)."""

    def from_hidden(self, hidden: Tensor, depth: int, scored: slice) -> Tensor:
        """Return the outputs at the scored positions, given the activations after `depth` layers."""


def real_parameters(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the floating-point parameters of a network, each under its first name."""
    named = network.named_parameters()
    return {name: one for name, one in named if one.is_floating_point()}


def named_tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers of a network, each under all of its names."""
    return {
        **dict(network.named_parameters(remove_duplicate=False)),
        **dict(network.named_buffers(remove_duplicate=False)),
    }


def is_built_in(network: nn.Module) -> bool:
    """Whether this package draws the weights of the network; others are stored or are a user's own."""
    return isinstance(network, Layered)


def scored_outputs(
    network: nn.Module, inputs: Tensor, scored: slice, *, everywhere: bool = False
) -> Tensor:
    """Return the outputs that enter the loss: those at the scored positions, or all outputs of an unlayered network.

    The last layer is evaluated at the scored positions only: there the output at a
    position needs keys and values of all positions, but only its own query. With
    `everywhere` it is evaluated at all positions, as the network itself does.

    Returns
    -------
    tensor
        (batch, scored, width) for a layered network.
    """
    if not isinstance(network, Layered):
        return network(inputs)
    start = network.hidden(inputs, 0)
    if everywhere:
        return network.from_hidden(start, 0, slice(None))[:, scored]
    return network.from_hidden(start, 0, scored)


def evaluating(network: nn.Module) -> AbstractContextManager[Any]:
    """Return the gradient mode for evaluating a network whose outputs the caller detaches.

    Networks of users record gradients: they may differentiate inside `forward` (forces,
    residuals of differential equations).
    """
    return torch.set_grad_enabled(not isinstance(network, Layered))


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    """Register the forward hook `hook` (module, inputs, output) on all modules; it may replace the output."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def standard_error(samples: Float[Tensor, " count"]) -> float:
    """Return the standard error of the mean of the samples, std / sqrt(count); nan for a single sample.

    The standard deviation has the divisor count - 1, so that its square is unbiased.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.problem import standard_error
    >>> round(standard_error(torch.tensor([1.0, 1.0, 5.0, 5.0])), 4)
    1.1547
    """
    if len(samples) < 2:
        return float("nan")
    return deviation(samples) / len(samples) ** 0.5


def rademacher(
    dim: int, num_probes: int, *, generator: Generator, dtype: torch.dtype
) -> Shaped[Tensor, "dim num_probes"]:
    r"""Return probes with independent entries +1 and -1, so that E v v^T = I.

    For such a v and a square A with the symmetric part S = (A + A^T) / 2,

    .. math:: E[v^\top A v] = \mathrm{tr} A, \qquad
              \mathrm{Var}[v^\top A v] = 2 \sum_{i \ne j} S_{ij}^2.

    The diagonal has no part in the variance, since v_i^2 = 1; Gaussian probes, with the
    variance 2 |S|_F^2, do not have this. The first probes do not depend on `num_probes`.
    Probes are drawn on the CPU, so that they are equal on every device. Those of type
    int8 take one byte per entry; cast a few of them at a time.

    References
    ----------
    M. F. Hutchinson (1989), A stochastic estimator of the trace of the influence matrix
    for Laplacian smoothing splines, Communications in Statistics 18.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature import rademacher
    >>> probes = rademacher(6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> tuple(probes.shape), bool((probes.abs() == 1).all())
    ((6, 2), True)
    """
    probes = torch.empty(num_probes, dim, dtype=dtype, device="cpu")
    for probe in probes:
        # The stream is the same, however it is cut.
        for piece in probe.split(_DRAWN_AT_ONCE):
            bits = torch.randint(
                0, 2, (len(piece),), dtype=torch.int8, generator=generator, device="cpu"
            )
            piece.copy_(bits.mul_(2).sub_(1))
    return probes.T


_DRAWN_AT_ONCE = 2**20
# Entries of a vector from which on recurrences of products in float32 are in float32.
LONG = 2**16


def recurrence_like(
    network: nn.Module, dtype: torch.dtype, dim: int
) -> Float[Tensor, " 0"]:
    """Return an empty tensor of the type and on the device of the vectors of a recurrence, such as Lanczos.

    They are on the device of the network, in float64. With products in float32, vectors
    of at least LONG entries are float32: the products have no more digits, and a basis of
    long vectors is what takes the memory. But those of networks of this package on the
    CPU stay float64, since recorded numbers depend on it.
    """
    device = next(network.parameters()).device
    is_recorded = is_built_in(network) and device.type == "cpu"
    is_single = dtype == torch.float32 and dim >= LONG and not is_recorded
    own_dtype = torch.float32 if is_single else torch.float64
    return torch.empty(0, dtype=own_dtype, device=device)


# Sequences on which a network is compared with the engine that reimplements it.
SEQUENCES = 2


class OtherNetwork(ArithmeticError):
    """The outputs of the network differ from those of the engine that reimplements it."""


def check_same(objective: Objective, outputs: Tensor, engine: str) -> None:
    r"""Compare `outputs` (batch, scored, width) with those of the network for the first SEQUENCES sequences.

    With the network's outputs f and the engine's f', and t = rounding.OUTPUTS,

    .. math:: \max_i |f_i - f'_i| \le t \max_i |f_i|.

    Entries that are not finite are ignored.

    Raises
    ------
    OtherNetwork
        If the difference exceeds rounding: the network has another forward pass than the
        one that the engine differentiates.
    """
    network = objective.layered
    inputs = objective.batch.inputs[:SEQUENCES]
    with torch.no_grad():
        hidden = network.hidden(inputs, 0)
        expected = network.from_hidden(hidden, 0, objective.batch.scored)
    other = outputs[: len(expected)].reshape(expected.shape).to(expected)
    finite = expected.isfinite() & other.isfinite()
    if not finite.any():
        return
    off = float((expected - other).abs()[finite].max())
    scale = float(expected.abs()[finite].max())
    if off > OUTPUTS.of(expected.dtype) * scale:
        raise OtherNetwork(
            f"the network's outputs differ from those of the {engine} by {off / scale:.2g}: its forward pass is not "
            "the one the engine knows; estimator=hutchinson estimator.products=curvlinops differentiates it as it is"
        )


Data = list[tuple[Tensor, Tensor]]
Scalar = Callable[[Tensor], Tensor]


def cast(tensor: Tensor, real: torch.dtype) -> Tensor:
    """Return a copy of a tensor in type `real`; complex tensors take the complex type of that precision.

    Tensors of whole numbers and truth values keep their type.
    """
    dtype = tensor.dtype
    if tensor.is_complex():
        dtype = real.to_complex()
    elif tensor.is_floating_point():
        dtype = real
    return tensor.detach().to(dtype, copy=True)


@dataclass(frozen=True)
class Batch:
    """A batch of samples: inputs of the network and targets of the loss.

    Inputs and targets are stored in row-major order.

    Attributes
    ----------
    inputs : tensor, (batch, ...)
        Tokens (batch, length), Gaussian rows (batch, length, d_model), images, or any
        other tensor the network takes.
    targets : tensor
        Second argument of the loss.
    scored : slice
        The positions whose outputs enter the loss (images have one position, whose
        output is the class).
    weight : float, optional
        Divisor of the mean over this batch, if it is not proportional to the number of
        samples (losses.batch_weights).

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature import Batch
    >>> batch = Batch(torch.ones(4, 3), torch.zeros(4, dtype=torch.long), slice(None))
    >>> batch.size, batch.cast(torch.float64).inputs.dtype
    (4.0, torch.float64)
    """

    inputs: Tensor
    targets: Tensor
    scored: slice
    weight: float | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            object.__setattr__(self, name, row_major(getattr(self, name)))

    @property
    def size(self) -> float:
        """The weight of this batch in a mean over several batches: `weight`, or the number of samples."""
        if self.weight is None:
            return float(len(self.inputs))
        return self.weight

    def samples(self, rows: slice | Tensor) -> Batch:
        """Return the batch that consists of the samples `rows`."""
        return Batch(self.inputs[rows], self.targets[rows], self.scored)

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on `device`."""
        return replace(
            self, inputs=self.inputs.to(device), targets=self.targets.to(device)
        )

    def cast(self, dtype: torch.dtype) -> Batch:
        """Return the same batch with floating-point tensors cast to `dtype`."""
        inputs = self.inputs
        targets = self.targets
        if inputs.is_floating_point():
            inputs = inputs.to(dtype)
        if targets.is_floating_point():
            targets = targets.to(dtype)
        return replace(self, inputs=inputs, targets=targets)

    @property
    def length(self) -> int:
        return self.inputs.shape[1]


@dataclass(frozen=True)
class Witness:
    """Result of comparing the problem that is measured with the user's own function.

    Attributes
    ----------
    measured : str
        What is measured: a copy of the network, or the network itself.
    off : dict
        The largest relative difference in the rows of a parameter, by the quantity that
        was compared.
    not_taken : str
        The reason, if nothing was compared.
    no_split : str
        The reason, if H cannot be split into H_o + H_f.
    refusal : UserError, optional
        The error to raise, if there are no products by double backward.
    has_gradient : bool
        Whether differences of gradients can be used instead.
    taken : dict
        What was taken where a user could have said otherwise: the weights of batches.
    constants : frozenset of str
        The parameters that autograd does not reach, such as those of a teacher under
        torch.no_grad().
    size : float
        Size of the terms of the loss (witness.Directions), since the loss may be zero;
        0 if nothing was compared.
    """

    measured: str
    off: Mapping[str, float] = field(default_factory=dict)
    not_taken: str = ""
    no_split: str = ""
    refusal: UserError | None = None
    has_gradient: bool = True
    taken: Mapping[str, Any] = field(default_factory=dict)
    constants: frozenset[str] = frozenset()
    size: float = 0.0

    def check_products(self, *, by_differences: bool) -> None:
        """Raise UserError if second derivatives cannot be computed in this way."""
        if self.refusal and not (by_differences and self.has_gradient):
            raise self.refusal

    @property
    def record(self) -> dict[str, Any]:
        """The comparison as a dictionary, for tables and manifests."""
        off = {name: float(f"{one:.2g}") for name, one in self.off.items()}
        record: dict[str, Any] = {"measured": self.measured, "off": off, **self.taken}
        if self.not_taken:
            record["not_taken"] = self.not_taken
        if self.no_split:
            record["no_split"] = self.no_split
        if self.refusal:
            record["refused"] = str(self.refusal)
        return record


class _Made(NamedTuple):
    """What an engine made, and the versions of all tensors of the network at that time."""

    versions: list[int]
    result: Any


@dataclass(frozen=True)
class Objective:
    r"""The loss L(w) = sum_k s_k l(f(w, x_k), y_k) of a network on batches k, at its weights.

    For a loss that is a mean the shares s_k sum to 1; for a sum each share is 1. Weight
    decay adds `decay` / 2 |w|^2 to the loss, and `decay` times the identity to H and
    H_f (see column.DecayedColumn). All that is measured are second derivatives of L, split
    at the outputs f,

    .. math:: H_o = \sum_k s_k J_k^\top B_k J_k, \qquad
              H_f = \sum_k s_k \sum_i \frac{\partial l}{\partial f_{k i}}
              \frac{\partial^2 f_{k i}}{\partial w^2}.

    Attributes
    ----------
    network, loss : torch.nn.Module
        f and l; l has an attribute `reduction`, "mean" or "sum".
    batch : Batch
        The first batch; further batches are in `more`.
    layout : hessfig.weights.Layout
        The weights by name.
    decay : float
        Weight decay.
    witness : Witness, optional
        For a network of a user: the comparison with the user's own function.
    memory : float, optional
        Bytes that the products of a large network of a user may take
        (large.memory.bound_of).
    made : dict
        What engines made and checked for this problem, for those that come later
        (`once`); a changed problem has none.

    Examples
    --------
    >>> import torch, hessfig
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1]))
    >>> objective = problem.objective("float64")
    >>> [weight.name for weight in objective.layout.weights], objective.shares
    (['weight', 'bias'], [1.0])
    """

    network: nn.Module
    batch: Batch
    loss: nn.Module
    layout: Layout
    more: tuple[Batch, ...] = ()
    decay: float = 0.0
    witness: Witness | None = None
    memory: float | None = None
    made: dict[str, _Made] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what `make` returned for the network as it is: anew if a tensor of it has changed in place since.

        torch counts the changes in place of every tensor (`_version`); a count that differs
        from that at the time of `make` marks the result as that of other weights.
        """
        tensors = (*self.network.parameters(), *self.network.buffers())
        versions = [tensor._version for tensor in tensors]
        if name not in self.made or self.made[name].versions != versions:
            self.made[name] = _Made(versions, make())
        return self.made[name].result

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    @property
    def layers(self) -> nn.ModuleList:
        """The layers of a layered network."""
        layers = self.network.layers
        assert isinstance(layers, nn.ModuleList)
        return layers

    @property
    def layered(self) -> Layered:
        """The network as one that can be evaluated from a layer on."""
        assert isinstance(self.network, Layered)
        return self.network

    @property
    def batches(self) -> tuple[Batch, ...]:
        """All batches."""
        return (self.batch, *self.more)

    @property
    def shares(self) -> list[float]:
        """The share of each batch in the loss: its size over the total size for a mean, 1 for a sum."""
        if not self.more or self.loss.reduction == "sum":
            return [1.0] * len(self.batches)
        total = sum(batch.size for batch in self.batches)
        return [batch.size / total for batch in self.batches]

    def to(self, device: torch.device) -> Objective:
        """Return the same problem on `device`; itself if it is there, with what engines made for it."""
        tensors = (*self.network.parameters(), *self.network.buffers())
        data = (one for batch in self.batches for one in (batch.inputs, batch.targets))
        if all(one.device == device for one in (*tensors, *data)):
            return self
        more = tuple(batch.to(device) for batch in self.more)
        return replace(
            self,
            network=self.network.to(device),
            batch=self.batch.to(device),
            more=more,
        )

    def on(self, device: torch.device) -> Objective:
        """Return the same problem on `device`; a network on another device is copied first, not moved."""
        if all(parameter.device == device for parameter in self.network.parameters()):
            return self.to(device)
        return replace(self, network=copy.deepcopy(self.network)).to(device)

    def cast(self, dtype: torch.dtype) -> Objective:
        """Return the same problem in another floating-point type, with a copy of the network and of its loss.

        Weights and data are rounded to the type, or keep their digits in a wider one.
        """
        if self.dtype == dtype:
            return self
        change = partial(cast, real=dtype)
        loss = self.loss
        if [*loss.parameters(), *loss.buffers()]:
            loss = copy.deepcopy(loss)._apply(change)
        return replace(
            self,
            network=copy.deepcopy(self.network)._apply(change),
            loss=loss,
            batch=self.batch.cast(dtype),
            more=tuple(batch.cast(dtype) for batch in self.more),
        )

    def weight(self, layer: int, name: str) -> nn.Parameter:
        """Return the parameter that is the weight `name` of `layer`."""
        (weight,) = self.layout.side(layer, name)
        assert weight.index is None
        return self.network.get_parameter(weight.parameter)

    def suffix(self, weights: Sequence[Weight]) -> Suffix:
        """Return the part of the network that depends on `weights`; its input is computed once."""
        return Suffix(self, self.depth(weights))

    def depth(self, weights: Sequence[Weight]) -> int | None:
        """Return the number of layers below all of `weights`; None if the network cannot be cut there.

        The activations after that many layers do not depend on the weights, so that they are
        evaluated once, and derivatives are taken through the layers above alone.
        """
        if not isinstance(self.network, Layered) or any(map(_is_embedding, weights)):
            return None
        layers = [weight.layer for weight in weights if weight.layer]
        return min(layers) - 1 if layers else len(self.layers)


# Rounding errors that two evaluations of a loss may differ by.
_ROUNDOFFS = 100
# Activations with their tangents and second derivatives, in copies.
_COPIES = 6


class Suffix(nn.Module):
    """The map from the residual stream after `depth` layers (None: from the inputs) to the scored outputs.

    With f = s(h), h the stream that does not depend on the weights, all derivatives of f
    in the weights are those of s at fixed h. What all products need is evaluated once:
    h, f, and the gradient dl/df that H_f holds fixed.

    Attributes
    ----------
    inputs, outputs, targets, gradient : tensor
        Of the first batch; the gradient is dl/df.
    every_output, every_target : list of tensors
        Of every batch.
    data : list of (inputs, targets)
        Of every batch.
    gradients : list of (inputs, gradient)
        Of every batch; gradients are multiplied by the share of the batch in the loss.
    shares : list of float
        The shares s_k of the batches (Objective).
    """

    @in_turn
    def __init__(self, objective: Objective, depth: int | None) -> None:
        super().__init__()
        self.network = objective.network
        self.depth = depth
        self.loss = objective.loss
        self.scored = objective.batch.scored
        batches = objective.batches
        self.shares = objective.shares
        self.every_target = [batch.targets for batch in batches]
        with evaluating(self.network):
            starts = [self._start(batch.inputs).detach() for batch in batches]
            outputs = [self(start).detach() for start in starts]
        self.inputs = starts[0]
        self.outputs = outputs[0]
        self.targets = objective.batch.targets
        self.every_output = outputs
        # Losses of the batches of a user's network, and the size of their terms.
        self._values = []
        self._size = 0.0
        if objective.witness:
            self._size = objective.witness.size
            for number, output in enumerate(outputs):
                self._values.append(float(self._value(number, output)))
        slopes = []
        for output, targets in zip(outputs, self.every_target, strict=True):
            slopes.append(output_gradient(self.loss, output, targets))
        self.gradient = slopes[0]
        self.data: Data = list(zip(starts, self.every_target, strict=True))
        self.gradients: Data = []
        for start, share, slope in zip(starts, self.shares, slopes, strict=True):
            self.gradients.append((start, share * slope))

    def terms(self, part: Part) -> list[tuple[Tensor, Scalar]]:
        r"""Return, for every batch, its inputs and the scalar function of the outputs whose Hessian is H or H_f.

        .. math:: H: \; f \mapsto s_k \, l(f, y_k), \qquad
                  H_f: \; f \mapsto \Bigl\langle s_k
                  \frac{\partial l}{\partial f}\Big|_{f_k}, f \Bigr\rangle.

        For H_o it is that of H, whose Hessian B in the outputs is pulled back, J^T B J. At the
        weights all these functions have the same gradient in w, J^T dl/df.
        """
        if part == Part.H_f:
            return [(start, partial(along, slope)) for start, slope in self.gradients]
        terms: list[tuple[Tensor, Scalar]] = []
        for (start, targets), share in zip(self.data, self.shares, strict=True):
            terms.append((start, partial(_loss, self.loss, share, targets)))
        return terms

    def check_held(self, number: int, outputs: Tensor) -> None:
        """Raise UserError if the loss of a batch has changed since this object was created, relative to its terms.

        A network of a user is copied, but its code and its loss may read variables that
        change elsewhere. Two evaluations of one function may differ by 100 eps of the size of
        its terms (`_ROUNDOFFS`); the value itself may be zero.
        """
        if not self._values:
            return
        was = self._values[number]
        now = float(self._value(number, outputs))
        size = max(abs(was), abs(now), self._size)
        if abs(now - was) > _ROUNDOFFS * torch.finfo(outputs.dtype).eps * size:
            raise UserError(
                "the function has changed since this operator was created: network or loss read other values",
                got=f"a loss of {now:.9g}, and {was:.9g} before",
                allowed="a network and a loss that give the same value at the same weights",
                remedy="make the operator again: problem.operator(...)",
            )

    def _value(self, number: int, outputs: Tensor) -> Tensor:
        """Return the loss of a batch."""
        with torch.no_grad():
            return self.loss(outputs, self.every_target[number])

    def at(self, parameters: dict[str, Tensor], start: Tensor) -> Tensor:
        """Return the outputs for `start` with the given values of parameters of the suffix, by name."""
        return functional_call(self, parameters, (start,))

    @property
    def bytes_per_probe(self) -> int:
        r"""Upper bound of the memory for the products of one probe: about six times all activations of the suffix.

        .. math:: 6 \, P \, b \sum_m d_m

        for P positions of the batch, b bytes per number, and the widths d_m of the outputs of
        all linear maps of the network: activations, their tangents, cotangents of both, and
        the derivatives of these (`_COPIES`).
        """
        activations = sum(map(_entries_per_position, self.network.modules()))
        positions = self.inputs.shape[:2].numel()
        width = self.outputs.element_size()
        return _COPIES * max(activations, 1) * positions * width

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs at the scored positions."""
        if not isinstance(self.network, Layered):
            return self.network(inputs)
        if self.depth is None:
            hidden = self.network.hidden(inputs, 0)
            return self.network.from_hidden(hidden, 0, self.scored)
        return self.network.from_hidden(inputs, self.depth, self.scored)

    def _start(self, inputs: Tensor) -> Tensor:
        """Return the input of the suffix."""
        if isinstance(self.network, Layered) and self.depth is not None:
            return self.network.hidden(inputs, self.depth)
        return inputs


def along(slope: Tensor, outputs: Tensor) -> Tensor:
    """Return <slope, outputs>, the loss linearised in the outputs; its Hessian is H_f."""
    return (outputs * slope).sum()


def _loss(loss: nn.Module, share: float, targets: Tensor, outputs: Tensor) -> Tensor:
    return share * loss(outputs, targets)


def _is_embedding(weight: Weight) -> bool:
    """Whether a weight acts before the first layer."""
    return weight.name in ("W_E", "W_pos") or Group.embeddings in weight.groups


def _entries_per_position(module: nn.Module) -> int:
    return module.out_features if isinstance(module, nn.Linear) else 0
