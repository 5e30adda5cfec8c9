"""The pages of a report: their contents, and their HTML for a site or for one file."""

import base64
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from hessfig.errors import run_command
from hessfig.record import FROBENIUS
from hessfig.report import page_tables, readings
from hessfig.report.at_a_glance import glances
from hessfig.report.drawn_figures import Contents, Picture
from hessfig.report.gathered import SweepState
from hessfig.report.page_tables import PageTable, TableCell
from hessfig.report.readings import SweepFound

_KINDS = {".png": "image/png", ".svg": "image/svg+xml", ".csv": "text/csv", ".json": "application/json"}
PAGES = {"index": "index.html", "paper": "paper.html", "theory": "theory.html", "claims": "claims.html"}


EXPLORE = ("explore.js", "explore.css")
LIBRARY = "assets/plotly.min.js"
LIBRARY_HERE = "<!-- plotly -->"


def page_file(page: str) -> str:
    """Return the file of a page: those of sweeps are named 'sweep-NAME'."""
    return PAGES.get(page) or f"sweeps/{page.removeprefix('sweep-')}.html"


@dataclass(frozen=True)
class InSite:
    """Links of a page of a site, `depth` folders below its root."""

    depth: int = 0
    one_file: bool = False

    def page(self, page: str, part: str = "") -> str:
        """Return the link to a page, or to a part of it."""
        return self.file(page_file(page)) + (f"#{page}-{part}" if part else "")

    def file(self, path: str) -> str:
        """Return the link to a file of the site."""
        return "../" * self.depth + quote(path)


@dataclass(frozen=True)
class InOneFile:
    """Links of the single file: pages are its parts, and files of `folder` are embedded."""

    folder: Path
    one_file: bool = True

    def page(self, page: str, part: str = "") -> str:
        """Return the link to a page, or to a part of it."""
        return f"#{page}-{part}" if part else f"#{page}"

    def file(self, path: str) -> str:
        """Return the file as a data URI."""
        content = base64.b64encode((self.folder / path).read_bytes()).decode()
        return f"data:{_KINDS.get(Path(path).suffix, 'application/octet-stream')};base64,{content}"


_SHOWN = 400
_LEFT_OUT = ("config", "variants", "arrays", "checksum", "sweep")
_NETWORK = ("kind", "d_model", "n_layers", "n_heads", "attention", "norm", "mlp")
_TASK = ("data", "digits", "batch_size", "loss", "scored")
_WORDS = {"n_layers": "layers", "n_heads": "heads", "batch_size": "batch", "kind": "", "data": ""}


def in_short(sweep: SweepFound) -> list[tuple[str, str]]:
    """Return what was measured on which network, as a few named lines."""
    if sweep.run is None:
        return []
    config, table = sweep.config, sweep.run.table
    vary = config.get("sweep", {}).get("vary") or {}
    estimator = [*map(str, table["estimator"].unique()), *map(str, table["dtype"].unique()), _probes(table)]
    lines = {
        "network": _listed(config, "model", _NETWORK, vary),
        "data": _listed(config, "task", _TASK, vary),
        "varied": ", ".join(f"{key}: {text(values).strip('[]')}" for key, values in vary.items()),
        "measured": _measured(table),
        "places": _places(table),
        "seeds": str(table["seed"].nunique()),
        "estimator": ", ".join(estimator).strip(", "),
    }
    return [(name, words) for name, words in lines.items() if words]


def settings_table(sweep: SweepFound, about: Mapping[str, str]) -> PageTable:
    """Return every setting of the manifest with its line of help, and the preset's value if it differs."""
    usual = {departure.key: departure.usual for departure in sweep.asked.departures or ()}
    rows = [
        [TableCell(key), TableCell(text(value)), TableCell(usual.get(key, "")), TableCell(about.get(key, ""))]
        for key, value in flat(sweep.config)
    ]
    titles = ["setting", "value", "in the preset", "meaning"]
    return PageTable("settings", "Every setting of this run", titles, [False] * 4, rows)


def manifest_table(manifest: Mapping[str, Any]) -> PageTable:
    """Return the provenance in a manifest: versions, times and counts, without the settings."""
    rows = [
        [TableCell(key), TableCell(text(value))]
        for key, value in flat({key: value for key, value in manifest.items() if key not in _LEFT_OUT})
    ]
    return PageTable("manifest", "Manifest", ["entry", "value"], [False, False], rows)


def flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested settings."""
    for key, value in section.items():
        if isinstance(value, Mapping) and value and not prefix.endswith("vary."):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def text(value: Any) -> str:
    """Return a setting's value as a user would type it, truncated if it is very long."""
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace('"', "")
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


def _listed(config: Mapping[str, Any], group: str, names: tuple[str, ...], vary: Mapping[str, Any]) -> str:
    """Return 'd_model 16, heads 1': what is set, what a sweep varies as the range it has there."""
    section = config.get(group, {})
    shown = {name: vary.get(f"{group}.{name}", section.get(name)) for name in names}
    return ", ".join(
        f"{_WORDS.get(name, name)} {text(value).strip('[]')}".strip()
        for name, value in shown.items()
        if value is not None
    )


def _measured(table: pd.DataFrame) -> str:
    quantities = ", ".join(map(_quantity, table["quantity"].unique()))
    pairs = table[["row", "col"]].drop_duplicates().itertuples(index=False, name=None)
    blocks = [row if row == col else f"({row}, {col})" for row, col in pairs]
    more = f" and {len(blocks) - 6} more" if len(blocks) > 6 else ""
    parts = ", ".join(part for part in table["part"].unique() if part)
    of = f" of {', '.join(blocks[:6])}{more}" if any(blocks) else ""
    return f"{quantities}{of}" + (f"; {parts}" if parts else "")


def _quantity(name: str) -> str:
    return "Frobenius norms" if name == FROBENIUS else name.replace("_", " ")


def _places(table: pd.DataFrame) -> str:
    shown = []
    for name, symbol in (("sigma", "σ"), ("step", "step")):
        values = sorted(table[name].dropna().unique())
        if len(values) == 1:
            shown.append(f"{symbol} = {values[0]:g}")
        elif values:
            shown.append(f"{symbol} from {values[0]:g} to {values[-1]:g} ({len(values)} values)")
    return ", ".join(shown)


def _probes(table: pd.DataFrame) -> str:
    counts = sorted({int(count) for count in table["num_probes"] if count > 0})
    return f"{counts[0]} to {counts[-1]} probes" if len(counts) > 1 else f"{counts[0]} probes" if counts else ""


PREVIEW = 60  # rows of a picture's numbers that a page shows
Place = InSite | InOneFile


@dataclass(frozen=True)
class ReportPage:
    """A page: its id, its title, its template and the template's values."""

    id: str
    title: str
    template: str
    given: Mapping[str, Any]


def pages(contents: Contents) -> list[ReportPage]:
    """Return the pages of a report, the front page first."""
    return [
        ReportPage("index", "hessfig report", "index.html", _front(contents)),
        ReportPage("paper", "The paper in one screen", "paper.html", {"glances": glances(contents)}),
        *(_sweep_page(contents, sweep) for sweep in contents.sweeps),
        ReportPage("theory", "Statements of the theory", "theory.html", {"table": _ledger(contents, "theory")}),
        ReportPage("claims", "Claims of the literature", "claims.html", _claims(contents)),
    ]


def render_page(contents: Contents, page: ReportPage, place: Place) -> str:
    """Return a page of a site as HTML."""
    return _render("site.html", contents, place, pages=[page], title=page.title)


def render_all(contents: Contents, place: Place) -> str:
    """Return all pages in one, with style and script inside."""
    return _render("single.html", contents, place, pages=pages(contents), title="hessfig report")


def asset(name: str) -> str:
    """Return a style or a script of the pages."""
    return files("hessfig.report").joinpath("assets", name).read_text("utf-8")


def _render(template: str, contents: Contents, place: Place, **given: Any) -> str:
    shared = {"contents": contents, "asked": contents.asked, "place": place, "asset": asset, "State": SweepState}
    html = _templates().get_template(template).render(**shared, **given)
    return "\n".join(line.rstrip() for line in html.splitlines() if line.strip()) + "\n"


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("hessfig.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    environment.filters["kind"] = lambda word: page_tables.KINDS.get(str(word), "none")
    return environment


def _prose(text: str) -> Markup:
    """Return a sentence of a docstring with what stands between backticks as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _front(contents: Contents) -> dict[str, Any]:
    tolerance = contents.asked.tolerance
    return {
        "rows": [
            {
                "sweep": sweep,
                "label": contents.label(sweep.name),
                "theory": readings.on_theory(sweep, tolerance),
                "paper": readings.on_paper(sweep, tolerance),
            }
            for sweep in _in_order(contents)
        ],
        "drawn": sum(len(figure.pictures) for figure in contents.figures),
        "times": sorted(filter(None, (str((sweep.manifest or {}).get("end") or "") for sweep in contents.sweeps))),
    }


def _in_order(contents: Contents) -> Iterator[SweepFound]:
    """Yield the sweeps in the order of their figures, then those without one."""
    order = list(dict.fromkeys(drawn.asked.sweep for drawn in contents.figures))
    ranks = {name: rank for rank, name in enumerate(order)}
    yield from sorted(contents.sweeps, key=lambda sweep: (ranks.get(sweep.name, len(ranks)), sweep.name))


def _sweep_page(contents: Contents, sweep: SweepFound) -> ReportPage:
    asked = contents.asked
    figures = contents.figures_of(sweep.name)
    of_sweep = contents.claims.of_sweep(sweep.name)
    caption = "Claims judged from this sweep"
    claims = None if of_sweep is None else page_tables.any_table("claims", caption, _shown(of_sweep))
    given = {
        "sweep": sweep,
        "label": contents.label(sweep.name),
        "figures": figures,
        "short": in_short(sweep),
        "theory": readings.on_theory(sweep, asked.tolerance),
        "paper": readings.on_paper(sweep, asked.tolerance),
        "results": readings.slope_lines(sweep),
        "window": readings.first_window(sweep),
        "outside": readings.outside(sweep, asked.tolerance),
        "slopes": page_tables.slopes_table(sweep),
        "compared": page_tables.compared_table(sweep.compared) if sweep.compared else None,
        "claims": claims,
        "settings": settings_table(sweep, asked.help) if sweep.config else None,
        "manifest": manifest_table(sweep.manifest) if sweep.manifest else None,
        "numbers": [
            [_preview(picture, f"{n}-{m}") for m, picture in enumerate(figure.pictures)]
            for n, figure in enumerate(figures)
        ],
        "reread": run_command(asked.outputs / sweep.name),
    }
    return ReportPage(f"sweep-{sweep.name}", f"{contents.label(sweep.name)}: {sweep.name}", "sweep.html", given)


def _preview(picture: Picture, number: str) -> PageTable | None:
    """Return the numbers of a picture; None if there are too many for a page."""
    caption = f"Numbers of {picture.title}"
    few = len(picture.numbers) <= PREVIEW
    return page_tables.any_table(f"numbers-{number}", caption, picture.numbers) if few else None


def _claims(contents: Contents) -> dict[str, Any]:
    """Return the table of claims, and their rules separately, because a rule is longer than its row."""
    frame = contents.claims.frame
    if frame is None or "rule" not in frame:
        return {"table": _ledger(contents, "claims"), "rules": []}
    short = replace(contents.claims, frame=_shown(frame))
    table = _ledger(replace(contents, claims=short), "claims")
    return {"table": table, "rules": list(zip(frame["id"], frame["rule"], strict=True))}


def _shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the claims in a page's columns: effects with intervals, statements with sources."""
    rows = [
        {
            "claim": cells["id"],
            "verdict": cells["verdict"],
            "effect, 95 % interval": cells["effect"] + (f" [{cells['low']}, {cells['high']}]" if cells["low"] else ""),
            "statement": cells["statement"] + (f" ({cells['source']})" if cells["source"] else ""),
            "note": "; ".join(filter(None, (cells["words"], cells["run"], cells["departures"]))),
            "sweeps": cells["sweeps"],
        }
        for row in frame.to_dict("records")
        for cells in [defaultdict(str, {str(key): _short(cell) for key, cell in row.items()})]
    ]
    return pd.DataFrame(rows)


def _short(cell: Any) -> str:
    """Return a cell as text, a number (a column that has gaps is text) with three digits."""
    with suppress(ValueError):
        return "" if pd.isna(cell) else f"{float(cell):.3g}"
    return str(cell)


def _ledger(contents: Contents, name: str) -> page_tables.PageTable | None:
    ledger = contents.theory if name == "theory" else contents.claims
    captions = {"theory": "Every statement, checked against automatic differentiation", "claims": "Every claim"}
    return None if ledger.frame is None else page_tables.any_table(name, captions[name], ledger.frame)
