"""Roles of parameters outside the layers: embeddings, positions, patches and logits, checked by runs."""

from __future__ import annotations

import re
from collections import defaultdict

import torch
from torch import Tensor, nn

from hessfig.models.blocks import TIED
from hessfig.models.naming.suggested import WRAPPED, Held
from hessfig.models.naming.trial import CannotRun, NetworkTrial, Use
from hessfig.models.naming.tried_names import alike
from hessfig.models.naming.views import own
from hessfig.terms import Group, Matrix
from hessfig.weights import Weight, bias_of

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
            return own(held)
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
                if differ.all() and alike(one[..., ~half], two[..., ~half]):
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
