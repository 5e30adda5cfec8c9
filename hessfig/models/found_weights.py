"""Finds the weights of any transformer: names and shapes suggest roles, and small runs of the network check them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.curvature.double_backward import differentiable_twice, differentiating
from hessfig.errors import UserError, first_few
from hessfig.models.blocks import TIED
from hessfig.models.naming import tried_names, views
from hessfig.models.naming.suggested import (
    FUSED,
    GATED,
    OTHER,
    QKV,
    ROUTER,
    WRAPPED,
    Held,
    Places,
)
from hessfig.models.naming.trial import CannotRun, NetworkTrial, Use
from hessfig.models.naming.tried_names import MatrixPart, Verdict
from hessfig.models.own.own_checks import check_whole
from hessfig.models.own.preserved import evaluating, preserved
from hessfig.models.own.wrappers import opener_of
from hessfig.rng import kept_draws, made_on
from hessfig.terms import Group, Matrix
from hessfig.weights import Layout, Weight, bias_of, every_parameter

_ROLE = re.compile(r"W_\w+(\+W_\w+)*( by (heads|entries|\d+))?|other")
_IN_ATTENTION, _IN_MLP = (*QKV, Matrix.W_O, "W_rel"), (*GATED, Matrix.W_out)


def find_weights(
    network: nn.Module, roles: Mapping[str, str] | None = None, inputs: Any = None
) -> Layout:
    """Return the weights of a transformer under the names of the paper, with heads, experts, biases and norms.

    Parameters
    ----------
    network : torch.nn.Module
        A transformer with its layers in module lists; model types of the library
        transformers are supported best.
    roles : {module: role}, optional
        Roles that cannot be inferred, by the end of the path of a module ("attn.pack"):
        W_Q, W_K, W_V, W_O, W_gate, W_in, W_out or W_router. The role of a fused map
        lists the weights along its outputs, "W_Q+W_K+W_V"; append " by heads" if they
        alternate for every group of heads, " by 4" for 4 pieces, or " by entries" if
        single entries alternate. With the role "other" a matrix keeps its own name.
    inputs : tensor, tuple of arguments or dictionary of words, optional
        Inputs for runs of the network that check the roles; by default, small random
        inputs. Only forward passes are run, and the network is not changed.

    Returns
    -------
    hessfig.weights.Layout
        The layout, for hessfig.Problem(..., weights=...). Layers count from 1 through
        all stacks (docs/real-models.md).

    Raises
    ------
    UserError
        If no layer has attention, or if names, shapes and runs do not determine the
        role of a matrix.

    Examples
    --------
    >>> import hessfig
    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 1}
    >>> network = LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=6, vocab_size=5))
    >>> hessfig.find_weights(network).names
    ['W_E', 'W_Q', 'W_K', 'W_V', 'W_O', 'W_gate', 'W_in', 'W_out', 'W_U']
    """
    roles = _checked(roles or {})
    opener = opener_of(network)
    check_whole(network)
    device = next((one.device for one in network.parameters()), torch.device("cpu"))
    with differentiating(), kept_draws(), made_on(device):
        network = network if opener is None else opener.wrapped(network)
        with (
            preserved(network, numbers=False),
            evaluating(network),
            differentiable_twice(),
            torch.no_grad(),
        ):
            return _Named(network, roles, inputs).layout()


def _checked(roles: Mapping[str, str]) -> dict[str, str]:
    for where, role in roles.items():
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise UserError(
                f"roles: the role of {where} is not known",
                got=repr(role),
                allowed=f"W_Q, W_in, ..., '{FUSED} by heads', '{OTHER}'",
                remedy="see hessfig.find_weights",
            )
    return dict(roles)


class _Named:
    """The parameters of a network, each under the name that runs of the network have confirmed."""

    def __init__(self, network: nn.Module, roles: dict[str, str], inputs: Any) -> None:
        self.trial = NetworkTrial(network, inputs)
        self.places = Places(network, roles, self.trial.axes)
        self.outside = Outside(network, self.trial)
        self.held = {one.path: one for one in self.places.held}
        self.reasons: list[str] = []

    def layout(self) -> Layout:
        """Return the layout. Raises UserError if no layer has attention, and for roles that the user must give."""
        if not self.places.has_layers:
            raise UserError(
                "weights: there are no layers with attention under a known name",
                got=f"{type(self.places.network).__name__}: {first_few(list(self.held))}",
                allowed="layers in lists, whose modules are called q_proj, query, c_attn, ... (docs/real-models.md)",
                remedy="find_weights(network, roles={MODULE: ROLE}), or weights={NAME: PARAMETER}",
            )
        self._check_attention()
        self._check_mlps()
        self._check_routers()
        self._ask()
        whole = every_parameter((one.path, one.size) for one in self.held.values())
        return Layout(tuple(self._weights()), whole.weights)

    def _weights(self) -> Iterator[Weight]:
        """Yield all weights in the order of the parameters."""
        for entry in self.held.values():
            if not entry.layer:
                yield self.outside.weight(entry)
            elif entry.role in ("", OTHER):
                yield views.own(entry)
            else:
                yield from views.named(entry)

    def _ask(self) -> None:
        """Raise UserError for matrices of layers without a role, with reasons and a possible answer."""
        asked = {
            re.sub(r"\.\d+\.", ".*.", one.where.partition(".")[2]): one.shape
            for one in self.held.values()
            if one.layer and not (one.is_bias or one.role)
        }
        if not asked:
            return
        reasons = list(dict.fromkeys(self.reasons))
        remedy = f"hessfig.find_weights(network, roles={dict.fromkeys(asked, OTHER)})"
        if problem := self.trial.problem:
            reasons = [f"it does not run on inputs made up: {problem}"]
            remedy = f"hessfig.find_weights(network, inputs=BATCH), or {remedy}"
        raise UserError(
            f"weights: of {len(asked)} kinds of matrices in layers names, shapes and use do not tell what they do",
            got=first_few([f"{where} {shape}" for where, shape in asked.items()])
            + f" ({first_few(reasons)})" * bool(self.reasons),
            allowed=f"W_Q, W_K, W_V, W_O, W_gate, W_in, W_out, {ROUTER}, '{FUSED}', '{FUSED} by heads', '{OTHER}'",
            remedy=remedy,
        )

    def _check_attention(self) -> None:
        """Keep the names of attentions that runs confirm, if there is one of each kind per layer."""
        groups = defaultdict[tuple[str, int, str], list[Held]](list)
        for entry in self._matrices(_IN_ATTENTION):
            if entry.is_of_attention:
                groups[entry.stack, entry.layer, entry.module].append(entry)
        verdicts = {
            key: tried_names.attention(self.trial, self._parts(own), self._biases(own))
            for key, own in groups.items()
        }
        suffixes = {key: _suffix(groups[key], one) for key, one in verdicts.items()}
        for key, verdict in verdicts.items():
            twins = [
                other
                for other in groups
                if other[:2] == key[:2] and suffixes[other] == suffixes[key]
            ]
            if suffixes[key] is None:
                verdict = Verdict(
                    reason=f"{key[2]} has the name of attention to other inputs, and the same inputs"
                )
            elif len(twins) > 1:
                verdict = Verdict(
                    reason=f"{' and '.join(twin[2] for twin in twins)} are alike in one layer"
                )
            self._take(groups[key], verdict, suffixes[key] or "")

    def _check_mlps(self) -> None:
        groups = defaultdict[tuple[str, int, str, str], list[Held]](list)
        for entry in self._matrices(_IN_MLP):
            if not entry.is_of_attention:
                groups[entry.stack, entry.layer, entry.suffix, entry.module].append(
                    entry
                )
        for key, members in groups.items():
            twins = [other for other in groups if other[:3] == key[:3]]
            verdict = tried_names.mlp(
                self.trial, self._parts(members), self._biases(members)
            )
            if len(twins) > 1 and not all("experts." in other[3] for other in twins):
                verdict = Verdict(
                    reason=f"{first_few([other[3] for other in twins])} are alike in one layer"
                )
            self._take(members, verdict, key[2])

    def _check_routers(self) -> None:
        for router in list(self._matrices((ROUTER,))):
            place = (router.stack, router.layer, router.suffix)
            beside = [
                other
                for other in self._matrices((Matrix.W_in,))
                if (other.stack, other.layer, other.suffix) == place
            ]
            joined = [other.shape[0] for other in beside if len(other.shape) > 2]
            experts = max(len({other.module for other in beside}), *joined, 0)
            if router.suffix:
                experts = 1
            (part,) = self._parts([router])
            paths = [other.path for other in beside]
            verdict = tried_names.router(self.trial, part, paths, experts)
            self._take([router], verdict, router.suffix)

    def _matrices(self, names: Sequence[str]) -> Iterator[Held]:
        for entry in self.held.values():
            if entry.layer and not entry.is_bias and {*entry.names} & {*names}:
                yield entry

    def _parts(self, members: Sequence[Held]) -> list[MatrixPart]:
        return [part for one in members for part in _parts_of(one)]

    def _biases(self, members: Sequence[Held]) -> list[str]:
        return [one.path for one in self._same_modules(members) if one.is_bias]

    def _same_modules(self, members: Sequence[Held]) -> list[Held]:
        places = {(one.stack, one.layer, one.where) for one in members}
        return [
            one
            for one in self.held.values()
            if (one.stack, one.layer, one.where) in places
        ]

    def _take(self, members: Sequence[Held], verdict: Verdict, suffix: str) -> None:
        """Keep roles that were confirmed or given, and heads that were confirmed."""
        if not verdict.is_used:
            given = ", ".join(
                f"{m.where.partition('.')[2]} as {m.role}" for m in members if m.given
            )
            self.reasons.append(verdict.reason + f" with {given}" * bool(given))
        for member in self._same_modules(members):
            role = member.role if verdict.is_used or member.given else ""
            heads = verdict.heads or (member.given and member.has_heads)
            self.held[member.path] = replace(
                member,
                role=role,
                has_heads=heads,
                suffix=suffix if verdict.is_used else member.suffix,
            )


def _suffix(members: Sequence[Held], verdict: Verdict) -> str | None:
    """Return the suffix of cross-attention, whose keys have other inputs than its queries; None if it is undecided."""
    is_named = any(one.is_named_cross for one in members)
    queries, keys, is_same = verdict.rows
    if not verdict.is_used:
        return members[0].suffix
    if queries != keys or (is_named and not is_same):
        return ".cross"
    if is_named:
        return None
    return ""


def _parts_of(held: Held) -> Iterator[MatrixPart]:
    """Yield the weights of a map in the form that the checks need."""
    axis = held.outputs
    if held.role in (Matrix.W_O, Matrix.W_out):
        # The inputs are along the other axis; experts are along the first.
        axis = (3 if len(held.shape) == 3 else 1) - axis
    weights = list(views.named(replace(held, suffix="", has_heads=True)))
    for name in held.names:
        columns = []
        heads = []
        for weight in weights:
            if weight.name == name:
                columns.append(views.columns_of(weight, held.shape, axis))
            elif weight.name.startswith(f"{name}.head"):
                heads.append(views.columns_of(weight, held.shape, axis))
        yield MatrixPart(
            name, held.path, held.outputs, torch.cat(columns), tuple(heads)
        )


_OUTSIDE = {
    Matrix.W_patch: r"patch_embeddings\.projection",
    Matrix.W_pos: r"wpe|pos|pos_embed|embed_positions|positions_embed|position_embeddings?",
    "W_type": r"token_type_embeddings",
    Matrix.W_E: r"wte|shared|embed|embed_tokens|embed_in|tok_embed|tok_embeddings|tokens_embed|word_embeddings?",
    Matrix.W_U: r"head|lm_head|unembed|embed_out|classifier|decoder|lm_head\.decoder",
}


class Outside:
    """The parameters outside the layers, under names that a run confirms."""

    def __init__(self, network: nn.Module, trial: NetworkTrial) -> None:
        self.network, self.trial = network, trial
        self._called = _called(network, trial)
        self._uses = defaultdict[str, list[Use]](list)
        for use in trial.uses:
            self._uses[use.path].append(use)

    def weight(self, held: Held) -> Weight:
        """Return a weight: embedding, unembedding, a tied embedding, or a weight under its own name."""
        names = [
            str(name)
            for name, ends in _OUTSIDE.items()
            if any(re.search(rf"(^|\.)({ends})$", c) for c in self._called[held.path])
            and (held.is_bias or self._is(name, held.path))
        ]
        if not names or (len(held.shape) < 2 and not held.is_bias):
            return views.own(held)
        name = TIED if {*names} >= {Matrix.W_E, Matrix.W_U} else names[0]
        if held.is_bias:
            return bias_of(name, held.path, held.size)
        return Weight(
            name,
            held.path,
            held.size,
            groups=() if name == Matrix.W_U else (Group.embeddings.value,),
        )

    def _is(self, name: str, path: str) -> bool:
        """Whether a run uses a parameter as its name suggests."""
        given = [use.given for use in self._uses[path] if use.given is not None]
        if name == Matrix.W_U:
            return self._makes_logits(path)
        if name in (Matrix.W_E, Matrix.W_patch):
            return any(
                one.numel() == two.numel() and one.eq(two.view_as(one)).all()
                for one in given
                for two in self._inputs
            )
        if name == Matrix.W_pos and not given:
            return path in self.trial.added
        steps = [
            one.diff(dim=-1)
            for one in given
            if not one.is_floating_point() and one.shape[-1] > 1
        ]
        return any(
            bool((step != 0).all() if name == Matrix.W_pos else (step == 0).all())
            for step in steps
        )

    @property
    def _inputs(self) -> list[Tensor]:
        arguments, words = self.trial.calls.get("", ((), {}))
        return [one for one in (*arguments, *words.values()) if isinstance(one, Tensor)]

    def _makes_logits(self, path: str) -> bool:
        """Whether each output of the map affects only the logit with the same index."""
        uses = [
            use for use in self._uses[path] if use.axis == 0 and use.kind != "embedding"
        ]
        if not uses:
            return False
        half = torch.arange(self.trial.parameters[path].shape[0], device="cpu") % 2 == 0

        def changed(use: Use, output: Tensor) -> Tensor:
            if use.axis == 0:
                return torch.where(
                    half.to(output.device), output + 1 + output.abs(), output
                )
            return output

        try:
            outputs = self.trial.run("", {path: changed})[1]
        except CannotRun:
            return False
        for one, two in zip(self.trial.outputs, outputs, strict=True):
            if one.ndim and one.shape[-1] == len(half):
                differ = (one != two)[..., half].flatten(0, -2).any(dim=0)
                if differ.all() and tried_names.alike(one[..., ~half], two[..., ~half]):
                    return True
        return False


def _called(network: nn.Module, trial: NetworkTrial) -> dict[str, list[str]]:
    """Return, by path, the names of the modules that contain a parameter, and its role in a model of transformers."""
    paths = {id(p): path for path, p in network.named_parameters()}
    names: dict[str, list[str]] = {path: [] for path in paths.values()}
    for path, tensor in network.named_parameters(remove_duplicate=False):
        names[paths[id(tensor)]].append(
            re.sub(r"\.(weight|bias)$", "", path.replace(WRAPPED, "")).lower()
        )
    for word, parameter in trial.tables():
        names[paths[id(parameter)]].append(word)
    return names
