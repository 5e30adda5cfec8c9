"""Synthetic tables for the rules of claims: each has a size of the effect and a noise over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from hessfig.analysis.arrays import StoredHessian
from hessfig.analysis.claims.rule import Evidence
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import growth_rate
from hessfig.studies.components.rules import RAISED, REMOVED, TURNED
from hessfig.terms import MLP, Attention, Block, Kind, Part
from tests.analysis.spectral import spectral_table

SEEDS = range(6)
SIGMAS = [float(x) for x in np.logspace(-2, 1, 10)]
Row = dict[str, Any]
Law = Callable[[float], float]


def normal(seed: int, *words: object) -> float:
    """Return a standard normal number of its own for these words."""
    return _normal(seed, repr(words))


@cache
def _normal(seed: int, words: str) -> float:
    return float(np.random.default_rng([seed, *map(ord, words)]).normal())


def block(row: str, value: float, col: str = "", **place: Any) -> Row:
    """Return the row of a norm of one block of a layer."""
    here = {"layer": 1, "row_layer": 1, "quantity": "frobenius", **place}
    return {**here, "row": row, "col": col or row, "value": value}


def of(rows: Iterable[Row], **beside: Evidence) -> Evidence:
    """Return the evidence of a table of these rows, or an empty one."""
    found = list(rows)
    table = spectral_table(found or [{"value": 1.0}])
    return Evidence(table if found else table.iloc[:0], beside=beside)


def gaps(gap_of: Mapping[str, Law], noise: float, setting: str = "model.attention") -> Evidence:
    """Return norms of W_V and W_Q whose exponents in sigma differ by a gap, which may depend on sigma."""
    return of(
        block(row, sigma ** (2 + extra + noise * normal(seed, name, row)), variant=variant, seed=seed, sigma=sigma)
        for name, gap in gap_of.items()
        for variant in [f"{setting}={name}" if name else ""]
        for seed in SEEDS
        for sigma in SIGMAS
        for row, extra in (("W_V", 0.0), ("W_Q", gap(sigma)))
    )


def components(gap: float, base: float, noise: float) -> Evidence:
    """Return norms of networks of components whose exponents of W_Q and W_V differ by a gap, and of their base."""
    return of(
        block(row, sigma ** (2 + extra + noise * normal(seed, variant, row)), variant=variant, seed=seed, sigma=sigma)
        for variant in ("", *REMOVED, *TURNED, *RAISED)
        for seed in SEEDS
        for sigma in SIGMAS
        for row, extra in (("W_V", 0.0), ("W_Q", gap if variant else base))
    )


def softmax(ours: float, linear: float, noise: float) -> Evidence:
    """Return a gap with softmax and one without."""
    return gaps({"softmax": lambda s: ours, "linear": lambda s: linear}, noise)


def prenorm(without: float, normed: Law, noise: float) -> Evidence:
    """Return a gap without a norm, and one with pre-LN."""
    plain = gaps({"": lambda s: without}, noise)
    return Evidence(gaps({"": normed}, noise).table, beside={"sigma": plain})


def depths(growth: float, theirs: float, noise: float) -> Evidence:
    """Return exponents in sigma, of H and of H_o, that grow by so much from one layer to three."""

    def rows(name: str, change: float) -> Iterable[Row]:
        for depth in (1, 2, 3):
            for seed in SEEDS:
                p = 2 + change * (depth - 1) / 2 + noise * normal(seed, name, depth)
                for layer in range(1, depth + 1):
                    for sigma in SIGMAS:
                        place = {"layer": layer, "row_layer": layer, "num_layers": depth, "seed": seed}
                        for part in ("H", "H_o"):
                            yield block("W", sigma**p, part=part, sigma=sigma, **place)

    return of(rows("ours", growth), mlp=of(rows("mlp", theirs)))


def at_scores(ends: Mapping[float, tuple[float, float]], noise: float) -> Evidence:
    """Return shares of H_fT of query_key that go from the first to the last temperature, at each sigma."""

    def rows() -> Iterable[Row]:
        for sigma, (first, last) in ends.items():
            for seed in SEEDS:
                for step, t in enumerate((1e-4, 1, 1e4)):
                    share = first + (last - first) * step / 2 + noise * normal(seed, sigma, t)
                    share = min(max(share, 0.0), 1.0)
                    place = {"variant": f"model.kind=self_attention,model.temperature={t}", "seed": seed}
                    for part, value in (("H_fT", share), ("H_oT", 1 - share)):
                        yield block("query_key", value, part=part, sigma=sigma, **place)

    return of(rows())


def of_heads(fewest: float, most: float, noise: float) -> Evidence:
    """Return shares of zero entries of the attention's H_f with one and with four heads."""
    place = {"row": "attention", "layer": 1, "row_layer": 1, "part": "H_f", "quantity": "zero_share"}
    return of(
        {**place, "variant": f"model.n_heads={heads}", "seed": seed, "value": share + noise * normal(seed, heads)}
        for seed in SEEDS
        for heads, share in ((1, fewest), (4, most))
    )


def norms_of_heads(fewest: float, most: float, noise: float) -> Evidence:
    """Return norms of a block of which H_f has such a share, with one and with four heads."""
    return of(
        block("W_Q", value, part=part, variant=f"model.n_heads={heads}", seed=seed)
        for seed in SEEDS
        for heads, mean in ((1, fewest), (4, most))
        for share in [min(max(mean + noise * normal(seed, heads), 0.001), 0.999)]
        for part, value in (("H_f", share), ("H_o", 1 - share))
    )


def sublayers(logs: Mapping[str, float], noise: float, last: Mapping[str, float] | None = None) -> Evidence:
    """Return norms of blocks, log10, before and after a training."""
    return of(
        block(row, 10 ** (log + noise * normal(seed, row, step)), seed=seed, step=step, variant=f"state.step={step}")
        for step, found in ((0, logs), (1000, {**logs, **(last or {})}))
        for row, log in found.items()
        for seed in SEEDS
    )


def layered(lower: float, steeper: float, off: float, noise: float) -> Evidence:
    """Return blocks of two layers: value blocks of which the top one is higher, the first steeper beyond 1, and others
    whose exponents are a share `off` their laws, as is that of a chain.
    """
    single = Architecture()
    laws = {
        (row, part): float(growth_rate(Block(1, row, row, 1), part, single).exponent or 0)
        for row, part in (("W_Q", Part.H), ("W_Q", Part.H_o), ("W_Q", Part.H_f), ("W_V", Part.H_o))
    }

    def rows() -> Iterable[Row]:
        for seed, layer, sigma in product(SEEDS, (1, 2), SIGMAS):
            place = {"layer": layer, "row_layer": layer, "num_layers": 2, "seed": seed, "sigma": sigma}
            extra = (steeper + noise * normal(seed, "steeper")) * (layer == 1) * max(math.log10(sigma), 0)
            log = 2 * math.log10(sigma) + (lower + noise * normal(seed, "lower")) * (layer == 2) + extra
            yield block("W_V", 10**log, **place)
            for (row, part), power in laws.items():
                p = power * (1 + off + noise * normal(seed, row, part.value))
                yield block(row, sigma**p, part=part.value, **place)

    def chain() -> Iterable[Row]:
        for seed, sigma in product(SEEDS, SIGMAS):
            place = {"layer": 2, "row_layer": 2, "num_layers": 2, "seed": seed, "sigma": sigma}
            yield block("W_V", sigma ** (18 * (1 + off + noise * normal(seed, "law"))), **place)

    linear = Architecture(num_layers=2, attention=Attention.linear, mlp=MLP.none, attention_skip=False)
    theirs = replace(of(chain()), architectures={("", 2): linear})
    return replace(of(rows(), softmax=theirs), architectures={("", 2): replace(single, num_layers=2)})


def varied(
    setting: str, logs: Mapping[tuple[str, str, str], tuple[float, float]], noise: float, **extra: Any
) -> Evidence:
    """Return numbers, log10, that go from the first to the last value of a setting, by (quantity, row, part)."""
    return of(
        block(
            row,
            10 ** (first + (last - first) * rank / 2 + noise * normal(seed, row, value)),
            **{"quantity": quantity, "part": part, "seed": seed, "variant": f"{setting}={value}", **extra},
        )
        for (quantity, row, part), (first, last) in logs.items()
        for rank, value in enumerate((1, 10, 100))
        for seed in SEEDS
    )


def powers(off: float, noise: float) -> Evidence:
    """Return norms of blocks of H_o and H_f that go with the counted powers of the weights, all off by so much."""
    layer = Architecture(kind=Kind.self_attention)
    counted = {
        (row, col, part, weight): growth_rate(Block(1, row, col, 1), part, layer, axis=weight).exponent
        for row, col in (("W_Q", "W_Q"), ("W_V", "W_V"), ("W_K", "W_K"), ("W_V", "W_Q"), ("W_Q", "W_K"))
        for part in (Part.H_o, Part.H_f)
        for weight in ("W_Q", "W_K", "W_V")
    }
    return of(
        block(row, alpha ** (p + off + noise * normal(seed, *key)), col, part=part.value, seed=seed, variant=variant)
        for key, p in counted.items()
        if p is not None
        for row, col, part, weight in [key]
        for alpha in (0.25, 0.5, 1.0, 2.0, 4.0)
        for variant in [f"model.scaled_weight={weight},model.weight_scale={alpha}"]
        for seed in SEEDS
    )


def sizes(width: float, depth: float, noise: float, smallest: float | None = None) -> Evidence:
    """Return both ends of spectra that go with width and depth to these powers; `smallest`: of the other end alone."""

    def rows(name: str, power: float) -> Iterable[Row]:
        for n in (1, 2, 4, 8, 16):
            place = {"num_layers": n} if name == "depth" else {"variant": f"model.d_model={n}"}
            for seed in SEEDS:
                p = power + noise * normal(seed, name)
                yield {**place, "seed": seed, "value": n**p}
                low = p if smallest is None else smallest + noise * normal(seed, name, "low")
                yield {**place, "seed": seed, "quantity": "smallest_eigenvalue", "value": -(n**low)}

    return replace(of(rows("width", width)), beside={"model_size_depth": of(rows("depth", depth))})


def beyond(without: float, growth: float, noise: float) -> Evidence:
    """Return norms whose supremum beyond sigma = 1 is so many decades above that with pre-LN, which grows by some."""

    def rows(name: str, level: float, slope: float) -> Iterable[Row]:
        for seed in SEEDS:
            for sigma in SIGMAS:
                log = level + slope * math.log10(sigma) + noise * normal(seed, name)
                yield block("W_V", 10**log, sigma=sigma, seed=seed)

    return of(rows("pre", 0.0, growth), sigma=of(rows("none", without, 0.0)))


def indefinite(more: float, noise: float) -> Evidence:
    """Return shares of negative eigenvalues, larger by so much with softmax."""
    return of(
        block(
            row,
            0.2 + (kind == "softmax") * (more + noise * normal(seed)),
            **{"quantity": "share_negative", "seed": seed, "variant": f"model.attention={kind},model.norm=none"},
        )
        for kind in ("softmax", "linear")
        for row in ("W_Q", "W_V")
        for seed in SEEDS
    )


def entries(gap: float, noise: float, linear: float = 0.0) -> Evidence:
    """Return Hessians whose (V, V) entries are larger than those of (Q, Q): by `linear` decades without softmax, and by
    `gap` more with it.
    """

    def hessians() -> Iterable[StoredHessian]:
        for kind in ("softmax", "linear"):
            for seed in SEEDS:
                size = 10 ** (linear + (kind == "softmax") * (gap + noise * normal(seed)))
                matrix = np.diag([size, size, size, 1.0, 1.0, 1.0])
                yield StoredHessian(f"model.attention={kind}", 0.2, seed, matrix, ["W_V", "W_Q"], [3, 3], math.nan)

    return Evidence(of([]).table, hessians=hessians)


def scored(diminish: float, dominate: float, noise: float, *, temperature: bool = True) -> Evidence:
    """Return H_o of queries over that of values: at the last temperature (or correlation), and how far below at the
    first.

    The factor 1 / t^2 of the temperature is in the query block, as it is in a network.
    """
    setting = "model.temperature" if temperature else "task.correlation"
    values = (0.1, 1.0, 10.0) if temperature else (0.0, 0.5, 0.9)
    logs = [dominate - diminish * (2 - rank) / 2 for rank in range(3)]
    return of(
        block(
            row,
            10 ** ((log + noise * normal(seed, rank)) * (row == "W_Q")) / (t**2 if temperature and row == "W_Q" else 1),
            **{"part": "H_o", "seed": seed, "variant": f"{setting}={t}"},
        )
        for row in ("W_Q", "W_V")
        for rank, (t, log) in enumerate(zip(values, logs, strict=True))
        for seed in SEEDS
    )
