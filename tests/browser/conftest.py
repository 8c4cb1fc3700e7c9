"""Debian's Chromium, in which pages are opened."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("there is no Chromium, and set-up could not install it: apt-get install chromium")
    with sync_playwright() as playwright:
        # The sandbox needs rights that containers often lack; the only pages opened are our own.
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
