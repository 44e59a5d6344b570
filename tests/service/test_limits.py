"""Bodies that are too large, too slow or no JSON, and prompts that are too long: refused with the numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

MakeClient = Callable[..., Any]
MakeServed = Callable[..., Any]
PATH = "/v1/completions"


def post(client: Any, body: bytes) -> Any:
    """Send a body as it is."""
    return client.post(PATH, content=body, headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"prompt": "a"} x', "Extra data"),
        (b'{"prompt": "a", "prompt": "b"}', "same key twice"),
        (b'{"prompt": "a", "seed": NaN}', "NaN is no JSON number"),
        (b'{"prompt": "\xff"}', "invalid start byte"),
        (b'{"prompt": "\\ud800"}', "surrogates not allowed"),
        (b'{"prompt": "a", "seed": ' + b"1" * 6000 + b"}", "integer string"),
        (b"[" * 200_000, "nested too deeply"),
        (b"\x00", "Expecting value"),
    ],
)
def test_malformed_json_is_400(make_client: MakeClient, body: bytes, reason: str) -> None:
    """The message says where it is wrong."""
    answer = post(make_client(), body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_json")
    assert reason in error["message"]


@pytest.mark.parametrize("body", [b"null", b"[]", b"3", b'"text"', b"true"])
def test_a_body_that_is_no_object_is_400(make_client: MakeClient, body: bytes) -> None:
    """JSON, but no request."""
    answer = post(make_client(), body)
    assert answer.status_code == 400
    assert "expected an object" in answer.json()["error"]["message"]


def test_a_large_body_is_413(make_client: MakeClient) -> None:
    """Whether it says its size before or not; the limit itself is allowed."""
    client = make_client(max_body_bytes=2000, engine={"context_tokens": 4000})
    fitting = json.dumps({"prompt": "a" * 1900}).encode()
    assert post(client, fitting + b" " * (2000 - len(fitting))).status_code == 200
    announced = post(client, fitting + b" " * (2001 - len(fitting)))
    assert (announced.status_code, announced.json()["error"]["code"]) == (413, "body_too_large")
    assert "2001 bytes or more, this server takes at most 2000" in announced.json()["error"]["message"]
    pieces = client.post(PATH, content=iter([fitting, b" " * 500]))
    assert pieces.status_code == 413
    assert pieces.headers["connection"] == "close"


def test_a_slow_body_is_408(make_served: MakeServed, asgi: ModuleType) -> None:
    """A client that stops in the middle holds nobody up, and is told why it was sent away."""
    served = make_served(body_seconds=0.05)

    async def go() -> Any:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            exchange = asgi.Exchange(served.app).begin()
            exchange.feed(b'{"prompt"')
            return await exchange.end()

    exchange = asyncio.run(go())
    assert exchange.status == 408
    assert "did not arrive within 0.05 s" in exchange.json["error"]["message"]
    assert exchange.header("connection") == "close"


def test_a_body_in_single_bytes_is_read(make_served: MakeServed, asgi: ModuleType) -> None:
    """Slow is not wrong as long as it is within the time."""
    served = make_served()

    async def go() -> Any:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            exchange = asgi.Exchange(served.app).begin()
            data = b'{"prompt": "abc", "max_tokens": 3}'
            for place in range(len(data)):
                exchange.feed(data[place : place + 1], more=place + 1 < len(data))
            return await exchange.end()

    assert asyncio.run(go()).status == 200


def test_a_client_that_goes_while_it_sends_is_counted(make_served: MakeServed, asgi: ModuleType) -> None:
    """There is nobody to answer; the metrics know."""
    served = make_served()

    async def go() -> bytes:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            exchange = asgi.Exchange(served.app).begin()
            exchange.feed(b'{"prompt"')
            exchange.hang_up()
            await exchange.end()
            return served.room.metrics.text()

    assert b'edgeprec_requests_total{route="/v1/completions",status="499"} 1.0' in asyncio.run(go())


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_a_prompt_that_is_too_long_is_400(make_client: MakeClient, length: int) -> None:
    """Both numbers stand in the message; nothing was run and no place in the queue was taken."""
    client = make_client()
    passes = len(client.served.engine.passes)
    for answer, field in ((client.complete("a" * length), "prompt"), (client.complete([0] * length), "prompt")):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", field)
        assert f"the prompt has {length} tokens, the context holds 64" in error["message"]
    error = client.chat("a" * length).json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert len(client.served.engine.passes) == passes


def test_the_longest_prompt_gives_one_token(make_client: MakeClient) -> None:
    """One token less than the context works."""
    reply = make_client().complete("a" * 63, ignore_eos=True).json()
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (1, "length")


@pytest.mark.parametrize(("prompt", "message"), [("?!", "has no token"), ([3, 27], "token id 27, expected 0 to 26")])
def test_prompts_the_model_cannot_read_are_400(make_client: MakeClient, prompt: Any, message: str) -> None:
    """Nothing the tokenizer knows, or an id the model does not have."""
    answer = make_client().complete(prompt)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
    assert message in answer.json()["error"]["message"]


def test_another_model_is_404(make_client: MakeClient) -> None:
    """The message says which there is; without a name it is meant."""
    answer = make_client().complete("abc", model="gpt-9")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "'gpt-9' is not here, this server has 'toy'" in answer.json()["error"]["message"]


def test_unknown_paths_and_methods_are_json(make_client: MakeClient) -> None:
    """Clients get an error they can read, with what is allowed."""
    client = make_client()
    missing, wrong = client.get("/v1/embeddings"), client.get("/v1/completions")
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"]["message"]
