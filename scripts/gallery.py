"""Copy the figures under outputs/ into docs/img and write docs/gallery.md: each with its command, cells and wall time.

Run it after `make figures`; times, counts and memory are read from the manifests of the sweeps.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAPER = ["3a", "3b", "5a", "5b", "6", "7", "8", "1", "4", "eq5"]
BEYOND = ["temperature", "heads", "single_matrix", "post_layernorm", "blocks", "scalar", "bounds"]
HEAD = """# Gallery

Every figure as `make figures` made it at full size (20 values of sigma, 20 seeds, d_model 128, 64 sequences unless the
title says otherwise), on 2 cores without a GPU. Written by `scripts/gallery.py` from the manifests of the sweeps.
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    outputs = parser.parse_args().outputs
    sections = [section(name, outputs) for name in PAPER + BEYOND]
    (ROOT / "docs" / "gallery.md").write_text("\n".join([HEAD, *sections]))


def section(name: str, outputs: Path) -> str:
    """Return one figure's part of the page; copies its pictures."""
    settings = (ROOT / "conf" / "figure" / f"{name}.yaml").read_text()
    title, sweep = (
        settings.splitlines()[0].lstrip("# "),
        re.findall(r"^sweep: (\w*)$", settings, re.MULTILINE),
    )
    pictures = [copied(path) for path in pictures_of(name, outputs / "figures")]
    how = f"`make figure-{name}`" + (f": {cost(outputs, sweep[0])}." if sweep else ": computed in seconds.")
    images = [f"![{title}](img/{picture})" for picture in pictures]
    return "\n\n".join([f"## {title}", *images, how, ""])


def pictures_of(name: str, folder: Path) -> list[Path]:
    """Return the figure's pictures, the overview first."""
    found = sorted(folder.glob(f"fig{name}.png")) + sorted(folder.glob(f"fig{name}_*.png"))
    if not found:
        raise SystemExit(f"{folder}: no picture of figure {name}; run make figure-{name}")
    return found


def copied(path: Path) -> str:
    shutil.copyfile(path, ROOT / "docs" / "img" / path.name)
    return path.name


def cost(outputs: Path, sweep: str) -> str:
    """Return cells, estimator and wall time of a sweep, from its manifest."""
    manifest: dict[str, Any] = json.loads((outputs / sweep / "manifest.json").read_text())
    probes = sorted({variant["num_probes"] for variant in manifest["variants"]})
    method = manifest["config"]["estimator"]["method"]
    return (
        f"sweep `{sweep}`, {manifest['cells']['measured']} networks, `estimator={method}`"
        f"{_probes(method, probes)}, `dtype={manifest['config']['dtype']}`, {_duration(manifest['seconds'])}"
    )


def _probes(method: str, probes: list[int]) -> str:
    if method != "auto":
        return ""
    return f" (where it probes, {probes[0]} to {probes[-1]} probes)" if len(probes) > 1 else ""


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


if __name__ == "__main__":
    main()
