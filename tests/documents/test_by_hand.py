"""The pages' formulas of approximations, saliencies and roundings, tried without the package on networks of its own."""

import math

import pytest

from hessfig.config.compose.job import compose
from hessfig.states.exported import plain_files
from hessfig.studies.removal.row_names import ROUNDINGS, SALIENCIES
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from hessfig.terms import Approximation
from tests.pages import ROOT, text_of
from tests.runs import here, script

# With the numbers that each recomputes.
SCRIPTS = {"approximations_by_hand": 507, "saliencies_by_hand": 460}
# In a process in which hessfig cannot be imported, a file runs as python runs it.
ALONE = """
import os, sys, runpy
for name in ["hessfig", *(name for name in sys.modules if name.startswith("hessfig."))]:
    sys.modules[name] = None
del sys.argv[0]
sys.path.insert(0, os.path.dirname(sys.argv[0]))
runpy.run_path(sys.argv[0], {}, "__main__")
"""
SMALL = (
    "sweep=sigma",
    "sweep.vary={}",
    "grid.values=[0.5]",
    "seeds=1",
    "estimator=dense",
    "dtype=float64",
    "model.d_model=8",
    "model.n_heads=2",
    "model.d_mlp=6",
    "model.mlp=gelu",
    "task.digits=1",
    "task.batch_size=10",
    "training.batch_size=8",
    "quantities=[approximations,pruning,quantisation]",
    "compression.shares=[0.3,0.7]",
)
TRAINED = (
    "state=trained",
    "training=adamw",
    "state.step=[5]",
    "training.steps=5",
    "training.warmup=1",
)
NETWORKS = {
    "plain": ["blocks=[W_Q]"],
    "shared keys": ["model.n_kv_heads=1", "blocks=[W_K]"],
    "post-norm": ["model.norm=post", "blocks=[W_in]"],
    "sigmoid": ["model.attention=sigmoid", "blocks=[W_V]"],
    "gate and RMSNorm": [
        "model.gate=output",
        "model.norm=pre",
        "model.norm_kind=rms",
        "blocks=[W_G]",
    ],
    "two layers": [
        "model.n_layers=2",
        "model.norm=pre",
        "model.mlp=swiglu",
        "blocks=[W_K@1]",
    ],
    "whole": [
        *TRAINED,
        "model.d_model=2",
        "model.d_mlp=2",
        "model.n_heads=1",
        "blocks=[all]",
    ],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the example's table and the export of its network."""
    folder = tmp_path_factory.mktemp("by_hand")
    done = here(
        "run",
        "--config-dir",
        str(ROOT / "examples"),
        "sweep=by_hand",
        "workers=1",
        folder=folder,
    )
    assert done.returncode == 0, done.stderr
    done = here("export", "outputs/by_hand", "into=network", folder=folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.long
@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(("name", "count"), SCRIPTS.items())
def test_a_stranger_recomputes_every_number_of_the_table(name, count, made, tmp_path):
    (tmp_path / "alone.py").write_text(ALONE)
    words = [
        tmp_path / "alone.py",
        ROOT / f"examples/{name}.py",
        made / "network",
        made / "outputs/by_hand/table.csv",
    ]
    found = script(*map(str, words), folder=tmp_path / "empty")
    assert found.splitlines()[-1] == f"0 of {count} numbers differ"


@pytest.fixture
def examples(monkeypatch):
    """The two scripts as modules."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import approximations_by_hand
    import saliencies_by_hand

    return approximations_by_hand, saliencies_by_hand


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.long
def test_every_row_of_a_network_of_today_is_recomputed(name, examples, tmp_path):
    sweep = Sweep(compose([*SMALL, f"output_dir={tmp_path}", *NETWORKS[name]]).variants)
    first = sweep.cells[0]
    said = {"variant": "", "num_layers": first.num_layers}
    files = plain_files(
        sweep.config, sigma=first.sigma, seed=first.seed, step=first.step, said=said
    )
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    network = examples[0].Today(tmp_path)
    is_same = examples[0].is_same
    table = {}
    for cell in sweep.cells:
        for row in compute_cell(cell).rows:
            place = (
                str(row["col"]),
                str(row.get("part") or ""),
                _text(row.get("index")),
            )
            table[row["quantity"], row["layer"], *place] = row["value"]
    layer, block = next(iter(table))[1:3]
    found = {}
    for one in examples:
        found |= one.recomputed(network, layer, block)
    mine = {key: value for key, value in table.items() if key[1:3] == (layer, block)}
    assert len(mine) > 150
    moved = 0
    for key, value in mine.items():
        assert is_same(key[0], found.get(key, math.inf), value), key
        moved += not is_same(key[0], found[key] * (1 + 3e-7), value)
    assert moved > 0.8 * len(mine)  # others are 0, or about to be


def _text(index):
    return "" if index is None else str(index)


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("studies/approximations", [*Approximation]),
        ("studies/removal", [*SALIENCIES, *ROUNDINGS]),
    ],
)
def test_every_name_has_its_formula_on_its_page(page, names):
    defined = set()
    for line in text_of(f"docs/{page}.md").splitlines():
        if line.startswith("| `"):
            defined |= {name.strip("` ") for name in line.split("|")[1].split(",")}
    general = {one for one in defined if one.endswith("_A")}
    for name in names:
        assert name in defined or f"{name.partition('_')[0]}_A" in general
