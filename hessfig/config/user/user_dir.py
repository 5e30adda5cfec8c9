"""A user's own folder of sweeps, figures, models, ... (--config-dir): finds it and checks its names."""

import re
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
        shipped = names(group)
        for path in sorted((folder / group).glob("*.yaml")):
            _check_file(path, group, shipped)
    return folder


def _check_file(path: Path, group: str, shipped: list[str]) -> None:
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
        root = yaml.compose(read_small(path, MOST_BYTES).decode("utf-8"), Loader=yaml.SafeLoader)
    except yaml.YAMLError:  # composing it tells why
        return
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read",
            got=str(error),
            allowed=f"a YAML file in UTF-8, of at most {MOST_BYTES} bytes, not nested hundreds of levels deep",
            remedy="fix the file",
        ) from error
    if isinstance(root, yaml.ScalarNode) and root.tag != _NULL:
        raise UserError(
            f"{path} does not hold settings by name",
            got=root.value[:100],
            allowed="key: value, as in the shipped files",
            remedy="fix the file",
        )
