"""The steps a person takes on the web page, by Playwright. Importing it skips a test file where that is missing."""

from __future__ import annotations

from typing import Any

import pytest

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright for Python: the dev extra")
expect = playwright_api.expect
expect.set_options(timeout=30_000)  # a machine under load is slow; what comes at once costs nothing


def open_page(page: Any, address: str) -> None:
    """Load the page and wait until it knows the model."""
    page.goto(address)
    expect(page.locator("#model")).to_have_text("toy")


def send(page: Any, text: str) -> None:
    """Type and press Enter."""
    page.locator("#prompt").fill(text)
    page.keyboard.press("Enter")


def reply_text(page: Any) -> str:
    """Return the text of the last reply."""
    return str(page.locator(".assistant .text").last.text_content())
