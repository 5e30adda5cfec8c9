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
    settings = [
        dict(settings_of(variant))
        for variant in rows["variant"].astype(object).fillna("")
    ]
    columns = pd.DataFrame(settings, index=rows.index)
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
    curves = inside(rows, window).groupby("seed")
    return pd.Series(
        {
            seed: np.polyfit(np.log(one["sigma"]), np.log(one["value"]), 1)[0]
            for seed, one in curves
        }
    )


def gap(rows, window=SMALL):
    query, value = (exponents(chosen(rows, row=row), window) for row in ("W_Q", "W_V"))
    return query - value


def shown(sample, digits):
    """Return the mean with its interval as the page prints them; a zero has no sign, whatever way it is rounded."""
    found = student_interval(sample)
    mean, low, high = (
        f"{round(number, digits) + 0.0:.{digits}f}"
        for number in (found.mean, found.low, found.high)
    )
    return f"{mean} [{low}, {high}]"


def attention():
    rows = table("eq5")
    return [
        shown(gap(chosen(rows, attention=kind)), 2) for kind in ("softmax", "linear")
    ]


def entries():
    """Return log10 of the median entry of the value over the query block: softmax minus linear; linear."""
    rows = pd.read_csv(ROOT / "docs/studies/entry_medians.csv")
    logs = np.log10(
        rows.pivot_table(
            index=["attention", "seed"], columns="row", values="median", sort=False
        )
    )
    decades = logs["W_V"] - logs["W_Q"]
    linear = decades["linear"]
    return [shown(decades["softmax"] - linear, 2), f"{linear.mean():.2f}"]


def depth():
    return [shown(_growth(table("softmax", "H_o")), 1), shown(_growth(table("mlp")), 3)]


def _growth(rows):
    """Return the mean exponent of the blocks of the deepest networks minus that of the shallowest, by seed."""
    blocks = rows.groupby(["num_layers", "layer", "row"])
    by_depth = (
        pd.DataFrame({place: exponents(one) for place, one in blocks})
        .T.groupby(level=0)
        .mean()
    )
    return by_depth.iloc[-1] - by_depth.iloc[0]


def negative():
    query_key, value = (
        _more_negative("none", rows) for rows in (WEIGHTS[:2], WEIGHTS[2:])
    )
    assert (value == 0).all()
    return [shown(query_key, 3), shown(_more_negative("pre", WEIGHTS), 3)]


def _more_negative(norm, blocks):
    rows = table("spectra", quantity="share_negative")
    rows = rows[rows["row"].isin(blocks)]
    return by_seed(rows, norm=norm, attention="softmax") - by_seed(
        rows, norm=norm, attention="linear"
    )


def pre_norm():
    pre, none = table("layernorm"), table("sigma")
    return [
        shown(gap(pre, window).abs() / gap(none, window).abs(), 2)
        for window in (SMALL, LARGE)
    ]


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
    first, top = (
        chosen(table("depth"), num_layers=5, layer=layer, row="W_V") for layer in (1, 5)
    )
    lower, upper = (
        np.log10(inside(one, PRACTICAL).set_index("sigma")["value"])
        for one in (first, top)
    )
    seeds = inside(top, PRACTICAL)["seed"].to_numpy()
    lower_by = pd.Series(upper.to_numpy() - lower.to_numpy()).groupby(seeds).mean()
    off = [
        max(_off(row, part, window) for row, part in ONE_LAYER)
        for window in (PRACTICAL, SMALL)
    ]
    steeper = exponents(first, LARGE) - exponents(top, LARGE)
    chain = exponents(chosen(table("softmax"), num_layers=3, layer=3, row="W_V")) / (
        2 * 3**3
    )
    return [
        shown(lower_by, 2),
        shown(steeper, 1),
        f"{off[0]:.0%}",
        f"{off[1]:.1%}",
        shown(chain, 3),
    ]


# Exponents predicted for one layer.
ONE_LAYER = {("W_Q", "H_o"): 6, ("W_Q", "H_f"): 5, ("W_V", "H_o"): 2}


def _off(row, part, window):
    """Return the largest relative deviation over layers from the exponent of one layer."""
    deep = chosen(table("depth", part), num_layers=5, row=row)
    means = [
        exponents(chosen(deep, layer=layer), window).mean() for layer in range(1, 6)
    ]
    return max(abs(mean / ONE_LAYER[row, part] - 1) for mean in means)


def heads():
    outer, functional = table("heads", "H_o"), table("heads", "H_f")
    both = {}
    for sigma in (0.1, 0.3, 1.0):
        value = np.hypot(
            by_seed(outer, sigma=sigma, row="W_Q"),
            by_seed(outer, sigma=sigma, row="W_V"),
        )
        query = by_seed(functional, sigma=sigma)
        both[sigma] = (query / (value + query)).mean()
    few, many = (_share_of_query(count) for count in ("1", "16"))
    zeros = pd.read_csv(ROOT / "docs/studies/zero_shares.csv")
    zeros = zeros.pivot_table(index="seed", columns="n_heads", values="share")
    return [
        shown(zeros[16] - zeros[1], 3),
        f"{both[0.1]:.3f}",
        f"{both[0.3]:.2f}",
        f"{both[1.0]:.1f}",
        shown(many - few, 3),
    ]


def _share_of_query(count):
    """Return ||H_f|| / (||H_o|| + ||H_f||) of the query block at sigma = 0.1 by seed."""
    outer, functional = (
        by_seed(table("heads", part), sigma=0.1, n_heads=count, row="W_Q")
        for part in ("H_o", "H_f")
    )
    return functional / (outer + functional)


def _share_at_scores():
    """Return the share of H_f^T of the query-key block at sigma = 0.1: seeds by rising temperatures."""
    outer, functional = (
        chosen(table("temperature", part), sigma=0.1) for part in AT_SCORES
    )
    both = [
        rows.assign(t=rows["temperature"].astype(float)) for rows in (outer, functional)
    ]
    outer, functional = (
        rows.pivot_table(index="seed", columns="t", values="value") for rows in both
    )
    return functional / (outer + functional)


def temperature():
    share = _share_at_scores()
    mean = share.mean()
    above = int(np.flatnonzero(mean >= 0.5)[0])
    crossing = np.interp(
        0.5,
        mean.iloc[above - 1 : above + 1],
        np.log(mean.index[above - 1 : above + 1].to_numpy()),
    )
    return [shown(share.iloc[:, -1] - share.iloc[:, 0], 2), f"{np.exp(crossing):.3f}"]


def dispersed():
    """Return log10 of t^2 ||H_o(Q, Q)|| / ||H_o(V, V)|| at the highest t; t divides the scores."""
    return [
        shown(_query_over_value("dispersion", temperature="8.0") + 2 * np.log10(8), 2)
    ]


def similar_tokens():
    unlike, alike = (
        _query_over_value("similar_tokens", correlation=rho) for rho in ("0.0", "0.99")
    )
    return [shown(unlike - alike, 2)]


def _query_over_value(sweep, **values):
    """Return log10 of ||H_o(Q, Q)|| over ||H_o(V, V)|| by seed."""
    rows = chosen(table(sweep, "H_o"), **values)
    return np.log10(by_seed(rows, row="W_Q") / by_seed(rows, row="W_V"))


def wide_keys():
    spread = table("wide_keys", part="", quantity="pattern_spread")
    narrow, wide = (by_seed(spread, d_head=width) for width in ("1", "64"))
    return [shown(np.log10(narrow / wide), 3)]


def weight_powers():
    """Return the exponent of ||H_o(Q, Q)||_F in the scale of W_K."""
    rows = chosen(table("weight_powers", "H_o"), scaled_weight="W_K", row="W_Q")
    return [shown(exponents(rows.assign(sigma=rows["weight_scale"].astype(float))), 3)]


def one_matrix():
    outer, functional = (
        chosen(table("score_split", part), sigma=0.1) for part in AT_SCORES
    )
    # With one weight, norms of H_f^T are 0, which `table` drops.
    assert set(functional["query_key"]) == {"separate"}
    outer, functional = (
        by_seed(part, query_key="separate") for part in (outer, functional)
    )
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
    adamw, other = (_update_curvatures(rule) for rule in ("adamw", "muon"))
    lower, higher = _adamw_at_other_rates()
    pairs = (adamw, other), (lower, other), (higher, other), (lower, higher)
    return [shown(at_equal_losses(*pair), 2) for pair in pairs]


def at_equal_losses(first, second):
    """Return log10 of the first training's over the second's curvature along the next update by seed.

    Both are read at five losses between the largest and the smallest that both pass
    through.
    """
    means = {}
    for seed in first.index.unique("seed"):
        curves = [curve.xs(seed, level="seed") for curve in (first, second)]
        low = max(curve["loss"].min() for curve in curves)
        high = min(curve["loss"].max() for curve in curves)
        losses = np.linspace(low, high, EQUAL_LOSSES)
        ours, others = (
            np.interp(losses, curve["loss"], curve["curvature"]) for curve in curves
        )
        means[seed] = (ours - others).mean()
    return pd.Series(means)


def _adamw_at_other_rates():
    """Return log10 of loss and curvature of AdamW's trainings at 1.5e-3 and at 6e-3."""
    rows = pd.read_csv(ROOT / "docs/studies/update_rates.csv")
    rows = rows.set_index(["seed", "step"])
    return [
        _logs(rows[rows["learning_rate"] == rate][["loss", "curvature"]])
        for rate in (0.0015, 0.006)
    ]


def _logs(both):
    """Return log10 of loss and curvature where the curvature is positive, the losses rising."""
    return np.log10(both[both["curvature"] > 0]).sort_values("loss")


def _update_curvatures(rule):
    """Return log10 of loss and curvature of a rule's training by seed and step, the losses rising."""
    losses = chosen(table("along_updates", "", "loss"), optimiser=rule)
    along = table("along_updates", "H", f"{rule}_update_curvature")
    along = chosen(along, optimiser=rule, row="all")
    both = pd.DataFrame(
        {
            name: rows.set_index(["seed", "step"])["value"]
            for name, rows in (("loss", losses), ("curvature", along))
        }
    )
    return _logs(both)


def widening():
    """Return the exponents of the largest eigenvalue of the whole network in the number of layers and in the width."""
    deep, wide = (
        chosen(table(sweep, "H", "largest_eigenvalue"), row="all")
        for sweep in ("model_size_depth", "model_size_width")
    )
    widths = wide["d_model"].astype(float)
    return [
        shown(exponents(deep.assign(sigma=deep["num_layers"])), 1),
        shown(exponents(wide.assign(sigma=widths)), 2),
    ]


def components():
    """Return the gaps of exponents of two networks, and by how much that of a third exceeds the base network's."""
    rows = pd.read_csv(ROOT / "docs/studies/component_norms.csv")
    base = gap(rows[rows["variant"].isna()])
    normalised, linear, sigmoid = (
        gap(chosen(rows, variant=variant))
        for variant in (
            "model.scores=qk_norm",
            "model.attention=linear",
            "model.attention=sigmoid",
        )
    )
    return [shown(normalised, 2), shown(linear, 2), shown(sigmoid - base, 2)]


def behind():
    losses = tuned_losses(
        pd.read_csv(
            TABLES / "centring_training.csv.xz",
            keep_default_na=False,
            na_values=["nan"],
        )
    )
    momentum, adamw = (
        losses.xs(name, level="optimiser") for name in ("sgd, momentum", "adamw")
    )
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
    lines = re.findall(r"^\| (.+) \|$", text_of("docs/claims.md"), flags=re.MULTILINE)
    rows = [line.split(" | ") for line in lines]
    return [
        row
        for row in rows
        if len(row) == len(HEADING) and row != HEADING and not row[0].startswith("---")
    ]


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
        missing = [
            sweep for sweep in named if not (TABLES / f"{sweep}.csv.xz").is_file()
        ]
        linked = re.findall(r"\(tables/(\w+)\.csv\.xz\)", evidence)
        by_script = re.findall(r"\((studies/\w+\.csv)\)", evidence)
        assert sorted([*linked, *missing]) == sorted(named), claim
        assert missing == re.findall(r"`(\w+)`, not kept", evidence), claim
        assert all((ROOT / "docs" / name).is_file() for name in by_script), claim
        kept = [*linked, *by_script]
        assert kept or not any(claim.startswith(begins) for begins in ROWS)
        if not kept:
            print(f"{claim}\n  table not kept: {', '.join(missing)}")
