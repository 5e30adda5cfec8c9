"""An outputs folder with all that a report may meet: whole, half-finished, failed, foreign and hostile sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from hessfig.cli.main import main
from hessfig.config.compose.job import compose
from hessfig.config.keys import as_plain
from hessfig.record import COLUMNS, MANIFEST, TABLE
from tests.analysis.synthetic import SIGMA, make_table, write_sweep

HOSTILE = "model.temperature=<img src=x onerror=alert(1)>"
CAUSE = "UserError: the network's <b>scores</b> are not finite"


def settings(*words: str) -> dict[str, Any]:
    """Return the settings of a run as its manifest has them."""
    return dict(as_plain(compose(words).variants[0][1]))


def written(outputs: Path, table: pd.DataFrame, *words: str, **entries: Any) -> Path:
    """Write a sweep made with these words; `entries` join its manifest."""
    folder = write_sweep(table, outputs, settings=settings(*words))
    said = {"end": "2026-01-02T03:04:05+00:00", "hessfig": "0.1.0", "missing_cells": 0, **entries}
    manifest = {**json.loads((folder / MANIFEST).read_text()), "cells": {"measured": 10}, **said}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


def fill(outputs: Path) -> Path:
    """Write sweeps of the paper and others: one whole, one that lacks cells, one begun, one of an older version."""
    few = {"sigma": SIGMA[::3], "seeds": 3}
    written(outputs, make_table(**few), "sweep=sigma", "model.d_model=32", "seeds=3")
    deep = make_table(sweep="depth", networks=[("", 1), ("", 2)], **few)
    depth = written(
        outputs, deep, "sweep=depth", "sweep.vary={model.n_layers: [1, 2]}", missing_cells=2,
        command="hessfig run sweep=depth; echo harm",
    )  # fmt: skip
    fail(depth, "ab12", CAUSE)
    fail(depth, "cd34", CAUSE)
    fail(depth, "ef56", "measured since")
    cell(depth, "ef56")
    own = make_table(sweep="mine", networks=[(HOSTILE.replace("<", "").split(">")[0], 1)], **few)
    own["variant"] = HOSTILE
    mine = write_sweep(own, outputs, settings=None)
    assert (mine / TABLE).exists()
    cell(outputs / "mlp", "aa00")
    old = outputs / "layernorm"
    old.mkdir()
    (old / TABLE).write_text(",".join(COLUMNS[:8]) + "\n" + ",".join("1" * 8) + "\n")
    (old / MANIFEST).write_text(json.dumps({"hessfig": "0.0.7", "settings": {}}))
    verify = outputs / "verify"
    verify.mkdir()
    head = "statement,reference,holds_as_printed,error_as_printed,error_corrected,note\n"
    (verify / "statements.csv").write_text(f'{head}thm31,"Theorem 3.1, p. 4",yes,1e-16,,<i>\neq13,eq. 13,no,3,0,\n')
    claims = [
        "id,source,statement,sweeps,figure,rule,effect,low,high,verdict,words,run,departures",
        "depth-data,a paper,depth counts,depth mlp,6,a rule,0.5,0.4,0.6,holds,,,",
        "heads,a paper,heads count,heads,heads,a rule,,,,not run,,hessfig run sweep=heads,",
    ]
    (outputs / "claims.csv").write_text("\n".join(claims) + "\n")
    return outputs


def fail(folder: Path, key: str, cause: str) -> None:
    """Note a failed cell as a launcher does."""
    (folder / "failures").mkdir(exist_ok=True)
    (folder / "failures" / f"{key}.txt").write_text(cause)


def cell(folder: Path, key: str) -> None:
    """Store something in the place of a finished cell."""
    (folder / "cells" / key[:2]).mkdir(parents=True, exist_ok=True)
    (folder / "cells" / key[:2] / f"{key}.json").write_text("{}")


def report(outputs: Path, *words: str) -> int:
    """Run `hessfig report` here; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(["report", f"output_dir={outputs}", "resamples=20", *words])
    return int(str(ended.value.code))
