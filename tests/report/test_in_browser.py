"""The page of runs in a real Chromium, opened from disk."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from report.made_runs import make_run
from report.test_html_report import HOSTILE, page_of
from samestep.core.rundir import RunDir
from system.requirements import require

Opened = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    require("a browser", ["chromium"])
    from playwright.sync_api import sync_playwright

    with sync_playwright() as library:
        browser = library.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Opened:
    @contextmanager
    def open_page(*runs: RunDir, wide: int = 1200, scheme: str = "light") -> Iterator[Any]:
        """The page of runs, which must not say anything on the console, nor ask for anything."""
        file = tmp_path / "page.html"
        file.write_text(page_of(*runs))
        context = browser.new_context(viewport={"width": wide, "height": 900}, color_scheme=scheme)
        page, said, asked = context.new_page(), list[str](), list[str]()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(dialog.message))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        wait_until(page, "report.charts.length > 0")
        yield page
        assert said == [] and asked == [file.as_uri()]
        context.close()

    return open_page


def wait_until(page: Any, condition: str) -> None:
    """Asked from outside again and again: the page's policy lets nothing be evaluated within it."""
    until = time.monotonic() + 30
    while not page.evaluate(condition):
        assert time.monotonic() < until, condition
        page.wait_for_timeout(20)


def drawn(page: Any, name: str) -> Any:
    """What uPlot draws: steps, then a list of values for each line."""
    return page.evaluate("(name) => report.charts.find((chart) => chart.about.name === name).plot.data", name)


def test_the_curves_are_what_was_logged(opened: Opened, tmp_path: Path) -> None:
    with opened(make_run(tmp_path, steps=40)) as page:
        steps, values = drawn(page, "val/nll")
        assert steps == [10, 20, 30, 40] and values == pytest.approx([0.2, 0.1, 2 / 30, 0.05], rel=1e-6)
        for figure in page.locator("figure.chart").all():
            figure.scroll_into_view_if_needed()  # what is further down is drawn when it is seen
        wait_until(page, "report.charts.length === document.querySelectorAll('[data-chart]').length")
        assert page.locator("figure.chart canvas").count() == page.locator("figure.chart").count() > 4


def test_switches_change_the_curves(opened: Opened, tmp_path: Path) -> None:
    with opened(make_run(tmp_path, "a"), make_run(tmp_path, "b", shift=0.5)) as page:
        assert len(drawn(page, "loss")) == 1 + 2, "laid over each other"
        page.locator("input[data-run='1']").uncheck()
        (_, alone) = drawn(page, "loss")
        page.locator("input[data-run='1']").check()
        page.locator("#smoothing").fill("90")
        raw, smooth = drawn(page, "loss")[1:3]
        assert raw == alone and len(drawn(page, "loss")) == 1 + 4
        assert max(smooth) - min(smooth) < max(raw) - min(raw)
        assert page.locator("#smoothing-shown").inner_text() == "0.90"
        page.locator("#smoothing").fill("0")
        page.locator("#log").check()
        assert page.evaluate("report.charts.every((chart) => chart.plot.scales.y.distr === 3)")
        page.locator("#across").check()
        seconds = drawn(page, "loss")[0]
        assert seconds[-1] == pytest.approx(40 * 0.5)
        page.locator("#across").uncheck()
        page.locator("#filter").fill("nll")
        assert page.locator("figure.chart:visible").count() == 1


def test_a_drag_zooms_and_a_double_click_shows_all(opened: Opened, tmp_path: Path) -> None:
    with opened(make_run(tmp_path, steps=40)) as page:
        across = "(() => { const x = report.charts[0].plot.scales.x; return [x.min, x.max]; })()"
        whole = page.evaluate(across)
        box = page.locator(".u-over").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50, steps=4)
        page.mouse.up()
        low, high = page.evaluate(across)
        assert whole[0] < low < high < whole[1]
        page.mouse.dblclick(box["x"] + box["width"] * 0.5, box["y"] + 50)
        assert page.evaluate(across) == whole


def test_texts_do_nothing(opened: Opened, tmp_path: Path) -> None:
    run = make_run(tmp_path, note=HOSTILE)
    with open(run.metrics, "a") as file:
        file.write(json.dumps({"stage": HOSTILE, "step": 1, "epoch": 0, HOSTILE: 1.0}) + "\n")
    with open(run.events, "a") as file:
        file.write(json.dumps({"time": 1.0, "kind": "ended", "text": HOSTILE}) + "\n")
    rows = [{"stage": "fit", "step": 1, "name": HOSTILE, "kind": "text", "prompt": HOSTILE, "text": HOSTILE}]
    run.samples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with opened(run) as page:
        page.wait_for_timeout(200)
        assert page.locator("img[src='x']").count() == 0
        assert HOSTILE.replace("\u2028", "") in page.locator("pre.sample").first.text_content().replace("\u2028", "")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("wide", [390, 1200])
def test_it_can_be_read(opened: Opened, tmp_path: Path, wide: int, scheme: str) -> None:
    """Nothing sticks out of a narrow page, and texts stand out from what is behind them."""
    with opened(make_run(tmp_path, "a"), make_run(tmp_path, "b"), wide=wide, scheme=scheme) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= wide
        assert page.locator("canvas").first.bounding_box()["width"] <= wide
        for selector in ("h1", "td", "figcaption", ".controls label", ".u-legend"):
            assert contrast(page, selector) >= 4.5, selector


def contrast(page: Any, selector: str) -> float:
    """The ratio of luminances of a text and of what is behind it, as WCAG has it."""
    colours = page.locator(selector).first.evaluate(
        """(text) => {
          let behind = text;
          const see_through = (part) => getComputedStyle(part).backgroundColor === "rgba(0, 0, 0, 0)";
          while (see_through(behind) && behind.parentElement) behind = behind.parentElement;
          return [getComputedStyle(text).color, getComputedStyle(behind).backgroundColor]
            .map((colour) => colour.match(/[0-9.]+/g).slice(0, 3).map(Number));
        }"""
    )
    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: list[float]) -> float:
    parts = [part / 255 for part in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_what_is_not_seen_yet_is_not_drawn(opened: Opened, tmp_path: Path) -> None:
    with opened(make_run(tmp_path, steps=2_000, ranks=8)) as page:
        assert page.evaluate("report.charts.length") < page.locator("[data-chart]").count()
