"""Attention and the residual stream of a TransformerLens bridge at its present weights, through its own hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hessfig.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from hessfig.api.interface import Problem

_CLOSE = 1e-4  # of mixing weights that are computed again, in float32


def attention_patterns(problem: Problem) -> Tensor:
    """Return the mixing weights of a problem's bridge on its tokens: softmax(scores) for most architectures.

    Parameters
    ----------
    problem : hessfig.Problem
        Of a TransformerBridge and tokens. The bridge is run as it is: its weights of
        this moment, in their type, in evaluation mode. Several batches of equal length
        are joined.

    Returns
    -------
    torch.Tensor
        Of shape (layers, samples, heads, queries, keys).

    Raises
    ------
    UserError
        Where the network is not a bridge, or its inputs are not tokens.

    Examples
    --------
    >>> import torch, hessfig
    >>> from transformer_lens.config import TransformerBridgeConfig
    >>> from transformer_lens.model_bridge.sources.native import boot
    >>> sizes = {"n_layers": 1, "n_heads": 2, "d_model": 4, "d_head": 2, "d_mlp": 8, "n_ctx": 3, "d_vocab": 5}
    >>> bridge = boot(TransformerBridgeConfig(**sizes, act_fn="relu")).eval()
    >>> problem = hessfig.Problem(bridge, torch.tensor([[0, 3, 1]]))
    >>> patterns = hessfig.lens.attention_patterns(problem)
    >>> tuple(patterns.shape), bool((patterns.sum(-1) - 1).abs().max() < 1e-6)
    ((1, 1, 2, 3, 3), True)
    """
    return _stacked(problem, "attn.hook_pattern")


def attention_scores(problem: Problem) -> Tensor:
    """Return the scores q k^T / sqrt(d_head), whose softmax gives the patterns; masked entries are minimal.

    Where the bridge's hook of scores has the patterns (TransformerLens 4.3: models that
    compute attention themselves) the scores are computed from its queries and keys, if
    these have that softmax.

    Parameters
    ----------
    problem : hessfig.Problem
        As in `attention_patterns`.

    Returns
    -------
    torch.Tensor
        Of shape (layers, samples, heads, queries, keys).

    Raises
    ------
    UserError
        As in `attention_patterns`, and for architectures with other scores (rotary
        positions, soft caps).

    Examples
    --------
    >>> import torch, hessfig
    >>> from transformer_lens.config import TransformerBridgeConfig
    >>> from transformer_lens.model_bridge.sources.native import boot
    >>> sizes = {"n_layers": 1, "n_heads": 2, "d_model": 4, "d_head": 2, "d_mlp": 8, "n_ctx": 3, "d_vocab": 5}
    >>> bridge = boot(TransformerBridgeConfig(**sizes, act_fn="relu")).eval()
    >>> problem = hessfig.Problem(bridge, torch.tensor([[0, 3, 1]]))
    >>> scores, patterns = hessfig.lens.attention_scores(problem), hessfig.lens.attention_patterns(problem)
    >>> torch.allclose(scores.softmax(-1), patterns, atol=1e-6)
    True
    """
    from hessfig.curvature.double_backward import differentiating

    with differentiating():
        return _scores(problem)


def residual_norms(problem: Problem) -> Tensor:
    """Return the Euclidean norm of the residual stream before the first layer and after each.

    Parameters
    ----------
    problem : hessfig.Problem
        As in `attention_patterns`.

    Returns
    -------
    torch.Tensor
        Of shape (layers + 1, samples, positions).

    Raises
    ------
    UserError
        As in `attention_patterns`.

    Examples
    --------
    >>> import torch, hessfig
    >>> from transformer_lens.config import TransformerBridgeConfig
    >>> from transformer_lens.model_bridge.sources.native import boot
    >>> sizes = {"n_layers": 1, "n_heads": 2, "d_model": 4, "d_head": 2, "d_mlp": 8, "n_ctx": 3, "d_vocab": 5}
    >>> bridge = boot(TransformerBridgeConfig(**sizes, act_fn="relu")).eval()
    >>> problem = hessfig.Problem(bridge, torch.tensor([[0, 3, 1]]))
    >>> tuple(hessfig.lens.residual_norms(problem).shape)
    (2, 1, 3)
    """
    import torch

    below = _stacked(problem, "hook_in", lambda layer: layer == 0)
    return torch.cat([below, _stacked(problem, "hook_out")]).norm(dim=-1)


def _scores(problem: Problem) -> Tensor:
    import torch

    scores = _stacked(problem, "attn.hook_attn_scores")
    patterns = _stacked(problem, "attn.hook_pattern")
    if not torch.equal(scores, patterns):
        return scores
    bridge, _ = _bridge_of(problem)
    heads, width = bridge.cfg.n_heads, bridge.cfg.d_head
    q, k = (_stacked(problem, f"attn.{name}.hook_out").flatten(3) for name in "qk")
    q, k = (one.unflatten(-1, (-1, width)).transpose(2, 3) for one in (q, k))
    scores = (
        q
        @ k.repeat_interleave(heads // k.shape[2], dim=2).transpose(-1, -2)
        / width**0.5
    )
    scores = scores.masked_fill(_masked(problem), torch.finfo(scores.dtype).min)
    if not torch.allclose(scores.softmax(-1), patterns, atol=_CLOSE):
        raise UserError(
            "hessfig.lens: the bridge's hook of scores has the patterns, and they are not the softmax of q k^T",
            got=f"{bridge.cfg.architecture}: positions in the scores, or a cap on them",
            allowed="an architecture whose hook has scores, or whose scores are q k^T / sqrt(d_head)",
            remedy="hessfig.lens.attention_patterns(problem).log() is the scores up to a constant of each query",
        )
    return scores


def _masked(problem: Problem) -> Tensor:
    """Return which entries are masked: those without weight for queries of zero, for which all scores are equal."""
    bridge, _ = _bridge_of(problem)
    queries = [
        f"blocks.{layer}.attn.q.hook_out" for layer in range(bridge.cfg.n_layers)
    ]
    with bridge.hooks(fwd_hooks=[(name, _zero) for name in queries]):
        return _stacked(problem, "attn.hook_pattern") == 0


def _zero(seen: Tensor, hook: Any) -> Tensor:
    del hook
    return seen.new_zeros(seen.shape)


def _stacked(
    problem: Problem, hook: str, chosen: Callable[[int], bool] = lambda layer: True
) -> Tensor:
    """Return the activations at a hook of the chosen layers, layers first, with the samples of all batches joined."""
    import torch

    from hessfig.curvature.double_backward import differentiating
    from hessfig.models.own.preserved import evaluating
    from hessfig.rng import kept_draws, made_on

    bridge, batches = _bridge_of(problem)
    names = [
        f"blocks.{layer}.{hook}"
        for layer in range(bridge.cfg.n_layers)
        if chosen(layer)
    ]
    stacks = []
    device = next(bridge.parameters()).device
    with (
        differentiating(),
        kept_draws(),
        torch.no_grad(),
        made_on(device),
        evaluating(bridge),
    ):
        for tokens in batches:
            _, cache = bridge.run_with_cache(tokens, names_filter=names)
            stacks.append(torch.stack([_first(cache[name]) for name in names]))
    return torch.cat(stacks, dim=1)


def _first(seen: Any) -> Any:
    return seen[0] if isinstance(seen, tuple) else seen


def _bridge_of(problem: Problem) -> tuple[Any, list[Tensor]]:
    from torch import Tensor

    from hessfig.models.own.wrappers import opener_of

    inputs = problem.inputs if isinstance(problem.inputs, list) else [problem.inputs]
    if opener_of(problem.network) is None or not all(
        isinstance(one, Tensor) for one in inputs
    ):
        raise UserError(
            "hessfig.lens: the network is not a bridge of TransformerLens, or its inputs are not tokens",
            got=f"{type(problem.network).__name__}, {type(problem.inputs).__name__}",
            allowed="hessfig.Problem(bridge, tokens) with a TransformerBridge and tokens (samples, length)",
            remedy="TransformerBridge.boot_native(config), or a bridge around a model of transformers",
        )
    return problem.network, inputs
