"""Copy the figures under outputs/ into docs/img and write docs/gallery.md: each with its command, cells and wall time.

Run it after `make figures`; times, counts and memory are read from the manifests of the sweeps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import claims as claims_page
import pandas as pd
from PIL import Image

from hessfig.analysis.claims.ledger import all_claims
from hessfig.analysis.presented import markdown_table, markdown_text, marked
from hessfig.config.enums import FigureGroup, Published
from hessfig.config.presets import ShippedFigure, natural, shipped_figures
from hessfig.report.drawn_figures import in_few_colours

ROOT = Path(__file__).parents[2]
PAGES = {
    "gallery.md": [FigureGroup.paper, FigureGroup.beyond, FigureGroup.study],
    "gallery-follow-ups.md": [FigureGroup.follow_up],
}
HEADINGS = ["Figures of the paper", "Figures of the paper's claims", "Beyond the paper", "Theory alone"]
HEADS: dict[str, str] = {}
HEADS["gallery.md"] = """# Gallery

The figures of the paper and of its claims, as `make figures` draws them at full size (20 values of sigma, 20 seeds,
d_model 128, 64 sequences unless the title says otherwise) on 2 cores without a GPU. Each figure is shown once; where it
has several pages, the overview is shown. `scripts/pages/gallery.py` writes this page from the manifests of the sweeps,
and takes the verdicts on claims from [claims.md](claims.md). [figures.md](figures.md) explains how to read the figures.
Spectra, training, landscape and size are in [gallery-follow-ups.md](gallery-follow-ups.md).
"""
HEADS["gallery-follow-ups.md"] = """# Gallery of follow-ups

Spectra, training, today's components, approximations and landscape: figures beyond the paper, as
`make figures-follow-up` draws them on 2 cores without a GPU. Each figure is shown once; where it has several
pages, the overview is shown. `scripts/pages/gallery.py --page gallery-follow-ups.md` writes this page from the
manifests of the sweeps, and takes the verdicts on claims from [claims.md](claims.md).
"""
# What the pages show: one message each; every other figure is listed below them with its command.
LISTED_ONLY = """
score_split spectra_large sinks_large weight_norms_whole edge_batches heterogeneity_trained spectra_after
landscape_integrals stationarity model_size_width model_size_depth model_size_heads model_size_vocabulary
sublayers sublayers_groups gpt2 trained_spectra entries_after blocks_after temperature_model
approximations_after approximations_heads weight_powers embeddings depth_norm traces dispersion similar_tokens
wide_keys jacobian language_heterogeneity language_sinks language_noise sinks quantisation
critical_points steps approximations_digits approximations_text along_updates rounding
landscape_subspace influence approximations_addition language_course sinks_trained
""".split()  # noqa: SIM905
WITH_EVERY_PAGE = ("eq5", "6", "7", "component_ratios")  # figures whose pages say more than the first of them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--page", choices=list(PAGES), default="gallery.md")
    parser.add_argument("--keep-times", action="store_true", help="times were taken on a busy machine: leave the old")
    options = parser.parse_args()
    path = ROOT / "docs" / options.page
    every = in_gallery_order(shipped_figures(), PAGES[options.page])
    shown = [figure for figure in every if figure.name not in LISTED_ONLY]
    sections = parts(shown, options.outputs, before=path.read_text(), keeps=options.keep_times)
    path.write_text("\n".join([HEADS[options.page], *sections, *others(every)]))


def in_gallery_order(figures: list[ShippedFigure], groups: list[FigureGroup]) -> list[ShippedFigure]:
    """Return those of some groups, heading by heading: follow-ups in their order, others by number or name."""
    drawn = [figure for figure in figures if figure.group in groups]
    if groups == [FigureGroup.follow_up]:
        return drawn
    return sorted(drawn, key=lambda figure: (HEADINGS.index(heading_of(figure)), natural(figure.name)))


def parts(figures: list[ShippedFigure], outputs: Path, before: str, keeps: bool = False) -> Iterator[str]:
    """Yield the figures' parts of the page, each group of them under its heading; follow-ups have none.

    A figure that `outputs` lacks keeps its part of the page `before`; if it `keeps`, any figure its cost.
    """
    for heading, group in itertools.groupby(figures, heading_of):
        if heading:
            yield f"## {heading}\n"
        yield from (section(figure, outputs, "###" if heading else "##", before, keeps) for figure in group)


def others(figures: list[ShippedFigure]) -> list[str]:
    """Return the list of the figures that no picture of the page shows."""
    listed = [figure for figure in figures if figure.name in LISTED_ONLY]
    rows = [(figure.title.removesuffix("."), f"`make figure-{figure.name}`") for figure in listed]
    return ["## Other figures", "", *markdown_table(("figure", "command"), rows), ""] if rows else []


def heading_of(figure: ShippedFigure) -> str:
    """Return the heading that a figure stands under."""
    if figure.group == FigureGroup.follow_up:
        return ""
    of_group = {FigureGroup.paper: HEADINGS[1], FigureGroup.beyond: HEADINGS[2], FigureGroup.study: HEADINGS[3]}
    return of_group[figure.group] if figure.published == Published.nothing else HEADINGS[0]


def section(figure: ShippedFigure, outputs: Path, level: str, before: str, keeps: bool = False) -> str:
    """Return one figure's part of the page, under a heading of this level; copies its picture."""
    head = f"{level} {figure.title}\n\n"
    command = f"`make figure-{figure.name}`: "
    found = pictures_of(figure.name, outputs / "figures")
    parts = [part for part in re.split(r"^#+ ", before, flags=re.MULTILINE) if f"\n{command}" in part]
    made = parts[0].partition(f"\n{command}")[2].partition("\n")[0] if parts else ""
    if found:
        shown = found if figure.name in WITH_EVERY_PAGE else found[:1]
        pictures = [copied(path) for path in shown]
        cells = _PAGES.sub("", made) if keeps and made else _cells(figure, outputs)
        made = f"{cells}{f'; {len(found)} pictures' if len(found) > 1 else ''}."
    elif parts:
        pictures = _PICTURE.findall(parts[0])
    else:
        return f"{head}Not drawn here yet: `make figure-{figure.name}`.\n"
    images = [f"![{_alt(figure, picture)}](img/{picture})" for picture in pictures]
    return head + "\n\n".join([*images, *says(figure.name), f"{command}{made}\n"])


def _cells(figure: ShippedFigure, outputs: Path) -> str:
    return cost(outputs, figure.sweep) if figure.sweep else "computed in seconds"


_PAGES = re.compile(r"(; \d+ pictures)?\.$")
_PICTURE = re.compile(r"\]\(img/([^)]+)\)")


def _alt(figure: ShippedFigure, picture: str) -> str:
    """Return the title of a figure and, of several pages, which of them this is."""
    page = Path(picture).stem.removeprefix(f"fig{figure.name}").strip("_").replace("_", " ")
    return f"{figure.title.rstrip('.')}: {page}" if page and figure.name in WITH_EVERY_PAGE else figure.title


def says(name: str) -> Iterator[str]:
    """Yield what the figure of this name says of claims: their statements with the verdicts of docs/claim-rules.md."""
    page = marked(claims_page.RULES.read_text(), "verdicts", claims_page.COMMAND)
    verdicts = {cells[0].removeprefix("| "): cells[5] for line in page.splitlines() if (cells := line.split(" | "))[5:]}
    for one in all_claims().values():
        verdict = verdicts.get(one.id, claims_page.NOT_YET)
        if one.figure == name and verdict != claims_page.NOT_YET:
            yield f"*{markdown_text(one.statement[0].upper() + one.statement[1:])}* ({one.source}): **{verdict}**."


def pictures_of(name: str, folder: Path) -> list[Path]:
    """Return the figure's pictures, the overview first."""
    others = {f"fig{one.name}" for one in shipped_figures() if one.name.startswith(f"{name}_")}
    pages = sorted(folder.glob(f"fig{name}_*.png"), key=lambda page: (not page.stem.endswith("overview"), page.name))
    apart = [page for page in pages if not any(page.stem.startswith(other) for other in others)]
    return sorted(folder.glob(f"fig{name}.png")) + apart


def copied(path: Path) -> str:
    """Copy a picture, in as few colours as nobody can tell."""
    with Image.open(path) as picture:
        in_few_colours(picture.convert("RGB")).save(ROOT / "docs" / "img" / path.name, optimize=True)
    return path.name


def cost(outputs: Path, sweep: str) -> str:
    """Return networks, seeds, estimators, types and wall time of a sweep, from its manifest and table."""
    manifest = json.loads((outputs / sweep / "manifest.json").read_text())
    table = pd.read_csv(outputs / sweep / "table.csv")
    networks = table.groupby(["variant", "num_layers", "sigma", "seed", "step"], dropna=False).ngroups
    count = len(table["seed"].unique())
    seeds = f"{count} seed{'s' if count > 1 else ''}"
    words = [f"`{'`, `'.join(sorted(table[name].unique()))}`" for name in ("estimator", "dtype")]
    probes = sorted(set(table["num_probes"]) - {0})
    counts = f", {_span(probes)} probes where it probes" if probes else ""
    return f"sweep `{sweep}`, {networks} networks ({seeds}), {words[0]} in {words[1]}{counts}, {_time(manifest, table)}"


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
