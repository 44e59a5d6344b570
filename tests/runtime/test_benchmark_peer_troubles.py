"""Servers that go wrong on purpose: endless answers, broken URLs, secrets, JSON that Python cannot take."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import chain, repeat
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.config import GenerationConfig
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.runtime import benchmark_connection
from edgeprec.runtime.benchmark_case import Job
from edgeprec.runtime.benchmark_peer import open_peer
from edgeprec.runtime.benchmark_repeat import Repeat

JOB = Job("p1", "code", (1, 2, 3), "def f(", 7)
CONFIG = GenerationConfig()


@pytest.fixture(scope="session")
def servers() -> ModuleType:
    """Return the module of scripted servers."""
    path = Path(__file__).parents[1] / "factories" / "completions_server.py"
    found = spec_from_file_location("edgeprec_factories_completions_server_troubles", path)
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture
def serve(servers: ModuleType) -> Iterator[Callable[..., Any]]:
    """Return ``serve(reply, **settings)``: a server that lives as long as the test."""
    running: list[Any] = []

    def start(*arguments: Any, **settings: Any) -> Any:
        running.append(servers.CompletionsServer(*arguments, **settings))
        return running[-1].__enter__()

    yield start
    for server in running:
        server.__exit__(None, None, None)


ENDLESS: dict[str, Callable[[ModuleType], Iterator[bytes]]] = {
    "comments": lambda _servers: repeat(b": still here\n\n"),
    "drip": lambda _servers: repeat(b"x"),
    "events without text": lambda _servers: repeat(b'data: {"choices": []}\n\n'),
    "comments after a token": lambda servers: chain([servers.chunk("a")], repeat(b":\n")),
    "comments after the end": lambda servers: chain([servers.chunk("a", finish_reason="stop")], repeat(b":\n")),
}


@pytest.mark.parametrize("kind", list(ENDLESS))
def test_an_endless_answer_ends_the_wait(serve: Callable[..., Any], servers: ModuleType, kind: str) -> None:
    """What a socket's timeout never notices: bytes come all the time, and none of them is a token."""

    def reply(_request: dict[str, Any]) -> Iterator[bytes]:
        for part in ENDLESS[kind](servers):
            yield part
            released.wait(0.005)

    released = threading.Event()
    peer = open_peer(serve(reply).url, timeout_s=0.3)
    with pytest.raises(EdgePrecError, match=r"said nothing that counts for 0.3 s"):
        peer.complete(JOB, CONFIG)


def test_a_server_that_never_stops_generating_is_left(serve: Callable[..., Any], servers: ModuleType) -> None:
    """Seven tokens were asked for: it may send a few empty chunks beside them, and no more."""
    server = serve(lambda _request: repeat(servers.chunk("a")))
    with pytest.raises(EdgePrecError, match="sent 79 chunks where 7 tokens were asked for, and does not end"):
        open_peer(server.url).complete(JOB, CONFIG)


def test_headers_that_never_end_are_left() -> None:
    """One byte now and then, before there is an answer at all."""
    listener = socket.create_server(("127.0.0.1", 0))
    released = threading.Event()

    def talk() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not released.wait(0.02):
                connection.sendall(b"x")

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        with pytest.raises(EdgePrecError, match=r"said nothing that counts for 0.2 s"):
            open_peer(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2)
    finally:
        released.set()
        thread.join()
        listener.close()


def test_a_slow_server_that_goes_on_is_waited_for(serve: Callable[..., Any], servers: ModuleType) -> None:
    """The time is that of one token, not of the whole answer."""
    pause = threading.Event()

    def reply(request: dict[str, Any]) -> Iterator[bytes]:
        for part in servers.stream_of("a", "b", "c", "d")(request):
            pause.wait(0.12)
            yield part

    assert open_peer(serve(reply).url, timeout_s=0.5).complete(JOB, CONFIG).text == "abcd"


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://host:port/v1",
        "http://host:99999/v1",
        "http://host:0/v1",
        "http://a..b/v1",
        f"http://{'a' * 70}.org/v1",
        "http://h\u00f6st/v1",
        "http://host/a b/v1",
        "http://host/\u00e4/v1",
        "http://ho\x00st/v1",
        "http://ho\x1b[31mst/v1",
        "http://host/\ud800",
        "http://host\n/v1",
        "//host/v1",
    ],
)
def test_a_malformed_url_is_one_sentence(url: str) -> None:
    """Whatever a library would say of it: the flag is named, and the line can be printed."""
    with pytest.raises(
        ConfigError, match=r"--against is .*, expected a URL such as http://127.0.0.1:8000/v1"
    ) as caught:
        open_peer(url)
    assert str(caught.value).isprintable()
    assert str(caught.value).isascii()


@pytest.mark.parametrize(
    "url",
    ["http://user:hunter2@host/v1", "http://hunter2@host", "ftp://user:hunter2@host", "http://host/v1?key=hunter2"],
)
def test_what_is_secret_in_a_url_is_not_told(url: str) -> None:
    """A result carries the URL, and an error is copied into a report: neither shows a password."""
    with pytest.raises(ConfigError, match=r"--against is '.*\*\*\*") as caught:
        open_peer(url)
    assert "hunter2" not in str(caught.value)


def test_a_key_that_a_server_quotes_is_not_told(serve: Callable[..., Any]) -> None:
    """Some servers repeat the key they do not know."""
    server = serve(lambda _request: iter([b'{"error": "wrong key sesame-1"}']), status=401)
    with pytest.raises(EdgePrecError, match=r"answered /completions with 401 Unauthorized: .*wrong key \*\*\*"):
        open_peer(server.url, key="sesame-1").complete(JOB, CONFIG)


def test_lone_surrogates_are_text(serve: Callable[..., Any]) -> None:
    """JSON can escape what UTF-8 cannot hold: it is hashed, and names are made printable."""
    parts = [b'data: {"choices": [{"text": "a\\ud800", "finish_reason": "stop\\udfff"}]}\n\n']
    parts += [b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}\n\n', b"data: [DONE]\n\n"]
    server = serve(lambda _request: iter(parts), models=b'{"data": [{"id": "m\\ud800", "owned_by": "o\\ud800"}]}')
    peer = open_peer(server.url)
    assert (peer.model, peer.engine) == ("m\ud800", "o?")
    done = peer.complete(JOB, CONFIG)
    repeats = [Repeat(generated=(one,), energy=None, energy_note=None) for one in (done, replace(done, text="a\ud801"))]
    assert len({one.text_sha256 for one in repeats}) == 2
    with pytest.raises(ConfigError, match=r"has no model 'x', only m\?"):
        open_peer(server.url, model="x")


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    ("reply", "models", "expected"),
    [
        (b"data: " + DEEP + b"\n", None, "sent what is no completion after 0 chunks: '[[["),
        (b'data: {"choices": ' + DEEP + b"}\n", None, "sent what is no completion after 0 chunks"),
        (b'data: {"error": "\\ud800"}\n', None, "failed after 0 chunks: it says "),
        (b"", b'{"data": ' + DEEP + b"}", "is no list of models"),
    ],
)
def test_deep_or_broken_json_is_one_sentence(
    serve: Callable[..., Any], reply: bytes, models: bytes | None, expected: str
) -> None:
    """A server cannot bring its client down with brackets."""
    with pytest.raises(EdgePrecError, match=re.escape(expected)) as caught:
        open_peer(serve(lambda _request: iter([reply]), models=models).url).complete(JOB, CONFIG)
    assert str(caught.value).isprintable()


def test_counts_no_number_can_hold_are_refused(serve: Callable[..., Any], servers: ModuleType) -> None:
    """An integer of 400 digits is no count of tokens."""
    server = serve(lambda _request: iter([servers.chunk("a"), servers.usage(4, 10**400), b"data: [DONE]\n\n"]))
    with pytest.raises(EdgePrecError, match="sent no usable counts of tokens"):
        open_peer(server.url).complete(JOB, CONFIG)


@dataclass
class FakeSocket:
    """Two ends of a connection."""

    here: str
    there: str

    def getsockname(self) -> tuple[str, int]:
        """Return this end."""
        return (self.here, 1)

    def getpeername(self) -> tuple[str, int]:
        """Return the other end."""
        return (self.there, 2)


@pytest.mark.parametrize(
    ("here", "there", "is_local"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.1.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("192.168.1.5", "192.168.1.5", True),
        ("192.168.1.5", "192.168.1.6", False),
        ("10.0.0.1", "8.8.8.8", False),
        ("fe80::1", "fe80::2", False),
    ],
)
def test_a_server_on_this_machine_is_told_from_others(here: str, there: str, is_local: bool) -> None:
    """Loopback, or one of this machine's own addresses; what listens elsewhere draws its power there."""
    assert benchmark_connection._is_local(FakeSocket(here, there)) is is_local  # type: ignore[arg-type]
