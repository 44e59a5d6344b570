"""An application on a real port, and a brake for its engine, so that a test sees a stream half-way."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from edgeprec.runtime.service.http_protocol import HttpProtocol


@contextmanager
def served_on_port(app: Any, *, port: int = 0) -> Iterator[str]:
    """Serve ``app`` in a thread until the end of the context; gives the address of the page."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)  # a browser that comes before the thread runs waits instead of being refused
    config = uvicorn.Config(
        app, http=HttpProtocol, ws="none", loop="asyncio", lifespan="on", log_config=None, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


class Brake:
    """Hand it over as ``before_pass``: passes beyond ``allowed`` wait until ``release``; inactive until ``arm``."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self._left = 0

    def arm(self, allowed: int) -> None:
        """Let so many passes run, then stand."""
        self._left = allowed
        self._free.clear()

    def release(self) -> None:
        """Let all passes run."""
        self._free.set()

    def __call__(self, _asked: Any) -> None:
        if self._free.is_set():
            return
        self._left -= 1
        if self._left < 0:
            assert self._free.wait(60), "nobody released the engine"
