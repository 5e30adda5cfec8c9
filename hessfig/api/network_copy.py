"""The copy of a training's network that is measured in its place."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.api.arguments import Spec
from hessfig.curvature.double_backward import differentiating
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError, first_few
from hessfig.models.fingerprint import fingerprint
from hessfig.models.identity import data_content, identities, identity
from hessfig.models.own.batches import copy_batch, keep_batches
from hessfig.models.own.border import open_request
from hessfig.models.own.computed import Computing, open_function
from hessfig.models.own.opaque import mapped, opaque_batches
from hessfig.models.own.own_checks import check_network, check_scripted, uncompiled
from hessfig.models.own.preserved import evaluating
from hessfig.models.own.witnessing import Witnessing
from hessfig.record import digest
from hessfig.rng import kept_draws, made_on

Functions = tuple[Any, Any, Any]  # compute_loss, compute_outputs, batch_weights


class NetworkCopy:
    """A copy of `network` in evaluation mode, with data of its own: `problem` is what is measured.

    With `functions`, compute_loss is run in place, with the weights of the copy.
    Otherwise, whenever the copy follows the network, its derivatives are compared with
    the network's own.

    `data_content` is a hash of the batches and the names of the weights. Raises
    UserError for what does not fit.
    """

    def __init__(
        self,
        network: nn.Module,
        batch: Any,
        loss: Any,
        weights: Mapping[str, Spec] | str | None,
        outputs: str | int | None,
        functions: Functions | None = None,
        *,
        dtype: str,
        place: torch.device,
    ) -> None:
        self._network = network
        self._loss = functions or loss
        self._dtype = dtype
        self._place = place
        self._is_known = False
        with torch.inference_mode(False), evaluating(network):
            if functions is None:
                inputs = copy_batch(
                    [batch] if isinstance(batch, tuple) else keep_batches(batch)
                )
                self._witnessing: Witnessing | Computing = Witnessing(
                    open_request(network, inputs, None, loss, weights, outputs)
                )
            else:
                batches = [
                    mapped(one, network=network) for one in opaque_batches(batch)
                ]
                self._witnessing = Computing(
                    open_function(network, batches, *functions, weights)
                )
            self._copy()

    def follow(self, key: str, order: int) -> tuple[str, dict[str, str], str]:
        """Update the copy to the training's present weights.

        Return a hash of the function, to derivatives of `order`, at the weights; hashes
        of what network and loss are made of, by name; and why there is no such hash, if
        so: then it is one that nothing else has. A copy that is no longer the user's
        function is made anew. Raises UserError for a network of other shapes, and for a
        function that cannot be measured.
        """
        with evaluating(self._network):
            weights = _take_over(self._network, self.problem.network)
            if self._identity() != self._made_of or not self._witnessing.holds(
                self._built, order
            ):
                self._copy()
        function = fingerprint(self.problem, key, order=order, twice=not self._is_known)
        parts = identities(self.problem.network, **{"the loss": self.problem.loss})
        self._is_known = True
        return digest([weights, parts, function.digest]), parts, function.why

    @property
    def problem(self) -> Objective:
        """The measured problem."""
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
        return identity(
            self._network, self._loss, without=_tensors(self._network).values()
        )


def _take_over(live: nn.Module, ours: nn.Module) -> str:
    """Copy weights and buffers, and return their hash. Raises UserError for a network that changed its shapes."""
    theirs = _tensors(live)
    copies = _tensors(ours)
    now, before = (
        {name: tuple(tensor.shape) for name, tensor in named.items()}
        for named in (theirs, copies)
    )
    changed = sorted(
        name for name in {*now, *before} if now.get(name) != before.get(name)
    )
    if changed:
        raise UserError(
            "Monitor: the network changed its parameters or their shapes",
            got=first_few(
                [
                    f"{name}: {now.get(name, 'gone')} (was {before.get(name, 'not there')})"
                    for name in changed
                ]
            ),
            allowed="the parameters it had when the monitor was created",
            remedy="create a new Monitor with its own folder after the change",
        )
    hashed = hashlib.sha256()
    with torch.no_grad():
        for name, tensor in copies.items():
            tensor.copy_(theirs[name])
            hashed.update(
                tensor.detach()
                .cpu()
                .contiguous()
                .reshape(-1)
                .view(torch.uint8)
                .numpy()
                .tobytes()
            )
    return hashed.hexdigest()


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    named = (
        network.named_parameters(remove_duplicate=False),
        network.named_buffers(remove_duplicate=False),
    )
    return {name: tensor for tensors in named for name, tensor in tensors}


def unwrapped(network: Any) -> Any:
    """Return the network inside of DataParallel, DistributedDataParallel and torch.compile."""
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while isinstance(network, parallel) or uncompiled(network) is not network:
        if isinstance(network, parallel):
            network = network.module
        else:
            network = uncompiled(network)
    return network


def trainable_names(network: nn.Module) -> set[str]:
    """Return the names of the parameters that require a gradient."""
    return {
        name
        for name, parameter in network.named_parameters()
        if parameter.requires_grad
    }


def check_type(network: Any) -> None:
    """Raise UserError for an object that is not a torch.nn.Module, or is compiled by TorchScript."""
    if not isinstance(network, nn.Module):
        check_network(network)
    check_scripted(network)


@contextmanager
def keep_training_state(network: nn.Module) -> Iterator[None]:
    """Restore the random generators of torch, numpy and Python, and autocast and grad mode, after the block."""
    device = next(network.parameters(), torch.empty(0, device="cpu")).device
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()  # pending work of the training does not count as time of measuring
    with differentiating(), kept_draws(), made_on(device):
        yield
