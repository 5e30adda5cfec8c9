"""A user's own folder of sweeps, figures, models, ... (--config-dir): finds it and checks its names."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from hessfig.config.presets import names
from hessfig.config.schema import GROUPS
from hessfig.errors import UserError
from hessfig.files import read_small

# What may become part of a path: sweeps and figures are names of folders and files.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MOST_BYTES = 200_000
_NULL = "tag:yaml.org,2002:null"  # a file of comments alone
NAME_IN_WORDS = "letters, digits, '.', '_' and '-', beginning with a letter or a digit"


def own_folder(text: str) -> Path:
    """Return the absolute folder.

    Raises UserError when there is none, and for a file in one of its groups that cannot
    be read, has no plain name, or has the name of a shipped one.
    """
    folder = Path(text).absolute()
    if not text or not folder.is_dir():
        raise UserError(
            "--config-dir: there is no such folder",
            got=text or "nothing",
            allowed=f"a folder with YAML files in {', '.join(f'{group}/' for group in GROUPS)}",
            remedy=f"mkdir -p {text or 'FOLDER'}/sweep, and put your sweeps there",
        )
    for group in GROUPS:
        shipped = names(group)
        for path in sorted((folder / group).glob("*.yaml")):
            _check_file(path, group, shipped)
    return folder


def _check_file(path: Path, group: str, shipped: list[str]) -> None:
    if path.stem in shipped:
        raise UserError(
            f"{path}: hessfig already has a {group} of this name",
            got=path.stem,
            allowed=f"names other than {', '.join(shipped)}",
            remedy=f"rename the file: mv {path} {path.with_name(f'my_{path.name}')}",
        )
    if not NAME.fullmatch(path.stem):
        raise UserError(
            f"{path}: a {group} is named by its file",
            got=repr(path.stem),
            allowed=NAME_IN_WORDS,
            remedy="rename the file",
        )
    try:
        root = yaml.compose(
            read_small(path, MOST_BYTES).decode("utf-8"), Loader=yaml.SafeLoader
        )
    except yaml.YAMLError:  # composing it tells why
        return
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read",
            got=str(error),
            allowed=f"a YAML file in UTF-8, of at most {MOST_BYTES} bytes, not nested hundreds of levels deep",
            remedy="fix the file",
        ) from error
    for scalar in _scalars(root, set()):
        _check_spelling(scalar, path)
    if isinstance(root, yaml.ScalarNode) and root.tag != _NULL:
        raise UserError(
            f"{path} does not contain settings by name",
            got=root.value[:100],
            allowed="key: value, as in the shipped files",
            remedy="fix the file",
        )


# Plain words that YAML 1.1 reads as other values than they seem: numbers to the base of
# sixty and of eight, switches.
_SURPRISES = {
    "a number to the base of 60": re.compile(
        r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"
    ),
    "a number to the base of 8": re.compile(r"[-+]?0[0-7_]+"),
    "true or false": re.compile(r"yes|no|on|off", re.IGNORECASE),
}


def _check_spelling(scalar: yaml.ScalarNode, path: Path) -> None:
    """Raise UserError for a plain word that YAML reads as something else: time: 2:30:00 would be 9000."""
    read_as = next(
        (what for what, form in _SURPRISES.items() if form.fullmatch(scalar.value)),
        None,
    )
    if scalar.style is None and read_as:
        raise UserError(
            f"{path}, line {scalar.start_mark.line + 1}: YAML reads this as {read_as}",
            got=scalar.value,
            allowed="a text in quotes, a decimal number, true or false",
            remedy=f'"{scalar.value}" for a text',
        )


def _scalars(node: yaml.Node | None, seen: set[int]) -> Iterator[yaml.ScalarNode]:
    """Yield every scalar in a node, keys too."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.CollectionNode) and id(node) not in seen:
        seen.add(id(node))
        for entry in node.value:
            for child in entry if isinstance(entry, tuple) else (entry,):
                yield from _scalars(child, seen)
