"""A connection to a server that cannot hold its client for ever: what does not come in time is one clear sentence.

A socket's own timeout begins anew with every byte, so a server that sends one now and then, or comments without end,
would never run into it. Here the time goes on until the caller says that something counted.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import SplitResult

from edgeprec.errors import EdgePrecError, EngineError
from edgeprec.runtime.benchmark_stream import excerpt

__all__ = ["LIMIT_BYTES", "Connection", "connected"]

LIMIT_BYTES = 1 << 20  # of a line, and of an answer that is no stream


class Connection:
    """One request to a server at ``url``. ``timeout_s`` is how long it may take for the next thing that counts."""

    def __init__(self, url: SplitResult, *, key: str | None, timeout_s: float) -> None:
        self.url = url.geturl()
        self.is_local = False  # whether the other end is this machine, once it is open
        self._parts = url
        self._key = key
        self._deadline = _Deadline(timeout_s)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._http = kind(url.hostname or "", url.port, timeout=timeout_s)

    def open(self) -> None:
        """Connect.

        Raises:
            EngineError: nobody can be reached there.
        """
        try:
            self._http.connect()
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise EngineError(
                f"the server {self.url} cannot be reached ({reason}): start it or check the URL"
            ) from error
        self.is_local = _is_local(self._http.sock)
        self._http.sock = _TimedSocket(self._http.sock, self._deadline)

    def close(self) -> None:
        """Close both ends of the connection."""
        self._http.close()

    def progressed(self) -> None:
        """Say that something came that counts: the time begins anew."""
        self._deadline.restart()

    @contextmanager
    def asking(self, method: str, path: str, body: bytes | None = None) -> Iterator[http.client.HTTPResponse]:
        """Send a request and give the answer, whose status is 200.

        Raises:
            EdgePrecError: the server refuses, breaks off, takes too long or talks no HTTP.
        """
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        self.progressed()
        with self._explaining():
            self._http.request(method, f"{self._parts.path}{path}", body, headers)
            response = self._http.getresponse()
        with response:
            if response.status != http.client.OK:
                raise self._refused(path, response)
            yield response

    def read(self, response: http.client.HTTPResponse) -> bytes:
        """Return an answer, up to a limit."""
        with self._explaining():
            return response.read(LIMIT_BYTES)

    def lines(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield the lines of an answer as they come, without their ends."""
        while True:
            with self._explaining():
                line = response.readline(LIMIT_BYTES + 1)
            if not line:
                return
            yield line.rstrip(b"\r\n")

    def _refused(self, path: str, response: http.client.HTTPResponse) -> EdgePrecError:
        text = self.read(response)
        if self._key:
            text = text.replace(self._key.encode(), b"***")  # some servers quote the key they do not know
        status = f"{response.status} {response.reason}".encode("utf-8", "replace")
        return EdgePrecError(
            f"the server {self.url} answered {path} with {excerpt(status)[1:-1]}: it says {excerpt(text)}"
        )

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn what goes wrong on the way into one sentence."""
        try:
            yield
        except TimeoutError as error:
            raise EdgePrecError(
                f"the server {self.url} said nothing that counts for {self._deadline.timeout_s:g} s: look at its log "
                "or raise --against-timeout"
            ) from error
        except http.client.HTTPException as error:
            raise EdgePrecError(
                f"the server {self.url} broke off or sent what is no HTTP ({_kind(error)}): see its log"
            ) from error
        except OSError as error:
            raise EdgePrecError(
                f"the connection to {self.url} broke ({error.strerror or error}): look at the server's log"
            ) from error


@contextmanager
def connected(url: SplitResult, *, key: str | None, timeout_s: float) -> Iterator[Connection]:
    """Open a connection and close it at the end of the block; see ``Connection.open``."""
    connection = Connection(url, key=key, timeout_s=timeout_s)
    with closing(connection):
        connection.open()
        yield connection


def _is_local(sock: socket.socket) -> bool:
    """Tell this machine: both ends of a connection to itself have the same address, or loop back."""
    here, there = sock.getsockname()[0], sock.getpeername()[0]
    return bool(here == there) or there.removeprefix("::ffff:").startswith("127.") or there == "::1"


class _Deadline:
    """The moment by which something must have come."""

    def __init__(self, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_s = timeout_s
        self._clock = clock
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self._end = self._clock() + self.timeout_s

    def apply(self, sock: socket.socket) -> None:
        """Let a socket wait for what is left of the time."""
        left = self._end - self._clock()
        if left <= 0.0:
            raise TimeoutError
        sock.settimeout(left)


class _TimedSocket:
    """What ``http.client`` needs of a socket."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._socket = sock
        self._deadline = deadline

    def sendall(self, data: Any) -> None:
        self._deadline.apply(self._socket)
        self._socket.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self._socket, self._deadline))

    def close(self) -> None:
        self._socket.close()


class _TimedReader(io.RawIOBase):
    """The bytes of a socket; it keeps the socket open until it is closed itself."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._socket = sock
        self._raw = sock.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._deadline.apply(self._socket)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _kind(error: http.client.HTTPException) -> str:
    return excerpt(str(error).encode("utf-8", "replace")) if str(error) else type(error).__name__
