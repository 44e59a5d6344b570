"""The sending of a stream by itself: when the client is gone before it begins, and when its source fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from edgeprec.runtime.service.client_watch import ClientWatch
from edgeprec.runtime.service.event_stream import DONE, EventStream, event


async def gone() -> dict[str, Any]:
    """Be a client that has hung up."""
    return {"type": "http.disconnect"}


async def there() -> dict[str, Any]:
    """Be a client that stays."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def two_events() -> AsyncIterator[bytes]:
    """Yield a short stream."""
    yield event({"text": "Zoë\n"})
    yield DONE


def send_to(receive: Any, events: AsyncIterator[bytes], ended: list[bool]) -> list[dict[str, Any]]:
    """Send a stream and return the messages of the answer."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def go() -> None:
        stream = EventStream(events, ClientWatch(receive), stall_seconds=9, on_end=lambda: ended.append(True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await stream({"type": "http"}, receive, send)

    asyncio.run(go())
    return messages


def test_events_are_lines_of_utf8() -> None:
    """One ``data:`` line each, whatever the text holds, and an empty last message."""
    ended: list[bool] = []
    messages = send_to(there, two_events(), ended)
    assert messages[0]["status"] == 200
    assert (b"content-type", b"text/event-stream; charset=utf-8") in messages[0]["headers"]
    assert not [name for name, _ in messages[0]["headers"] if name == b"content-length"]
    bodies = [(message["body"], message["more_body"]) for message in messages[1:]]
    assert bodies == [('data: {"text":"Zoë\\n"}\n\n'.encode(), True), (b"data: [DONE]\n\n", True), (b"", False)]
    assert ended == [True]


def test_a_client_that_is_gone_before_the_first_event_ends_it() -> None:
    """The wait for tokens is over, and what feeds the stream is told."""

    async def waiting() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    ended: list[bool] = []
    messages = send_to(gone, waiting(), ended)
    assert [message["type"] for message in messages] == ["http.response.start"]
    assert ended == [True]


def test_a_source_that_fails_is_told_too() -> None:
    """The failure is the caller's to log."""

    async def failing() -> AsyncIterator[bytes]:
        yield event({})
        raise ZeroDivisionError

    ended: list[bool] = []
    with pytest.raises(ZeroDivisionError):
        send_to(there, failing(), ended)
    assert ended == [True]
