"""Headless Chromium for the tests of the report in a browser; they skip where it, or Playwright, is missing."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

CHROMIUM = (
    shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="pip install playwright (make test-browser does)"
    )
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: apt install chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield started
        started.close()
