"""Tables of the theory studies, as their figures read them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hessfig.errors import UserError


def read_study(path: Path) -> pd.DataFrame:
    """Return outputs/<study>/<table>.csv. Raises UserError when it is missing or no table."""
    try:
        return pd.read_csv(path)
    except (OSError, ValueError) as error:  # what pandas raises for broken text are ValueErrors
        raise UserError(
            f"{path} is missing" if not path.exists() else f"{path} is not a study's table",
            got=f"{type(error).__name__}: {error}",
            allowed="a table that `hessfig plot` computed",
            remedy=f"`hessfig plot figure={path.parent.name}` computes it and draws",
        ) from error
