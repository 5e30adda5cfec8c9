"""A sweep's settings and provenance as a reader wants them: the few that matter first, then all, then the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from hessfig.record import FROBENIUS
from hessfig.report.sweeps import SweepFound
from hessfig.report.tables import Cell, Table

_SHOWN = 400
_LEFT_OUT = ("config", "variants", "arrays", "checksum", "sweep")
_NETWORK = ("kind", "d_model", "n_layers", "n_heads", "attention", "norm", "mlp")
_TASK = ("data", "digits", "batch_size", "loss", "scored")
_WORDS = {"n_layers": "layers", "n_heads": "heads", "batch_size": "batch", "kind": "", "data": ""}


def in_short(sweep: SweepFound) -> list[tuple[str, str]]:
    """Return what was measured on what, a few lines with a name each."""
    if sweep.run is None:
        return []
    config, table = sweep.config, sweep.run.table
    lines = {
        "network": _listed(config.get("model", {}), _NETWORK, config),
        "data": _listed(config.get("task", {}), _TASK, config),
        "varied": _varied(config),
        "measured": _measured(table),
        "places": _places(table),
        "seeds": str(table["seed"].nunique()),
        "estimator": ", ".join(
            [*map(str, table["estimator"].unique()), *map(str, table["dtype"].unique()), _probes(table)]
        ).strip(", "),
    }
    return [(name, words) for name, words in lines.items() if words]


def settings_table(sweep: SweepFound, about: Mapping[str, str]) -> Table:
    """Return every setting of the manifest with its line of help, and the preset's value where it is another one."""
    usual = {one.key: one.usual for one in sweep.asked.departures or ()}
    rows = [
        [Cell(key), Cell(text(value)), Cell(usual.get(key, "")), Cell(about.get(key, ""))]
        for key, value in flat(sweep.config)
    ]
    titles = ["setting", "value", "in the preset", "meaning"]
    return Table("settings", "Every setting of this run", titles, [False] * 4, rows)


def manifest_table(manifest: Mapping[str, Any]) -> Table:
    """Return the provenance in a manifest: versions, times, counts; not the settings, which have a table."""
    rows = [
        [Cell(key), Cell(text(value))]
        for key, value in flat({key: value for key, value in manifest.items() if key not in _LEFT_OUT})
    ]
    return Table("manifest", "Manifest", ["entry", "value"], [False, False], rows)


def flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested settings."""
    for key, value in section.items():
        if isinstance(value, Mapping) and value and not prefix.endswith("vary."):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def text(value: Any) -> str:
    """Return a setting's value as one would type it, cut where it is very long."""
    words = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace('"', "")
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


def _listed(section: Mapping[str, Any], names: tuple[str, ...], config: Mapping[str, Any]) -> str:
    """Return 'd_model 16, heads 1': what is set, what a sweep varies as the range it has there."""
    group = "model" if names is _NETWORK else "task"
    vary = config.get("sweep", {}).get("vary") or {}
    shown = {name: vary.get(f"{group}.{name}", section.get(name)) for name in names}
    return ", ".join(
        f"{_WORDS.get(name, name)} {text(value).strip('[]')}".strip()
        for name, value in shown.items()
        if value is not None
    )


def _varied(config: Mapping[str, Any]) -> str:
    vary = config.get("sweep", {}).get("vary") or {}
    return ", ".join(f"{key}: {text(values).strip('[]')}" for key, values in vary.items())


def _measured(table: pd.DataFrame) -> str:
    quantities = ", ".join(map(_quantity, table["quantity"].unique()))
    blocks = [row if row == col else f"({row}, {col})" for row, col in _pairs(table)]
    more = f" and {len(blocks) - 6} more" if len(blocks) > 6 else ""
    parts = ", ".join(part for part in table["part"].unique() if part)
    of = f" of {', '.join(blocks[:6])}{more}" if any(blocks) else ""
    return f"{quantities}{of}" + (f"; {parts}" if parts else "")


def _quantity(name: str) -> str:
    return "Frobenius norms" if name == FROBENIUS else name.replace("_", " ")


def _pairs(table: pd.DataFrame) -> list[tuple[str, str]]:
    return list(table[["row", "col"]].drop_duplicates().itertuples(index=False, name=None))


def _places(table: pd.DataFrame) -> str:
    shown = []
    for name, symbol in (("sigma", "σ"), ("step", "step")):
        values = sorted(table[name].dropna().unique())
        if len(values) == 1:
            shown.append(f"{symbol} = {values[0]:g}")
        elif values:
            shown.append(f"{symbol} from {values[0]:g} to {values[-1]:g} ({len(values)} values)")
    return ", ".join(shown)


def _probes(table: pd.DataFrame) -> str:
    counts = sorted({int(count) for count in table["num_probes"] if count > 0})
    return (
        f"{counts[0]} to {counts[-1]} probes" if len(counts) > 1 else f"{counts[0]} probes" if counts else ""
    )
