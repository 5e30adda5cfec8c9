"""Bundles of strangers: none runs code unasked, none that was edited is reproduced, none leads out of its folder."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hessfig.config.compose.job import compose
from hessfig.config.keys import in_manifest
from hessfig.config.user import packed
from hessfig.record import CHECKSUM, checksum
from tests import forging
from tests.analysis.synthetic import make_table, write_sweep
from tests.cli.test_jobs import SMALL
from tests.conftest import Cli
from tests.forging import FORGERIES, seal, with_sums, zipped
from tests.runs import here

EVIL = """
import pathlib
pathlib.Path(__file__).with_name("ran").touch()
pathlib.Path("ran").touch()
make = quantity = None
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of norms, an eigenvalue with its residual norm and spectra; and `again`, its sweep measured anew."""
    folder = tmp_path_factory.mktemp("made")
    words = [*SMALL, "estimator=hutchinson", "estimator.num_probes=4", "seeds=2", "parts=[H,H_o]", "grid.points=2"]
    quantities = "quantities=[frobenius,largest_eigenvalue,density]"
    for command in (
        ("run", "sweep=sigma", *words, quantities),
        ("plot", "figure=none", "figure.sweep=sigma", "figure.name=mine", "figure.layout=lines"),
        ("bundle", "outputs/sigma"),
        ("reproduce", "sigma.zip", "output_dir=again"),
    ):
        done = here(*command, folder=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "stored arrays: 8 of 8 files equal" in done.stdout and "8 of 8 files equal to the byte" in done.stdout
    return folder


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    """The bundle, unpacked, and its cells, so that it is measured again at once."""
    with zipfile.ZipFile(made / "sigma.zip") as archive:
        archive.extractall(tmp_path)
    shutil.copytree(made / "again", tmp_path / "again")
    return tmp_path / "sigma"


@pytest.mark.parametrize("kind", FORGERIES)
@pytest.mark.long
def test_what_was_edited_is_not_reproduced(cli: Cli, bundle: Path, kind: str) -> None:
    if "picture" not in kind:
        shutil.rmtree(bundle / "figures")  # that they are other ones, too, is another matter
    FORGERIES[kind](bundle)
    answer = cli("reproduce", "sigma", "output_dir=again")
    assert answer.code == 1, answer.out + answer.err
    assert "not reproduced: of " in answer.out and ("files of figures different" in answer.out) == ("picture" in kind)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _line(line: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "SHA256SUMS").open("a").write(line)


# What no bundle is, and a word of the refusal.
NO_BUNDLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no sums": (lambda folder: (folder / "SHA256SUMS").unlink(), "but no SHA256SUMS"),
    "empty sums": (lambda folder: (folder / "SHA256SUMS").write_text(""), "0 files in 0 lines"),
    "sums in a folder": (lambda folder: _folder(folder / "SHA256SUMS"), "a pipe or a device, where a file"),
    "sums in a pipe": (lambda folder: _fifo(folder / "SHA256SUMS"), "a pipe or a device, where a file"),
    "sums that are a link": (lambda folder: _linked(folder / "SHA256SUMS"), "a link"),
    "sums of 20 MB": (lambda folder: (folder / "SHA256SUMS").write_text("a" * 20_000_000), "bytes, where at most"),
    "sums of other bytes": (lambda folder: (folder / "SHA256SUMS").write_bytes(b"\xff\xfe"), "codec"),
    "a parent folder": (_line(f"{'0' * 64}  ../evil.py\n"), "the line"),
    "an absolute place": (_line(f"{'0' * 64}  /etc/passwd\n"), "the line"),
    "a name twice": (lambda folder: _twice(folder / "SHA256SUMS"), "lines"),
    "a file that no sum names": (lambda folder: (folder / "evil.svg").write_text("x"), "no sum names: evil.svg"),
    "a file that is gone": (lambda folder: (folder / "README.md").unlink(), "is not there: README.md"),
    "a link among the files": (lambda folder: (folder / "own.py").symlink_to("/etc/passwd"), "a link"),
    "a linked folder": (lambda folder: (folder / "own").symlink_to("/"), "a link"),
    "a pipe among the files": (lambda folder: os.mkfifo(folder / "pipe"), "a pipe"),
    "another file": (lambda folder: (folder / "README.md").write_text("x"), "is not the file that was packed"),
}


def _twice(path: Path) -> None:
    path.write_text(2 * path.read_text())


def _linked(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("kind", NO_BUNDLES)
@pytest.mark.parametrize("verb", ["reproduce", "export", "bundle"])
def test_a_folder_that_is_no_bundle_is_refused(cli: Cli, bundle: Path, kind: str, verb: str) -> None:
    spoil, said = NO_BUNDLES[kind]
    spoil(bundle)
    before = sorted(bundle.parent.rglob("*"))
    answer = cli(verb, "sigma")
    assert answer.code == 2 and said in answer.err, answer.out + answer.err
    assert sorted(bundle.parent.rglob("*")) == before


def test_what_a_manifest_says_is_data(cli: Cli, bundle: Path) -> None:
    """Arrays that are none, versions that are none, texts that would be markup or commands."""
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text())
    for key, value, said in (
        ("arrays", [3], "lists an array that is none"),
        ("arrays", [{**manifest["arrays"][0], "file": "cells/none.npz"}], "is not the array that was stored"),
        ("versions", ["torch"], "versions holds what is none"),
        ("versions", {"torch": "2.0\n-r /etc/passwd"}, "versions holds what is none"),
        ("versions", {"--index-url": "1"}, "versions holds what is none"),
    ):
        edited = {**manifest, key: value}
        path.write_text(json.dumps({**edited, CHECKSUM: checksum(edited)}))
        answer = cli("bundle", str(with_sums(bundle)))
        assert answer.code == 2 and said in answer.err, answer.out + answer.err
    about = "<script>x</script> [a](b)"
    manifest["config"]["sweep"]["about"] = about
    edited = {**manifest, "command": "hessfig run\n```\nrm -rf ~"}
    path.write_text(json.dumps({**edited, CHECKSUM: checksum(edited)}))
    assert cli("bundle", str(with_sums(bundle)), "file=quoted.zip").code == 0
    with zipfile.ZipFile("quoted.zip") as archive:
        page = archive.read("sigma/README.md").decode()
    assert "rm -rf" not in page and about not in page and r"\<script\>" in page


def test_a_sweep_without_a_plain_name_makes_no_archive(cli: Cli, bundle: Path) -> None:
    forging.edited(bundle, lambda rows: [{**row, "sweep": "-rf"} for row in rows])
    answer = cli("bundle", "sigma")
    assert answer.code == 2 and "no plain name" in answer.err
    assert not list(bundle.parent.glob("*.zip"))


def _entries(made: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(made / "sigma.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


ARCHIVES: dict[str, tuple[Callable[[Path, dict[str, bytes]], object], str]] = {
    "a parent folder": (lambda path, files: zipped(path, {**files, "../evil.py": b""}), "no plain file"),
    "a parent inside": (lambda path, files: zipped(path, {**files, "sigma/../../evil.py": b""}), "no plain file"),
    "an absolute name": (lambda path, files: zipped(path, {**files, "/evil.py": b""}), "no plain file"),
    "a drive": (lambda path, files: zipped(path, {**files, "C:\\evil.py": b""}), "no plain file"),
    "links": (lambda path, files: zipped(path, files, mode=0o120777), "no plain file"),
    "two folders": (lambda path, files: zipped(path, {**files, "other/x": b""}), "2 folders"),
    "a lone file": (lambda path, files: zipped(path, {**files, "x": b""}), "the entry 'x'"),
    "two spellings": (lambda path, files: zipped(path, {**files, "sigma/TABLE.csv": b""}), "two files of one name"),
    "more than it claims": (lambda path, files: zipped(path, files, sizes=1), "BadZipFile|larger than it claims"),
    "more than a disk": (lambda path, files: zipped(path, files, sizes=2**31), "bytes"),
    "no sums": (lambda path, files: zipped(path, {k: v for k, v in files.items() if "SUMS" not in k}), "SHA256SUMS"),
    "nothing": (lambda path, files: zipped(path, {}), "0 folders"),
    "half of it": (lambda path, files: path.write_bytes(b"PK\3\4" + b"x" * 100), "BadZipFile"),
    "a table edited": (lambda path, files: zipped(path, {**files, "sigma/table.csv": b"x"}), "is not the file"),
}


@pytest.mark.parametrize("kind", ARCHIVES)
def test_an_archive_that_is_none_is_refused(cli: Cli, made: Path, tmp_path: Path, kind: str) -> None:
    write, said = ARCHIVES[kind]
    write(tmp_path / "sigma.zip", _entries(made))
    answer = cli("reproduce", "sigma.zip")
    assert answer.code == 2 and any(word in answer.err for word in said.split("|")), answer.out + answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["sigma.zip"]


def test_an_archive_is_bounded(cli: Cli, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(made / "sigma.zip", tmp_path)
    for name in ("_MOST_ENTRIES", "_LARGEST_FILE", "_LARGEST_ARCHIVE"):
        with monkeypatch.context() as patched:
            patched.setattr(packed, name, 5)
            answer = cli("reproduce", "sigma.zip")
        assert answer.code == 2 and "bytes" in answer.err


SPECS = {
    "a module of Python": "os:system",
    "an installed package": "torch.hub:load",
    "the parent folder": "../evil.py:make",
    "an absolute file": "{tmp}/evil.py:make",
    "a link out of it": "linked.py:make",
    "the current folder": "evil.py:make",
    "a file that imports one beside": "importing.py:make",
}


def evil(folder: Path, **changed: Any) -> Path:
    """Write the bundle of a sweep of a network of one's own, whose code leaves a file when it runs."""
    place = folder / "bundles"
    words = ["sweep=network", "model.factory=x.py:make", "seeds=1"]
    sweep = write_sweep(make_table(sweep="network", seeds=1), place, settings=in_manifest(compose(words).config))
    (sweep / "own").mkdir()
    for path in (folder / "evil.py", place / "evil.py", sweep / "own/mine.py"):
        path.write_text(EVIL)
    (sweep / "own/importing.py").write_text("import evil_beside\nmake = None\n")
    return seal(sweep, **changed)


@pytest.mark.parametrize("verb", ["reproduce", "export", "bundle"])
@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.long
def test_code_from_elsewhere_never_runs(
    cli: Cli, tmp_path: Path, kind: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path/evil_beside.py").write_text(EVIL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    spec = SPECS[kind].format(tmp=tmp_path)
    for key, value in (("model__factory", spec), ("quantities", ["frobenius", spec]), ("sweep__vary", {"x": spec})):
        varied = {"model.factory": [spec]} if key == "sweep__vary" else value
        folder = evil(tmp_path, model__factory="mine.py:make") if key != "model__factory" else evil(tmp_path)
        seal(folder, **{key: varied})
        if kind == "a link out of it":
            (folder / "own/linked.py").unlink(missing_ok=True)
            (folder / "own/linked.py").symlink_to(tmp_path / "evil.py")
        for words in ((), ("code=run",), ("code=yes",)):
            answer = cli(verb, str(folder), *words)
            assert answer.code == 2, answer.out
            assert ("code" in answer.err) or kind == "a link out of it", answer.err
        assert not list(tmp_path.rglob("ran"))
        shutil.rmtree(tmp_path / "bundles")


@pytest.mark.parametrize("verb", ["reproduce", "export", "bundle"])
def test_code_of_a_bundle_runs_when_it_is_asked_for(cli: Cli, tmp_path: Path, verb: str) -> None:
    folder = evil(tmp_path, model__factory="mine.py:make")
    answer = cli(verb, str(folder))
    assert answer.code == 2 and "mine.py:make" in answer.err and "code=run" in answer.err
    assert not list(tmp_path.rglob("ran"))
    answer = cli(verb, str(folder), "code=run")
    assert answer.code == 2 and "model.factory: mine.py:make is not a function" in answer.err
    assert "own/mine.py" in answer.out or "  mine.py" in answer.out
    assert (folder / "own/ran").exists()


def test_reading_a_table_runs_no_code(cli: Cli, tmp_path: Path) -> None:
    evil(tmp_path, model__factory="mine.py:make", quantities=["frobenius", "mine.py:quantity"])
    assert cli("reproduce", "bundles/network", "beside=bundles/network").code == 0
    for words in (("report",), ("clean", "yes=true"), ("slopes", "sweep.name=network")):
        assert cli(*words, "output_dir=bundles").code == 0
    assert not list(tmp_path.rglob("ran"))


@pytest.mark.parametrize("key", ["task__path", "model__path", "state__path"])
def test_a_bundle_names_no_file_outside(cli: Cli, bundle: Path, key: str) -> None:
    for place in ("/etc/passwd", "../secret.txt", "secret.txt"):
        (bundle.parent / "secret.txt").write_text("mine")
        seal(bundle, **{key: place})
        for verb in ("reproduce", "bundle", "export"):
            answer = cli(verb, "sigma")
            assert answer.code == 2 and "mine" not in answer.err, answer.out
