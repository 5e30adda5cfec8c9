"""The function behind model.factory: found by file or by module, called with what it takes."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from hessfig.config.schema import Config
from hessfig.errors import UserError, did_you_mean

_FORM = "FILE.py:FUNCTION, or PACKAGE.MODULE:FUNCTION of an installed package"
_RETURNS = "a function that returns (network, inputs, targets, loss) or (..., weights), or a hessfig.Problem"


def find_factory(config: Config) -> Callable[..., Any]:
    """Return the function that model.factory names. Raises UserError when there is none."""
    place, name = _split(config.model.factory)
    module = _module(place, config.config_dir)
    found = getattr(module, name, None)
    if not callable(found):
        functions = [
            key for key, value in vars(module).items() if callable(value) and not key.startswith("_")
        ]
        raise UserError(
            f"model.factory: {place} has no function {name!r}",
            got=config.model.factory,
            allowed=", ".join(functions) or "a module with a function",
            remedy=did_you_mean(name, functions) or f"define {name} in {place}",
        )
    return found


def call_factory(config: Config, sigma: float | None, seed: int) -> Any:
    """Call the factory with model.options, and with sigma and seed if it takes them."""
    factory = find_factory(config)
    takes = inspect.signature(factory).parameters
    offered = {"sigma": 1.0 if sigma is None else sigma, "seed": seed}
    words = {key: value for key, value in offered.items() if key in takes} | dict(config.model.options)
    try:
        inspect.signature(factory).bind(**words)
    except TypeError as error:
        raise UserError(
            f"model.factory: {config.model.factory} cannot be called: {error}",
            got=", ".join(f"{key}={value}" for key, value in words.items()) or "no arguments",
            allowed=f"{inspect.signature(factory)}",
            remedy="give its arguments as model.options={NAME: VALUE}",
        ) from error
    try:
        return factory(**words)
    except UserError:
        raise
    except Exception as error:
        raise _failed(str(config.model.factory), error) from error


def source_of(config: Config) -> str:
    """Return the SHA-256 of the file that holds the factory: another file's text makes other cells."""
    path = inspect.getsourcefile(find_factory(config))
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""


def _split(factory: str | None) -> tuple[str, str]:
    place, colon, name = (factory or "").rpartition(":")
    if not (place and colon and name.isidentifier()):
        raise UserError(
            "model.factory does not name a function",
            got=factory,
            allowed=_FORM,
            remedy=f"for example model.factory=mynet.py:make, {_RETURNS}",
        )
    return place, name


def _module(place: str, config_dir: str | None) -> ModuleType:
    if place.endswith(".py"):
        return _from_file(_found_file(place, config_dir))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not place.startswith(error.name):
            raise _failed(place, error) from error
        file = f"{place.replace('.', '/')}.py"
        here = (
            f"model.factory={file}:FUNCTION (a file here)" if Path(file).is_file() else f"pip install {place}"
        )
        raise UserError(
            f"model.factory: there is no module {place!r}", got=place, allowed=_FORM, remedy=here
        ) from error
    except Exception as error:
        raise _failed(place, error) from error


def _found_file(place: str, config_dir: str | None) -> Path:
    folders = [Path(config_dir)] if config_dir else []
    tried = [folder / place for folder in (*folders, Path())]
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        raise UserError(
            "model.factory: there is no such file",
            got=place,
            allowed=_FORM,
            remedy=f"looked for {' and '.join(str(path) for path in tried)}",
        )
    return found.resolve()


@cache
def _from_file(path: Path) -> ModuleType:
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
        raise _failed(str(path), error) from error
    return module


def _failed(place: str, error: Exception) -> UserError:
    return UserError(
        f"model.factory: {place} fails",
        got=f"{type(error).__name__}: {error}"[:300],
        allowed=_FORM,
        remedy=f"mend it: python {place}"
        if place.endswith(".py")
        else f"mend it: python -c 'import {place}'",
    )
