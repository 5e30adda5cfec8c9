"""The manifest beside a table: what it says of networks, axis and seeds, and what a broken one is told."""

import json

import pandas as pd
import pytest

from hessfig.analysis.manifest import architectures, read_manifest, read_run, varied
from hessfig.config.compose.job import compose
from hessfig.errors import UserError
from hessfig.predictions.architecture import Attention
from hessfig.record import CHECKSUM, checksum
from hessfig.sweep.outputs import manifest_text
from hessfig.sweep.plan import Sweep
from hessfig.terms import Scores
from tests.analysis.synthetic import CONFIG, MODEL, config, make_table, write_sweep


def test_table_from_another_run(tmp_path):
    folder = write_sweep(make_table(), tmp_path)
    made = make_table(seeds=4)
    made.to_csv(folder / "table.csv", index=False)
    with pytest.raises(UserError, match="from another config or run"):
        read_run(folder)


def manifest(**changes):
    """Return the text of a manifest whose config is changed."""
    return json.dumps({"config": {**CONFIG, **changes}})


BROKEN = [
    "",
    "{",
    "[]",
    "{}",
    "[" * 100_000,
    '{"config": 1e999}',
    "\ufeff{}",
    json.dumps({"sweep": "sigma"}),
    json.dumps({"config": []}),
    json.dumps({"config": {"model": [], "task": {}}}),
    manifest(model={**MODEL, "n_layers": "many"}),
    manifest(model={**MODEL, "n_layers": 1e999}),
    manifest(model={**MODEL, "attention": "cubic"}),
    manifest(model={name: value for name, value in MODEL.items() if name != "mlp"}),
    manifest(task={}),
    manifest(state=["loaded"]),
    manifest(sweep="sigma"),
    manifest(sweep={"axis": 3}),
    manifest(first_seed=-1),
    json.dumps({"config": CONFIG, "arrays": {}}),
    json.dumps({"config": CONFIG, "table_sha256": 3}),
]


@pytest.mark.parametrize("text", BROKEN, ids=[text[:40] for text in BROKEN])
def test_a_broken_manifest_is_explained(tmp_path, text):
    folder = write_sweep(make_table(seeds=1, sigma=[0.1]), tmp_path / "outputs")
    (folder / "manifest.json").write_text(text)
    with pytest.raises(
        UserError,
        match=r"is not a manifest of this version[\s\S]*hessfig run sweep=sigma",
    ):
        read_run(folder)


def test_bytes_and_a_folder_are_no_manifest(tmp_path):
    folder = write_sweep(make_table(seeds=1, sigma=[0.1]), tmp_path, settings=None)
    (folder / "manifest.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserError, match="is not a manifest"):
        read_manifest(folder)
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()
    with pytest.raises(UserError, match="is not a manifest"):
        read_manifest(folder)


@pytest.mark.parametrize(
    "variant",
    [
        "modl.temperature=2.0",
        "model.temprature=2.0",
        "model.kind.deep=2.0",
        "task.loss.deep.deeper=2.0",
        "model.attention=cubic",
        "nothing",
        "=",
        "..=1",
    ],
)
def test_a_variant_that_the_settings_do_not_know(tmp_path, variant):
    folder = write_sweep(
        make_table(seeds=1, sigma=[0.1]).assign(variant=variant), tmp_path
    )
    with pytest.raises(
        UserError, match=r"do not fit a variant of the table[\s\S]*run the sweep again"
    ):
        read_run(folder)


def test_a_users_own_options_need_not_be_in_the_settings():
    settings = config(kind="python", options={})
    variant = "model.options.widths=[8,16],model.temperature=2.0"
    changed = varied(settings, variant, num_layers=0)
    assert changed["model"]["options"] == {"widths": "[8,16]"}
    assert changed["model"]["temperature"] == "2.0"


def test_manifests_of_the_first_version_lie_along_sigma(tmp_path):
    run = read_run(write_sweep(make_table(), tmp_path))
    assert run.axis.is_sigma
    assert run.first_seed == 0
    settings = {
        **CONFIG,
        "first_seed": 1234,
        "sweep": {"name": "sigma", "axis": "step"},
    }
    run = read_run(write_sweep(make_table(), tmp_path, settings=settings))
    assert (run.axis.name, run.first_seed) == ("step", 1234)


def test_no_power_law_where_weights_are_loaded_or_positions_keep_their_size():
    table = make_table(seeds=1, sigma=[0.1])
    for settings in (
        {**CONFIG, "state": {"kind": "loaded"}},
        config(sigma_scales="tokens"),
    ):
        ((_, shape),) = architectures(table, {"config": settings}).items()
        assert shape.is_counted
        assert shape.no_power
    for settings in (
        {**CONFIG, "state": {"kind": "initialised"}},
        config(sigma_scales="both"),
    ):
        ((_, shape),) = architectures(table, {"config": settings}).items()
        assert not shape.no_power


def test_without_manifest_nothing_is_predicted(tmp_path):
    architectures = read_run(
        write_sweep(make_table(), tmp_path, settings=None)
    ).architectures
    assert architectures == {}


def test_architecture_of_each_variant(tmp_path):
    made = make_table(
        networks=[("model.attention=linear,model.attention_skip=False", 2), ("", 1)]
    )
    architectures = read_run(write_sweep(made, tmp_path)).architectures
    first = architectures["model.attention=linear,model.attention_skip=False", 2]
    assert (first.attention, first.attention_skip, first.num_layers) == (
        Attention.linear,
        False,
        2,
    )
    assert architectures["", 1].attention == Attention.softmax


def test_a_variant_has_nothing_of_the_first_one():
    """The manifest's config is the first variant's: its attention, loss and state are no part of the second."""
    words = "[{model.attention: linear, task.loss: mse}, {model.scores: cosine}]"
    job = compose(
        [
            f"sweep.variants={words}",
            "model.d_model=4",
            "task.batch_size=2",
            "estimator=hutchinson",
        ]
    )
    found = json.loads(manifest_text(Sweep(job.variants), {}))
    names = [one["variant"] for one in found["variants"]]
    networks = architectures(
        pd.DataFrame({"variant": names, "num_layers": [1, 1]}), found
    )
    linear, cosine = (networks[name, 1] for name in names)
    assert (linear.attention, linear.square_loss, linear.scores) == (
        Attention.linear,
        True,
        Scores.plain,
    )
    assert (cosine.attention, cosine.square_loss, cosine.scores) == (
        Attention.softmax,
        False,
        Scores.cosine,
    )


def test_varied_leaves_the_settings_alone():
    assert varied(CONFIG, "task.seed=3", num_layers=4)["model"]["n_layers"] == 4
    assert CONFIG["model"]["n_layers"] == 1


def test_an_altered_manifest_is_refused(tmp_path):
    folder = write_sweep(make_table(seeds=1, sigma=[0.1]), tmp_path)
    content = json.loads((folder / "manifest.json").read_text())
    whole = {**content, CHECKSUM: checksum(content)}
    (folder / "manifest.json").write_text(json.dumps(whole))
    assert read_manifest(folder) == whole
    (folder / "manifest.json").write_text(json.dumps({**whole, "sweep": "another"}))
    with pytest.raises(UserError, match=r"is not a manifest[\s\S]*altered"):
        read_manifest(folder)
