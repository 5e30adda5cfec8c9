"""Implements `hessfig bundle`: packs a table and what is needed to measure it again into a zip archive."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hessfig.analysis.arrays import entries_of
from hessfig.cli.recorded import code_of, job_of, manifest_at, named_folder
from hessfig.cli.terminal import print_plain
from hessfig.config.schema import GROUPS
from hessfig.config.user.user_code import files_of
from hessfig.errors import UserError, plain
from hessfig.record import MANIFEST, TABLE
from hessfig.register import check_replaceable, publish

ARCHIVE = ".zip"
SUMS = "SHA256SUMS"
OWN = "own"
_KIND = "bundle"
_EARLIEST = (1980, 1, 1, 0, 0, 0)  # of a zip archive: equal files make equal archives


def bundle_verb(arguments: Sequence[str]) -> int:
    """Write NAME.zip with table, manifest, arrays, the user's code, requirements and checksums; print its contents."""
    folder, own, given = named_folder("bundle", arguments)
    path = Path(given.get("file", f"{folder.resolve().name}{ARCHIVE}"))
    if path.suffix != ARCHIVE:
        raise UserError(
            "file names an archive",
            got=f"file={path}",
            allowed="NAME.zip",
            remedy="file=NAME.zip",
        )
    check_replaceable([path], _KIND)
    files = packed_files(folder, own)
    content = zipped(folder.resolve().name, files)
    publish({path: content}, _KIND)
    print_plain(f"written: {path} ({len(files)} files, {len(content) / 1e6:.2f} MB)")
    print_plain(f"SHA-256: {hashlib.sha256(content).hexdigest()}")
    return 0


def packed_files(folder: Path, own: Path | None) -> dict[str, bytes]:
    """Return the files of a bundle by name. Raises UserError for a table or an array that is missing or altered."""
    manifest = manifest_at(folder)
    names = [TABLE, MANIFEST, *(entry["file"] for entry in entries_of(folder))]
    files = {name: (folder / name).read_bytes() for name in names}
    files |= {
        f"{OWN}/{name}": path.read_bytes() for name, path in _own_files(manifest, own)
    }
    files["requirements.txt"] = _requirements(manifest).encode()
    files["README.md"] = _readme(
        folder.resolve().name, manifest, has_code=any(OWN in name for name in files)
    ).encode()
    sums = [
        f"{hashlib.sha256(content).hexdigest()}  {name}\n"
        for name, content in sorted(files.items())
    ]
    return {**files, SUMS: "".join(sums).encode()}


def _own_files(
    manifest: Mapping[str, Any], own: Path | None
) -> Iterator[tuple[str, Path]]:
    """Yield the user's code that the settings name, and the settings files of --config-dir."""
    for spec in code_of(job_of(manifest, own)):
        yield from sorted(files_of(spec, str(own) if own else None).items())
    if own is None:
        return
    for group in GROUPS:
        for path in sorted((own / group).glob("*.yaml")):
            yield f"{group}/{path.name}", path


def _requirements(manifest: Mapping[str, Any]) -> str:
    """Return the versions that made the table, as requirements for pip. hessfig itself is installed from its source."""
    versions = manifest.get("versions") or {}
    lines = []
    for name, number in sorted(versions.items()):
        if number:
            lines.append(f"{name}=={str(number).partition('+')[0]}")
    return "".join(f"{plain(line)}\n" for line in lines)


def _readme(name: str, manifest: Mapping[str, Any], *, has_code: bool) -> str:
    command = plain(str(manifest.get("command") or ""), most=2000)
    if has_code and "--config-dir" not in command:
        config_dir = f" --config-dir {name}/{OWN}"
    else:
        config_dir = ""
    return _README.format(
        name=name,
        version=plain(manifest.get("hessfig")),
        command=f"{command}{config_dir}",
    )


_README = """# {name}

A table measured with hessfig {version}. `sha256sum -c SHA256SUMS` checks the files.

| file | content |
|---|---|
| `table.csv` | one row per measured number, with its error, seed and status |
| `manifest.json` | every setting, versions, and the hash of the table |
| `cells/` | arrays (spectra, blocks) that belong to the table, where there are any |
| `own/` | code and settings that are not part of hessfig: read them before you run them |
| `requirements.txt` | versions of the libraries that made the table |

To measure the table again, take a copy of hessfig's repository, version {version}: it is on no package index.
Install it there with these versions (`pip install . -r FOLDER/requirements.txt`), then run, from the folder above this
one,

```sh
{command} output_dir=again
hessfig compare again/{name} {name}
```
"""


def zipped(name: str, files: Mapping[str, bytes]) -> bytes:
    """Return an archive of `files` in one folder."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            archive.writestr(
                zipfile.ZipInfo(f"{name}/{path}", _EARLIEST),
                content,
                zipfile.ZIP_DEFLATED,
            )
    return buffer.getvalue()
