"""Code of the user's own, named in a setting: FILE.py:NAME, or PACKAGE.MODULE:NAME of an installed package."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from hessfig.errors import UserError, did_you_mean
from hessfig.files import is_file

FORM = "FILE.py:NAME, or PACKAGE.MODULE:NAME of an installed package"


def find(key: str, spec: str | None, config_dir: str | None) -> object:
    """Return what `spec` names, a file being looked for in `config_dir` first, then in the current folder.

    `key` is the setting, for messages. Raises UserError when there is no such thing, or the code fails.
    """
    place, name = _split(key, spec)
    module = _module(key, place, config_dir)
    if not hasattr(module, name):
        there = [word for word in vars(module) if not word.startswith("_")]
        raise UserError(
            f"{key}: {place} has no {name!r}",
            got=spec,
            allowed=", ".join(there) or "a module that defines something",
            remedy=did_you_mean(name, there) or f"define {name} in {place}",
        )
    return getattr(module, name)


def source(spec: str | None, config_dir: str | None) -> str:
    """Return the SHA-256 of the file behind `spec`: another text makes other cells. It must have been found before."""
    place, _ = _split("", spec)
    path = _file(place, config_dir) or getattr(sys.modules.get(place), "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def is_own(spec: str) -> bool:
    """Whether a name is one of the user's own code."""
    return ":" in spec


def failed(key: str, place: str, error: Exception) -> UserError:
    """Return the error to show when the user's code raises."""
    code = place.partition(":")[0]
    run = f"python {code}" if code.endswith(".py") else f"python -c 'import {code}'"
    return UserError(
        f"{key}: {place} fails",
        got=f"{type(error).__name__}: {error}"[:300],
        allowed=FORM,
        remedy=f"mend it: {run}",
    )


def _split(key: str, spec: str | None) -> tuple[str, str]:
    place, colon, name = (spec or "").rpartition(":")
    if not (place and colon and name.isidentifier()):
        raise UserError(
            f"{key} names nothing",
            got=spec,
            allowed=FORM,
            remedy=f"for example {key}=mynet.py:make",
        )
    return place, name


def _module(key: str, place: str, config_dir: str | None) -> ModuleType:
    if place.endswith(".py"):
        return _from_file(key, _found(key, place, config_dir))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not place.startswith(error.name):
            raise failed(key, place, error) from error
        file = f"{place.replace('.', '/')}.py"
        here = f"{key}={file}:NAME (a file here)" if _file(file, config_dir) else f"pip install {place}"
        raise UserError(
            f"{key}: there is no module {place!r}", got=place, allowed=FORM, remedy=here
        ) from error
    except Exception as error:
        raise failed(key, place, error) from error


def _file(place: str, config_dir: str | None) -> Path | None:
    return next((path for path in _candidates(place, config_dir) if is_file(path)), None)


def _candidates(place: str, config_dir: str | None) -> list[Path]:
    return [folder / place for folder in (*([Path(config_dir)] if config_dir else []), Path())]


def _found(key: str, place: str, config_dir: str | None) -> Path:
    found = _file(place, config_dir)
    if found is None:
        tried = " and ".join(str(path) for path in _candidates(place, config_dir))
        raise UserError(
            f"{key}: there is no such file", got=place, allowed=FORM, remedy=f"looked for {tried}"
        )
    return found.resolve()


@cache
def _from_file(key: str, path: Path) -> ModuleType:
    """Run the file under a name that no import finds; its folder is searched last, so that it shadows nothing."""
    name = f"hessfig_own_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise failed(key, str(path), error) from error
    return module
