"""The axis of curves, and variants: texts of the settings in which the networks of a sweep differ."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import MappingProxyType

from pandas import DataFrame, Series

from hessfig.errors import UserError, did_you_mean
from hessfig.record import CURVE

_BETWEEN = re.compile(r",(?=[A-Za-z_][\w.]*=)")  # a value may hold commas of its own


@cache
def settings_of(variant: str) -> Mapping[str, str]:
    """Return the settings of a variant by their dotted keys; empty for the plain variant. Each text is parsed once."""
    pairs = (part.partition("=") for part in _BETWEEN.split(variant) if part)
    return MappingProxyType({key: value for key, _, value in pairs})


def with_settings(rows: DataFrame, *keys: str, default: str = "") -> DataFrame:
    """Return the rows with one column of texts per setting: its value in the row's variant, or `default`."""
    varied = [settings_of(variant) for variant in rows["variant"]]
    columns = {}
    for key in keys:
        columns[key] = [settings.get(key, default) for settings in varied]
    return rows.assign(**columns)


def varied_settings(variants: Iterable[str]) -> dict[str, list[str]]:
    """Return the values of every varied setting by its dotted key: one for each variant, "" where it has none."""
    parsed = [settings_of(variant) for variant in variants]
    varied = {}
    for key in dict.fromkeys(chain(*parsed)):
        varied[key] = [settings.get(key, "") for settings in parsed]
    return varied


def variants_in_order(variants: Iterable[str]) -> list[str]:
    """Return the distinct variants in natural order: numbers rise, and words keep the order of their appearance."""
    different = list(dict.fromkeys(variants))
    places = [_places(values) for values in varied_settings(different).values()]
    ranks = sorted(
        range(len(different)), key=lambda rank: [one[rank] for one in places]
    )
    return [different[rank] for rank in ranks]


def _places(texts: list[str]) -> Sequence[float]:
    """Return the rank of each value: by size if all nonempty values are numbers, otherwise by appearance."""
    numbers = as_numbers(text for text in texts if text)
    if numbers is None:
        return [list(dict.fromkeys(texts)).index(text) for text in texts]
    return [float(text) if text else -math.inf for text in texts]


def without(variant: str, *keys: str) -> str:
    """Return the variant without some of its settings."""
    settings = dict(settings_of(variant))
    for key in keys:
        settings.pop(key, None)
    return as_variant(settings)


def as_variant(settings: Mapping[str, str]) -> str:
    """Return the text of a variant, the inverse of `settings_of`."""
    return ",".join(f"{key}={value}" for key, value in settings.items())


def short_variant(variant: str) -> str:
    """Return a variant without its groups: 'model.temperature=0.25' becomes 'temperature=0.25'."""
    return as_variant(
        {last_word(key): value for key, value in settings_of(variant).items()}
    )


def last_word(key: str) -> str:
    """Return the name of a setting without its groups."""
    return key.rpartition(".")[2]


_WORDS = {
    "d_model": "width",
    "d_mlp": "width of the MLP",
    "n_heads": "heads",
    "n_layers": "layers",
    "num_layers": "layers",
    "n_ctx": "context length",
    "d_vocab": "vocabulary",
    "num_digits": "digits",
    "data_size": "number of samples",
    "sink_beta": "bias of the sink β",
    "d_head": "width of a head",
    "weight_scale": "scale of the weight",
}


def setting_name(key: str) -> str:
    """Return the name of a setting in figures: model.n_heads is "heads"."""
    return _WORDS.get(last_word(key), last_word(key).replace("_", " "))


def varied_setting(variants: Iterable[str]) -> tuple[str, list[str]]:
    """Return the varied settings in words and the value of each variant, e.g. ('temperature', ['0.5', '1.0'])."""
    settings = [settings_of(variant) for variant in variants]
    names = dict.fromkeys(map(setting_name, chain(*settings)))
    return ", ".join(names), [", ".join(setting.values()) for setting in settings]


def as_numbers(values: Iterable[str]) -> list[float] | None:
    """Return the values as numbers if all of them are numbers, otherwise None."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return None


def varied_key(
    word: str, variants: Iterable[str], *, asked: str, others: Iterable[str] = ()
) -> str:
    """Return the varied setting that `word` names, in full or by its last word.

    Raises UserError if no variant has it. The message names the setting `asked` and
    allows the names in `others`, too.
    """
    keys = list(varied_settings(variants))
    named = [key for key in keys if word in (key, last_word(key))]
    if len(named) == 1:
        return named[0]
    allowed = [*others, *keys]
    if named:
        what = "there are several settings of this name"
    else:
        what = "the sweep does not vary it"
    raise UserError(
        f"{asked}: {what}",
        got=word,
        allowed=", ".join(allowed),
        remedy=did_you_mean(word, [*allowed, *map(last_word, keys)])
        or f"for example {allowed[0]}",
    )


X = "x"
POINT = [*CURVE, X]
DEPTH = "model.n_layers"
DEPTHS = (DEPTH, last_word(DEPTH))
COUNT = "index"  # axis of quantities with several places per network, such as numbers of samples k
_COORDINATES = ("sigma", "step")


@dataclass(frozen=True)
class Axis:
    """The axis of curves, with its name in `sweep.axis`."""

    name: str = "sigma"

    @property
    def symbol(self) -> str:
        """The symbol of the axis in labels and windows."""
        return {"sigma": "σ", COUNT: "k"}.get(self.name, setting_name(self.name))

    @property
    def is_sigma(self) -> bool:
        """Whether the axis is sigma: growth rates are predicted along it, and figures mark sigma = 1."""
        return self.name == "sigma"


SIGMA = Axis()


def along(
    table: DataFrame, axis: Axis = SIGMA, *, asked: str = "sweep.axis"
) -> DataFrame:
    """Return the table with the place on the axis in a column x; a table that has this column is returned unchanged.

    If the axis is a setting, it is removed from the variant; whatever else varies
    (sigma along step, say) is added, so that numbers of different networks or places
    are never averaged. Raises UserError, which names the setting `asked`, for an axis
    that the sweep does not vary, or whose values are not numbers.
    """
    if X in table.columns:
        return table
    placed = _placed(table, axis, asked)
    for name in _COORDINATES:
        if name != axis.name and len(placed[name].unique()) > 1:
            placed = placed.assign(variant=_joined(placed, name))
    return placed


def has_places(table: DataFrame, axis: Axis) -> bool:
    """Return whether the table has any place on the axis (a loaded state has no sigma, say)."""
    return bool(along(table, axis)[X].notna().any())


def check_places(table: DataFrame, axis: Axis) -> None:
    """Raise UserError for a table of single points, which has no curves along the axis."""
    if not has_places(table, axis):
        raise UserError(
            f"{table['sweep'].iloc[0]}: no number of this table has a {axis.name}, so there are no curves",
            got=f"no {axis.name} in {len(table)} rows",
            allowed=f"a sweep along {axis.name}",
            remedy="draw it with figure.layout=bars",
        )


def fixed_words(table: DataFrame, axis: Axis) -> str:
    """Return as a sentence the sigma or step of all numbers where it is not the axis; otherwise ""."""
    words = []
    for name in _COORDINATES:
        values = table[name].unique()
        if name != axis.name and len(values) == 1 and not math.isnan(values[0]):
            words.append(f"{Axis(name).symbol} = {values[0]:g}")
    return f" At {', '.join(words)}." if words else ""


def _placed(table: DataFrame, axis: Axis, asked: str) -> DataFrame:
    if axis.name in _COORDINATES:
        return table.assign(**{X: _whole(table, axis.name, asked)})
    if axis.name == COUNT:
        return table.assign(**{X: table[COUNT].astype(float), COUNT: 0})
    if axis.name in (DEPTH, "num_layers"):
        return table.assign(
            **{
                X: table["num_layers"].astype(float),
                "num_layers": table["num_layers"].max(),
            }
        )
    key = varied_key(
        axis.name, table["variant"].unique(), asked=asked, others=[*_COORDINATES, DEPTH]
    )
    others = table["variant"].map(lambda variant: without(variant, key))
    return table.assign(
        **{X: _numbers(key, with_settings(table, key)[key], asked), "variant": others}
    )


def _whole(table: DataFrame, name: str, asked: str) -> Series:
    """Return the column. Either all of its cells are empty, or none."""
    if table[name].isna().any() and table[name].notna().any():
        raise UserError(
            f"{asked}: some rows of {table['sweep'].iloc[0]} have no {name}",
            got=f"{int(table[name].isna().sum())} of {len(table)} rows without",
            allowed=f"a table whose rows all have a {name}, or none of them",
            remedy="measure the two kinds of states as two sweeps",
        )
    return table[name]


def _numbers(key: str, values: Series, asked: str) -> list[float]:
    numbers = as_numbers(values)
    if numbers is None:
        raise UserError(
            f"{asked}: {key} is not an axis, for its values are not all numbers",
            got=", ".join(dict.fromkeys(value or "(none)" for value in values)),
            allowed="sigma, step, or a varied setting whose values are numbers",
            remedy="draw it with figure.layout=bars",
        )
    return numbers


def _joined(table: DataFrame, name: str) -> Series:
    """Return the variants with 'name=value' joined to them."""
    values = table[name].map(f"{name}={{:.12g}}".format)
    values = values.mask(table[name].isna(), "")
    between = ((table["variant"] != "") & (values != "")).map({True: ",", False: ""})
    return table["variant"] + between + values
