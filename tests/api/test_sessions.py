"""Sweeps and figures from Python: the same tables, slopes and figures as on the command line."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from matplotlib import image
from matplotlib.text import Text
from torch import nn

import hessfig
from hessfig.config.compose.overrides import as_word
from hessfig.config.compose.provenance import table_folder
from hessfig.errors import UserError
from hessfig.record import TABLE
from hessfig.verbs import VERBS

SMALL = (
    "model.d_model=4",
    "model.n_heads=1",
    "task.digits=1",
    "task.batch_size=2",
    "grid.points=3",
    "blocks=[W_V]",
)

SCRIPT = f"""
import hessfig
run = hessfig.run("sigma", {", ".join(map(repr, SMALL))}, seeds=2, workers=1, output_dir="outputs")
assert len(run.table) == 18
"""


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """The folder of a sweep that a script without `if __name__ == "__main__"` has run."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "outputs" / "sigma"


def test_a_script_needs_no_guard_and_its_table_is_that_of_the_command(swept):
    run = hessfig.read(swept)
    assert run.manifest["command"].startswith("hessfig run sweep=sigma model.d_model=4")
    assert {*run.table["part"]} == {"H", "H_o", "H_f"}
    assert run.folder == swept


def test_a_finished_sweep_is_reused(swept):
    before = (swept / TABLE).read_bytes()
    again = hessfig.run(
        "sigma", *SMALL, seeds=2, workers=1, output_dir=str(swept.parent)
    )
    assert (swept / TABLE).read_bytes() == before
    assert again.manifest["cells"]["reused"] == 6


def test_a_run_reads_the_table_that_it_was_made_of_wherever_the_process_goes(
    swept, tmp_path, monkeypatch
):
    monkeypatch.chdir(swept.parent.parent)
    runs = [
        hessfig.read("outputs/sigma"),
        hessfig.Run(Path("outputs/sigma")),
        hessfig.api.sessions.Run(Path("outputs/sigma")),
    ]
    assert "<td>outputs/sigma</td>" in runs[0]._repr_html_().replace(
        "</code>", ""
    ).replace("<code>", "")
    other = tmp_path / "outputs" / "sigma"
    other.mkdir(parents=True)
    (other / TABLE).write_text("another table")
    monkeypatch.chdir(tmp_path)
    for run in runs[1:]:
        assert run.folder == swept
        assert len(run.table) == 18
        assert run.manifest["command"].startswith("hessfig run sweep=sigma")


def test_slopes_are_those_of_the_command(swept, cli):
    found = hessfig.read(swept).slopes("sweep.windows=[[null,10]]")
    assert (
        cli(
            "slopes",
            "sweep.name=sigma",
            "sweep.windows=[[null,10]]",
            f"output_dir={swept.parent}",
        ).code
        == 0
    )
    written = pd.read_csv(swept / "slopes.csv")
    assert written["slope"].tolist() == pytest.approx(
        found["slope"].tolist(), rel=1e-9, nan_ok=True
    )


def test_words_of_a_figure_are_those_that_were_given(swept):
    label = r"$\sigma$ [a, b] 'c'"
    title = r"\alpha, \\ {d} 100 %"
    figure = hessfig.plot(swept, "3a", xlabel=label, title=title)
    assert {ax.get_xlabel() for ax in figure.axes} - {""} == {label}
    assert figure.get_suptitle() == title
    with pytest.raises(
        UserError, match=r"figure\.ylabel: this formula cannot be read at character 6"
    ):
        hessfig.plot(swept, "3a", ylabel=r"a$\frac{1}{0$")


def test_figures_are_matplotlibs_and_nothing_is_written(swept):
    files = set(swept.parent.rglob("*"))
    words = {
        "title": "Mine, by hand",
        "xlabel": "scale",
        "ylabel": "norm",
        "legend": "none",
    }
    run = hessfig.read(swept)
    figure = run.plot("3a", **words, width=4.0)
    assert figure.get_size_inches()[0] == 4.0
    assert figure.get_suptitle() == "Mine, by hand"
    assert {ax.get_xlabel() for ax in figure.axes} == {"", "scale"}
    assert not [ax for ax in figure.axes if ax.get_legend()]
    figure.axes[0].axvline(0.5)
    some = run.table[run.table["part"] == "H"]
    for what in (str(swept), some):
        assert hessfig.plot(what, layout="lines", x="sigma").axes
    assert set(swept.parent.rglob("*")) == files


@pytest.mark.long
def test_a_title_is_in_the_file_that_is_saved(swept, tmp_path):
    """It stands above the panels, where matplotlib's own savefig would cut it off; the width is as asked for."""
    pictures = []
    for title in ("", "Mine"):
        hessfig.read(swept).plot("3a", title=title, width=4.0).savefig(
            tmp_path / "mine.png", dpi=100
        )
        pictures.append(image.imread(tmp_path / "mine.png")[:, :, :3])
    plain, titled = pictures
    assert titled.shape == (len(plain) + 26, 400, 3)
    assert (titled[26:] == plain).all()
    assert titled[:26].min() < 0.5


def test_titles_and_labels_are_settings_of_the_command(swept, cli):
    words = [
        "figure=3a",
        f"output_dir={swept.parent}",
        "figure.formats=[svg]",
        "figure.title=Mine",
        "figure.legend=none",
    ]
    assert cli("plot", *words).code == 0
    text = (swept.parent / "figures" / "fig3a.svg").read_text()
    assert "<!-- Mine -->" in text
    assert "Layer" not in text
    assert (
        cli(
            "plot", "figure=3a", f"output_dir={swept.parent}", "figure.legend=somewhere"
        ).code
        == 2
    )


def test_tables_show_value_and_error_first():
    torch.manual_seed(0)
    problem = hessfig.Problem(
        nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    )
    table = hessfig.measure(problem)
    assert isinstance(table, pd.DataFrame)
    heads = table._repr_html_().split("<th>")
    assert [head.partition("<")[0] for head in heads[1:3]] == ["value", "error"]
    assert "config" not in table._repr_html_()
    shown = ["row", "col", "part", "quantity", "value", "error", "status"]
    with pd.option_context("display.width", 80, "display.max_columns", 0):
        assert str(table).split("\n")[0].split() == shown
    assert str(table).endswith("[6 rows x 19 columns]")
    assert table.columns[0] == "sweep"
    assert str(table[["value", "row"]]).split()[:2] == ["value", "row"]
    assert "Problem of Linear" in problem._repr_html_()
    assert "<td>8</td>" in problem._repr_html_()
    assert hessfig.plot(table, layout="bars").axes


@pytest.mark.long
def test_arrays_of_a_measured_table_are_drawn():
    torch.manual_seed(0)
    problem = hessfig.Problem(
        nn.Linear(3, 2), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    )
    for quantity, layout, panels in (
        ("density", "spectra", 1),
        ("spectrum", "spectra", 1),
        ("slices", "slices", 3),
    ):
        table = hessfig.measure(
            problem, blocks=["all"], parts=["H"], quantities=[quantity]
        )
        assert len(hessfig.plot(table, layout=layout).axes) == panels


@pytest.mark.long
def test_another_quantity_of_a_monitor_is_drawn(tmp_path):
    """Each of these names the quantity; its folder is not below outputs, and no preset has its name."""
    network = nn.Linear(3, 2)
    batch = (torch.eye(3), torch.tensor([0, 1, 1]))
    options = {
        "every": 1,
        "max_fraction": None,
        "quantities": ["loss", "largest_eigenvalue"],
    }
    monitor = hessfig.Monitor(
        network, "cross_entropy", batch, folder=tmp_path / "watched", **options
    )
    for step in range(3):
        monitor(step)
    monitor.close()
    with pytest.raises(UserError, match="for example quantity=loss"):
        hessfig.plot(monitor.folder)
    run = hessfig.read(monitor.folder)
    for figure in (
        hessfig.plot(monitor.folder, quantity="largest_eigenvalue"),
        run.plot(quantity="largest_eigenvalue"),
        run.plot("figure.options.quantity=largest_eigenvalue"),
        hessfig.plot(run.table, options={"quantity": "largest_eigenvalue"}),
    ):
        assert any(
            "largest eigenvalue" in text.get_text() for text in figure.findobj(Text)
        )
    for call in (lambda: run.plot(tolerance=0.2), lambda: run.plot("quantity=loss")):
        with pytest.raises(UserError, match=r"hessfig plot does not read"):
            call()
    with pytest.raises(
        UserError, match=r"output_dir=FOLDER, where FOLDER/watched/table\.csv is"
    ):
        table_folder(VERBS["slopes"].job(["sweep.name=watched"]))


def test_tables_of_several_runs_stand_in_one_figure(swept):
    table = hessfig.read(swept).table
    both = [
        table.assign(variant=f"model.options.run={name}")
        for name in ("first", "second")
    ]
    figure = hessfig.plot(
        pd.concat(both, ignore_index=True), layout="lines", x="sigma", colour="run"
    )
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["run: first", "second"]
    with pytest.raises(UserError, match=r"variant='model\.options\.NAME=VALUE'"):
        hessfig.plot(table.assign(variant="mine"), layout="lines", x="sigma")


def test_predictions_of_a_pair_can_be_stated(swept):
    """Its name holds a comma: a key in quotes on a command line, a text or a tuple in Python."""
    zero = {"H_f": "zero"}
    for key in ("W_Q,W_V", ("W_Q", "W_V")):
        job = VERBS["run"].job(
            [as_word("sweep.predictions", {key: zero, "W_Q": {"H": 5}})]
        )
        assert job.config.sweep.predictions == {"W_Q,W_V": zero, "W_Q": {"H": 5}}
    job = VERBS["run"].job(["sweep.predictions={'W_Q,W_V': {H_f: zero}}"])
    assert job.config.sweep.predictions == {"W_Q,W_V": zero}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hessfig.run("sigmas"), "sigmas"),
        (lambda: hessfig.run("sigma", "figure.width=3"), "does not read figure.width"),
        (lambda: hessfig.run("sigma", dry_run=True), "a matter of the command line"),
        (lambda: hessfig.read("nowhere"), "is missing"),
        (lambda: hessfig.plot(3), "not a measured run or table"),
        (lambda: hessfig.plot("nowhere", figure="bounds"), "computed from the theory"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_the_package_is_light():
    program = "import hessfig, sys; sys.exit(bool({'torch', 'pandas', 'matplotlib', 'hydra'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
