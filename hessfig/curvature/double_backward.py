"""Products by double backward, correct for every twice differentiable network, and checks of other products.

H v is the gradient of <g, v> with the gradient g of the loss (Pearlmutter, 1994). Only
reverse mode is used. Faster products, with forward mode or vmap, are wrong for some
networks (docs/accuracy.md), so that they are compared with these ones before use.
"""

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

# The node that torch puts into the graph of the gradient of a function that is
# differentiable only once.
_DIFFERENTIABLE_ONCE = "Error"


class DoubleBackward:
    r"""A part of the Hessian in given parameters of a suffix, with the interface of operators of curvlinops.

    With a scalar function s_b of the outputs f of each batch b (Suffix.terms) and the
    weights w of the parameters,

    .. math:: H v = \sum_b \frac{\partial}{\partial w} \left\langle
              \frac{\partial s_b(f_b(w))}{\partial w}, v \right\rangle, \qquad
              H_o v = \sum_b J_b^\top B_b J_b v.

    For H_f, s_b is the loss linearised in the outputs, whose Hessian in w is
    sum_i (dl/df_i) d^2 f_i / dw^2 (eq. 2). Graphs are created anew for every call and
    held for one batch at a time. For k vectors a batch takes a forward pass, a backward
    pass with a graph, and k backward passes through that graph for H and H_f, 3 k for H_o.

    References
    ----------
    B. A. Pearlmutter (1994), Fast exact multiplication by the Hessian, Neural Computation
    6. N. N. Schraudolph (2002), Fast curvature matrix-vector products for second-order
    gradient descent, Neural Computation 14, for J^T B J v.

    Examples
    --------
    The loss is the mean of w_1^2 and w_2^2, and H the identity.

    >>> import torch, hessfig
    >>> from hessfig.curvature.double_backward import DoubleBackward
    >>> from hessfig.terms import Part
    >>> network = torch.nn.Linear(1, 2, bias=False)
    >>> problem = hessfig.Problem(network, torch.ones(1, 1), torch.zeros(1, 2), "mse")
    >>> objective = problem.objective("float64")
    >>> suffix = objective.suffix(objective.layout.weights)
    >>> operator = DoubleBackward(suffix, Part.H, [objective.network.get_parameter("weight")])
    >>> (product,) = operator @ [torch.tensor([[[3.0]], [[4.0]]]).double()]
    >>> product.flatten().tolist()
    [3.0, 4.0]
    """

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
        r"""Return the part at weights times 1 + k eps, k of -3 to 3: its products differ as by rounding elsewhere.

        To first order, the product at the moved weights w + d, d_i = k_i eps w_i, is

        .. math:: A(w + d) v = A(w) v + \sum_i \frac{\partial A(w)}{\partial w_i} v \, d_i.

        The second term is what last digits of the weights change. A computation may be off by
        as much if its result is exact for weights that are rounded to neighbouring numbers.
        """
        other = copy(self)
        other._at = []
        generator = stream(number, "last digits")
        for leaf in self._at:
            other._at.append(_moved(leaf.detach(), generator).requires_grad_())
        other._is_moved = True
        return other

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Return the products; columns and products are one tensor (*shape, k) per parameter."""
        pieces = []
        with torch.enable_grad(), differentiable_twice():
            for number, (start, scalar) in enumerate(self._terms):
                pieces.append(self._of_batch(number, start, scalar, columns))
        return summed(pieces)

    def _of_batch(
        self, number: int, start: Tensor, scalar: Scalar, columns: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the products of one batch."""
        outputs = self._suffix.at(dict(zip(self._names, self._at, strict=True)), start)
        if not self._is_moved:
            self._suffix.check_held(number, outputs)
        vectors = []
        for k in range(columns[0].shape[-1]):
            vectors.append([column[..., k] for column in columns])
        multiply = self._outer if self._is_outer else self._whole
        products = multiply(outputs, scalar, vectors)
        return [
            torch.stack(of_parameter, dim=-1)
            for of_parameter in zip(*products, strict=True)
        ]

    def _whole(
        self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]
    ) -> list[list[Tensor]]:
        """Return the Hessian of scalar(outputs) times every vector, as the gradient of <gradient, v>.

        By linearity of the gradient, d/dw <g(w), v> = (dg/dw)^T v = H v for a constant v. One
        graph of g serves all vectors.
        """
        slopes = gradients(scalar(outputs), self._at, create_graph=True)
        slopes = of_second_order(slopes)
        return [gradients(inner(slopes, vector), self._at) for vector in vectors]

    def _outer(
        self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]
    ) -> list[list[Tensor]]:
        r"""Return J^T B J times every vector, with the Hessian B of the scalar in the outputs.

        Three backward passes for each v. With G(c) = J^T c, which is linear in the cotangent c,
        and the slope s(f) of the scalar in the outputs,

        .. math:: J v = \frac{\partial}{\partial c} \langle G(c), v \rangle, \qquad
                  B J v = \frac{\partial}{\partial f} \langle s(f), J v \rangle, \qquad
                  H_o v = G(B J v).

        Any c serves for the first one, since the derivative of a linear map is the same
        everywhere: it is taken at zero. Second derivatives of the outputs are never formed, and
        forward mode is not needed.
        """
        leaf = outputs.detach().requires_grad_()
        (slope,) = gradients(scalar(leaf), [leaf], create_graph=True)
        cotangent = torch.zeros_like(outputs).requires_grad_()
        pulled = gradients(outputs, self._at, cotangent, create_graph=True)
        pulled = of_second_order(pulled)
        products = []
        for vector in vectors:
            (tangent,) = gradients(inner(pulled, vector), [cotangent])
            (curved,) = gradients(inner([slope], [tangent]), [leaf])
            products.append(gradients(outputs, self._at, curved))
        return products


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return the entries times 1 + k eps, k uniform in -3 to 3."""
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

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.double_backward import gradients
    >>> x, y = torch.tensor([1.0, 2.0], requires_grad=True), torch.ones(1, requires_grad=True)
    >>> gradients((x**3).sum(), [x, y])
    [tensor([ 3., 12.]), tensor([0.])]
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
    names = set()
    for node in _nodes_of(tensors):
        if isinstance(node, BackwardCFunction):
            names.add(type(node).__name__.removesuffix("Backward"))
    return names


def narrowest_type(value: Tensor) -> torch.dtype:
    """Return the floating-point type with the fewest digits in the graph of a tensor.

    Models of transformers may evaluate a softmax or a norm in float32, whatever the
    type of their parameters; the rounding of their products is that of float32.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.double_backward import narrowest_type
    >>> x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    >>> narrowest_type(x.float().exp().double().sum()), narrowest_type(x.exp().sum())
    (torch.float32, torch.float64)
    """
    types = [value.dtype]
    for node in _nodes_of([value]):
        types += [one.dtype for one in node._input_metadata]
    types = [dtype for dtype in types if dtype.is_floating_point]
    return max(types, key=lambda dtype: torch.finfo(dtype).eps)


def _nodes_of(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """Yield every node of the graph of the tensors, once."""
    seen = set()
    ahead = [tensor.grad_fn for tensor in tensors]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        yield node
        seen.add(node)
        ahead += [further for further, _ in node.next_functions]


def summed(pieces: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Return the sum of lists of tensors, one list per batch and one tensor per parameter."""
    sums = []
    for of_parameter in zip(*pieces, strict=True):
        if len(of_parameter) > 1:
            sums.append(torch.stack(of_parameter).sum(dim=0))
        else:
            sums.append(of_parameter[0])
    return sums


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Return the inner product of two lists of tensors."""
    sums = [(one * other).sum() for one, other in zip(left, right, strict=True)]
    return torch.stack(sums).sum()


_KERNELS = ("flash", "mem_efficient", "cudnn", "math")  # of attention


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Select plain attention, like torch.nn.attention.sdpa_kernel, but so that another thread may leave the context.

    On CUDA, cuDNN is switched off, because its LSTM and GRU have no second derivative.
    """
    cuda = torch.backends.cuda
    cudnn = torch.backends.cudnn
    mha = torch.backends.mha
    fast_path = mha.get_fastpath_enabled()
    was_enabled = cudnn.enabled
    before = {kernel: getattr(cuda, f"{kernel}_sdp_enabled")() for kernel in _KERNELS}
    try:
        mha.set_fastpath_enabled(False)
        cudnn.enabled = was_enabled and not torch.cuda.is_available()
        for kernel in _KERNELS:
            getattr(cuda, f"enable_{kernel}_sdp")(kernel == "math")
        with _uncompiled(), _held_activations():
            yield
    finally:
        mha.set_fastpath_enabled(fast_path)
        cudnn.enabled = was_enabled
        for kernel, was in before.items():
            getattr(cuda, f"enable_{kernel}_sdp")(was)


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
    before = {setting: setting.fp32_precision for setting in settings}
    if not {*before.values()} & {"tf32", "bf16"}:
        yield
        return
    # A setting that follows the one of all backends is restored to follow it.
    for setting, was in before.items():
        if was == backends.fp32_precision:
            before[setting] = "none"
    word = _precision()
    _set_precision(word and "highest", dict.fromkeys(settings, "ieee"))
    try:
        yield
    finally:
        _set_precision(word, before)


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
    before = operators._set_compilation_env

    @contextmanager
    def compiling() -> Iterator[None]:
        with torch.compiler.set_stance("default"), before():
            yield

    operators._set_compilation_env = compiling
    try:
        yield
    finally:
        operators._set_compilation_env = before


_COMPILED_OPERATORS = OfTheProcess(_compiled_operators)


@contextmanager
def differentiating() -> Iterator[None]:
    """Record gradients in full precision, whatever modes are active; threads take turns."""
    with (
        TURN,
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
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

    Parameters
    ----------
    fast, reliable, other_part : operators on lists of tensors
        The operator that is wanted; plain double backward of the same part; and a part
        beside which a product that vanishes is judged (for H_f: H_o).
    parameters : dict
        The parameters by path, in the order of the tensors.
    name : str
        The name of the part in messages.

    Raises
    ------
    UserError
        If `reliable` cannot multiply.
    ArithmeticError
        If `reliable` takes the place of `fast` and is not symmetric: u^T A v and v^T A u
        differ by more than rounding.SYMMETRY of the longer product.
    """
    why = fault(fast, reliable, other_part, parameters)
    if not why:
        return fast
    message = f"{name}: {plain(why)}; plain double backward is used instead"
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    vectors = _vectors(parameters)
    asymmetry = _asymmetry(vectors, reliable @ vectors, other_part @ vectors)
    if asymmetry > SYMMETRY.of(vectors[0].dtype):
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
    r"""Return a description of the error of `fast`; "" if it is symmetric and agrees with `reliable` by parameter.

    Both multiply a random vector u and a constant vector v. With A the products of `fast`
    and A' those of `reliable`, rows p of a parameter, and t = rounding.ROWS, the error is
    not rounding if

    .. math:: |(A u - A' u)_p| > t \max(|(A u)_p|, |(A' u)_p|, \text{floor}_p)

    with the floor of `differing`, or likewise for v, or if `fast` is not symmetric
    (`_asymmetry`). A wrong block of rows cannot hide behind large rows of others, since
    every parameter is compared by itself. It is also an error if `fast` cannot multiply
    (an operation without a derivative in forward mode, or without support by vmap).

    Differences count as rounding that are small compared with the products of
    `other_part`, that are below the precision of the type `computed_in` (by default that
    of the parameters), or that last digits of the weights make in `reliable` too
    (`_is_rounding`: a part that is zero up to rounding). `engine` is the name of `fast` in
    the description. It costs two products of `fast` and of `reliable`; two of
    `other_part`, and four of `reliable` at moved weights, only if the two disagree.

    Raises
    ------
    UserError
        If `reliable` cannot multiply.
    """
    vectors = _vectors(parameters)
    dtype = vectors[0].dtype
    bound = ROWS.of(computed_in or dtype)
    whose = f"{engine}'" if engine.endswith("s") else f"{engine}'s"
    truth = _multiplied(reliable, vectors)
    products = _attempted(fast, vectors)
    if isinstance(products, Exception):
        return f"{engine} cannot differentiate this network ({type(products).__name__}: {products})"
    pairs = []
    for k in range(2):
        pair = _of_vector(k, products, parameters), _of_vector(k, truth, parameters)
        pairs.append(pair)
    beside = [one[..., 0] for one in truth]
    is_right = all(worst(mine, theirs, beside)[1] <= bound for mine, theirs in pairs)
    is_right = is_right and _asymmetry(vectors, products, truth) <= SYMMETRY.of(dtype)
    if is_right:
        return ""
    others = truth
    if other_part is not reliable:
        # These can only make relative differences smaller.
        others = other_part @ vectors
    beside += [one[..., 0] for one in others]
    for mine, theirs in pairs:
        name, off = worst(mine, theirs, beside)
        if off > bound:
            if isinstance(reliable, DoubleBackward) and _is_rounding(
                reliable, vectors, truth, products
            ):
                return ""
            return f"{whose} product is off by {100 * off:.2g} % here, in the rows of {name}"
    asymmetry = _asymmetry(vectors, products, others)
    if asymmetry > SYMMETRY.of(dtype):
        return f"{whose} products are not symmetric here: off by {asymmetry:.1%}"
    return ""


def _of_vector(
    number: int, products: Tensors, names: Iterable[str]
) -> dict[str, Tensor]:
    """Return the products of one of the vectors by parameter."""
    of_vector = [product[..., number] for product in products]
    return dict(zip(names, of_vector, strict=True))


# Two orders of the same sums differ by a few roundings of one of them.
_ROUNDINGS = 32.0


def _is_rounding(
    reliable: DoubleBackward, vectors: Tensors, truth: Tensors, products: Tensors
) -> bool:
    r"""Whether |fast - truth| is at most 32 times what last digits of the weights change in `truth`, by parameter.

    With the changes d_1, d_2 of both products under two random moves of last digits
    (DoubleBackward.moved), it is rounding if

    .. math:: \max(|A'|, |A|) \le 32 \max_i |d_i| \quad \text{(all of it is), or} \quad
              |A_p - A'_p| \le 32 \max_i |(d_i)_p| \text{ for every parameter } p.

    In the first case rows that these digits do not change are rounding as well. The
    factor is that of two orders of summation: a few roundings of each term.
    """
    if not all(bool(one.isfinite().all()) for one in products):
        return False
    changes = []
    for number in range(2):
        moved = reliable.moved(number) @ vectors
        changes.append([a - b for a, b in zip(moved, truth, strict=True)])
    whole = max(length(change) for change in changes)
    if max(length(truth), length(products)) <= _ROUNDINGS * whole:
        return True
    for k, (product, correct) in enumerate(zip(products, truth, strict=True)):
        change = max(length([of_parameter[k]]) for of_parameter in changes)
        if length([product - correct]) > _ROUNDINGS * change:
            return False
    return True


def _multiplied(reliable: TensorsOperator, vectors: Tensors) -> Tensors:
    """Return the products; raise UserError if torch cannot differentiate the function twice."""
    try:
        return reliable @ vectors
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
    """Return a random and a constant vector, (*shape, 2) for each parameter.

    The random one is normal: u^T x has the standard deviation |x| for any x that does not
    depend on it. The constant one reaches what random signs average out, such as
    row sums.
    """
    # The name of the stream is part of the numbers.
    generator = stream(0, "belief", "u")
    vectors = []
    for parameter in parameters.values():
        draw = torch.randn(
            parameter.shape, dtype=torch.float64, generator=generator, device="cpu"
        ).to(parameter)
        vectors.append(torch.stack([draw, torch.ones_like(draw)], dim=-1))
    return vectors


def _asymmetry(vectors: Tensors, products: Tensors, others: Tensors) -> float:
    r"""Return |u.Av - v.Au| relative to the longest product; products that are not finite are not checked.

    With the normal vector u and the constant vector v,

    .. math:: u^\top A v - v^\top A u = u^\top (A - A^\top) v, \qquad
              E (u^\top (A - A^\top) v)^2 = |(A - A^\top) v|^2,

    so that the quotient is of the size of the relative asymmetry of A along v. It is
    compared with rounding.SYMMETRY. `others` are products of the other part, so that
    the asymmetry of a part that vanishes up to rounding is not relative to itself.
    """
    u, v = _both(vectors)
    au, av = _both(products)
    size = max(length(au), length(av), FLOOR * length(others))
    difference = abs(_dot(v, au) - _dot(u, av))
    if not size or math.isnan(difference):
        return 0.0
    return difference / size


def _both(pairs: Tensors) -> tuple[list[Tensor], list[Tensor]]:
    """Return the first and the second of the two vectors in (*shape, 2) for each parameter."""
    return [one[..., 0] for one in pairs], [one[..., 1] for one in pairs]


def _dot(left: Tensors, right: Tensors) -> float:
    """Return the inner product of two lists of tensors, computed in float64."""
    products = [a.double() * b.double() for a, b in zip(left, right, strict=True)]
    return sum(float(product.sum()) for product in products)


# Squares of norms between this number and its inverse neither under- nor overflow.
_SAFE = 1e-140
# Relative to the norm that rows of a parameter would have if all entries of a
# derivative were equal.
FLOOR = 1e-2


def worst(
    first: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    beside: Sequence[Tensor] = (),
) -> tuple[str, float]:
    """Return the parameter with the largest difference, and this difference (see `differing`).

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.double_backward import worst
    >>> a, b = torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0])
    >>> worst({"weight": a, "bias": a}, {"weight": a, "bias": b})
    ('bias', 0.5)
    """
    differences = differing(first, other, beside)
    return max(differences.items(), key=lambda pair: pair[1], default=("", 0.0))


def differing(
    first: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    beside: Sequence[Tensor] = (),
) -> dict[str, float]:
    r"""Return the difference of each parameter's rows, relative to the larger of the two norms.

    For the rows p, n_p of n entries, of a and b,

    .. math:: \frac{|a_p - b_p|}{\max(|a_p|, |b_p|, \text{floor}_p)}, \qquad
              \text{floor}_p = \frac{1}{100} \max(|a|, |b|, |\text{beside}|)
              \sqrt{n_p / n}.

    sqrt(n_p / n) of the whole is the length that the rows would have if all entries were
    equal. Rows below a hundredth of that share are differences of larger numbers, and are
    compared with the floor.

    Examples
    --------
    The bias is rounding beside the weight, although its two values have nothing in common:

    >>> import torch
    >>> from hessfig.curvature.double_backward import differing
    >>> weight, zero = torch.ones(3), torch.zeros(1)
    >>> off = differing({"weight": weight, "bias": zero}, {"weight": weight, "bias": zero + 1e-9})
    >>> off["weight"], f"{off['bias']:.1e}"
    (0.0, '1.2e-07')
    """
    firsts = {name: length([piece]) for name, piece in first.items()}
    others = {name: length([other[name]]) for name in first}
    whole = max(
        math.hypot(*firsts.values()), math.hypot(*others.values()), length(beside)
    )
    count = sum(piece.numel() for piece in first.values()) or 1
    differences = {}
    for name, piece in first.items():
        floor = FLOOR * whole * (piece.numel() / count) ** 0.5
        size = max(firsts[name], others[name], floor)
        differences[name] = _off(piece, other[name], size)
    return differences


def _off(first: Tensor, other: Tensor, size: float) -> float:
    """Return |a - b| / size; entries that are not finite in both are left out.

    It is infinite if an entry is finite in one of the two alone.
    """
    difference = first.double() - other.double().to(first.device)
    if not bool(difference.isfinite().all()):
        same = first.isfinite() & other.isfinite()
        if not torch.equal(first.isfinite(), other.isfinite()):
            return float("inf")
        difference = difference[same]
    return length([difference]) / size if size else 0.0


def length(tensors: Iterable[Tensor]) -> float:
    r"""Return the norm of all finite entries, without under- or overflow.

    The plain norm is returned if it lies between 1e-140 and 1e140, where its square is a
    normal number of float64. Otherwise, with m the largest finite entry in size,

    .. math:: |x| = m \Bigl(\sum_i (x_i / m)^2\Bigr)^{1/2},

    whose largest term is 1.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.double_backward import length
    >>> tiny = torch.tensor([3e-200, 4e-200], dtype=torch.float64)
    >>> float(tiny.square().sum().sqrt()), f"{length([tiny]):.3g}"
    (0.0, '5e-200')
    """
    parts = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not parts:
        return 0.0
    norms = []
    for part in parts:
        norms.append(torch.linalg.vector_norm(part, dtype=torch.float64).cpu())
    plain_norm = float(torch.stack(norms).norm())
    if _SAFE < plain_norm < 1 / _SAFE:
        return plain_norm
    finite = [part.double()[part.isfinite()] for part in parts]
    peaks = [float(part.abs().max()) for part in finite if part.numel()]
    largest = max(peaks, default=0.0)
    if not largest:
        return 0.0
    squares = [float((part / largest).square().sum()) for part in finite]
    return largest * sum(squares) ** 0.5
