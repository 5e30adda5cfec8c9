"""A user's own folder of sweeps, figures, models, ... (--config-dir): found, and checked against the shipped names."""

from __future__ import annotations

import re
from pathlib import Path

from hessfig.config.shipped import GROUPS, choices
from hessfig.errors import UserError

# What may become part of a path: sweeps and figures are names of folders and files.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NAME_IN_WORDS = "letters, digits, '.', '_' and '-', beginning with a letter or a digit"


def own_folder(text: str) -> Path:
    """Return the absolute folder.

    Raises UserError when there is none, and for a file in one of its groups that cannot be read, has no plain name, or
    has the name of a shipped one.
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
        shipped = choices(group)
        for path in sorted((folder / group).glob("*.yaml")):
            _check_file(path, group, shipped)
    return folder


def _check_file(path: Path, group: str, shipped: dict[str, str]) -> None:
    if path.stem in shipped:
        raise UserError(
            f"{path}: hessfig has a {group} of this name already",
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
        path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} cannot be read", got=str(error), allowed="a YAML file in UTF-8", remedy="mend the file"
        ) from error
