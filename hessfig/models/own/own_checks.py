"""A user's network checked: its modules, one run of it, and modules that torch cannot differentiate twice."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.weight_norm import WeightNorm as OldWeightNorm

from hessfig.curvature.double_backward import no_derivative, steps_of
from hessfig.curvature.losses import CrossEntropy, takes_numbers
from hessfig.curvature.problem import Batch
from hessfig.errors import UserError, first_few, plain

_ODD = ("is_sparse", "is_sparse_csr", "is_nested", "is_quantized", "is_meta", "is_complex")


def original(network: Any) -> Any:
    """Return the module inside of torch.compile, whose functions have no second derivative; else what is given."""
    while isinstance(network, nn.Module) and "_orig_mod" in network._modules:
        network = network._orig_mod
    return network


def check_network(network: Any) -> None:
    """Raise UserError for what is no network with real numbers as parameters, ready to be evaluated."""
    if not isinstance(network, nn.Module):
        raise UserError(
            "the network is no module",
            got=shape_of(network),
            allowed="a torch.nn.Module that maps one tensor to one tensor",
            remedy="wrap a function in a torch.nn.Module whose forward() calls it",
        )
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if any(isinstance(module, parallel) for module in network.modules()):
        raise UserError(
            "the network is spread over devices",
            got=type(network).__name__,
            allowed="the network itself, on one device",
            remedy="network.module",
        )
    check_scripted(network)
    _check_weight_norm(network)
    held = dict(network.named_parameters())
    lazy = [name for name, p in held.items() if isinstance(p, nn.parameter.UninitializedParameter)]
    odd = [name for name, p in held.items() if name not in lazy and oddity(p)]
    if lazy or odd or not any(p.is_floating_point() for p in held.values()):
        what = "parameters that are no dense real tensors" if odd else "there are none"
        what = "parameters without a shape" if lazy else what
        raise UserError(
            f"the network's parameters: {what}",
            got=first_few(lazy or odd),
            allowed="parameters of real numbers, floating point",
            remedy="call the network once, network(inputs)" if lazy else "hold them as real tensors",
        )
    check_mode(network)


def check_tree(module: nn.Module, above: tuple[int, ...] = ()) -> None:
    """Raise UserError for a module that holds itself."""
    for name, child in module._modules.items():
        if child is None:
            continue
        if id(child) in (*above, id(module)):
            raise UserError(
                "the network holds itself",
                got=name,
                allowed="modules that form a tree",
                remedy="keep the reference outside of nn.Module's attributes, in a tuple or list",
            )
        check_tree(child, (*above, id(module)))


def check_scripted(network: nn.Module) -> None:
    """Raise UserError for a network with parts that TorchScript has compiled: they have no second derivatives."""
    parts = [name or "the network" for name, one in network.named_modules() if isinstance(one, torch.jit.ScriptModule)]
    if parts:
        raise UserError(
            "the network was compiled by TorchScript (torch.jit.script, torch.jit.trace)",
            got=first_few(parts),
            allowed="the module that TorchScript was given",
            remedy="original.load_state_dict(network.state_dict()), and give the original; the names are the same",
        )


def _check_weight_norm(network: nn.Module) -> None:
    """Raise UserError for the old weight norm: torch's second derivatives of it are wrong (2.15)."""
    named = [(path, hook) for path, one in network.named_modules() for hook in one._forward_pre_hooks.values()]
    parts = [path or "the network" for path, hook in named if isinstance(hook, OldWeightNorm)]
    if parts:
        raise UserError(
            "torch.nn.utils.weight_norm: torch has no right second derivatives of it",
            got=first_few(parts),
            allowed="torch.nn.utils.parametrizations.weight_norm, the same function",
            remedy="torch.nn.utils.remove_weight_norm(module), then "
            "torch.nn.utils.parametrizations.weight_norm(module), for each of these",
        )


def check_mode(network: nn.Module) -> None:
    random = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    loose = [
        name
        for name, module in network.named_modules()
        if isinstance(module, random) and module.training and getattr(module, "p", 1.0) > 0
    ]
    if loose:
        raise UserError(
            "the network is in training mode: its outputs are random or depend on the whole batch",
            got=f"training: {', '.join(loose[:3])}",
            allowed="dropout and batch norms in evaluation mode",
            remedy="network.eval()" + _OF_THE_BATCH * any(isinstance(one, random[1]) for one in network.modules()),
        )


_OF_THE_BATCH = (
    "; for batch norms with the statistics of the batch itself, too: in a copy.deepcopy(network), set running_mean and "
    "running_var of each batch norm to None before eval()"
)


def oddity(tensor: Tensor) -> str:
    """Return why a tensor cannot be measured with: sparse, complex, ...; nothing for a plain one."""
    for name in _ODD:
        found = getattr(tensor, name, False)
        if found() if callable(found) else found:
            return name.removeprefix("is_")
    return ""


def check_tensor(name: str, tensor: Tensor) -> None:
    odd = oddity(tensor)
    if odd or tensor.ndim == 0 or tensor.numel() == 0:
        what = f"a tensor that is {odd}" if odd else "no sample" if tensor.ndim else "a single number"
        raise UserError(
            f"{name}: {what}",
            got=shape_of(tensor),
            allowed="dense tensors of real or whole numbers whose first axis runs over one sample or more",
            remedy="torch.view_as_real(...) or .to_dense()" if odd else "leave empty batches out",
        )


_REPARAMETRISED = {
    "BasePruningMethod": "torch.nn.utils.prune.remove(module, name), which makes a mask permanent",
    "WeightNorm": "torch.nn.utils.parametrizations.weight_norm in place of torch.nn.utils.weight_norm",
    "SpectralNorm": "torch.nn.utils.parametrizations.spectral_norm in place of torch.nn.utils.spectral_norm",
}
_COMPUTED = "compute it in forward(), or tie parameters by assigning the nn.Parameter itself"


def uncopied(network: nn.Module) -> tuple[str, str]:
    """Return which attributes keep a network from being copied, and what to do: those computed from parameters."""
    found = {
        f"{path}.{name}".lstrip("."): _makers(module).get(name, _COMPUTED)
        for path, module in network.named_modules()
        for name, held in vars(module).items()
        if any(True for _ in results(held))
    }
    places = f"computed from parameters, and no parameter itself: {first_few(list(found))}" if found else ""
    return places, "; ".join(dict.fromkeys(found.values()))


def results(held: Any) -> Iterator[Tensor]:
    """Yield the tensors, alone or in lists and dictionaries, that were computed from parameters and carry a graph."""
    if isinstance(held, Tensor) and held.grad_fn is not None:
        yield held
    elif isinstance(held, list | tuple | dict):
        yield from (one for part in (held.values() if isinstance(held, dict) else held) for one in results(part))


def _makers(module: nn.Module) -> dict[str, str]:
    """Return the remedy for attributes that a hook of torch.nn.utils computes before every call, by their names."""
    made = dict[str, str]()
    for hook in module._forward_pre_hooks.values():
        kinds = [kind.__name__ for kind in type(hook).__mro__ if kind.__module__.startswith("torch.nn.utils")]
        kinds += ["BasePruningMethod"] * (type(hook).__name__ == "PruningContainer")
        remedies = [_REPARAMETRISED[kind] for kind in kinds if kind in _REPARAMETRISED]
        name = getattr(hook, "_tensor_name", getattr(hook, "name", None))
        if remedies and isinstance(name, str):
            made[name] = remedies[0]
    return made


def words_of(error: BaseException) -> str:
    return plain(f"{type(error).__name__}: {error}".strip().replace("\n", " "), most=300)


def shape_of(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"tensor {'' if thing.is_nested else tuple(thing.shape)} of {str(thing.dtype).removeprefix('torch.')}"
    if isinstance(thing, tuple | list):
        return f"a {type(thing).__name__} of {len(thing)}: {first_few([type(part).__name__ for part in thing])}"
    return f"{type(thing).__name__}" if thing is not None else "None"


_REMEDY = "for cross_entropy: outputs (..., classes), targets (...) of class numbers"
_ALLOWED = "loss(outputs, targets) with one real number as its value: a tensor of shape ()"


class Raised(UserError):
    """A network or a loss that raises when it is called."""


def check_run(network: nn.Module, loss: nn.Module, batch: Batch) -> Tensor:
    """Run network and loss once and return the outputs.

    They must be a tensor, the same twice, and something the loss can take and be differentiated in.
    """
    outputs, again = (_outputs(network, batch.inputs.clone()) for _ in range(2))
    if not isinstance(outputs, Tensor) or oddity(outputs) or not outputs.is_floating_point():
        raise UserError(
            "the network's output is not a tensor of real numbers",
            got=shape_of(outputs),
            allowed="a tensor, floating point",
            remedy="wrap it in a module that returns the tensor the loss needs",
        )
    if outputs.shape != again.shape or not torch.equal(outputs.nan_to_num(), again.nan_to_num()):
        raise UserError(
            "the network's outputs change from call to call",
            got=f"{shape_of(outputs)}, then another",
            allowed="a deterministic network",
            remedy="network.eval(), or take the randomness out",
        )
    if not outputs.ndim and (takes_numbers(loss) or isinstance(loss, CrossEntropy)):
        raise UserError(
            "the network returns one number, and no outputs that this loss can take",
            got=f"{shape_of(outputs)}, and the loss {type(loss).__name__}",
            allowed="outputs whose first axis runs over samples; or a number that is itself the loss",
            remedy="where it is the loss: loss=lambda outputs, targets: outputs",
        )
    _check_loss(loss, outputs, batch.targets)
    return outputs


def changes_inputs(network: nn.Module, batch: Batch) -> bool:
    """Whether a network changes its inputs in place."""
    given = batch.inputs.clone()
    _outputs(network, given)
    return not torch.equal(given.nan_to_num(), batch.inputs.nan_to_num())


def _outputs(network: nn.Module, inputs: Tensor) -> Any:
    """Return what a network returns, without its graph; it runs with gradients enabled, as in a training."""
    with torch.enable_grad():
        found = _called("the network", network, inputs)
    return found.detach() if isinstance(found, Tensor) else found


_CUT = "None of the inputs have requires_grad=True"  # what torch warns of in a reentrant checkpoint


def check_reached(network: nn.Module, batch: Batch) -> None:
    """Warn where no parameter reaches the outputs: every number will be zero, which is rarely meant.

    Raises UserError where some reach them through reentrant checkpoints, whose derivatives autograd.grad cannot take.
    """
    at = {name: p.detach().requires_grad_() for name, p in network.named_parameters() if p.is_floating_point()}
    with torch.enable_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        outputs = _called("the network", partial(functional_call, network, at), (batch.inputs,))
    if any(_CUT in str(one.message) for one in said) or "CheckpointFunctionBackward" in steps_of([outputs]):
        raise no_derivative(RuntimeError("use_reentrant=True cuts the graph"), "the network uses reentrant checkpoints")
    if not outputs.requires_grad:
        warnings.warn(
            "no parameter reaches the network's outputs (detached, or under torch.no_grad()): all derivatives are zero",
            RuntimeWarning,
            stacklevel=2,
        )


def _called(what: str, module: Callable[..., Any], *given: Any) -> Any:
    """Return module(*given). Raises UserError, which says what was raised, when it raises anything."""
    try:
        return module(*given)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise Raised(
            f"{what} raises {type(error).__name__} when it is called",
            got=f"{words_of(error)}; given {' and '.join(map(shape_of, given))}",
            allowed=f"{'loss(outputs, targets)' if len(given) > 1 else 'network(inputs)'} without an error",
            remedy=_REMEDY if len(given) > 1 else "call it yourself: network.double()(inputs), with the same inputs",
        ) from error


def _check_loss(loss: nn.Module, outputs: Tensor, targets: Tensor) -> None:
    """Raise UserError for a loss that is not one real number, the same twice, with a derivative in the outputs."""
    if takes_numbers(loss) and outputs.shape != targets.shape:
        _misfit(outputs, targets, "they differ in shape, and would be broadcast")
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = _called("the loss", loss, leaf, targets)
        if not isinstance(value, Tensor) or value.shape != ():
            end = "end it with .mean(), .sum() or .squeeze()"
            raise UserError(
                "the loss is no scalar",
                got=f"it returned {shape_of(value)}",
                allowed=_ALLOWED,
                remedy=end if isinstance(value, Tensor) else "return the tensor: no .item(), float() or tuple",
            )
        if not value.is_floating_point():
            _misfit(outputs, targets, f"it returned {shape_of(value)}")
        if value.requires_grad:
            of_outputs = partial(torch.autograd.grad, value, allow_unused=True)
            if _called("the loss's backward pass", of_outputs, leaf)[0] is None:
                raise UserError(
                    "the loss does not depend on the network's outputs",
                    got=f"{float(value.detach()):.6g}",
                    allowed="a loss of outputs and targets",
                    remedy="use its first argument",
                )
            again = float(_called("the loss", loss, leaf, targets).detach())
            if again != float(value.detach()) and again == again:
                raise UserError(
                    "the loss is random: it changes from call to call",
                    got=f"{float(value.detach()):.6g}, then {again:.6g}, of the same outputs and targets",
                    allowed="a loss that is one function of outputs and targets",
                    remedy="draw its random numbers once, before: noise = torch.randn(...), and let the loss use noise",
                )
            return
    raise UserError(
        "the loss has no derivative in the network's outputs",
        got=f"{float(value):.6g}, detached from them or constant",
        allowed="a loss that autograd can follow back to the outputs",
        remedy="take .detach(), .item(), argmax and torch.no_grad() out of it",
    )


def _misfit(outputs: Tensor, targets: Tensor, why: str) -> NoReturn:
    raise UserError(
        "the loss cannot take the network's output",
        got=f"outputs {shape_of(outputs)}, targets {shape_of(targets)}: {why}"[:400],
        allowed=_ALLOWED,
        remedy=f"{_REMEDY}; for mse: two tensors of one shape, such as outputs.squeeze(-1)",
    )


class Bag(nn.EmbeddingBag):
    """EmbeddingBag by gathering and adding: the gradient of torch's own cannot be differentiated."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Return the sum or mean of every bag's embeddings; the largest, and norms kept small, as torch does."""
        if self.mode == "max" or self.max_norm is not None:
            return super().forward(input, offsets, per_sample_weights)
        bag, count = _bags(input, offsets, last=bool(self.include_last_offset))
        words = input.flatten()
        factors = torch.ones_like(words, dtype=self.weight.dtype)
        if self.padding_idx is not None:
            factors = (words != self.padding_idx).to(self.weight)
        if self.mode == "mean":
            held = torch.zeros(count, dtype=factors.dtype, device=factors.device).index_add(0, bag, factors)
            factors = factors / held.clamp(min=1.0)[bag]
        elif per_sample_weights is not None:
            factors = factors * per_sample_weights.flatten()
        found = torch.zeros(count, self.weight.shape[1], dtype=factors.dtype, device=factors.device)
        return found.index_add(0, bag, factors[:, None] * F.embedding(words, self.weight))


class WeightNorm(parametrizations._WeightNorm):
    """Weight norm v g / |v|: the second derivatives of torch's fused one are wrong (2.15)."""

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        """Return v g / |v|, the norms taken over every axis but one."""
        return weight_v * (weight_g / torch.norm_except_dim(weight_v, 2, self.dim))


OF: dict[type, type] = {nn.EmbeddingBag: Bag, parametrizations._WeightNorm: WeightNorm}


def replace_in(network: nn.Module) -> None:
    """Have torch differentiate a network twice, and in every row of its embeddings, in place."""
    for module in network.modules():
        module.__class__ = OF.get(type(module), type(module))
        vars(module).update(_settings_of(module))


@contextmanager
def differentiable(network: nn.Module) -> Iterator[None]:
    """Have a user's own network as `replace_in` leaves it, for a while."""
    before = [
        (module, type(module), {name: vars(module)[name] for name in _settings_of(module)})
        for module in network.modules()
    ]
    replace_in(network)
    try:
        yield
    finally:
        for module, kind, settings in before:
            module.__class__ = kind
            vars(module).update(settings)


def _settings_of(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of an embedding that change its gradient and not what it returns, as they are set here.

    A class whose own forward() reads padding_idx may mean something else by it, and keeps it.
    """
    is_padded = getattr(module, "padding_idx", None) is not None and isinstance(module, nn.Embedding)
    keeps = "padding_idx" in getattr(getattr(type(module).forward, "__code__", None), "co_names", ())
    keeps = keeps and type(module).forward is not nn.Embedding.forward
    found = {"padding_idx": None} if is_padded and not keeps else {}
    is_sparse = isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
    return {**found, "sparse": False} if is_sparse else found


def _bags(words: Tensor, offsets: Any, *, last: bool) -> tuple[Tensor, int]:
    """Return the bag of every word, and how many bags there are."""
    if offsets is None:
        return torch.arange(len(words), device=words.device).repeat_interleave(words.shape[1]), len(words)
    starts = offsets[:-1] if last else offsets
    places = torch.arange(len(words), device=words.device)
    return torch.searchsorted(starts.contiguous(), places.to(starts), right=True) - 1, len(starts)
