"""hessfig reproduce and hessfig bundle: a table measured again here, in a new folder, and from an archive."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hessfig.record import CHECKSUM, checksum
from tests.cli.test_jobs import SMALL
from tests.conftest import Cli
from tests.runs import rows

ROOT = Path(__file__).parents[2]
FACTORY = """
import torch
from torch import nn
from widths import WIDTH

def make(seed):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
    return network, torch.randn(5, 3), torch.randint(0, 2, (5,)), "cross_entropy"
"""


def changed(folder: Path, factor: float) -> Path:
    """Multiply every value of a table, and seal it again as its manifest does."""
    path, manifest = folder / "table.csv", json.loads((folder / "manifest.json").read_text())
    with path.open() as handle:
        content = list(csv.DictReader(handle))
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, content[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "value": repr(factor * float(row["value"]))} for row in content)
    manifest["table_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps({**manifest, CHECKSUM: checksum(manifest)}))
    return folder


@pytest.fixture
def run(cli: Cli, tmp_path: Path) -> Path:
    """The folder of a sweep of a user's own network, whose factory imports a file beside it and lies elsewhere."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/mine.py").write_text(FACTORY)
    (tmp_path / "code/widths.py").write_text("WIDTH = 2\n")
    answer = cli(
        *("run", "sweep=network", f"model.factory={tmp_path}/code/mine.py:make", "seeds=2", "workers=1"),
        *("quantities=[frobenius]", "estimator=hutchinson", "estimator.num_probes=3"),
    )
    assert answer.code == 0, answer.err
    return tmp_path / "outputs/network"


@pytest.mark.usefixtures("workers")
@pytest.mark.long
def test_a_bundle_is_measured_again_from_an_empty_folder(
    cli: Cli, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = cli(
        *("plot", "figure=none", "figure.name=mine", "figure.sweep=network", "figure.layout=bars"),
        *(r"figure.title='The norm, $\|H\|$'", "figure.width=4", "figure.note=false"),
    )
    assert drawn.code == 0, drawn.err
    named = f"code=run,{tmp_path}/code/mine.py:make"
    refused = cli("bundle", "sweep=network")  # its code is not run unasked
    assert refused.code == 2 and named in refused.err and "--config-dir" not in refused.err.partition("remedy")[2]
    answer = cli("bundle", "sweep=network", named)
    assert answer.code == 0, answer.err
    archive = (tmp_path / "network.zip").read_bytes()
    assert cli("bundle", str(run), "file=again.zip", named).code == 0
    assert (tmp_path / "again.zip").read_bytes() == archive
    empty = tmp_path / "empty"
    with zipfile.ZipFile(tmp_path / "network.zip") as opened:
        opened.extractall(empty)
    for file in (path for path in (empty / "network").rglob("*") if path.suffix not in (".png", ".npz", ".pdf")):
        assert file.is_dir() or str(tmp_path) not in file.read_text(), file
    mine = (tmp_path / "outputs/figures/figmine.svg").read_bytes()
    shutil.rmtree(tmp_path / "code")
    shutil.rmtree(tmp_path / "outputs")
    monkeypatch.chdir(empty)
    answer = cli("reproduce", "network", "workers=1", "output_dir=here", "code=run")
    assert answer.code == 0, answer.out + answer.err
    ran = [line.split() for line in answer.out.splitlines() if line.startswith("  ") and line.endswith(".py")]
    assert {name: sha for sha, name in ran} == {
        name: hashlib.sha256((empty / "network/own" / name).read_bytes()).hexdigest()
        for name in ("mine.py", "widths.py")
    }
    assert "figures drawn again: 9 of 9 files equal to the byte" in answer.out
    assert mine == (empty / "network/figures/figmine.svg").read_bytes()
    verdicts = {row["verdict"] for row in rows(empty / "reproduced.csv")}
    assert verdicts == {"equal to the bit"}
    made, again = (
        rows(path / "table.csv", without=("seconds", "config")) for path in (empty / "network", empty / "here/network")
    )
    assert made == again
    _check_batches(empty / "network/batch")
    (empty / "network/own/widths.py").write_text("WIDTH = 4\n")
    assert "widths.py is not the file that was packed" in cli("reproduce", "network").err


def _check_batches(folder: Path) -> None:
    """The factory draws its data after its network, from the seed: done once more by hand."""
    import torch
    from torch import nn

    listed = rows(folder / "batches.csv")
    assert [row["seed"] for row in listed] == ["1234", "1235"]
    for row in listed:
        torch.manual_seed(int(row["seed"]))
        nn.Linear(3, 2), nn.Linear(2, 2)
        packed = np.load(folder / row["file"])
        np.testing.assert_allclose(packed["inputs_0"], torch.randn(5, 3).numpy(), rtol=1e-6)
        np.testing.assert_array_equal(packed["targets_0"], torch.randint(0, 2, (5,)).numpy())


@pytest.mark.usefixtures("workers")
def test_a_table_is_measured_again_by_other_workers_and_a_changed_one_is_found(cli: Cli, tmp_path: Path) -> None:
    assert cli("run", *SMALL, "seeds=2").code == 0
    answer = cli("reproduce", "outputs/sigma", "workers=2", "output_dir=again")
    assert answer.code == 0, answer.err
    assert "reproduced: of 18 numbers 18 equal to the bit" in answer.out
    changed(Path(shutil.copytree(tmp_path / "outputs/sigma", tmp_path / "altered")), 1.03)
    answer = cli("reproduce", "altered", "output_dir=again")
    assert answer.code == 1 and " different" in answer.out and "not reproduced" in answer.out
    answer = cli("reproduce", "outputs/sigma/table.csv", "beside=altered", "rows=rows.csv")
    assert answer.code == 1 and {row["verdict"] for row in rows(tmp_path / "rows.csv")} <= {
        "different",
        "equal to the bit",  # what is zero
    }
    answer = cli("compare", "sweep=sigma", "reference=altered/table.csv")
    assert "2 seeds on both sides: compared number by number" in answer.out and "differs" in answer.out


@pytest.mark.usefixtures("workers")
def test_exact_norms_in_float32_are_within_stated_errors_of_float64(cli: Cli, tmp_path: Path) -> None:
    """Their column dtype is float64 on both sides; the weights of one were rounded."""
    toy = ["sweep=sigma", "model.d_model=8", "task.digits=1", "task.batch_size=4", "grid.points=6", "seeds=3"]
    assert cli("run", *toy, "workers=1").code == 0
    assert cli("run", *toy, "workers=1", "dtype=float32", "output_dir=single").code == 0
    answer = cli("reproduce", "outputs/sigma", "beside=single/sigma")
    assert answer.code == 0, answer.out
    found = rows(tmp_path / "reproduced.csv")
    assert {row["dtype_again"] for row in found} == {"float64"}
    verdicts = {row["verdict"] for row in found}
    assert "within stated errors" in verdicts and not verdicts & {"different", "missing"}
    changed(tmp_path / "single/sigma", 1.03)
    assert cli("reproduce", "outputs/sigma", "beside=single/sigma").code == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "one table is needed"),
        (("nowhere",), "there is no such table"),
        (("a", "b"), "one table is needed"),
        (("alone",), "manifest.json is missing"),
        (("alone", "workers=2", "beside=alone"), "workers has no effect"),
        (("alone", "wrkers=2"), "there is no setting 'wrkers'"),
        (("whole", "output_dir=."), "compared with itself"),
        (("newer",), "model.width_of_tomorrow"),
        (("sly",), "refer to others"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(cli: Cli, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    from tests.analysis.synthetic import CONFIG, config, make_table, write_sweep

    table = make_table(seeds=1)
    for name, settings in {
        "alone": None,
        "whole": CONFIG,
        "newer": config(width_of_tomorrow=1),
        "sly": config(kind="${oc.env:HOME}"),
    }.items():
        folder = write_sweep(
            table.assign(sweep=name), tmp_path, settings=settings and {**settings, "sweep": {"name": name}}
        )
        assert folder.name == name
    before = sorted(tmp_path.rglob("*"))
    answer = cli("reproduce", *words)
    assert answer.code == 2 and said in answer.err, answer.err
    assert sorted(tmp_path.rglob("*")) == before


def test_the_citation_that_is_packed_is_the_repository_s() -> None:
    assert (ROOT / "data/CITATION.cff").read_bytes() == (ROOT / "CITATION.cff").read_bytes()
