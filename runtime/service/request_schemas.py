"""What a request may hold, as JSON Schemas: the OpenAPI document shows them, ``schema.check`` enforces them.

A field of OpenAI's that means nothing here is taken with the one value that asks for nothing, and refused otherwise.
"""

from __future__ import annotations

from typing import Any

from edgeprec.config import DrafterKind, Mode
from edgeprec.runtime.logprobs import MAX_TOP_LOGPROBS
from edgeprec.runtime.service.schema import nullable

__all__ = ["CHAT_REQUEST", "COMPLETION_REQUEST"]

_SEED_LIMIT = 2**63


def _only(kind: str, value: Any, description: str) -> dict[str, Any]:
    return {"type": kind, "enum": [value], "description": f"{description} Only {value!r} is supported."}


_COMMON: dict[str, dict[str, Any]] = {
    "model": {"type": "string", "description": "The id `/v1/models` lists; without it, the model there is."},
    "stream": {"type": "boolean", "default": False, "description": "Send tokens as they come, as server-sent events."},
    "stream_options": {
        "type": "object",
        "properties": {
            "include_usage": nullable({"type": "boolean", "description": "End the stream with a chunk of `usage`."}),
            "include_obfuscation": nullable(_only("boolean", False, "Padding of chunks.")),
        },
        "additionalProperties": False,
        "description": "Only with `stream`.",
    },
    "stop": {
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": 1000},
            {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 1000}, "maxItems": 16},
        ],
        "description": "Texts that end the reply; they are not part of it.",
    },
    "seed": {
        "type": "integer",
        "minimum": -_SEED_LIMIT,
        "maximum": _SEED_LIMIT - 1,
        "description": "Sampling repeats with the same seed. Without one it is drawn; the reply says which it was.",
    },
    "temperature": {
        "type": "number",
        "minimum": 0,
        "maximum": 2,
        "description": "0, or 0.0001 to 2. 0 always takes the most probable token. Not given: the server's setting.",
    },
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1, "description": "Nucleus sampling."},
    "top_k": {
        "type": "integer",
        "minimum": 0,
        "maximum": 2**31 - 1,
        "description": "Sample from so many most probable tokens; 0 is all. Not a field of OpenAI's.",
    },
    "min_p": {
        "type": "number",
        "minimum": 0,
        "exclusiveMaximum": 1,
        "description": "Drop tokens below this share of the best one's probability. Not a field of OpenAI's.",
    },
    "repetition_penalty": {
        "type": "number",
        "minimum": 0.01,
        "maximum": 10,
        "description": "Above 1 makes used tokens less likely. Not a field of OpenAI's.",
    },
    "ignore_eos": {
        "type": "boolean",
        "description": "Go on past the end-of-sequence token. Not a field of OpenAI's.",
    },
    "edgeprec": {
        "type": "object",
        "properties": {
            "mode": nullable({"type": "string", "enum": [str(mode) for mode in Mode]}),
            "drafter": nullable({"type": "string", "enum": [str(kind) for kind in DrafterKind]}),
            "draft_length": nullable({"type": "integer", "minimum": 0, "maximum": 15}),
            "three_level": nullable({"type": "boolean"}),
            "epsilon": nullable({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}),
        },
        "additionalProperties": False,
        "description": "How to decode, where it differs from what the server was started with.",
    },
    "n": _only("integer", 1, "Replies to one request."),
    "frequency_penalty": _only("number", 0, "See `repetition_penalty`."),
    "presence_penalty": _only("number", 0, "See `repetition_penalty`."),
    "logit_bias": {"type": "object", "maxProperties": 0, "description": "Only an empty object is supported."},
    "user": {"type": "string", "description": "Taken and not used."},
}
_MAX_TOKENS = {
    "type": "integer",
    "minimum": 1,
    "maximum": 2**31 - 1,
}
_TOP_LOGPROBS = {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS}
_NOTHING = {"type": "null"}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {
            "type": "string",
            "enum": ["system", "developer", "user", "assistant"],
            "description": "`developer` is another word for `system`.",
        },
        "content": {
            "title": "a text or a list of text parts",
            "anyOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"type": "string", "enum": ["text"]}, "text": {"type": "string"}},
                        "required": ["type", "text"],
                        "additionalProperties": False,
                    },
                    "minItems": 1,
                },
            ],
            "description": "A text, or parts of one.",
        },
        **dict.fromkeys(("annotations", "audio", "function_call", "refusal", "tool_calls"), _NOTHING),
    },
    "required": ["role", "content"],
    "additionalProperties": False,
}
_CHAT: dict[str, dict[str, Any]] = {
    "max_tokens": _MAX_TOKENS | {"description": "Tokens of the reply at most. The same as `max_completion_tokens`."},
    "max_completion_tokens": _MAX_TOKENS | {"description": "Tokens of the reply at most."},
    "logprobs": {"type": "boolean", "description": "Return the log probability of every token."},
    "top_logprobs": _TOP_LOGPROBS | {"description": "And those of so many alternatives; needs `logprobs`."},
    "response_format": {
        "type": "object",
        "properties": {"type": {"type": "string", "enum": ["text"]}},
        "required": ["type"],
        "additionalProperties": False,
        "description": "Only text is supported.",
    },
    "tools": {"type": "array", "maxItems": 0, "description": "Not supported: only an empty list is taken."},
    "tool_choice": {"type": "string", "enum": ["none", "auto"], "description": "There are no tools."},
    "store": _only("boolean", False, "Nothing is stored."),
    "service_tier": {"type": "string", "enum": ["auto", "default"], "description": "There is one."},
}
_COMPLETION: dict[str, dict[str, Any]] = {
    "max_tokens": _MAX_TOKENS | {"default": 16, "description": "Tokens of the reply at most."},
    "logprobs": _TOP_LOGPROBS | {"description": "Return log probabilities, and those of so many alternatives."},
    "best_of": _only("integer", 1, "Replies to choose from."),
    "echo": _only("boolean", False, "The prompt before the reply."),
    "suffix": _NOTHING | {"description": "Not supported."},
}


def _request(required: dict[str, Any], optional: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **{name: nullable(schema) for name, schema in (_COMMON | optional).items()}},
        "required": list(required),
        "additionalProperties": False,
    }


_MESSAGES = {
    "title": "a list of messages",
    "type": "array",
    "items": _MESSAGE,
    "minItems": 1,
    "description": "The conversation so far.",
}
_PROMPT = {
    "title": "a text or a list of token ids",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
    ],
    "description": "A text, or token ids.",
}
CHAT_REQUEST = _request({"messages": _MESSAGES}, _CHAT)
COMPLETION_REQUEST = _request({"prompt": _PROMPT}, _COMPLETION)
