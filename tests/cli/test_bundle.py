"""`hessfig bundle` and `hessfig compare`: a table packed, unpacked elsewhere, measured again, and compared."""

import hashlib
import zipfile

import pytest

from tests.cli.test_jobs import SMALL

FACTORY = """
import torch
from torch import nn
from widths import WIDTH

def make(seed):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
    return network, torch.randn(5, 3), torch.randint(0, 2, (5,)), "cross_entropy"
"""


def unpacked(archive, into):
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(into)
    return into / archive.stem


@pytest.mark.usefixtures("workers")
def test_a_table_is_packed_and_compared_with_one_measured_again(cli, tmp_path):
    assert cli("run", *SMALL, "seeds=2").code == 0
    packed = cli("bundle", "outputs/sigma")
    assert packed.code == 0, packed.err
    folder = unpacked(tmp_path / "sigma.zip", tmp_path / "elsewhere")
    sums = dict(
        line.split("  ")[::-1]
        for line in (folder / "SHA256SUMS").read_text().splitlines()
    )
    assert set(sums) == {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    assert all(
        hashlib.sha256((folder / name).read_bytes()).hexdigest() == sums[name]
        for name in sums
    )
    assert cli("run", *SMALL, "seeds=2", "output_dir=again").code == 0
    answer = cli("compare", "again/sigma", str(folder), "tolerance=0")
    assert answer.code == 0
    assert "18 numbers compared, 0 differ" in answer.out
    assert cli("bundle", "outputs/sigma", "file=other.zip").code == 0
    assert (tmp_path / "other.zip").read_bytes() == (
        tmp_path / "sigma.zip"
    ).read_bytes()


def test_a_changed_table_is_neither_packed_nor_equal(cli, tmp_path):
    from tests.analysis.synthetic import make_table, write_sweep

    ours, theirs = (
        write_sweep(make_table(noise=noise), tmp_path / name)
        for noise, name in ((0.0, "a"), (0.1, "b"))
    )
    answer = cli("compare", str(ours), str(theirs), "rows=rows.csv")
    assert answer.code == 1
    assert "largest difference" in answer.out
    assert (tmp_path / "rows.csv").is_file()
    assert cli("compare", str(ours), str(ours)).code == 0
    (ours / "table.csv").write_text((theirs / "table.csv").read_text())
    refused = cli("bundle", str(ours))
    assert refused.code == 2
    assert "another config or run than the manifest" in refused.err


@pytest.mark.usefixtures("workers")
@pytest.mark.long
def test_code_is_packed_with_what_it_imports_and_runs_elsewhere(
    cli, tmp_path, monkeypatch
):
    (tmp_path / "mine.py").write_text(FACTORY)
    (tmp_path / "widths.py").write_text("WIDTH = 2\n")
    words = (
        "run",
        "sweep=network",
        "model.factory=mine.py:make",
        "seeds=2",
        "workers=1",
    )
    assert cli(*words).code == 0
    assert cli("bundle", "outputs/network").code == 0
    folder = unpacked(tmp_path / "network.zip", tmp_path / "elsewhere")
    assert {path.name for path in (folder / "own").iterdir()} == {
        "mine.py",
        "widths.py",
    }
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (
        "--config-dir network/own output_dir=again"
        in (folder / "README.md").read_text()
    )
    answer = cli(*words, "--config-dir", "network/own", "output_dir=again")
    assert answer.code == 0, answer.err
    assert cli("compare", "again/network", "network", "tolerance=0").code == 0


@pytest.mark.parametrize(
    "words", [("tolerance=x",), ("tolerance=2",), ("tolerance=-1",)]
)
def test_a_tolerance_is_a_relative_difference(cli, tmp_path, words):
    (tmp_path / "a.csv").write_text("x\n")
    answer = cli("compare", "a.csv", "a.csv", *words)
    assert answer.code == 2
    assert "tolerance" in answer.err
