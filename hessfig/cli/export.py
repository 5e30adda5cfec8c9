"""Implements `hessfig export`: writes batch, weights and settings of one network as plain files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hessfig.cli.bundle import ARCHIVE, zipped
from hessfig.cli.flags import Command, own_words, read_command
from hessfig.cli.recorded import CODE, check_code, job_of, manifest_at, named_folder
from hessfig.cli.terminal import print_plain
from hessfig.config.compose.job import Job
from hessfig.errors import UserError, first_few, plain
from hessfig.files import check_place, write_bytes
from hessfig.register import check_replaceable, publish
from hessfig.verbs import VERBS

if TYPE_CHECKING:
    from hessfig.sweep.variant import Variant

T = TypeVar("T")
_EXPORT = "exported network"  # kind of files, for the register


def export_verb(arguments: Sequence[str]) -> int:
    """Write batch, weights and settings of one network as files that can be read without hessfig; print their names.

    Everything is computed before the first file is written. Raises UserError for
    settings of more than one network or of none, and for a folder that holds other
    files.
    """
    import hessfig
    from hessfig.states.exported import plain_files
    from hessfig.sweep.plan import Sweep

    job, given = _asked(read_command(arguments))
    sweep = Sweep(job.variants, job.asked)
    into = _checked_place(Path(given.get("into", f"{sweep.name}_network")))
    variant = _variant(sweep.variants, given)
    at: dict[str, Any] = {
        "sigma": _only("sigma", given, variant.sigmas()),
        "seed": _only("seed", given, variant.seeds()),
        "step": _only("step", given, variant.steps()),
    }
    hashes = {name: variant.short_hash(name) for name in variant.config.quantities}
    named = {
        "sweep": sweep.name,
        "variant": variant.name,
        "num_layers": variant.layout.num_layers,
    }
    files = plain_files(
        variant.config,
        **at,
        said={"hessfig": hessfig.__version__, **named, "config": hashes},
    )
    if into.suffix == ARCHIVE:
        publish({into: zipped(into.stem, files)}, _EXPORT)
    else:
        for name, content in files.items():
            write_bytes(into / name, content)
    size = sum(map(len, files.values())) / 1e6
    point = ", ".join(
        f"{key}={value}" for key, value in at.items() if value is not None
    )
    print_plain(
        f"exported: {', '.join(filter(None, (sweep.name, variant.name, point)))}"
    )
    print_plain(
        f"written: {into} ({len(files)} files, {size:.2f} MB: {', '.join(files)})"
    )
    return 0


PLAIN = "plain"  # as a variant without a name is called on a command line
_CHOICES = ("variant", "num_layers", "sigma", "step", "seed", "into", CODE)


def _asked(command: Command) -> tuple[Job, dict[str, str]]:
    """Return the settings of the table that is named, else those that are given; and the words that choose."""
    if command.shows_settings:
        raise UserError(
            "export writes one network and prints no settings",
            got="--cfg",
            allowed="--config-dir FOLDER",
            remedy="leave the flag out; network.json will contain the settings",
        )
    verb = VERBS["export"]
    words = [word for word in command.words if "=" in word]
    chosen = [word for word in words if word.partition("=")[0] in _CHOICES]
    others = [word for word in words if word not in chosen]
    given = own_words(verb, chosen)
    if len(words) == len(command.words):
        return verb.job(others, command.own), given
    if others:
        raise UserError(
            f"export: {others[0].partition('=')[0]} has no effect on a table that is named",
            got=plain(others[0]),
            allowed=", ".join(_CHOICES),
            remedy="leave it out, or leave the folder out and give settings alone",
        )
    folder, *_ = named_folder(
        "export", [word for word in command.words if "=" not in word]
    )
    job = job_of(manifest_at(folder), command.own)
    check_code(job, given)
    return job.in_folder(str(folder.parent)), given


def _checked_place(into: Path) -> Path:
    """Return where to write. Raises UserError for a folder that holds something, or that could not be one."""
    is_archive = into.suffix == ARCHIVE
    check_place(into.parent if is_archive else into)
    if is_archive:
        check_replaceable([into], _EXPORT)
    if into.is_dir() and (is_archive or any(into.iterdir())):
        raise UserError(
            f"into: {into} already contains files",
            got=f"into={into}",
            allowed="a new or empty folder, or NAME.zip",
            remedy=f"into={into.with_suffix('')}_2",
        )
    return into


def _variant(variants: Sequence[Variant], given: Mapping[str, str]) -> Variant:
    name = _only("variant", given, [variant.name for variant in variants])
    named = [variant for variant in variants if variant.name == name]
    num_layers = _only(
        "num_layers", given, [variant.layout.num_layers for variant in named]
    )
    return next(variant for variant in named if variant.layout.num_layers == num_layers)


def _only(key: str, given: Mapping[str, str], choices: Iterable[T]) -> T:
    """Return the requested value, or the only one. Raises UserError for an unknown value, and for several."""
    values = list(dict.fromkeys(choices))
    text = given.get(key)
    if text is None:
        same = values
    else:
        same = [value for value in values if _is_named(value, text)]
    if len(same) == 1:
        return same[0]
    shown = [
        PLAIN if value == "" else plain(value) for value in values if value is not None
    ]
    example = f"for example {key}={shown[0]}" if shown else "leave it out"
    raise UserError(
        f"export: {key} "
        + (
            "must say which one: there are several"
            if text is None
            else "is none of this sweep's"
        ),
        got=plain(text or f"{len(values)} values"),
        allowed=first_few(shown, most=20)
        if shown
        else f"none: {key} means nothing here",
        remedy=f"{example}{_another(key, text)}" if shown and text else example,
    )


_SETTING_OF = {
    "sigma": "'grid.values=[{}]'",
    "seed": "first_seed={} seeds=1",
    "step": "'state.step=[{}]'",
}


def _another(key: str, text: str) -> str:
    """Return how a network is exported that no sweep lists: by the setting from which this word chooses."""
    setting = _SETTING_OF.get(key, "").format(plain(text))
    if setting:
        return f"; for another one give settings: hessfig export sweep=NAME {setting}"
    return ""


def _is_named(value: object, text: str) -> bool:
    """Whether a text names a value: letter by letter, or the same number; a variant that changes nothing is PLAIN."""
    if isinstance(value, int | float):
        with suppress(ValueError):
            return float(text) == value
    return (PLAIN if value == "" else str(value)) == text
