"""One report, made once, that the tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.outputs import fill, report


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report on an outputs folder of all kinds."""
    outputs = fill(tmp_path_factory.mktemp("site") / "outputs_of_all_kinds")
    assert report(outputs) == 0
    return outputs / "report"
