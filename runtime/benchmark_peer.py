"""The same prompts on another server: a client of the OpenAI completions API, timed chunk by chunk.

It streams, asks for ``usage``, and takes its counts from there: a chunk may hold several tokens. Prefill is the time
to the first chunk, decoding the time from there to the last one.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from edgeprec.config import GenerationConfig
from edgeprec.errors import ConfigError, EdgePrecError, EngineError
from edgeprec.runtime.benchmark_case import Job
from edgeprec.runtime.benchmark_repeat import Generated
from edgeprec.runtime.benchmark_stream import Stream, excerpt

__all__ = ["Peer", "open_peer"]

_LIMIT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An OpenAI-compatible server. ``timeout_s`` is how long it may stay silent."""

    url: SplitResult
    model: str
    engine: str  # what the server calls itself
    key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    clock: Callable[[], int] = time.monotonic_ns

    def to_json(self) -> dict[str, Any]:
        """Return what a record says of the server."""
        return {"url": self.url.geturl(), "model": self.model, "engine": self.engine}

    def complete(
        self, job: Job, config: GenerationConfig, *, mark: Callable[[str], object] = lambda _phase: None
    ) -> Generated:
        """Run one completion to its end; ``mark`` is told when prefill and decode begin.

        Raises:
            EngineError: the server cannot be reached.
            EdgePrecError: it refuses, stays silent, breaks off or sends what is no stream of completions.
        """
        body = json.dumps(_request(self.model, job, config)).encode()
        stream = Stream(self.url.geturl(), self.clock, on_first=lambda: mark("decode"))
        with _connected(self) as connection:
            mark("prefill")
            began_ns = self.clock()
            with _ask(self, connection, "POST", "/completions", body) as response:
                for line in _lines(self, response):
                    if stream.push(line):
                        break
        usage = stream.finish()
        return Generated(
            id=job.id,
            kind=job.kind,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            new_tokens=usage.new_tokens,
            prefill_s=(stream.first_ns - began_ns) * 1e-9,
            decode_s=(stream.last_ns - stream.first_ns) * 1e-9,
            finish_reason=stream.finish_reason or "unknown",
            text=stream.text,
        )


def open_peer(url: str, *, model: str | None = None, key: str | None = None, timeout_s: float = 60.0) -> Peer:
    """Ask a server which models it has and return a client of it; ``url`` may end in ``/v1`` or not.

    Raises:
        ConfigError: the URL is none, or the server has no such model.
        EngineError: the server cannot be reached.
        EdgePrecError: it does not answer as an OpenAI-compatible server does.
    """
    parts = urlsplit(url.rstrip("/"))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"--against is {url!r}, expected a URL such as http://127.0.0.1:8000/v1")
    path = parts.path if parts.path.endswith("/v1") else f"{parts.path}/v1"
    base = Peer(url=parts._replace(path=path), model="", engine="", key=key, timeout_s=timeout_s)
    with _connected(base) as connection, _ask(base, connection, "GET", "/models", None) as response, _explaining(base):
        text = response.read(_LIMIT_BYTES)
    models = _models(text, base.url.geturl())
    chosen = next(iter(models)) if model is None else model
    if chosen not in models:
        raise ConfigError(f"{base.url.geturl()} has no model {model!r}, only {', '.join(models)}")
    return Peer(url=base.url, model=chosen, engine=models[chosen], key=key, timeout_s=timeout_s)


def _request(model: str, job: Job, config: GenerationConfig) -> dict[str, Any]:
    """Return the body; ``ignore_eos`` is what vLLM, SGLang and llama.cpp call it."""
    sampling = config.sampling
    body: dict[str, Any] = {
        "model": model,
        "prompt": job.text,
        "max_tokens": job.max_new_tokens,
        "temperature": sampling.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    optional = {
        "top_p": sampling.top_p if sampling.top_p < 1.0 else None,
        "seed": sampling.seed,
        "stop": list(config.stop) or None,
        "ignore_eos": config.ignore_eos or None,
    }
    return body | {name: value for name, value in optional.items() if value is not None}


def _models(text: bytes, url: str) -> dict[str, str]:
    """Return the ids of a list of models, each with who owns it."""
    try:
        entries = json.loads(text)["data"]
        models = {str(entry["id"]): str(entry.get("owned_by") or "server") for entry in entries}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EdgePrecError(
            f"{url}/models is no list of models, it says {excerpt(text)}: is it the right URL?"
        ) from error
    if not models:
        raise EdgePrecError(f"{url}/models lists no model: load one there first")
    return models


@contextmanager
def _connected(peer: Peer) -> Iterator[http.client.HTTPConnection]:
    """Open a connection and close it at the end of the block."""
    kind = http.client.HTTPSConnection if peer.url.scheme == "https" else http.client.HTTPConnection
    connection = kind(peer.url.hostname or "", peer.url.port, timeout=peer.timeout_s)
    try:
        connection.connect()
    except OSError as error:
        raise EngineError(
            f"the server {peer.url.geturl()} cannot be reached ({error.strerror or error}): start it or check the URL"
        ) from error
    with closing(connection):
        yield connection


def _ask(
    peer: Peer, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
) -> http.client.HTTPResponse:
    """Send a request and return the answer, whose status is 200; the caller closes it, which closes the socket."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {peer.key}"} if peer.key else {})
    with _explaining(peer):
        connection.request(method, f"{peer.url.path}{path}", body, headers)
        response = connection.getresponse()
        if response.status == http.client.OK:
            return response
        with response:
            text = response.read(_LIMIT_BYTES)
    raise EdgePrecError(
        f"the server {peer.url.geturl()} answered {path} with {response.status} {response.reason}: "
        f"it says {excerpt(text)}"
    )


def _lines(peer: Peer, response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of an answer as they come, without their ends."""
    while True:
        with _explaining(peer):
            line = response.readline(_LIMIT_BYTES + 1)
        if not line:
            return
        yield line.rstrip(b"\r\n")


@contextmanager
def _explaining(peer: Peer) -> Iterator[None]:
    """Turn what goes wrong on the way into one sentence."""
    url = peer.url.geturl()
    try:
        yield
    except TimeoutError as error:
        raise EdgePrecError(
            f"the server {url} said nothing for {peer.timeout_s:g} s: look at its log or raise --against-timeout"
        ) from error
    except http.client.HTTPException as error:
        raise EdgePrecError(
            f"the server {url} broke off or sent what is no HTTP ({_kind(error)}): see its log"
        ) from error
    except OSError as error:
        raise EdgePrecError(
            f"the connection to {url} broke ({error.strerror or error}): look at the server's log"
        ) from error


def _kind(error: http.client.HTTPException) -> str:
    return excerpt(str(error).encode()) if str(error) else type(error).__name__
