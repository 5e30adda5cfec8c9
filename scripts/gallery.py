"""Copy the figures under outputs/ into docs/img and write docs/gallery.md: each with its command, cells and wall time.

Run it after `make figures`; times, counts and memory are read from the manifests of the sweeps.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image

from hessfig.config.enums import FigureGroup, Published
from hessfig.config.presets import ShippedFigure, natural, shipped_figures
from hessfig.report.drawn_figures import in_few_colours

ROOT = Path(__file__).parent.parent
PAGES = {
    "gallery.md": [FigureGroup.paper, FigureGroup.beyond, FigureGroup.study],
    "gallery-follow-ups.md": [FigureGroup.follow_up],
}
HEADINGS = ["Figures of the paper", "Figures of the paper's claims", "Beyond the paper", "Theory alone"]
HEADS: dict[str, str] = {}
HEADS["gallery.md"] = """# Gallery

Every figure as `make figures` made it at full size (20 values of sigma, 20 seeds, d_model 128, 64 sequences unless the
title says otherwise), on 2 cores without a GPU. Written by `scripts/gallery.py` from the manifests of the sweeps.
How to read them: [figures.md](figures.md). Spectra, training, landscape, size:
[gallery-follow-ups.md](gallery-follow-ups.md).
"""
HEADS["gallery-follow-ups.md"] = """# Gallery of follow-ups

Spectra, training, landscape, size: figures beyond the paper, as `make figures-follow-up` makes them on 2 cores without
a GPU. Written by `scripts/gallery.py --page gallery-follow-ups.md` from the manifests of the sweeps. The sweeps of
spectra had the machine to themselves; those of training and landscape shared it, so their times are upper bounds.
What the numbers say of the literature's claims: [spectra.md](spectra.md), [training.md](training.md),
[landscape.md](landscape.md), [claims.md](claims.md).

**Does the heterogeneity between Q and V survive training?** Not as it stands at initialisation. Without a norm, under
softmax, the (V, V) block of H is 550 times (Q, Q) before and 8 times after 2 000 steps of AdamW; with pre-LN it is
about 2 times before and, within the error of three seeds, after. The differences between the spectra of all blocks
shrink too. What large differences there are, training removes first.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--page", choices=list(PAGES), default="gallery.md")
    options = parser.parse_args()
    sections = list(parts(in_gallery_order(shipped_figures(), PAGES[options.page]), options.outputs))
    (ROOT / "docs" / options.page).write_text("\n".join([HEADS[options.page], *sections]))


def in_gallery_order(figures: list[ShippedFigure], groups: list[FigureGroup]) -> list[ShippedFigure]:
    """Return those of some groups, heading by heading: follow-ups in their order, others by number or name."""
    drawn = [figure for figure in figures if figure.group in groups]
    if groups == [FigureGroup.follow_up]:
        return drawn
    return sorted(drawn, key=lambda figure: (HEADINGS.index(heading_of(figure)), natural(figure.name)))


def parts(figures: list[ShippedFigure], outputs: Path) -> Iterator[str]:
    """Yield the figures' parts of the page, each group of them under its heading; follow-ups have none."""
    for heading, group in itertools.groupby(figures, heading_of):
        if heading:
            yield f"## {heading}\n"
        yield from (section(figure, outputs, "###" if heading else "##") for figure in group)


def heading_of(figure: ShippedFigure) -> str:
    """Return the heading that a figure stands under."""
    if figure.group == FigureGroup.follow_up:
        return ""
    of_group = {FigureGroup.paper: HEADINGS[1], FigureGroup.beyond: HEADINGS[2], FigureGroup.study: HEADINGS[3]}
    return of_group[figure.group] if figure.published == Published.nothing else HEADINGS[0]


def section(figure: ShippedFigure, outputs: Path, level: str) -> str:
    """Return one figure's part of the page, under a heading of this level; copies its pictures."""
    found = pictures_of(figure.name, outputs / "figures")
    if not found and figure.group == FigureGroup.follow_up:
        return f"{level} {figure.title}\n\nNot drawn here yet: `make figure-{figure.name}`.\n"
    if not found:
        raise SystemExit(f"{outputs}: no picture of figure {figure.name}; run make figure-{figure.name}")
    pictures = [copied(path) for path in found]
    made = f"{cost(outputs, figure.sweep)}." if figure.sweep else "computed in seconds."
    images = [f"![{figure.title}](img/{picture})" for picture in pictures]
    return "\n\n".join([f"{level} {figure.title}", *images, f"`make figure-{figure.name}`: {made}", ""])


def pictures_of(name: str, folder: Path) -> list[Path]:
    """Return the figure's pictures, the overview first."""
    others = {f"fig{one.name}" for one in shipped_figures() if one.name.startswith(f"{name}_")}
    pages = sorted(folder.glob(f"fig{name}_*.png"))
    apart = [page for page in pages if not any(page.stem.startswith(other) for other in others)]
    return sorted(folder.glob(f"fig{name}.png")) + apart


def copied(path: Path) -> str:
    """Copy a picture, in as few colours as nobody can tell."""
    with Image.open(path) as picture:
        in_few_colours(picture.convert("RGB")).save(ROOT / "docs" / "img" / path.name, optimize=True)
    return path.name


def cost(outputs: Path, sweep: str) -> str:
    """Return networks, estimators, types and wall time of a sweep, from its manifest and table."""
    manifest = json.loads((outputs / sweep / "manifest.json").read_text())
    table = pd.read_csv(outputs / sweep / "table.csv")
    networks = table.groupby(["variant", "num_layers", "sigma", "seed", "step"], dropna=False).ngroups
    words = [f"`{'`, `'.join(sorted(table[name].unique()))}`" for name in ("estimator", "dtype")]
    probes = sorted(set(table["num_probes"]) - {0})
    counts = f", {_span(probes)} probes where it probes" if probes else ""
    return f"sweep `{sweep}`, {networks} networks, {words[0]} in {words[1]}{counts}, {_time(manifest, table)}"


def _span(counts: list[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _time(manifest: dict[str, Any], table: pd.DataFrame) -> str:
    """Return the wall time, or what the cells took where the last run found some of them finished."""
    if not manifest["cells"]["reused"]:
        return _duration(manifest["seconds"])
    cells = table.groupby(["config", "sigma", "step", "seed"], dropna=False)
    return f"{_duration(cells['seconds'].first().sum())} of computing"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


if __name__ == "__main__":
    main()
