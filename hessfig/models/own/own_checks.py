"""Checks of the modules of a user's network, and replacements for modules that torch cannot differentiate twice."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.nn.utils.weight_norm import WeightNorm as OldWeightNorm

from hessfig.errors import UserError, first_few, plain

_ODD = (
    "is_sparse",
    "is_sparse_csr",
    "is_nested",
    "is_quantized",
    "is_meta",
    "is_complex",
)


def uncompiled(network: Any) -> Any:
    """Return the module that torch.compile wraps, since compiled functions have no second derivatives."""
    while isinstance(network, nn.Module) and "_orig_mod" in network._modules:
        network = network._orig_mod
    return network


def checked_network(network: Any) -> nn.Module:
    """Return a network that can be measured; a compiled network is replaced by the module that it wraps.

    Raises UserError for anything else.
    """
    module = uncompiled(network)
    if module is not network:
        words = "the network is compiled: the module that torch.compile was given is measured, under its own names"
        warnings.warn(words, RuntimeWarning, stacklevel=4)
    check_network(module)
    _check_tree(module)
    assert isinstance(module, nn.Module)
    return module


def check_network(network: Any) -> None:
    """Raise UserError unless `network` is a module with real parameters that can be evaluated."""
    if not isinstance(network, nn.Module):
        raise UserError(
            "the network is not a module",
            got=shape_of(network),
            allowed="a torch.nn.Module",
            remedy="wrap a function in a torch.nn.Module whose parameters it reads",
        )
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if any(isinstance(module, parallel) for module in network.modules()):
        raise UserError(
            "the network is spread over devices",
            got=type(network).__name__,
            allowed="the network itself, on one device",
            remedy="network.module",
        )
    check_whole(network)
    check_scripted(network)
    _check_weight_norm(network)
    parameters = dict(network.named_parameters())
    lazy = [
        name
        for name, p in parameters.items()
        if isinstance(p, nn.parameter.UninitializedParameter)
    ]
    if lazy:
        raise _odd_parameters(
            "without a shape", lazy, "call the network once, network(inputs)"
        )
    _check_values(network)
    odd = {name: oddity(p) for name, p in parameters.items() if oddity(p)}
    if odd:
        kinds = first_few(sorted(set(odd.values())))
        raise _odd_parameters(
            f"that are not dense real tensors ({kinds})",
            list(odd),
            "store them as real tensors",
        )
    if not any(p.is_floating_point() for p in parameters.values()):
        raise UserError(
            "the network's parameters: there are none",
            got="none",
            allowed=_PARAMETERS,
            remedy="a network with parameters; quantised layers have none",
        )
    check_mode(network)


_PARAMETERS = "parameters of real numbers, floating point"


def _odd_parameters(what: str, names: list[str], remedy: str) -> UserError:
    return UserError(
        f"the network's parameters: parameters {what}",
        got=first_few(names),
        allowed=_PARAMETERS,
        remedy=remedy,
    )


def _check_values(network: nn.Module) -> None:
    """Raise UserError for parameters and buffers on the device meta, which have a shape and no numbers."""
    named = (*network.named_parameters(), *network.named_buffers())
    without = [name for name, tensor in named if tensor.is_meta]
    if without:
        raise UserError(
            "the network has tensors without numbers: they are on the device meta",
            got=first_few(without),
            allowed="parameters and buffers with numbers",
            remedy='network.to_empty(device="cpu"), then load_state_dict(...), and set the buffers that it leaves out',
        )


def check_whole(network: nn.Module) -> None:
    """Raise UserError for a network of which this process holds shards."""
    if is_sharded(network):
        raise UserError(
            "the network is sharded over ranks: its parameters are DTensors",
            got=type(network).__name__,
            allowed="measure(Problem(...)) and operator of H, with compute_loss (docs/cluster.md)",
            remedy="for the rest, the network on one device",
        )


def is_sharded(network: Any) -> bool:
    """Whether a parameter of a network is a DTensor (which no network has that does not import DTensor)."""
    if not isinstance(network, nn.Module):
        return False
    return any(type(one.data).__name__ == "DTensor" for one in network.parameters())


def check_not_sharded(sharded_batches: bool) -> None:
    """Raise UserError for batches by rank of a network that is not sharded."""
    if sharded_batches:
        raise UserError(
            "sharded_batches: the network is not sharded over ranks",
            got="sharded_batches=True",
            allowed="a network whose parameters are DTensors (docs/cluster.md)",
            remedy="leave it out; the batches that are given are measured",
        )


def _check_tree(module: nn.Module, above: tuple[int, ...] = ()) -> None:
    """Raise UserError for a module that contains itself."""
    for name, child in module._modules.items():
        if child is None:
            continue
        if id(child) in (*above, id(module)):
            raise UserError(
                "the network contains itself",
                got=name,
                allowed="modules that form a tree",
                remedy="keep the reference outside of nn.Module's attributes, in a tuple or list",
            )
        _check_tree(child, (*above, id(module)))


def check_scripted(network: nn.Module) -> None:
    """Raise UserError for a network with parts compiled by TorchScript, which have no second derivatives."""
    parts = [
        name or "the network"
        for name, one in network.named_modules()
        if isinstance(one, torch.jit.ScriptModule)
    ]
    if parts:
        raise UserError(
            "the network was compiled by TorchScript (torch.jit.script, torch.jit.trace)",
            got=first_few(parts),
            allowed="the module that TorchScript was given",
            remedy="original.load_state_dict(network.state_dict()), and give the original; the names are the same",
        )


def _check_weight_norm(network: nn.Module) -> None:
    """Raise UserError for torch.nn.utils.weight_norm, whose second derivatives are wrong in torch 2.15."""
    parts = []
    for path, module in network.named_modules():
        where = f"module {path!r}" if path else "the network itself"
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, OldWeightNorm):
                parts.append(f"the {hook.name} of {where}")
    if parts:
        raise UserError(
            "torch.nn.utils.weight_norm: its second derivatives are wrong in torch",
            got=first_few(parts),
            allowed="torch.nn.utils.parametrizations.weight_norm, the same function",
            remedy="torch.nn.utils.remove_weight_norm(module), then "
            "torch.nn.utils.parametrizations.weight_norm(module), for each of these",
        )


def check_mode(network: nn.Module) -> None:
    random = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    odd = [
        (name, module)
        for name, module in network.named_modules()
        if isinstance(module, random)
    ]
    loose = [name for name, one in odd if one.training and getattr(one, "p", 1.0) > 0]
    if loose:
        has_norm = any(isinstance(one, random[1]) for _, one in odd)
        raise UserError(
            "the network is in training mode: its outputs are random or depend on the whole batch",
            got=f"training: {', '.join(loose[:3])}",
            allowed="dropout and batch norms in evaluation mode",
            remedy="network.eval()" + _OF_THE_BATCH * has_norm,
        )


_OF_THE_BATCH = (
    "; for batch norms with the statistics of the batch itself, too: in a copy.deepcopy(network), set running_mean and "
    "running_var of each batch norm to None before eval()"
)


def oddity(tensor: Tensor) -> str:
    """Return the property for which a tensor cannot be used (sparse, complex, ...); "" for a plain tensor."""
    for name in _ODD:
        is_odd = getattr(tensor, name, False)
        if is_odd() if callable(is_odd) else is_odd:
            return name.removeprefix("is_")
    return ""


def check_tensor(name: str, tensor: Tensor) -> None:
    odd = oddity(tensor)
    if odd or tensor.ndim == 0 or tensor.numel() == 0:
        what = "no sample" if tensor.ndim else "a single number"
        remedy = "leave empty batches out"
        if odd:
            what = f"a tensor that is {odd}"
            remedy = REMEDIES.get(odd, "tensor.to_dense()")
        raise UserError(
            f"{name}: {what}",
            got=shape_of(tensor),
            allowed="dense tensors of real or whole numbers whose first axis runs over one sample or more",
            remedy=remedy,
        )


REMEDIES = {
    "complex": "torch.view_as_real(tensor)",
    "quantized": "tensor.dequantize()",
    "meta": "a tensor with numbers, on the CPU or a card: this one has a shape alone",
    "nested": "tensor.to_padded_tensor(0.0) and a mask",
}


class Raised(UserError):
    """A network or a loss raises an exception when it is called."""


def not_one_number(what: str, value: Any) -> UserError:
    """Return the error for a loss that returns something else than one real number."""
    remedy = "return the tensor: no .item() or float()"
    if isinstance(value, Tensor):
        remedy = (
            "end it with .mean(), .sum() or .squeeze(), or .real of a complex number"
        )
    if isinstance(value, tuple | list | Mapping):
        remedy = "return the loss alone: compute_loss=lambda network, batch: f(network, batch)[0]"
    return UserError(
        f"{what} does not return one real number",
        got=shape_of(value),
        allowed="a tensor of shape ()",
        remedy=remedy,
    )


def words_of(error: BaseException) -> str:
    return plain(
        f"{type(error).__name__}: {error}".strip().replace("\n", " "), most=300
    )


def shape_of(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"tensor {'' if thing.is_nested else tuple(thing.shape)} of {str(thing.dtype).removeprefix('torch.')}"
    if isinstance(thing, tuple | list):
        return f"a {type(thing).__name__} of {len(thing)}: {first_few([type(part).__name__ for part in thing])}"
    if thing is None:
        return "None"
    return type(thing).__name__


class Bag(nn.EmbeddingBag):
    """EmbeddingBag by gathering and adding: the gradient of torch's own cannot be differentiated."""

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Return the sum or mean of every bag's embeddings; the largest, and norms kept small, as torch does."""
        if self.mode == "max" or self.max_norm is not None:
            return super().forward(input, offsets, per_sample_weights)
        bag, count = _bags(input, offsets, last=bool(self.include_last_offset))
        words = input.flatten()
        factors = torch.ones_like(words, dtype=self.weight.dtype)
        if self.padding_idx is not None:
            factors = (words != self.padding_idx).to(self.weight)
        if self.mode == "mean":
            lengths = factors.new_zeros(count).index_add(0, bag, factors)
            factors = factors / lengths.clamp(min=1.0)[bag]
        elif per_sample_weights is not None:
            factors = factors * per_sample_weights.flatten()
        rows = factors[:, None] * F.embedding(words, self.weight)
        return factors.new_zeros(count, rows.shape[1]).index_add(0, bag, rows)


class WeightNorm(parametrizations._WeightNorm):
    """Weight norm v g / |v|: the second derivatives of torch's fused one are wrong (2.15)."""

    def forward(self, weight_g: Tensor, weight_v: Tensor) -> Tensor:
        """Return v g / |v|, the norms taken over every axis but one."""
        return weight_v * (weight_g / torch.norm_except_dim(weight_v, 2, self.dim))


_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
OF: dict[type, type] = {nn.EmbeddingBag: Bag, parametrizations._WeightNorm: WeightNorm}


def replace_in(network: nn.Module) -> None:
    """Make a network twice differentiable, also in every row of its embeddings, in place."""
    for module in network.modules():
        module.__class__ = OF.get(type(module), type(module))
        vars(module).update(_settings_of(module))
    for model in _with_experts(network):
        model.set_experts_implementation("eager")


def _with_experts(network: nn.Module) -> list[Any]:
    """Return the models of transformers in a network; kernels of their mixtures of experts take no float64."""
    return [
        module
        for module in network.modules()
        if hasattr(module, "set_experts_implementation")
    ]


@contextmanager
def differentiable(network: nn.Module) -> Iterator[None]:
    """Apply `replace_in` to a user's network within the context, and undo it afterwards."""
    with ExitStack() as restored:
        for module in network.modules():
            restored.callback(setattr, module, "__class__", type(module))
            own = {name: vars(module)[name] for name in _settings_of(module)}
            restored.callback(vars(module).update, own)
        for model in _with_experts(network):
            implementation = model.get_experts_implementation()
            restored.callback(model.set_experts_implementation, implementation)
        replace_in(network)
        yield


def _settings_of(module: nn.Module) -> dict[str, Any]:
    """Return new values for the attributes of an embedding that change its gradient but not its output.

    A class with its own forward() keeps padding_idx, because it may use it in another
    way.
    """
    if not isinstance(module, _EMBEDDINGS):
        return {}
    names = ("sparse", "scale_grad_by_freq")
    settings: dict[str, Any] = {name: False for name in names if getattr(module, name)}
    has_padding = getattr(module, "padding_idx", None) is not None
    if has_padding and isinstance(module, nn.Embedding):
        forward = type(module).forward
        code = getattr(forward, "__code__", None)
        is_read = "padding_idx" in getattr(code, "co_names", ())
        if not is_read or forward is nn.Embedding.forward:
            settings["padding_idx"] = None
    return settings


def _bags(words: Tensor, offsets: Any, *, last: bool) -> tuple[Tensor, int]:
    """Return the bag of every word, and how many bags there are."""
    places = torch.arange(len(words), device=words.device)
    if offsets is None:
        return places.repeat_interleave(words.shape[1]), len(words)
    starts = (offsets[:-1] if last else offsets).contiguous()
    bags = torch.searchsorted(starts, places.to(starts), right=True) - 1
    return bags, len(starts)
