"""Write the findings of the full-size tables between their marks on the pages of docs/.

    python scripts/pages/findings.py [--write | --check] outputs     # those whose sweeps have a table in outputs/

Intervals are 95 %, Student's t over seeds: of logarithms for norms, eigenvalues and losses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.axis import with_settings
from hessfig.analysis.claims.effects import exponents
from hessfig.analysis.claims.rule import Evidence, evidence_in
from hessfig.analysis.intervals import Interval, fisher_interval, geometric_interval, student_interval
from hessfig.analysis.presented import markdown_table, marked
from hessfig.analysis.stored_spectra import read_spectra
from hessfig.analysis.training_runs import against_plain, late_shares, race
from hessfig.record import TABLE
from hessfig.studies.spectra.spectral_distances import KERNELS, pair_distances
from hessfig.terms import Approximation

DOCS = Path(__file__).parents[2] / "docs"
COMMAND = "python scripts/pages/findings.py --write outputs"
FINDINGS: dict[str, tuple[str, tuple[str, ...], Callable[..., str]]] = {}
HALF = 0.5  # of the weights
SMALL = 0.1  # sigma
Maker = Callable[..., str]


@dataclass(frozen=True)
class MeasuredSweep(Evidence):
    """The evidence of a sweep, and the folder in which its spectra are stored."""

    folder: Path = Path()


def measured_sweep(folder: Path) -> MeasuredSweep:
    """Return the evidence in the folder of a sweep."""
    evidence = evidence_in(folder)
    return MeasuredSweep(evidence.table, evidence.hessians, architectures=evidence.architectures, folder=folder)


def parts(outputs: Path | None) -> Iterator[tuple[Path, str, str]]:
    """Yield every finding whose sweeps are measured; of one that nobody has written yet, the commands."""
    folder = outputs or Path("outputs")
    for name, (page, sweeps, make) in FINDINGS.items():
        if not (missing := [sweep for sweep in sweeps if not (folder / sweep / TABLE).is_file()]):
            yield DOCS / page, name, make(*(measured_sweep(folder / sweep) for sweep in sweeps))
            continue
        print(f"{name}: no table of {', '.join(missing)}", file=sys.stderr)
        if not marked((DOCS / page).read_text(), name, COMMAND).strip():
            runs = " && ".join(f"hessfig run sweep={sweep}" for sweep in sweeps)
            yield DOCS / page, name, f"Not measured at full size by this version: `{runs}`.\n"


def finding(page: str, *sweeps: str) -> Callable[[Maker], Maker]:
    """Enter a function of the sweeps' evidence under its name, for a page of docs/."""

    def enter(make: Maker) -> Maker:
        FINDINGS[make.__name__] = (page, sweeps, make)
        return make

    return enter


@finding("studies/training.md", "training")
def learned(evidence: Evidence) -> str:
    """Accuracy at the end of the addition preset, seed by seed: whole answers, digits, sums with carries."""
    rows = evidence.at_step(-1).table
    whole, carries = (rows[rows["quantity"] == name] for name in ("accuracy", "cascade_accuracy"))
    digits = sorted(int(one) for one in whole["index"].unique() if one > 0)
    heads = ("seed", "whole answer", *(f"digit {one}" for one in digits), "three carries")
    lines = []
    for seed, one in whole.groupby("seed"):
        shares = [one[one["index"] == n]["value"].mean() for n in (0, *digits)]
        chained = carries[(carries["seed"] == seed) & (carries["index"] == 0)]["value"].mean()
        lines.append((str(seed), *(f"{100 * share:.2f} %" for share in shares), f"{100 * chained:.0f} %"))
    return _lines(heads, lines)


@finding("studies/training.md", "heterogeneity_trained")
def survival(evidence: Evidence) -> str:
    """(V, V) over (Q, Q) of H before and after a training, network by network."""
    rows = evidence.numbers("frobenius", "model.norm", "model.attention", part="H")
    rows = rows[rows["row"] == rows["col"]]
    place = ["model.norm", "model.attention", "seed", "step"]
    value, query = (rows[rows["row"] == name].groupby(place)["value"].mean() for name in ("W_V", "W_Q"))
    ratios = (value / query).reset_index()
    ends = [ratios["step"].min(), ratios["step"].max()]
    heads = ("norm", "attention", *(f"step {step:g}" for step in ends))
    lines = []
    for (norm, attention), one in ratios.groupby(["model.norm", "model.attention"], sort=False):
        found = [geometric_interval(one[one["step"] == step]["value"]) for step in ends]
        lines.append((str(norm), str(attention), *map(_interval, found)))
    return _lines(heads, lines)


@finding("studies/training.md", "heterogeneity_after")
def distances(evidence: MeasuredSweep) -> str:
    """JS^0 between the spectra of the blocks of H before and after a training, by network and kernel."""
    blocks = read_spectra(evidence.folder, lambda place: place.part == "H" and place.row == place.col)
    lines, heads = [], ["network", "kernel"]
    for name, kernel in KERNELS.items():
        rows = with_settings(pair_distances(blocks, kernel)[1], "model.kind")
        steps = [rows["step"].min(), rows["step"].max()]
        heads = ["network", "kernel", *(f"step {step:g}" for step in steps)]
        for kind, one in rows.groupby("model.kind", sort=False):
            found = [student_interval(one[one["step"] == step]["average"]) for step in steps]
            lines.append((str(kind), name, *map(_interval, found)))
    return _lines(heads, lines)


@finding("studies/training.md", "gauss_newton_after")
def proxy_misfit(evidence: Evidence) -> str:
    """|log(largest eigenvalue of H_o / of H)| at the last step, network by network."""
    rows = evidence.at_step(-1).numbers("largest_eigenvalue", "model.kind", "model.attention", row="all")
    wide = rows.pivot_table(index=["model.kind", "model.attention", "seed"], columns="part", values="value")
    misfit = np.log(wide["H_o"] / wide["H"]).abs()
    named = {  # an MLP has no attention: one network
        "mlp" if kind == "mlp" else f"{kind}, {attention}": one
        for (kind, attention), one in misfit.groupby(level=[0, 1], sort=False)
    }
    lines = [(name, _interval(student_interval(one))) for name, one in named.items()]
    return _lines(("network", "misfit of H_o"), lines)


@finding("studies/training.md", "edge", "edge_adamw", "edge_batches")
def edges(gd: Evidence, adamw: Evidence, batches: Evidence) -> str:
    """Mean of the last third of the steps over the threshold of stability, by learning rate."""
    asked = [
        ("gradient descent, largest eigenvalue", gd, "largest_eigenvalue"),
        ("AdamW, preconditioned eigenvalue", adamw, "preconditioned_eigenvalue"),
        ("SGD on batches of 8, largest eigenvalue", batches, "largest_eigenvalue"),
        ("SGD on batches of 8, batch sharpness", batches, "batch_sharpness"),
    ]
    lines = [
        (words, variant.partition("=")[2], _interval(found))
        for words, evidence, quantity in asked
        for variant, found in late_shares(evidence.table, quantity).items()
    ]
    return _lines(("training, quantity", "learning rate", "share of the threshold"), lines)


@finding("studies/training.md", "steps")
def races(evidence: Evidence) -> str:
    """Loss of every rule after as many gradients and after as many seconds, and over its plain optimiser's."""
    return _raced(evidence, "")


@finding("studies/training.md", "race")
def raced_rules(evidence: Evidence) -> str:
    """Loss of every rule of the race after as many gradients and after as many seconds, and over AdamW's."""
    return _raced(evidence, "adamw")


def _raced(evidence: Evidence, reference: str) -> str:
    found = race(evidence.table)
    ratios = against_plain(found.tuned, reference).set_index(["budget", "rule"])
    lines = []
    for (budget, rule), one in found.tuned.groupby(["budget", "rule"], sort=False):
        lost = int((~np.isfinite(one["loss"])).sum())
        loss = f"{lost} of {len(one)} diverged" if lost else _interval(geometric_interval(one["loss"]))
        ratio = "1"
        if (budget, rule) in ratios.index:
            row = ratios.loc[(budget, rule)]
            ratio = f"{row['ratio']:.2g} [{row['ratio_low']:.2g}, {row['ratio_high']:.2g}]"
        rates = ", ".join(f"{rate:g}" for rate in sorted(one["rate"].unique())) + "*" * bool(one["at_edge"].any())
        lines.append(("gradients" if budget == "step" else "seconds", rule, rates, loss, ratio))
    return _lines(("equal", "rule", "learning rates", "loss", f"over {reference or 'the plain optimiser'}"), lines)


@finding("studies/spectra.md", "weight_norms", "weight_norms_whole")
def weight_scales(blocks: Evidence, whole: Evidence) -> str:
    """Exponents of the largest eigenvalue of H in the scale of each weight: query block, key block, whole network."""
    keys = ("model.scaled_weight", "model.weight_scale")
    rows = pd.concat([one.numbers("largest_eigenvalue", *keys, part="H") for one in (blocks, whole)])
    rows = rows[rows["index"] <= 1].assign(scale=lambda frame: frame[keys[1]].astype(float))
    slopes = exponents(rows, "scale", keys[0], "row")
    lines = []
    for scaled, one in slopes.groupby(level=keys[0], sort=False):
        found = {row: student_interval(values) for row, values in one.groupby(level="row")}
        lines.append((str(scaled), *(_interval(found[row]) if row in found else "" for row in ("W_Q", "W_K", "all"))))
    return _lines(("scaled weight", "W_Q block", "W_K block", "whole network"), lines)


@finding("studies/spectra.md", "spectra")
def negative_shares(evidence: Evidence) -> str:
    """Shares of negative eigenvalues of the whole network, by part, attention and norm."""
    rows = evidence.numbers("share_negative", "model.attention", "model.norm", row="all")
    lines = [
        (f"{attention}, norm {norm}", str(part), _interval(student_interval(one["value"])))
        for (attention, norm, part), one in rows.groupby(["model.attention", "model.norm", "part"], sort=False)
    ]
    return _lines(("network", "part", "share of negative eigenvalues"), lines)


@finding("studies/landscape.md", "landscape")
def second_order(evidence: Evidence) -> str:
    """Correlation and slope of the second-order prediction of single losses with the true ones, place by place."""
    keys = ("landscape.direction", "landscape.distance")
    made = {name: evidence.numbers(f"prediction_{name}", *keys) for name in ("correlation", "slope")}
    lines = []
    for (direction, distance), one in made["correlation"].groupby(list(keys), sort=False):
        slope = made["slope"]
        there = slope[(slope[keys[0]] == direction) & (slope[keys[1]] == distance)]
        found = [fisher_interval(one["value"]), student_interval(there["value"])]
        lines.append((str(distance), str(direction), *map(_interval, found)))
    return _lines(("distance", "direction", "correlation", "slope"), lines)


@finding("studies/landscape.md", "landscape")
def bound_over_true(evidence: Evidence) -> str:
    """How many times the root mean square difference the bound is: smallest and largest over k >= 10 and seeds."""
    keys = ("landscape.direction", "landscape.distance")
    made = [evidence.numbers(f"landscape_{name}", *keys) for name in ("bound", "rms")]
    place = [*keys, "seed", "index"]
    bound, true = (rows[rows["index"] >= 10].set_index(place)["value"] for rows in made)
    ratio = (bound / true).dropna()
    lines = [
        ("w*" if distance in ("", "None") else str(distance), str(direction), f"{one.min():.3g}", f"{one.max():.3g}")
        for (direction, distance), one in ratio.groupby(level=[0, 1], sort=False)
    ]
    return _lines(("distance", "direction", "smallest", "largest"), lines)


@finding("studies/landscape.md", "landscape_integrals", "stationarity", "data_size_batches")
def sample_exponents(integrals: Evidence, gradients: Evidence, subsets: Evidence) -> str:
    """Exponents in the number of samples k >= 10 next to those of chance; of H_k over batches, each a mean of seeds."""
    asked = [
        *((integrals, "seed", name, f"{name} at w*") for name in ("delta_1", "delta_2")),
        (gradients.at_step(-1), "seed", "stationarity_rms", "length of the gradient after the training"),
        *((subsets, "task.seed", name, words) for name, words in _SUBSETS.items()),
    ]
    lines = []
    for evidence, repeat, name, words in asked:
        settings = [repeat] if repeat != "seed" else []
        slopes = exponents(evidence.numbers(name, *settings), "index", "row", *settings, window=(10.0, 1_024.0))
        for row, one in slopes.groupby(level=["row", repeat]).mean().groupby(level="row"):
            lines.append((words, str(row), _interval(student_interval(one))))
    return _lines(("number", "block", "exponent in k"), lines)


_SUBSETS = {
    "hessian_distance": "distance of H_k from H_N over the norm of H_N",
    "hessian_distance_null": "the same by chance",
    "subset_norm": "norm of H_k",
    "subset_condition_number": "condition number of H_k",
}


_SIZES = {"d_model": "width", "num_layers": "number of layers", "n_heads": "number of heads", "base": "base of numbers"}


@finding("studies/landscape.md", "model_size_width", "model_size_depth", "model_size_heads", "model_size_vocabulary")
def size_exponents(*sweeps: Evidence) -> str:
    """Exponents of norm, largest eigenvalue and trace of H in width, depth, heads and vocabulary, untrained."""
    lines = []
    for evidence in sweeps:
        key = str(evidence.table["variant"].iloc[0]).partition("=")[0] or "num_layers"
        for row in ("all", "W_Q", "W_V"):
            found = []
            for quantity in ("frobenius", "largest_eigenvalue", "trace"):
                rows = evidence.numbers(quantity, *([key] if "." in key else []), row=row, part="H")
                rows = rows[(rows["layer"] <= 1) & (rows["index"] <= 1)]
                sizes = rows.assign(size=rows[key].astype(float))
                found.append(_interval(student_interval(exponents(sizes, "size"))))
            lines.append((_SIZES[key.rpartition(".")[2]], row, *found))
    return _lines(("along", "block", "norm", "largest eigenvalue", "trace"), lines)


@finding("studies/landscape.md", "sublayers_steps")
def vit_accuracy(evidence: Evidence) -> str:
    """Accuracy of the vision transformer on unseen pictures along its training."""
    rows = evidence.numbers("accuracy")
    rows = rows[rows["index"] == 0]
    lines = [(f"{step:g}", _interval(student_interval(one["value"]))) for step, one in rows.groupby("step")]
    return _lines(("step", "share of test pictures that are right"), lines)


@finding("studies/removal.md", "pruning")
def pruned(evidence: Evidence) -> str:
    """Rank correlation of every saliency with the true rise of the loss, and the loss at half of the weights."""
    table = evidence.table[evidence.table["row"] == "all"]
    shares = evidence.numbers("removed_share", "training.data").set_index(["variant", "seed", "index"])["value"]
    lines = []
    for data, rows in with_settings(table, "training.data").groupby("training.data", sort=False):
        for name in [one.removesuffix("_loss") for one in rows["quantity"].unique() if one.endswith("_loss")]:
            single, whole = (rows[rows["quantity"] == f"{name}_{of}"] for of in ("correlation", "row_correlation"))
            losses = rows[rows["quantity"] == f"{name}_loss"]
            losses = losses.join(shares.rename("share"), on=["variant", "seed", "index"])
            half = losses[np.isclose(losses["share"], HALF, atol=0.01)]["value"]
            told = [_interval(fisher_interval(one["value"])) for one in (single, whole)]
            lines.append((str(data), name.replace("_", " "), *told, _interval(geometric_interval(half))))
    heads = ("training data", "saliency", "single weights", "rows of matrices", "loss without half of the weights")
    return _lines(heads, lines)


@finding("studies/directions.md", "trajectories")
def horizons(evidence: Evidence) -> str:
    """Steps until the quadratic model's loss is off by 10 %, by state and learning rate: smallest, median, largest."""
    rows = evidence.numbers("descent_horizon", "directions.rate")
    every = with_settings(evidence.table, "directions.rate")
    every = every[every["quantity"] == "descent_horizon"]
    lines = []
    for (step, rate), one in every.groupby(["step", "directions.rate"], sort=False):
        values = rows[(rows["step"] == step) & (rows["directions.rate"] == rate)]["value"]
        steps = sorted([*values, *[np.inf] * (len(one) - len(values))])
        told = ["never" if np.isinf(value) else f"{value:g}" for value in (steps[0], np.median(steps), steps[-1])]
        lines.append((f"{step:g}", str(rate), *told))
    return _lines(("state: step", "learning rate over 2 / largest eigenvalue", "smallest", "median", "largest"), lines)


@finding("studies/approximations.md", "approximations")
def value_block(evidence: Evidence) -> str:
    """Errors of H_o(V, V) of the whole transformer's layer: the best Kronecker product next to K-FAC, sigma <= 0.1."""
    lines = []
    for attention in ("softmax", "linear"):
        cells = []
        for name in ("kfoc", "kfac", "kfac_reduce"):
            rows = evidence.numbers(f"{name}_error", "model.kind", "model.attention", row="W_V", part="H_o")
            rows = rows[(rows["model.kind"] == "transformer") & (rows["model.attention"] == attention)]
            every = rows[rows["sigma"] <= SMALL].groupby("seed")["value"].mean()
            cells.append(_interval(student_interval(every)))
        lines.append((attention, *cells))
    return _lines(("attention", "best Kronecker product", "K-FAC", "K-FAC, reduce"), lines)


_ATLAS = ("approximations_addition", "approximations_digits", "approximations_text")
_OF_THE_BLOCK = {Approximation.diagonal, Approximation.soap, Approximation.kfoc, Approximation.kronecker_sum}


def _scale_errors(evidence: Evidence) -> pd.DataFrame:
    """Return the scale errors of blocks of H, means over seeds and layers: one row per block, a column (end, name)."""
    found = {}
    for end in (0, -1):
        for name in Approximation:
            rows = evidence.at_step(end).numbers(f"{name}_scale_error", part="H")
            if len(rows):
                found[end, name] = rows.groupby("row")["value"].mean()
    return pd.DataFrame(found, columns=pd.MultiIndex.from_tuples(found, names=["end", "name"]))


@finding("studies/approximations.md", *_ATLAS)
def atlas(*sweeps: Evidence) -> str:
    """Errors of every approximation after the best scalar, of H: mean over blocks, and the nearest and farthest."""
    every = [_scale_errors(evidence) for evidence in sweeps]
    lines = []
    for name in Approximation:
        cells = [
            f"{one[end, name].mean():.2f} ({one[end, name].min():.2f} to {one[end, name].max():.2f})"
            if (end, name) in one
            else "–"
            for one in every
            for end in (0, -1)
        ]
        if set(cells) != {"–"}:
            lines.append((name.facts.label, *cells))
    return _lines(("approximation", *_ends_of_networks()), lines)


@finding("studies/approximations.md", *_ATLAS)
def nearest_to_blocks(*sweeps: Evidence) -> str:
    """The nearest approximation to each block of H of those that need no Hessian, with its error."""
    every = [_scale_errors(evidence).drop(columns=_OF_THE_BLOCK, level=1, errors="ignore") for evidence in sweeps]
    blocks = dict.fromkeys(row for one in every for row in one.index)
    lines = []
    for row in blocks:
        cells = []
        for one in every:
            for end in (0, -1):
                errors = one.loc[row, end].dropna() if row in one.index else pd.Series(dtype=float)
                cells.append(f"{Approximation(errors.idxmin()).facts.label} {errors.min():.2f}" if len(errors) else "–")
        lines.append((str(row), *cells))
    return _lines(("block", *_ends_of_networks()), lines)


def _ends_of_networks() -> list[str]:
    networks = ("addition", "vision transformer", "language model")
    return [f"{network}, {when}" for network in networks for when in ("untrained", "trained")]


def _lines(heads: Iterable[str], lines: Iterable[tuple[str, ...]]) -> str:
    return "\n".join([*markdown_table(heads, lines), ""])


def _interval(found: Interval) -> str:
    return f"{found.mean:.3g} [{found.low:.3g}, {found.high:.3g}]"


if __name__ == "__main__":
    from page import keep

    raise SystemExit(keep(__doc__, COMMAND, parts))
