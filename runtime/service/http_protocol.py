"""uvicorn's HTTP protocol with two things more: a limit for the head of a request, and a way to cut a connection."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["HttpProtocol"]

_HEAD_SECONDS = 30.0


class HttpProtocol(H11Protocol):
    """A client that does not get its request line and headers across in time loses the connection.

    ``scope["state"]["abort"]`` closes the connection at once, also when the client reads nothing.
    """

    head_seconds = _HEAD_SECONDS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        socket = cast("asyncio.Transport", transport)
        super().connection_made(socket)
        self.app_state = {**self.app_state, "abort": socket.abort}
        self._arm()

    def data_received(self, data: bytes) -> None:
        """Take bytes; the time limit holds until they make up a head."""
        super().data_received(data)
        is_waiting = self.cycle is None or self.cycle.response_complete
        if not is_waiting:
            self._disarm()
        elif self._head_timer is None:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait."""
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._head_timer = self.loop.call_later(self.head_seconds, self.transport.abort)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
