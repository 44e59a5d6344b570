"""The web page for everyone: on a phone, by keyboard alone, and in colours that can be read."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

chat = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("chat_page.py"))))
expect = chat.expect


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_needs_no_sideways_scrolling(page: Any, start: Callable[..., Any], width: int) -> None:
    """Empty and with a long reply, nothing is wider than the screen, and message field and plots are in view."""
    _, address = start(max_tokens=40)
    page.set_viewport_size({"width": width, "height": 780})
    chat.open_page(page, address)
    for text in (None, "abc"):
        if text:
            chat.send(page, text)
            expect(page.locator(".summary").last).to_contain_text("tokens")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for place in ("#prompt", "#send", "[data-plot=watts]", "[data-plot=entropy]"):
            expect(page.locator(place)).to_be_in_viewport(ratio=1)


def test_tokens_are_reached_by_keyboard(page: Any, start: Callable[..., Any]) -> None:
    """Arrow keys walk through a reply and say what each token is; every control has a name."""
    _, address = start(max_tokens=6)
    chat.open_page(page, address)
    chat.send(page, "abc")
    expect(page.locator(".summary").last).to_contain_text("6 tokens")
    page.keyboard.press("Shift+Tab")
    expect(page.locator(".assistant .text")).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#token-facts")).to_contain_text("Token 2 ")
    expect(page.locator("#token-facts")).to_contain_text("bits, gear ")
    unnamed = page.locator("button:visible, input:visible, select:visible, textarea:visible").evaluate_all(
        "all => all.filter(one => !one.textContent.trim() && !one.labels?.length).map(one => one.id)"
    )
    assert unnamed == []


def test_light_and_dark_are_readable(page: Any, start: Callable[..., Any]) -> None:
    """The colours follow the system, and words stand out from page and tints by 4.5 to 1 or more."""
    _, address = start(max_tokens=12)
    pages = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        chat.open_page(page, address)
        body = page.locator("body").evaluate(
            "one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor]"
        )
        soft = page.locator(".legend li").first.evaluate("one => getComputedStyle(one).color")
        assert contrast(body[0], body[1]) >= 7
        assert contrast(soft, body[1]) >= 4.5
        pages.add(body[1])
    assert len(pages) == 2


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two opaque CSS colours, as WCAG 2 defines it."""
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def luminance(color: str) -> float:
    """Return the relative luminance of ``rgb(r, g, b)``."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
