"""docs/claims.md: its numbers are those of the kept tables, recomputed here; rows without a table say so.

`pytest -rP tests/documents/test_claims.py` lists the numbers of every row, and the
sweeps whose tables are not kept.
"""

import re
from functools import cache

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.axis import settings_of
from hessfig.analysis.intervals import student_interval
from hessfig.studies.components.per_seed import RESCALED, SOFTMAX, tuned_losses
from tests.pages import ROOT, text_of

TABLES = ROOT / "docs/tables"
SMALL = (0, 0.1)
PRACTICAL = (0, 1)
LARGE = (1, np.inf)
WHOLE = (0, np.inf)
VERDICTS = ["supported", "partly", "contradicted", "undecided", "theorem"]
HEADING = ["claim (source)", "verdict", "effect", "figure, table, command"]
WEIGHTS = ["W_Q", "W_K", "W_V"]
AT_SCORES = "H_oT", "H_fT"
# Settings of a number that are not numbers found: values of sigma, and learning rates.
CONDITION = re.compile(r"sigma (?:<=|>=|=) [\d.]+|\d\.\de-\d")


@cache
def table(sweep, part="H", quantity="frobenius"):
    """Return the diagonal blocks of a kept table without zeros, with a column for each setting that varies."""
    rows = pd.read_csv(TABLES / f"{sweep}.csv.xz", low_memory=False)
    of_blocks = ["row", "col", "part"]
    rows[of_blocks] = rows[of_blocks].fillna("")
    is_diagonal = (rows["row"] == rows["col"]) & (rows["layer"] == rows["row_layer"])
    rows = rows[is_diagonal & (rows["part"] == part) & (rows["quantity"] == quantity)]
    if quantity == "frobenius":
        rows = rows[rows["value"] > 0]
    variants = rows["variant"].astype(object).fillna("")
    columns = pd.DataFrame([*map(settings_of, variants)], index=rows.index)
    return rows.join(columns.rename(columns=lambda key: key.rpartition(".")[2]))


def chosen(rows, **values):
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows


def by_seed(rows, **values):
    return chosen(rows, **values).groupby("seed")["value"].mean()


def inside(rows, window):
    return rows[rows["sigma"].between(window[0] * (1 - 1e-9), window[1] * (1 + 1e-9))]


def exponents(rows, window=WHOLE):
    """Return the least-squares exponent in sigma by seed."""
    found = {}
    for seed, one in inside(rows, window).groupby("seed"):
        found[seed] = np.polyfit(np.log(one["sigma"]), np.log(one["value"]), 1)[0]
    return pd.Series(found)


def gap(rows, window=SMALL):
    query = chosen(rows, row="W_Q")
    value = chosen(rows, row="W_V")
    return exponents(query, window) - exponents(value, window)


def shown(sample, digits):
    """Return the mean with its interval as the page prints them; a zero has no sign, whatever way it is rounded."""
    found = student_interval(sample)
    numbers = np.round([found.mean, found.low, found.high], digits) + 0.0
    return "{:.{d}f} [{:.{d}f}, {:.{d}f}]".format(*numbers, d=digits)


def attention():
    rows = table("eq5")
    return [
        shown(gap(chosen(rows, attention=kind)), 2) for kind in ("softmax", "linear")
    ]


def entries():
    """Return log10 of the median entry of the value over the query block: softmax minus linear; linear."""
    rows = pd.read_csv(ROOT / "docs/studies/entry_medians.csv")
    place = ["attention", "seed"]
    medians = rows.pivot_table(index=place, columns="row", values="median", sort=False)
    logs = np.log10(medians)
    decades = logs["W_V"] - logs["W_Q"]
    linear = decades["linear"]
    return [shown(decades["softmax"] - linear, 2), f"{linear.mean():.2f}"]


def depth():
    return [shown(_growth(table("softmax", "H_o")), 1), shown(_growth(table("mlp")), 3)]


def _growth(rows):
    """Return the mean exponent of the blocks of the deepest networks minus that of the shallowest, by seed."""
    blocks = rows.groupby(["num_layers", "layer", "row"]).apply(exponents)
    by_depth = blocks.groupby(level="num_layers").mean()
    return by_depth.iloc[-1] - by_depth.iloc[0]


def negative():
    assert (_more_negative("none", ["W_V"]) == 0).all()
    query_key = _more_negative("none", ["W_Q", "W_K"])
    return [shown(query_key, 3), shown(_more_negative("pre", WEIGHTS), 3)]


def _more_negative(norm, blocks):
    rows = table("spectra", quantity="share_negative")
    rows = rows[rows["row"].isin(blocks)]
    return by_seed(rows, norm=norm, attention="softmax") - by_seed(
        rows, norm=norm, attention="linear"
    )


def pre_norm():
    pre = table("layernorm")
    none = table("sigma")
    small = gap(pre, SMALL).abs() / gap(none, SMALL).abs()
    large = gap(pre, LARGE).abs() / gap(none, LARGE).abs()
    return [shown(small, 2), shown(large, 2)]


def bounded():
    return [
        shown(_largest("sigma", row) - _largest("layernorm", row), 1)
        for row in ("W_Q", "W_V")
    ]


def _largest(sweep, row):
    """Return log10 of the largest norm over sigma >= 1 by seed."""
    return np.log10(
        inside(chosen(table(sweep), row=row), LARGE).groupby("seed")["value"].max()
    )


def layers():
    last = chosen(table("depth"), num_layers=5, row="W_V")
    first = chosen(last, layer=1)
    top = chosen(last, layer=5)
    lower = np.log10(inside(first, PRACTICAL).set_index("sigma")["value"])
    upper = np.log10(inside(top, PRACTICAL).set_index("sigma")["value"])
    seeds = inside(top, PRACTICAL)["seed"].to_numpy()
    lower_by = pd.Series(upper.to_numpy() - lower.to_numpy()).groupby(seeds).mean()
    steeper = exponents(first, LARGE) - exponents(top, LARGE)
    chain = exponents(chosen(table("softmax"), num_layers=3, layer=3, row="W_V")) / (
        2 * 3**3
    )
    return [
        shown(lower_by, 2),
        shown(steeper, 1),
        f"{_off(PRACTICAL):.0%}",
        f"{_off(SMALL):.1%}",
        shown(chain, 3),
    ]


# Exponents predicted for one layer.
ONE_LAYER = {("W_Q", "H_o"): 6, ("W_Q", "H_f"): 5, ("W_V", "H_o"): 2}


def _off(window):
    """Return the largest relative deviation over layers from the exponent of one layer."""
    largest = 0.0
    for (row, part), expected in ONE_LAYER.items():
        deep = chosen(table("depth", part), num_layers=5, row=row)
        for layer in range(1, 6):
            mean = exponents(chosen(deep, layer=layer), window).mean()
            largest = max(largest, abs(mean / expected - 1))
    return largest


def heads():
    outer = table("heads", "H_o")
    functional = table("heads", "H_f")
    both = {}
    for sigma in (0.1, 0.3, 1.0):
        here = chosen(outer, sigma=sigma)
        value = np.hypot(by_seed(here, row="W_Q"), by_seed(here, row="W_V"))
        query = by_seed(functional, sigma=sigma)
        both[sigma] = (query / (value + query)).mean()
    zeros = pd.read_csv(ROOT / "docs/studies/zero_shares.csv")
    zeros = zeros.pivot_table(index="seed", columns="n_heads", values="share")
    return [
        shown(zeros[16] - zeros[1], 3),
        f"{both[0.1]:.3f}",
        f"{both[0.3]:.2f}",
        f"{both[1.0]:.1f}",
        shown(_share_of_query("16") - _share_of_query("1"), 3),
    ]


def _share_of_query(count):
    """Return ||H_f|| / (||H_o|| + ||H_f||) of the query block at sigma = 0.1 by seed."""
    place = {"sigma": 0.1, "n_heads": count, "row": "W_Q"}
    outer = by_seed(table("heads", "H_o"), **place)
    functional = by_seed(table("heads", "H_f"), **place)
    return functional / (outer + functional)


def _share_at_scores():
    """Return the share of H_f^T of the query-key block at sigma = 0.1: seeds by rising temperatures."""
    norms = []
    for part in AT_SCORES:
        rows = chosen(table("temperature", part), sigma=0.1)
        rows = rows.assign(t=rows["temperature"].astype(float))
        norms.append(rows.pivot_table(index="seed", columns="t", values="value"))
    outer, functional = norms
    return functional / (outer + functional)


def temperature():
    share = _share_at_scores()
    mean = share.mean()
    above = int(np.flatnonzero(mean >= 0.5)[0])
    around = mean.iloc[above - 1 : above + 1]
    crossing = np.exp(np.interp(0.5, around, np.log(around.index.to_numpy())))
    return [shown(share.iloc[:, -1] - share.iloc[:, 0], 2), f"{crossing:.3f}"]


def dispersed():
    """Return log10 of t^2 ||H_o(Q, Q)|| / ||H_o(V, V)|| at the highest t; t divides the scores."""
    return [
        shown(_query_over_value("dispersion", temperature="8.0") + 2 * np.log10(8), 2)
    ]


def similar_tokens():
    unlike = _query_over_value("similar_tokens", correlation="0.0")
    alike = _query_over_value("similar_tokens", correlation="0.99")
    return [shown(unlike - alike, 2)]


def _query_over_value(sweep, **values):
    """Return log10 of ||H_o(Q, Q)|| over ||H_o(V, V)|| by seed."""
    rows = chosen(table(sweep, "H_o"), **values)
    return np.log10(by_seed(rows, row="W_Q") / by_seed(rows, row="W_V"))


def wide_keys():
    spread = table("wide_keys", part="", quantity="pattern_spread")
    narrow = by_seed(spread, d_head="1")
    wide = by_seed(spread, d_head="64")
    return [shown(np.log10(narrow / wide), 3)]


def weight_powers():
    """Return the exponent of ||H_o(Q, Q)||_F in the scale of W_K."""
    rows = chosen(table("weight_powers", "H_o"), scaled_weight="W_K", row="W_Q")
    return [shown(exponents(rows.assign(sigma=rows["weight_scale"].astype(float))), 3)]


def one_matrix():
    outer = chosen(table("score_split", "H_oT"), sigma=0.1)
    functional = chosen(table("score_split", "H_fT"), sigma=0.1)
    # With one weight, norms of H_f^T are 0, which `table` drops.
    assert set(functional["query_key"]) == {"separate"}
    outer = by_seed(outer, query_key="separate")
    functional = by_seed(functional)
    return [shown(functional / (outer + functional), 3)]


def values():
    return [shown(_values_over_others(sweep, step), 2) for sweep, step in TRAINED]


TRAINED = [
    ("sublayers_steps", 0),
    ("sublayers_steps", 1000),
    ("curvature_flow", 0),
    ("curvature_flow", 4000),
]


def _values_over_others(sweep, step):
    rows = chosen(table(sweep), step=step)
    norms = rows[rows["row"].isin(WEIGHTS)].pivot_table(
        index="seed", columns="row", values="value"
    )
    return np.log10(norms["W_V"] / norms[["W_Q", "W_K"]].max(axis=1))


EQUAL_LOSSES = 5


def muon():
    """Return log10 of AdamW's over Muon's curvature at three rates of AdamW, and of AdamW's at two rates."""
    adamw = _update_curvatures("adamw")
    other = _update_curvatures("muon")
    lower = _adamw_at(0.0015)
    higher = _adamw_at(0.006)
    pairs = (adamw, other), (lower, other), (higher, other), (lower, higher)
    return [shown(at_equal_losses(*pair), 2) for pair in pairs]


def at_equal_losses(first, second):
    """Return log10 of the first training's over the second's curvature along the next update by seed.

    Both are read at five losses between the largest and the smallest that both pass
    through.
    """
    means = {}
    for seed in first.index.unique("seed"):
        one = first.xs(seed, level="seed")
        other = second.xs(seed, level="seed")
        low = max(one["loss"].min(), other["loss"].min())
        high = min(one["loss"].max(), other["loss"].max())
        losses = np.linspace(low, high, EQUAL_LOSSES)
        ours = np.interp(losses, one["loss"], one["curvature"])
        others = np.interp(losses, other["loss"], other["curvature"])
        means[seed] = (ours - others).mean()
    return pd.Series(means)


def _adamw_at(rate):
    """Return log10 of loss and curvature of AdamW's trainings at another rate."""
    rows = pd.read_csv(ROOT / "docs/studies/update_rates.csv")
    rows = rows.set_index(["seed", "step"])
    return _logs(rows[rows["learning_rate"] == rate][["loss", "curvature"]])


def _logs(both):
    """Return log10 of loss and curvature where the curvature is positive, the losses rising."""
    return np.log10(both[both["curvature"] > 0]).sort_values("loss")


def _update_curvatures(rule):
    """Return log10 of loss and curvature of a rule's training by seed and step, the losses rising."""
    losses = chosen(table("along_updates", "", "loss"), optimiser=rule)
    along = table("along_updates", "H", f"{rule}_update_curvature")
    along = chosen(along, optimiser=rule, row="all")
    place = ["seed", "step"]
    both = {"loss": losses.set_index(place)["value"]}
    both["curvature"] = along.set_index(place)["value"]
    return _logs(pd.DataFrame(both))


def widening():
    """Return the exponents of the largest eigenvalue of the whole network in the number of layers and in the width."""
    deep = chosen(table("model_size_depth", "H", "largest_eigenvalue"), row="all")
    wide = chosen(table("model_size_width", "H", "largest_eigenvalue"), row="all")
    layers = deep["num_layers"]
    widths = wide["d_model"].astype(float)
    return [
        shown(exponents(deep.assign(sigma=layers)), 1),
        shown(exponents(wide.assign(sigma=widths)), 2),
    ]


def components():
    """Return the gaps of exponents of two networks, and by how much that of a third exceeds the base network's."""
    rows = pd.read_csv(ROOT / "docs/studies/component_norms.csv")
    base = gap(rows[rows["variant"].isna()])
    sigmoid = gap(chosen(rows, variant="model.attention=sigmoid"))
    return [
        shown(gap(chosen(rows, variant="model.scores=qk_norm")), 2),
        shown(gap(chosen(rows, variant="model.attention=linear")), 2),
        shown(sigmoid - base, 2),
    ]


def behind():
    path = TABLES / "centring_training.csv.xz"
    losses = tuned_losses(pd.read_csv(path, keep_default_na=False, na_values=["nan"]))
    momentum = losses.xs("sgd, momentum", level="optimiser")
    adamw = losses.xs("adamw", level="optimiser")
    own = momentum[SOFTMAX] - momentum[RESCALED]
    return [shown(own - (adamw[SOFTMAX] - adamw[RESCALED]), 3), shown(own, 3)]


ROWS = {
    "Without softmax, query": attention,
    "Entries of value": entries,
    "The data dependence": depth,
    "Softmax makes": negative,
    "Dispersed attention": dispersed,
    "The more similar": similar_tokens,
    "With wide keys": wide_keys,
    "With pre-LN": pre_norm,
    "LayerNorm keeps": bounded,
    "In deep networks": layers,
    "With more heads": heads,
    "H_f^T dominates": temperature,
    "A single weight": one_matrix,
    "Blocks depend": weight_powers,
    "After training": values,
    "At equal loss": muon,
    "The spectrum": widening,
    "Normalised queries": components,
    "SGD is behind": behind,
}


def rows_of_page():
    """Return the cells of the rows of the three tables of claims."""
    rows = []
    for line in re.findall(r"^\| (.+) \|$", text_of("docs/claims.md"), re.MULTILINE):
        row = line.split(" | ")
        is_head = row == HEADING or row[0].startswith("---")
        if len(row) == len(HEADING) and not is_head:
            rows.append(row)
    return rows


@pytest.mark.parametrize("begins", ROWS)
def test_every_number_of_a_claim_is_in_its_kept_table(begins):
    (row,) = [row for row in rows_of_page() if row[0].startswith(begins)]
    effect = row[2]
    found = ROWS[begins]()
    print(f"{row[0]}\n  found in a kept table: {'; '.join(found)}")
    assert not [text for text in found if text not in effect], (found, effect)
    for text in sorted(found, key=len, reverse=True):
        effect = effect.replace(text, "")
    assert not re.findall(r"\d\.\d+", CONDITION.sub("", effect)), (
        "a number that is not recomputed"
    )


def test_rows_whose_table_is_not_kept_say_so():
    rows = rows_of_page()
    assert len(rows) == 19
    assert {re.findall(r"^\w+", row[1])[0] for row in rows} == set(VERDICTS)
    for claim, _, _, evidence in rows:
        named = re.findall(r"`hessfig run sweep=(\w+)[^`]*`", evidence)
        linked = re.findall(r"\(tables/(\w+)\.csv\.xz\)", evidence)
        by_script = re.findall(r"\((studies/\w+\.csv)\)", evidence)
        missing = re.findall(r"`(\w+)`, not kept", evidence)
        assert sorted([*linked, *missing]) == sorted(named), claim
        for sweep in named:
            is_kept = (TABLES / f"{sweep}.csv.xz").is_file()
            assert is_kept == (sweep in linked), claim
        for name in by_script:
            assert (ROOT / "docs" / name).is_file(), claim
        kept = [*linked, *by_script]
        assert kept or not claim.startswith(tuple(ROWS))
        if not kept:
            print(f"{claim}\n  table not kept: {', '.join(missing)}")
