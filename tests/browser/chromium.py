"""Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser; the test is skipped where there is none."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("there is no Chromium, and set-up could not install it: apt-get install chromium")
    with sync_playwright() as playwright:
        # The sandbox needs rights that containers often lack; the only pages opened are our own.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser: Browser, width: int = 1024) -> Page:
    """An empty page, ``width`` pixels wide, which waits as long as a busy machine may take."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(120_000)
    return page
