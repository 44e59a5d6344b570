"""Log probabilities of tokens in the two shapes OpenAI's API has for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edgeprec.runtime.logprobs import TokenLogprobs
from edgeprec.runtime.reply import TokenEvent

__all__ = ["chat_logprobs", "completion_logprobs"]

Decode = Callable[[int], str]
_LEAST = -9999.0  # what OpenAI's API shows for a token that cannot be


def chat_logprobs(events: Sequence[TokenEvent], decode: Decode) -> dict[str, Any]:
    """Return the ``logprobs`` of a chat choice: every token with its alternatives."""
    content = [
        _entry(event.token, found.logprob, decode)
        | {"top_logprobs": [_entry(token, value, decode) for token, value in found.top]}
        for event, found in _pairs(events)
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(events: Sequence[TokenEvent], decode: Decode, *, offset: int) -> dict[str, Any]:
    """Return the ``logprobs`` of a completion; ``offset`` is how many characters of tokens came before."""
    tokens = [decode(event.token) for event, _ in _pairs(events)]
    offsets = [offset]
    for token in tokens:
        offsets.append(offsets[-1] + len(token))
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(found.logprob) for _, found in _pairs(events)],
        "top_logprobs": [_by_text(found, decode) for _, found in _pairs(events)],
        "text_offset": offsets[:-1],
    }


def _pairs(events: Sequence[TokenEvent]) -> list[tuple[TokenEvent, TokenLogprobs]]:
    return [(event, event.logprobs) for event in events if event.logprobs is not None]


def _entry(token: int, logprob: float, decode: Decode) -> dict[str, Any]:
    """A token that is no whole character has no text of its own, so no bytes are claimed for it."""
    text = decode(token)
    return {
        "token": text,
        "logprob": _finite(logprob),
        "bytes": None if "\ufffd" in text else list(text.encode("utf-8")),
    }


def _by_text(found: TokenLogprobs, decode: Decode) -> Mapping[str, float]:
    """Of several ids with the same text the most probable one is shown."""
    return {decode(token): _finite(value) for token, value in reversed(found.top)}


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LEAST
