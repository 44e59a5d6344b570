"""From the body of a request to what is generated: checked fields, the configuration, the prompt's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgeprec.config import GenerationConfig, with_overrides
from edgeprec.errors import ConfigError
from edgeprec.runtime.service.problem import Problem
from edgeprec.runtime.service.request_schemas import CHAT_REQUEST, COMPLETION_REQUEST
from edgeprec.runtime.service.schema import check

__all__ = ["Asked", "Kind", "read_chat", "read_completion"]

Kind = Literal["chat", "completion"]

_COMPLETION_TOKENS = 16  # what OpenAI's API documents for a completion that asks for no number
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "ignore_eos")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One valid request. ``prompt`` is a text, token ids or messages; ``max_tokens`` None = up to the limit."""

    kind: Kind
    prompt: str | list[int] | list[dict[str, str]]
    model: str | None
    config: GenerationConfig
    max_tokens: int | None
    top_logprobs: int | None
    is_stream: bool
    has_usage: bool  # a streamed reply ends with its usage


def read_chat(body: Any, defaults: GenerationConfig) -> Asked:
    """Check the body of a chat completion.

    Raises:
        Problem: a field is unknown, not supported or out of range; 400 with its name.
    """
    given = _given(body, CHAT_REQUEST)
    if given.get("top_logprobs") is not None and not given.get("logprobs"):
        raise Problem(400, "the field 'top_logprobs' needs 'logprobs' to be true", param="top_logprobs")
    lengths = {given[name] for name in ("max_tokens", "max_completion_tokens") if name in given}
    if len(lengths) > 1:
        raise Problem(
            400, "the fields 'max_tokens' and 'max_completion_tokens' differ: give one of them", param="max_tokens"
        )
    return _asked(
        "chat",
        given,
        defaults,
        prompt=[_message(message) for message in given["messages"]],
        max_tokens=next(iter(lengths), None),
        top_logprobs=given.get("top_logprobs", 0) if given.get("logprobs") else None,
    )


def read_completion(body: Any, defaults: GenerationConfig) -> Asked:
    """Check the body of a completion.

    Raises:
        Problem: a field is unknown, not supported or out of range; 400 with its name.
    """
    given = _given(body, COMPLETION_REQUEST)
    prompt = given["prompt"]
    return _asked(
        "completion",
        given,
        defaults,
        prompt=prompt if isinstance(prompt, str) else [int(token) for token in prompt],
        max_tokens=given.get("max_tokens", _COMPLETION_TOKENS),
        top_logprobs=given.get("logprobs"),
    )


def _given(body: Any, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null."""
    check(body, schema)
    given = {name: value for name, value in body.items() if value is not None}
    if "stream_options" in given and not given.get("stream"):
        raise Problem(400, "the field 'stream_options' needs 'stream' to be true", param="stream_options")
    return given


def _asked(kind: Kind, given: Mapping[str, Any], defaults: GenerationConfig, **read: Any) -> Asked:
    whole = {name: None if read[name] is None else int(read[name]) for name in ("max_tokens", "top_logprobs")}
    return Asked(
        kind=kind,
        prompt=read["prompt"],
        model=given.get("model"),
        config=_config(given, defaults),
        is_stream=given.get("stream", False),
        has_usage=bool(given.get("stream_options", {}).get("include_usage")),
        **whole,
    )


def _config(given: Mapping[str, Any], defaults: GenerationConfig) -> GenerationConfig:
    changes = {name: given[name] for name in _SAMPLING if name in given}
    changes |= {name: value for name, value in given.get("edgeprec", {}).items() if value is not None}
    for name in ("top_k", "draft_length"):
        if name in changes:
            changes[name] = int(changes[name])
    if "seed" in given:
        changes["seed"] = int(given["seed"]) % 2**64
    if "stop" in given:
        stop = given["stop"]
        changes["stop"] = (stop,) if isinstance(stop, str) else tuple(stop)
    try:
        return with_overrides(defaults, **changes)
    except ConfigError as error:
        raise Problem(400, str(error)) from error


def _message(message: Mapping[str, Any]) -> dict[str, str]:
    content: str | Sequence[Mapping[str, str]] = message["content"]
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    role = message["role"]
    return {"role": "system" if role == "developer" else role, "content": text}
