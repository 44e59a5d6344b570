"""Tell a service manager how it goes: systemd's notification protocol, datagrams to the socket in ``NOTIFY_SOCKET``.

Without that variable nothing is sent. A message that cannot be sent is logged once and never stops the server.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping

__all__ = ["Notifier"]

_log = logging.getLogger(__name__)


class Notifier:
    """Sends states to ``address``, None = to nobody. ``watchdog_s`` is within how long a sign of life is wanted."""

    def __init__(self, address: str | None = None, *, watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s
        self._address = address
        self._has_failed = False

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, pid: int | None = None) -> Notifier:
        """Read ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID``, as the manager set them for ``pid``."""
        microseconds = environ.get("WATCHDOG_USEC", "")
        is_ours = environ.get("WATCHDOG_PID", str(pid or os.getpid())) == str(pid or os.getpid())
        is_number = microseconds.isdecimal() and int(microseconds) > 0
        return cls(
            environ.get("NOTIFY_SOCKET") or None, watchdog_s=int(microseconds) * 1e-6 if is_ours and is_number else None
        )

    def ready(self, status: str) -> None:
        """Say that requests are answered now."""
        self._send("READY=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Say in words what goes on."""
        self._send(f"STATUS={status}")

    def feed_watchdog(self) -> None:
        """Give a sign of life."""
        self._send("WATCHDOG=1")

    def stopping(self, status: str) -> None:
        """Say that the end has begun."""
        self._send("STOPPING=1", f"STATUS={status}")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        message = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)  # a manager that does not read must not hold up the server
                channel.sendto(message.encode(), address)
        except OSError as error:
            self._note_failure(error)

    def _note_failure(self, error: OSError) -> None:
        if not self._has_failed:
            _log.warning("the service manager cannot be told: %s", error.strerror or error)
        self._has_failed = True
