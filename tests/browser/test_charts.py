"""Charts of the report in headless Chromium: hovering, switching curves, narrow windows, the dark, and no network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.synthetic import SIGMA, make_table
from tests.report.outputs import report, written

pytest.importorskip("plotly", reason="pip install plotly (make test-browser does)")
pytestmark = pytest.mark.browser
DRAWN = ".chart[data-drawn] .main-svg"
CURVES = "document.querySelector('.js-plotly-plot').data"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with a growth sheet and a map of blocks, as a site and as one file."""
    outputs = tmp_path_factory.mktemp("charts") / "outputs"
    written(outputs, make_table(sigma=SIGMA[::3], seeds=5), "sweep=sigma", "seeds=5")
    pairs = [("W_Q", "W_Q"), ("W_Q", "W_V"), ("W_V", "W_V")]
    written(outputs, make_table(sweep="blocks", blocks=pairs, sigma=[0.1], seeds=5), "sweep=blocks", "seeds=5")
    assert report(outputs, "interactive=true") == 0
    assert report(outputs, "interactive=true", "single_file=true") == 0
    return outputs / "report"


def opened(browser: Any, path: Path, **look: Any) -> Any:
    """Return a tab whose first chart is drawn; `said` is what the console said, `asked_for` all requests."""
    page = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **look}).new_page()
    page.said, page.asked_for = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked_for.append(request.url))
    page.goto(path.as_uri())
    page.locator("figure:has(.chart)").first.scroll_into_view_if_needed()
    page.wait_for_selector(DRAWN)
    return page


def over(tab: Any, curve: int, point: int) -> str:
    """Hover a point of the first chart; return what the label says."""
    place = tab.evaluate(
        f"""() => {{
          const plot = document.querySelector('.js-plotly-plot'), one = plot._fullData[{curve}];
          const [x, y] = [one.xaxis, one.yaxis].map((name) => plot._fullLayout[name.replace(/^./, (c) => c + 'axis')]);
          const box = plot.getBoundingClientRect();
          return [box.x + x._offset + x.d2p(one.x[{point}]), box.y + y._offset + y.d2p(one.y[{point}])];
        }}"""
    )
    tab.mouse.move(place[0] + 30, place[1] + 12)
    tab.mouse.move(*place)
    tab.wait_for_selector(".hoverlayer .hovertext")
    return str(tab.locator(".hoverlayer .hovertext").first.text_content())


def test_hovering_tells_value_interval_seeds_and_slope(site: Path, browser: Any) -> None:
    tab = opened(browser, site / "sweeps/sigma.html")
    value = tab.evaluate(f"{CURVES}[0].y[2]")
    said = over(tab, 0, 2)
    assert f"block norm {float(f'{value:.4g}'):g}"[:14] in said
    assert "95 % interval" in said and "5 seeds" in said and "slope " in said and "predicted" in said and "σ " in said


def test_the_legend_switches_curves_off_and_on(site: Path, browser: Any) -> None:
    tab = opened(browser, site / "sweeps/sigma.html")
    shown = f"{CURVES}.filter((one) => one.visible && one.mode.includes('markers')).length"
    everything = tab.evaluate(shown)
    one = tab.locator(".legend").first.get_by_role("button", name="H_o")
    one.click()
    tab.wait_for_function(f"{shown} < {everything}")
    assert one.get_attribute("aria-pressed") == "false"
    one.press("Enter")
    tab.wait_for_function(f"{shown} === {everything}")


def test_axes_are_logarithmic_until_told_otherwise_and_zoom(site: Path, browser: Any) -> None:
    tab = opened(browser, site / "sweeps/sigma.html")
    axis = "document.querySelector('.js-plotly-plot')._fullLayout.xaxis"
    assert tab.evaluate(f"{axis}.type") == "log"
    before = tab.evaluate(f"{axis}.range")
    box = tab.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    tab.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    tab.mouse.down()
    tab.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 0.7 * box["height"], steps=5)
    tab.mouse.up()
    tab.wait_for_function(f"{axis}.range[0] > {before[0]} && {axis}.range[1] < {before[1]}")
    tab.get_by_role("button", name="log x").first.click()
    tab.wait_for_function(f"{axis}.type === 'linear'")


def test_a_map_tells_its_cells(site: Path, browser: Any) -> None:
    tab = opened(browser, site / "sweeps/blocks.html")
    assert tab.evaluate(f"{CURVES}[0].type") == "heatmap"
    box = tab.locator(".js-plotly-plot .nsewdrag").first.bounding_box()
    tab.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.2 * box["height"])
    tab.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.25 * box["height"])
    tab.wait_for_selector(".hoverlayer .hovertext")
    said = str(tab.locator(".hoverlayer .hovertext").first.text_content())
    assert said.startswith("W_Q, W_Q") and "block norm" in said and "5 seeds" in said


def test_the_picture_is_one_press_away_and_is_printed(site: Path, browser: Any) -> None:
    tab = opened(browser, site / "sweeps/sigma.html")
    picture = tab.locator("figure picture").first
    assert not picture.is_visible()
    tab.emulate_media(media="print")
    assert picture.is_visible() and not tab.locator(".chart").first.is_visible()
    tab.emulate_media(media="screen")
    tab.get_by_role("button", name="Chart").first.click()
    assert picture.is_visible() and not tab.locator(".chart").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1280])
def test_charts_fit_their_window_by_day_and_by_night(
    site: Path, browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    """Letters stand out from the card in both; screenshots are left for whoever looks."""
    for name in ("sigma", "blocks"):
        look = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
        tab = opened(browser, site / f"sweeps/{name}.html", **look)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        ink = tab.evaluate("getComputedStyle(document.querySelector('.xtick text')).fill")
        card = tab.evaluate("getComputedStyle(document.querySelector('.chart')).backgroundColor")
        light, dark = (np.mean([int(one) for one in text.strip("rgb()").split(",")]) for text in (ink, card))
        assert abs(light - dark) > 150
        tab.locator("figure").first.screenshot(path=tmp_path / f"{name}_{width}_{scheme}.png")


def test_the_scheme_may_change_while_the_page_is_open(site: Path, browser: Any) -> None:
    tab = opened(browser, site / "sweeps/sigma.html", color_scheme="light")
    colour = "getComputedStyle(document.querySelector('.xtick text')).fill"
    before = tab.evaluate(colour)
    tab.emulate_media(color_scheme="dark")
    tab.wait_for_function(f"{colour} !== '{before}'")


@pytest.mark.parametrize("name", ["report/sweeps/sigma.html", "report.html"])
def test_no_request_leaves_the_page(site: Path, browser: Any, name: str) -> None:
    tab = opened(browser, site.parent / name, offline=True)
    over(tab, 0, 2)
    inside = (site.as_uri(), (site.parent / "report.html").as_uri(), "data:", "blob:")
    assert [url for url in tab.asked_for if not url.startswith(inside)] == []
    assert tab.said == []
    offered = set(tab.evaluate("[...document.querySelectorAll('.modebar-btn')].map((one) => one.dataset.title)"))
    assert offered == {"Download plot as a PNG", "Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"}


def test_without_script_the_picture_stays(site: Path, browser: Any) -> None:
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto((site / "sweeps/sigma.html").as_uri())
    assert page.locator("figure picture img").first.is_visible()
    assert not page.locator(".chart").first.is_visible() and page.get_by_role("button").count() == 0
