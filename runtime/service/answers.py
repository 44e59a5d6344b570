"""The JSON of replies, whole or in chunks, for chat completions and completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgeprec.runtime.async_generation import AsyncGeneration
from edgeprec.runtime.reply import FinishReason, Reply, TokenEvent
from edgeprec.runtime.service.asked import Asked
from edgeprec.runtime.service.facts import Acceptance, live_facts, reply_facts, usage
from edgeprec.runtime.service.token_words import chat_logprobs, completion_logprobs

__all__ = ["Answer"]

_OBJECTS = {
    ("chat", False): "chat.completion",
    ("chat", True): "chat.completion.chunk",
    ("completion", False): "text_completion",
    ("completion", True): "text_completion",
}


@dataclass(slots=True, kw_only=True)
class Answer:
    """Writes the answer to one request. ``decode`` gives the text of one token id."""

    asked: Asked
    job: AsyncGeneration
    model: str
    decode: Callable[[int], str]
    watts: Callable[[], float | None] = lambda: None
    id: str = field(init=False)
    created: int = field(default_factory=lambda: int(time.time()))
    _shown: int = 0  # characters of the text that were sent
    _token_characters: int = 0
    _acceptance: Acceptance = field(default_factory=Acceptance)

    def __post_init__(self) -> None:
        self.id = f"{'chatcmpl' if self.asked.kind == 'chat' else 'cmpl'}-{secrets.token_hex(12)}"

    def whole(self, reply: Reply) -> dict[str, Any]:
        """Return the answer in one piece."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._finish(reply)}
        if self.asked.kind == "chat":
            choice["message"] = {"role": "assistant", "content": reply.text, "refusal": None}
        else:
            choice["text"] = reply.text
        choice["logprobs"] = self._logprobs(reply.events)
        return self._object([choice]) | {"usage": usage(reply, self.job), "edgeprec": reply_facts(reply, self.job)}

    def opening(self) -> dict[str, Any] | None:
        """Return the chunk before the first token: chat has one that names the role."""
        if self.asked.kind != "chat":
            return None
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return self._chunk([choice])

    def chunk(self, events: Sequence[TokenEvent]) -> dict[str, Any]:
        """Return the chunk of some tokens that came together."""
        text = "".join(event.text for event in events)
        self._shown += len(text)
        choice = self._piece(text) | {"logprobs": self._logprobs(events), "finish_reason": None}
        rounds = () if self.job.generation is None else self.job.generation.rounds
        acceptance_rate = self._acceptance.rate(rounds, until_round=events[-1].round)
        return self._chunk([choice]) | {
            "edgeprec": live_facts(events, acceptance_rate=acceptance_rate, watts=self.watts())
        }

    def closing(self, reply: Reply) -> list[dict[str, Any]]:
        """Return the last chunks: what was held back of the text, how it ended, and the usage if that was asked for."""
        choice = self._piece(reply.text[self._shown :]) | {"logprobs": None, "finish_reason": self._finish(reply)}
        chunks = [self._chunk([choice]) | {"edgeprec": reply_facts(reply, self.job)}]
        if self.asked.has_usage:
            chunks.append(self._object([]) | {"usage": usage(reply, self.job)})
        return chunks

    def _piece(self, text: str) -> dict[str, Any]:
        if self.asked.kind == "chat":
            return {"index": 0, "delta": {"content": text} if text else {}}
        return {"index": 0, "text": text}

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._object(choices) | ({"usage": None} if self.asked.has_usage else {})

    def _object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": _OBJECTS[self.asked.kind, self.asked.is_stream],
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }

    def _logprobs(self, events: Sequence[TokenEvent]) -> dict[str, Any] | None:
        if self.asked.top_logprobs is None:
            return None
        if self.asked.kind == "chat":
            return chat_logprobs(events, self.decode)
        words = completion_logprobs(events, self.decode, offset=self._token_characters)
        self._token_characters += sum(map(len, words["tokens"]))
        return words

    def _finish(self, reply: Reply) -> str:
        """A reply that ran out of time is one that ran out of length: OpenAI's clients know no other word."""
        return "stop" if reply.finish_reason is FinishReason.STOP else "length"
