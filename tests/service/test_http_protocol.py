"""The limit for a request's head, and the way to cut a connection, on a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn

from edgeprec.runtime.service.http_protocol import HttpProtocol

App = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class Impatient(HttpProtocol):
    """Waits hardly at all."""

    head_seconds = 0.05


async def hello(_scope: dict[str, Any], _receive: Any, send: Any) -> None:
    """Answer at once."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def talk(app: App, *pieces: bytes | Callable[[], Awaitable[object]]) -> bytes:
    """Send pieces one after the other, or await what is none, and return all that comes until the connection ends."""

    async def go() -> bytes:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, http=Impatient, ws="none", lifespan="off", log_config=None)  # type: ignore[arg-type]
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        for piece in pieces:
            if isinstance(piece, bytes):
                writer.write(piece)
                await writer.drain()
            else:
                await piece()
        async with asyncio.timeout(30):
            try:
                data = await reader.read()
            except ConnectionResetError:
                data = b""
        writer.close()
        server.should_exit = True
        await task
        return data

    return asyncio.run(go())


def test_a_head_that_does_not_arrive_ends_the_connection() -> None:
    """Nothing at all, or a beginning: the time counts from the connection."""
    assert talk(hello) == b""
    assert talk(hello, b"GET / HT") == b""


def test_bytes_do_not_stretch_the_time() -> None:
    """A client that sends one byte after the other is cut off like one that sends none."""

    async def turn() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    assert talk(hello, b"G", turn, b"E", turn, b"T", turn, b" ") == b""


def test_the_head_of_a_second_request_has_the_same_limit() -> None:
    """The first is answered; the connection then ends although bytes came."""
    answer = talk(hello, REQUEST, b"GET / ")
    assert answer.count(b"HTTP/1.1 200") == 1
    assert answer.endswith(b"hi")


def test_an_answer_may_take_longer_than_a_head() -> None:
    """The limit is the client's, not the engine's."""

    async def slow(scope: dict[str, Any], receive: Any, send: Any) -> None:
        ready = asyncio.Event()
        asyncio.get_running_loop().call_later(4 * Impatient.head_seconds, ready.set)
        await ready.wait()
        await hello(scope, receive, send)

    assert talk(slow, b"GET / HTTP/1.0\r\nhost: a\r\n\r\n").endswith(b"hi")


def test_a_connection_can_be_cut() -> None:
    """An application that has lost patience ends it in the middle of its answer."""

    async def cut(scope: dict[str, Any], _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"99")]})
        scope["state"]["abort"]()

    assert b"hi" not in talk(cut, REQUEST)
