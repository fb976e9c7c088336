"""The browser of tests that look at pages: Debian's Chromium, driven by playwright."""

import contextlib
import shutil
import subprocess

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)")


_ARGUMENTS = ("--no-sandbox", "--disable-dev-shm-usage")
_START_SECONDS = 180


@contextlib.contextmanager
def chromium():
    """A browser; only where Chromium does not even show an empty page by itself are its tests skipped."""
    with playwright.sync_playwright() as program:
        try:
            browser = program.chromium.launch(
                executable_path=CHROMIUM, args=_ARGUMENTS, timeout=1000 * _START_SECONDS
            )
        except playwright.Error as error:
            if _starts_by_itself():
                raise
            pytest.skip(f"Chromium does not start here: {error.message.splitlines()[0]}")
        yield browser
        browser.close()


def _starts_by_itself():
    command = [CHROMIUM, *_ARGUMENTS, "--headless", "--dump-dom", "about:blank"]
    try:
        found = subprocess.run(command, capture_output=True, timeout=_START_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return found.returncode == 0 and b"<html>" in found.stdout
