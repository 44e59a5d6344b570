"""The OpenAPI document of the server as it was started: its routes, its schemas, its limits."""

from __future__ import annotations

from typing import Any

from edgeprec.runtime.service.reply_schemas import REPLY_SCHEMAS
from edgeprec.runtime.service.request_schemas import CHAT_REQUEST, COMPLETION_REQUEST
from edgeprec.runtime.service.settings import ServiceSettings

__all__ = ["openapi_document"]

_PROBLEMS = {
    "400": "A field is unknown, not supported or out of range, or the prompt is too long.",
    "401": "The API key is missing or wrong.",
    "403": "The page or the host name may not use this server.",
    "404": "There is no such model.",
    "408": "The body came too slowly.",
    "413": "The body is too large.",
    "429": "Too many requests wait; `Retry-After` says when to come back.",
    "500": "The engine failed.",
    "503": "The model is being loaded, or the server is shutting down.",
}
_GENERATING = tuple(_PROBLEMS)
_LOCKED = ("401", "403")


def openapi_document(settings: ServiceSettings, *, version: str) -> dict[str, Any]:
    """Return the document. ``security`` is there when the server wants keys."""
    limits = [
        f"bodies of at most {settings.max_body_bytes} bytes within {settings.body_seconds:g} s",
        f"{settings.queue} waiting requests",
        f"{settings.request_seconds:g} s a reply",
        *([] if settings.max_tokens is None else [f"{settings.max_tokens} tokens a reply"]),
    ]
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "EdgePrec",
            "version": version,
            "description": f"{settings.model_name}, OpenAI-compatible. Limits: {', '.join(limits)}.",
        },
        "paths": _paths(settings),
        "components": {
            "schemas": {
                "ChatCompletionRequest": CHAT_REQUEST,
                "CompletionRequest": COMPLETION_REQUEST,
                **REPLY_SCHEMAS,
            }
        },
    }
    if settings.api_key_file is not None:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return document


def _paths(settings: ServiceSettings) -> dict[str, Any]:
    lock: dict[str, Any] = {} if settings.api_key_file is None else {"security": [{"key": []}]}
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        "/v1/chat/completions": {
            "post": _generating("Continue a conversation", "ChatCompletion", stream="ChatCompletionChunk") | lock
        },
        "/v1/completions": {"post": _generating("Continue a text", "Completion", stream="Completion") | lock},
        "/v1/models": {"get": _reading("List the one model", "Models", *_LOCKED) | lock},
        "/v1/models/{model}": {
            "get": _reading("Show a model", "Model", "404", *_LOCKED) | {"parameters": [model]} | lock
        },
        "/health": {"get": _reading("Whether the server lives", "Health", "403", "503")},
        "/ready": {"get": _reading("Whether requests are answered now", "Health", "403", "503")},
        "/metrics": {"get": _plain("Figures for Prometheus", "text/plain", *_LOCKED) | lock},
        "/openapi.json": {"get": _plain("This document", "application/json", "403")},
    }


def _generating(summary: str, name: str, *, stream: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _reference(f"{name}Request")}}},
        "responses": {
            "200": {
                "description": "The reply; with `stream`, events of one chunk each, then `[DONE]`.",
                "content": {
                    "application/json": {"schema": _reference(name)},
                    "text/event-stream": {"schema": _events(stream)},
                },
            },
            **_problems(*_GENERATING),
        },
    }


def _events(name: str) -> dict[str, Any]:
    """Describe one event: readers of OpenAPI 3.1 take the schema of a stream for that of each event's fields."""
    held = {"anyOf": [_reference(name), _reference("Error")]}
    chunk = {"type": "string", "contentMediaType": "application/json", "contentSchema": held}
    end = {"type": "string", "enum": ["[DONE]"]}
    return {"type": "object", "properties": {"data": {"anyOf": [end, chunk]}}, "required": ["data"]}


def _reading(summary: str, name: str, *problems: str) -> dict[str, Any]:
    answer = {"description": summary, "content": {"application/json": {"schema": _reference(name)}}}
    return {"summary": summary, "responses": {"200": answer, **_problems(*problems)}}


def _plain(summary: str, kind: str, *problems: str) -> dict[str, Any]:
    answer = {"description": summary, "content": {kind: {}}}
    return {"summary": summary, "responses": {"200": answer, **_problems(*problems)}}


def _problems(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": _reference("Error")}}
    return {status: {"description": _PROBLEMS[status], "content": content} for status in statuses}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
