"""What a service manager is told, read from a real datagram socket."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeprec.runtime.service.notify import Notifier


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """Return a socket that takes datagrams at ``tmp_path / "notify"``."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        yield listening


def test_each_state_is_one_datagram(manager: socket.socket, tmp_path: Path) -> None:
    """The words are systemd's, one assignment a line."""
    notifier = Notifier(str(tmp_path / "notify"))
    notifier.status("loading")
    notifier.ready("answering")
    notifier.feed_watchdog()
    notifier.stopping("finishing\nrequests")
    assert [manager.recv(1000) for _ in range(4)] == [
        b"STATUS=loading",
        b"READY=1\nSTATUS=answering",
        b"WATCHDOG=1",
        b"STOPPING=1\nSTATUS=finishing requests",
    ]


def test_an_abstract_socket_is_reached() -> None:
    """systemd may give a name that begins with @, which stands for a zero byte."""
    name = f"edgeprec-test-{id(object())}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0{name}")
        listening.settimeout(10)
        Notifier(f"@{name}").feed_watchdog()
        assert listening.recv(100) == b"WATCHDOG=1"


@pytest.mark.parametrize(
    ("environ", "address", "watchdog_s"),
    [
        ({}, None, None),
        ({"NOTIFY_SOCKET": ""}, None, None),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, "/run/n", 30.0),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, "/run/n", None),
        ({"NOTIFY_SOCKET": "/run/n", "WATCHDOG_USEC": "500000"}, "/run/n", 0.5),
        ({"WATCHDOG_USEC": "soon"}, None, None),
        ({"WATCHDOG_USEC": "0"}, None, None),
    ],
)
def test_the_environment_is_read(environ: dict[str, str], address: str | None, watchdog_s: float | None) -> None:
    """The watchdog of another process is not ours."""
    notifier = Notifier.from_environment(environ, pid=7)
    assert (notifier._address, notifier.watchdog_s) == (address, watchdog_s)


def test_nobody_is_told_without_a_manager() -> None:
    """Started by hand, the server says nothing to anybody."""
    Notifier().ready("answering")


def test_a_manager_that_is_gone_is_mentioned_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server goes on, and the log is not filled."""
    notifier = Notifier(str(tmp_path / "gone"))
    with caplog.at_level(logging.WARNING):
        notifier.feed_watchdog()
        notifier.feed_watchdog()
    assert [record.message for record in caplog.records] == [
        "the service manager cannot be told: No such file or directory"
    ]


def test_a_manager_that_does_not_read_holds_nobody_up(manager: socket.socket, tmp_path: Path) -> None:
    """Its queue fills up; further messages are dropped."""
    notifier = Notifier(str(tmp_path / "notify"))
    for _ in range(5000):
        notifier.feed_watchdog()
    assert manager.recv(100) == b"WATCHDOG=1"
