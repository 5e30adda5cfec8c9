"""Labels of weights, blocks and quantities, and the words of notes: repeats, settings, estimators."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from pandas import DataFrame

from hessfig.analysis.axis import (
    DEPTH,
    POINT,
    Axis,
    fixed_words,
    last_word,
    setting_name,
    settings_of,
    without,
)
from hessfig.errors import plain_lines
from hessfig.record import FROBENIUS, Status
from hessfig.registry import facts_of
from hessfig.terms import Group, Matrix, Part, weight_label

ONE_SEED = "one seed"
_FEW_SEEDS = 5  # up to this number, each seed is drawn as a line
# Networks whose width the settings do not tell.
OWN_KIND, _LOADED_KIND = ("python", "huggingface")
_PART_SYMBOLS = {
    Part.H_o: r"H_\mathrm{o}",
    Part.H_f: r"H_\mathrm{f}",
    Part.H: "H",
    Part.H_oT: r"H_\mathrm{o}^T",
    Part.H_fT: r"H_\mathrm{f}^T",
}
_SETTINGS = {
    ("model.kind", "mlp"): "MLP",
    ("model.kind", "transformer"): "transformer",
    ("model.kind", "vit"): "vision transformer",
    ("model.kind", "cnn"): "CNN",
    ("model.attention", "softmax"): "softmax",
    ("model.attention", "linear"): "linear attention",
    ("model.query_key", "separate"): "two weights",
    ("model.query_key", "single"): "one weight",
    ("model.norm", "none"): "no norm",
    ("model.norm", "pre"): "pre-LN",
    ("model.norm", "post"): "post-LN",
    ("model.random", "False"): "trained weights",
    ("model.random", "True"): "random weights",
    ("training.data", "fresh"): "fresh data",
    ("training.data", "fixed"): "fixed data",
    ("model.sink", "scores"): "sink on scores",
    ("model.sink", "embedding"): "sink in the embedding",
    ("model.sink", "both"): "both sinks",
}

_OF_CNN = {("model.norm", "post"): "GroupNorm"}
_ESTIMATORS = {"hutchinson": "Hutchinson", "lanczos": "Lanczos"}
_ESTIMATORS |= dict.fromkeys(("unseen sums", "unseen examples"), "held-out examples")
_FEW = 3  # largest number of quantities that a note names one by one
_GROUPS = {Group.all.value: "whole network", Group.mlp.value: "MLP", "W_head": "head"}


def plain(text: str) -> str:
    """Return untrusted text in a form that is safe to print: without formulas and without control characters.

    (Matplotlib prints the letters that a font lacks in its warnings.)
    """
    return plain_lines(text).replace("$", r"\$")


def symbol(part: str) -> str:
    """Return mathtext for a part of the Hessian; "" for quantities without a block."""
    return f"${_PART_SYMBOLS[Part(part)]}$" if part else ""


def block_words(row: str, col: str) -> str:
    """Return the name of a block: one weight for a diagonal one, both for a pair."""
    names = [row] if col in ("", row) else [row, col]
    if _are_known(names):
        return f"${', '.join(map(weight_label, names))}$"
    return ", ".join(map(weight_words, names))


def block_name(row: str, col: str) -> str:
    """Return the name of a block in names of panels: W_Q, or W_Q-W_V for a pair."""
    return row if row == col else f"{row}-{col}"


def pair_words(row: str, col: str) -> str:
    """Return both weights of a block in brackets."""
    if _are_known([row, col]):
        return f"$({weight_label(row)}, {weight_label(col)})$"
    return f"({weight_words(row)}, {weight_words(col)})"


def weight_words(name: str, layer: int = 0) -> str:
    """Return mathtext for a weight of the paper's networks (also for a sum such as W_E+W_U); other names are unchanged.

    The number of its `layer`, if it is not 0, follows the name.
    """
    roles = name.split("+")
    behind = f" {layer}" * bool(layer)
    if name == Group.query_key:
        return f"${weight_label(Matrix.W_Q)}, {weight_label(Matrix.W_K)}${behind}"
    if _are_known(roles):
        words = f"${'+'.join(map(weight_label, roles))}$"
    else:
        words = plain(_GROUPS.get(name, name))
    return words + behind


def value_words(setting: str, value: str) -> str:
    """Return the value of a setting in words of its own, or the name of the weight that it is, or the value."""
    return _SETTINGS.get((setting, value)) or weight_words(value)


def says_itself(setting: str) -> bool:
    """Return whether the values of a setting have words of their own, which need no name of the setting."""
    return any(key == setting for key, _ in _SETTINGS)


def norm_label(name: str, quantity: str) -> str:
    """Return the y label of the diagonal block of a weight."""
    return f"{block_words(name, name)} block {quantity_label(quantity)}"


def block_title(
    row: str, col: str, across: str = "", *, quantity: str = FROBENIUS
) -> str:
    """Return the label of a block and quantity; `across` holds the two layers, 'r,c', for a pair of two layers."""
    name = block_words(row, col) if row else "network"
    if across:
        row_layer, layer = across.split(",")
        name = f"{weight_words(row)} of layer {row_layer}, {weight_words(col)} of layer {layer}"
    return f"{name} {quantity_label(quantity)}".strip() if quantity else name


def part_title(part: str) -> str:
    """Return symbol and words for a part of the Hessian; "" for quantities without a part."""
    return f"{symbol(part)}: {Part(part).label}" if part else ""


def part_words(part: str) -> str:
    """Return a part of the Hessian in words that begin a sentence (notes have no formulas); "" without a part."""
    return Part(part).label[:1].upper() + Part(part).label[1:] if part else ""


def unit_label(quantity: str) -> str:
    """Return the y label of panels whose titles name their blocks."""
    return "block " * (quantity == FROBENIUS) + quantity_label(quantity)


def quantity_label(quantity: str) -> str:
    """Return a quantity as a label: the norm's symbol, or its words."""
    if quantity == FROBENIUS:
        return r"$\|\cdot\|_F$"
    return quantity_name(quantity)


def quantity_name(quantity: str) -> str:
    """Return a quantity in words that are safe to print."""
    return plain(quantity_words(quantity))


def quantity_words(quantity: str) -> str:
    """Return a quantity in words."""
    facts = facts_of(quantity)
    return (facts and facts.label) or quantity.replace("_", " ")


def note_words(
    table: DataFrame,
    axis: Axis,
    names: list[str],
    *,
    place: str = "",
    several_points: bool = False,
    config: Mapping[str, Any] | None = None,
) -> str:
    """Return the note of a general sheet: page, place, repeats, marks, settings, estimator, exclusions."""
    where = f" At {place}." if place else fixed_words(table, axis)
    marks = _marks(table, several_points)
    if axis.is_sigma and several_points:
        marks += "; dotted: σ = 1"
    page = ", ".join(filter(None, names))
    if page:
        marks = f"{page[:1].upper()}{page[1:]}. {marks}"
    setting = setting_words(config or {}, table, axis)
    return f"{marks}.{made_words(table, axis, setting, where=where)}"


def made_words(
    table: DataFrame, axis: Axis, setting: str = "", *, where: str | None = None
) -> str:
    """Return the end of every note: place on the axis, settings, estimator, excluded numbers."""
    fixed = fixed_words(table, axis) if where is None else where
    return f"{fixed}{setting} {estimator_words(table)}.{left_out_words(table)}"


def setting_words(config: Mapping[str, Any], table: DataFrame, axis: Axis) -> str:
    """Return width, layers and batch as a sentence, as far as all numbers share them; "" without a manifest.

    Settings that the sweep varies, or that are its axis, are shown elsewhere. For a
    user's own network these settings are unknown, and for one that was loaded its width
    is.
    """
    model, task, sweep = (
        config.get(group) or {} for group in ("model", "task", "sweep")
    )
    if not model or model.get("kind") == OWN_KIND:
        return ""
    depths = [model.get("n_layers", 1)]
    if "num_layers" in table:
        depths = table["num_layers"].unique()
    depths = sorted(map(int, depths))
    shown = {axis.name, *(sweep.get("vary") or {})}
    words = []
    if "model.d_model" not in shown and model.get("kind") != _LOADED_KIND:
        words.append(f"width {model.get('d_model')}")
    if axis.name not in (DEPTH, "num_layers") and depths:
        layers = " to ".join(map(str, sorted({depths[0], depths[-1]})))
        words.append(f"{layers} layer" if depths[-1] == 1 else f"{layers} layers")
    if "task.batch_size" not in shown:
        words.append(f"batch {task.get('batch_size')}")
    kept = ", ".join(text for text in words if not text.endswith("None"))
    return f" {kept[:1].upper()}{kept[1:]}."


def variant_words(variant: str) -> str:
    """Return a variant in words for a panel: 'softmax, pre-LN', 'temperature 0.5'.

    Settings that the kind of network does not have, such as the attention of an MLP,
    are left out.
    """
    settings = settings_of(variant)
    kind = settings.get("model.kind")
    if kind == "mlp":
        settings = settings_of(without(variant, "model.attention"))
    words = _SETTINGS | _OF_CNN if kind == "cnn" else _SETTINGS
    named = []
    for setting in settings.items():
        named.append(words.get(setting) or _in_words(*setting))
    return plain(", ".join(dict.fromkeys(named)))


def _in_words(key: str, value: str) -> str:
    """Return a setting that has no words of its own; for a path, its last part."""
    if last_word(key) == "path":
        return PurePath(value).name
    return f"{setting_name(key)} {value}"


def changed_words(settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return changed settings in words, 'post-LN' or 'n_heads 2', without the folders of files."""
    words = []
    for key, value in settings.items():
        if key.endswith((".path", ".factory", ".options")):
            continue
        named = f"{setting_name(key)} {value}"
        if key == "task.batch_size":
            named = f"batch {value}"
        elif key == "model.n_layers":
            named = f"{value} layer" if value == "1" else f"{value} layers"
        words.append(_SETTINGS.get((key, value), named))
    return tuple(words)


def seeds_words(table: DataFrame) -> str:
    """Return the number of seeds behind each point, in words."""
    per_point = table.groupby(POINT, dropna=False)["seed"].nunique()
    fewest = int(per_point.min())
    most = int(per_point.max())
    if fewest != most:
        return f"{fewest} to {most} seeds"
    return ONE_SEED if most == 1 else f"{most} seeds"


def are_few(seeds: int) -> bool:
    """Return whether this number of seeds is drawn as thin lines instead of an interval band."""
    return 1 < seeds <= _FEW_SEEDS


def spread_words(seeds: int) -> str:
    """Return in words how a figure shows the spread over this number of seeds."""
    return "thin: the seeds" if are_few(seeds) else "band: 95% interval (Student's t)"


def interval_words(table: DataFrame) -> str:
    """Return in words how a figure shows the spread over the seeds of a table."""
    if are_few(table["seed"].nunique()):
        return "thin: the seeds"
    return "band: 95% interval of the mean"


def estimator_words(table: DataFrame) -> str:
    """Return estimators, dtypes and probes of the numbers in words, by quantity if there are at most three."""
    probes = sorted({int(count) for count in table["num_probes"] if count > 0})
    names = sorted(table["estimator"].unique())
    how = ", ".join(dict.fromkeys(_ESTIMATORS.get(name, name) for name in names))
    if probes:
        how += f", {' to '.join(map(str, sorted({probes[0], probes[-1]})))} probes"
    return f"{_measured(table)}: {how}, {'/'.join(sorted(table['dtype'].unique()))}"


def left_out_words(table: DataFrame) -> str:
    """Return how many numbers are excluded from means, and why; "" if none are."""
    words = ""
    bad = (table["status"] == Status.nonfinite).sum()
    rough = (table["status"] == Status.not_converged).sum()
    if bad:
        words += f" Left out: {bad} of {len(table)} numbers that are not finite."
    if rough:
        words += f" Left out: {rough} of {len(table)} numbers that did not converge."
    return words


def _marks(table: DataFrame, several_points: bool) -> str:
    repeats = seeds_words(table)
    if repeats == ONE_SEED:
        own_error = "; bars: ± the estimate's own error"
        return f"Dots: {repeats}" + own_error * (not several_points)
    spread = "bars: 95% interval of the mean"
    if several_points:
        spread = interval_words(table)
    return f"Dots: mean over {repeats}; {spread}"


def _measured(table: DataFrame) -> str:
    names = [quantity_words(quantity) for quantity in table["quantity"].unique()]
    if len(names) > _FEW:
        return "Estimators"
    words = ", ".join(
        f"{name}s" if name == quantity_words(FROBENIUS) else name for name in names
    )
    return words[:1].upper() + words[1:]


def _are_known(names: list[str]) -> bool:
    return all(name in list(Matrix) for name in names)
