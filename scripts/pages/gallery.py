"""Measure, draw and show the gallery: docs/img, docs/img/manifest.json, docs/tables and docs/gallery.md.

    python scripts/pages/gallery.py --all                      # measure what is missing (ten hours), then --keep
    python scripts/pages/gallery.py --keep --outputs FOLDER    # draw from measured sweeps, and keep their tables
    python scripts/pages/gallery.py --draw                     # redraw from the tables in docs/tables (minutes)
    python scripts/pages/gallery.py                            # write the page again

--figures 3a,3b limits each of them. --all resumes: sweeps are run only where their
table is missing or of other settings. --keep skips sweeps that are not measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kept_tables
import pandas as pd
import pictures
from pictures import IMAGES, ROOT

from hessfig.analysis.manifest import read_run
from hessfig.analysis.presented import markdown_table
from hessfig.config.enums import FigureGroup, Published
from hessfig.config.presets import ShippedFigure, natural, shipped_figures
from hessfig.errors import UserError
from hessfig.record import MANIFEST, TABLE

PAGE = ROOT / "docs" / "gallery.md"
HEADINGS = [
    "Figures of the paper",
    "Figures of the paper's claims",
    "Beyond the paper",
    "Follow-ups",
    "Theory alone",
]
HEAD = """# Gallery

The figures that come with the package, each with one sentence on what it shows; [the last section](#other-figures)
lists further ones by their commands. They are drawn from tables measured at full size (20 values of sigma, 20 seeds,
width 128, batches of 64 sequences, unless the title or the picture says otherwise) on 2 cores without a GPU. The tables
are in `docs/tables`, and `python scripts/pages/gallery.py --draw` redraws the pictures from them. A time is the wall
time of the sweep with two workers; "of computing" is the sum over its cells, where the last run reused some of them.
[claims.md](claims.md) compares them with claims of the literature; [figures.md](figures.md) explains how to read them.
"""
OLD = "This picture was drawn by an earlier version: its sweep was not measured again."
# What the page shows: one message each; every other figure is listed below them with
# its command.
LISTED_ONLY = """
spectra_large sinks_large weight_norms_whole edge_batches heterogeneity_trained spectra_after
landscape_integrals stationarity model_size_width model_size_depth model_size_heads model_size_vocabulary
sublayers sublayers_groups gpt2 trained_spectra entries_after blocks_after temperature_model
approximations_after approximations_heads weight_powers embeddings depth_norm traces dispersion similar_tokens
wide_keys jacobian language_heterogeneity language_sinks language_noise sinks quantisation
critical_points steps approximations_digits approximations_text along_updates rounding
landscape_subspace influence approximations_addition language_course sinks_trained
""".split()  # noqa: SIM905
# Sweeps that a figure reads besides its own.
ALSO_READ = {"centring_training": ["centring"]}


def main() -> None:
    """Carry out what is asked for, then write the page."""
    options = _options()
    chosen = [
        figure
        for figure in gallery_figures()
        if not options.figures or figure.name in options.figures
    ]
    if options.all:
        _timed("measured", chosen, lambda figure: measure(figure, options.outputs))
    if options.all or options.keep:
        groups = _by_sweep(chosen)
        _timed(
            "drawn",
            groups,
            lambda group: keep_group(
                group, options.outputs, keeps_cost=options.keep_times
            ),
        )
    if options.draw:
        with tempfile.TemporaryDirectory() as folder:
            _timed("drawn", chosen, lambda figure: redraw(figure, Path(folder)))
    PAGE.write_text(page_text(pictures.read_manifest()), "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--all",
        action="store_true",
        help="measure what is missing, draw, and keep the tables",
    )
    mode.add_argument(
        "--keep",
        action="store_true",
        help="draw from measured sweeps, and keep their tables",
    )
    mode.add_argument("--draw", action="store_true", help="redraw from the kept tables")
    parser.add_argument(
        "--outputs",
        type=Path,
        default=Path("outputs"),
        help="the folder of the measured sweeps",
    )
    parser.add_argument(
        "--figures",
        type=lambda names: names.split(","),
        help="figures of the gallery, such as 3a,3b",
    )
    parser.add_argument(
        "--keep-times",
        action="store_true",
        help="leave costs as they are: the machine was busy",
    )
    options = parser.parse_args()
    if unknown := set(options.figures or ()) - {
        figure.name for figure in gallery_figures()
    }:
        parser.error(f"the gallery has no figure {', '.join(sorted(unknown))}")
    return options


def _timed(done: str, chosen: Sequence[Any], action: Callable[[Any], str]) -> None:
    """Carry out an action for each figure or group; print what it returns with its minutes, and the hours of all."""
    start = time.perf_counter()
    for item in chosen:
        before = time.perf_counter()
        outcome = action(item)
        names = ", ".join(
            figure.name for figure in (item if isinstance(item, list) else [item])
        )
        print(
            f"{names}: {outcome} ({(time.perf_counter() - before) / 60:.1f} min)",
            flush=True,
        )
    print(f"{done} in {(time.perf_counter() - start) / 3600:.2f} h", flush=True)


def _by_sweep(chosen: list[ShippedFigure]) -> list[list[ShippedFigure]]:
    """Return the chosen figures with all that draw the same sweep, together, for they share a kept table."""
    groups: dict[str, list[ShippedFigure]] = {}
    for figure in gallery_figures():
        if figure in chosen or (
            figure.sweep and figure.sweep in {other.sweep for other in chosen}
        ):
            groups.setdefault(figure.sweep or figure.name, []).append(figure)
    return list(groups.values())


def measure(figure: ShippedFigure, outputs: Path) -> str:
    """Run the sweeps of a figure unless their tables hold what is planned today; status 1 means failed cells."""
    codes = []
    for sweep in _sweeps_of(figure):
        if not is_measured(sweep, outputs):
            place = [] if outputs == Path("outputs") else [f"output_dir={outputs}"]
            command = [
                str(Path(sys.executable).with_name("hessfig")),
                "run",
                f"sweep={sweep}",
                *place,
            ]
            codes.append(subprocess.run(command, check=False).returncode)
    if any(code > 1 for code in codes):
        return f"not measured: hessfig run ended with status {max(codes)}"
    return f"{len(codes)} sweeps run" if codes else "measured before"


def is_measured(sweep: str, outputs: Path) -> bool:
    """Return whether outputs/SWEEP holds a table, of the cells that are planned today where they can be planned."""
    folder = outputs / sweep
    if not all((folder / name).is_file() for name in (TABLE, MANIFEST)):
        return False
    try:
        return not kept_tables.disagreements(folder, sweep)
    except UserError:  # a model that is not downloaded
        return True


def keep_group(group: list[ShippedFigure], outputs: Path, *, keeps_cost: bool) -> str:
    """Draw the figures of one sweep and keep what they read of it; return what was done."""
    if problem := _problem(group[0], outputs):
        return f"left as it is: {problem}"
    with tempfile.TemporaryDirectory() as folder:
        drawings = [pictures.draw(figure, outputs, Path(folder)) for figure in group]
        read = set[Path]().union(*(drawing.read for drawing in drawings))
        manifest = pictures.read_manifest()
        for sweep in _sweeps_of(group[0]):
            manifest["tables"][sweep] = kept_tables.keep(outputs / sweep, read)
            networks, seconds = cost(outputs / sweep)
            if not (
                keeps_cost
                and manifest["costs"].get(sweep, "").startswith(f"{networks}, ")
            ):
                manifest["costs"][sweep] = f"{networks}, {seconds}"
        _save(drawings, outputs, manifest)
    sizes = {
        name: size
        for sweep in _sweeps_of(group[0])
        for name, size in _sizes(manifest["tables"][sweep])
    }
    return f"kept {', '.join(f'{name} {size / 1000:.0f} kB' for name, size in sizes.items()) or 'no table'}"


def redraw(figure: ShippedFigure, outputs: Path) -> str:
    """Draw a figure from its kept tables, unpacked into `outputs`; return what was done."""
    manifest = pictures.read_manifest()
    for sweep in _sweeps_of(figure):
        if left_out := kept_tables.lacking(sweep, manifest["tables"]):
            return f"left as it is: {left_out}; --all --figures {figure.name} measures it again"
        kept_tables.unpack(sweep, outputs)
    with tempfile.TemporaryDirectory() as folder:
        _save([pictures.draw(figure, outputs, Path(folder))], outputs, manifest)
    return "redrawn"


def _save(
    drawings: list[pictures.Drawing], outputs: Path, manifest: dict[str, Any]
) -> None:
    """Put the pictures that the page shows in place of those before, and their records into the manifest."""
    for drawing in drawings:
        figure = drawing.figure
        if unnamed := set(drawing.sweeps(outputs)) - set(_sweeps_of(figure)):
            raise SystemExit(
                f"{figure.name} reads {', '.join(unnamed)}, which ALSO_READ does not name"
            )
        tables = {
            sweep: kept_tables.table_hash(outputs / sweep / TABLE)
            for sweep in drawing.sweeps(outputs)
        }
        for old in pictures.pictures_of(figure.name, IMAGES):
            old.unlink()
            manifest["pictures"].pop(old.name, None)
        for picture in _shown(drawing):
            manifest["pictures"][picture.name] = pictures.record_of(figure, tables)
            manifest["old"] = [name for name in manifest["old"] if name != picture.name]
            pictures.save(picture)
    pictures.write_manifest(manifest)


def _shown(drawing: pictures.Drawing) -> list[Path]:
    """Return the pictures of the page: those of which conf/figures.yaml says what is seen, or else the first."""
    name = drawing.figure.name
    told = {f"fig{name}_{suffix}".rstrip("_") for suffix in drawing.figure.seen}
    return [
        picture for picture in drawing.pictures if picture.stem in told
    ] or drawing.pictures[:1]


def _sweeps_of(figure: ShippedFigure) -> list[str]:
    return [figure.sweep, *ALSO_READ.get(figure.name, ())] if figure.sweep else []


def _problem(figure: ShippedFigure, outputs: Path) -> str:
    """Return why a figure cannot be drawn from `outputs` as its sweeps are planned today, or ""."""
    for sweep in _sweeps_of(figure):
        if not all((outputs / sweep / name).is_file() for name in (TABLE, MANIFEST)):
            return f"{sweep} is not measured"
        try:
            wrong = kept_tables.disagreements(outputs / sweep, sweep)
        except UserError as error:
            print(
                f"{sweep}: its cells are not checked, it cannot be planned here: {error.what}"
            )
            wrong = []
        if wrong:
            return wrong[0]
    return ""


def _sizes(table: dict[str, Any]) -> Iterator[tuple[str, int]]:
    yield from table["kept"].items()
    yield from (
        (f"(left out: {name})", size) for name, size in table["left_out"].items()
    )


def gallery_figures() -> list[ShippedFigure]:
    """Return the figures that the page shows, in its order: follow-ups in theirs, others by number or name."""
    return [figure for figure in all_figures() if figure.name not in LISTED_ONLY]


def all_figures() -> list[ShippedFigure]:
    """Return every figure but those of one's own, in the order of the page."""
    drawn = [figure for figure in shipped_figures() if figure.group != FigureGroup.own]
    return sorted(
        drawn, key=lambda figure: (HEADINGS.index(heading_of(figure)), *_place(figure))
    )


def _place(figure: ShippedFigure) -> tuple[int, Any]:
    return (figure.order if figure.group == FigureGroup.follow_up else 0), natural(
        figure.name
    )


def heading_of(figure: ShippedFigure) -> str:
    """Return the heading that a figure stands under."""
    groups = {FigureGroup.beyond: "Beyond the paper", FigureGroup.study: "Theory alone"}
    groups |= {
        FigureGroup.paper: "Figures of the paper's claims",
        FigureGroup.follow_up: "Follow-ups",
    }
    if figure.published == Published.nothing:
        return groups[figure.group]
    return HEADINGS[0]


def page_text(manifest: dict[str, Any]) -> str:
    """Return docs/gallery.md, which follows from the manifest and conf/figures.yaml."""
    parts = [HEAD, *contents()]
    for heading, group in itertools.groupby(gallery_figures(), heading_of):
        parts += [f"## {heading}\n", *(section(figure, manifest) for figure in group)]
    return "\n".join([*parts, *_others()])


def contents() -> Iterator[str]:
    """Yield a paragraph of links for each heading of the page: small pictures that lead to their sections."""
    for heading, group in itertools.groupby(gallery_figures(), heading_of):
        yield f"**{heading}**\n"
        yield "\n".join(_thumbnail(figure) for figure in group) + "\n"


def _thumbnail(figure: ShippedFigure) -> str:
    """Return a link to a figure's section: its first picture at an eighth of a page's width."""
    anchor = re.sub(r"[^\w\- ]", "", _title(figure).lower()).replace(" ", "-")
    first = pictures.pictures_of(figure.name, IMAGES)[0].name
    return f'[<img src="img/{first}" alt="{figure.name}" width="110">](#{anchor})'


def section(figure: ShippedFigure, manifest: dict[str, Any]) -> str:
    """Return the part of the page about one figure."""
    shown = [path.name for path in pictures.pictures_of(figure.name, IMAGES)]
    images = [f"![{_alt(figure, name)}](img/{name})" for name in shown]
    old = [OLD] if set(shown) & set(manifest["old"]) else []
    costs = "; ".join(
        manifest["costs"][sweep]
        for sweep in _sweeps_of(figure)
        if sweep in manifest["costs"]
    )
    unknown = "its cost is not on record" if figure.sweep else "computed in seconds"
    command = f"`make figure-{figure.name}`: {costs or unknown}."
    parts = [f"### {_title(figure)}", *images, *old, *_seen(figure), command]
    return "\n\n".join(parts) + "\n"


def _title(figure: ShippedFigure) -> str:
    return figure.title.removesuffix(".")


def _seen(figure: ShippedFigure) -> list[str]:
    """Return the sentence on what to see, where conf/figures.yaml has one."""
    return [
        f"{sentence.rstrip('.')}." for sentence in dict.fromkeys(figure.seen.values())
    ]


def _alt(figure: ShippedFigure, picture: str) -> str:
    """Return the first words of a figure's title and, of several pages, which of them this is."""
    page = (
        Path(picture)
        .stem.removeprefix(f"fig{figure.name}")
        .strip("_")
        .replace("_", " ")
    )
    words = re.split("[:,]", _title(figure))[0]
    return f"{words}: {page}" if len(figure.seen) > 1 else words


def _others() -> list[str]:
    """Return the table of the figures that no picture of the page shows."""
    listed = [figure for figure in all_figures() if figure.name in LISTED_ONLY]
    rows = [(f"`{figure.name}`", _title(figure)) for figure in listed]
    return [
        "## Other figures",
        "",
        f"`make figure-{listed[0].name}` measures and draws the first of them, and so on.",
        "",
        *markdown_table(("NAME", "figure"), rows),
        "",
    ]


def cost(folder: Path) -> tuple[str, str]:
    """Return the numbers of networks and seeds of a sweep, and its wall time, from its manifest and table."""
    run = read_run(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    networks = run.table.groupby(
        ["variant", "num_layers", "sigma", "seed", "step"], dropna=False
    ).ngroups
    count = run.table["seed"].nunique()
    return f"{networks} networks, {count} seed{'s' if count > 1 else ''}", _time(
        manifest, run.table
    )


def _time(manifest: dict[str, Any], table: pd.DataFrame) -> str:
    """Return the wall time, or what the cells took where the last run reused some of them."""
    if not manifest["cells"]["reused"]:
        return _duration(manifest["seconds"])
    cells = table.groupby(["config", "sigma", "step", "seed"], dropna=False)
    return f"{_duration(cells['seconds'].first().sum())} of computing"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


if __name__ == "__main__":
    main()
