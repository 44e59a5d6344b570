"""Streamed replies: the whole text in pieces, per-token facts, the end of a stream, and what cuts it short."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from edgeprec.errors import EngineError

MakeClient = Callable[..., Any]
MakeServed = Callable[..., Any]


def chunks(body: str) -> list[dict[str, Any]]:
    """Return the events of a whole stream, which must end with [DONE]."""
    events = [block.removeprefix("data: ") for block in body.split("\n\n") if block]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_a_streamed_conversation_is_the_whole_one(make_client: MakeClient) -> None:
    """The pieces join to the text; first the role, last how it ended."""
    client = make_client()
    whole = client.chat("hello", max_tokens=20).json()
    answer = client.chat("hello", max_tokens=20, stream=True)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    parts = chunks(answer.text)
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == whole["choices"][0]["message"]["content"]
    reasons = [part["choices"][0]["finish_reason"] for part in parts]
    assert reasons[-1] == whole["choices"][0]["finish_reason"]
    assert set(reasons[:-1]) == {None}
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}
    assert len({part["id"] for part in parts}) == 1
    assert parts[-1]["edgeprec"]["token_sha256"] == whole["edgeprec"]["token_sha256"]
    assert parts[-1]["edgeprec"]["mode"] == "exact"


def test_a_streamed_completion_is_the_whole_one(make_client: MakeClient) -> None:
    """The older shape has text in place of deltas and no opening."""
    client = make_client()
    whole = client.complete("hello", max_tokens=20).json()
    parts = chunks(client.complete("hello", max_tokens=20, stream=True).text)
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["choices"][0]["text"]
    assert all("usage" not in part for part in parts)


def test_chunks_say_what_produced_each_token(make_client: MakeClient) -> None:
    """Every token once, in order, with entropy, gear, source and round; acceptance so far beside it."""
    asked = {"max_tokens": 20, "ignore_eos": True, "stream": True, "edgeprec": {"draft_length": 3}}
    parts = chunks(make_client().complete("hello", **asked).text)
    tokens = [token for part in parts[:-1] for token in part["edgeprec"]["tokens"]]
    assert [token["index"] for token in tokens] == list(range(20))
    assert {token["source"] for token in tokens} == {"draft", "target"}
    assert all(token["entropy_bits"] >= 0 for token in tokens)
    assert {token["gear"] for token in tokens} <= {"low", "high"}
    assert [token["int4_layers"] > 0 for token in tokens] == [token["source"] == "draft" for token in tokens]
    assert parts[-2]["edgeprec"]["acceptance_rate"] == parts[-1]["edgeprec"]["acceptance_rate"]
    assert parts[0]["edgeprec"]["watts"] is None


def test_usage_comes_last_when_it_was_asked_for(make_client: MakeClient) -> None:
    """A chunk without choices; the others say that theirs is to come."""
    client = make_client()
    asked = {"max_tokens": 5, "stream": True, "stream_options": {"include_usage": True}}
    parts = chunks(client.chat("abc", **asked).text)
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == client.chat("abc", max_tokens=5).json()["usage"] | {
        "prompt_tokens_details": parts[-1]["usage"]["prompt_tokens_details"]
    }
    assert all(part["usage"] is None for part in parts[:-1])


@pytest.mark.parametrize("kind", ["chat", "complete"])
def test_streamed_logprobs_are_the_whole_ones(make_client: MakeClient, kind: str) -> None:
    """Piece by piece they add up to the same lists, offsets too."""
    client = make_client()
    asked = {"max_tokens": 12, "ignore_eos": True} | (
        {"logprobs": True, "top_logprobs": 2} if kind == "chat" else {"logprobs": 2}
    )
    whole = getattr(client, kind)("abc", **asked).json()["choices"][0]["logprobs"]
    parts = chunks(getattr(client, kind)("abc", stream=True, **asked).text)
    found = [part["choices"][0]["logprobs"] for part in parts if part["choices"][0]["logprobs"]]
    for name in ("content",) if kind == "chat" else ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [entry for piece in found for entry in piece[name]] == whole[name]


def test_text_held_back_for_a_stop_string_is_sent_at_the_end(make_client: MakeClient) -> None:
    """What might have become the stop string and did not is part of the reply."""
    client = make_client(model={"forced": {2: 7, 3: 8, 4: 9}})
    parts = chunks(client.complete("ab", max_tokens=3, stop="ijk", stream=True).text)
    assert "".join(part["choices"][0]["text"] for part in parts) == "hij"


def test_a_refused_stream_has_a_status(make_client: MakeClient) -> None:
    """What is wrong before the first token is no event."""
    answer = make_client().complete("ab", stream=True, edgeprec={"drafter": "model"})
    assert answer.status_code == 400
    assert "no draft model" in answer.json()["error"]["message"]


def test_a_failure_on_the_way_is_the_last_event(make_client: MakeClient) -> None:
    """The status has been sent by then; there is no [DONE], and nothing of the engine's own words."""

    def fail(_asked: Any) -> None:
        if armed.is_set() and len(client.served.engine.passes) > first + 4:
            raise EngineError("/opt/secret/model.onnx broke")

    armed = threading.Event()
    client = make_client(engine={"before_pass": fail})
    first = len(client.served.engine.passes)
    armed.set()
    answer = client.complete("abc", max_tokens=30, ignore_eos=True, stream=True)
    assert answer.status_code == 200
    last = [block for block in answer.text.split("\n\n") if block][-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_failed"
    assert "secret" not in answer.text
    armed.clear()
    assert client.complete("abc").status_code == 200


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_goes_ends_its_generation_within_a_round(
    make_served: MakeServed, asgi: ModuleType, hold: Any, is_stream: bool
) -> None:
    """The engine does at most the pass it is in and the rest of that round, then serves the next."""
    served = make_served(engine={"before_pass": hold, "context_tokens": 64})

    async def go() -> tuple[int, int]:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            hold.arm()
            asked = {"prompt": "abc", "max_tokens": 50, "ignore_eos": True, "stream": is_stream}
            exchange = asgi.Exchange(served.app).begin(asked)
            await asyncio.to_thread(hold.entered.wait, 30)
            passes = len(served.engine.passes)
            exchange.hang_up()
            await exchange.end()
            hold.release()
            await asgi.until(lambda: not served.room.session.is_running)
            done = len(served.engine.passes) - passes
            after = await asgi.Exchange(served.app).begin({"prompt": "abc"}).end()
            return done, after.status

    done, status = asyncio.run(go())
    assert done <= 1
    assert status == 200


def test_a_client_that_goes_in_the_middle_of_a_stream_ends_it(make_served: MakeServed, asgi: ModuleType) -> None:
    """Not only before the first token."""
    served = make_served(engine={"context_tokens": 5000})

    async def go() -> int:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            asked = {"prompt": "abc", "max_tokens": 4900, "ignore_eos": True, "stream": True}
            exchange = asgi.Exchange(served.app).begin(asked)
            await asgi.until(lambda: len(exchange.messages) > 3)
            exchange.hang_up()
            await exchange.end()
            await asgi.until(lambda: not served.room.session.is_running)
            return len(served.room.session._current.events)

    assert asyncio.run(go()) < 4900


def test_a_reader_that_stands_still_is_cut_off(make_served: MakeServed, asgi: ModuleType) -> None:
    """Its connection is aborted after the time limit, and the engine is free for others."""
    served = make_served(stall_seconds=0.05)
    aborted: list[bool] = []

    async def stand_still(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def go() -> int:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            slow = asgi.Exchange(served.app, on_send=stand_still, state={"abort": lambda: aborted.append(True)})
            await slow.begin({"prompt": "abc", "max_tokens": 50, "stream": True}).end()
            return (await asgi.Exchange(served.app).begin({"prompt": "abc"}).end()).status

    assert asyncio.run(go()) == 200
    assert aborted == [True]


def test_a_time_limit_ends_a_stream_as_length(make_served: MakeServed, asgi: ModuleType) -> None:
    """What there is until then is a reply; the facts say that it was the time."""
    served = make_served(request_seconds=0.05, engine={"context_tokens": 100_000})

    async def go() -> Any:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            asked = {"prompt": "abc", "max_tokens": 90_000, "ignore_eos": True}
            return (await asgi.Exchange(served.app).begin(asked).end()).json

    reply = asyncio.run(go())
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["edgeprec"]["is_time_limit"] is True
    assert reply["usage"]["completion_tokens"] < 90_000
