"""The web page in a real browser: Debian's Chromium, driven by Playwright, in front of a server over a fake engine."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.runtime.service.app import WEB_FOLDER

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright for Python: the dev extra")
expect = playwright_api.expect
expect.set_options(timeout=30_000)  # a machine under load is slow; what comes at once costs nothing
CHROMIUM = shutil.which("chromium")
KEY = "a-key-of-sixteen-letters"
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def web(asgi: ModuleType) -> ModuleType:
    """Return the module that serves on a port."""
    from importlib.util import module_from_spec, spec_from_file_location

    found = spec_from_file_location("edgeprec_tests_web_server", Path(__file__).with_name("web_server.py"))
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return Chromium without a window. As root it only starts without its sandbox."""
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright_api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Return a fresh page; an error or a breach of the content policy on it fails the test."""
    context = browser.new_context()
    opened = context.new_page()
    opened.set_default_timeout(30_000)
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda said: faults.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    context.close()
    assert faults == []


@pytest.fixture
def brake(web: ModuleType) -> Iterator[Any]:
    """Return the engine's brake, released after the test."""
    made = web.Brake()
    yield made
    made.release()


@pytest.fixture
def start(web: ModuleType, make_served: Callable[..., Any], brake: Any) -> Iterator[Callable[..., Any]]:
    """Return ``start(**as make_served)``: gives the server's inside and the page's address."""
    with ExitStack() as stack:

        def begin(**changes: Any) -> Any:
            engine = {"before_pass": brake} | changes.pop("engine", {})
            served = make_served(engine=engine, web_folder=WEB_FOLDER, **changes)
            address = stack.enter_context(web.served_on_port(served.app))
            stack.callback(brake.release)  # before the server ends
            return served, address

        yield begin


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


@needs_browser
def test_a_message_gets_the_models_reply(page: Any, start: Callable[..., Any]) -> None:
    """What stands on the page is what plain FP16 decoding writes, and every token says what made it."""
    served, address = start(max_tokens=20)
    open_page(page, address)
    send(page, "abc")
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    assert reply_text(page) == served.expected_chat("abc", 20)
    sources = set(page.locator(".assistant .token").evaluate_all("all => all.map(one => one.dataset.source)"))
    assert sources == {"draft", "target"}
    tints = page.locator(".assistant .token").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    assert len(set(tints)) == 2
    expect(page.locator("#prompt")).to_be_focused()


@needs_browser
def test_tokens_show_before_the_reply_is_over(page: Any, start: Callable[..., Any], brake: Any) -> None:
    """It streams: with the engine standing still half-way, the first tokens and the plots are there already."""
    served, address = start(max_tokens=20)
    open_page(page, address)
    brake.arm(6)
    send(page, "abc")
    expect(page.locator(".assistant .token").first).to_be_attached()
    expect(page.locator(".assistant")).to_have_attribute("aria-busy", "true")
    expected = served.expected_chat("abc", 20)
    so_far = reply_text(page)
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


@needs_browser
@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_the_generation(page: Any, start: Callable[..., Any], brake: Any, how: str) -> None:
    """What had come stays, nothing is told as an error, and the next message is answered."""
    _, address = start(max_tokens=40)
    open_page(page, address)
    brake.arm(6)
    send(page, "abc")
    expect(page.locator(".assistant .token").first).to_be_attached()
    if how == "button":
        page.locator("#stop").click()
    else:
        page.keyboard.press("Escape")
    expect(page.locator(".summary").last).to_contain_text("stopped")
    kept = reply_text(page)
    assert kept
    brake.release()
    send(page, "b")
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    assert page.locator(".assistant .text").first.text_content() == kept
    assert page.locator(".trouble").count() == 0


@needs_browser
def test_a_reload_keeps_the_conversation(page: Any, start: Callable[..., Any]) -> None:
    """Words, tints, summary and plots come back; the next request sends the turns before it; New chat forgets them."""
    _, address = start(max_tokens=8)
    open_page(page, address)
    send(page, "abc")
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
        send(page, "b")
    roles = [message["role"] for message in asked.value.post_data_json["messages"]]
    assert roles == ["user", "assistant", "user"]
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    page.locator("#new-chat").click()
    page.reload()
    expect(page.locator("#welcome")).to_be_visible()
    assert page.locator(".turn").count() == 0


@needs_browser
@pytest.mark.parametrize("passes", [0, 6])
def test_a_reload_in_the_middle_of_a_reply(page: Any, start: Callable[..., Any], brake: Any, passes: int) -> None:
    """What had come is kept and marked; where nothing had, the question can be asked again."""
    _, address = start(max_tokens=20)
    open_page(page, address)
    brake.arm(passes)
    send(page, "abc")
    if passes:
        expect(page.locator(".assistant .token").first).to_be_attached()
    else:
        expect(page.locator(".assistant")).to_have_attribute("aria-busy", "true")
    page.reload()
    assert page.locator(".user .text").text_content() == "abc"
    if passes:
        expect(page.locator(".summary").last).to_contain_text("broken off")
        assert reply_text(page)
        brake.release()
        return
    assert page.locator(".assistant").count() == 0
    brake.release()
    page.locator(".trouble button").click()
    expect(page.locator(".summary").last).to_contain_text("20 tokens")


@needs_browser
def test_a_refusal_is_told_kindly(page: Any, start: Callable[..., Any]) -> None:
    """Both numbers of an over-long prompt are shown, the message stays, and nothing half-made is left behind."""
    _, address = start()
    open_page(page, address)
    send(page, "a" * 100)
    trouble = page.locator(".trouble")
    expect(trouble).to_have_attribute("role", "alert")
    expect(trouble).to_contain_text("The server did not take this")
    expect(trouble).to_contain_text("64")
    assert page.locator(".assistant").count() == 0
    assert page.locator(".user .text").text_content() == "a" * 100
    expect(page.locator("[data-plot=watts] .value")).to_have_text("\u2013")  # nothing came, so nothing was missed
    send(page, "b")
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    expect(trouble).to_have_count(0)


@needs_browser
def test_a_server_that_is_gone_is_told_and_tried_again(
    page: Any, web: ModuleType, make_served: Callable[..., Any]
) -> None:
    """The page says so, keeps the message, and its button answers it once a server is back."""
    with web.served_on_port(make_served(web_folder=WEB_FOLDER, max_tokens=5).app) as address:
        open_page(page, address)
    send(page, "abc")
    expect(page.locator(".trouble")).to_contain_text("The server does not answer")
    expect(page.locator("#lamp")).to_have_attribute("data-state", "trouble")
    with web.served_on_port(make_served(max_tokens=5).app, port=int(address.rsplit(":", 1)[1].strip("/"))):
        page.locator(".trouble button").click()
        expect(page.locator(".summary").last).to_contain_text("5 tokens")
        expect(page.locator("#lamp")).to_have_attribute("data-state", "ready")
        expect(page.locator(".trouble")).to_have_count(0)


@needs_browser
def test_a_full_queue_is_told_with_the_time_to_wait(page: Any, start: Callable[..., Any]) -> None:
    """429 becomes a sentence with the seconds of Retry-After."""
    _, address = start()
    open_page(page, address)
    body = '{"error": {"message": "full", "type": "rate_limit_error", "param": null, "code": "queue_full"}}'
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=429, headers={"retry-after": "7"}, body=body)
    )
    send(page, "abc")
    expect(page.locator(".trouble")).to_contain_text("Try again in about 7 s.")


@needs_browser
def test_an_engine_that_fails_half_way_is_told(page: Any, start: Callable[..., Any]) -> None:
    """An error inside the stream keeps what had come, marked as broken off."""
    _, address = start()
    open_page(page, address)
    token = (
        '{"index":0,"token":1,"text":"b","entropy_bits":1.5,"gear":"low","source":"draft","round":1,"int4_layers":3}'
    )
    stream = (
        'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":null}],'
        f'"edgeprec":{{"tokens":[{token}],"acceptance_rate":1,"watts":4.5}}}}\n\n'
        'data: {"error":{"message":"the engine failed","type":"server_error","param":null,"code":"engine_failed"}}\n\n'
    )
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=200, content_type="text/event-stream", body=stream),
    )
    send(page, "abc")
    expect(page.locator(".trouble")).to_contain_text("The engine failed.")
    expect(page.locator(".summary").last).to_have_text("1 tokens · broken off")
    assert reply_text(page) == "b"
    expect(page.locator("[data-plot=watts] .value")).to_have_text("4.5 W")


@needs_browser
def test_markup_in_a_reply_stays_text(page: Any, start: Callable[..., Any]) -> None:
    """Neither the model nor a person can put elements into the page."""
    _, address = start()
    open_page(page, address)
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
    send(page, "<b>abc</b>")
    expect(page.locator(".assistant .text")).to_have_text("<img src=x onerror=alert(1)>")
    assert page.locator(".turn img, .turn b").count() == 0


@needs_browser
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
    send(page, "abc")
    expect(dialog).to_be_visible()
    expect(page.locator("#key-note")).to_contain_text("did not take that key")
    page.locator("#key").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.locator(".summary").last).to_contain_text("4 tokens")
    page.reload()
    expect(page.locator("#model")).to_have_text("toy")
    expect(dialog).to_be_hidden()


@needs_browser
@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_phone_needs_no_sideways_scrolling(page: Any, start: Callable[..., Any], width: int) -> None:
    """Empty and with a long reply, nothing is wider than the screen, and message field and plots are in view."""
    _, address = start(max_tokens=40)
    page.set_viewport_size({"width": width, "height": 780})
    open_page(page, address)
    for text in (None, "abc"):
        if text:
            send(page, text)
            expect(page.locator(".summary").last).to_contain_text("tokens")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for place in ("#prompt", "#send", "[data-plot=watts]", "[data-plot=entropy]"):
            expect(page.locator(place)).to_be_in_viewport(ratio=1)


@needs_browser
def test_tokens_are_reached_by_keyboard(page: Any, start: Callable[..., Any]) -> None:
    """Arrow keys walk through a reply and say what each token is; every control has a name."""
    _, address = start(max_tokens=6)
    open_page(page, address)
    send(page, "abc")
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


@needs_browser
def test_settings_reach_the_server(page: Any, start: Callable[..., Any]) -> None:
    """Mode, temperature and length become fields of the request; untouched ones are left to the server."""
    _, address = start(max_tokens=8)
    open_page(page, address)
    with page.expect_request("**/v1/chat/completions") as asked:
        send(page, "a")
    assert asked.value.post_data_json.keys() == {"messages", "stream", "stream_options"}
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    page.locator(".settings summary").click()
    page.locator("#mode").select_option("int4")
    page.locator("#temperature").fill("0.5")
    page.locator("#max-tokens").fill("3")
    with page.expect_request("**/v1/chat/completions") as asked:
        send(page, "b")
    body = asked.value.post_data_json
    assert (body["edgeprec"], body["temperature"], body["max_tokens"]) == ({"mode": "int4"}, 0.5, 3)
    expect(page.locator(".summary").last).to_contain_text("mode int4")
    expect(page.locator("[data-plot=acceptance] .value")).to_have_text("no drafts")
    tokens = page.locator(".assistant .text").last.locator(".token")
    sources = tokens.evaluate_all("all => all.map(one => one.dataset.source)")
    assert sources == ["target", "unverified", "unverified"]  # prefill is FP16 in every mode


@needs_browser
def test_light_and_dark_are_readable(page: Any, start: Callable[..., Any]) -> None:
    """The colours follow the system, and words stand out from page and tints by 4.5 to 1 or more."""
    _, address = start(max_tokens=12)
    pages = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        open_page(page, address)
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
