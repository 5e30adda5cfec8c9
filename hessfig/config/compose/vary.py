"""Expands the setting `sweep.vary` into every combination, and checks its values."""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from hessfig.config.facts import VARIED
from hessfig.config.schema import GROUPS, Config
from hessfig.config.settings import (
    is_setting,
    meant,
    role_of,
    settings,
    siblings,
    top_level,
    value_of,
    wrong_kind,
)
from hessfig.config.user.user_dir import NAME, NAME_IN_WORDS
from hessfig.errors import UserError, unknown_name


def check_shapes(config: Config) -> None:
    """Raise UserError for a list in a list, an axis that is not varied, and invalid names; OmegaConf checks types."""
    for key, setting in settings().items():
        value = value_of(config, key)
        if setting.is_flat and isinstance(value, list) and list in map(type, value):
            raise wrong_kind(key, value)
    _check_axis(config)
    _check_name("sweep.name", config.sweep.name)
    for key in ("name", "sweep"):
        if getattr(config.figure, key):
            _check_name(f"figure.{key}", getattr(config.figure, key))


def _check_axis(config: Config) -> None:
    axis = config.sweep.axis
    allowed = ["sigma", "step", "index", *config.sweep.vary]
    if axis not in allowed:
        what = "sweep.axis is not what this sweep runs along"
        otherwise = f"sweep.vary={{{axis}: [VALUES]}}"
        raise unknown_name(what, axis, allowed, otherwise, got=f"sweep.axis={axis}")


def _check_name(key: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise UserError(
            f"{key} is the name of a {'folder' if 'sweep' in key else 'file'}",
            got=repr(name),
            allowed=NAME_IN_WORDS,
            remedy=f"for example {key}=mine",
        )


MOST_VARIANTS = 500  # each takes some hundredths of a second to be checked
Vary = dict[str, list[Any]]


def values_to_vary(vary: Mapping[str, Any], given: Mapping[str, Any]) -> Vary:
    """Return {dotted key: values} of `vary` without the keys in `given`, the settings of the command line.

    A `sweep.vary={...}` that is given replaces the sweep's own; one value may stand for
    a list of one. Raises UserError for a key that is not a setting or cannot vary, is
    given as well, or has no values, and for a value that cannot name a variant.
    """
    asked = dict(_flat(vary, ""))
    if "sweep.vary" in given:
        entries = {
            key.removeprefix("sweep.vary."): None
            for key in given
            if key.startswith("sweep.vary.")
        }
        by_hand = dict(_flat(given["sweep.vary"] or {}, "")) | entries
        _check_not_given_too(by_hand, given)
        asked = {key: value for key, value in asked.items() if key in by_hand}
    return {
        key: _values(key, value) for key, value in asked.items() if key not in given
    }


def combinations(
    vary: Vary, variants: Collection[Mapping[str, Any]] = ()
) -> Iterator[dict[str, Any]]:
    """Yield every combination, {key: value}, of each of `variants`; the first key changes slowest.

    Raises UserError for more than MOST_VARIANTS, counted before the first is made.
    """
    count = math.prod(map(len, vary.values())) * max(1, len(variants))
    if count > MOST_VARIANTS:
        raise UserError(
            f"sweep.vary: {count} combinations",
            got=", ".join(
                f"{key}: {len(values)} values" for key, values in vary.items()
            ),
            allowed=f"at most {MOST_VARIANTS} combinations",
            remedy="vary fewer settings at once, or split the sweep",
        )
    for variant, *values in itertools.product(variants or [{}], *vary.values()):
        yield {**variant, **dict(zip(vary, values, strict=True))}


def changed(variants: Any, given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the {dotted key: value} of each of `sweep.variants`, less the keys in `given`; equal ones once.

    Raises UserError for one that is not a mapping, a key that is not a setting or
    cannot vary, and a value that cannot name a variant.
    """
    for variant in variants:
        if not isinstance(variant, Mapping):
            raise UserError(
                "sweep.variants: a variant is what it changes",
                got=variant,
                allowed="a list of {setting: value}; {} changes nothing",
                remedy="sweep.variants=[{}, {model.scores: cosine}]",
            )
    if "sweep.variants" in given:
        _check_not_given_too(
            [key for variant in variants for key, _ in _flat(variant, "")],
            given,
            "sweep.variants",
        )
    kept = [
        {
            key: _values(key, value)[0]
            for key, value in _flat(variant, "")
            if key not in given
        }
        for variant in variants
    ]
    return [
        variant for place, variant in enumerate(kept) if variant not in kept[:place]
    ]


def variant_name(choice: Mapping[str, Any]) -> str:
    """Return 'key=value,...' without the number of layers, which has a column of its own."""
    return ",".join(
        f"{key}={value}" for key, value in choice.items() if key != "model.n_layers"
    )


def _flat(vary: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys: {model: {n_heads: 2}} means the same as {model.n_heads: 2}."""
    for key, value in vary.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _check_not_given_too(
    by_hand: Collection[str], given: Mapping[str, Any], where: str = "sweep.vary"
) -> None:
    for key in by_hand:
        if key in given:
            raise UserError(
                f"{where}: {key} is given one value as well",
                got=f"{key}={given[key]}",
                allowed=f"either {key}=VALUE, or values of {key} in {where}",
                remedy="leave one of them out",
            )


def _values(key: str, value: Any) -> list[Any]:
    _check_key(key)
    values = list(value) if isinstance(value, list | tuple) else [value]
    form = f"sweep.vary={{{key}: [VALUE, ...]}}"
    if not values:
        raise UserError(
            f"sweep.vary: {key} has no values",
            got=f"{key}: []",
            allowed=form,
            remedy="name a value",
        )
    for entry in values:
        if not isinstance(entry, int | float | str | None) or set(str(entry)) & set(
            ",=\"'[]{}$\\"
        ):
            raise UserError(
                f"sweep.vary: a value of {key} cannot name a variant",
                got=entry,
                allowed="numbers, true, false, null, and text without any of , = \" ' [ ] { } $ \\",
                remedy="make it a separate sweep",
            )
    # 1 and 1.0 are one number.
    numbers = [float(one) if type(one) in (int, float) else str(one) for one in values]
    if len(set(numbers)) < len(values):
        raise UserError(
            f"sweep.vary: {key} has a value twice",
            got=values,
            allowed=form,
            remedy="name every value once",
        )
    return values


def _check_key(key: str) -> None:
    if not is_setting(key):
        raise UserError(
            f"sweep.vary: there is no setting {key!r}",
            got=key,
            allowed=", ".join(
                siblings(key) if "." in key else filter(_is_variable, settings())
            ),
            remedy=meant(key),
        )
    if not _is_variable(key):
        raise UserError(
            f"sweep.vary: {key} cannot be varied",
            got=key,
            allowed=_variable_in_words(),
            remedy=f"hessfig run {key}=A sweep.name=NAME, once for each value",
        )


def _is_variable(key: str) -> bool:
    """Whether variants may differ in a setting: in networks, data, states or ways to measure."""
    return role_of(key) in VARIED


def _variable_in_words() -> str:
    *groups, last = (key for key in top_level(*VARIED) if key in GROUPS)
    single = (key for key in top_level(*VARIED) if key not in GROUPS)
    return f"settings of {', '.join(groups)} and {last}, and {', '.join(single)}"
