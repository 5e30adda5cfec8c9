"""Products by double backward, correct for every twice differentiable network, and checks of other products."""

import math
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any, Protocol, runtime_checkable

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from hessfig.curvature.problem import Scalar, Suffix
from hessfig.curvature.rounding import ROWS, SYMMETRY
from hessfig.errors import UserError, plain
from hessfig.rng import TURN, OfTheProcess, stream
from hessfig.terms import Part

_DIFFERENTIABLE_ONCE = "Error"  # the node that torch puts into the graph of the gradient of such a function


class DoubleBackward:
    """A part of the Hessian in given parameters of a suffix, with the interface of operators of curvlinops."""

    def __init__(
        self, suffix: Suffix, part: Part, parameters: Sequence[nn.Parameter]
    ) -> None:
        names = {parameter: name for name, parameter in suffix.named_parameters()}
        self._suffix = suffix
        self._terms = suffix.terms(part)
        self._is_outer = part == Part.H_o
        self._names = [names[parameter] for parameter in parameters]
        self._at = [
            parameter.detach().clone().requires_grad_() for parameter in parameters
        ]
        self._is_moved = False

    def moved(self, number: int) -> "DoubleBackward":
        """Return the part at weights times 1 + k eps, k of -3 to 3: its products differ as by rounding elsewhere."""
        other, generator = copy(self), stream(number, "last digits")
        other._at = [
            _moved(one.detach(), generator).requires_grad_() for one in self._at
        ]
        other._is_moved = True
        return other

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Return the products; columns and products are one tensor (*shape, k) per parameter."""
        with torch.enable_grad(), differentiable_twice():
            pieces = [
                self._of_batch(number, *term, columns)
                for number, term in enumerate(self._terms)
            ]
        return summed(pieces)

    def _of_batch(
        self, number: int, start: Tensor, scalar: Scalar, columns: Sequence[Tensor]
    ) -> list[Tensor]:
        outputs = self._suffix.at(dict(zip(self._names, self._at, strict=True)), start)
        if not self._is_moved:
            self._suffix.check_held(number, outputs)
        vectors = [
            [column[..., k] for column in columns] for k in range(columns[0].shape[-1])
        ]
        products = (self._outer if self._is_outer else self._whole)(
            outputs, scalar, vectors
        )
        return [
            torch.stack(of_parameter, dim=-1)
            for of_parameter in zip(*products, strict=True)
        ]

    def _whole(
        self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]
    ) -> list[list[Tensor]]:
        """Return the Hessian of scalar(outputs) times every vector, as the gradient of <gradient, v>."""
        slopes = of_second_order(
            gradients(scalar(outputs), self._at, create_graph=True)
        )
        return [gradients(inner(slopes, vector), self._at) for vector in vectors]

    def _outer(
        self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]
    ) -> list[list[Tensor]]:
        """Return J^T B J times every vector, with the Hessian B of the scalar in the outputs.

        J^T c is linear in c, so J v is the gradient of <J^T c, v> in c.
        """
        leaf = outputs.detach().requires_grad_()
        cotangent = torch.zeros_like(outputs).requires_grad_()
        (slope,) = gradients(scalar(leaf), [leaf], create_graph=True)
        pulled = of_second_order(
            gradients(outputs, self._at, cotangent, create_graph=True)
        )
        products = []
        for vector in vectors:
            (tangent,) = gradients(inner(pulled, vector), [cotangent])
            (curved,) = gradients(inner([slope], [tangent]), [leaf])
            products.append(gradients(outputs, self._at, curved))
        return products


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    digits = torch.randint(-3, 4, tensor.shape, generator=generator, device="cpu")
    return tensor * (1 + digits.to(tensor) * torch.finfo(tensor.dtype).eps)


def gradients(
    value: Tensor,
    at: Sequence[Tensor],
    along: Tensor | None = None,
    *,
    create_graph: bool = False,
) -> list[Tensor]:
    """Return the gradient of `value` (times `along`) in `at`, zero for independent tensors; graphs are kept.

    With `create_graph`, cotangents require gradients. Otherwise torch would silently
    treat the gradient of a function that is differentiable only once as constant.
    """
    if not value.requires_grad:
        return [torch.zeros_like(tensor) for tensor in at]
    if create_graph and along is None:
        along = torch.ones_like(value, requires_grad=True)
    return list(
        torch.autograd.grad(
            value,
            at,
            along,
            retain_graph=True,
            create_graph=create_graph,
            materialize_grads=True,
        )
    )


def of_second_order(slopes: list[Tensor]) -> list[Tensor]:
    """Return first derivatives; raise RuntimeError if their graph contains a function without second derivatives.

    torch.autograd.grad would silently return zero for the derivative of such a
    function.
    """
    if _DIFFERENTIABLE_ONCE in steps_of(slopes):
        raise RuntimeError(
            "a function in the network or the loss is marked as differentiable once"
        )
    return slopes


def steps_of(tensors: Iterable[Tensor]) -> Iterator[str]:
    """Yield the name of every operation in the graph of the tensors, without its namespace."""
    return (node.name().rpartition("::")[2] for node in _nodes_of(tensors))


def functions_of(tensors: Iterable[Tensor]) -> set[str]:
    """Return the names of the functions in the graph of the tensors whose derivatives are written in Python.

    They are torch.autograd.Functions of users and higher-order operators of torch, such
    as torch.cond.
    """
    written = (
        node for node in _nodes_of(tensors) if isinstance(node, BackwardCFunction)
    )
    return {type(node).__name__.removesuffix("Backward") for node in written}


def narrowest_type(value: Tensor) -> torch.dtype:
    """Return the floating-point type with the fewest digits in the graph of a tensor.

    Models of transformers may evaluate a softmax or a norm in float32, whatever the
    type of their parameters.
    """
    inside = (one.dtype for node in _nodes_of([value]) for one in node._input_metadata)
    return max(
        (one for one in (value.dtype, *inside) if one.is_floating_point),
        key=lambda one: torch.finfo(one).eps,
    )


def _nodes_of(tensors: Iterable[Tensor]) -> Iterator[Any]:
    seen, ahead = set(), [one.grad_fn for one in tensors]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        yield node
        seen.add(node)
        ahead += [further for further, _ in node.next_functions]


def summed(pieces: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Return the sum of lists of tensors, one list per batch and one tensor per parameter."""
    return [
        torch.stack(of_parameter).sum(dim=0)
        if len(of_parameter) > 1
        else of_parameter[0]
        for of_parameter in zip(*pieces, strict=True)
    ]


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Return the inner product of two lists of tensors."""
    return torch.stack(
        [(one * other).sum() for one, other in zip(left, right, strict=True)]
    ).sum()


_KERNELS = ("flash", "mem_efficient", "cudnn", "math")  # of attention


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Select plain attention, like torch.nn.attention.sdpa_kernel, but so that another thread may leave the context.

    On CUDA, cuDNN is switched off, because its LSTM and GRU have no second derivative.
    """
    place, fast_path = torch.backends.cuda, torch.backends.mha.get_fastpath_enabled()
    cudnn, was_enabled = torch.backends.cudnn, torch.backends.cudnn.enabled
    before = {kernel: getattr(place, f"{kernel}_sdp_enabled")() for kernel in _KERNELS}
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        cudnn.enabled = was_enabled and not torch.cuda.is_available()
        for kernel in _KERNELS:
            getattr(place, f"enable_{kernel}_sdp")(kernel == "math")
        with _uncompiled(), _held_activations():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        cudnn.enabled = was_enabled
        for kernel, was in before.items():
            getattr(place, f"enable_{kernel}_sdp")(was)


@contextmanager
def _held_activations() -> Iterator[None]:
    """Keep the activations of checkpoints, which would otherwise be recomputed with the weights of the network.

    Derivatives may be taken at other weights, in copies of the parameters.
    """
    hook = torch.utils.checkpoint._checkpoint_hook
    torch.utils.checkpoint._checkpoint_hook = nullcontext  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        torch.utils.checkpoint._checkpoint_hook = hook  # type: ignore[misc]


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply float32 in full precision: a training may have enabled TF32 or bfloat16, and cuDNN's default is TF32."""
    backends: Any = torch.backends
    settings = [backends.cuda.matmul, backends.mkldnn.matmul]
    if torch.cuda.is_available():
        settings += [backends.cudnn.conv, backends.cudnn.rnn]
    before, whole = [one.fp32_precision for one in settings], backends.fp32_precision
    if not {*before} & {"tf32", "bf16"}:
        yield
        return
    word = _precision()
    _set_precision(word and "highest", dict.fromkeys(settings, "ieee"))
    try:
        yield
    finally:
        _set_precision(
            word,
            {
                one: "none" if was == whole else was
                for one, was in zip(settings, before, strict=True)
            },
        )


def is_narrow() -> bool:
    """Whether float32 is multiplied in fewer digits on the CPU."""
    backends: Any = torch.backends
    return backends.mkldnn.matmul.fp32_precision in ("tf32", "bf16")


def _precision() -> str:
    """Return the precision by the older interface of torch; "" if settings of the newer interface differ from it."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""


def _set_precision(word: str, each: Mapping[Any, str]) -> None:
    if word:
        torch.set_float32_matmul_precision(word)
    for setting, value in each.items():
        setting.fp32_precision = value


_PLAIN_ATTENTION = OfTheProcess(_plain_attention)


def differentiable_twice() -> AbstractContextManager[None]:
    """Use attention kernels that have second derivatives; the fused kernels have none."""
    return _PLAIN_ATTENTION


@contextmanager
def _uncompiled() -> Iterator[None]:
    """Run compiled functions in Python; does nothing unless the compiler of torch has been imported."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with _COMPILED_OPERATORS, torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def _compiled_operators() -> Iterator[None]:
    """Let higher-order operators (torch.cond, scan) compile what they are given, as they do by default.

    They find the parameters that it reads in this way. Run in Python, they would hold
    these parameters constant.
    """
    import torch._higher_order_ops.utils as operators

    # What every such operator enters before it compiles.
    own = operators._set_compilation_env

    @contextmanager
    def compiling() -> Iterator[None]:
        with torch.compiler.set_stance("default"), own():
            yield

    operators._set_compilation_env = compiling
    try:
        yield
    finally:
        operators._set_compilation_env = own


_COMPILED_OPERATORS = OfTheProcess(_compiled_operators)


@contextmanager
def differentiating() -> Iterator[None]:
    """Record gradients in full precision, whatever modes are active; threads take turns."""
    off = (torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda"))
    with (
        TURN,
        torch.inference_mode(False),
        next(off),
        next(off),
        torch.enable_grad(),
        _full_precision(),
        _uncompiled(),
    ):
        yield


Tensors = Sequence[Tensor]


@runtime_checkable
class TensorsOperator(Protocol):
    """A symmetric operator on lists of tensors (*shape, k), one per parameter."""

    def __matmul__(self, columns: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the products."""


def verified_or_fallback(
    fast: TensorsOperator,
    reliable: TensorsOperator,
    other_part: TensorsOperator,
    parameters: Mapping[str, nn.Parameter],
    name: str,
) -> TensorsOperator:
    """Return `fast` if `fault` finds no error in it, else `reliable` with a warning.

    Raises UserError if `reliable` cannot multiply, and ArithmeticError if the remaining
    operator is not symmetric.
    """
    why = fault(fast, reliable, other_part, parameters)
    if not why:
        return fast
    message = f"{name}: {plain(why)}; plain double backward is used instead"
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    vectors = _vectors(parameters)
    if _asymmetry(vectors, reliable @ vectors, other_part @ vectors) > SYMMETRY.of(
        vectors[0].dtype
    ):
        raise ArithmeticError(
            f"the products of {name} are not those of a symmetric operator: u.Av differs from v.Au"
        )
    return reliable


def fault(
    fast: TensorsOperator,
    reliable: TensorsOperator,
    other_part: TensorsOperator,
    parameters: Mapping[str, nn.Parameter],
    *,
    engine: str = "curvlinops",
    computed_in: torch.dtype | None = None,
) -> str:
    """Return a description of the error of `fast`; "" if it is symmetric and agrees with `reliable` by parameter.

    Both multiply a random and a constant vector. It is also an error if `fast` cannot
    multiply (an operation without a derivative in forward mode, or without support by
    vmap). Differences that are small compared with the products of `other_part` of the
    Hessian count as rounding, and so do those of the type `computed_in` (by default
    that of the parameters), and those that last digits of the weights make in
    `reliable` (a part that is zero up to rounding). `engine` is the name of `fast` in
    the description. Raises UserError if `reliable` cannot multiply.
    """
    vectors = _vectors(parameters)
    bound = ROWS.of(computed_in or vectors[0].dtype)
    whose = f"{engine}'" if engine.endswith("s") else f"{engine}'s"
    truth = _multiplied(reliable, vectors)
    images = _attempted(fast, vectors)
    if isinstance(images, Exception):
        return f"{engine} cannot differentiate this network ({type(images).__name__}: {images})"
    pairs = [
        [_of_vector(k, some, parameters) for some in (images, truth)] for k in range(2)
    ]
    beside = [one[..., 0] for one in truth]
    is_right = all(worst(mine, own, beside)[1] <= bound for mine, own in pairs)
    is_right = is_right and _asymmetry(vectors, images, truth) <= SYMMETRY.of(
        vectors[0].dtype
    )
    others = truth
    if other_part is not reliable and not is_right:
        # These can only make relative differences smaller.
        others = other_part @ vectors
    for mine, own in pairs:
        at, off = worst(mine, own, [*beside, *(one[..., 0] for one in others)])
        if off > bound:
            is_rounding = isinstance(reliable, DoubleBackward) and _is_rounding(
                reliable, vectors, truth, images
            )
            return (
                ""
                if is_rounding
                else f"{whose} product is off by {100 * off:.2g} % here, in the rows of {at}"
            )
    asymmetry = _asymmetry(vectors, images, others)
    is_right = not asymmetry > SYMMETRY.of(vectors[0].dtype)
    return (
        ""
        if is_right
        else f"{whose} products are not symmetric here: off by {asymmetry:.1%}"
    )


def _of_vector(
    number: int, products: Tensors, names: Iterable[str]
) -> dict[str, Tensor]:
    """Return the products of one of the vectors by parameter."""
    return dict(zip(names, (one[..., number] for one in products), strict=True))


_ROUNDINGS = (
    32.0  # two orders of the same sums differ by a few roundings of one of them
)


def _is_rounding(
    reliable: DoubleBackward, vectors: Tensors, truth: Tensors, images: Tensors
) -> bool:
    """Whether |fast - truth| is at most 32 times what last digits of the weights change in `truth`, by parameter.

    Where both products are rounding as a whole, so are the rows of a parameter that
    these digits do not change.
    """
    if not all(bool(one.isfinite().all()) for one in images):
        return False
    changes = [
        [a - b for a, b in zip(reliable.moved(n) @ vectors, truth, strict=True)]
        for n in range(2)
    ]
    if max(length(truth), length(images)) <= _ROUNDINGS * max(
        length(one) for one in changes
    ):
        return True
    return all(
        length([mine - own]) <= _ROUNDINGS * max(length([one[k]]) for one in changes)
        for k, (mine, own) in enumerate(zip(images, truth, strict=True))
    )


def _multiplied(reliable: TensorsOperator, vector: Tensors) -> Tensors:
    try:
        return reliable @ vector
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise no_derivative(
            error, "the network or its loss cannot be differentiated twice"
        ) from error


def no_derivative(error: Exception, what: str) -> UserError:
    """Return the error for functions that torch cannot differentiate, with a remedy."""
    remedy = "write the operation in elementary ones, choose no attention kernel in forward(); or take differences of "
    remedy += 'gradients: products="differences" with parts="H" (estimator.products=differences parts=[H])'
    if "use_reentrant" in str(error):
        remedy = "checkpoint(..., use_reentrant=False), in transformers gradient_checkpointing_kwargs"
    if "a second time" in str(error):
        remedy = (
            "create_graph=True in a torch.autograd.grad or backward inside the function"
        )
    return UserError(
        what,
        got=plain(f"{type(error).__name__}: {error}", most=300),
        allowed="operations with second derivatives",
        remedy=remedy,
    )


def _attempted(fast: TensorsOperator, vectors: Tensors) -> Tensors | Exception:
    """Return the products, or the exception: `reliable` has multiplied, so the network itself does not fail."""
    try:
        return fast @ vectors
    except Exception as error:
        return error


def _vectors(parameters: Mapping[str, nn.Parameter]) -> list[Tensor]:
    """Return a random and a constant vector, (*shape, 2) for each parameter."""
    # The name of the stream is part of the numbers.
    generator = stream(0, "belief", "u")
    vectors = []
    for parameter in parameters.values():
        draw = torch.randn(
            parameter.shape, dtype=torch.float64, generator=generator, device="cpu"
        ).to(parameter)
        vectors.append(torch.stack([draw, torch.ones_like(draw)], dim=-1))
    return vectors


def _asymmetry(vectors: Tensors, images: Tensors, others: Tensors) -> float:
    """Return |u.Av - v.Au| relative to the longest product; products that are not finite are not checked."""
    (u, v), (au, av) = (
        ([one[..., k] for one in some] for k in range(2)) for some in (vectors, images)
    )
    size = max(length(au), length(av), FLOOR * length(others))
    difference = abs(_dot(v, au) - _dot(u, av))
    return difference / size if size and difference == difference else 0.0


def _dot(left: Tensors, right: Tensors) -> float:
    return sum(
        float((a.double() * b.double()).sum()) for a, b in zip(left, right, strict=True)
    )


_SAFE = 1e-140  # squares of norms between this number and its inverse neither under- nor overflow
FLOOR = 1e-2  # relative to the norm that rows of a parameter would have if all entries of a derivative were equal


def worst(
    first: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    beside: Sequence[Tensor] = (),
) -> tuple[str, float]:
    """Return the parameter with the largest difference, and this difference (see `differing`)."""
    return max(
        differing(first, other, beside).items(),
        key=lambda pair: pair[1],
        default=("", 0.0),
    )


def differing(
    first: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    beside: Sequence[Tensor] = (),
) -> dict[str, float]:
    """Return the difference of each parameter's rows, relative to the larger of the two norms.

    Rows that are small, even compared with an equal share of the whole or of the
    derivatives `beside` it, are compared with FLOOR times that share, the size of
    rounding.
    """
    sizes = {name: (length([first[name]]), length([other[name]])) for name in first}
    whole = max(
        *(math.hypot(*(pair[k] for pair in sizes.values())) for k in range(2)),
        length(beside),
    )
    count = sum(piece.numel() for piece in first.values()) or 1
    floors = {
        name: FLOOR * whole * (piece.numel() / count) ** 0.5
        for name, piece in first.items()
    }
    return {
        name: _off(first[name], other[name], max(*pair, floors[name]))
        for name, pair in sizes.items()
    }


def _off(first: Tensor, other: Tensor, size: float) -> float:
    """Return |a - b| / size; entries that are not finite in both are left out."""
    difference = first.double() - other.double().to(first.device)
    if not bool(difference.isfinite().all()):
        same = first.isfinite() & other.isfinite()
        if not torch.equal(first.isfinite(), other.isfinite()):
            return float("inf")
        difference = difference[same]
    return length([difference]) / size if size else 0.0


def length(tensors: Iterable[Tensor]) -> float:
    """Return the norm of all finite entries, without under- or overflow."""
    parts = [tensor.detach() for tensor in tensors if tensor.numel()]
    norms = [
        torch.linalg.vector_norm(part, dtype=torch.float64).cpu() for part in parts
    ]
    plain_norm = float(torch.stack(norms).norm()) if parts else 0.0
    if _SAFE < plain_norm < 1 / _SAFE:
        return plain_norm
    kept = [part.double()[part.isfinite()] for part in parts]
    largest = max(
        (float(part.abs().max()) for part in kept if part.numel()), default=0.0
    )
    return (
        largest * sum(float((part / largest).square().sum()) for part in kept) ** 0.5
        if largest
        else 0.0
    )
