"""The report in a real browser, opened from disk: headless Chromium, driven by Playwright (`make test-browser`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.outputs import fill, report

pytestmark = pytest.mark.browser
WIDTHS = (400, 1000, 1600)
SECOND = 1000.0  # milliseconds to the first paint, at most


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on sweeps of all kinds, as a site and as one file beside it."""
    outputs = fill(tmp_path_factory.mktemp("browser") / "outputs_of_all_kinds")
    assert report(outputs) == 0
    assert report(outputs, "single_file=true") == 0
    return outputs / "report"


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A tab that keeps what the console says, what fails and what is asked for."""
    context = browser.new_context(viewport={"width": 1000, "height": 900})
    page = context.new_page()
    page.said, page.asked_for = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("requestfailed", lambda request: page.said.append(f"failed: {request.url[:200]}"))
    page.on("request", lambda request: page.asked_for.append(request.url))
    yield page
    context.close()


def every_page(site: Path) -> list[Path]:
    return [*sorted(site.rglob("*.html")), site.parent / "report.html"]


def open_whole(tab: Any, path: Path) -> None:
    """Open a page and load every picture of it, and what its charts ask for."""
    tab.goto(path.as_uri())
    tab.evaluate("document.querySelectorAll('img').forEach((one) => { one.loading = 'eager'; })")
    tab.wait_for_function("[...document.images].every((one) => one.complete)")
    tab.wait_for_load_state("networkidle")  # a chart's script that is on its way when a page is left counts as failed


def test_every_page_opens_from_disk(site: Path, tab: Any) -> None:
    """Without a word on the console; every picture is there; nothing is asked for outside of the folder."""
    for path in every_page(site):
        open_whole(tab, path)
        broken = "[...document.images].filter((one) => !one.naturalWidth).map((one) => one.currentSrc.slice(0, 200))"
        assert tab.evaluate(broken) == [], path
    assert tab.said == []
    inside = (site.as_uri(), (site.parent / "report.html").as_uri(), "data:")
    assert [url for url in tab.asked_for if not url.startswith(inside)] == []


def test_nothing_of_a_table_runs(site: Path, tab: Any) -> None:
    alerts: list[str] = []
    tab.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    for path in every_page(site):
        open_whole(tab, path)
    assert alerts == []


def test_every_link_leads_somewhere(site: Path, tab: Any) -> None:
    for path in every_page(site):
        tab.goto(path.as_uri())
        links = tab.evaluate("[...document.links].map((one) => one.href)")
        for link in {one for one in links if not one.startswith("data:")}:
            name, _, part = link.partition("#")
            assert Path(name.removeprefix("file://")).is_file(), link
            if part and name == path.as_uri():
                assert tab.evaluate("(id) => document.getElementById(id) !== null", part), link


def column(tab: Any, table: str, number: int) -> list[str]:
    """Return a column of a table, its hidden rows left out."""
    rows = f"[...document.querySelectorAll('#{table} tbody tr')].filter((one) => !one.hidden)"
    return list(tab.evaluate(f"{rows}.map((one) => one.cells[{number}].textContent.trim())"))


def test_tables_sort_by_mouse_and_by_keyboard(site: Path, tab: Any) -> None:
    tab.goto((site / "sweeps/sigma.html").as_uri())
    table = "sweep-sigma-slopes"
    titles = [one.strip() for one in tab.locator(f"#{table} thead th").all_inner_texts()]
    place = titles.index("slope")
    button = tab.locator(f"#{table} thead th button").nth(place)
    button.click()
    rising = [float(text.replace("= ", "")) for text in column(tab, table, place)]
    assert rising == sorted(rising) and len(set(rising)) > 2
    button.focus()
    tab.keyboard.press("Enter")
    assert [float(text.replace("= ", "")) for text in column(tab, table, place)] == rising[::-1]
    assert tab.locator(f"#{table} thead th").nth(place).get_attribute("aria-sort") == "descending"


def test_tables_filter_and_say_how_many_rows_are_left(site: Path, tab: Any) -> None:
    tab.goto((site / "sweeps/sigma.html").as_uri())
    table = "sweep-sigma-slopes"
    before = len(column(tab, table, 0))
    tab.locator(f"#{table} input").fill("w_q agrees")
    left = column(tab, table, 0)
    assert 0 < len(left) < before
    assert tab.locator(f"#{table} [role=status]").inner_text() == f"{len(left)} of {before} rows"


def test_what_is_left_can_be_copied_as_csv(site: Path, tab: Any) -> None:
    tab.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.goto((site / "sweeps/sigma.html").as_uri())
    tab.locator("#sweep-sigma-slopes input").fill("W_V H_o")
    tab.locator("#sweep-sigma-slopes").get_by_text("Copy as CSV").click()
    tab.get_by_text("Copied").wait_for()
    lines = tab.evaluate("navigator.clipboard.readText()").strip().split("\n")
    assert "block" in lines[0] and len(lines) == 2
    assert any(len(cell.partition(".")[2]) > 4 for cell in lines[1].split(",")), "all digits, not those shown"


def test_everything_can_be_read_without_script(site: Path, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "sweeps/sigma.html").as_uri())
    assert page.locator("#sweep-sigma-slopes tbody tr").count() >= 5
    assert page.locator("#sweep-sigma-slopes button").count() == 0
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_its_window(site: Path, browser: Any, tmp_path: Path, scheme: str) -> None:
    """At three widths, by day and by night; screenshots are left for whoever looks."""
    for width in WIDTHS:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        for path in every_page(site):
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (path.name, width)
            shot = tmp_path / f"{path.stem}_{width}_{scheme}.png"
            page.screenshot(path=shot)
            assert shot.stat().st_size > 5000
        context.close()


def test_the_first_paint_comes_within_a_second(site: Path, tab: Any) -> None:
    """Of the site's pages; on a busy machine the best of three counts."""
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    for path in sorted(site.rglob("*.html")):
        times = []
        for _ in range(3):
            tab.goto(path.as_uri())
            tab.wait_for_function(paint)
            times.append(float(tab.evaluate(paint)))
        assert min(times) < SECOND, path


def test_the_keyboard_reaches_the_content(site: Path, tab: Any) -> None:
    """The first thing that Tab finds skips the navigation."""
    tab.goto((site / "index.html").as_uri())
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    tab.keyboard.press("Enter")
    assert tab.url.endswith("#content")
