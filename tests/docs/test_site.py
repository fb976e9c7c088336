"""The built site in a browser: it asks nobody else, fits a phone, finds words, changes its language."""

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest

from tests.browser import chromium, needs_chromium, playwright
from tests.guides import ROOT

pytestmark = [pytest.mark.slow, needs_chromium]
expect = playwright.expect

PAGES = (
    *("index", "zh/index", "es/quickstart", "concepts/layouts", "troubleshooting"),
    *("reference/settings/data", "benchmarks/index", "repository/examples/index"),
)


def build(site, *, folder=ROOT):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of what Material says of a future MkDocs
    return subprocess.run(
        command, cwd=folder, env=quiet, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser, site, address):
    """Opens a page, of a server or as a file; in the end none may have asked others, or complained."""
    complaints, contexts = [], []
    own = (address, site.as_uri(), "data:")

    def listen(page):
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))  # also of files that are missing
        page.on("request", lambda one: one.url.startswith(own) or complaints.append(one.url))

    def visit(path, *, as_file=False, **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(120_000)
        listen(page)
        page.goto(f"{site.as_uri()}/{path}.html" if as_file else f"{address}{path}.html")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not complaints


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits(path, width, visit):
    page = visit(path, viewport={"width": width, "height": 844})
    expect(page.locator("h1")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    tables = page.locator(".cards table").all()
    assert all(table.bounding_box()["width"] <= width for table in tables if table.is_visible())


def test_colours_follow_the_system_and_the_button(visit):
    def brightness(page):
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    dark = visit("index", color_scheme="dark")
    assert brightness(dark) < 200 < 600 < brightness(visit("index", color_scheme="light"))
    dark.locator("label[for=__palette_1]").click()  # light, whatever the system has
    assert brightness(dark) > 600


@pytest.mark.parametrize("as_file", [False, True], ids=["server", "file"])
@pytest.mark.parametrize(
    ("path", "word"),
    [("guides/lora", "rotary_fraction"), ("es/index", "vocabulario"), ("zh/index", "词表")],
)
def test_search_finds_words(path, word, as_file, visit):
    page = visit(path, as_file=as_file, viewport={"width": 1280, "height": 900})
    field = page.locator("[data-md-component=search-query]")
    field.fill(word)
    field.press("End")  # the page searches when a key comes up, and filling presses none
    expect(page.locator(".md-search-result__link").first).to_be_visible()


def test_the_switch_leads_to_the_same_page_in_another_language(visit):
    page = visit("quickstart", viewport={"width": 1280, "height": 900})
    page.locator(".md-select").hover()
    page.locator(".md-header [hreflang=es]").click()
    expect(page.locator("h1")).to_contain_text("Primeros pasos")
    assert page.locator("html").get_attribute("lang") == "es"
    assert page.locator(".md-tabs__link").first.inner_text().strip() == "Empezar"
    page.locator(".md-select").hover()
    page.locator(".md-header [hreflang=en]").click()
    expect(page.locator("h1")).to_contain_text("Quickstart")


def test_links_that_lead_nowhere_end_the_build(tmp_path):
    """On a copy of the pages, with such links."""
    for name in ("docs", "examples", "deploy", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "CONTRIBUTING.md", "Containerfile", "mkdocs.yml", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)  # which tells the repository's files
    links = ("nowhere.md", "quickstart.md#nowhere", "../nowhere.txt", "/quickstart.md")
    with (tmp_path / "docs/features.md").open("a") as page:
        page.write("".join(f"\n[a]({link})\n" for link in links))
    done = build(tmp_path / "site", folder=tmp_path)
    assert done.returncode == 1
    assert [link for link in links if link in done.stderr] == list(links)
    assert done.stderr.count("WARNING") == len(links), done.stderr
