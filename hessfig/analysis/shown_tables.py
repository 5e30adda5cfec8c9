"""Tables as a notebook shows them: value and error first, and no column that says nothing."""

from __future__ import annotations

import html

import pandas as pd

_FIRST = ["value", "error", "quantity", "row", "col", "part"]
_LAST = ["sweep", "config", "seconds", "dtype", "estimator", "num_probes"]
_MOST = 30  # rows


class Table(pd.DataFrame):
    """A table of measured numbers: a pandas DataFrame that shows itself with value and error first."""

    @property
    def _constructor(self) -> type[Table]:
        return Table

    def _repr_html_(self) -> str:
        return table_html(self)


def table_html(table: pd.DataFrame) -> str:
    """Return a table as HTML: value and error first, then what tells the rows apart; the first 30 rows."""
    shown = pd.DataFrame(table).head(_MOST)
    same = [name for name in shown.columns if name not in _FIRST and len(shown) > 1 and len(shown[name].unique()) == 1]
    names = [name for name in shown.columns if name not in {*same, *_FIRST, *_LAST}]
    frame = shown[[*(name for name in _FIRST if name in shown), *names]]
    more = f"<p>{len(table)} rows, of which the first {_MOST} are shown</p>" if len(table) > _MOST else ""
    return frame.to_html(index=False, float_format=lambda number: f"{number:.4g}", na_rep="") + more


def described_html(title: str, facts: dict[str, object]) -> str:
    """Return a title and a list of facts as HTML."""
    rows = "".join(
        f"<tr><th>{html.escape(key)}</th><td>{html.escape(str(fact))}</td></tr>" for key, fact in facts.items()
    )
    return f"<p><b>{html.escape(title)}</b></p><table>{rows}</table>"
