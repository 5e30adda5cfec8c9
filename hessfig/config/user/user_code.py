"""Loads a user's own code, named in a setting: FILE.py:NAME, or PACKAGE.MODULE:NAME of an installed package."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import machinery
from importlib.machinery import ExtensionFileLoader, FileFinder, SourceFileLoader
from modulefinder import ModuleFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import hessfig
from hessfig.errors import UserError, did_you_mean
from hessfig.files import fingerprint, identity, is_file

if TYPE_CHECKING:
    from hessfig.config.schema import Config

FORM = "FILE.py:NAME, or PACKAGE.MODULE:NAME of an installed package"
_RUN: dict[
    str, str
] = {}  # the SHA-256 of each file that this process has run, as it was then


def find(key: str, spec: str | None, config_dir: str | None) -> object:
    """Return the object that `spec` names; a file is searched in `config_dir`, then in the current folder.

    `key` is the setting, for messages. Raises UserError when there is no such thing, or
    the code fails.
    """
    place, name = _split(key, spec)
    module = _module(key, place, config_dir)
    if not hasattr(module, name):
        defined = [word for word in vars(module) if not word.startswith("_")]
        raise UserError(
            f"{key}: {place} has no {name!r}",
            got=spec,
            allowed=", ".join(defined) or "a module that defines something",
            remedy=did_you_mean(name, defined) or f"define {name} in {place}",
        )
    return getattr(module, name)


def code_hash(spec: str | None, config_dir: str | None) -> str:
    """Return a hash of the code behind `spec`, so that changed code makes new cells; call `find` first.

    A file counts with the modules in its folder (or on PYTHONPATH) that it imports,
    wherever in its text; a module of an installed package with the whole package.
    """
    place, _ = _split("", spec)
    path = _file(place, config_dir)
    files = _imported(path.resolve()) if path else _installed(place)
    hashes = sorted(_RUN.get(str(file)) or fingerprint(file) for file in files)
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def files_of(spec: str, config_dir: str | None) -> dict[str, Path]:
    """Return the user's files behind `spec`, by the names under which a folder of their own would be found by it.

    Empty for a module of an installed package. An absolute file is named by its last
    part, and so are modules from elsewhere (PYTHONPATH), next to the file that imports
    them.
    """
    place, _ = _split("", spec)
    path = _file(place, config_dir)
    if path is None:
        return {}
    named = Path(place)
    if named.is_absolute() or ".." in named.parts:
        named = Path(named.name)
    home = path.resolve().parent
    return {
        str(named.parent / _under(file, home)): file
        for file in _imported(path.resolve())
    }


def _under(file: Path, home: Path) -> Path:
    """Return a file's path from the folder that its name is imported from: `home`, or one on PYTHONPATH."""
    for entry in (str(home), *_python_path()):
        if file.is_relative_to(folder := Path(entry).resolve()):
            return file.relative_to(folder)
    return Path(file.name)


def _python_path() -> list[str]:
    return [
        entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry
    ]


def is_own(spec: str) -> bool:
    """Whether a name refers to the user's own code."""
    return ":" in spec


def specs_of(config: Config) -> list[str]:
    """Return the names of the user's own code in some settings: a factory and quantities."""
    specs = list(filter(is_own, config.quantities))
    if config.model.factory:
        specs.insert(0, config.model.factory)
    return specs


@contextmanager
def guarded(key: str, place: str) -> Iterator[None]:
    """Turn any exception of the user's code, including sys.exit, into a UserError that says where."""
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise failed(key, place, error) from error


def failed(key: str, place: str, error: BaseException) -> UserError:
    """Return the error for an exception of the user's code."""
    code = place.partition(":")[0]
    allowed = FORM
    run = f"python -c 'import {code}'"
    if code.endswith(".py"):
        run = f"python {code}"
    if isinstance(error, SystemExit):
        allowed = "code that runs to its end, without sys.exit"
    where = traceback.extract_tb(error.__traceback__)[-1]
    return UserError(
        f"{key}: {place} fails",
        got=f"{type(error).__name__}: {error}"[:300]
        + f" ({where.name}, {Path(where.filename).name}:{where.lineno})",
        allowed=allowed,
        remedy=f"fix it: {run}",
    )


def _split(key: str, spec: str | None) -> tuple[str, str]:
    place, colon, name = (spec or "").rpartition(":")
    if not (place and colon and name.isidentifier()):
        raise UserError(
            f"{key} does not name a function",
            got=spec,
            allowed=FORM,
            remedy=f"for example {key}=mynet.py:make",
        )
    return place, name


def _module(key: str, place: str, config_dir: str | None) -> ModuleType:
    if place.endswith(".py"):
        path = _found(key, place, config_dir)
        return _from_file(key, path, identity(path))
    with guarded(key, place):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not place.startswith(error.name):
                raise
            file = f"{place.replace('.', '/')}.py"
            remedy = "install your package, or name a file"
            if _file(file, config_dir):
                remedy = f"{key}={file}:NAME (a file here)"
            raise UserError(
                f"{key}: there is no module {place!r}",
                got=place,
                allowed=FORM,
                remedy=remedy,
            ) from error


def _file(place: str, config_dir: str | None) -> Path | None:
    return next(
        (path for path in _candidates(place, config_dir) if is_file(path)), None
    )


def _candidates(place: str, config_dir: str | None) -> list[Path]:
    return [folder / place for folder in _searched(config_dir)]


def _searched(config_dir: str | None) -> list[Path]:
    """Return the folders in which a file of one's own is looked for, the first one first."""
    if config_dir:
        return [Path(config_dir), Path()]
    return [Path()]


def _found(key: str, place: str, config_dir: str | None) -> Path:
    file = _file(place, config_dir)
    if file is None:
        tried = " and ".join(str(path) for path in _candidates(place, config_dir))
        raise UserError(
            f"{key}: there is no such file",
            got=place,
            allowed=FORM,
            remedy=f"looked for {tried}",
        )
    return file.resolve()


@cache
def _from_file(key: str, path: Path, identity: tuple[int, ...]) -> ModuleType:
    """Run the file under a name that no import finds; its folder is searched last, so that it shadows nothing."""
    del identity
    name = f"hessfig_own_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(
        name, path, loader=_FromText(name, str(path))
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.append(folder)
        extensions = (ExtensionFileLoader, machinery.EXTENSION_SUFFIXES)
        sys.path_importer_cache[folder] = FileFinder(
            folder, extensions, (_FromText, machinery.SOURCE_SUFFIXES)
        )
    sys.modules[name] = module  # dataclasses look their module up there
    with guarded(key, str(path)), contextlib.chdir(Path.cwd()):
        spec.loader.exec_module(module)
    return module


class _FromText(SourceFileLoader):
    """Runs the text that is there, and notes its hash; bytecode, perhaps of an older text, is neither kept nor run."""

    def path_stats(self, path: str) -> Mapping[str, Any]:
        raise OSError(f"{path}: no bytecode")

    def get_data(self, path: str) -> bytes:
        text = super().get_data(path)
        _RUN[str(Path(path).resolve())] = hashlib.sha256(text).hexdigest()
        return text


def _imported(path: Path) -> set[Path]:
    """Return a file and the modules that it imports, directly or not, as far as they are the user's own."""
    own = str(Path(hessfig.__file__).parents[1])
    others = [entry for entry in _python_path() if entry != own]
    finder = ModuleFinder([str(path.parent), *others])
    finder.run_script(str(path))
    files = (getattr(module, "__file__", None) for module in finder.modules.values())
    return {path, *(Path(file).resolve() for file in files if file)}


def _installed(place: str) -> set[Path]:
    """Return the files of the package that holds module `place`, or of that module alone."""
    package = sys.modules[place.partition(".")[0]]
    inside = set[Path]()
    for folder in getattr(package, "__path__", ()):
        inside |= {*Path(folder).rglob("*.py")}
    if not inside and package.__file__:
        return {Path(package.__file__)}
    return inside
