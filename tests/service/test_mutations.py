"""Five hundred requests that are slightly or grossly wrong: each is answered as documented, none is a 500."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from edgeprec.runtime.service.openapi import openapi_document
from edgeprec.runtime.service.schema import check
from edgeprec.runtime.service.settings import ServiceSettings

MakeServed = Callable[..., Any]
DOCUMENT = openapi_document(ServiceSettings(model_name="toy"), version="1")
SCHEMAS = DOCUMENT["components"]["schemas"]
ROUTES = {"/v1/chat/completions": "ChatCompletionRequest", "/v1/completions": "CompletionRequest"}
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "toy",
        "messages": [
            {"role": "system", "content": "be"},
            {"role": "user", "content": [{"type": "text", "text": "ab"}]},
        ],
        "max_tokens": 3,
        "temperature": 0.7,
        "seed": 1,
        "stop": ["q", "zz"],
        "logprobs": True,
        "top_logprobs": 2,
        "edgeprec": {"mode": "exact"},
    },
    "/v1/completions": {"model": "toy", "prompt": "abc", "max_tokens": 3, "top_p": 0.9, "logprobs": 1, "stream": True},
}


@pytest.fixture(scope="module")
def client(make_served: MakeServed) -> Any:
    """Return one client for all requests: what one of them breaks, the next ones show."""
    from starlette.testclient import TestClient

    served = make_served(engine={"context_tokens": 48})
    with TestClient(served.app, base_url="http://127.0.0.1", raise_server_exceptions=False) as opened:
        while opened.get("/ready").status_code != 200:
            assert served.room.failure is None
        yield opened


def matching(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values that a schema of this server allows."""
    if "anyOf" in schema:
        return st.one_of(*(matching(branch) for branch in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of(*(_of_kind(kind, schema) for kind in kinds))


def _of_kind(kind: str, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    if kind == "object":
        known = {name: matching(inner) for name, inner in schema.get("properties", {}).items()}
        required = {name: known.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=known)
    if kind == "array":
        items = matching(schema["items"]) if "items" in schema else st.nothing()
        size = {"min_size": schema.get("minItems", 0), "max_size": min(schema.get("maxItems", 3), 3)}
        return st.lists(items, **size)
    if kind == "string":
        return st.text(min_size=schema.get("minLength", 0), max_size=min(schema.get("maxLength", 20), 20))
    if kind == "integer":
        return st.integers(schema.get("minimum", -9), min(schema.get("maximum", 40), 40))
    if kind == "number":
        low = schema.get("minimum", schema.get("exclusiveMinimum", -9))
        high = schema.get("maximum", schema.get("exclusiveMaximum", 9))
        return st.floats(low, high, exclude_min="minimum" not in schema, exclude_max="maximum" not in schema)
    return st.booleans() if kind == "boolean" else st.none()


JUNK = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=30),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn, path: str) -> Any:
    """Return a valid body of which one to three places were changed, removed or added."""
    body = json.loads(json.dumps(VALID[path]))
    for _ in range(draw(st.integers(1, 3))):
        place: Any = body
        while isinstance(place, dict | list) and place:
            keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            key = draw(st.sampled_from(keys))
            inner = place[key]
            if isinstance(inner, dict | list) and inner and draw(st.booleans()):
                place = inner
                continue
            change = draw(st.sampled_from(("replace", "remove", "add")))
            if change == "remove":
                del place[key]
            elif change == "add" and isinstance(place, dict):
                place[draw(st.text(max_size=12))] = draw(JUNK)
            else:
                place[key] = draw(JUNK)
            break
    return body


def answer_is_documented(client: Any, path: str, content: bytes) -> int:
    """Send a body and hold the answer against the document."""
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    documented = DOCUMENT["paths"][path]["post"]["responses"]
    assert str(answer.status_code) in documented, (content, answer.text)
    assert answer.status_code < 500, (content, answer.text)
    if answer.status_code != 200:
        check(answer.json(), SCHEMAS["Error"])
    return int(answer.status_code)


BOUNDED = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("path", ROUTES)
def test_mutated_requests(client: Any, path: str) -> None:
    """A valid body with something wrong in it: refused or answered, never a failure; 120 for each route."""

    @BOUNDED
    @given(mutated(path))
    def run(body: Any) -> None:
        answer_is_documented(client, path, json.dumps(body).encode())

    run()


@pytest.mark.parametrize("path", ROUTES)
def test_requests_the_document_allows(client: Any, path: str) -> None:
    """Whatever matches the schema is read by the checker; 80 for each route."""

    @settings(BOUNDED, max_examples=80)
    @given(matching(SCHEMAS[ROUTES[path]]))
    def run(body: Any) -> None:
        check(body, SCHEMAS[ROUTES[path]])
        answer_is_documented(client, path, json.dumps(body).encode())

    run()


@pytest.mark.parametrize("path", ROUTES)
def test_broken_bytes(client: Any, path: str) -> None:
    """A valid body with bytes cut, doubled or changed; 60 for each route."""
    data = json.dumps(VALID[path]).encode()

    @settings(BOUNDED, max_examples=60)
    @given(st.integers(0, len(data)), st.integers(0, len(data)), st.binary(max_size=6))
    def run(begin: int, end: int, between: bytes) -> None:
        answer_is_documented(client, path, data[:begin] + between + data[end:])

    run()


HAND_WRITTEN: list[Any] = [
    {},
    {"prompt": ""},
    {"prompt": []},
    {"prompt": [True]},
    {"prompt": [-1]},
    {"prompt": [10**30]},
    {"prompt": ["a", "b"]},
    {"prompt": "a", "max_tokens": 2**31 - 1},
    {"prompt": "a", "max_tokens": 2**63},
    {"prompt": "a", "temperature": 1e-300, "seed": 0},
    {"prompt": "a", "temperature": 5e-324, "seed": 0},
    {"prompt": "a", "temperature": 2, "top_p": 1e-300, "seed": 0},
    {"prompt": "a", "temperature": 1, "min_p": 0.9999999999999999},
    {"prompt": "a", "repetition_penalty": 1e-300},
    {"prompt": "a", "top_k": 2**31 - 1, "temperature": 1},
    {"prompt": "a", "stop": ["a"] * 16},
    {"prompt": "a", "stop": ["\u0000"]},
    {"prompt": "\u0000\uffff\U0010ffff"},
    {"prompt": "a" * 60},
    {"prompt": "a", "model": "../../etc/passwd"},
    {"prompt": "a", "edgeprec": {"mode": "bounded"}},
    {"prompt": "a", "edgeprec": {"mode": "gated"}},
    {"prompt": "a", "edgeprec": {"drafter": "model"}},
    {"prompt": "a", "edgeprec": {"mode": "int4", "draft_length": 15}},
    {"prompt": "a", "seed": -(2**63)},
    {"prompt": "a", "stream": True, "stream_options": {"include_usage": None}},
    {"messages": [{"role": "user", "content": ""}]},
    {"messages": [{"role": "assistant", "content": "a"}]},
    {"messages": [{"role": "system", "content": "{{ 7 * 7 }}{% raw %}"}]},
]


@pytest.mark.parametrize("body", HAND_WRITTEN, ids=lambda body: json.dumps(body)[:40])
@pytest.mark.parametrize("path", ROUTES)
def test_requests_somebody_would_try(client: Any, path: str, body: Any) -> None:
    """Extremes and tricks, on both routes."""
    answer_is_documented(client, path, json.dumps(body).encode())


def test_it_still_answers(client: Any) -> None:
    """After all of that a plain request has its plain reply, and nothing is left at work."""
    assert answer_is_documented(client, "/v1/completions", b'{"prompt": "abc"}') == 200
    assert client.get("/health").json() == {"status": "ok"}
    assert "edgeprec_running 0.0" in client.get("/metrics").text
