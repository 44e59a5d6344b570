"""What the web page tells when a request fails: refused, no server, a full queue, an engine that gives up."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from edgeprec.runtime.service.app import WEB_FOLDER

chat = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("chat_page.py"))))
expect = chat.expect


def test_a_refusal_is_told_kindly(page: Any, start: Callable[..., Any]) -> None:
    """Both numbers of an over-long prompt are shown, the message stays, and nothing half-made is left behind."""
    _, address = start()
    chat.open_page(page, address)
    chat.send(page, "a" * 100)
    trouble = page.locator(".trouble")
    expect(trouble).to_have_attribute("role", "alert")
    expect(trouble).to_contain_text("The server did not take this")
    expect(trouble).to_contain_text("64")
    assert page.locator(".assistant").count() == 0
    assert page.locator(".user .text").text_content() == "a" * 100
    expect(page.locator("[data-plot=watts] .value")).to_have_text("\u2013")  # nothing came, so nothing was missed
    chat.send(page, "b")
    expect(page.locator(".summary").last).to_contain_text("mode exact")
    expect(trouble).to_have_count(0)


def test_a_server_that_is_gone_is_told_and_tried_again(
    page: Any, web: ModuleType, make_served: Callable[..., Any]
) -> None:
    """The page says so, keeps the message, and its button answers it once a server is back."""
    with web.served_on_port(make_served(web_folder=WEB_FOLDER, max_tokens=5).app) as address:
        chat.open_page(page, address)
    chat.send(page, "abc")
    expect(page.locator(".trouble")).to_contain_text("The server does not answer")
    expect(page.locator("#lamp")).to_have_attribute("data-state", "trouble")
    with web.served_on_port(make_served(max_tokens=5).app, port=int(address.rsplit(":", 1)[1].strip("/"))):
        page.locator(".trouble button").click()
        expect(page.locator(".summary").last).to_contain_text("5 tokens")
        expect(page.locator("#lamp")).to_have_attribute("data-state", "ready")
        expect(page.locator(".trouble")).to_have_count(0)


def test_a_full_queue_is_told_with_the_time_to_wait(page: Any, start: Callable[..., Any]) -> None:
    """429 becomes a sentence with the seconds of Retry-After."""
    _, address = start()
    chat.open_page(page, address)
    body = '{"error": {"message": "full", "type": "rate_limit_error", "param": null, "code": "queue_full"}}'
    page.route(
        "**/v1/chat/completions", lambda route: route.fulfill(status=429, headers={"retry-after": "7"}, body=body)
    )
    chat.send(page, "abc")
    expect(page.locator(".trouble")).to_contain_text("Try again in about 7 s.")


def test_an_engine_that_fails_half_way_is_told(page: Any, start: Callable[..., Any]) -> None:
    """An error inside the stream keeps what had come, marked as broken off."""
    _, address = start()
    chat.open_page(page, address)
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
    chat.send(page, "abc")
    expect(page.locator(".trouble")).to_contain_text("The engine failed.")
    expect(page.locator(".summary").last).to_have_text("1 tokens · broken off")
    assert chat.reply_text(page) == "b"
    expect(page.locator("[data-plot=watts] .value")).to_have_text("4.5 W")
