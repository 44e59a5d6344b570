"""A benchmark's client of other servers: what it sends, what it times, and one clear sentence for each way to fail."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edgeprec.config import GenerationConfig, SamplingConfig
from edgeprec.errors import ConfigError, EdgePrecError, EngineError
from edgeprec.runtime.benchmark_case import Case, CaseKind, Corpus, Job, SetPrompt
from edgeprec.runtime.benchmark_peer import Peer, open_peer
from edgeprec.runtime.benchmark_peer_case import peer_runs, run_peer_case
from edgeprec.runtime.benchmark_stream import Stream
from edgeprec.runtime.benchmark_url import server_url

JOB = Job("p1", "code", (1, 2, 3), "def f(", 7)
CONFIG = GenerationConfig()


@pytest.fixture(scope="session")
def servers() -> ModuleType:
    """Return the module of scripted servers."""
    path = Path(__file__).parents[1] / "factories" / "completions_server.py"
    found = spec_from_file_location("edgeprec_factories_completions_server", path)
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


def test_a_completion_is_counted_by_the_servers_usage(serve: Callable[..., Any], servers: ModuleType) -> None:
    """A chunk may hold several tokens: only the counts the server sends are believed."""

    def reply(_request: dict[str, Any]) -> Iterator[bytes]:
        yield servers.chunk("one two")
        yield servers.chunk(" three", finish_reason="stop")
        yield servers.usage(40, 9, prompt_tokens_details={"cached_tokens": 32})
        yield b"data: [DONE]\n\n"

    server = serve(reply)
    done = open_peer(server.url).complete(JOB, CONFIG)
    assert (done.text, done.finish_reason) == ("one two three", "stop")
    assert (done.prompt_tokens, done.cached_tokens, done.new_tokens) == (40, 32, 9)
    assert (done.id, done.kind, done.tokens, done.work) == ("p1", "code", None, None)
    assert done.prefill_s > 0
    assert done.decode_s >= 0


def test_the_request_carries_the_prompt_and_the_settings(serve: Callable[..., Any]) -> None:
    """The server gets the same text, the same limit and the same sampling, and the key it wants."""
    server = serve()
    peer = open_peer(server.url.removesuffix("/v1"), key="sesame")
    peer.complete(JOB, GenerationConfig(ignore_eos=True, sampling=SamplingConfig(temperature=0.5, seed=3, top_p=0.9)))
    peer.complete(JOB, CONFIG)
    sampled, plain = server.requests
    assert sampled == {
        "model": "tiny",
        "prompt": "def f(",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert set(plain) == {"model", "prompt", "max_tokens", "temperature", "stream", "stream_options"}
    assert server.headers[0]["Authorization"] == "Bearer sesame"
    assert "sesame" not in repr(peer)
    assert "sesame" not in json.dumps(peer.to_json())


def test_the_model_is_the_first_or_the_one_named(serve: Callable[..., Any]) -> None:
    """A server with several models is asked for the right one; an unknown name is refused with those there are."""
    server = serve(model_ids=("big", "small"))
    assert open_peer(server.url).model == "big"
    assert open_peer(server.url, model="small").to_json() == {
        "url": server.url,
        "model": "small",
        "engine": "scripted",
        "is_local": True,
    }
    with pytest.raises(ConfigError, match="has no model 'huge', only big, small"):
        open_peer(server.url, model="huge")


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://host/v1", "http://", "http://host/v1?key=1", "file:///etc/passwd"]
)
def test_what_is_no_url_of_a_server_is_refused(url: str) -> None:
    """A slip in the flag is named before anything is sent."""
    with pytest.raises(ConfigError, match=r"expected a URL such as http://127.0.0.1:8000/v1"):
        open_peer(url)


def test_a_server_that_is_down_is_missing() -> None:
    """Nobody listens there: exit code 5, and what to do."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(
        EngineError, match=rf"http://127.0.0.1:{port}/v1 cannot be reached \(Connection refused\)"
    ) as caught:
        open_peer(f"http://127.0.0.1:{port}")
    assert caught.value.exit_code == 5


def test_a_silent_server_ends_the_wait(serve: Callable[..., Any], servers: ModuleType) -> None:
    """A server that hangs half-way is left after the time that was set, with a sentence that names it."""
    released = threading.Event()

    def reply(_request: dict[str, Any]) -> Iterator[bytes]:
        yield servers.chunk("a")
        released.wait(30)

    peer = open_peer(serve(reply).url, timeout_s=0.2)
    try:
        with pytest.raises(
            EdgePrecError, match=r"said nothing that counts for 0.2 s: .* raise --against-timeout"
        ) as caught:
            peer.complete(JOB, CONFIG)
    finally:
        released.set()
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([b"data: {\n\n"], "sent what is no completion after 0 chunks: '{'"),
        ([b"\x00\xff\x1b[31m garbage \n"], "sent what is no completion after 0 chunks: "),
        ([b"<html>busy</html>\n"], "sent what is no completion after 0 chunks: '<html>busy</html>'"),
        ([b"data: [1, 2]\n\n"], "sent what is no completion after 0 chunks: '[1, 2]'"),
        ([b'data: {"choices": 3}\n\n'], "sent what is no completion after 0 chunks"),
        ([b'data: {"choices": [{"text": 3}]}\n\n'], "sent what is no completion after 0 chunks"),
        ([b'data: {"choices": [{"text": "a", "finish_reason": []}]}\n\n'], "sent what is no completion after 0 chunks"),
        (["a", b'data: {"error": {"message": "out of memory"}}\n\n'], "failed after 1 chunks: it says "),
        (["a", "b", b'error: {"message": "out of memory"}\n\n'], "failed after 2 chunks: it says "),
        (["a", "b"], "ended its answer half-way, after 2 chunks"),
        ([b""], "ended its answer half-way, after 0 chunks"),
        ([b"data: [DONE]\n\n"], "sent no token"),
        (["a", b"data: [DONE]\n\n"], "sent no usable counts of tokens (usage)"),
        (["a", ("many", 3), b"data: [DONE]\n\n"], "sent no usable counts of tokens (usage)"),
        (["a", (4, 0), b"data: [DONE]\n\n"], "sent no usable counts of tokens (usage)"),
        (["a", (4, True), b"data: [DONE]\n\n"], "sent no usable counts of tokens (usage)"),
        ([b"data: " + b"x" * (1 << 21) + b"\n\n"], "sent what is no completion after 0 chunks: 'xxx"),
    ],
)
def test_a_bad_stream_is_one_sentence(
    serve: Callable[..., Any], servers: ModuleType, parts: list[Any], expected: str
) -> None:
    """Garbage, errors half-way and answers without counts end as one printable line that quotes what came."""

    def reply(_request: dict[str, Any]) -> Iterator[bytes]:
        for part in parts:
            if isinstance(part, str):
                yield servers.chunk(part)
            else:
                yield part if isinstance(part, bytes) else servers.usage(*part)

    with pytest.raises(EdgePrecError, match=re.escape(expected)) as caught:
        open_peer(serve(reply).url).complete(JOB, CONFIG)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 300
    assert caught.value.exit_code == 1


def test_chunks_of_http_are_no_chunks_of_text(serve: Callable[..., Any], servers: ModuleType) -> None:
    """Most servers send HTTP/1.1 chunks, and an event may be spread over several of them."""

    def reply(request: dict[str, Any]) -> Iterator[bytes]:
        whole = b"".join(servers.stream_of("one", " two")(request))
        yield from (whole[start : start + 7] for start in range(0, len(whole), 7))

    done = open_peer(serve(reply, is_chunked=True).url).complete(JOB, CONFIG)
    assert (done.text, done.new_tokens) == ("one two", 2)


def test_a_connection_cut_between_chunks_is_named(serve: Callable[..., Any], servers: ModuleType) -> None:
    """A server process that dies leaves an unfinished answer."""
    server = serve(lambda _request: iter([servers.chunk("a")]), is_chunked=True, is_cut=True)
    with pytest.raises(EdgePrecError, match="ended its answer half-way, after 1 chunks: look at its log"):
        open_peer(server.url).complete(JOB, CONFIG)


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_an_error_status_is_quoted(serve: Callable[..., Any], status: int) -> None:
    """What the server says of its refusal reaches whoever waits."""
    server = serve(lambda _request: iter([b'{"error": "model is loading"}']), status=status)
    with pytest.raises(EdgePrecError, match=rf"answered /completions with {status} .*model is loading"):
        open_peer(server.url).complete(JOB, CONFIG)


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b'{"data": 3}', b'{"data": [{"name": "a"}]}', b'{"data": []}']
)
def test_another_service_is_no_server_of_models(serve: Callable[..., Any], answer: bytes) -> None:
    """A web page on that port is told from a server of the API."""
    with pytest.raises(EdgePrecError, match=r"/models (is no list of models|lists no model)"):
        open_peer(serve(models=answer).url)


def test_what_is_no_http_is_told_apart(servers: ModuleType) -> None:
    """Another protocol on the port is no traceback."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"SSH-2.0-OpenSSH\r\n")

    thread = threading.Thread(target=talk)
    thread.start()
    with pytest.raises(EdgePrecError, match="broke off or sent what is no HTTP"):
        open_peer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    thread.join()
    listener.close()


def test_times_run_from_the_request_to_the_first_and_last_chunk() -> None:
    """Prefill ends with the first chunk, decoding with the last; events without text are not tokens."""
    ticks = count(10, 10)
    firsts: list[str] = []
    stream = Stream("http://host/v1", lambda: next(ticks), on_first=lambda: firsts.append("decode"))
    lines = [b": hello", b"", b"event: x", b'data: {"choices": []}', b'data: {"choices": [{"text": "a"}]}']
    lines += [b'data: {"choices": [{"text": "b", "finish_reason": "stop"}], "usage": null}']
    lines += [b'data:{"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}']
    assert not any(stream.push(line) for line in lines)
    assert stream.push(b"data: [DONE]")
    assert (stream.first_ns, stream.last_ns, stream.text, firsts) == (10, 20, "ab", ["decode"])
    assert stream.finish().new_tokens == 2


def make_corpus() -> Corpus:
    """Return texts of single letters."""
    return Corpus(lambda text: [ord(letter) for letter in text], lambda tokens: "".join(map(chr, tokens)))


def test_a_case_runs_every_prompt_in_every_repeat(serve: Callable[..., Any]) -> None:
    """A warm-up takes the first prompt of each task; then each repeat runs all of them, without energy but with why."""
    server = serve()
    prompts = tuple(SetPrompt(f"p{index}", kind, f"text {index}") for index, kind in enumerate(("a", "a", "b")))
    case = Case(kind=CaseKind.PROMPTS, config=CONFIG, new_tokens=3, prompt_set="mine", prompts=prompts)
    runs = list(run_peer_case(open_peer(server.url), case, make_corpus(), repeats=2, meter_note="no sensor"))
    assert [request["prompt"] for request in server.requests] == ["text 0", "text 2"] + 2 * [
        "text 0",
        "text 1",
        "text 2",
    ]
    assert "ignore_eos" not in server.requests[0]
    assert [len(run.generated) for run in runs] == [3, 3]
    assert {(run.energy, run.energy_note, run.token_sha256) for run in runs} == {(None, "no sensor", None)}


def test_a_synthetic_case_asks_to_go_on_past_the_end(serve: Callable[..., Any]) -> None:
    """A fixed number of tokens is what tg means."""
    server = serve()
    case = Case(kind=CaseKind.DECODE, config=CONFIG, new_tokens=2)
    list(run_peer_case(open_peer(server.url), case, make_corpus(), repeats=1, has_warm_up=False))
    (request,) = server.requests
    assert request["ignore_eos"] is True
    assert request["max_tokens"] == 3


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (Case(kind=CaseKind.DECODE, config=CONFIG, new_tokens=2, depth_tokens=8), "-d needs the cache of an engine"),
        (Case(kind=CaseKind.DECODE, config=CONFIG, new_tokens=2, sequences=4), "-npl asks for 4 sequences at once"),
    ],
)
def test_what_a_client_cannot_do_is_refused(case: Case, expected: str) -> None:
    """No row is left out silently."""
    with pytest.raises(ConfigError, match=expected):
        peer_runs(case)


def test_a_peer_closes_its_connections(serve: Callable[..., Any]) -> None:
    """Two hundred prompts are two hundred requests: none may stay open."""
    peer = open_peer(serve().url)
    assert isinstance(peer, Peer)
    for _ in range(3):
        peer.complete(JOB, CONFIG)


def test_sampling_reaches_the_server(serve: Callable[..., Any]) -> None:
    """What our own rows are sampled with is asked of the server too, by the names of vLLM and SGLang."""
    server = serve()
    sampling = SamplingConfig(temperature=1.0, top_k=40, min_p=0.05, repetition_penalty=1.1)
    open_peer(server.url).complete(JOB, GenerationConfig(sampling=sampling))
    (request,) = server.requests
    assert (request["top_k"], request["min_p"], request["repetition_penalty"]) == (40, 0.05, 1.1)


def test_what_a_server_would_leave_out_is_refused() -> None:
    """llama.cpp's penalty is another one and has another name: two rows that differ in it are no comparison."""
    peer = Peer(url=server_url("http://host"), model="m", engine="llamacpp", is_local=True)
    peer.check(CONFIG)
    with pytest.raises(ConfigError, match=r"--repetition-penalty has no counterpart in llama\.cpp"):
        peer.check(GenerationConfig(sampling=SamplingConfig(repetition_penalty=1.1)))


class NoMeter:
    """Must not be asked."""

    def window(self, _name: str) -> object:
        """Fail."""
        raise AssertionError


def test_joules_of_another_machine_are_not_measured(serve: Callable[..., Any]) -> None:
    """The meter here reads this machine: its joules are not the server's."""
    peer = replace(open_peer(serve().url), is_local=False)
    case = Case(kind=CaseKind.DECODE, config=CONFIG, new_tokens=2)
    meter: Any = NoMeter()
    (run,) = run_peer_case(peer, case, make_corpus(), repeats=1, has_warm_up=False, meter=meter)
    assert run.energy is None
    assert (
        run.energy_note == f"the server {peer.url.geturl()} runs on another machine, whose power is not measured here"
    )
