"""Writes the report: a folder of pages, pictures, tables and JSON, or one file with everything in it."""

import hashlib
import json
import math
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hessfig.analysis.presented import as_csv
from hessfig.files import check_writable, fingerprint, unwritable, write_text
from hessfig.record import CHECKSUM, checksum, read_sealed
from hessfig.register import REGISTER, not_replaceable
from hessfig.report.drawn_figures import Contents, gather_contents
from hessfig.report.gathered import FigureRequests
from hessfig.report.pages import (
    EXPLORE,
    LIBRARY,
    LIBRARY_HERE,
    InOneFile,
    InSite,
    asset,
    page_file,
    pages,
    render_all,
    render_page,
)
from hessfig.report.readings import SweepFound, on_paper, on_theory

SEAL = "written-by-hessfig.json"
_TEMPORARY = re.compile(r"[a-z0-9_]{8}(\.old)?")  # as `appearing` names its folders
_OLD = 3600.0  # seconds after which no writer can still be running
_LINE = re.compile(rb"<!-- hessfig report, sha256 ([0-9a-f]{64}) -->\n\Z")


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` when the block ends without an error.

    Raises UserError when anything there was not written by this function, or was changed since, and for a place that
    cannot be written.
    """
    check_folder(folder)
    check_writable(folder.parent)
    try:
        _remove_leftovers(folder)
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            _seal(new, {"unfinished": new.name})
            yield new
            for register in list(new.rglob(REGISTER)):  # the seal says the same of the whole report
                shutil.rmtree(register)
            _seal(new, {"files": {path: fingerprint(new / path) for path in _entries(new)}})
            new.chmod(0o755)
            check_folder(folder)
            _exchange(new, folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def check_folder(folder: Path) -> None:
    """Raise UserError for a folder, a file or a link in which anything is not as `appearing` left it."""
    if (folder.exists() or folder.is_symlink()) and (foreign := _foreign(folder)):
        raise not_replaceable(folder, foreign, "no such folder, an empty one, or a report with nothing else in it")


def with_mark(text: str) -> str:
    """Return a text with a last line by which `check_file` knows it."""
    return f"{text}<!-- hessfig report, sha256 {hashlib.sha256(text.encode()).hexdigest()} -->\n"


def check_file(path: Path) -> None:
    """Raise UserError for anything at `path` that is not a file with the text that `with_mark` returned."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise not_replaceable(path, "a link" if path.is_symlink() else "no file", "no such file, or a report")
    if path.exists() and not _is_marked(path.read_bytes()):
        reason = "no report of this version, or one that was changed since hessfig wrote it"
        raise not_replaceable(path, reason, "no such file, or a report as hessfig left it")


def _is_marked(content: bytes) -> bool:
    line = _LINE.search(content)
    return line is not None and hashlib.sha256(content[: line.start()]).hexdigest() == line[1].decode()


def _foreign(folder: Path) -> str:
    """Return what in a folder is not as `appearing` left it; nothing if all is, or if the folder is empty."""
    if folder.is_symlink() or not folder.is_dir():
        return "a link" if folder.is_symlink() else "no folder"
    entries, seal = _entries(folder), _sealed(folder)
    if not entries and not (folder / SEAL).exists():
        return ""
    if seal is None or "files" not in seal:
        return f"no {SEAL} in it that lists what hessfig wrote"
    for name in entries:
        path = folder / name
        if name not in seal["files"] or path.is_symlink() or not path.is_file():
            return f"{name}, which hessfig did not write"
        if fingerprint(path) != seal["files"][name]:
            return f"{name}, which was changed since hessfig wrote it"
    return ""


def _entries(folder: Path) -> list[str]:
    """Return all files below a folder except the seal; links count as files."""
    paths = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(path.relative_to(folder).as_posix() for path in paths if path != folder / SEAL)


def _seal(folder: Path, content: Mapping[str, Any]) -> None:
    sealed = {**content, CHECKSUM: checksum(content)}
    write_text(folder / SEAL, json.dumps(sealed, indent=1, ensure_ascii=False) + "\n")


def _sealed(folder: Path) -> Mapping[str, Any] | None:
    path = folder / SEAL
    seal = read_sealed(path) if path.is_file() and not path.is_symlink() else {}
    return seal if seal and isinstance(seal.get("files", {}), dict) else None


def _exchange(new: Path, folder: Path) -> None:
    """Rename; the old folder is put back when the new one cannot take its place."""
    aside = new.with_name(f"{new.name}.old")
    if folder.exists():
        folder.rename(aside)
    try:
        new.rename(folder)
    except OSError:
        if aside.exists():
            aside.rename(folder)
        raise
    _remove(aside)


def _remove(folder: Path) -> None:
    """Remove the files that a seal lists, then empty folders, the seal last: no other file is ever removed."""
    sealed = (_sealed(folder) or {}).get("files", {})
    for name in set(_entries(folder)) & set(sealed):  # a forged seal may name files outside the folder
        (folder / name).unlink(missing_ok=True)
    if not _entries(folder):
        (folder / SEAL).unlink(missing_ok=True)
    for path in [*sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True), folder]:
        with suppress(OSError):  # it is not empty, or does not exist
            path.rmdir()


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed writers left, once it is too old to be another's; an old site that lost its place returns."""
    prefix = f".{folder.name}."
    for path in sorted(folder.parent.glob(f"{prefix}*")):
        if not _TEMPORARY.fullmatch(path.name.removeprefix(prefix)) or path.is_symlink() or not path.is_dir():
            continue
        if time.time() - path.stat().st_mtime < _OLD:
            continue
        if (_sealed(path) or {}).get("unfinished") == path.name:
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix == ".old" and not folder.exists() and not _foreign(path):
            path.rename(folder)
        elif not _foreign(path):
            _remove(path)


REPORT, INDEX = "report", "report.json"
ASSETS = ("style.css", "script.js")
_NOT_IN_JSON = ("config", "checksum", "arrays")


@dataclass(frozen=True)
class Written:
    """The written report: the file to open, the numbers of files and bytes, and its contents."""

    path: Path
    files: int
    size: int
    contents: Contents


def check_report_folder(outputs: Path, *, single_file: bool) -> None:
    """Raise UserError if the report's path holds anything but a report unchanged since hessfig wrote it."""
    (check_file if single_file else check_folder)(_place(outputs, single_file=single_file))


def _place(outputs: Path, *, single_file: bool) -> Path:
    return outputs / (f"{REPORT}.html" if single_file else REPORT)


def write_report(asked: FigureRequests, *, single_file: bool = False) -> Written:
    """Write outputs/report/, or outputs/report.html. Raises UserError for a place that cannot be written.

    Until everything is written the old report stays; one whose making fails stays too. What hessfig did not write, or
    what was changed since, is refused before anything is drawn.
    """
    return _write_one_file(asked) if single_file else _write_site(asked)


def _write_site(asked: FigureRequests) -> Written:
    folder = _place(asked.outputs, single_file=False)
    with appearing(folder) as new:
        contents = gather_contents(asked, new)
        for page in pages(contents):
            path = page_file(page.id)
            write_text(new / path, render_page(contents, page, InSite(path.count("/"))))
        for name in (*ASSETS, *(EXPLORE if asked.library else ())):
            write_text(new / "assets" / name, asset(name))
        if asked.library:
            shutil.copyfile(asked.library, new / LIBRARY)
        _write_json(contents, new)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return Written(folder / "index.html", len(files), sum(path.stat().st_size for path in files), contents)


def _write_one_file(asked: FigureRequests) -> Written:
    path = _place(asked.outputs, single_file=True)
    check_file(path)
    check_writable(asked.outputs)
    with tempfile.TemporaryDirectory() as folder:
        contents = gather_contents(asked, Path(folder))
        text = render_all(contents, InOneFile(Path(folder)))
        if asked.library:  # not through the template, which takes the blanks at ends of lines
            text = text.replace(LIBRARY_HERE, f"<script>{asked.library.read_text('utf-8')}</script>")
    check_file(path)
    write_text(path, with_mark(text))
    return Written(path, 1, path.stat().st_size, contents)


def _write_json(contents: Contents, folder: Path) -> None:
    """Write one file per sweep with all that its page says, its slopes as CSV too, and report.json that lists them."""
    for sweep in contents.sweeps:
        place = folder / "sweeps" / sweep.name
        write_text(place.with_name(f"{sweep.name}.json"), _json(_of_sweep(contents, sweep)))
        if sweep.slopes is not None:
            write_text(place / "slopes.csv", as_csv(sweep.slopes))
        if sweep.compared is not None:
            write_text(place / "comparison_curves.csv", as_csv(sweep.compared.curves))
    for ledger, name in ((contents.theory, "statements.csv"), (contents.claims, "claims.csv")):
        if ledger.frame is not None:
            write_text(folder / "tables" / name, as_csv(ledger.frame))
    write_text(folder / INDEX, _json(_index(contents)))


def _index(contents: Contents) -> dict[str, Any]:
    return {
        "hessfig": contents.asked.version,
        "sweeps": {
            sweep.name: {"state": sweep.state.value, "file": f"sweeps/{sweep.name}.json"} for sweep in contents.sweeps
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
        "departures": [vars(departure) for departure in sweep.asked.departures or ()],
        "failures": [vars(failure) for failure in sweep.failures],
        "figures": {
            picture.png: picture.alt for drawn in contents.figures_of(sweep.name) for picture in drawn.pictures
        },
        "slopes": [] if sweep.slopes is None else sweep.slopes.to_dict("records"),
        "settings": sweep.config,
        "manifest": manifest,
    }


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(_finite(content), indent=1, ensure_ascii=False, default=str) + "\n"


def _finite(value: Any) -> Any:
    """Return the value with null in place of numbers that are not finite, because JSON has no nan."""
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
