"""Values to compare with: a tidy CSV, the table of another run, or the authors' folder of result files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.results_folder import NothingToCompare, read_results
from hessfig.analysis.manifest import Architectures
from hessfig.errors import UserError
from hessfig.terms import Matrix, Part

__all__ = ["NothingToCompare", "on_grid", "read_reference"]

COLUMNS = ["block", "part", "layer", "repeat", "sigma", "value"]
NUMBER = ["num_layers", "block", "part", "layer", "repeat", "sigma"]
_MATRICES, _PARTS = {matrix.value for matrix in Matrix}, {part.value for part in Part}
_NUMERIC = ["num_layers", "layer", "repeat", "sigma", "value"]


def read_reference(path: Path, table: pd.DataFrame, architectures: Architectures) -> pd.DataFrame:
    """Return the published values with columns num_layers, block, part, layer, repeat, sigma, value.

    `path` is a CSV with the columns above (num_layers may be left out when `table` has one depth), the table.csv
    of another run, or a folder of the authors' pickles. Raises UserError for anything that is not such a thing.
    """
    if path.is_dir():
        return read_results(path, architectures, table["sigma"].unique())
    return _checked(_tidy(_read_csv(path)), path, sorted(table["num_layers"].unique()))


def on_grid(reference: pd.DataFrame, sigma: np.ndarray) -> pd.DataFrame:
    """Return the rows whose sigma is one of the table's, spelt as the table spells it."""
    grid = np.sort(sigma)
    nearest = grid[np.abs(np.log(reference["sigma"].to_numpy()[:, None] / grid)).argmin(axis=1)]
    close = np.isclose(nearest, reference["sigma"], rtol=1e-6, atol=0)
    return reference.assign(sigma=nearest)[close]


def _read_csv(path: Path) -> pd.DataFrame:
    if not path.exists():
        raise UserError(
            "reference: there is no such file or folder", got=path, allowed="a CSV file, or a folder"
        )
    try:
        return pd.read_csv(path)
    except (pd.errors.EmptyDataError, pd.errors.ParserError, UnicodeDecodeError, OSError) as error:
        raise _bad(path, "cannot be read as a table", got=str(error)) from error


def _tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a run's table in the columns of a reference (diagonal blocks of its plain variant); others as they are."""
    if not {"row", "col", "seed", "frob"} <= set(frame.columns):
        return frame
    plain = frame[frame["variant"].isna() & (frame["row"] == frame["col"])]
    return plain.rename(columns={"row": "block", "seed": "repeat", "frob": "value"})


def _checked(frame: pd.DataFrame, path: Path, depths: list[int]) -> pd.DataFrame:
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise _bad(path, f"lacks columns: {', '.join(missing)}", got=", ".join(map(str, frame.columns)))
    if frame.empty:
        raise _bad(path, "has no rows")
    if "num_layers" not in frame.columns:
        frame = frame.assign(num_layers=_only_depth(depths, path))
    _check_content(frame, path)
    return frame[[*NUMBER, "value"]]


def _only_depth(depths: list[int], path: Path) -> int:
    if len(depths) == 1:
        return depths[0]
    raise _bad(path, "needs a column num_layers, for the sweep has several depths", got="no such column")


def _check_content(frame: pd.DataFrame, path: Path) -> None:
    for name in _NUMERIC:
        numbers = pd.to_numeric(frame[name], errors="coerce")
        bad = numbers.isna() & frame[name].notna() if name == "value" else ~np.isfinite(numbers)
        if bad.any():
            raise _bad(path, f"{name} is not a number everywhere", got=repr(frame[name][bad].iloc[0]))
    for name, words in {"block": _MATRICES, "part": _PARTS}.items():
        unknown = sorted(set(map(str, frame[name])) - words)
        if unknown:
            raise _bad(path, f"unknown {name}", got=", ".join(unknown))
    if frame.duplicated(NUMBER).any():
        twice = frame[frame.duplicated(NUMBER)].iloc[0]
        raise _bad(
            path, "two rows claim to be the same number", got=", ".join(f"{n}={twice[n]}" for n in NUMBER)
        )


def _bad(path: Path, what: str, *, got: str | None = None) -> UserError:
    columns = f"a CSV with columns {', '.join(COLUMNS)} and optionally num_layers"
    return UserError(
        f"reference {path}: {what}", got=got, allowed=columns, remedy="mend the file, or give another"
    )
