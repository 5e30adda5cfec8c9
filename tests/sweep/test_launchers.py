"""Shares of a plan: together the whole, each cell once, and the same table however they are brought together."""

import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hessfig.config.compose.job import compose
from hessfig.config.enums import Method
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.sweep.launchers import Shard, launcher_of, run_shard
from hessfig.sweep.plan import Sweep
from hessfig.sweep.runner import run_sweep
from tests.runs import rows
from tests.toys import toy_config


def with_pilots(folder):
    """Return a sweep of two layers, whose lower one is probed as often as pilots say."""
    # Columns of more than 256 entries.
    model = ModelConfig(d_model=17, d_mlp=6, n_layers=2)
    return toy_config(
        folder,
        model=model,
        blocks=["W_V"],
        estimator=EstimatorConfig(Method.auto, rules=1),
    )


@pytest.mark.parametrize("count", [1, 2, 3, 8, 50])
def test_shares_are_the_whole_and_no_two_meet(count):
    items = list(range(20))
    shares = [Shard(index, count).of(items) for index in range(1, count + 1)]
    assert sorted(item for share in shares for item in share) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert all(share == sorted(share) for share in shares)


@pytest.mark.parametrize("period", [2, 3, 4])
def test_a_periodic_plan_gives_every_share_of_everything(period):
    """With two quantities in turn and two shares, a plain stride would give one of them all of one quantity."""
    items = list(range(24 * period))
    for index in range(1, period + 1):
        kinds = Counter(item % period for item in Shard(index, period).of(items))
        assert kinds == dict.fromkeys(range(period), 24 // period)


def test_what_belongs_together_is_dealt_as_one():
    items = [(network, step) for network in range(6) for step in range(5)]
    shares = [
        Shard(index, 4).of(items, together=lambda item: item[0])
        for index in range(1, 5)
    ]
    assert sorted(item for share in shares for item in share) == items
    networks = [{network for network, _ in share} for share in shares]
    assert sum(map(len, networks)) == 6


def test_the_steps_of_one_network_stay_together(tmp_path):
    cells = Sweep([("", toy_config(tmp_path))]).cells
    trained = [replace(cell, step=step) for cell in cells for step in (0, 1, 2)]
    for index in (1, 2, 3):
        dealt = Counter(
            (cell.sigma, cell.seed) for cell in Shard(index, 3).cells(trained)
        )
        assert set(dealt.values()) <= {3}


@pytest.mark.parametrize(
    ("words", "name"),
    [([], "Workers"), (["shard=1/2"], "Workers"), (["launcher=slurm"], "Slurm")],
)
def test_the_settings_choose_the_launcher(words, name):
    assert type(launcher_of(compose([*words, "dry_run=true"]))).__name__ == name


def test_in_company_everybody_begins_elsewhere():
    items = list(range(8))
    assert [Shard(index, 4).turned(items)[0] for index in (1, 2, 3, 4)] == [0, 2, 4, 6]
    assert sorted(Shard(3, 4).turned(items)) == items


@pytest.fixture(scope="module")
def whole(tmp_path_factory, workers):
    """The table of a sweep with pilots, measured in one go."""
    folder = tmp_path_factory.mktemp("whole")
    config = with_pilots(folder)
    assert Sweep([("", config)]).pilots
    return run_sweep(Sweep([("", config)])).table


@pytest.mark.long
def test_shares_on_one_folder_at_once_make_the_table_of_one_run(whole, tmp_path):
    variants = [("", with_pilots(tmp_path))]
    with ThreadPoolExecutor(2) as executor:
        done = list(
            executor.map(
                lambda index: run_shard(Sweep(variants), Shard(index, 2)), (1, 2)
            )
        )
    assert [(share.measured, share.is_complete) for share in done] == [
        (2, True),
        (2, True),
    ]
    assert not (tmp_path / "sigma/table.csv").exists()
    collected = run_sweep(Sweep(variants))
    assert (collected.measured, collected.reused) == (0, 4)
    assert rows(collected.table) == rows(whole)


@pytest.mark.long
def test_shares_of_other_folders_are_copied_together(whole, tmp_path):
    for index in (1, 2, 3):
        run_shard(Sweep([("", with_pilots(tmp_path / str(index)))]), Shard(index, 3))
        shutil.copytree(tmp_path / str(index), tmp_path / "all", dirs_exist_ok=True)
    collected = run_sweep(Sweep([("", with_pilots(tmp_path / "all"))]))
    assert (collected.measured, collected.reused) == (0, 4)
    assert rows(collected.table) == rows(whole)


def test_a_share_whose_pilots_fail_measures_no_cell(tmp_path, monkeypatch):
    """Under another number of probes its cells would be no part of the sweep that others measure."""
    from hessfig.sweep import launchers, pool

    failing = lambda cells, store: (  # noqa: E731
        pool.CellOutcome(cell, "failed", "why") for cell in cells
    )
    monkeypatch.setattr(launchers, "on_this_machine", failing)
    done = run_shard(Sweep([("", with_pilots(tmp_path))]), Shard(1, 2))
    assert done.missing > 0
    assert not done.is_complete
    assert (done.measured, done.failed) == (0, 0)
    assert {
        path.read_text() for path in (tmp_path / "sigma/failures").glob("*.txt")
    } == {"why"}
