"""Reads the weights in the folder of a model, and checks them against its config.json."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from hessfig.config.schema import Config
from hessfig.errors import UserError, first_few
from hessfig.files import check_pin
from hessfig.models.stored import model_folder
from hessfig.models.weight_files import FLOATING, hashed, tensors_of


def read_tensors(config: Config, place: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder, parsed from the hashed bytes, which are freed after each file."""
    every: dict[str, Tensor] = {}
    hashes = []
    for path in model_folder.weight_files(place):
        content, own = hashed(path, model_folder.KEY)
        hashes.append(own)
        tensors = tensors_of(content, path, model_folder.KEY)
        del content
        if twice := sorted({*every} & {*tensors}):
            raise UserError(
                f"{model_folder.KEY}: a weight is contained in two files",
                got=f"{path.name}: {first_few(twice)}",
                allowed="every weight once",
                remedy="save the model again: model.save_pretrained(DIR)",
            )
        every |= tensors
    check_pin(
        place,
        model_folder.KEY,
        found=model_folder.digest(
            model_folder.json_of(place / model_folder.CONFIG), hashes
        ),
        planned=model_folder.pin_of(config, 0),
    )
    return every


def check_report(place: str, report: dict[str, Any], odd: dict[str, str]) -> None:
    """Raise UserError for weights that are missing or have another shape, since transformers would draw them randomly.

    `odd` maps tensors that are not floating-point to their types; masks may be among
    them.
    """
    missing = listed_names(report["missing_keys"])
    other = listed_names(report["mismatched_keys"])
    if missing or other:
        lists = {
            "missing": missing,
            "of another shape": other,
            "surplus": listed_names(report["unexpected_keys"]),
        }
        types = [
            f"{name} ({kind.removeprefix('torch.')})"
            for name, kind in sorted(odd.items())
        ]
        lists |= {"of another type": types} if types else {}
        raise UserError(
            f"{model_folder.KEY}: the weights in {place} are not those of its config.json",
            got=in_words(lists),
            allowed="every weight of the architecture that config.json names, in floating point",
            remedy="save the model again: model.save_pretrained(DIR)",
        )


def in_words(lists: Mapping[str, list[str]]) -> str:
    """Return lists of names under what is wrong with them."""
    return "; ".join(f"{what}: {first_few(names)}" for what, names in lists.items())


def check_surplus(place: str, surplus: list[str], base: str, head: str) -> None:
    """Raise UserError for weights in the encoder `base` or its `head` that its config.json does not describe."""
    inside = (f"{base}.embeddings.", f"{base}.encoder.", f"{head}.")
    if within := [name for name in surplus if name.startswith(inside)]:
        raise UserError(
            f"{model_folder.KEY}: the network in {place} contains more than its config.json declares",
            got=first_few(within),
            allowed="poolers and further heads, which are left out",
            remedy="fix the numbers in config.json (layers, kinds of positions)",
        )


def check_finite(weights: Mapping[str, Tensor], place: str, dtype: str) -> None:
    """Raise UserError for weights in `dtype` that are not finite, or not of a floating-point type."""
    bad = [
        name
        for name, weight in weights.items()
        if not (weight.dtype in FLOATING and weight.isfinite().all())
    ]
    if bad:
        raise UserError(
            f"{model_folder.KEY}: {place} contains numbers that are not finite in torch.{dtype}, "
            "or not of a floating-point type",
            got=first_few(bad),
            allowed="finite floating-point numbers",
            remedy="save the weights again, from before the training diverged; or dtype=float64",
        )


def listed_names(keys: Iterable[Any]) -> list[str]:
    return sorted(str(key[0] if isinstance(key, tuple) else key) for key in keys)
