"""Every shipped configuration composes, passes the checks and measures at toy size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig

from hessfig.cli.overrides import GROUPS, choices, quote_numbers
from hessfig.config import Config, GridConfig
from hessfig.config.compose import (
    check_composition,
    differing_setting,
    sweep_fit,
    to_config,
    variants,
)
from hessfig.config.plain import as_plain
from hessfig.errors import UserError
from hessfig.sweep.measure import measure
from hessfig.sweep.plan import Cell, plan
from tests.config.composing import compose

SWEEPS = list(choices("sweep"))
FIGURES = [name for name in choices("figure") if name != "none"]
TOY = {"task.digits": 1, "task.batch_size": 2, "estimator.num_probes": 9, "seeds": 1}


def toy_cells(sweep: str) -> list[Cell]:
    """Return one cell a variant of `sweep`: one sigma, one seed, a narrow network."""
    narrow = {**TOY, "model.d_model": 16 if sweep == "heads" else 4}
    composed = compose([f"sweep={sweep}", *(f"{key}={value}" for key, value in narrow.items())])
    found = variants(composed, {"seeds"})
    for _, config in found:
        config.grid = GridConfig(points=1, low=0.3)
    return plan(found)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_sweep_measures_at_toy_size(sweep: str) -> None:
    torch.set_num_threads(1)
    for cell in toy_cells(sweep):
        rows = measure(cell)
        assert rows
        assert {row["status"] for row in rows} <= {"ok", "structural_zero"}, cell
        assert cell.config.sweep.name == sweep
        assert cell.config.sweep.about


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_names_itself_and_a_sweep_that_exists(figure: str) -> None:
    config = to_config(compose(quote_numbers([f"figure={figure}"]))).figure
    assert config.name == figure
    assert config.layout
    assert not config.sweep or config.sweep in SWEEPS


@pytest.mark.parametrize("group", GROUPS)
def test_every_choice_has_a_line_of_help(group: str) -> None:
    for name, about in choices(group).items():
        assert about, f"{group}={name}"


def test_windows_are_read_from_the_sweeps_own_file() -> None:
    assert sweep_fit("layernorm") == ([(None, 0.1), (1.0, None), (None, None)], "arithmetic")


def test_the_defaults_are_the_papers() -> None:
    config = to_config(compose([]))
    assert (config.seeds, config.first_seed, config.dtype, config.estimator.num_probes) == (
        20,
        1234,
        "float64",
        20,
    )
    assert (config.model.d_model, config.task.batch_size, config.task.digits) == (128, 64, 5)
    assert (config.grid.low, config.grid.high, config.grid.points) == (0.01, 10.0, 20)


def test_groups_hold_no_class_paths() -> None:
    for path in Path("conf").rglob("*.yaml"):
        assert "_target_" not in path.read_text(), path


def test_the_schema_and_the_plain_form_agree() -> None:
    plain = as_plain(Config())
    assert plain["model"]["norm"] == "none"
    assert plain["parts"] == ["H_o", "H_f", "H"]
    assert plain == as_plain(to_config(compose(["sweep.about="]))) | {"sweep": plain["sweep"]}


def varying(vary: dict[str, list[object]]) -> DictConfig:
    composed = compose([])
    composed.sweep.vary = vary
    return composed


def test_variants_are_every_combination_in_order() -> None:
    vary = {"model.n_layers": [1, 2], "model.temperature": [1.0, 2.0]}
    names = [(name, config.model.n_layers) for name, config in variants(varying(vary), set())]
    assert names == [
        ("model.temperature=1.0", 1),
        ("model.temperature=2.0", 1),
        ("model.temperature=1.0", 2),
        ("model.temperature=2.0", 2),
    ]


def test_a_setting_given_by_hand_is_not_varied() -> None:
    composed = compose(["sweep=depth", "model.n_layers=3"])
    assert [config.model.n_layers for _, config in variants(composed, {"model.n_layers"})] == [3]


def test_a_varied_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(UserError, match=r"sweep\.vary: model\.foo"):
        variants(varying({"model.foo": [1]}), set())


def test_a_varied_value_is_checked() -> None:
    with pytest.raises(UserError, match=r"model\.n_layers"):
        variants(varying({"model.n_layers": [1, 0]}), set())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-m", "seeds=1,x"], "seeds"),
        (["-m", "seeds=1,0"], "whole number"),
        (["-m", "seeds=interval(1,2)"], "cannot run"),
        (["seeds=1,2"], "add -m"),
        (["dtype=float16"], "float64, float32"),
    ],
)
def test_values_are_checked_before_anything_runs(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_composition(arguments)


def test_a_table_of_other_settings_is_told_apart(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.json"
    assert differing_setting(manifest, compose([]), {"seeds"}) is None
    manifest.write_text(json.dumps({"config": as_plain(to_config(compose(["model.norm=pre"])))}))
    assert differing_setting(manifest, compose(["model.norm=none"]), {"model.norm"}) == (
        "model.norm",
        "pre",
        "none",
    )
    assert differing_setting(manifest, compose(["model.norm=pre"]), {"model.norm"}) is None
