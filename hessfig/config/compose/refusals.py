"""Turns errors of Hydra, OmegaConf and YAML into UserErrors: the key, its file, allowed values, and a remedy."""

import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra.errors import HydraException
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    OmegaConfBaseException,
)

from hessfig.config.presets import names
from hessfig.config.schema import GROUPS, Config
from hessfig.config.settings import is_setting, meant, settings, siblings, wrong_kind
from hessfig.errors import UserError, unknown_name
from hessfig.record import MANIFEST

REFUSED = (
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    ValueError,
    RecursionError,
)


def composition_error(
    error: BaseException, words: Sequence[str], own: Path | None
) -> UserError:
    """Return the UserError for one of REFUSED, raised when composing `words` with the user's folder `own`."""
    if isinstance(error, yaml.YAMLError):
        return _no_yaml(error)
    cause = _cause(error)
    file = _file(str(error), words, own)
    if isinstance(cause, ConfigKeyError | ConfigAttributeError):
        return unknown_key(str(cause.full_key), file)
    if isinstance(cause, InterpolationResolutionError):
        return _interpolation(str(cause.full_key), str(cause).splitlines()[0], words)
    missing = re.search(r"Could not (?:find|load|override) '([^']+)'", str(error))
    if missing:
        return _missing_choice(missing.group(1), file, own, words)
    return _value(cause, file, words, own)


def lone_word(word: str) -> UserError:
    """Return the error for a word without a value, such as a choice without its group."""
    whole = [
        f"{group}={word}"
        for group in ("sweep", "figure", "model")
        if word in names(group)
    ]
    remedy = meant(word)
    if word in GROUPS or word in settings():
        remedy = f"{word}=VALUE; `hessfig run --help` lists the values"
    elif whole:
        remedy = f"did you mean {' or '.join(whole)}?"
    return UserError(
        f"cannot read {word!r}: it has no value",
        got=word,
        allowed="key=value",
        remedy=remedy,
    )


def _no_yaml(error: yaml.YAMLError) -> UserError:
    file, where = "a configuration file", "some line"
    if mark := getattr(error, "problem_mark", None):
        file = mark.name
        where = f"line {mark.line + 1}, column {mark.column + 1}"
    return UserError(
        f"{file} is not YAML ({where})",
        got=getattr(error, "problem", None) or str(error).splitlines()[0],
        allowed="key: value, lists in [...], every key once",
        remedy=f"fix {where}",
    )


def _cause(error: BaseException) -> BaseException:
    """Return OmegaConf's own exception behind Hydra's, if there is one."""
    behind = (error, error.__cause__, error.__context__)
    return next(
        (cause for cause in behind if isinstance(cause, OmegaConfBaseException)), error
    )


def _file(text: str, words: Sequence[str], own: Path | None) -> Path | None:
    """Return the user's file that Hydra's error names, or (for an error of the composition) the chosen file."""
    blamed = re.match(r"In '([^']+)'", text)
    if own is None or blamed is None:
        return None
    named = [blamed.group(1)]
    if named == ["config"]:
        named = [
            word.replace("=", "/").replace("'", "")
            for word in words
            if word.partition("=")[0] in GROUPS
        ]
    for name in named:
        if (path := own / f"{name}.yaml").exists():
            return path
    return None


def _beginning(file: Path | None) -> str:
    """Return how a message about a file begins."""
    return f"{file}: " if file else ""


def unknown_key(key: str, file: Path | None = None, *, got: str = "") -> UserError:
    """Return the error for a key of the command line (the word `got`), or of a user's file, that is not a setting."""
    leaf = key.rpartition(".")[2]
    remedy = meant(key)
    if (
        file is not None
        and key.partition(".")[0] in GROUPS
        and (is_setting(leaf) or leaf in GROUPS)
    ):
        remedy = (
            f"begin the file with '# @package _global_' if {leaf} is at its top level"
        )
    return UserError(
        f"{_beginning(file)}there is no setting {key!r}",
        got=got or key,
        allowed=", ".join(siblings(key)),
        remedy=remedy,
    )


def _interpolation(key: str, why: str, words: Sequence[str]) -> UserError:
    return UserError(
        f"{key}: {why[0].lower()}{why[1:]}",
        got=_word(key, words) or key,
        allowed="a plain value, or ${KEY} with the key of another setting",
        remedy="write the value itself",
    )


def _missing_choice(
    path: str, file: Path | None, own: Path | None, words: Sequence[str]
) -> UserError:
    group, _, choice = path.rpartition("/")
    known = names(group, own) if group in GROUPS else GROUPS
    if file is not None:
        what = f"{file}: there is no {group or 'group'} {choice!r}"
        return unknown_name(
            what, choice, known, "fix the file's list of defaults", got=path
        )
    otherwise = f"--config-dir FOLDER, a folder of yours with {group}/{choice}.yaml"
    if not choice:
        otherwise = f"for example {group}={known[0]}"
    what, got = f"there is no {group} {choice!r}", f"{group}={choice}"
    manifest = _manifest_of(choice, words)
    if group == "sweep" and manifest is not None:
        remedy = f"the settings of its run once more: `command` in {manifest}"
        return UserError(what, got=got, allowed=", ".join(known), remedy=remedy)
    return unknown_name(what, choice, known, otherwise, got=got)


def _manifest_of(name: str, words: Sequence[str]) -> Path | None:
    """Return the manifest of a run whose sweep.name is `name`; None if there is none."""
    folder = Config.output_dir
    for word in words:
        if word.startswith("output_dir="):
            folder = word.partition("=")[2]
    manifest = Path(folder) / name / MANIFEST
    if name and manifest.is_file():
        return manifest
    return None


def _value(
    cause: BaseException, file: Path | None, words: Sequence[str], own: Path | None
) -> UserError:
    key = re.sub(r"\[.*", "", str(getattr(cause, "full_key", None) or ""))
    got = _word(key, words) or _said(key, str(cause))
    if key in settings():
        return wrong_kind(key, got, where=_beginning(file))
    why = str(cause).splitlines()[0]
    allowed = "key=value"
    if isinstance(cause, RecursionError):
        why = "a file names itself in its list of defaults, or values are nested too deeply"
    if file is not None:
        why = f"{file}: it does not contain settings by name"
    if own is not None:
        allowed = "key: value, and a list of defaults, as in the shipped files"
    return UserError(
        why, got=got, allowed=allowed, remedy="`hessfig run --help` lists the settings"
    )


def _said(key: str, text: str) -> str:
    """Return the value that OmegaConf's message quotes."""
    quoted = text.splitlines()[0]
    if value := re.search(r"[Vv]alue(?: '(.*)' of type|: (.*))|assign (\w+)", text):
        quoted = next(filter(None, value.groups()), "")
    return f"{key}: {quoted}".removeprefix(": ")


def _word(key: str, words: Sequence[str]) -> str | None:
    return next(
        (word for word in reversed(words) if key and word.startswith(f"{key}=")), None
    )
