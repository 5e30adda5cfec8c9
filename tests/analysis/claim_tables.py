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
from hessfig.analysis.claims.component_rules import RAISED, REMOVED, TURNED
from hessfig.analysis.claims.rule import Evidence
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import growth_rate
from hessfig.terms import MLP, Attention, Block, Kind, Part
from tests.analysis.spectral import spectral_table

SEEDS = range(6)
SIGMAS = [float(x) for x in np.logspace(-2, 1, 10)]
KS = [int(k) for k in np.unique(np.logspace(0, 3, 13).astype(int))]
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


def coupled(across: float, noise: float) -> Evidence:
    """Return couplings of 0.4 within attention and the MLP, and `across` between them."""

    def rows() -> Iterable[Row]:
        for seed in SEEDS:
            found = max(across + noise * normal(seed), 0.0)
            for name, size in (("W_Q", 4.0), ("W_V", 1.0), ("W_in", 9.0), ("W_out", 1.0)):
                yield block(name, size, seed=seed)
            for row, col, size in (("W_Q", "W_V", 2.0), ("W_in", "W_out", 3.0)):
                yield block(row, 0.4 * size, col, seed=seed)
            for row, col, size in (("W_Q", "W_in", 6.0), ("W_V", "W_out", 1.0)):
                yield block(row, found * size, col, seed=seed)

    return of(rows())


def growing(name: str, laws: Mapping[str, float], noise: float, **place: Any) -> Evidence:
    """Return numbers of a quantity that go with sigma to these powers, by weight."""
    return of(
        {
            **block(row, sigma ** (p + noise * normal(seed, row))),
            "quantity": name,
            "seed": seed,
            "sigma": sigma,
            **place,
        }
        for row, p in laws.items()
        for seed in SEEDS
        for sigma in SIGMAS
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


def depth_norm(plain: float, normed: float, noise: float) -> Evidence:
    """Return norms of the first layer that go with the number of layers to these powers, at two sigmas."""
    return of(
        block("W_V", n ** (p + noise * normal(seed, norm)), num_layers=n, seed=seed, sigma=sigma, **variant)
        for norm, p in (("none", plain), ("pre", normed))
        for variant in [{"variant": f"model.norm={norm}"}]
        for sigma in (0.3, 1.0)
        for n in (1, 2, 4)
        for seed in SEEDS
    )


def beyond(without: float, growth: float, noise: float) -> Evidence:
    """Return norms whose supremum beyond sigma = 1 is so many decades above that with pre-LN, which grows by some."""

    def rows(name: str, level: float, slope: float) -> Iterable[Row]:
        for seed in SEEDS:
            for sigma in SIGMAS:
                log = level + slope * math.log10(sigma) + noise * normal(seed, name)
                yield block("W_V", 10**log, sigma=sigma, seed=seed)

    return of(rows("pre", 0.0, growth), sigma=of(rows("none", without, 0.0)))


def phased(early: float, late: float, noise: float) -> Evidence:
    """Return largest eigenvalues that move by so many decades in the last two decades of steps, in both schedules."""
    return along_steps(lambda seed, step: early * min(max(step - 1, 0), 1) + late * max(step - 2, 0), noise)


def along_steps(log: Callable[[int, float], float], noise: float, seeds: Iterable[int] = SEEDS) -> Evidence:
    """Return largest eigenvalues whose log10 is that of (seed, log10 step) beside noise, at the sweep's five steps."""
    return of(
        {
            **{"seed": seed, "step": step, "variant": f"training.schedule={schedule}"},
            "value": 10 ** (log(seed, math.log10(step)) + noise * normal(seed, step, schedule)),
        }
        for schedule in ("constant", "cosine")
        for seed in seeds
        for step in (10.0, 32.0, 100.0, 316.0, 1000.0)
    )


def of_batches(off: float, growth: float, noise: float) -> Evidence:
    """Return losses that fall with steps / (1 + 50 / batch), noise scales `off` decades off; growth elsewhere."""

    def rows() -> Iterable[Row]:
        for seed in SEEDS:
            for size in (4, 16, 64, 256):
                for rate, slow in (("0.001", 2.0), ("0.003", 1.0)):
                    place = {"variant": f"training.batch_size={size},training.learning_rate={rate}", "seed": seed}
                    for step in (100, 200, 400, 800, 1600):
                        loss = math.exp(-step / (1 + 50 / size) / slow / 1000)
                        scale = 50 * 10 ** (off + noise * normal(seed))
                        for name, value in (("held_out_loss", loss), ("noise_scale", scale)):
                            yield {
                                **place,
                                "step": float(step),
                                "row": "",
                                "part": "",
                                "quantity": name,
                                "value": value,
                            }

    return of(rows(), language_noise=growing_noise(growth, noise))


def growing_noise(decades: float, noise: float) -> Evidence:
    """Return noise scales that grow by so many decades."""
    numbers = {(seed, step): 10 ** ((decades + noise * normal(seed)) * step / 9) for seed in SEEDS for step in (0, 9)}
    place = {"quantity": "noise_scale", "row": "", "part": ""}
    return of({**place, "seed": seed, "step": float(step), "value": one} for (seed, step), one in numbers.items())


def batches(exponent: float, lost: float, noise: float, turn: float = 0.0) -> Evidence:
    """Return sharpness that goes with the batch size, and accuracy lost per decade; `turn`: of a V on top."""

    def rows() -> Iterable[Row]:
        for seed in SEEDS:
            for size in (10, 100, 1000):
                off, log = noise * normal(seed, size), math.log10(size)
                place = {"variant": f"training.batch_size={size}", "seed": seed, "step": 9.0}
                turned = abs(log - 2) * turn
                yield {**place, "value": 10 ** (exponent * log + turned + off)}
                yield {**place, "row": "", "part": "", "quantity": "accuracy", "value": 0.9 - lost * log + off / 10}
                yield {**place, "row": "all", "quantity": "adaptive_sharpness", "value": size**0.25}

    return of(rows())


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


def entries_along(logs: Mapping[str, float], noise: float, last: Mapping[str, float] | None = None) -> Evidence:
    """Return Hessians whose blocks have entries of these sizes, log10, before and after a training."""

    def hessians() -> Iterable[StoredHessian]:
        for step, found in ((0.0, logs), (1000.0, {**logs, **(last or {})})):
            for seed in SEEDS:
                sizes = [10 ** (log + noise * normal(seed, name, step)) for name, log in found.items()]
                matrix = np.diag(np.repeat(sizes, 3)) + np.kron(np.diag(sizes), np.ones((3, 3)))
                yield StoredHessian("", math.nan, seed, matrix, list(found), [3] * len(found), step)

    return Evidence(of([{"step": step} for step in (0.0, 1000.0)]).table, hessians=hessians)


def ordered(steps: Mapping[str, float], noise: float, early: Mapping[str, float] | None = None) -> Evidence:
    """Return traces over 10^steps parameters by weight, from a tenth of a training on (`early`: there); flat before."""

    def rows() -> Iterable[Row]:
        for step, logs in ((0.0, EQUAL), (100.0, early or steps), (1000.0, steps)):
            for seed in SEEDS:
                for rank, (name, log) in enumerate(logs.items(), 1):
                    place = {"seed": seed, "step": step}
                    mean = 10 ** (log + noise * normal(seed, name, step))
                    yield {**block(name, mean * rank), **place, "quantity": "trace"}
                    yield {**block(name, rank), **place, "part": "", "quantity": "num_parameters"}

    return of(rows())


def hessians_in_order(noise: float) -> Evidence:
    """Return Hessians whose mean diagonal entries are 10^ORDER by parameter, after a training; flat ones before."""

    def hessians() -> Iterable[StoredHessian]:
        for step in (0.0, 1000.0):
            for seed in SEEDS:
                logs = [log * step / 1000 + noise * normal(seed, name) for name, log in ORDER.items()]
                sizes = [3 + place for place in range(len(logs))]
                diagonal = np.repeat(10.0 ** np.array(logs), sizes)
                yield StoredHessian("", math.nan, seed, np.diag(diagonal), list(ORDER), sizes, step)

    plain = sublayers({"W_Q": 0.0}, 0.0)
    return Evidence(plain.table, hessians=hessians)


ORDER = {"W_pos": 0.0, "W_Q": 1.0, "W_K": 1.0, "W_in": 1.5, "W_V": 2.0, "ln1_gain": 3.0}
EQUAL = dict.fromkeys(ORDER, 0.0)
QKVO = {"W_Q": 0.0, "W_K": 0.0, "W_V": 0.0, "W_O": 0.0}
BLOCKS = {**QKVO, "W_in": 0.0, "norms": 0.0}
SLIGHT = {"W_pos": 0.0, "W_Q": 0.05, "W_K": 0.05, "W_in": 0.1, "W_V": 0.15, "ln1_gain": 0.2}
QUERY = ("frobenius", "W_Q", "H_o")
VALUE = ("frobenius", "W_V", "H_o")


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


SAME = dict.fromkeys(("W_Q", "W_K", "W_V", "W_O", "W_in", "W_out"), 0.0)
ENCODER_ORDER = {
    "W_E+W_U": -2.0,
    "W_Q": -1.0,
    "W_K": -1.0,
    "W_in": -0.5,
    "W_out": -0.5,
    "W_V": 0.0,
    "W_O": 0.0,
    "norms": 1.0,
}


def encoders(
    trained: Mapping[str, float], random: Mapping[str, float], quantity: str = "frobenius", *, noise: float = 0.01
) -> Evidence:
    """Return two layers of a BERT whose weights have these norms (or mean diagonal entries), in decades."""
    rows: list[Row] = []
    for state, decades in (("False", trained), ("True", random)):
        variant = f"model.path=outputs/trained/bert,model.random={state}"
        for seed in range(6):
            for layer in (1, 2):
                for row, decade in decades.items():
                    place = {"layer": layer, "row_layer": layer, "variant": variant, "seed": seed}
                    value = 10 ** (decade + noise * normal(seed, layer, row, state))
                    count = {"W_in": 4.0, "norms": 0.1}.get(row, 1.0)
                    rows.append(block(row, value * (count if quantity == "trace" else 1), quantity=quantity, **place))
                    if quantity == "trace":
                        rows.append(block(row, count, quantity="num_parameters", part="", **place))
    return of(rows)


def values_above(decades: float, noise: float, *also: str) -> Evidence:
    """Return encoders whose value blocks (and others) stand so many decades above the rest, trained or not."""
    sizes = {**SAME, **dict.fromkeys(("W_V", *also), decades)}
    return encoders(sizes, sizes, noise=noise)


def encoder_steps(decades: float, noise: float) -> Evidence:
    """Return encoders of the published order, but for feed-forward: so many decades above W_Q and W_K."""
    sizes = {**ENCODER_ORDER, "W_in": decades - 1, "W_out": decades - 1}
    return encoders(sizes, sizes, "trace", noise=noise)
