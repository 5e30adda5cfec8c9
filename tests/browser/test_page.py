"""The report in headless Chromium, opened from disk, wide, narrow and printed (`make test-browser`)."""

import pytest

from tests.report.test_page import write

pytestmark = pytest.mark.browser


@pytest.fixture
def report(cli, tmp_path):
    write(tmp_path / "outputs", "mine", "<script>document.title = 1</script>")
    assert cli("report").code == 0
    return (tmp_path / "outputs/report.html").as_uri()


@pytest.mark.parametrize("width", [375, 1280])
def test_the_page_fits_and_loads_nothing(browser, report, width):
    context = browser.new_context(viewport={"width": width, "height": 900})
    tab = context.new_page()
    said = []
    loaded = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: loaded.append(request.url))
    tab.goto(report)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate(
        "[...document.images].every((one) => one.complete && one.naturalWidth > 0)"
    )
    assert tab.title() == "hessfig report"
    assert said == []
    assert [
        url for url in loaded if url != report and not url.startswith("data:")
    ] == []
    context.close()


def test_the_page_prints(browser, report):
    context = browser.new_context()
    tab = context.new_page()
    tab.goto(report)
    printed = tab.pdf()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 10_000
    context.close()
