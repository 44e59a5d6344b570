"""Whether the engine answers, seen from outside: at rest, at work, stuck and broken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import ModuleType
from typing import Any

from edgeprec.errors import EngineError
from edgeprec.runtime.service.engine_watch import EngineWatch
from edgeprec.runtime.service.notify import Notifier

MakeServed = Callable[..., Any]
MakeClient = Callable[..., Any]


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_an_engine_at_rest_is_probed(make_client: MakeClient) -> None:
    """One row, and the cached conversation stays."""
    client = make_client()
    first = client.complete("abc", max_tokens=5, ignore_eos=True).json()
    passes = len(client.served.engine.passes)
    assert client.get("/health").json() == {"status": "ok"}
    assert [len(asked.tokens) for asked in client.served.engine.passes[passes:]] == [1]
    again = client.complete("abc" + first["choices"][0]["text"], max_tokens=2).json()
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 3


def test_an_engine_that_fails_is_reported_once_it_has_for_long(make_served: MakeServed, asgi: ModuleType) -> None:
    """One failure is not the end; none but failures is 503 for whoever watches."""

    def fail(_asked: Any) -> None:
        if is_broken:
            raise EngineError("the device fell off the bus")

    is_broken: list[bool] = []
    served = make_served(engine={"before_pass": fail})
    clock = Clock()

    async def go() -> list[bool]:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            watch = EngineWatch(served.room.session, stuck_s=60, clock=clock)
            answers = [await watch.is_alive()]
            is_broken.append(True)
            for _ in range(2):
                clock.now_s += 40
                answers.append(await watch.is_alive())
            is_broken.clear()
            clock.now_s += 10
            answers.append(await watch.is_alive())
            return answers

    assert asyncio.run(go()) == [True, True, False, True]


def test_an_engine_at_work_must_move(make_served: MakeServed, asgi: ModuleType, hold: Any) -> None:
    """Held in a pass it does not; free again it does. No probe disturbs it."""
    served = make_served(engine={"before_pass": hold, "context_tokens": 5000})

    async def go() -> list[bool]:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            watch = EngineWatch(served.room.session)
            hold.arm()
            asked = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "stream": True}
            exchange = asgi.Exchange(served.app).begin(asked)
            await asyncio.to_thread(hold.entered.wait, 30)
            moved = [await watch.has_moved() for _ in range(3)]
            hold.release()
            await asgi.until(lambda: len(exchange.messages) > 2)
            moved.append(await watch.has_moved())
            exchange.hang_up()
            await exchange.end()
            return moved

    assert asyncio.run(go()) == [True, False, False, True]


def test_the_watchdog_starves_with_the_engine(make_served: MakeServed, asgi: ModuleType, hold: Any) -> None:
    """Signs of life come from the engine, not from a timer."""
    served = make_served(engine={"before_pass": hold})

    class Counting(Notifier):
        fed = 0

        def feed_watchdog(self) -> None:
            """Count instead of sending."""
            self.fed += 1

    async def go() -> tuple[int, int, int]:
        async with asgi.running(served.app):
            await asgi.until(lambda: served.room.phase == "ready")
            notifier = Counting(watchdog_s=0.003)
            watch = EngineWatch(served.room.session)
            task = asyncio.create_task(watch.feed(notifier))
            await asgi.until(lambda: notifier.fed >= 3)
            hold.arm()
            exchange = asgi.Exchange(served.app).begin({"prompt": "abc"})
            await asyncio.to_thread(hold.entered.wait, 30)
            stuck = notifier.fed
            for _ in range(20):
                await watch.has_moved()
            held = notifier.fed
            hold.release()
            await exchange.end()
            await asgi.until(lambda: notifier.fed > held + 2)
            task.cancel()
            return stuck, held, notifier.fed

    stuck, held, last = asyncio.run(go())
    assert held - stuck <= 2  # one look may have been under way
    assert last > held


def test_nobody_is_fed_who_does_not_ask(make_served: MakeServed) -> None:
    """Without a watchdog the engine is left alone."""
    served = make_served()
    asyncio.run(EngineWatch(served.room.session).feed(Notifier()))
