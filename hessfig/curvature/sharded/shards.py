"""The shards of a network's parameters on this rank, vectors in them, and what all ranks agree on."""

import hashlib
import io
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

from hessfig.errors import UserError, first_few
from hessfig.rng import stream

_OF_A_LOST_RANK = (
    "closed by peer",
    "connection reset",
    "broken pipe",
    "timed out",
    "timeout",
    "nccl",
)


class Shards:
    """Vectors in some parameters of a network, of which every rank holds its shards in one flat tensor.

    The vector space has one entry for each entry of the parameters, whatever the
    placements: inner products and norms divide by the number of ranks that hold an entry
    (`copies`), so that results do not depend on how the network is sharded, up to the order
    of summation.

    Parameters
    ----------
    parameters : {name: DTensor}
        Their meshes span all ranks. An entry that is on several ranks (Replicate)
        counts once.

    Attributes
    ----------
    dim : int
        The number of entries on all ranks.
    """

    def __init__(self, parameters: Mapping[str, DTensor]) -> None:
        self.names = list(parameters)
        self._like: list[Any] = list(parameters.values())
        self._sizes = [one.to_local().numel() for one in self._like]
        self.dim = sum(one.numel() for one in self._like)

    def tensors(self, flat: Tensor) -> list[DTensor]:
        """Return a flat vector as one DTensor per parameter."""
        pieces = zip(self._like, flat.split(self._sizes), strict=True)
        return [
            sharded_like(like, piece.view_as(like.to_local())) for like, piece in pieces
        ]

    def flat(self, tensors: Sequence[Any]) -> Tensor:
        """Return this rank's shards of some tensors as one vector."""
        return torch.cat([local(one).flatten() for one in tensors])

    def dots(self, rows: Sequence[Tensor], vector: Tensor) -> Tensor:
        r"""Return the inner products of vectors with a vector: float64 sums over all entries of all ranks.

        .. math:: \langle x, y \rangle = \sum_\text{ranks} \sum_p \frac{1}{c_p}
                  \langle x_p, y_p \rangle

        over the shards of the parameters p, with c_p copies of each entry; one reduction for
        all rows. The result is on the CPU, the same on every rank.
        """
        sums = torch.zeros(len(rows), dtype=torch.float64, device=vector.device)
        for place, row in enumerate(rows):
            pieces = zip(
                self._like,
                row.split(self._sizes),
                vector.split(self._sizes),
                strict=True,
            )
            for like, one, other in pieces:
                sums[place] += torch.dot(one.double(), other.double()) / copies(like)
        distributed.all_reduce(sums)
        return sums.cpu()

    def dot(self, one: Tensor, other: Tensor) -> float:
        """Return the inner product of two vectors."""
        return float(self.dots([one], other))

    def probe(self, seed: int, *names: object, gaussian: bool = False) -> Tensor:
        """Return this rank's shards of a random vector with E[v v^T] = I: signs, or Gaussian numbers.

        Every parameter has its own stream of its name, which is drawn whole on every
        rank and then cut. So the vector has the same bits for any number of ranks.
        """
        pieces = []
        for name, like in zip(self.names, self._like, strict=True):
            generator = stream(seed, "sharded", *names, name)
            if gaussian:
                whole = torch.randn(
                    like.shape, generator=generator, dtype=torch.float64
                )
            else:
                whole = (
                    torch.randint(2, like.shape, generator=generator).double() * 2 - 1
                )
            placed = whole.to(like.dtype).to(like.to_local().device)
            pieces.append(
                distribute_tensor(
                    placed, like.device_mesh, like.placements, src_data_rank=None
                )
            )
        return self.flat(pieces)


def sharded_like(like: DTensor, local: Tensor) -> DTensor:
    """Return a DTensor with the mesh, placements and shape of another one, from this rank's shard; nothing is sent."""
    shape = like.shape
    stride = like.stride()
    return DTensor.from_local(
        local,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=shape,
        stride=stride,
    )


def local(tensor: Any) -> Tensor:
    """Return this rank's shard; a plain tensor is its own."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def copies(tensor: Any) -> int:
    """Return on how many ranks each entry is; those of a plain tensor count as one rank's.

    It is the product of the sizes of the axes of the mesh along which the tensor is
    replicated.
    """
    if not isinstance(tensor, DTensor):
        return 1
    mesh, placements = tensor.device_mesh, tensor.placements
    return math.prod(
        mesh.size(axis)
        for axis, placement in enumerate(placements)
        if isinstance(placement, Replicate)
    )


def length(tensors: Sequence[Any]) -> float:
    """Return the norm of all entries on all ranks, in float64; plain tensors are pieces of their ranks.

    The root of the sum over ranks and tensors of |x|^2 / copies: one reduction.
    """
    squares = [
        torch.linalg.vector_norm(local(one), dtype=torch.float64) ** 2 / copies(one)
        for one in tensors
    ]
    total = torch.stack(squares).sum()
    distributed.all_reduce(total)
    return float(total.sqrt())


def reshard(network: nn.Module) -> None:
    """Drop the whole parameters that FSDP2 keeps between a forward and a backward pass."""
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def parameters_of(network: nn.Module) -> dict[str, Any]:
    """Return the parameters by name: shards, also if FSDP2 has kept them whole since a forward pass of the user.

    Raises UserError for meshes of some ranks only, and for types in which differences
    of gradients are too rough.
    """
    reshard(network)
    named = dict(network.named_parameters())
    size = distributed.get_world_size()
    partial = [
        name
        for name, one in named.items()
        if isinstance(one, DTensor) and one.device_mesh.size() != size
    ]
    if partial:
        raise UserError(
            "the network is on some of the ranks only",
            got=f"{first_few(partial)}, of {size} ranks",
            allowed="device meshes of all ranks",
            remedy="one mesh for the network, or a process group of the ranks of its mesh",
        )
    narrow = [
        name
        for name, one in named.items()
        if one.dtype not in (torch.float32, torch.float64)
    ]
    if narrow:
        raise UserError(
            "differences of gradients: weights in this type cannot be moved by small steps",
            got=f"{named[narrow[0]].dtype}: {first_few(narrow)}",
            allowed="torch.float32, torch.float64",
            remedy="network.float() before fully_shard; MixedPrecisionPolicy for the type of computations",
        )
    return named


def as_sharded(parameter: Any, mesh: DeviceMesh) -> Any:
    """Return a tensor as a DTensor that shares its memory; a plain one is a copy of the same entries on every rank."""
    if isinstance(parameter, DTensor):
        return parameter.detach()
    return DTensor.from_local(
        parameter.detach(), mesh, [Replicate()] * mesh.ndim, run_check=False
    )


def check_ranks(
    settings: object,
    network: nn.Module,
    batches: Sequence[Any],
    *,
    sharded_batches: bool,
) -> None:
    """Raise UserError, with the ranks, if they disagree: by hashes that are gathered from all of them.

    Compared are the settings, names, shapes and placements of parameters, entries of
    parameters and buffers that are on several ranks, the number of batches, and, unless
    each rank has its own, the batches. A shard that is on one rank has nothing to be
    compared with: whatever it holds is the network.
    """
    here = {"settings": _hash(settings), "number of batches": _hash(len(batches))}
    if not sharded_batches:
        here["batches"] = _hash(batches)
    for name, one in (*network.named_parameters(), *network.named_buffers()):
        place = ""
        if isinstance(one, DTensor):
            here[f"sharding of {name}"] = _hash(
                (tuple(one.shape), str(one.placements), str(one.dtype))
            )
            coordinates: Sequence[int] = one.device_mesh.get_coordinate() or ()
            pairs = zip(coordinates, one.placements, strict=True)
            place = "".join(
                f", shard {at}" for at, kind in pairs if not isinstance(kind, Replicate)
            )
        here[f"entries of {name}{place}"] = _hash(local(one))
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, here)
    first: dict[str, str] = {}
    for rank, hashes in enumerate(gathered):
        other = [
            name for name, one in hashes.items() if first.setdefault(name, one) != one
        ]
        if other:
            raise UserError(
                f"rank {rank} does not measure what the ranks before it measure",
                got=f"other {first_few(other)}",
                allowed="the same on every rank; batches may differ with sharded_batches=True, their number may not",
                remedy="the same seed and data on all ranks, or sharded_batches=True where each has its own batches",
            )


def hash_of_all(*given: object) -> str:
    """Return a hash of what each rank holds, the same on every rank."""
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, _hash(given))
    return _hash(gathered)


@contextmanager
def together() -> Iterator[None]:
    """Raise UserError in place of the errors of torch.distributed when another rank is lost."""
    try:
        yield
    except RuntimeError as error:
        if not is_of_a_lost_rank(error):
            raise
        raise UserError(
            f"rank {distributed.get_rank()} cannot go on: another rank was lost",
            got=str(error).strip().splitlines()[0],
            allowed="ranks that all run to the end",
            remedy="look at the output of the rank that ended first; torchrun names it",
        ) from error


def is_of_a_lost_rank(error: Exception) -> bool:
    """Whether an error of torch.distributed says that another rank is gone."""
    words = str(error).lower()
    return any(one in words for one in _OF_A_LOST_RANK)


def _hash(given: Any) -> str:
    hashed = io.BytesIO()
    pickler = _Pickler(hashed)
    pickler.fast = (
        True  # equal objects are written alike, whether or not they are the same object
    )
    pickler.dump(given)
    return hashlib.sha256(hashed.getvalue()).hexdigest()


class _Pickler(pickle.Pickler):
    """Writes tensors by their entries."""

    def reducer_override(self, given: Any) -> Any:
        if not isinstance(given, Tensor):
            return NotImplemented
        entries = (
            given.detach()
            .cpu()
            .contiguous()
            .flatten()
            .view(torch.uint8)
            .numpy()
            .tobytes()
        )
        return bytes, (entries + repr((tuple(given.shape), given.dtype)).encode(),)
