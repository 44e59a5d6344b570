"""A reply as server-sent events: one ``data:`` line a chunk, ``[DONE]`` at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgeprec.runtime.service.body import ClientGone
from edgeprec.runtime.service.client_watch import ClientWatch

__all__ = ["DONE", "EventStream", "event"]

DONE = b"data: [DONE]\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # proxies must not gather chunks
}


def event(value: Mapping[str, Any]) -> bytes:
    """Return one event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Sends ``events`` as they come. A client that goes, or reads nothing for ``stall_seconds``, ends it.

    ``on_end`` is called in every case: an iterator that never began has no ``finally`` that runs.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        watch: ClientWatch,
        *,
        stall_seconds: float,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events
        self._watch = watch
        self._stall_seconds = stall_seconds
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send_events(scope, send)
        except ClientGone:
            return
        finally:
            self._on_end()
            self._watch.close()
            await _close(self._events)

    async def _send_events(self, scope: Scope, send: Send) -> None:
        events = aiter(self._events)
        while True:
            data = await self._watch.first(_next(events))
            try:
                async with asyncio.timeout(self._stall_seconds):
                    body = {"type": "http.response.body", "body": data, "more_body": bool(data)}
                    await self._watch.first(_run(send, body))
            except TimeoutError:
                _abort(scope)
                return
            if not data:
                return


async def _next(events: AsyncIterator[bytes]) -> bytes:
    """Return the next event, nothing at the end."""
    return await anext(events, b"")


async def _run(send: Send, message: dict[str, Any]) -> None:
    await send(message)


async def _close(events: AsyncIterator[bytes]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()


def _abort(scope: Scope) -> None:
    """Close the connection at once, unsent bytes or not."""
    abort = scope.get("state", {}).get("abort")
    if abort is not None:
        abort()
