"""What the server answers, as JSON Schemas for the OpenAPI document; tests hold real answers against them."""

from __future__ import annotations

from typing import Any

from edgeprec.config import Mode
from edgeprec.gears import Gear
from edgeprec.runtime.reply import TokenSource
from edgeprec.runtime.service.schema import nullable

__all__ = ["REPLY_SCHEMAS"]

_TEXT: dict[str, Any] = {"type": "string"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_NUMBER: dict[str, Any] = {"type": "number"}
_SHARE: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
_BOOLEAN: dict[str, Any] = {"type": "boolean"}


def _object(properties: dict[str, Any], *, optional: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_PROBLEM = {"message": _TEXT, "type": _TEXT, "param": nullable(_TEXT), "code": nullable(_TEXT)}
_ENERGY = {
    "type": "object",
    "properties": {
        "joules": _NUMBER,
        "joules_per_token": nullable(_NUMBER),
        "by_phase": {"type": "object"},
        "source": _TEXT,
        "rail": _TEXT,
        "is_total": _BOOLEAN,
        "coverage": _NUMBER,
        "plus_minus_joules": _NUMBER,
    },
    "required": ["joules", "source", "rail", "is_total", "coverage", "plus_minus_joules"],
    "description": "As `run --json` prints it.",
}
_FACTS = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "enum": [str(mode) for mode in Mode]},
        "joules": nullable(_NUMBER | {"description": "Of the whole reply; null = not measured, see `energy_note`."}),
        "token_sha256": _TEXT,
        "queue_s": _NUMBER | {"description": "Seconds it waited for the engine."},
        "is_time_limit": _BOOLEAN | {"description": "Whether the server's time limit ended it."},
        "acceptance_rate": nullable(_SHARE),
        "int4_layer_share": nullable(_SHARE),
        "drafted": _COUNT,
        "accepted": _COUNT,
        "rounds": _COUNT,
        "new_tokens": _COUNT,
        "prompt_tokens": _COUNT,
        "tokens_per_s": nullable(_NUMBER),
        "seed": nullable(_COUNT),
        "fallbacks": _list(_TEXT),
        "energy": nullable(_ENERGY),
        "energy_note": nullable(_TEXT),
    },
    "required": ["mode", "joules", "acceptance_rate", "int4_layer_share", "token_sha256", "queue_s", "energy_note"],
    "description": "How the reply was made: these and all other statistics of `run --json`.",
}
_TOKEN_FACTS = _object(
    {
        "index": _COUNT,
        "token": _COUNT,
        "text": _TEXT,
        "entropy_bits": nullable(_NUMBER),
        "gear": {"type": "string", "enum": [str(gear) for gear in Gear]},
        "source": {
            "type": "string",
            "enum": [str(source) for source in TokenSource],
            "description": "`draft` = proposed in INT4 and accepted by FP16, `target` = FP16's own.",
        },
        "round": _COUNT,
        "int4_layers": _COUNT,
    }
)
_LIVE = _object(
    {
        "tokens": _list(_TOKEN_FACTS),
        "acceptance_rate": nullable(_SHARE),
        "watts": nullable(_NUMBER),
    },
    description="The tokens of a chunk, the acceptance so far and the power now.",
)
_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": _object({"cached_tokens": _COUNT}),
    }
)
_LOGPROB = {"token": _TEXT, "logprob": _NUMBER, "bytes": nullable(_list(_COUNT))}
_CHAT_LOGPROBS = _object(
    {
        "content": _list(_object(_LOGPROB | {"top_logprobs": _list(_object(_LOGPROB))})),
        "refusal": {"type": "null"},
    }
)
_COMPLETION_LOGPROBS = _object(
    {
        "tokens": _list(_TEXT),
        "token_logprobs": _list(_NUMBER),
        "top_logprobs": _list({"type": "object"}),
        "text_offset": _list(_COUNT),
    }
)
_FINISH = {"type": "string", "enum": ["stop", "length"]}
_HEAD = {"id": _TEXT, "created": _COUNT, "model": _TEXT}
_INDEX = {"type": "integer", "enum": [0]}


def _kind(name: str) -> dict[str, Any]:
    return {"object": {"type": "string", "enum": [name]}}


_CHAT = _object(
    _HEAD
    | _kind("chat.completion")
    | {
        "choices": _list(
            _object(
                {
                    "index": _INDEX,
                    "finish_reason": _FINISH,
                    "message": _object(
                        {
                            "role": {"type": "string", "enum": ["assistant"]},
                            "content": _TEXT,
                            "refusal": {"type": "null"},
                        }
                    ),
                    "logprobs": nullable(_CHAT_LOGPROBS),
                }
            )
        ),
        "usage": _USAGE,
        "edgeprec": _FACTS,
    }
)
_CHAT_CHUNK = _object(
    _HEAD
    | _kind("chat.completion.chunk")
    | {
        "choices": _list(
            _object(
                {
                    "index": _INDEX,
                    "finish_reason": nullable(_FINISH),
                    "delta": _object({"role": _TEXT, "content": _TEXT}, optional=("role", "content")),
                    "logprobs": nullable(_CHAT_LOGPROBS),
                }
            )
        ),
        "usage": nullable(_USAGE),
        "edgeprec": {"type": "object", "description": "`LiveFacts`, in the last chunk with a choice `ReplyFacts`."},
    },
    optional=("usage", "edgeprec"),
)
_COMPLETION = _object(
    _HEAD
    | _kind("text_completion")
    | {
        "choices": _list(
            _object(
                {
                    "index": _INDEX,
                    "finish_reason": nullable(_FINISH),
                    "text": _TEXT,
                    "logprobs": nullable(_COMPLETION_LOGPROBS),
                }
            )
        ),
        "usage": nullable(_USAGE),
        "edgeprec": {"type": "object", "description": "`ReplyFacts`; in chunks before the last one `LiveFacts`."},
    },
    optional=("usage", "edgeprec"),
)
_MODEL = _object(_kind("model") | {"id": _TEXT, "created": _COUNT, "owned_by": _TEXT})

REPLY_SCHEMAS: dict[str, dict[str, Any]] = {
    "Error": _object({"error": _object(_PROBLEM)}),
    "ChatCompletion": _CHAT,
    "ChatCompletionChunk": _CHAT_CHUNK,
    "Completion": _COMPLETION,
    "ReplyFacts": _FACTS,
    "LiveFacts": _LIVE,
    "Model": _MODEL,
    "Models": _object(_kind("list") | {"data": _list(_MODEL)}),
    "Health": _object({"status": _TEXT}),
}
