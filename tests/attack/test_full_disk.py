"""A disk that is full: said in a line, nothing half written, and the same command goes on when there is space."""

import json
import subprocess

import pytest

from hessfig.register import REGISTER
from tests.attack.target import SIGMA, command
from tests.runs import rows


@pytest.fixture
def disk(tmp_path):
    """A tmpfs of 128 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = _mount(folder, "size=128k")
    if mounted is None or mounted.returncode:
        pytest.skip("no tmpfs can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=False)


def test_a_full_disk(pristine, disk, tmp_path, ledger):
    words = ("run", *SIGMA, f"output_dir={disk}/outputs")
    first = command(*words, folder=tmp_path)
    said = (
        "disk is full" in first.stderr
        and "Traceback" not in first.stderr
        and first.returncode in (1, 2)
    )
    ledger.note("full disks", traceback="" if said else first.stderr[-300:])
    _mount(disk, "remount,size=64m")
    again = command(*words, folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert rows(disk / "outputs/sigma/table.csv") == rows(
        pristine / "outputs/sigma/table.csv"
    )
    assert not ledger.wrong("full disks")


@pytest.mark.parametrize(
    "verb",
    [("slopes", "sweep=sigma"), ("plot", "figure=3a"), ("plot", "figure=bounds")],
)
def test_readers_on_a_full_disk(pristine, disk, ledger, verb):
    _mount(disk, "remount,size=8m")
    for name in ("table.csv", "manifest.json"):
        (disk / "outputs/sigma").mkdir(parents=True, exist_ok=True)
        (disk / "outputs/sigma" / name).write_bytes(
            (pristine / "outputs/sigma" / name).read_bytes()
        )
    _fill(disk)
    done = command(*verb, folder=disk)
    said = (
        done.returncode == 2
        and "disk is full" in done.stderr
        and "Traceback" not in done.stderr
    )
    ledger.note(
        "full disks",
        traceback=""
        if said
        else f"{verb}: exit {done.returncode}: {done.stderr[-300:]}",
    )
    assert not [path for path in disk.rglob(".*") if path.name != REGISTER]
    assert all(json.loads(path.read_text()) for path in disk.rglob(f"{REGISTER}/*"))
    assert not ledger.wrong("full disks")


def _fill(disk):
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            while True:
                ballast.write(b"x" * 4096)
        except OSError:
            pass


def _mount(folder, options):
    try:
        return subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        return None
