"""The register of files that hessfig wrote: only registered, unchanged files are replaced or removed.

Next to every file for a reader (a table, a picture, an archive) is a folder
`.written-by-hessfig`. It holds a JSON file of the same name with the kind of the file
and its SHA-256.
"""

import hashlib
import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from hessfig.errors import UserError
from hessfig.files import fingerprint, write_text, write_together
from hessfig.record import MANIFEST, read_sealed, sealed_text

REGISTER = ".written-by-hessfig"


def publish(
    contents: Mapping[Path, str | bytes], kind: str, *, known: Collection[str] = ()
) -> list[Path]:
    """Write files of one `kind` that belong together, all or none; return their paths.

    What stands there is replaced if it is in the register as of this kind and
    unchanged, or if it is in none and its SHA-256 is `known` to be that of a file of
    hessfig's. Raises UserError for anything else, and where nothing can be written.
    """
    new = {path: _as_bytes(content) for path, content in contents.items()}
    same = {path for path, content in new.items() if _holds(path, content)}
    check_replaceable(new.keys() - same, kind, known=known)
    for path, content in new.items():
        # It may stay, when this process is killed now.
        before = [fingerprint(path)] if path.exists() else []
        _note(path, kind, [*before, hashlib.sha256(content).hexdigest()])
    write_together({path: content for path, content in new.items() if path not in same})
    return list(new)


def check_replaceable(
    paths: Iterable[Path], kind: str, *, known: Collection[str] = ()
) -> None:
    """Raise UserError for the first path whose present file `publish` would not replace."""
    for path in sorted(paths):
        if reason := _foreign(path, kind, known):
            raise not_replaceable(
                path, reason, f"no such file, or a {kind} as hessfig left it"
            )


def remove_own(path: Path) -> bool:
    """Remove a file if hessfig wrote it and it is unchanged; return whether the path is free now."""
    entry = _entry(path)
    if entry and not _foreign(path, entry["kind"], ()):
        path.unlink(missing_ok=True)
        _place(path).unlink(missing_ok=True)
    return not (path.exists() or path.is_symlink())


def trusted_hashes(folder: Path) -> list[str]:
    """Return the SHA-256 of manifest and table if the manifest's checksum shows that hessfig wrote it."""
    manifest = read_sealed(folder / MANIFEST)
    if manifest:
        return [fingerprint(folder / MANIFEST), str(manifest.get("table_sha256"))]
    return []


def not_replaceable(path: Path, reason: str, allowed: str) -> UserError:
    """Return the error for a path whose file would be replaced although hessfig did not write it."""
    word = shlex.quote(str(path))
    return UserError(
        f"{path} contains what hessfig did not write, and would be replaced",
        got=reason,
        allowed=allowed,
        remedy=f"name another place, or move it away: mv {word} {word}.mine",
    )


def _foreign(path: Path, kind: str, known: Collection[str]) -> str:
    """Return why the file at a path must not be replaced by a file of this kind; empty if it may be."""
    if path.is_symlink() or not path.is_file():
        if path.is_symlink():
            return "a link"
        if path.exists():
            return "a folder, a pipe or a device"
        return ""
    entry = _entry(path)
    sha256 = fingerprint(path)
    if entry is None:
        return "" if sha256 in known else "a file that is in no register of hessfig's"
    if sha256 not in entry["sha256"]:
        return "a file that was changed since hessfig wrote it"
    if entry["kind"] == kind:
        return ""
    return f"a {entry['kind']} of hessfig's, not a {kind}"


def _holds(path: Path, content: bytes) -> bool:
    is_plain = path.is_file() and not path.is_symlink()
    return (
        is_plain
        and path.stat().st_size == len(content)
        and path.read_bytes() == content
    )


def _entry(path: Path) -> dict[str, str] | None:
    """Return the register's entry of a file; nothing if there is no valid entry."""
    entry = read_sealed(_place(path))
    if isinstance(entry.get("kind"), str) and isinstance(entry.get("sha256"), list):
        return entry
    return None


def _note(path: Path, kind: str, hashes: list[str]) -> None:
    content = {"kind": kind, "sha256": sorted(set(hashes))}
    write_text(_place(path), sealed_text(content, indent=None))


def _place(path: Path) -> Path:
    """Return the path of a file's entry in the register."""
    return path.parent / REGISTER / f"{path.name}.json"


def _as_bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else content
