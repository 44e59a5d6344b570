"""The server as users run it: its own process, a real bundle, real sockets, OpenAI's own client, and signals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

PATIENCE_S = 180.0  # on a busy machine a start takes its time
CONVERSATION: Any = [{"role": "user", "content": "the thing and"}]


class Server:
    """One ``edgeprec serve`` in a process of its own."""

    def __init__(self, bundle: Path, *flags: str, environ: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "edgeprec", "serve", str(bundle), "--port", "0", "--threads", "1", *flags]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"} | (environ or {})
        )
        self.lines: list[str] = []
        self.url = ""

    def wait_for(self, word: str) -> str:
        """Read the server's words until a line holds ``word``."""
        assert self.process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stderr, selectors.EVENT_READ)
            deadline = time.monotonic() + PATIENCE_S
            while not (self.lines and word in self.lines[-1]):
                assert selector.select(max(0.0, deadline - time.monotonic())), f"no {word!r} in {self.lines}"
                line = self.process.stderr.readline()
                assert line, f"it ended without {word!r}: {self.lines}"
                self.lines.append(line)
        return self.lines[-1]

    def wait_until_ready(self) -> Server:
        """Wait for the warm-up."""
        found = re.search(r"http://127\.0\.0\.1:\d+", self.wait_for("answering at"))
        assert found is not None
        self.url = found.group()
        return self

    @property
    def port(self) -> int:
        """Return where it listens."""
        return int(self.url.rpartition(":")[2])

    def client(self) -> openai.OpenAI:
        """Return OpenAI's client, as a program would make it."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE_S)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        _, words = self.process.communicate(timeout=PATIENCE_S)
        self.lines.append(words)
        return self.process.returncode


@pytest.fixture
def serve(tiny_pair: Path) -> Iterator[Callable[..., Server]]:
    """Return ``serve(*flags)``: a server that answers, killed after the test."""
    servers: list[Server] = []

    def start(*flags: str, bundle: Path = tiny_pair, environ: dict[str, str] | None = None) -> Server:
        servers.append(Server(bundle, *flags, environ=environ))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.communicate()


@pytest.fixture(scope="module")
def shared(tiny_pair: Path) -> Iterator[Server]:
    """Return one server for the tests that leave it as it was."""
    server = Server(tiny_pair)
    try:
        yield server.wait_until_ready()
    finally:
        server.process.kill()
        server.process.communicate()


def test_openais_client_talks_to_it(shared: Server) -> None:
    """Unchanged: models, a conversation, a completion, streams, usage, log probabilities, and the facts beside them."""
    client = shared.client()
    assert [model.id for model in client.models.list().data] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "edgeprec"
    reply = client.chat.completions.create(
        model="tiny", messages=CONVERSATION, max_tokens=12, logprobs=True, top_logprobs=2, seed=3, temperature=0.9
    )
    choice = reply.choices[0]
    assert reply.usage is not None
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert reply.usage.completion_tokens == len(choice.logprobs.content) <= 12
    assert reply.model_extra["edgeprec"]["mode"] == "exact"  # type: ignore[index]
    stream = client.chat.completions.create(
        model="tiny", messages=CONVERSATION, max_tokens=12, seed=3, temperature=0.9, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == choice.message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens
    completion = client.completions.create(
        model="tiny", prompt="the", max_tokens=5, logprobs=1, extra_body={"ignore_eos": True}
    )
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 5


def test_openais_client_raises_its_own_errors(shared: Server) -> None:
    """Each status is the class programs catch."""
    client = shared.client()
    with pytest.raises(openai.BadRequestError, match="the field 'n' is 2") as raised:
        client.chat.completions.create(model="tiny", messages=CONVERSATION, n=2)
    assert raised.value.param == "n"
    with pytest.raises(openai.NotFoundError, match="this server has 'tiny'"):
        client.chat.completions.create(model="gpt-9", messages=CONVERSATION)
    with pytest.raises(openai.BadRequestError, match=r"the prompt has \d+ tokens, the context holds \d+"):
        client.completions.create(model="tiny", prompt="and " * 3000)


def test_concurrent_clients_get_the_replies_of_single_ones(shared: Server) -> None:
    """Eight at once, each with its own prompt and seed: nobody gets another's tokens."""
    client = shared.client()

    def ask(seed: int) -> str:
        reply = client.completions.create(
            model="tiny", prompt=f"the {seed} and", max_tokens=24, seed=seed, temperature=1.0
        )
        return reply.choices[0].text

    alone = [ask(seed) for seed in range(8)]
    found: dict[int, str] = {}
    threads = [threading.Thread(target=lambda seed=seed: found.update({seed: ask(seed)})) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert [found[seed] for seed in range(8)] == alone
    assert len(set(alone)) > 1


def test_a_closed_stream_stops_the_generation(shared: Server) -> None:
    """The engine is free again although the reply was far from its end."""
    with shared.client().completions.create(
        model="tiny", prompt="the", max_tokens=190, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    while "edgeprec_running 0.0" not in httpx2.get(f"{shared.url}/metrics", timeout=PATIENCE_S).text:
        pass
    assert httpx2.get(f"{shared.url}/health", timeout=PATIENCE_S).status_code == 200


def test_a_client_that_sends_one_byte_holds_nobody_up(shared: Server) -> None:
    """Half a head, half a body and silence: others are answered meanwhile."""
    with contextlib.ExitStack() as stack:
        halves = [b"P", b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 900\r\n\r\n{", b""]
        for half in halves * 5:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", shared.port)))
            connection.sendall(half)
        assert shared.client().completions.create(model="tiny", prompt="the", max_tokens=2).choices


def test_a_reader_that_does_not_read_holds_nobody_up(shared: Server) -> None:
    """Its tokens wait in the server, others get theirs."""
    body = json.dumps({"prompt": "the", "max_tokens": 190, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", shared.port))
        connection.sendall(head + body)
        assert shared.client().completions.create(model="tiny", prompt="the", max_tokens=2).choices


def test_garbage_is_no_request(shared: Server) -> None:
    """Bytes that are no HTTP are refused and the server goes on."""
    with socket.create_connection(("127.0.0.1", shared.port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"\x16\x03\x01garbage\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert httpx2.get(f"{shared.url}/ready", timeout=PATIENCE_S).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_finishes_what_was_asked(serve: Callable[..., Server], number: int) -> None:
    """What runs and what waits is answered whole, new connections are refused, the exit code is 0."""
    server = serve().wait_until_ready()
    client, texts = server.client(), []

    def ask() -> None:
        for chunk in client.completions.create(
            model="tiny", prompt="the", max_tokens=150, stream=True, extra_body={"ignore_eos": True}
        ):
            began.release()
            texts.append(chunk.choices[0].finish_reason)

    began = threading.Semaphore(0)
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert began.acquire(timeout=PATIENCE_S)
    while (
        "edgeprec_queue_waiting 3.0" not in httpx2.get(f"{server.url}/metrics", timeout=PATIENCE_S).text
        and texts.count("length") < 1
    ):
        pass
    assert server.end(number) == 0
    for thread in threads:
        thread.join(PATIENCE_S)
    assert texts.count("length") == 4
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{server.url}/ready", timeout=PATIENCE_S)


def test_the_drain_has_an_end(serve: Callable[..., Server]) -> None:
    """With no time to finish, what runs is cut off with an error and the exit code is still 0."""
    server = serve("--drain-seconds", "0", "--context", "200").wait_until_ready()
    stream = server.client().completions.create(
        model="tiny", prompt="the", max_tokens=190, stream=True, extra_body={"ignore_eos": True}
    )
    iterator = iter(stream)
    next(iterator)
    server.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(openai.APIError):  # a fast machine may have generated it all
        list(iterator)
    assert server.end() == 0


def test_a_killed_server_starts_again(serve: Callable[..., Server]) -> None:
    """On the same port, with the same replies: nothing of it was anywhere else."""
    server = serve().wait_until_ready()
    before = server.client().completions.create(model="tiny", prompt="the", max_tokens=9).choices[0].text
    port = server.port
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    again = serve("--port", str(port)).wait_until_ready()
    assert again.port == port
    assert again.client().completions.create(model="tiny", prompt="the", max_tokens=9).choices[0].text == before


def test_a_taken_port_is_told(serve: Callable[..., Server], shared: Server) -> None:
    """Before anything is loaded; exit code 2."""
    server = serve("--port", str(shared.port))
    assert server.process.wait(PATIENCE_S) == 2
    assert server.process.stderr is not None
    assert f"cannot listen on 127.0.0.1 port {shared.port}: Address already in use" in server.process.stderr.read()


def test_a_bundle_that_cannot_be_loaded_ends_the_server(serve: Callable[..., Server], tmp_path: Path) -> None:
    """With its own exit code, so that a service manager does not try for ever."""
    server = serve(bundle=tmp_path / "none.edgeprec")
    assert server.process.wait(PATIENCE_S) == 3
    assert server.process.stderr is not None
    assert "none.edgeprec" in server.process.stderr.read()


def test_systemd_hears_of_every_state(serve: Callable[..., Server], tmp_path: Path) -> None:
    """READY after the warm-up, signs of life while the engine answers, STOPPING with the signal."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
        server = serve(environ=environ).wait_until_ready()
        first = manager.recv(1000)
        while b"READY=1" not in first:
            assert b"WATCHDOG" not in first
            first = manager.recv(1000)
        assert manager.recv(1000) == manager.recv(1000) == b"WATCHDOG=1"
        assert server.end() == 0
        last = manager.recv(1000)
        while b"STOPPING=1" not in last:
            last = manager.recv(1000)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_a_full_disk_ends_the_trace_only(serve: Callable[..., Server]) -> None:
    """Replies go on, the log says once why nothing is traced any more."""
    server = serve("--trace", "/dev/full").wait_until_ready()
    for _ in range(3):
        assert server.client().completions.create(model="tiny", prompt="the", max_tokens=2).choices
    assert server.end() == 0
    assert server.lines[-1].count("tracing has ended, replies go on") == 1
    assert "No space left on device" in server.lines[-1]


def test_a_sensor_that_dies_ends_measuring_only(serve: Callable[..., Server]) -> None:
    """A replayed trace that is over is a sensor that is gone: joules are null, with a reason, and replies go on."""
    traces = Path(__file__).resolve().parents[1] / "devices" / "traces"
    server = serve("--sensor", f"replay:{traces / 'h200-power.jsonl'}").wait_until_ready()
    facts = [
        server.client().completions.create(model="tiny", prompt="the", max_tokens=40).model_extra["edgeprec"]  # type: ignore[index]
        for _ in range(3)
    ]
    assert all(fact["joules"] is not None or fact["energy_note"] for fact in facts)
    assert str(traces) not in json.dumps(facts)
    assert server.end() == 0
