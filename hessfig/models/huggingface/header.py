"""What a folder's safetensors hold, read from their headers alone: weights that are missing are said before a plan."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from hessfig.errors import UserError, first_few
from hessfig.models.protocol import Layout, Weight

_LENGTH, _LONGEST = 8, 100_000_000  # bytes that say how long a header is, and the most it may be
_SUFFIX = ".safetensors"


def check_weights(files: Sequence[Path], layout: Layout, place: str) -> None:
    """Raise UserError when safetensors lack one of the layout's parameters, or hold it in another size.

    The name of the base model in front (`transformer.h.0` for `h.0`) may be there or not, as transformers has it. A
    parameter may also stand under a name that only transformers knows (`embed_out` for `lm_head`): when every one that
    is missing has an unknown tensor of its size, transformers decides, when it makes the network; files of another
    form are left to it too.
    """
    if not files or any(path.suffix != _SUFFIX for path in files):
        return
    held = {name: size for path in files for name, size in _sizes(path).items()}
    found = {weight: _found(weight, held) for weight in layout.parameters}
    known = {name for weight in layout.parameters for name in _names(weight)}
    surplus = {name: size for name, size in held.items() if name not in known}
    missing = [weight for weight, size in found.items() if size is None]
    other = [_own(weight) for weight, size in found.items() if size not in (None, weight.size)]
    if other or Counter(weight.size for weight in missing) - Counter(surplus.values()):
        raise misfit(place, map(_own, missing), other, surplus)


def misfit(place: str, missing: Iterable[str], other: Iterable[str], surplus: Iterable[str]) -> UserError:
    """Return the error that names what of the weights does not fit config.json."""
    lists = {"missing": missing, "of another shape": other, "surplus": surplus}
    return UserError(
        f"model.path: the weights in {place} are not those of its config.json",
        got="; ".join(f"{what}: {first_few(sorted(names))}" for what, names in lists.items()),
        allowed="every weight of the architecture that config.json names",
        remedy="save the model again: model.save_pretrained(DIR)",
    )


def _found(weight: Weight, held: Mapping[str, int]) -> int | None:
    """Return the entries of a parameter in the files; None where they lack it."""
    return next((held[name] for name in _names(weight) if name in held), None)


def _names(weight: Weight) -> tuple[str, str]:
    own = _own(weight)
    return own, own.partition(".")[2]


def _own(weight: Weight) -> str:
    """Return the parameter's name in transformers: the layout's without its first word."""
    return weight.parameter.partition(".")[2]


def _sizes(path: Path) -> dict[str, int]:
    """Return the entries of every tensor of a file. Raises UserError when it is no such file, or cut short."""
    size = path.stat().st_size
    try:
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(_LENGTH), "little")
            header = json.loads(handle.read(length)) if length <= min(size, _LONGEST) else None
        tensors = {name: one for name, one in _object(header).items() if name != "__metadata__"}
        last = max((one["data_offsets"][1] for one in tensors.values()), default=0)
        sizes = {name: prod(one["shape"]) for name, one in tensors.items()}
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error
    if size != _LENGTH + length + last:
        raise _unreadable(path, f"{size} bytes, where its header says {_LENGTH + length + last}")
    return sizes


def _object(header: Any) -> dict[str, Any]:
    if not isinstance(header, dict):
        raise TypeError("the header is no object")
    return header


def _unreadable(path: Path, why: str) -> UserError:
    return UserError(
        f"model.path: {path} cannot be read as safetensors",
        got=why[:200],
        allowed="a whole file, as model.save_pretrained writes it",
        remedy="copy or save it again",
    )
