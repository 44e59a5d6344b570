"""A conversation on the web page in a real browser, in front of a server over a fake engine."""

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
KEY = "a-key-of-sixteen-letters"


def test_a_message_gets_the_models_reply(page: Any, start: Callable[..., Any]) -> None:
    """What stands on the page is what plain FP16 decoding writes, and every token says what made it."""
    served, address = start(max_tokens=20)
    chat.open_page(page, address)
    chat.send(page, "abc")
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    assert chat.reply_text(page) == served.expected_chat("abc", 20)
    sources = set(page.locator(".assistant .token").evaluate_all("all => all.map(one => one.dataset.source)"))
    assert sources == {"draft", "target"}
    tints = page.locator(".assistant .token").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(tints)) == 2
    expect(page.locator("#prompt")).to_be_focused()


def test_tokens_show_before_the_reply_is_over(page: Any, start: Callable[..., Any], brake: Any) -> None:
    """It streams: with the engine standing still half-way, the first tokens and the plots are there already."""
    served, address = start(max_tokens=20)
    chat.open_page(page, address)
    brake.arm(6)
    chat.send(page, "abc")
    expect(page.locator(".assistant .token").first).to_be_attached()
    expect(page.locator(".assistant")).to_have_attribute("aria-busy", "true")
    expected = served.expected_chat("abc", 20)
    so_far = chat.reply_text(page)
    assert so_far
    assert expected.startswith(so_far)
    assert so_far != expected
    expect(page.locator("[data-plot=entropy] .value")).to_contain_text("bits")
    expect(page.locator("[data-plot=gear] .value")).to_have_text(re.compile("low|middle|high"))
    assert page.locator("[data-plot=entropy] .line").get_attribute("d").startswith("M0.0 ")
    brake.release()
    expect(page.locator(".summary").last).to_contain_text("20 tokens")
    expect(page.locator(".assistant")).to_have_attribute("aria-busy", "false")
    expect(page.locator("[data-plot=acceptance] .value")).to_contain_text("%")
    expect(page.locator("[data-plot=watts] .value")).to_have_text("not measured")


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_the_generation(page: Any, start: Callable[..., Any], brake: Any, how: str) -> None:
    """What had come stays, nothing is told as an error, and the next message is answered."""
    _, address = start(max_tokens=40)
    chat.open_page(page, address)
    brake.arm(6)
    chat.send(page, "abc")
    expect(page.locator(".assistant .token").first).to_be_attached()
    if how == "button":
        page.locator("#stop").click()
    else:
        page.keyboard.press("Escape")
    expect(page.locator(".summary").last).to_contain_text("stopped")
    kept = chat.reply_text(page)
    assert kept
    brake.release()
    chat.send(page, "b")
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    assert page.locator(".assistant .text").first.text_content() == kept
    assert page.locator(".trouble").count() == 0


def test_a_reload_keeps_the_conversation(page: Any, start: Callable[..., Any]) -> None:
    """Words, tints, summary and plots come back; the next request sends the turns before it; New chat forgets them."""
    _, address = start(max_tokens=8)
    chat.open_page(page, address)
    chat.send(page, "abc")
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    before = page.locator("#transcript").inner_html()
    entropy = page.locator("[data-plot=entropy] .line").get_attribute("d")
    page.reload()
    expect(page.locator("#model")).to_have_text("toy")
    assert page.locator("#transcript").inner_html().replace(' aria-busy="false"', "") == before.replace(
        ' aria-busy="false"', ""
    )
    assert page.locator("[data-plot=entropy] .line").get_attribute("d") == entropy
    with page.expect_request("**/v1/chat/completions") as asked:
        chat.send(page, "b")
    roles = [message["role"] for message in asked.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    page.locator("#new-chat").click()
    page.reload()
    expect(page.locator("#welcome")).to_be_visible()
    assert page.locator(".turn").count() == 0


@pytest.mark.parametrize("passes", [0, 6])
def test_a_reload_in_the_middle_of_a_reply(page: Any, start: Callable[..., Any], brake: Any, passes: int) -> None:
    """What had come is kept and marked; where nothing had, the question can be asked again."""
    _, address = start(max_tokens=20)
    chat.open_page(page, address)
    brake.arm(passes)
    chat.send(page, "abc")
    if passes:
        expect(page.locator(".assistant .token").first).to_be_attached()
    else:
        expect(page.locator(".assistant")).to_have_attribute("aria-busy", "true")
    page.reload()
    assert page.locator(".user .text").text_content() == "abc"
    if passes:
        expect(page.locator(".summary").last).to_contain_text("broken off")
        assert chat.reply_text(page)
        brake.release()
        return
    assert page.locator(".assistant").count() == 0
    brake.release()
    page.locator(".trouble button").click()
    expect(page.locator(".summary").last).to_contain_text("20 tokens")


def test_markup_in_a_reply_stays_text(page: Any, start: Callable[..., Any]) -> None:
    """Neither the model nor a person can put elements into the page."""
    _, address = start()
    chat.open_page(page, address)
    stream = (
        'data: {"choices":[{"index":0,"delta":{"content":"<img src=x onerror=alert(1)>"},"finish_reason":"stop"}]}\n\n'
        "data: [DONE]\n\n"
    )
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            status=200, content_type="text/event-stream", body=stream.replace("stop", "length")
        ),
    )
    chat.send(page, "<b>abc</b>")
    expect(page.locator(".assistant .text")).to_have_text("<img src=x onerror=alert(1)>")
    assert page.locator(".turn img, .turn b").count() == 0


def test_a_key_is_asked_for_and_kept_in_the_tab(page: Any, start: Callable[..., Any], tmp_path: Path) -> None:
    """401 opens the dialog; a wrong key opens it again; the right one answers and survives a reload."""
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    keys.chmod(0o600)
    _, address = start(api_key_file=keys, max_tokens=4)
    page.goto(address)
    dialog = page.locator("#key-dialog")
    expect(dialog).to_be_visible()
    page.locator("#key").fill("not-the-right-key-at-all")
    page.keyboard.press("Enter")
    expect(page.locator("#model")).to_have_text("an API key is needed")
    chat.send(page, "abc")
    expect(dialog).to_be_visible()
    expect(page.locator("#key-note")).to_contain_text("did not take that key")
    page.locator("#key").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator(".summary").last).to_contain_text("4 tokens")
    page.reload()
    expect(page.locator("#model")).to_have_text("toy")
    expect(dialog).to_be_hidden()


def test_settings_reach_the_server(page: Any, start: Callable[..., Any]) -> None:
    """Mode, temperature and length become fields of the request; untouched ones are left to the server."""
    _, address = start(max_tokens=8)
    chat.open_page(page, address)
    with page.expect_request("**/v1/chat/completions") as asked:
        chat.send(page, "a")
    assert asked.value.post_data_json.keys() == {"messages", "stream", "stream_options"}
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    page.locator(".settings summary").click()
    page.locator("#mode").select_option("int4")
    page.locator("#temperature").fill("0.5")
    page.locator("#max-tokens").fill("3")
    with page.expect_request("**/v1/chat/completions") as asked:
        chat.send(page, "b")
    body = asked.value.post_data_json
    assert (body["edgeprec"], body["temperature"], body["max_tokens"]) == ({"mode": "int4"}, 0.5, 3)
    expect(page.locator(".summary").last).to_contain_text("mode int4")
    expect(page.locator("[data-plot=acceptance] .value")).to_have_text("no drafts")
    tokens = page.locator(".assistant .text").last.locator(".token")
    sources = tokens.evaluate_all("all => all.map(one => one.dataset.source)")
    assert sources == ["target", "unverified", "unverified"]  # prefill is FP16 in every mode
