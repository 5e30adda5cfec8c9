"""Pages from templates (the door to Jinja2): everything that comes from a table is escaped."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from hessfig.errors import run_command
from hessfig.report import findings, tables
from hessfig.report.contents import Contents
from hessfig.report.experiment import in_short, manifest_table, settings_table
from hessfig.report.folders import State
from hessfig.report.places import InOneFile, InSite
from hessfig.report.sweeps import SweepFound

PREVIEW = 60  # rows of a picture's numbers that a page shows
Place = InSite | InOneFile


@dataclass(frozen=True)
class Page:
    """A page: its id, its title, its template and what that is given."""

    id: str
    title: str
    template: str
    given: Mapping[str, Any]


def pages(contents: Contents) -> list[Page]:
    """Return the pages of a report, the front page first."""
    return [
        Page("index", "hessfig report", "index.html", _front(contents)),
        *(_sweep_page(contents, sweep) for sweep in contents.sweeps),
        Page("theory", "Statements of the theory", "theory.html", {"table": _ledger(contents, "theory")}),
        Page("claims", "Claims of the literature", "claims.html", _claims(contents)),
    ]


def render_page(contents: Contents, page: Page, place: Place) -> str:
    """Return a page of a site as HTML."""
    return _render("site.html", contents, place, pages=[page], title=page.title)


def render_all(contents: Contents, place: Place) -> str:
    """Return all pages in one, with style and script inside."""
    return _render("single.html", contents, place, pages=pages(contents), title="hessfig report")


def asset(name: str) -> str:
    """Return style.css or script.js."""
    return files("hessfig.report").joinpath("assets", name).read_text("utf-8")


def _render(template: str, contents: Contents, place: Place, **given: Any) -> str:
    shared = {"contents": contents, "asked": contents.asked, "place": place, "asset": asset, "State": State}
    html = _templates().get_template(template).render(**shared, **given)
    return "\n".join(line.rstrip() for line in html.splitlines() if line.strip()) + "\n"


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("hessfig.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["prose"] = _prose
    made.filters["kind"] = lambda word: tables.KINDS.get(str(word), "none")
    return made


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
                "theory": findings.on_theory(sweep, tolerance),
                "paper": findings.on_paper(sweep, tolerance),
            }
            for sweep in _in_order(contents)
        ],
        "drawn": sum(len(figure.pictures) for figure in contents.figures),
        "times": sorted(filter(None, map(_end, contents.sweeps))),
    }


def _in_order(contents: Contents) -> Iterator[SweepFound]:
    """Yield the sweeps in the order of their figures, then those without one."""
    order = list(dict.fromkeys(drawn.asked.sweep for drawn in contents.figures))
    ranks = {name: rank for rank, name in enumerate(order)}
    yield from sorted(contents.sweeps, key=lambda sweep: (ranks.get(sweep.name, len(ranks)), sweep.name))


def _end(sweep: SweepFound) -> str:
    """Return when a sweep was measured; nothing where its manifest does not tell."""
    return str((sweep.manifest or {}).get("end") or "")


def _sweep_page(contents: Contents, sweep: SweepFound) -> Page:
    asked = contents.asked
    figures = contents.figures_of(sweep.name)
    claims = contents.claims.of_sweep(sweep.name)
    given = {
        "sweep": sweep,
        "label": contents.label(sweep.name),
        "figures": figures,
        "short": in_short(sweep),
        "theory": findings.on_theory(sweep, asked.tolerance),
        "paper": findings.on_paper(sweep, asked.tolerance),
        "results": findings.results(sweep),
        "window": findings.first_window(sweep),
        "outside": findings.outside(sweep, asked.tolerance),
        "slopes": tables.slopes_table(sweep),
        "compared": tables.compared_table(sweep.compared) if sweep.compared else None,
        "claims": None
        if claims is None
        else tables.any_table("claims", "Claims judged from this sweep", _shown(claims)),
        "settings": settings_table(sweep, asked.help) if sweep.config else None,
        "manifest": manifest_table(sweep.manifest) if sweep.manifest else None,
        "numbers": [
            [
                tables.any_table(f"numbers-{n}-{m}", f"Numbers of {picture.title}", picture.numbers)
                if len(picture.numbers) <= PREVIEW
                else None
                for m, picture in enumerate(figure.pictures)
            ]
            for n, figure in enumerate(figures)
        ],
        "reread": run_command(asked.outputs / sweep.name),
    }
    return Page(f"sweep-{sweep.name}", f"{contents.label(sweep.name)}: {sweep.name}", "sweep.html", given)


def _claims(contents: Contents) -> dict[str, Any]:
    """Return the table of claims, and their rules apart: a rule is longer than all the rest of its row."""
    frame = contents.claims.frame
    if frame is None or "rule" not in frame:
        return {"table": _ledger(contents, "claims"), "rules": []}
    short = replace(contents.claims, frame=_shown(frame))
    table = _ledger(replace(contents, claims=short), "claims")
    return {"table": table, "rules": list(zip(frame["id"], frame["rule"], strict=True))}


def _shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the claims in columns that a page holds: an effect with its interval, a statement with its source."""
    rows = [
        {
            "claim": said["id"],
            "verdict": said["verdict"],
            "effect, 95 % interval": said["effect"]
            + (f" [{said['low']}, {said['high']}]" if said["low"] else ""),
            "statement": said["statement"] + (f" ({said['source']})" if said["source"] else ""),
            "note": "; ".join(filter(None, (said["words"], said["run"], said["departures"]))),
            "sweeps": said["sweeps"],
        }
        for row in frame.to_dict("records")
        for said in [defaultdict(str, {str(key): _short(cell) for key, cell in row.items()})]
    ]
    return pd.DataFrame(rows)


def _short(cell: Any) -> str:
    """Return a cell as text, a number (a column that has gaps is text) with three digits."""
    with suppress(ValueError):
        return "" if pd.isna(cell) else f"{float(cell):.3g}"
    return str(cell)


def _ledger(contents: Contents, name: str) -> tables.Table | None:
    ledger = contents.theory if name == "theory" else contents.claims
    captions = {
        "theory": "Every statement, checked against automatic differentiation",
        "claims": "Every claim",
    }
    return None if ledger.frame is None else tables.any_table(name, captions[name], ledger.frame)
