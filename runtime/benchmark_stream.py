"""A stream of completions as an OpenAI-compatible server sends it: server-sent events, one JSON object each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edgeprec.errors import EdgePrecError

__all__ = ["Stream", "Usage", "excerpt", "printable"]

_EXCERPT = 80
_MOST_TOKENS = 1_000_000_000
_SPARE_CHUNKS = 64
_OTHER_FIELDS = (b":", b"event:", b"id:", b"retry:")  # of the event stream format; none of them matters here


@dataclass(frozen=True, slots=True)
class Usage:
    """What the server counted; ``cached_tokens`` is 0 where it does not tell."""

    prompt_tokens: int
    new_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class Stream:
    """Takes lines; ``clock`` is in ns and ``on_first`` is called at the first chunk.

    ``max_new_tokens`` is what was asked for: a server that sends many more chunks than that never ends.
    """

    url: str
    clock: Callable[[], int]
    on_first: Callable[[], object] = lambda: None
    max_new_tokens: int = _MOST_TOKENS
    text: str = ""
    finish_reason: str | None = None
    first_ns: int = 0
    last_ns: int = 0
    chunks: int = 0
    is_done: bool = False
    _usage: dict[str, Any] = field(default_factory=dict)

    def push(self, line: bytes) -> bool:
        """Take a line and return whether it was the last one.

        Raises:
            EdgePrecError: it is no event of a completion, or tells of an error.
        """
        if not line or line.startswith(_OTHER_FIELDS):
            return False
        name, _, value = line.partition(b":")
        if name == b"error":
            raise self._broken(f"failed after {self.chunks} chunks: it says {excerpt(value)}")
        if name != b"data":
            raise self._garbage(line)
        if value.strip() == b"[DONE]":
            self.is_done = True
            return True
        self._take(self._parse(value), line)
        return False

    def finish(self) -> Usage:
        """Return the counts once the stream has ended.

        Raises:
            EdgePrecError: it ended early, without a token or without counts.
        """
        if not (self.is_done or self.finish_reason):
            raise self._broken(f"ended its answer half-way, after {self.chunks} chunks: look at its log")
        if not self.chunks:
            raise self._broken("sent no token: look at its log")
        prompt, new = (self._count(name) for name in ("prompt_tokens", "completion_tokens"))
        if prompt is None or not new:
            raise self._broken(
                "sent no usable counts of tokens (usage), so nothing can be divided by them: "
                "use a server that knows stream_options.include_usage"
            )
        details = self._usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Usage(prompt, new, cached if isinstance(cached, int) and 0 <= cached < prompt else 0)

    def _parse(self, value: bytes) -> dict[str, Any]:
        try:
            event = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise self._garbage(value) from error
        if not isinstance(event, dict):
            raise self._garbage(value)
        return event

    def _take(self, event: dict[str, Any], line: bytes) -> None:
        if event.get("error"):
            said = repr(printable(json.dumps(event["error"], ensure_ascii=False)))
            raise self._broken(f"failed after {self.chunks} chunks: it says {said}")
        usage, choices = event.get("usage"), event.get("choices")
        if isinstance(usage, dict):
            self._usage = usage
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise self._garbage(line)
        for choice in choices[:1]:
            text, reason = choice.get("text"), choice.get("finish_reason")
            if not isinstance(text, str | None) or not isinstance(reason, str | None):
                raise self._garbage(line)
            self._take_text(text or "")
            self.finish_reason = reason or self.finish_reason

    def _take_text(self, text: str) -> None:
        self.last_ns = self.clock()
        if not self.chunks:
            self.first_ns = self.last_ns
            self.on_first()
        self.chunks += 1
        if self.chunks > 2 * self.max_new_tokens + _SPARE_CHUNKS:
            raise self._broken(
                f"sent {self.chunks} chunks where {self.max_new_tokens} tokens were asked for, and does not end: "
                "look at its log"
            )
        self.text += text

    def _count(self, name: str) -> int | None:
        value = self._usage.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS else None

    def _garbage(self, line: bytes) -> EdgePrecError:
        return self._broken(f"sent what is no completion after {self.chunks} chunks: {excerpt(line)}")

    def _broken(self, what: str) -> EdgePrecError:
        return EdgePrecError(f"the server {self.url} {what}")


def excerpt(data: bytes) -> str:
    """Return the beginning of what somebody sent, fit for a terminal."""
    return repr(printable(data[: 4 * _EXCERPT].decode("utf-8", errors="replace")))


def printable(text: str) -> str:
    """Return the beginning of a text on one line; what cannot be printed, lone surrogates too, is a question mark."""
    words = " ".join(text.split())
    shown = "".join(letter if letter.isprintable() else "?" for letter in words[: 4 * _EXCERPT])
    return shown if len(shown) <= _EXCERPT else f"{shown[: _EXCERPT - 1]}\u2026"
