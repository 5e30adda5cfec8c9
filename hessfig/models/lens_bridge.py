"""A bridge of TransformerLens as a network of tokens: the model that it wraps, and its batches."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hessfig.curvature.losses import IGNORED
from hessfig.curvature.problem import real_parameters
from hessfig.errors import UserError
from hessfig.models.own.any_batch import Shell
from hessfig.models.own.batches import is_plain
from hessfig.models.own.copies import copied

_PATTERN = "_pattern"
_WIRED = "_capture_hooks_wired"
_NOTING = ("_capture_pre_ln1", "_capture_mlp_in")


def wrapped(bridge: Any) -> nn.Module:
    """Return a copy of the model that a bridge wraps, in evaluation mode, with only the parameters that it uses.

    A bridge splits fused matrices into separate maps and keeps the fused matrix, which
    is no longer used; the matrix is not a parameter of the copy.
    """
    model = copied(bridge.original_model, "the network").eval()
    for module in model.modules():
        _set_free(module)
    parameters = real_parameters(model)
    trained = {path: parameter.requires_grad for path, parameter in parameters.items()}
    with torch.enable_grad():
        for parameter in parameters.values():
            parameter.requires_grad_()
        logits = _logits(
            model(
                torch.zeros(
                    1, 2, dtype=torch.long, device=next(model.parameters()).device
                )
            )
        )
        slopes = torch.autograd.grad(
            logits.sum(), list(parameters.values()), allow_unused=True
        )
    for (path, parameter), slope in zip(parameters.items(), slopes, strict=True):
        parameter.requires_grad_(trained[path])
        if slope is None and ".qkv." in path:
            place, _, name = path.rpartition(".")
            module = model.get_submodule(place)
            del module._parameters[name]
            module.register_buffer(name, parameter.detach())
    return model


def _set_free(module: nn.Module) -> None:
    """Remove the hooks of a copied bridge that record inputs of layers in the original.

    A bridge needs these hooks to split inputs of attention and MLP; they do not change
    outputs.
    """
    for key, hook in list(module._forward_pre_hooks.items()):
        if getattr(hook, "__name__", "") in _NOTING:
            del module._forward_pre_hooks[key]
    if _WIRED in vars(module):
        setattr(module, _WIRED, True)
    if _PATTERN in vars(module):
        module.register_forward_hook(_forget)


def _forget(module: nn.Module, given: Any, found: Any) -> None:
    """Let the mixing weights go that a part of a bridge keeps of its last call: with their graph it has no copy."""
    del given, found
    setattr(module, _PATTERN, None)


def bridge_as_network(
    bridge: Any, model: nn.Module, inputs: Any, targets: Any
) -> tuple[nn.Module, Any, Any]:
    """Return the model of a bridge as a network, with inputs and targets.

    For tokens without targets (samples, length), or a list of such tensors, the targets
    are the next tokens at all positions but the last. Raises UserError if positions
    attend to later tokens in this case.
    """
    if _are_tokens(inputs):
        if targets is None:
            check_causal(bridge)
            if isinstance(inputs, list):
                targets = [following(one) for one in inputs]
            else:
                targets = following(inputs)
        return Logits(model), inputs, targets
    return (Logits(model) if is_plain(inputs, targets) else model), inputs, targets


def followed(bridge: Any, batch: Any, loss: Any) -> tuple[nn.Module, Any, Any]:
    """Return the model that a bridge wraps, which is the one that is trained, with batch and loss for a monitor."""
    if _are_tokens(batch):
        check_causal(bridge)
        batch = [
            (one, following(one))
            for one in (batch if isinstance(batch, list) else [batch])
        ]
        loss = "cross_entropy" if loss is None else loss
    return bridge.original_model, batch, loss


def _are_tokens(inputs: Any) -> bool:
    return isinstance(inputs, Tensor) or (
        isinstance(inputs, list) and all(isinstance(one, Tensor) for one in inputs)
    )


def following(tokens: Tensor, first: int = 0) -> Tensor:
    """Return the next token at every position of (samples, length); IGNORED before `first` and at the last position."""
    return F.pad(tokens[:, first + 1 :], (first, 1), value=IGNORED)


def check_causal(bridge: Any) -> None:
    """Raise UserError for a bridge whose positions attend to later tokens."""
    if bridge.cfg.attention_dir != "causal":
        raise UserError(
            "targets: positions of this model attend to later tokens, so the next tokens cannot be the targets",
            got=f"no targets, and attention_dir={bridge.cfg.attention_dir}",
            allowed="targets (samples, length) with -100 where nothing is scored",
            remedy="hessfig.Problem(bridge, masked_tokens, targets)",
        )


class Logits(Shell):
    """A model's logits as a function of tokens (samples, length); parameters and modules are the model's own.

    No position attends to the token `padding`, if it is given.
    """

    def __init__(self, model: nn.Module, padding: int | None = None) -> None:
        super().__init__(model)
        self._padding = padding

    def forward(
        self, tokens: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits at every position."""
        words = {}
        if self._padding is not None:
            words["attention_mask"] = tokens.ne(self._padding).long()
        return _logits(self._inside[0](tokens, **words))


def _logits(found: Any) -> Tensor:
    logits = getattr(found, "logits", found)
    assert isinstance(logits, Tensor)
    return logits
