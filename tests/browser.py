"""The browser of tests that look at pages: Debian's Chromium, driven by playwright."""

import contextlib
import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)")


@contextlib.contextmanager
def chromium():
    with playwright.sync_playwright() as program:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        try:
            browser = program.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=180_000)
        except playwright.Error as error:
            pytest.skip(f"Chromium does not start here: {error.message.splitlines()[0]}")
        yield browser
        browser.close()
