"""The report in a real browser: it loads nothing, follows dark and light, and fits a narrow window."""

from pathlib import Path
from typing import Any

from ssd.bench.report import write_report
from ssd.bench.summary import RunFigures
from tests.bench.made_up import write_run


def test_the_page_in_dark_light_and_narrow(browser: Any, tmp_path: Path) -> None:
    made = write_run(tmp_path, cases=["ar", "sd4", "ssd", "ar+b4", "sd4+b4", "ssd+b4"])
    page_file = write_report(RunFigures(made), tmp_path)[0]
    grounds, bars, requested, errors = set(), set(), list[str](), list[str]()
    for scheme, width in (("light", 1100), ("dark", 390)):
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
        page.on("request", lambda request: requested.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text))
        page.goto(page_file.as_uri())
        grounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("svg").count() == 6
        first_bar = page.locator("svg g:has(> title) path").first
        bars.add(first_bar.evaluate("bar => getComputedStyle(bar).fill"))
    assert len(grounds) == 2
    assert bars == {"rgb(139, 147, 156)", "rgb(125, 134, 145)"}
    assert requested == [page_file.as_uri()] * 2
    assert errors == []
