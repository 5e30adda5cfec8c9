"""Checks the arguments of hessfig.measure and hessfig.Monitor: what is measured, and how."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hessfig.config.checks import LARGEST_SEED, check_config
from hessfig.config.enums import Data, DType, Method, NamedDirection, Probes, Products
from hessfig.config.of_quantities import DirectionsConfig
from hessfig.config.schema import Config
from hessfig.config.science import (
    MOST_PROBES,
    EstimatorConfig,
    ModelConfig,
    SpectrumConfig,
    TaskConfig,
)
from hessfig.errors import UserError, plain, unknown_name
from hessfig.measurements.catalogue import quantities
from hessfig.measurements.requirements import check_differences
from hessfig.terms import Kind, Optimiser, Part

if TYPE_CHECKING:
    import torch


_PRODUCTS = {
    "auto": Products.linearised,
    **{str(kind): kind for kind in (Products.curvlinops, Products.differences)},
}
Spec = str | tuple[Any, ...] | list[Any]
Word = TypeVar("Word", bound=str)
_EXAMPLES = {
    "blocks": 'blocks=["W_V", ("W_Q", "W_V"), "all"]',
    "parts": 'parts=["H", "H_o"]',
    "quantities": 'quantities=["frobenius", "trace"]',
    "spectrum": 'spectrum={"k": 3, "steps": 80}',
    "estimator": 'estimator="auto"',
    "directions": 'directions={"named": ["gradient", "update"], "rules": ["muon"]}',
}


_ALL = (
    "blocks='all' is every pair of weights, and will be the whole network in the next release: blocks='pairs' for "
    "every pair, or blocks=['all'] for the whole network"
)


@dataclass(frozen=True)
class Measure:
    """What is measured, and how: the settings that hessfig.measure and hessfig.Monitor share.

    Parameters
    ----------
    blocks, parts, quantities, estimator, num_probes, spectrum, directions, seed, products
        As in hessfig.measure, with the same defaults.
    dtype, device : str, optional
        Of the computation. By default float64 on the CPU; a Monitor takes the device of
        its network, and float32 on a GPU.

    Raises
    ------
    UserError
        For the first value that does not fit, with the allowed values.

    Examples
    --------
    >>> import hessfig
    >>> hessfig.Measure(blocks=["all"], quantities=["largest_eigenvalue"], parts="H").quantities
    ['largest_eigenvalue']
    """

    blocks: str | Sequence[Any] = "each"
    parts: str | Sequence[str] | None = None
    quantities: str | Sequence[str] = ("frobenius",)
    estimator: str = "auto"
    num_probes: int = 20
    spectrum: Mapping[str, Any] | None = None
    seed: int = 0
    dtype: str | None = None
    device: str | None = None
    directions: Mapping[str, Any] | None = None
    products: str = "auto"

    def __post_init__(self) -> None:
        self.config()

    def config(self, dtype: str | None = None) -> Config:
        """Return the settings that stand for it, in `dtype` where it names none. Raises UserError."""
        # The catalogue checks the names.
        config = Config(
            task=TaskConfig(data=Data.python),
            model=ModelConfig(kind=Kind.python),
            estimator=EstimatorConfig(
                method=one_of("estimator", self.estimator, Method),
                products=_PRODUCTS[one_of("products", self.products, _PRODUCTS)],
                num_probes=whole(
                    "num_probes", self.num_probes, most=MOST_PROBES, example=20
                ),
            ),
            spectrum=_spectrum(self.spectrum),
            directions=_directions(self.directions),
            blocks=_blocks(self.blocks),
            parts=_listed(
                "parts", ("H", "H_o", "H_f") if self.parts is None else self.parts, Part
            ),
            quantities=_words("quantities", self.quantities, quantities()),
            first_seed=whole("seed", self.seed, least=0, most=LARGEST_SEED, example=0),
            seeds=1,
            dtype=one_of("dtype", self.dtype or dtype or "float64", DType),
        )
        check_config(config)
        check_differences(config)
        return config


def _listed(key: str, given: Any, choices: Iterable[Word]) -> list[Word]:
    """Return one or several of `choices` as a list. Raises UserError for anything else."""
    return [one_of(key, word, choices) for word in _words(key, given, choices)]


def _words(key: str, given: Any, choices: Iterable[str]) -> list[str]:
    """Return one or several words as a list. Raises UserError, which names `choices`, for anything else."""
    words = [given] if isinstance(given, str) else given
    if (
        not isinstance(words, list | tuple)
        or not words
        or not all(isinstance(word, str) for word in words)
    ):
        example = _EXAMPLES[key.partition(".")[0]]
        raise _refusal(
            f"{key}: a name, or a list of names",
            given,
            ", ".join(map(str, choices)),
            example,
        )
    return [str(word) for word in words]


def whole(key: str, given: Any, *, least: int = 1, most: int, example: int) -> int:
    """Return a whole number of Python or NumPy. Raises UserError for anything else: True and 2.0 are none."""
    with suppress(TypeError):
        if not isinstance(given, bool) and least <= operator.index(given) <= most:
            return operator.index(given)
    raise _refusal(
        f"{key}: a whole number",
        given,
        f"a whole number from {least} to {most}",
        f"{key}={example}",
    )


def _blocks(given: Any) -> Any:
    """Return the setting `blocks` of the same meaning. Raises UserError if it has another form."""
    if given == "all":
        warnings.warn(_ALL, FutureWarning, stacklevel=5)
    if isinstance(given, str):
        return given
    if isinstance(given, list | tuple) and given and all(map(_is_entry, given)):
        return [list(entry) if isinstance(entry, tuple) else entry for entry in given]
    allowed = "each, pairs, a name, or a list of names and (row, column) pairs"
    raise _refusal(
        "blocks: a name, or a list of names and pairs",
        given,
        allowed,
        _EXAMPLES["blocks"],
    )


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, str) or (
        isinstance(entry, list | tuple)
        and len(entry) == 2
        and all(isinstance(name, str) for name in entry)
    )


def device_of(given: Any) -> torch.device:
    """Return a device. Raises UserError for a device that this machine lacks, or that holds no numbers."""
    import torch

    if isinstance(given, str) and given == "cpu":  # to count cards loads a library
        return torch.device("cpu")
    counts = {"cpu": 1, "cuda": torch.cuda.device_count()}
    with suppress(RuntimeError, TypeError, ValueError, OverflowError):
        device = torch.device(given)
        if (device.index or 0) < counts.get(device.type, 0):
            return device
    raise UserError(
        "device: it is not there",
        got=plain(repr(given)),
        allowed=", ".join(
            ["cpu", *(f"cuda:{number}" for number in range(counts["cuda"]))]
        ),
        remedy="device='cpu'",
    )


def _spectrum(given: Any) -> SpectrumConfig:
    defaults = vars(SpectrumConfig())
    settings = _by_name("spectrum", given, defaults)
    for key, value in settings.items():
        is_float = isinstance(defaults[key], float)
        if key == "probes":
            settings[key] = one_of("spectrum.probes", value, Probes)
        elif isinstance(value, bool) or not isinstance(
            value, (int, float) if is_float else int
        ):
            allowed = "a number" if is_float else "a whole number"
            example = f"spectrum={{{key!r}: {defaults[key]}}}"
            raise _refusal(
                f"spectrum.{key} is of another kind", value, allowed, example
            )
    return SpectrumConfig(**settings)


def _directions(given: Any) -> DirectionsConfig:
    words = {"named": NamedDirection, "rules": Optimiser}
    settings = _by_name("directions", given, [*words, "gradients", "starts"])
    for key, value in settings.items():
        name = f"directions.{key}"
        is_list = key in words
        settings[key] = (
            _listed(name, value, words[key])
            if is_list
            else whole(name, value, most=10_000, example=20)
        )
    return DirectionsConfig(**settings)


def _by_name(key: str, given: Any, known: Iterable[str]) -> dict[str, Any]:
    """Return settings by name. Raises UserError for anything but a dictionary, and for a name that is not `known`."""
    if given is not None and not isinstance(given, Mapping):
        raise _refusal(
            f"{key}: no settings by name",
            given,
            f"a dict with keys of {', '.join(known)}",
            _EXAMPLES[key],
        )
    return {one_of(key, name, known): value for name, value in (given or {}).items()}


def _refusal(what: str, given: Any, allowed: str, example: str) -> UserError:
    return UserError(
        what, got=plain(repr(given)), allowed=allowed, remedy=f"for example {example}"
    )


def one_of(key: str, given: Any, choices: Iterable[Word]) -> Word:
    """Return the member of `choices` with this name. Raises UserError for anything else."""
    known = {str(choice): choice for choice in choices}
    if isinstance(given, str) and str(given) in known:
        return known[str(given)]
    name = given if isinstance(given, str) else ""
    example = f"for example {_EXAMPLES.get(key, repr(next(iter(known))))}"
    raise unknown_name(
        f"{key}: there is no such choice",
        name[:100],
        known,
        example,
        got=plain(name or repr(given)),
    )
