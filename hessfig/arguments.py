"""The arguments of the Python interface as settings: each misfit is refused with its key and what would fit."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from hessfig.config import (
    Config,
    Data,
    DType,
    EstimatorConfig,
    Kind,
    Method,
    ModelConfig,
    Probes,
    SpectrumConfig,
    TaskConfig,
)
from hessfig.errors import UserError, did_you_mean, plain
from hessfig.terms import Part

if TYPE_CHECKING:
    import torch

_EXAMPLES = {
    "blocks": 'blocks=["W_V", ("W_Q", "W_V"), "all"]',
    "parts": 'parts=["H", "H_o"]',
    "quantities": 'quantities=["frobenius", "trace"]',
    "spectrum": 'spectrum={"k": 3, "steps": 80}',
    "estimator": 'estimator="auto"',
    "dtype": 'dtype="float64"',
}


def config_of(
    blocks: Any,
    parts: Any,
    quantities: Any,
    estimator: Any,
    num_probes: Any,
    spectrum: Any,
    seed: Any,
    dtype: Any,
) -> Config:
    """Return the arguments of hessfig.measure as settings. Raises UserError for the first that does not fit."""
    from hessfig.config.checks.everything import LARGEST_SEED, MOST_PROBES, check
    from hessfig.measurements.registry import quantities as known

    config = Config(
        task=TaskConfig(data=Data.python),
        model=ModelConfig(kind=Kind.python),
        estimator=EstimatorConfig(
            method=Method(one_of("estimator", estimator, Method)),
            num_probes=_whole("num_probes", num_probes, least=1, most=MOST_PROBES, example=20),
        ),
        spectrum=_spectrum(spectrum),
        blocks=_blocks(blocks),
        parts=[Part(part) for part in _listed("parts", parts, Part)],
        quantities=_listed("quantities", quantities, known(), own=True),
        first_seed=_whole("seed", seed, least=0, most=LARGEST_SEED, example=0),
        seeds=1,
        dtype=DType(one_of("dtype", dtype, DType)),
    )
    check(config)
    return config


def _listed(key: str, given: Any, choices: Iterable[str], *, own: bool = False) -> list[str]:
    """Return one or several words as a list: of `choices`, or (`own`) names of which others tell what they are."""
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        raise UserError(
            f"{key}: a name, or a list of names",
            got=plain(repr(given)),
            allowed=", ".join(map(str, choices)),
            remedy=f"for example {_EXAMPLES[key]}",
        )
    return [str(word) if own else one_of(key, word, choices) for word in words]


def _whole(key: str, given: Any, *, least: int, most: int, example: int) -> int:
    """Return a whole number of Python's or numpy's; True and 2.0 are none."""
    try:
        number = least - 1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = least - 1
    if least <= number <= most:
        return number
    raise UserError(
        f"{key}: a whole number",
        got=plain(repr(given)),
        allowed=f"a whole number from {least} to {most}",
        remedy=f"for example {key}={example}",
    )


def _blocks(given: Any) -> Any:
    """Return the setting `blocks` of the same meaning. Raises UserError for what is no name, pair or list of these."""
    if isinstance(given, str):
        return given
    if isinstance(given, list | tuple) and given and all(map(_is_entry, given)):
        return [list(entry) if isinstance(entry, tuple) else entry for entry in given]
    raise UserError(
        "blocks: a name, or a list of names and pairs",
        got=plain(repr(given)),
        allowed="each, all, a name, or a list of names and (row, column) pairs",
        remedy=f"for example {_EXAMPLES['blocks']}",
    )


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, str) or (
        isinstance(entry, list | tuple) and len(entry) == 2 and all(isinstance(name, str) for name in entry)
    )


def device_of(given: Any) -> torch.device:
    """Return the device. Raises UserError for one that is not there, or cannot hold the numbers."""
    import torch

    there = {"cpu": 1, "cuda": torch.cuda.device_count()}
    try:
        found = torch.device(given)
        if (found.index or 0) < there.get(found.type, 0):
            return found
    except (RuntimeError, TypeError, ValueError, OverflowError):
        pass
    raise UserError(
        "device: it is not there",
        got=plain(repr(given)),
        allowed=", ".join(["cpu", *(f"cuda:{number}" for number in range(there["cuda"]))]),
        remedy="device='cpu'",
    )


def _spectrum(given: Any) -> SpectrumConfig:
    known = vars(SpectrumConfig())
    if given is not None and not isinstance(given, Mapping):
        raise UserError(
            "spectrum: no settings by name",
            got=plain(repr(given)),
            allowed=f"a dict with keys of {', '.join(known)}",
            remedy=f"for example {_EXAMPLES['spectrum']}",
        )
    found = dict(given or {})
    for key, value in found.items():
        one_of("spectrum", key, known)
        kinds = (int, float) if type(known[key]) is float else type(known[key])
        if key == "probes":
            found[key] = Probes(one_of("spectrum.probes", value, Probes))
        elif isinstance(value, bool) or not isinstance(value, kinds):
            raise UserError(
                f"spectrum.{key} is of another kind",
                got=plain(repr(value)),
                allowed="a number" if type(known[key]) is float else "a whole number",
                remedy=f"for example spectrum={{{key!r}: {known[key]}}}",
            )
    return SpectrumConfig(**found)


def one_of(key: str, value: Any, choices: Iterable[str]) -> str:
    """Return one of some words. Raises UserError for anything else."""
    known = list(map(str, choices))
    if not isinstance(value, str) or str(value) not in known:
        hint = did_you_mean(str(value)[:100], known) if isinstance(value, str) else ""
        raise UserError(
            f"{key}: there is no such choice",
            got=plain(value if isinstance(value, str) else repr(value)),
            allowed=", ".join(known),
            remedy=hint or f"for example {_EXAMPLES.get(key, repr(known[0]))}",
        )
    return str(value)
