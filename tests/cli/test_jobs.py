"""Runs beside a table of other settings, and runs from a user's own folder."""

import shutil

import pandas as pd
import pytest

from hessfig.cli.main import main
from tests.analysis.synthetic import make_table, write_sweep
from tests.runs import TOY, rows

SMALL = [
    "model=linear_mlp",
    "model.d_model=4",
    "task.digits=1",
    "task.batch_size=2",
    "grid.points=3",
    "blocks=[W]",
    "workers=1",
    "estimator=dense",
]
OWN_SWEEP = """# @package _global_
defaults:
  - override /model: tiny
  - override /estimator: dense
sweep:
  name: mine
  about: "My own"
  windows: [[null, null]]
  vary: {model.n_layers: [1, 2]}
task: {digits: 1, batch_size: 2}
grid: {points: 3}
seeds: 2
blocks: [W]
"""


@pytest.mark.usefixtures("workers")
def test_a_table_of_other_settings_is_replaced_with_a_word(cli, tmp_path):
    assert cli("run", *SMALL, "seeds=2").code == 0
    stale = tmp_path / "outputs/sigma/slopes.csv"
    assert cli("slopes", "sweep=sigma").code == 0
    assert stale.exists()
    assert "made with seeds=2 (now 1)" in cli("status", *SMALL, "seeds=1").out
    answer = cli("run", *SMALL, "seeds=1")
    assert (
        "note: outputs/sigma/table.csv was made with other settings and is replaced"
        in answer.out
    )
    assert not stale.exists()
    assert "note:" not in cli("run", *SMALL, "seeds=1").out


def test_a_broken_manifest_does_not_stop_status(cli, undisturbed, tmp_path):
    shutil.copytree(undisturbed / "outputs", tmp_path / "outputs")
    (tmp_path / "outputs/sigma/manifest.json").write_text("{")
    answer = cli("status", *TOY)
    assert answer.code == 0
    assert "with a manifest that cannot be read" in answer.out
    (tmp_path / "outputs/sigma/manifest.json").unlink()
    assert "without a manifest" in cli("status", *TOY).out


@pytest.fixture
def of_ones_own(tmp_path):
    """A folder `my` with a sweep, a model and a figure."""
    files = {
        "sweep/mine": OWN_SWEEP,
        "model/tiny": "# A tiny MLP\nkind: linear_mlp\nd_model: 4\n",
        "figure/my_figure": "# Mine\nname: my_figure\nsweep: mine\nlayout: one_panel\noptions: {part: H}\n",
    }
    for name, text in files.items():
        path = tmp_path / "my" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.usefixtures("of_ones_own")
@pytest.mark.parametrize(
    "flag", [["--config-dir", "my"], ["--config-dir=my"], ["-cd", "my"]], ids=len
)
def test_a_folder_of_ones_own_is_named_in_three_ways(cli, flag):
    assert "  mine               My own\n" in cli("run", "--help", *flag).out
    assert "  my_figure          Mine\n" in cli("plot", *flag, "--help").out
    assert "did you mean 'mine'?" in cli("run", "sweep=mime", *flag).err


@pytest.mark.usefixtures("of_ones_own", "workers")
@pytest.mark.long
def test_a_folder_of_ones_own(cli, tmp_path):
    flag = ["--config-dir", "my"]
    assert cli("run", "sweep=mine", *flag).code == 0
    assert len(rows(tmp_path / "outputs/mine/table.csv")) == 2 * 3 * (1 + 2) * 3
    assert str(tmp_path) not in (tmp_path / "outputs/mine/manifest.json").read_text()
    drawn = cli("plot", "figure=my_figure", "figure.formats=[png]", *flag)
    assert drawn.code == 0, drawn.err
    assert (tmp_path / "outputs/figures/figmy_figure.png").exists()
    assert cli("slopes", "sweep=mine", *flag).code == 0


def test_a_shipped_name_in_ones_own_folder(cli, tmp_path):
    (tmp_path / "my/sweep").mkdir(parents=True)
    (tmp_path / "my/sweep/sigma.yaml").write_text(OWN_SWEEP)
    before = sorted(tmp_path.rglob("*"))
    answer = cli("run", "sweep=depth", "--config-dir", "my")
    assert answer.code == 2
    for words in (
        "my/sweep/sigma.yaml",
        "got:     sigma",
        "allowed: names other than",
        "remedy:  rename the file",
    ):
        assert words in answer.err
    assert sorted(tmp_path.rglob("*")) == before


def test_an_unknown_key_in_ones_own_file(cli, tmp_path):
    (tmp_path / "my/sweep").mkdir(parents=True)
    (tmp_path / "my/sweep/mine.yaml").write_text(OWN_SWEEP.replace("seeds:", "sedes:"))
    before = sorted(tmp_path.rglob("*"))
    answer = cli("run", "sweep=mine", "--config-dir", "my", "model=linear_mlp")
    assert answer.code == 2
    for words in (
        "my/sweep/mine.yaml",
        "no setting 'sedes'",
        "allowed: task, model",
        "did you mean 'seeds'?",
    ):
        assert words in answer.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.long
def test_windows_given_to_plot_have_an_effect(cli, undisturbed, tmp_path):
    shutil.copytree(undisturbed / "outputs", tmp_path / "outputs")
    written = []
    for windows in ("[[null,1.0]]", "[[0.1,null]]"):
        answer = cli(
            "plot", "figure=3a", "figure.formats=[png]", f"sweep.windows={windows}"
        )
        assert answer.code == 0, answer.err
        written.append((tmp_path / "outputs/figures/fig3a.png").read_bytes())
    assert written[0] != written[1]


def test_plot_refuses_a_table_of_other_settings(cli, undisturbed):
    answer = cli("plot", "figure=3a", f"output_dir={undisturbed}/outputs", "seeds=7")
    assert answer.code == 2
    for words in (
        "is from another config: seeds was 4",
        "got:     seeds=7",
        "hessfig run sweep=sigma seeds=7 output_dir=",
    ):
        assert words in answer.err
    assert not (undisturbed / "outputs/figures").exists()


@pytest.mark.long
def test_a_sweep_named_by_hand_is_drawn_as_it_was_run(cli, undisturbed, tmp_path):
    shutil.copytree(undisturbed / "outputs/sigma", tmp_path / "outputs/mine")
    answer = cli(
        "plot",
        "figure=3a",
        "figure.sweep=mine",
        "figure.name=3a_mine",
        "figure.formats=[png]",
    )
    assert answer.code == 0, answer.err
    assert (tmp_path / "outputs/figures/fig3a_mine.png").exists()


@pytest.mark.parametrize("verb", ["slopes", "check", "status", "run"])
def test_the_name_of_a_run_is_not_a_sweep_but_its_settings_are_kept(
    verb, tmp_path, capsys
):
    manifest = tmp_path / "sigmas" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text("{}")
    where = f"output_dir={tmp_path}"
    assert ended(verb, "sweep=sigmas", where) == 2
    printed = capsys.readouterr().err
    assert (
        f"remedy:  the settings of its run once more: `command` in {manifest}"
        in printed
    )
    assert ended(verb, "sweep=depht", where) == 2
    assert "did you mean 'depth'?" in capsys.readouterr().err


@pytest.mark.long
def test_sweep_is_another_word_for_the_sweep_that_a_figure_draws(tmp_path, capsys):
    write_sweep(make_table(seeds=2), tmp_path, settings=None)
    where = f"output_dir={tmp_path}"
    assert ended("plot", "figure=3b", "sweep=sigma", "figure.formats=[png]", where) == 0
    assert (tmp_path / "figures" / "fig3b.png").is_file()
    assert ended("plot", "sweep=nosuch", "figure=3a", where) == 2
    assert "there is no sweep 'nosuch'" in capsys.readouterr().err
    assert ended("plot", "sweep=sigma", where) == 2
    assert "remedy:  figure=3a" in capsys.readouterr().err


def test_slopes_name_the_quantities_that_they_leave_out(tmp_path, capsys):
    two = [make_table(seeds=2).assign(quantity=name) for name in ("frobenius", "erank")]
    write_sweep(pd.concat(two, ignore_index=True), tmp_path, settings=None)
    words = ("sweep=sigma", f"output_dir={tmp_path}")
    assert ended("slopes", *words) == 0
    said = capsys.readouterr().out
    assert "log ||block||_F" in said
    assert "also in the table (quantity=NAME): erank" in said
    assert ended("slopes", *words, "quantity=erank") == 0
    assert "slope of log erank" in capsys.readouterr().out
    assert ended("check", *words, "quantity=erank") == 1
    assert "no slope has a prediction" in capsys.readouterr().out


def ended(*words):
    with pytest.raises(SystemExit) as found:
        main(list(words))
    return int(str(found.value.code))
