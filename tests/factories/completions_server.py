"""A server of the OpenAI completions API in a thread, which streams whatever a test scripts.

with CompletionsServer(reply=stream_of("a", "b")) as server: server.url, server.requests
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

__all__ = ["CompletionsServer", "chunk", "stream_of", "usage"]

Reply = Callable[[dict[str, Any]], Iterator[bytes]]


def chunk(text: str, *, finish_reason: str | None = None, **fields: Any) -> bytes:
    """Return an event with one piece of text."""
    event = {"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}], **fields}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def usage(prompt_tokens: Any, completion_tokens: Any, **details: Any) -> bytes:
    """Return the event with the counts."""
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, **details}
    return b"data: " + json.dumps({"choices": [], "usage": counts}).encode() + b"\n\n"


def stream_of(*pieces: str, prompt_tokens: int = 5) -> Reply:
    """Return a reply of these pieces, one token each, whatever is asked."""

    def reply(_request: dict[str, Any]) -> Iterator[bytes]:
        for piece in pieces[:-1]:
            yield chunk(piece)
        yield chunk(pieces[-1], finish_reason="length")
        yield usage(prompt_tokens, len(pieces))
        yield b"data: [DONE]\n\n"

    return reply


class CompletionsServer:
    """Serves ``/v1/models`` and ``/v1/completions`` on a free port of this machine while the block lasts.

    ``reply`` gives the bytes of an answer; ``status`` other than 200 sends them as an error. ``models`` is the raw
    answer to the list of models where given. A reply that ends closes the connection. ``is_chunked`` sends HTTP/1.1
    chunks as most servers do, one for each part; the last, empty one is left out where ``is_cut`` is set.
    """

    def __init__(
        self,
        reply: Reply | None = None,
        *,
        status: int = 200,
        models: bytes | None = None,
        model_ids: Sequence[str] = ("tiny",),
        is_chunked: bool = False,
        is_cut: bool = False,
    ) -> None:
        self.reply = reply or stream_of("a", "b", "c")
        self.status = status
        entries = [{"id": name, "object": "model", "owned_by": "scripted"} for name in model_ids]
        self.models = json.dumps({"object": "list", "data": entries}).encode() if models is None else models
        self.is_chunked = is_chunked
        self.is_cut = is_cut
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        """Return the base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if outer.is_chunked else "HTTP/1.0"

            def do_GET(self) -> None:
                self._answer(200 if self.path == "/v1/models" else 404, iter([outer.models]))

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(request)
                outer.headers.append(dict(self.headers))
                self._answer(outer.status if self.path == "/v1/completions" else 404, outer.reply(request))

            def log_message(self, format: str, *args: Any) -> None:
                """Stay silent."""

            def _answer(self, status: int, parts: Iterator[bytes]) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/event-stream")
                if outer.is_chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for part in parts:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if outer.is_chunked else part)
                        self.wfile.flush()
                    if outer.is_chunked and not (outer.is_cut and self.command == "POST"):
                        self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    return  # the client left

        return Handler
