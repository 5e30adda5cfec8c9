"""Synthetic tables for the rules of claims: each has a size of the effect and a noise over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from hessfig.analysis.arrays import StoredHessian
from hessfig.analysis.claims.rule import Evidence
from tests.analysis.spectral import spectral_table

SEEDS = range(6)
SIGMAS = [float(x) for x in np.logspace(-2, 1, 10)]
KS = [int(k) for k in np.unique(np.logspace(0, 3, 13).astype(int))]
Row = dict[str, Any]
Law = Callable[[float], float]


def normal(seed: int, *words: object) -> float:
    """Return a standard normal number of its own for these words."""
    return float(np.random.default_rng([seed, *map(ord, repr(words))]).normal())


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


def softmax(ours: float, linear: float, noise: float) -> Evidence:
    """Return a gap with softmax and one without."""
    return gaps({"softmax": lambda s: ours, "linear": lambda s: linear}, noise)


def prenorm(without: float, normed: Law, noise: float) -> Evidence:
    """Return a gap without a norm, and one with pre-LN."""
    plain = gaps({"": lambda s: without}, noise)
    return Evidence(gaps({"": normed}, noise).table, beside={"sigma": plain})


def depths(growth: float, theirs: float, noise: float) -> Evidence:
    """Return exponents in sigma that grow by so much from one layer to three."""

    def rows(name: str, change: float) -> Iterable[Row]:
        for depth in (1, 2, 3):
            for seed in SEEDS:
                p = 2 + change * (depth - 1) / 2 + noise * normal(seed, name, depth)
                for layer in range(1, depth + 1):
                    for sigma in SIGMAS:
                        place = {"layer": layer, "row_layer": layer, "num_layers": depth, "seed": seed}
                        yield block("W", sigma**p, sigma=sigma, **place)

    return of(rows("ours", growth), mlp=of(rows("mlp", theirs)))


def shares(setting: str, ends: Mapping[float, tuple[float, float]], noise: float) -> Evidence:
    """Return functional shares of W_Q that go from the first to the last value of a setting, at each sigma."""

    def rows() -> Iterable[Row]:
        for sigma, (first, last) in ends.items():
            for seed in SEEDS:
                for step, value in enumerate((1, 2, 4)):
                    share = first + (last - first) * step / 2 + noise * normal(seed, sigma, value)
                    share = min(max(share, 0.01), 0.99)
                    place = {"variant": f"{setting}={value}", "seed": seed, "sigma": sigma}
                    yield block("W_Q", share, part="H_f", **place)
                    yield block("W_Q", 1 - share, part="H_o", **place)
                    yield block("W_V", 0.0, part="H_f", status="structural_zero", **place)
                    yield block("W_V", 1.0, part="H_o", **place)

    return of(rows())


def single(pair: float, one: float, noise: float) -> Evidence:
    """Return functional shares of the query-key part with two weights, and with one."""

    def rows(share: float, names: list[tuple[str, str]], places: Iterable[float]) -> Iterable[Row]:
        for seed in SEEDS:
            found = min(max(share + noise * normal(seed, names), 0.01), 0.99)
            for sigma in places:
                for part, norm in (("H_f", found), ("H_o", 1 - found)):
                    for row, col in names:
                        yield block(row, norm * sigma**3, col, part=part, seed=seed, sigma=sigma)

    two = of(rows(pair, [("W_Q", "W_Q"), ("W_Q", "W_K"), ("W_K", "W_K")], [0.1, 1.0]))
    return of(rows(one, [("W_QK", "W_QK")], SIGMAS), blocks=two)


def landscape(exponent: float, margin: float, excess: float, noise: float) -> Evidence:
    """Return |L_{k+1} - L_k| ~ k^exponent, a bound so many decades above, and so much more than chance gives."""

    def rows() -> Iterable[Row]:
        for direction, distance in (("random", "None"), ("gradient", "0.5")):
            for seed in SEEDS:
                off = noise * normal(seed, direction)
                for k in KS:
                    size = 2.0 * k ** (exponent + off)
                    sizes = {"difference": size, "rms": 1.25 * size, "bound": size * 10 ** (margin + off)}
                    sizes["null"] = 1.25 * size / 10 ** (excess + off)
                    for name, value in sizes.items():
                        variant = f"landscape.direction={direction},landscape.distance={distance}"
                        place = {"variant": variant, "seed": seed, "index": k, "row": "", "part": ""}
                        yield {**place, "quantity": f"landscape_{name}", "value": value}

    return of(rows())


def stationarity(exponent: float, noise: float) -> Evidence:
    """Return |grad L_k| ~ k^exponent at the last step, as chance gives before."""

    def rows() -> Iterable[Row]:
        for step in (0, 4000):
            for seed in SEEDS:
                p = -0.5 if step == 0 else exponent + noise * normal(seed)
                for k in KS:
                    place = {"variant": f"state.step={step}", "step": step, "seed": seed, "index": k}
                    for name, value in (("rms", k**p), ("null", k**-0.5)):
                        yield {**place, "quantity": f"stationarity_{name}", "value": value, "row": "", "part": ""}

    return of(rows())


def data(norm: float, condition: float, noise: float) -> Evidence:
    """Return norms and condition numbers of the Hessian of k samples with these exponents."""
    return of(
        {**block(row, 3 * k ** (p + noise * normal(seed, name, row))), "quantity": name, "seed": seed, "index": k}
        for name, p in (("subset_norm", norm), ("subset_condition_number", condition))
        for row in ("W_Q", "W_V")
        for seed in SEEDS
        for k in KS
    )


def sublayers(logs: Mapping[str, float], noise: float, last: Mapping[str, float] | None = None) -> Evidence:
    """Return norms of blocks, log10, before and after a training."""
    return of(
        block(row, 10 ** (log + noise * normal(seed, row, step)), seed=seed, step=step, variant=f"state.step={step}")
        for step, found in ((0, logs), (1000, {**logs, **(last or {})}))
        for row, log in found.items()
        for seed in SEEDS
    )


def coupled(strength: float, noise: float) -> Evidence:
    """Return norms of every pair of W_Q, W_V, W_in, so that attention and MLP are coupled by so much."""

    def rows() -> Iterable[Row]:
        for seed in SEEDS:
            found = max(strength + noise * normal(seed), 0.0)
            for row, col, value in (
                *[("W_Q", "W_Q", 1.0), ("W_Q", "W_V", math.sqrt(3.5)), ("W_V", "W_V", 1.0)],  # squares: 9
                *[("W_Q", "W_in", 6 * found * 0.6), ("W_V", "W_in", 6 * found * 0.8), ("W_in", "W_in", 12.0)],
            ):
                yield block(row, value, col, seed=seed)

    return of(rows())


def ordered(steps: Mapping[str, float], noise: float) -> Evidence:
    """Return Hessians whose mean diagonal entries are 10^steps by parameter, after a training; flat ones before."""

    def hessians() -> Iterable[StoredHessian]:
        for step in (0.0, 1000.0):
            for seed in SEEDS:
                logs = [log * step / 1000 + noise * normal(seed, name) for name, log in steps.items()]
                sizes = [3 + place for place in range(len(logs))]
                diagonal = np.repeat(10.0 ** np.array(logs), sizes)
                yield StoredHessian("", math.nan, seed, np.diag(diagonal), list(steps), sizes, step)

    plain = sublayers({"W_Q": 0.0}, 0.0)
    return Evidence(plain.table, hessians=hessians)


ORDER = {"W_pos": 0.0, "W_Q": 1.0, "W_K": 1.0, "W_in": 1.5, "W_V": 2.0, "ln1_gain": 3.0}
EQUAL = dict.fromkeys(ORDER, 0.0)
QKVO = {"W_Q": 0.0, "W_K": 0.0, "W_V": 0.0, "W_O": 0.0}
BLOCKS = {**QKVO, "W_in": 0.0, "norms": 0.0}
