"""The queue before the engine: who waits, who is refused, who gives up, and what a start and an end do to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import ModuleType
from typing import Any

import pytest

MakeServed = Callable[..., Any]
LONG = {"prompt": "abc", "max_tokens": 40, "ignore_eos": True}


def with_busy_engine(
    served: Any, asgi: ModuleType, hold: Any, test: Callable[[Any], Coroutine[Any, Any, None]]
) -> None:
    """Run ``test(first exchange)`` while the engine is held in that exchange's first pass."""

    async def go() -> None:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            hold.arm()
            first = asgi.Exchange(served.app).begin(LONG)
            await asyncio.to_thread(hold.entered.wait, 30)
            try:
                await test(first)
            finally:
                hold.release()

    asyncio.run(go())


@pytest.mark.parametrize("places", [0, 1, 3])
def test_a_full_queue_is_429(make_served: MakeServed, asgi: ModuleType, hold: Any, places: int) -> None:
    """So many wait, the next is told when to come back; all that waited are answered."""
    served = make_served(engine={"before_pass": hold}, queue=places)

    async def test(first: Any) -> None:
        waiting = [asgi.Exchange(served.app).begin(LONG) for _ in range(places)]
        await asgi.until(lambda: served.room.session.waiting == places)
        refused = await asgi.Exchange(served.app).begin(LONG).end()
        assert refused.status == 429
        assert 1 <= int(refused.header("retry-after")) <= 60
        error = refused.json["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        assert f"{places} requests wait already, at most {places} may" in error["message"]
        hold.release()
        answers = [await exchange.end() for exchange in (first, *waiting)]
        assert {exchange.status for exchange in answers} == {200}
        assert len({exchange.json["choices"][0]["text"] for exchange in answers}) == 1
        assert (await asgi.Exchange(served.app).begin(LONG).end()).status == 200

    with_busy_engine(served, asgi, hold, test)


def test_refusal_comes_before_the_prompt_is_read(make_served: MakeServed, asgi: ModuleType, hold: Any) -> None:
    """A full server spends nothing on those it sends away."""
    served = make_served(engine={"before_pass": hold}, queue=0)

    async def test(_first: Any) -> None:
        too_long = await asgi.Exchange(served.app).begin({"prompt": "a" * 10_000}).end()
        assert too_long.status == 429

    with_busy_engine(served, asgi, hold, test)


def test_who_gives_up_frees_the_place(make_served: MakeServed, asgi: ModuleType, hold: Any) -> None:
    """A client that goes while it waits is never generated for."""
    served = make_served(engine={"before_pass": hold}, queue=1)

    async def test(first: Any) -> None:
        waiting = asgi.Exchange(served.app).begin(LONG | {"prompt": "xyz"})
        await asgi.until(lambda: served.room.session.waiting == 1)
        waiting.hang_up()
        await waiting.end()
        assert not served.room.session.is_full
        hold.release()
        assert (await first.end()).status == 200
        assert all(asked.tokens[:3] != (23, 24, 25) for asked in served.engine.passes)

    with_busy_engine(served, asgi, hold, test)


def test_the_wait_is_in_the_reply(make_served: MakeServed, asgi: ModuleType, hold: Any) -> None:
    """Who waited can see it."""
    served = make_served(engine={"before_pass": hold})

    async def test(first: Any) -> None:
        waiting = asgi.Exchange(served.app).begin(LONG)
        await asgi.until(lambda: served.room.session.waiting == 1)
        hold.release()
        waits = [(await exchange.end()).json["edgeprec"]["queue_s"] for exchange in (first, waiting)]
        assert 0 <= waits[0] < waits[1]

    with_busy_engine(served, asgi, hold, test)


def test_nothing_is_answered_before_the_warm_up(make_served: MakeServed, asgi: ModuleType, hold: Any) -> None:
    """While the model is loaded: 503 with a time to come back, health is fine, readiness is not."""
    served = make_served(engine={"before_pass": hold})
    hold.arm()

    async def go() -> None:
        async with asgi.running(served.app):
            await asyncio.to_thread(hold.entered.wait, 30)
            asked = await asgi.Exchange(served.app).begin(LONG).end()
            assert (asked.status, asked.json["error"]["code"]) == (503, "loading")
            assert asked.header("retry-after") == "5"
            for path, status in (("/health", 200), ("/ready", 503)):
                exchange = await asgi.Exchange(served.app, path, "GET").begin(b"").end()
                assert (exchange.status, exchange.json) == (status, {"status": "loading"})
            hold.release()
            await asgi.until(lambda: served.room.phase == "ready")
            assert (await asgi.Exchange(served.app, "/ready", "GET").begin(b"").end()).status == 200
            assert (await asgi.Exchange(served.app).begin(LONG).end()).status == 200

    asyncio.run(go())


def test_a_draining_server_takes_nothing_new_and_finishes_the_rest(
    make_served: MakeServed, asgi: ModuleType, hold: Any
) -> None:
    """What runs and what waits is answered, who comes later is told to go elsewhere."""
    served = make_served(engine={"before_pass": hold})

    async def test(first: Any) -> None:
        waiting = asgi.Exchange(served.app).begin(LONG)
        await asgi.until(lambda: served.room.session.waiting == 1)
        served.room.drain()
        late = await asgi.Exchange(served.app).begin(LONG).end()
        assert (late.status, late.json["error"]["code"]) == (503, "shutting_down")
        assert (await asgi.Exchange(served.app, "/ready", "GET").begin(b"").end()).status == 503
        hold.release()
        assert [(await exchange.end()).status for exchange in (first, waiting)] == [200, 200]

    with_busy_engine(served, asgi, hold, test)


@pytest.mark.parametrize("is_stream", [True, False])
def test_what_the_drain_cuts_off_is_no_reply(
    make_served: MakeServed, asgi: ModuleType, hold: Any, is_stream: bool
) -> None:
    """Half a reply must not pass for one: 503, or an error as the stream's end."""
    served = make_served(engine={"before_pass": hold, "context_tokens": 5000})

    async def test(first: Any) -> None:
        waiting = asgi.Exchange(served.app).begin(LONG | {"stream": is_stream})
        await asgi.until(lambda: served.room.session.waiting == 1)
        served.room.drain()
        served.room.session.cancel_all()
        hold.release()
        for exchange in (first, waiting):
            ended = await exchange.end()
            assert (ended.status, ended.json["error"]["code"]) == (503, "shutting_down")

    with_busy_engine(served, asgi, hold, test)


def test_a_stream_that_the_drain_cuts_off_ends_with_an_error(make_served: MakeServed, asgi: ModuleType) -> None:
    """Tokens that were sent stay sent, and there is no [DONE]."""
    served = make_served(engine={"context_tokens": 100_000})

    async def go() -> bytes:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            asked = LONG | {"stream": True, "max_tokens": 90_000}
            exchange = asgi.Exchange(served.app).begin(asked)
            await asgi.until(lambda: len(exchange.messages) > 3)
            served.room.session.cancel_all()
            return (await exchange.end()).body

    body = asyncio.run(go())
    assert body.rstrip().endswith(b'"code":"shutting_down"}}')
    assert b"[DONE]" not in body
