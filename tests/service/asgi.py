"""Plays server and client to an application in one event loop: bodies arrive and answers are read as a test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[None]:
    """Live through the application's start and end."""
    to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan", "state": {}}, to_app.get, from_app.put))
    await to_app.put({"type": "lifespan.startup"})
    assert (await from_app.get())["type"] == "lifespan.startup.complete"
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        assert (await from_app.get())["type"] == "lifespan.shutdown.complete"
        await task


@dataclass
class Exchange:
    """One request. ``send`` is awaited with every message of the answer; by default it is only kept."""

    app: Any
    path: str = "/v1/completions"
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    on_send: Callable[[dict[str, Any]], Awaitable[None]] | None = None
    state: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.task: asyncio.Task[None] | None = None

    def begin(self, body: Any = None) -> Exchange:
        """Send the whole body, None = nothing of it yet, and let the application run."""
        if body is not None:
            self.feed(body if isinstance(body, bytes) else json.dumps(body).encode(), more=False)
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "headers": [(b"host", b"127.0.0.1")]
            + [(name.encode(), value.encode()) for name, value in self.headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": self.state,
        }
        self.task = asyncio.create_task(self.app(scope, self.to_app.get, self._send))
        return self

    def feed(self, data: bytes, *, more: bool = True) -> None:
        """Let a piece of the body arrive."""
        self.to_app.put_nowait({"type": "http.request", "body": data, "more_body": more})

    def hang_up(self) -> None:
        """Close the client's end."""
        self.to_app.put_nowait({"type": "http.disconnect"})

    async def end(self) -> Exchange:
        """Wait until the application has answered."""
        assert self.task is not None
        async with asyncio.timeout(30):
            await self.task
        return self

    @property
    def status(self) -> int:
        """Return the answer's status."""
        return int(self.messages[0]["status"])

    @property
    def body(self) -> bytes:
        """Return what has been answered so far."""
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def json(self) -> Any:
        """Return the answer's value."""
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        """Return a header of the answer."""
        found = [value for key, value in self.messages[0]["headers"] if key.decode().lower() == name]
        return found[0].decode() if found else None

    async def _send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.arrived.set()
        if self.on_send is not None:
            await self.on_send(message)


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop turn until ``condition`` holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0)
