"""The arguments of hessfig.measure and hessfig.Monitor: what is measured, and how, checked."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hessfig.config.enums import Data, DType, Heading, Method, Probes, Products
from hessfig.config.of_quantities import DirectionsConfig
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, SpectrumConfig, TaskConfig
from hessfig.errors import UserError, did_you_mean, plain
from hessfig.terms import Kind, Optimiser, Part

if TYPE_CHECKING:
    import torch


PRODUCTS = ("auto", Products.curvlinops.value, Products.differences.value)
ALL_PARTS = ("H", "H_o", "H_f")
Spec = str | tuple[Any, ...] | list[Any]
_EXAMPLES = {
    "blocks": 'blocks=["W_V", ("W_Q", "W_V"), "all"]',
    "parts": 'parts=["H", "H_o"]',
    "quantities": 'quantities=["frobenius", "trace"]',
    "spectrum": 'spectrum={"k": 3, "steps": 80}',
    "directions": 'directions={"named": ["gradient", "update"], "rules": ["muon"]}',
    "estimator": 'estimator="auto"',
    "dtype": 'dtype="float64"',
}


@dataclass(frozen=True)
class Measure:
    """What is measured, and how: the settings that hessfig.measure and hessfig.Monitor share.

    Parameters
    ----------
    blocks : str or list
        "each" (the diagonal block of every weight), "all" (every pair of weights), one name, or a list of names,
        groups, patterns and (row, column) pairs; in a list the name "all" is the whole network.
    parts : str, list or None
        "H", "H_o", "H_f" (eq. 2), or a list. None: all three if the loss is convex in the network's outputs, else H.
    quantities : str or list of str
        Names from hessfig.measurements.catalogue.
    estimator : str
        "auto", "hutchinson", "aligned", "xtrace" or "dense".
    num_probes : int
        Random vectors per column of blocks.
    spectrum : dict or None
        Settings of eigenvalues and densities by name, such as {"k": 3}.
    directions : dict or None
        Settings of the quantity along by name: {"named": ["update"], "rules": ["adamw", "muon"], "gradients": 20}.
    seed : int
        Of all random vectors.
    products : str
        "auto", "curvlinops", or "differences" of gradients, which need no double backward: for Frobenius norms alone,
        whose error has that of the products in it (docs/accuracy.md).
    dtype, device : str or None
        Of the computation. None: float64 on the CPU; a Monitor takes the device of its network, and float32 there.

    Raises
    ------
    UserError
        For the first value that does not fit.

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
        from hessfig.config.checks import LARGEST_SEED, check
        from hessfig.config.science import MOST_PROBES
        from hessfig.measurements.catalogue import quantities as known
        from hessfig.measurements.requirements import check_differences

        parts = ALL_PARTS if self.parts is None else self.parts
        config = Config(
            task=TaskConfig(data=Data.python),
            model=ModelConfig(kind=Kind.python),
            estimator=EstimatorConfig(
                method=Method(one_of("estimator", self.estimator, Method)),
                products=_products(self.products),
                num_probes=whole("num_probes", self.num_probes, least=1, most=MOST_PROBES, example=20),
            ),
            spectrum=_spectrum(self.spectrum),
            directions=_directions(self.directions),
            blocks=_blocks(self.blocks),
            parts=[Part(part) for part in _listed("parts", parts, Part)],
            quantities=_listed("quantities", self.quantities, known(), own=True),
            first_seed=whole("seed", self.seed, least=0, most=LARGEST_SEED, example=0),
            seeds=1,
            dtype=DType(one_of("dtype", self.dtype or dtype or DType.float64.value, DType)),
        )
        check(config)
        check_differences(config)
        return config


def _products(given: Any) -> Products:
    name = one_of("products", given, PRODUCTS)
    return Products.linearised if name == PRODUCTS[0] else Products(name)


def _listed(key: str, given: Any, choices: Iterable[str], *, own: bool = False) -> list[str]:
    """Return one or several words as a list: of `choices`, or (`own`) names of which others tell what they are."""
    words = [given] if isinstance(given, str) else given
    if not isinstance(words, list | tuple) or not words or not all(isinstance(word, str) for word in words):
        example = _EXAMPLES[key.partition(".")[0]]
        raise _refusal(f"{key}: a name, or a list of names", given, ", ".join(map(str, choices)), example)
    return [str(word) if own else one_of(key, word, choices) for word in words]


def whole(key: str, given: Any, *, least: int, most: int, example: int) -> int:
    """Return a whole number of Python's or numpy's; True and 2.0 are none."""
    try:
        number = least - 1 if isinstance(given, bool) else operator.index(given)
    except TypeError:
        number = least - 1
    if least <= number <= most:
        return number
    raise _refusal(f"{key}: a whole number", given, f"a whole number from {least} to {most}", f"{key}={example}")


def _blocks(given: Any) -> Any:
    """Return the setting `blocks` of the same meaning. Raises UserError for what is no name, pair or list of these."""
    if isinstance(given, str):
        return given
    if isinstance(given, list | tuple) and given and all(map(_is_entry, given)):
        return [list(entry) if isinstance(entry, tuple) else entry for entry in given]
    allowed = "each, all, a name, or a list of names and (row, column) pairs"
    raise _refusal("blocks: a name, or a list of names and pairs", given, allowed, _EXAMPLES["blocks"])


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
    found = _by_name("spectrum", given, known)
    for key, value in found.items():
        kinds = (int, float) if type(known[key]) is float else type(known[key])
        if key == "probes":
            found[key] = Probes(one_of("spectrum.probes", value, Probes))
        elif isinstance(value, bool) or not isinstance(value, kinds):
            allowed = "a number" if type(known[key]) is float else "a whole number"
            raise _refusal(f"spectrum.{key} is of another kind", value, allowed, f"spectrum={{{key!r}: {known[key]}}}")
    return SpectrumConfig(**found)


def _directions(given: Any) -> DirectionsConfig:
    of = {"named": Heading, "rules": Optimiser}
    found = _by_name("directions", given, [*of, "gradients", "starts"])
    for key, value in found.items():
        if key in of:
            found[key] = [of[key](one) for one in _listed(f"directions.{key}", value, of[key])]
        else:
            found[key] = whole(f"directions.{key}", value, least=1, most=10_000, example=20)
    return DirectionsConfig(**found)


def _by_name(key: str, given: Any, known: Iterable[str]) -> dict[str, Any]:
    """Return settings that are given by name. Raises UserError for what is none, and for a name there is not."""
    if given is not None and not isinstance(given, Mapping):
        raise _refusal(f"{key}: no settings by name", given, f"a dict with keys of {', '.join(known)}", _EXAMPLES[key])
    return {one_of(key, one, known): value for one, value in (given or {}).items()}


def _refusal(what: str, given: Any, allowed: str, example: str) -> UserError:
    return UserError(what, got=plain(repr(given)), allowed=allowed, remedy=f"for example {example}")


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
