"""Run the server until it is told to end: the socket, uvicorn, signals, and an orderly end.

The first SIGTERM or SIGINT begins the end: nothing more is accepted, what runs and waits may finish within the
drain time, what is left is then cancelled. A second signal cancels at once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from edgeprec.errors import ConfigError
from edgeprec.runtime.service.app import build_app
from edgeprec.runtime.service.engine_room import EngineRoom
from edgeprec.runtime.service.http_protocol import HttpProtocol
from edgeprec.runtime.service.notify import Notifier
from edgeprec.runtime.service.settings import ServiceSettings
from edgeprec.runtime.service.trace_log import TraceLog
from edgeprec.runtime.session import Session

__all__ = ["run_service"]

_log = logging.getLogger(__name__)
_BACKLOG = 256
_CANCEL_SECONDS = 10  # what cancelled requests get to say so to their clients
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_service(
    open_session: Callable[[], Session],
    settings: ServiceSettings,
    *,
    notifier: Notifier,
    say: Callable[[str], None],
) -> None:
    """Serve until a signal comes; returns after an orderly end. ``say`` is told when it listens and when it answers.

    Raises:
        ConfigError: it cannot listen there, or the key file or the trace is not good.
        EdgePrecError: the bundle cannot be loaded or does not run here.
    """
    trace = None if settings.trace is None else TraceLog.open(settings.trace)
    room = EngineRoom(open_session, settings, trace=trace)
    with _listening(settings) as listener:
        host, port = listener.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

        def stop() -> None:
            server.should_exit = True

        app = build_app(
            room,
            notifier=notifier,
            on_loaded=lambda: say(f"answering at {address}/v1 with the model {settings.model_name}"),
            on_failed=stop,
        )
        server = _Server(_uvicorn_config(app, settings), room, notifier)
        say(f"listening on {address}, loading {settings.model_name}")
        notifier.status(f"loading {settings.model_name}")
        server.run(sockets=[listener])
    if room.failure is not None:
        raise room.failure


class _Server(uvicorn.Server):
    """uvicorn's server with this server's end."""

    def __init__(self, config: uvicorn.Config, room: EngineRoom, notifier: Notifier) -> None:
        super().__init__(config)
        self._room = room
        self._notifier = notifier

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let the event loop handle signals, and do not raise them again afterwards: this end is the wanted one."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        if self.should_exit:
            self._room.session.cancel_all()
            return
        seconds = self._room.settings.drain_seconds
        _log.info("ending: requests have %g s to finish", seconds)
        self._notifier.stopping("finishing requests")
        self._room.drain()
        asyncio.get_running_loop().call_later(seconds, self._room.session.cancel_all)
        self.should_exit = True


def _uvicorn_config(app: object, settings: ServiceSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,  # type: ignore[arg-type]
        http=HttpProtocol,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds) + _CANCEL_SECONDS,
    )


@contextmanager
def _listening(settings: ServiceSettings) -> Iterator[socket.socket]:
    """Listen before the model is loaded, so that a port that is taken is told at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(_BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}; choose another "
                "--host or --port"
            ) from error
        yield listener
