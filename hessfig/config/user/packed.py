"""Reads bundles: unpacks an archive, checks its files against their checksums, and checks the code that it names."""

import io
import os
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from hessfig.config.compose.job import PATHS, Job
from hessfig.config.schema import Config
from hessfig.config.user.user_code import files_of, guarded, specs_of
from hessfig.errors import UserError, first_few, plain
from hessfig.files import fingerprint, is_file, read_small
from hessfig.record import MANIFEST, TABLE

OWN, FIGURES, BATCHES, SUMS, REQUIREMENTS = "own", "figures", "batch", "SHA256SUMS", "requirements.txt"
CODE, RUN = "code", "run"  # the setting, and what allows code of the folder
ARCHIVE = ".zip"
_OF_BUNDLES = (OWN, BATCHES, REQUIREMENTS, "CITATION.cff")  # files that only bundles have
_LARGEST_SUMS, _MOST_ENTRIES = 16 * 2**20, 50_000
_LARGEST_FILE, _LARGEST_ARCHIVE = 2**30, 8 * 2**30  # bytes, unpacked
_LARGEST_DIRECTORY, _END = 16 * 2**20, 22  # bytes of the list of entries, and of the record that ends an archive
_LINE = re.compile(r"([0-9a-f]{64})  (\S(?:.*\S)?)")
_PACKAGE, _VERSION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"), re.compile(r"[0-9][A-Za-z0-9.!_-]*")
_CHUNK = 2**20
_THEN = (1980, 1, 1, 0, 0, 0)  # the earliest time of a zip archive
_DAMAGES = (OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error)


@contextmanager
def unpacked_bundle(place: Path) -> Iterator[Path]:
    """Yield the named folder or table; for an archive, its folder, unpacked temporarily.

    Raises UserError for an archive that is damaged, too large, or holds anything else than one folder of plain files,
    and for the folder of a bundle whose files are not those that were packed.
    """
    if place.suffix != ARCHIVE or not place.is_file():
        is_bundle(place if place.is_dir() else place.parent)
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="hessfig-") as temporary:
        folder = _unpacked(place, Path(temporary))
        if not is_bundle(folder):
            raise _no_bundle(place, f"no {SUMS} in it")
        yield folder


def is_bundle(folder: Path) -> bool:
    """Return whether a folder is an unpacked bundle. Raises UserError if its files do not match their checksums."""
    if not os.path.lexists(folder / SUMS):
        left = [name for name in _OF_BUNDLES if os.path.lexists(folder / name)]
        if left and os.path.lexists(folder / MANIFEST):
            raise _no_bundle(folder, f"{', '.join(left)}, but no {SUMS}")
        return False
    sums, files = _sums(folder), set(_files(folder))
    for what, odd in (("no sum names", files - sums.keys()), ("that is not there", sums.keys() - files)):
        if odd:
            raise _no_bundle(folder, f"a file {what}: {first_few(sorted(map(plain, odd)), most=3)}")
    for name, packed in sums.items():
        if (actual := fingerprint(folder / name)) != packed:
            raise UserError(
                f"{folder / plain(name)} is not the file that was packed",
                got=actual,
                allowed=packed,
                remedy="unpack the archive again",
            )
    return True


def _sums(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file by its name, from the file of checksums."""
    try:
        lines = read_small(folder / SUMS, _LARGEST_SUMS).decode("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise _no_bundle(folder, f"{SUMS}: {error}") from error
    matches = [_LINE.fullmatch(line) for line in lines]
    odd = [line for line, match in zip(lines, matches, strict=True) if not (match and _is_inside(match[2]))]
    sums = {match[2]: match[1] for match in matches if match}
    if odd or len(sums) < len(lines) or not {TABLE, MANIFEST} <= sums.keys():
        what = f"the line {plain(odd[0])!r}" if odd else f"{len(sums)} files in {len(lines)} lines"
        raise _no_bundle(folder, f"{SUMS} with {what}")
    return sums


def _files(folder: Path) -> Iterator[str]:
    """Yield every file in a folder except the checksums. Raises UserError for a link, a pipe or a device."""
    for path, folders, names in os.walk(folder):
        for name in (*folders, *names):
            mode = (Path(path) / name).lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise _no_bundle(folder, f"a link, a pipe or a device: {plain(name)}")
        yield from (file for name in names if (file := (Path(path) / name).relative_to(folder).as_posix()) != SUMS)


def requirements_of(manifest: Mapping[str, Any]) -> str:
    """Return the versions of packages that made a table, as requirements for pip.

    Raises UserError for what is no version: nothing else of a manifest is for pip to read.
    """
    named = manifest.get("versions") or {}
    versions = {"hessfig": manifest.get("hessfig"), **(named if isinstance(named, dict) else {"versions": named})}
    packages = {name: str(number).partition("+")[0] for name, number in versions.items() if number}
    for name, number in packages.items():
        if not (_PACKAGE.fullmatch(name) and _VERSION.fullmatch(number)):
            raise UserError(
                f"{MANIFEST}: versions holds what is none",
                got=plain(f"{name}: {number}"),
                allowed="packages and their versions, as `hessfig run` writes them",
                remedy="measure it again (finished cells are reused)",
            )
    return "".join(f"{name}=={number}\n" for name, number in {"matplotlib": version("matplotlib"), **packages}.items())


def in_markdown(text: object) -> str:
    """Return foreign text as one line of a page on which no character of it is markup."""
    return re.sub(r"([\\`*_\[\]<>#|!])", r"\\\1", plain(text))


def zipped(name: str, files: Mapping[str, bytes]) -> bytes:
    """Return an archive of `files` in one folder; equal files make equal bytes (with the same zlib)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(f"{name}/{path}", _THEN)
            entry.external_attr, entry.compress_type, entry.create_system = 0o644 << 16, zipfile.ZIP_DEFLATED, 3
            archive.writestr(entry, files[path])
    return buffer.getvalue()


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    is_plain = str(path) == name and "\\" not in name and ":" not in name and plain(name, most=len(name)) == name
    return is_plain and not path.is_absolute() and ".." not in path.parts and name != "."


def _no_bundle(place: Path, got: str) -> UserError:
    return UserError(
        f"{place} is not a bundle as `hessfig bundle` writes it",
        got=got,
        allowed=f"a folder of plain files, each named in {SUMS} with its SHA-256",
        remedy="unpack the archive again, in an empty folder, or ask for it again",
    )


def _unpacked(archive: Path, into: Path) -> Path:
    """Return the one folder that an archive holds. No entry leads out of it, and none is larger than it claims."""
    try:
        _check_directory(archive)
        with zipfile.ZipFile(archive) as opened:
            entries = [entry for entry in opened.infolist() if not entry.is_dir()]
            (name,) = _checked(entries)
            for entry in entries:
                _unpack(opened, entry, into / entry.filename)
    except _DAMAGES as error:
        raise _no_bundle(archive, f"{type(error).__name__}: {error}"[:200]) from error
    return into / name


def _check_directory(archive: Path) -> None:
    """Raise ValueError for a list of entries that would fill the memory, or that is in the form for such."""
    with archive.open("rb") as handle:
        handle.seek(-min(archive.stat().st_size, _END + 2**16), os.SEEK_END)
        tail = handle.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) < end + _END:
        raise zipfile.BadZipFile("no list of entries at its end")
    size = int.from_bytes(tail[end + 12 : end + 16], "little")
    if size > _LARGEST_DIRECTORY or b"PK\x06\x07" in tail[max(0, end - 20) : end]:
        raise ValueError(f"a list of entries of {size} bytes")


def _checked(entries: Sequence[zipfile.ZipInfo]) -> set[str]:
    """Return the names of the folders at the top. Raises ValueError for what no bundle has."""
    names = [entry.filename for entry in entries]
    if len(entries) > _MOST_ENTRIES or sum(entry.file_size for entry in entries) > _LARGEST_ARCHIVE:
        raise ValueError(f"{len(entries)} files, {sum(entry.file_size for entry in entries)} bytes")
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError("two files of one name")
    for entry in entries:
        kind = stat.S_IFMT(entry.external_attr >> 16)
        is_packed = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not entry.flag_bits & 1
        if not (_is_inside(entry.filename) and kind in (0, stat.S_IFREG) and is_packed):
            raise ValueError(f"the entry {plain(entry.filename)!r}, which is no plain file")
        if entry.file_size > _LARGEST_FILE or "/" not in entry.filename:
            raise ValueError(f"the entry {plain(entry.filename)!r} of {entry.file_size} bytes")
    tops = {name.partition("/")[0] for name in names}
    if len(tops) != 1:
        raise ValueError(f"{len(tops)} folders, where one should be")
    return tops


def _unpack(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, path.open("xb") as target:
        left = entry.file_size
        while chunk := source.read(min(_CHUNK, left + 1)):
            left -= len(chunk)
            if left < 0:
                raise ValueError(f"the entry {plain(entry.filename)!r} is larger than it claims")
            target.write(chunk)


def check_code(job: Job, given: str | None) -> list[str]:
    """Return in lines which files of code a manifest has run, if it names any and `given`, the setting code, allows it.

    Raises UserError where it does not, and for code that is not in the folder of --config-dir, or `own` of the bundle,
    unless it is named in the setting. Nothing is imported.
    """
    specs = list(dict.fromkeys(spec for _, config in job.variants for spec in specs_of(config)))
    named = (given or "").split(",")
    if specs and RUN not in named:
        files = [spec for spec in specs if ".py:" in spec and not _is_file_of(spec, job.own)]
        raise UserError(
            "the manifest names code, and no code is run that the command does not ask for",
            got=first_few([plain(spec) for spec in specs]),
            allowed=f"{CODE}={RUN}, for code in {job.own or 'a folder that --config-dir names'}; other code is named",
            remedy=f"read it, and if you trust it: {_allowing(files)}",
        )
    code: dict[str, Path] = {}
    for spec in specs:
        code |= _code(spec, job.own, is_named=spec in named)
    files = [f"  {fingerprint(path)}  {plain(name)}" for name, path in sorted(code.items())]
    return [f"code that is run ({CODE}={RUN}):", *map(plain, specs), *files] if specs else []


def _allowing(files: Sequence[str]) -> str:
    """Return the words that allow code to run: files found from here by name, others by their folder."""
    here = [spec for spec in files if is_file(Path(spec.rpartition(":")[0]))]
    lost = [plain(spec.rpartition(":")[0]) for spec in files if spec not in here]
    folder = f" --config-dir FOLDER, where {first_few(lost)} lies" if lost else ""
    return f"{CODE}={','.join([RUN, *map(plain, here)])}{folder}"


def _code(spec: str, own: Path | None, *, is_named: bool) -> dict[str, Path]:
    """Return the files of code that a manifest names, and those that it imports, all inside `own`."""
    if is_named or _is_file_of(spec, own):
        with guarded(CODE, spec):
            files = files_of(spec, str(own) if own else None)
        if is_named or (own and files and all(_is_in(path, own) for path in files.values())):
            return files
    raise UserError(
        "the manifest names code that is not in its own folder",
        got=plain(spec),
        allowed=f"a file in {own or f'a folder that --config-dir names, or in the folder {OWN} of a bundle'}",
        remedy=f"--config-dir FOLDER with that file, or name it too, if you trust it: {CODE}={RUN},{plain(spec)}",
    )


def _is_file_of(spec: str, own: Path | None) -> bool:
    """Whether code is that of a file in the folder `own`, by a name that leads nowhere else."""
    place = spec.rpartition(":")[0]
    return own is not None and place.endswith(".py") and _is_inside(place) and _is_in(own / place, own)


def check_paths(job: Job) -> None:
    """Raise UserError for data or weights that the manifest of a bundle names outside of it."""
    for _, config in job.variants:
        for key, place in places_of(config).items():
            if not (job.own and _is_in(Path(place), job.own)):
                raise UserError(
                    f"{key}: the manifest of a bundle names a file that is not in it",
                    got=plain(place),
                    allowed=f"files in {job.own or OWN}",
                    remedy="put the file there (the README of the bundle says where, and its SHA-256)",
                )


def places_of(config: Config) -> dict[str, str]:
    """Return the files and folders that settings name, by setting."""
    named = ((key, getattr(getattr(config, key.split(".")[0]), key.split(".")[1])) for key in PATHS)
    return {key: place for key, place in named if place is not None}


def _is_in(path: Path, folder: Path) -> bool:
    """Whether a file or folder exists, and is inside a folder once links are followed."""
    return path.exists() and path.resolve().is_relative_to(folder.resolve())
