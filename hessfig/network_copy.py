"""The copy of a network that is measured in its place while a training goes on with the network itself."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.curvature.problem import Objective
from hessfig.errors import UserError, first_few
from hessfig.interface import Spec
from hessfig.models.fingerprint import fingerprint
from hessfig.models.identity import data_content, identities, identity
from hessfig.models.own.batches import copy_batch, keep_batches
from hessfig.models.own.border import open_request
from hessfig.models.own.preserved import evaluating
from hessfig.models.own.witnessing import Witnessing
from hessfig.record import digest


class NetworkCopy:
    """A copy of `network` in evaluation mode, with data of its own: `problem` is what is measured.

    Whenever it follows the network, its derivatives are compared with the network's own.

    `data_content` is a hash of the batches and the names of the weights. Raises UserError for what does not fit.
    """

    def __init__(
        self,
        network: nn.Module,
        batch: Any,
        loss: Any,
        weights: Mapping[str, Spec] | str | None,
        outputs: str | int | None,
        *,
        dtype: str,
        place: torch.device,
    ) -> None:
        self._network, self._loss, self._dtype, self._place = network, loss, dtype, place
        asked = (copy_batch([batch] if isinstance(batch, tuple) else keep_batches(batch)), None, loss, weights, outputs)
        self._is_known = False
        with torch.inference_mode(False), evaluating(network):
            self._witnessing = Witnessing(open_request(network, *asked))
            self._copy()

    def follow(self, key: str, order: int) -> tuple[str, dict[str, str], str]:
        """Bring the copy to where the training is.

        Return a hash of the function, to derivatives of `order`, at the weights; hashes of what network and loss are
        made of, by name; and why there is no such hash, if so: then it is one that nothing else has. A copy that is no
        longer the user's function is made anew. Raises UserError for a network of other shapes, and for a function that
        cannot be measured.
        """
        with evaluating(self._network):
            weights = _take_over(self._network, self.problem.network)
            if self._identity() != self._made_of or not self._witnessing.holds(self._built, order):
                self._copy()
        found = fingerprint(self.problem, key, order=order, twice=not self._is_known)
        parts = identities(self.problem.network, **{"the loss": self.problem.loss})
        self._is_known = True
        return digest([weights, parts, found.digest]), parts, found.why

    @property
    def problem(self) -> Objective:
        """What is measured."""
        return self._built.problem

    @property
    def witness(self) -> dict[str, Any]:
        """What the copy was compared with when it was made."""
        return self.problem.witness.record if self.problem.witness else {}

    def _copy(self) -> None:
        self._made_of = self._identity()
        built = self._witnessing.measured(getattr(torch, self._dtype))
        self.data_content = data_content(built.problem)
        self._built = replace(built, problem=built.problem.on(self._place))

    def _identity(self) -> str:
        """Return a hash of all that network and loss are made of, besides weights and buffers."""
        return identity(self._network, self._loss, without=_tensors(self._network).values())


def _take_over(live: nn.Module, ours: nn.Module) -> str:
    """Copy weights and buffers, and return their hash. Raises UserError for a network that changed its shapes."""
    theirs, held = _tensors(live), _tensors(ours)
    shapes, asked = ({name: tuple(one.shape) for name, one in some.items()} for some in (theirs, held))
    other = sorted(name for name in {*shapes, *asked} if shapes.get(name) != asked.get(name))
    if other:
        was = [f"{name}: {shapes.get(name, 'gone')} (was {asked.get(name, 'not there')})" for name in other]
        raise UserError(
            "Monitor: the network changed its parameters or their shapes",
            got=first_few(was),
            allowed="the parameters it had when the monitor was made",
            remedy="make a new Monitor, with a folder of its own, after the change",
        )
    found = hashlib.sha256()
    with torch.no_grad():
        for name, tensor in held.items():
            tensor.copy_(theirs[name])
            found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    named = network.named_parameters(remove_duplicate=False), network.named_buffers(remove_duplicate=False)
    return {name: tensor for some in named for name, tensor in some}
