"""A table of other settings is told apart from one of these, by its manifest."""

import json

import pytest

from hessfig.config.compose.provenance import (
    manifest_of,
    matching_folder,
    preset_in,
    setting_differences,
    table_folder,
    title,
)
from hessfig.config.keys import as_plain
from hessfig.errors import UserError
from tests.config.composing import job
from tests.daily import thinned


def made(folder, *words):
    """Leave the manifest of a run with `words` in `folder`/SWEEP."""
    found = job(*words).variants[0][1]
    path = folder / found.sweep.name / "manifest.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"config": as_plain(found), "end": "2026-01-01"}))
    return path


def other(folder, asked, keys=None):
    manifest = manifest_of(folder / asked.config.sweep.name)
    assert manifest is not None
    return [str(one) for one in setting_differences(manifest["config"], asked, keys)]


def test_no_manifest_contradicts_nothing(tmp_path):
    assert manifest_of(tmp_path) is None
    assert (
        matching_folder(job("seeds=3", f"output_dir='{tmp_path}'"))
        == tmp_path / "sigma"
    )


def test_every_setting_that_makes_other_numbers_counts(tmp_path):
    made(
        tmp_path,
        "model.norm=pre",
        "seeds=3",
        "workers=2",
        "tolerance=0.2",
        "sweep.windows=[]",
    )
    assert other(tmp_path, job()) == ["model.norm=pre (now none)", "seeds=3 (now 20)"]
    assert other(tmp_path, job("model.norm=pre", "seeds=3")) == []


def test_only_what_is_given_is_compared_by_verbs_that_read(tmp_path):
    made(tmp_path, "model.norm=pre", "seeds=3")
    assert other(tmp_path, job("model.norm=none"), {"model.norm"}) == [
        "model.norm=pre (now none)"
    ]
    assert other(tmp_path, job("model.norm=pre"), {"model.norm"}) == []
    assert other(tmp_path, job("sweep=sigma"), {"sweep"}) == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("blocks=[W_V]", "blocks was [W_V, W_Q]"),
        ("parts=[H]", "parts was [H_o, H_f, H]"),
        ("model=linear_mlp", "model.kind was transformer"),
        ("grid=linear", "grid.spacing was log"),
        ("grid.values=[0.1]", "grid.values was null"),
        ("estimator=dense", "estimator.method was auto"),
        ("sweep.vary={model.n_heads: [1, 2]}", "model.n_heads was 1"),
        ("model.attention_skip=false", "model.attention_skip was true"),
    ],
)
@pytest.mark.long
def test_lists_groups_and_variants_are_compared_too(tmp_path, asked, message):
    made(tmp_path)
    with pytest.raises(UserError) as caught:
        matching_folder(job(asked, f"output_dir='{tmp_path}'"))
    assert message in str(caught.value)
    assert "is from another config" in str(caught.value)
    assert caught.value.got
    assert caught.value.allowed
    assert "hessfig run sweep=sigma" in caught.value.remedy


def test_a_table_that_is_missing_is_one_command_away(tmp_path):
    asked = job(f"output_dir={tmp_path}", "seeds=3", "tolerance=0.2", "sweep=depth")
    with pytest.raises(UserError, match=r"depth/table.csv is missing") as caught:
        table_folder(asked)
    assert (
        caught.value.remedy == f"hessfig run sweep=depth seeds=3 output_dir={tmp_path}"
    )


def test_one_depth_is_not_all_of_them(tmp_path):
    made(tmp_path, "sweep=depth")
    asked = job("sweep=depth", "model.n_layers=1")
    assert other(tmp_path, asked, {"sweep", "model.n_layers"}) == [
        "model.n_layers=[1, 2, 3, 4, 5] (now 1)"
    ]
    assert other(tmp_path, job("sweep=depth")) == []


def test_a_manifest_that_knows_less_is_not_contradicted(tmp_path):
    path = made(tmp_path)
    manifest = json.loads(path.read_text())
    del manifest["config"]["state"], manifest["config"]["model"]["sigma_scales"]
    path.write_text(json.dumps(manifest))
    assert other(tmp_path, job()) == []


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "{}", '{"config": 3}', '{"config": {"model": 3}}', "[" * 9999],
)
@pytest.mark.long
def test_a_broken_manifest_is_named(tmp_path, text):
    (tmp_path / "sigma").mkdir()
    (tmp_path / "sigma/manifest.json").write_text(text)
    with pytest.raises(
        UserError, match=r"not a manifest(.|\n)*hessfig run sweep=sigma"
    ) as caught:
        matching_folder(job(f"output_dir='{tmp_path}'"))
    assert caught.value.got
    assert caught.value.allowed


ABOUT = "Figure 3a: one layer, softmax, no LayerNorm, cross-entropy"


@pytest.mark.parametrize(
    ("words", "said"),
    thinned(
        [
            (["sweep=sigma"], f"sweep sigma: {ABOUT}"),
            (["sweep=sigma", "sweep.name=mine", "workers=1"], f"sweep mine: {ABOUT}"),
            (
                ["sweep=sigma", "model.norm=post"],
                f"sweep sigma (preset: {ABOUT}) with model.norm=post",
            ),
            (
                ["model.d_model=8", "sweep.name=m"],
                f"sweep m (preset sigma: {ABOUT}) with model.d_model=8",
            ),
            (["sweep=depth", "model.n_layers=2"], "with model.n_layers=2"),
            (["sweep=training", "state.step=[0,1]"], "8 steps) with state.step=[0, 1]"),
            (["sweep=sigma", "seeds=2", "sweep.about=mine"], "sweep sigma: mine"),
            (["sweep.about='\x1b[31mred'"], "sweep sigma: ?[31mred"),
        ],
        2,
    ),
)
def test_the_title_holds_while_settings_are_the_presets(words, said):
    assert title(job(*words)).endswith(said)


@pytest.mark.parametrize(
    ("words", "command", "preset", "changed", "other"),
    thinned(
        [
            (["sweep=sigma"], "hessfig run sweep=sigma", "sigma", [], []),
            (["sweep=sigma", "seeds=3"], "", "sigma", ["seeds"], []),
            (
                ["sweep=layernorm", "sweep.name=mine"],
                "hessfig run sweep=layernorm",
                "layernorm",
                [],
                [],
            ),
            (
                ["sweep.name=mine", "model.norm=pre"],
                "hessfig run x=1",
                "sigma",
                ["model.norm"],
                ["model.norm"],
            ),
            (
                ["sweep=mlp", "model.n_layers=3"],
                "hessfig run sweep=mlp",
                "mlp",
                ["model.n_layers"],
                [],
            ),
            (
                ["sweep=sigma", "task.seed=3"],
                "hessfig run sweep='sigma",
                "sigma",
                ["task.seed"],
                [],
            ),
        ],
        2,
    ),
)
def test_the_preset_of_a_table_is_the_sweep_its_command_named(
    tmp_path, words, command, preset, changed, other
):
    path = made(tmp_path, *words)
    path.write_text(json.dumps({**json.loads(path.read_text()), "command": command}))
    found = preset_in(path.parent, None)
    assert found is not None
    assert found.name == preset
    assert [one.key for one in found.changed] == changed
    assert [one.key for one in found.of_network] == other


def test_a_table_whose_preset_nobody_knows_has_none(tmp_path):
    assert preset_in(made(tmp_path, "sweep.name=mine").parent, None) is None
    assert preset_in(tmp_path, None) is None
