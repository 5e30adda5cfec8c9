"""Limits of a sweep, checked before planning: variants that differ, settings that are read, cells, bytes and years."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hessfig.config.enums import DType, Method, State
from hessfig.config.given import is_off, setting_of
from hessfig.config.machine import cores, memory_of_worker
from hessfig.config.schema import Config
from hessfig.config.settings import settings, value_of
from hessfig.config.user.user_code import is_own
from hessfig.errors import UserError, typed
from hessfig.measurements.catalogue import CATALOGUE
from hessfig.measurements.settings_and_costs import (
    dense_bytes,
    dense_operations,
    keys_read,
    norm_bytes,
)
from hessfig.models import network_checks
from hessfig.models.exact.support import is_counted
from hessfig.models.protocol import kind
from hessfig.record import FROBENIUS
from hessfig.sweep.variant import Variant

_ASSUMED_FLOPS = {DType.float64: 2.5e10, DType.float32: 8e10}  # of one core
_BYTES = {DType.float64: 8, DType.float32: 4}  # of a number
MOST_CELLS, MOST_YEARS = 200_000, 100  # a plan of as many cells takes some seconds
_YEAR = 365 * 24 * 3600.0


def check_variants(variants: Sequence[Variant]) -> None:
    """Raise UserError for the first setting that cannot be measured, of a variant or of all together."""
    _check_number(variants)
    for variant in variants:
        variant.check()
    _check_distinct(variants)
    _check_cost(variants)


_OF_QUANTITIES = (
    "estimator",
    "spectrum",
    "landscape",
    "approximation",
    "directions",
    "compression",
    "blocks",
    "parts",
)


def unread_setting(variant: Variant, key: str) -> UserError | None:
    """Return the error for a setting that neither network, data, state nor quantities read; None if one reads it."""
    group = key.partition(".")[0]
    config = variant.config
    read = variant.keys_read
    key = setting_of(key)
    refusal = network_checks.unread(config, key)
    if refusal or is_off(config, key):
        return refusal
    if group == "grid" and "sigma" not in variant.axes:
        return _idle(
            key,
            config,
            "sigma changes nothing of this network",
            "networks that sigma changes",
        )
    # Of an update, all that makes it.
    every = set() if settings()[key].says.watches else {"training"}
    if (
        group == "training"
        and config.state.kind != State.trained
        and not {key, *every} & read
    ):
        return _idle(
            key,
            config,
            "nothing is trained, and no quantity takes updates",
            "state=trained",
            "state=trained",
        )
    if (
        group in _OF_QUANTITIES
        and key not in read
        and not any(map(is_own, config.quantities))
    ):
        readers = []
        for row in CATALOGUE.values():
            if key in keys_read(row.settings(config, variant.layout)):
                readers.append(row.name)
        remedy = f"quantities=[{readers[0]}]" if readers else ""
        return _idle(
            key,
            config,
            "nothing that is measured reads it",
            ", ".join(readers) or "others",
            remedy,
        )
    return None


def _idle(
    key: str, config: Config, why: str, allowed: str, remedy: str = ""
) -> UserError:
    got = f"{key}={typed(value_of(config, key))}, quantities=[{','.join(config.quantities)}]"
    return UserError(
        f"{key}: {why}",
        got=got,
        allowed=allowed,
        remedy=f"{remedy}{', or ' * bool(remedy)}leave {key} out",
    )


def _check_number(variants: Sequence[Variant]) -> None:
    """Raise UserError for more cells than any folder should hold; counted, not listed."""
    count = sum(variant.num_cells for variant in variants)
    if count > MOST_CELLS:
        config = variants[0].config
        raise UserError(
            f"this sweep has {count} cells",
            got=f"seeds={config.seeds}, grid.points={variants[0].num_sigmas}, {len(variants)} variants, "
            f"{len(config.quantities)} quantities",
            allowed=f"at most {MOST_CELLS} cells (seeds x sigmas x variants x quantities)",
            remedy="for example seeds=20 grid.points=20, or sweeps of their own for some of the variants",
        )


def _check_distinct(variants: Sequence[Variant]) -> None:
    """Raise UserError for two variants of one name and depth (n_layers 1 and +1): each would claim the other's rows."""
    names = [(variant.name, variant.layout.num_layers) for variant in variants]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(
            "sweep.vary: two variants are the same",
            got=f"{twice[0] or 'no variant'}, {twice[1]} layers, twice",
            allowed="variants that differ",
            remedy="name every value once",
        )


def _check_cost(variants: Sequence[Variant]) -> None:
    """Raise UserError for a network, batch or probes that need more memory than there is, and for work of centuries.

    The bytes are a lower bound for one worker: what is held for certain, not what
    products take in addition.
    """
    for variant in variants:
        most = memory_of_worker(variant.config)
        for key, what, size in _held(variant):
            if size > most:
                raise _too_large(key, what, size, most)
    years = sum(map(_seconds, variants)) / cores() / _YEAR
    if years > MOST_YEARS:
        rate = assumed_flops(variants[0].config) / 1e9
        raise UserError(
            f"this sweep would take about {years:.0f} years on this machine",
            got=f"{sum(variant.num_cells for variant in variants)} cells, {rate:g} GFLOP/s a core assumed",
            allowed=f"at most {MOST_YEARS} years",
            remedy="smaller networks and batches, fewer seeds or probes",
        )


def assumed_flops(config: Config) -> float:
    """Return the operations per second assumed for a core before anything is measured."""
    return _ASSUMED_FLOPS[config.dtype]


_START = 0.3 * 2**30  # bytes: PyTorch
_OF_A_LAYER = 12  # numbers at each position and of each width that products keep, as docs/performance.md has them
_TOGETHER = 11  # the network, and two sets of derivatives of each of the five probes that are taken together


def expected_memory(variant: Variant) -> float | None:
    """Return roughly how many bytes a worker needs for a cell; None if the settings do not determine this."""
    config, layout = variant.config, variant.layout
    task = config.task
    model = config.model
    facts = kind(config.model.kind)
    if facts.place or not task.data.facts.length:
        return None
    is_dense = _is_dense(variant)
    dense = dense_bytes(config, layout) if is_dense else 0.0
    held = dense + sum(size for _, _, size in _held(variant))
    if is_counted(model) and (is_dense or FROBENIUS in config.quantities):
        if is_dense:
            estimator = replace(config.estimator, method=Method.dense)
            config = replace(config, estimator=estimator)
        return _START + norm_bytes(config, layout) + held
    scores = model.n_heads * task.num_tokens if facts.has_scores else 0
    positions = task.batch_size * task.num_tokens * max(layout.num_layers, 1)
    kept = positions * (_OF_A_LAYER * model.d_model + scores) * _TOGETHER
    return _START + _BYTES[config.dtype] * kept + held


def _is_dense(variant: Variant) -> bool:
    """Whether blocks are made dense: by the estimator, or for all of their eigenvalues."""
    config = variant.config
    quantities = [variant.quantity(name) for name in config.quantities]
    return config.estimator.method == Method.dense or any(
        quantity.operations is dense_operations for quantity in quantities
    )


def _held(variant: Variant) -> Iterator[tuple[str, str, int]]:
    """Yield what a worker holds in memory: the setting, the object, its bytes."""
    config, layout = variant.config, variant.layout
    number = _BYTES[config.dtype]
    weights = sum(weight.size for weight in layout.parameters or layout.weights)
    if config.task.data.facts.length:
        yield from _activations(config, number)
    place = kind(config.model.kind).place  # without one its width says how large it is
    is_given = (
        bool(place) and getattr(config.model, place.partition(".")[2]) is not None
    )
    key = place if is_given else "model.d_model"
    yield key, f"a network of {weights} weights", number * weights
    widest = variant.widest
    if config.estimator.method.facts.fewest:
        count = config.estimator.num_probes
        what = f"{count} probes of {widest} signs"
        yield "estimator.num_probes", what, count * widest
    for name in config.quantities:
        key = variant.quantity(name).holds
        if key:
            steps = min(value_of(config, key), widest)
            what = f"{steps} Lanczos vectors of {widest} numbers"
            yield key, what, number * steps * widest


def _activations(config: Config, number: int) -> Iterator[tuple[str, str, int]]:
    task, model = config.task, config.model
    length = task.num_tokens
    key = f"task.{task.data.facts.length}"
    if task.batch_size > length:
        key = "task.batch_size"
    tokens = number * task.batch_size * length
    shape = f"a batch of {task.batch_size} sequences of {length} tokens"
    yield key, f"{shape}, {model.d_model} wide", tokens * model.d_model
    if kind(model.kind).has_scores:
        what = f"the attention scores of {shape}, {model.n_heads} heads"
        yield key, what, tokens * model.n_heads * length


def _seconds(variant: Variant) -> float:
    """Return the seconds of one variant on one core; 0 if unknown."""
    config = variant.config
    each = sum(
        variant.quantity(name).operations(config, variant.layout)
        for name in config.quantities
    )
    networks = config.seeds * variant.num_sigmas * len(variant.steps())
    return each * networks / assumed_flops(config)


def _too_large(key: str, what: str, size: int, most: int) -> UserError:
    return UserError(
        f"{key}: {what} take {_bytes(size)} of memory in each worker",
        got=f"{size} bytes",
        allowed=f"at most {most} bytes ({_bytes(most)}), which this machine has (or launcher.memory asks for)",
        remedy=f"a smaller {key}",
    )


def _bytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size < 1e12 else f"{size / 1e12:.1f} TB"
