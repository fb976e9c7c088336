"""The report of runs in a real browser that may ask nobody for anything."""

import re
import time

import pytest

from groundup.report.run_page import write_run_page
from tests.browser import chromium, needs_chromium, playwright
from tests.run_folders import write_run_folder

pytestmark = needs_chromium
expect = playwright.expect


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    runs = [write_run_folder(folder / name) for name in ("one", "two")]
    return {
        "one": write_run_page(runs[:1], folder / "one.html"),
        "two": write_run_page(runs, folder / "two.html"),
    }


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser):
    """Opens a page; in the end it may have asked for nothing but itself, nor complained."""
    complaints, asked, contexts = [], [], []

    def visit(path, **options):
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))  # also what the policy refused
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-drawn]")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not complaints
    assert asked and all(re.fullmatch(r"file://\S+/(one|two)\.html", url) for url in asked)


def until(page, holds):
    """Waits for what the page comes to; its policy refuses the functions that Playwright would wait with."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)


def inked(page, plot=0):
    """How many pixels of a plot are drawn."""
    return (
        page.locator(".canvas canvas")
        .nth(plot)
        .evaluate(
            "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data"
            ".filter((value, at) => at % 4 === 3 && value).length"
        )
    )


@pytest.mark.parametrize("width", [390, 1280])
def test_the_plots_are_drawn_and_nothing_is_wider_than_the_screen(report, visit, width):
    page = visit(report["one"], viewport={"width": width, "height": 800})
    assert page.locator(".canvas canvas").count() == page.locator("figure[data-plot]").count() == 6
    assert all(inked(page, plot) > 1000 for plot in range(6))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.set_viewport_size({"width": 700, "height": 800})
    canvas = page.locator(".canvas canvas").first
    until(page, lambda: 390 < canvas.evaluate("canvas => canvas.clientWidth") < 700)
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def test_the_keyboard_reads_values_and_changes_the_axis(report, visit):
    page = visit(report["one"])
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("input[value=step]")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("input[value=tokens]")).to_be_checked()
    page.locator(".canvas").first.focus()
    page.keyboard.press("End")
    reading = page.locator("figure output").first
    expect(reading).to_contain_text("tokens 1.44M: training 3.0745 · validation 3")
    page.keyboard.press("ArrowLeft")
    expect(reading).to_contain_text("tokens 1.404M")
    page.locator("input[value=hours]").check()
    page.locator(".canvas").first.press("End")
    expect(reading).to_contain_text("hours of training 0.083333")
    page.locator(".key button").nth(1).press("Enter")  # hides the validations
    expect(page.locator(".key button").nth(1)).to_have_attribute("aria-pressed", "false")
    page.locator(".canvas").first.press("Home")
    assert "validation" not in reading.text_content()


def test_marks_are_drawn_and_heights_can_be_logarithmic(report, visit):
    page = visit(report["one"])
    with_marks, linear = inked(page), page.locator(".canvas canvas").first.screenshot()
    page.check("#logarithmic")
    assert page.locator(".canvas canvas").first.screenshot() != linear
    page.uncheck("#logarithmic")
    assert abs(inked(page) - with_marks) < 50


def test_dark_and_in_print(report, visit):
    page = visit(report["two"], color_scheme="dark", viewport={"width": 390, "height": 800})
    body = "getComputedStyle(document.body).color"
    dark = page.evaluate(body)
    seen = page.locator(".canvas canvas").first.evaluate("canvas => canvas.toDataURL()")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(body) != dark
    until(page, lambda: page.locator(".canvas canvas").first.evaluate("canvas => canvas.toDataURL()") != seen)
    assert not page.locator(".controls").is_visible()
    assert page.locator(".key button").count() == 4 + 2 * 5  # each curve of each run
