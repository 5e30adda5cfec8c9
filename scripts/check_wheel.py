"""Build sdist and wheel, install one into an empty environment, and use it from an empty folder.

    python scripts/check_wheel.py                     a real installation, by pip, of the wheel and all it needs
    python scripts/check_wheel.py --light             without dependencies: those of this interpreter are lent (minutes)
    python scripts/check_wheel.py --python python3.13 with another interpreter
    python scripts/check_wheel.py --smaller "torch --index-url ..."    by docs/install.md, "A smaller PyTorch"

Prints a line per step with its seconds, and the size of the environment. Exits with 1
at the first step that fails.
"""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("hessfig", "conf", "data", "docs")
FILES = (
    *("pyproject.toml", "setup.py", "MANIFEST.in"),
    *("README.md", "LICENSE", "CITATION.cff", "CHANGELOG.md", "SECURITY.md"),
)
TOY = "model.d_model=8 task.digits=1 task.batch_size=4 grid.points=6 seeds=3 workers=1"
OWN_SWEEP = """# @package _global_
defaults:
  - override /model: linear_mlp
  - override /estimator: dense
sweep: {name: mine, about: "A sweep of my own"}
task: {digits: 1, batch_size: 2}
model: {d_model: 4}
grid: {points: 3}
seeds: 2
blocks: [W]
"""
OWN_NETWORK = """import hessfig
import torch
from torch import nn

network = nn.Sequential(nn.Linear(8, 4), nn.GELU(), nn.Linear(4, 3))
problem = hessfig.Problem(network, torch.randn(6, 8), torch.randint(0, 3, (6,)))
print(len(hessfig.measure(problem, blocks=["0.weight"])), "numbers, hessfig", hessfig.__version__)
"""
COMMANDS = (
    "hessfig --version",
    "python measure.py",
    f"hessfig run sweep=sigma {TOY}",
    "hessfig slopes sweep=sigma",
    "hessfig check sweep=sigma tolerance=1.5",
    "hessfig plot figure=3a",
    "hessfig report",
    "hessfig run sweep=mine --config-dir my workers=1",
    "hessfig bundle sweep=mine --config-dir my",
    "hessfig bundle sweep=sigma",
    "unpack sigma.zip",
    "hessfig compare unpacked/sigma outputs/sigma",
)


def main() -> None:
    """Build, install and use; see the module's own words."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="hessfig-wheel-") as temporary:
        folder = Path(temporary)
        sdist, wheel = build(folder)
        print(
            f"sdist {sdist.stat().st_size / 1e3:.0f} kB, wheel {wheel.stat().st_size / 1e3:.0f} kB",
            flush=True,
        )
        environment = install(folder / "environment", wheel, options)
        size = sum(
            path.lstat().st_size for path in environment.rglob("*") if path.is_file()
        )
        print(f"environment: {size / 1e9:.2f} GB", flush=True)
        use(environment, folder / "empty")


def build(folder: Path) -> tuple[Path, Path]:
    """Return an sdist of a copy of the sources, and a wheel built from that sdist, which holds all that is in one."""
    source, built = folder / "source", folder / "built"
    for name in SOURCES:
        shutil.copytree(
            ROOT / name,
            source / name,
            ignore=shutil.ignore_patterns("__pycache__", "img"),
        )
    for name in (*FILES, "constraints.txt"):
        shutil.copy(ROOT / name, source)
    built.mkdir()
    backend = (
        f"import setuptools.build_meta as backend; backend.build_sdist({str(built)!r})"
    )
    _run([sys.executable, "-c", backend], source)
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    for number, place in enumerate((unpacked, source)):
        _run(
            [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "-q",
                "--no-deps",
                "--no-build-isolation",
                "-w",
                built / str(number),
                place,
            ],
            folder,
        )
    first, second = (next((built / number).glob("*.whl")) for number in ("0", "1"))
    lacking = set(zipfile.ZipFile(second).namelist()) ^ set(
        zipfile.ZipFile(first).namelist()
    )
    if lacking:
        sys.exit(f"the sdist and the sources make other wheels: {sorted(lacking)}")
    return sdist, first


def install(environment: Path, wheel: Path, options: argparse.Namespace) -> Path:
    """Make an empty environment and install the wheel in it."""
    _run([options.python, "-m", "venv", environment], environment.parent)
    pip = [environment / "bin/python", "-m", "pip", "install", "-q"]
    if options.light:
        (packages,) = environment.glob("lib/python*/site-packages")
        (packages / "lent.pth").write_text("\n".join(lent()) + "\n")
    if options.smaller:
        lines = smaller(options.smaller, wheel)
    else:
        lines = [[*["--no-deps"] * options.light, str(wheel)]]
    for line in lines:
        _run([*pip, *line], environment.parent)
    return environment


def smaller(torch: str, wheel: Path | str) -> list[list[str]]:
    """Return what `pip install` is given by docs/install.md for a smaller PyTorch: `torch` first, then the wheel.

    Where `torch` names torchvision, these are the lines that install it; else those of
    an environment without it.
    """
    section = (
        (ROOT / "docs/install.md")
        .read_text()
        .partition("# A smaller PyTorch")[2]
        .partition("\n##")[0]
    )
    blocks = [
        block.strip().splitlines()
        for block in re.findall(r"```text\n(pip install torch .*?)```", section, re.S)
    ]
    chosen = next(
        lines
        for lines in blocks
        if ("torchvision" in lines[0]) == ("torchvision" in torch)
    )
    words = [shlex.split(line.removeprefix("pip install ")) for line in chosen[1:]]
    return [
        shlex.split(torch),
        *([str(wheel) if word == "." else word for word in line] for line in words),
    ]


def use(environment: Path, empty: Path) -> None:
    """Run every command from a folder of its own, without the sources."""
    (empty / "my/sweep").mkdir(parents=True)
    (empty / "my/sweep/mine.yaml").write_text(OWN_SWEEP)
    (empty / "measure.py").write_text(OWN_NETWORK)
    for command in COMMANDS:
        program, *rest = command.split()
        if program == "unpack":
            zipfile.ZipFile(empty / rest[0]).extractall(empty / "unpacked")
        else:
            print(
                _run([environment / "bin" / program, *rest], empty, said=command),
                end="",
                flush=True,
            )


def lent() -> list[str]:
    """Return the folders of this interpreter's packages, and those that .pth files lend to it."""
    own = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    files = (file for folder in own for file in Path(folder).glob("*.pth"))
    lines = (line.strip() for file in files for line in file.read_text().splitlines())
    return list(dict.fromkeys([*own, *(line for line in lines if Path(line).is_dir())]))


def _run(words: Sequence[object], folder: Path, *, said: str = "") -> str:
    """Run a command to its end; return its last line. Ends the program where it fails."""
    start = time.perf_counter()
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(
            f"failed ({done.returncode}): {said or words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    seconds = time.perf_counter() - start
    lines = done.stdout.strip().splitlines()
    print(f"{seconds:6.1f} s  {said or ' '.join(map(str, words))[-80:]}", flush=True)
    return f"          {lines[-1]}\n" if lines and said else ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--light", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--smaller", default="")
    return parser.parse_args()


if __name__ == "__main__":
    main()
