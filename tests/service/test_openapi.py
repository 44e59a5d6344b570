"""The OpenAPI document against the server: routes, statuses, and real answers held against their schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeprec.runtime.service.openapi import openapi_document
from edgeprec.runtime.service.schema import KEYWORDS, check
from edgeprec.runtime.service.settings import ServiceSettings

MakeClient = Callable[..., Any]
DOCUMENT = openapi_document(ServiceSettings(model_name="toy"), version="1.2.3")
SCHEMAS = DOCUMENT["components"]["schemas"]


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a document."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


def test_references_lead_somewhere() -> None:
    """Every named schema exists and every one is used."""
    used = {node["$ref"].removeprefix("#/components/schemas/") for node in walk(DOCUMENT) if "$ref" in node}
    assert used <= set(SCHEMAS)
    assert set(SCHEMAS) - used == {"LiveFacts", "ReplyFacts"}  # named in descriptions


def test_reply_schemas_say_only_what_is_checked() -> None:
    """So that the tests below hold answers against all of it."""
    for schema in SCHEMAS.values():
        for node in walk(schema):
            if "type" in node and isinstance(node["type"], str | list):
                assert set(node) <= KEYWORDS


def test_documented_routes_are_those_there_are(make_client: MakeClient) -> None:
    """What is listed answers, with the methods that are listed."""
    client = make_client()
    assert client.get("/openapi.json").json()["paths"] == DOCUMENT["paths"]
    for path, methods in DOCUMENT["paths"].items():
        for method in ("get", "post", "put", "delete", "patch"):
            status = client.request(method, path.replace("{model}", "toy")).status_code
            assert (status != 405) == (method in methods), (method, path, status)


def test_the_document_tells_the_limits_and_the_lock(tmp_path: Path) -> None:
    """They are this server's, not some server's."""
    settings = ServiceSettings(model_name="toy", api_key_file=tmp_path / "k", queue=3, max_tokens=50)
    document = openapi_document(settings, version="1.2.3")
    assert "3 waiting requests" in document["info"]["description"]
    assert "50 tokens a reply" in document["info"]["description"]
    assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    locked = {path for path, item in document["paths"].items() for way in item.values() if "security" in way}
    assert locked == {path for path in document["paths"] if path.startswith(("/v1", "/metrics"))}
    assert str(tmp_path) not in json.dumps(document)
    assert "security" not in json.dumps(DOCUMENT)


@pytest.mark.parametrize("asked", [{}, {"logprobs": True, "top_logprobs": 2}, {"max_tokens": 2}])
def test_conversations_match_their_schema(make_client: MakeClient, asked: dict[str, Any]) -> None:
    """Whole and streamed, with the facts."""
    client = make_client()
    reply = client.chat("abc", **asked).json()
    check(reply, SCHEMAS["ChatCompletion"])
    check(reply["edgeprec"], SCHEMAS["ReplyFacts"])
    body = client.chat("abc", stream=True, stream_options={"include_usage": True}, **asked).text
    parts = [
        json.loads(block.removeprefix("data: ")) for block in body.split("\n\n") if block and "[DONE]" not in block
    ]
    for part in parts:
        check(part, SCHEMAS["ChatCompletionChunk"])
    facts = [part["edgeprec"] for part in parts if "edgeprec" in part]
    check(facts.pop(), SCHEMAS["ReplyFacts"])
    for live in facts:
        check(live, SCHEMAS["LiveFacts"])


@pytest.mark.parametrize("asked", [{}, {"logprobs": 2}, {"temperature": 1.0}])
def test_completions_match_their_schema(make_client: MakeClient, asked: dict[str, Any]) -> None:
    """Both ways."""
    client = make_client()
    check(client.complete("abc", **asked).json(), SCHEMAS["Completion"])
    body = client.complete("abc", stream=True, **asked).text
    for block in body.split("\n\n"):
        if block and "[DONE]" not in block:
            check(json.loads(block.removeprefix("data: ")), SCHEMAS["Completion"])


def test_the_rest_matches_its_schema(make_client: MakeClient) -> None:
    """Models, health and errors."""
    client = make_client()
    check(client.get("/v1/models").json(), SCHEMAS["Models"])
    check(client.get("/v1/models/toy").json(), SCHEMAS["Model"])
    for path in ("/health", "/ready"):
        check(client.get(path).json(), SCHEMAS["Health"])
    for answer in (client.get("/nothing"), client.complete("abc", beams=1), client.get("/v1/completions")):
        check(answer.json(), SCHEMAS["Error"])
