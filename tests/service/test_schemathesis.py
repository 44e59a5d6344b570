"""Requests that schemathesis derives from the served document, right and wrong: each answer is as documented."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

MakeServed = Callable[..., Any]
ADDRESS = "http://127.0.0.1"
GENERATING = ("/v1/chat/completions", "/v1/completions")
WITHOUT_INPUT = ("/v1/models", "/health", "/ready", "/metrics", "/openapi.json")
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES = 100
KNOWN = {"prompt": "abc", "model": "toy"}
BOUNDED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


@pytest.fixture(scope="module")
def client(make_served: MakeServed) -> Iterator[TestClient]:
    """Return one client for all requests: what one of them breaks, the next ones show."""
    served = make_served(engine={"context_tokens": 48})
    with TestClient(served.app, base_url=ADDRESS, raise_server_exceptions=False) as opened:
        while opened.get("/ready").status_code != 200:
            assert served.room.failure is None
        yield opened


@pytest.fixture(scope="module")
def document(client: TestClient) -> Any:
    """Return the document as the server gives it, read by schemathesis."""
    return schemathesis.openapi.from_dict(client.get("/openapi.json").json())


def send(client: TestClient, case: Any) -> int:
    """Send what schemathesis made, hold the answer against its checks and return the status."""
    ready = requests.Request(**case.as_transport_kwargs(base_url=ADDRESS)).prepare()
    answer = client.request(ready.method, ready.url, headers=dict(ready.headers), content=ready.body)
    case.validate_response(answer, checks=CHECKS)
    return int(answer.status_code)


@pytest.mark.parametrize("path", GENERATING)
def test_requests_of_the_documented_form(client: TestClient, document: Any, path: str) -> None:
    """A body the schema allows is answered, whole or as a stream, or refused; all of it as documented."""
    statuses: list[int] = []
    streams: list[bool] = []

    @BOUNDED
    @given(document[path]["post"].as_strategy(), st.booleans(), st.sampled_from(({}, {"stream": True})))
    def run(case: Any, is_known: bool, asked: dict[str, Any]) -> None:
        known = {name: KNOWN[name] for name in KNOWN.keys() & case.body.keys() if is_known}
        case.body = case.body | known | asked
        statuses.append(send(client, case))
        streams.append(case.body.get("stream") is True and statuses[-1] == 200)

    run()
    assert len(statuses) == EXAMPLES
    assert {200, 400} <= set(statuses) <= {200, 400, 404}
    assert any(streams)


@pytest.mark.parametrize("path", GENERATING)
def test_requests_of_another_form(client: TestClient, document: Any, path: str) -> None:
    """A body the schema forbids is refused."""
    statuses: list[int] = []

    @BOUNDED
    @given(document[path]["post"].as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def run(case: Any) -> None:
        statuses.append(send(client, case))

    run()
    assert len(statuses) == EXAMPLES
    assert set(statuses) <= {400, 404}  # 404: another field is wrong as well, the model's name


def test_names_of_models(client: TestClient, document: Any) -> None:
    """Whatever stands for the model's name, there is none of that name."""
    statuses: list[int] = []

    @BOUNDED
    @given(document["/v1/models/{model}"]["get"].as_strategy())
    def run(case: Any) -> None:
        statuses.append(send(client, case))

    run()
    assert len(statuses) == EXAMPLES
    assert set(statuses) == {404}


@pytest.mark.parametrize("path", WITHOUT_INPUT)
def test_routes_without_input(client: TestClient, document: Any, path: str) -> None:
    """They are answered as documented."""
    assert send(client, document[path]["get"].Case()) == 200


def test_an_undocumented_answer_is_noticed(client: TestClient) -> None:
    """The checks above hold answers against the document: one that lacks the status, kind or form is at odds."""
    path = "/v1/models"
    for lack in (
        {"201": {"description": "", "content": {"application/json": {}}}},
        {"200": {"description": "", "content": {"text/plain": {}}}},
        {"200": {"description": "", "content": {"application/json": {"schema": {"type": "array"}}}}},
    ):
        value = client.get("/openapi.json").json()
        value["paths"][path]["get"]["responses"] = lack
        with pytest.raises(FailureGroup):
            send(client, schemathesis.openapi.from_dict(value)[path]["get"].Case())


def test_an_undocumented_event_is_noticed(client: TestClient) -> None:
    """The checks look into the events of a stream: a chunk that lacks a field is at odds with the document."""
    value = client.get("/openapi.json").json()
    asked = {"media_type": "application/json", "body": {"prompt": "abc", "stream": True}}
    assert send(client, schemathesis.openapi.from_dict(value)["/v1/completions"]["post"].Case(**asked)) == 200
    value["components"]["schemas"]["Completion"]["required"].append("nonsense")
    with pytest.raises(FailureGroup):
        send(client, schemathesis.openapi.from_dict(value)["/v1/completions"]["post"].Case(**asked))


def test_it_still_answers(client: TestClient) -> None:
    """After all of that a plain request has its reply, and nothing is left at work."""
    assert client.post("/v1/completions", json={"prompt": "abc"}).status_code == 200
    assert client.get("/health").json() == {"status": "ok"}
    assert "edgeprec_running 0.0" in client.get("/metrics").text
