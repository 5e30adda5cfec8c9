"""The report on disk: a folder of pages, pictures, tables and JSON, or one file with everything in it."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hessfig.files import check_writable, write_text
from hessfig.report.appearing import appearing, check_file, check_folder, marked
from hessfig.report.asked import Asked
from hessfig.report.contents import Contents, gather
from hessfig.report.findings import on_paper, on_theory
from hessfig.report.pages import asset, pages, render_all, render_page
from hessfig.report.places import InOneFile, InSite, page_file
from hessfig.report.sweeps import SweepFound

REPORT, INDEX = "report", "report.json"
ASSETS = ("style.css", "script.js")
_NOT_IN_JSON = ("config", "checksum", "arrays")


@dataclass(frozen=True)
class Written:
    """What was written: the file to open, how many files and bytes, and what stands in it."""

    path: Path
    files: int
    size: int
    contents: Contents


def check_place(outputs: Path, *, single_file: bool) -> None:
    """Raise UserError for what stands where the report would, and is no report as hessfig left it."""
    (check_file if single_file else check_folder)(_place(outputs, single_file=single_file))


def _place(outputs: Path, *, single_file: bool) -> Path:
    return outputs / (f"{REPORT}.html" if single_file else REPORT)


def write_report(asked: Asked, *, single_file: bool = False) -> Written:
    """Write outputs/report/, or outputs/report.html. Raises UserError for a place that cannot be written.

    Until everything is written the old report stays; one whose making fails stays too. What hessfig did not write, or
    what was changed since, is refused before anything is drawn.
    """
    return _write_one_file(asked) if single_file else _write_site(asked)


def _write_site(asked: Asked) -> Written:
    folder = _place(asked.outputs, single_file=False)
    with appearing(folder) as new:
        contents = gather(asked, new)
        for page in pages(contents):
            path = page_file(page.id)
            write_text(new / path, render_page(contents, page, InSite(path.count("/"))))
        for name in ASSETS:
            write_text(new / "assets" / name, asset(name))
        _write_json(contents, new)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return Written(folder / "index.html", len(files), sum(path.stat().st_size for path in files), contents)


def _write_one_file(asked: Asked) -> Written:
    path = _place(asked.outputs, single_file=True)
    check_file(path)
    check_writable(asked.outputs)
    with tempfile.TemporaryDirectory() as folder:
        contents = gather(asked, Path(folder))
        text = render_all(contents, InOneFile(Path(folder)))
    check_file(path)
    write_text(path, marked(text))
    return Written(path, 1, path.stat().st_size, contents)


def _write_json(contents: Contents, folder: Path) -> None:
    """Write a file a sweep with all that its page says, its slopes as CSV too, and report.json that lists them."""
    for sweep in contents.sweeps:
        place = folder / "sweeps" / sweep.name
        write_text(place.with_name(f"{sweep.name}.json"), _json(_of_sweep(contents, sweep)))
        if sweep.slopes is not None:
            write_text(place / "slopes.csv", _csv(sweep.slopes))
        if sweep.compared is not None:
            write_text(place / "comparison_curves.csv", _csv(sweep.compared.curves))
    for ledger, name in ((contents.theory, "statements.csv"), (contents.claims, "claims.csv")):
        if ledger.frame is not None:
            write_text(folder / "tables" / name, _csv(ledger.frame))
    write_text(folder / INDEX, _json(_index(contents)))


def _index(contents: Contents) -> dict[str, Any]:
    return {
        "hessfig": contents.asked.version,
        "sweeps": {
            sweep.name: {"state": sweep.state.value, "file": f"sweeps/{sweep.name}.json"}
            for sweep in contents.sweeps
        },
        "figures": {
            drawn.asked.name: {
                "sweep": drawn.asked.sweep,
                "pictures": [picture.png for picture in drawn.pictures],
                "command": drawn.asked.command,
            }
            for drawn in contents.figures
        },
        "statements": dict(contents.theory.counts),
        "claims": dict(contents.claims.counts),
        "to_do": [{"command": todo.command, "why": todo.why} for todo in contents.todo()],
    }


def _of_sweep(contents: Contents, sweep: SweepFound) -> dict[str, Any]:
    theory, paper = (judge(sweep, contents.asked.tolerance) for judge in (on_theory, on_paper))
    manifest = {key: value for key, value in (sweep.manifest or {}).items() if key not in _NOT_IN_JSON}
    return {
        "sweep": sweep.name,
        "about": sweep.asked.about,
        "state": sweep.state.value,
        "state_in_words": sweep.words,
        "theory": {"verdict": theory.word, "words": theory.words},
        "paper": {"verdict": paper.word, "words": paper.words},
        "command": sweep.asked.command,
        "departures": [vars(one) for one in sweep.asked.departures or ()],
        "failures": [vars(failure) for failure in sweep.failures],
        "figures": {
            picture.png: picture.alt
            for drawn in contents.figures_of(sweep.name)
            for picture in drawn.pictures
        },
        "slopes": [] if sweep.slopes is None else sweep.slopes.to_dict("records"),
        "settings": sweep.config,
        "manifest": manifest,
    }


def _csv(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False, float_format="%.10g", lineterminator="\n"))


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(_finite(content), indent=1, ensure_ascii=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    """Return the same with null for what is not finite: JSON has no nan."""
    if isinstance(value, Mapping):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
