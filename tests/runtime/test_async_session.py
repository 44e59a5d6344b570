"""One session for several tasks: order, the bounded queue, cancelling, limits, errors, and the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from edgeprec.errors import ConfigError, EdgePrecError, EngineError
from edgeprec.runtime.async_session import AsyncSession, QueueFull
from edgeprec.runtime.reply import FinishReason

MakeRig = Callable[..., Any]
T = TypeVar("T")
LONG = {"ignore_eos": True, "max_new_tokens": 40}


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test's coroutine, at most half a minute."""

    async def limited() -> T:
        async with asyncio.timeout(30):
            return await work

    return asyncio.run(limited())


class Held:
    """Keeps the engine's next passes until they are released."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.free = threading.Event()

    def __call__(self, _asked: Any) -> None:
        self.entered.set()
        assert self.free.wait(30)


@asynccontextmanager
async def busy(rig: Any, **options: Any) -> AsyncIterator[tuple[AsyncSession, Any, Held]]:
    """Open a session whose engine is held in the first pass of a generation."""
    held = Held()
    rig.target.before_pass = held
    async with AsyncSession(lambda: rig.session, **options) as session:
        job = session.stream("abc", **LONG)
        await asyncio.to_thread(held.entered.wait, 30)
        try:
            yield session, job, held
        finally:
            held.free.set()


def test_replies_are_those_of_a_plain_session(make_rig: MakeRig) -> None:
    """Asked for at once, each task gets its own reply."""
    rig = make_rig("sometimes")
    prompts = ["abc", "xyz", "hello", "a", "abcd"]
    expected = [rig.expected(prompt, 40) for prompt in prompts]

    async def go() -> list[list[int]]:
        async with AsyncSession(lambda: rig.session) as session:
            replies = await asyncio.gather(*(session.generate(prompt, **LONG) for prompt in prompts))
            return [list(reply.tokens) for reply in replies]

    assert run(go()) == expected


def test_tokens_stream_in_order(make_rig: MakeRig) -> None:
    """Iterating gives the events of the reply, all of them once."""
    rig = make_rig()

    async def go() -> None:
        async with AsyncSession(lambda: rig.session) as session:
            job = session.stream("abc", **LONG)
            events = [event async for event in job]
            assert tuple(events) == (await job.reply()).events
            assert len(events) == 40

    run(go())


def test_the_session_lives_in_a_thread_of_its_own(make_rig: MakeRig) -> None:
    """It is opened, used and closed there: the session's own check would say otherwise."""
    threads: list[str] = []
    rig = make_rig()
    rig.target.before_pass = lambda _: threads.append(threading.current_thread().name)

    def open_session() -> Any:
        threads.append(threading.current_thread().name)
        return rig.session

    async def go() -> None:
        async with AsyncSession(open_session) as session:
            await session.generate("abc", max_new_tokens=3)
            threads.append(await session.call(lambda _: threading.current_thread().name))

    run(go())
    assert len(set(threads)) == 1
    assert threads[0].startswith("edgeprec-session")
    assert rig.target.closed == 1


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_one_runs_and_so_many_wait(make_rig: MakeRig, limit: int) -> None:
    """The next is refused at once, and taken again when a place is free."""

    async def go() -> None:
        async with busy(make_rig(), max_waiting=limit) as (session, first, held):
            waiting = [session.stream("ab", **LONG) for _ in range(limit)]
            assert (session.waiting, session.is_running, session.is_full) == (limit, True, True)
            with pytest.raises(QueueFull, match=f"{limit} generations wait, at most {limit} may"):
                session.stream("ab")
            held.free.set()
            for job in (first, *waiting):
                assert len((await job.reply()).tokens) == 40
            assert (session.waiting, session.is_running) == (0, False)
            await session.generate("ab")

    run(go())


def test_generations_run_in_the_order_they_were_asked_for(make_rig: MakeRig) -> None:
    """First come, first served."""
    order: list[str] = []

    async def go() -> None:
        async with busy(make_rig()) as (session, _, held):

            async def ask(prompt: str) -> None:
                await session.generate(prompt, max_new_tokens=2, ignore_eos=True)
                order.append(prompt)

            tasks = [asyncio.create_task(ask(prompt)) for prompt in "cabd"]
            await asyncio.sleep(0)
            held.free.set()
            await asyncio.gather(*tasks)

    run(go())
    assert order == list("cabd")


def test_cancelling_the_running_one_ends_it_within_its_pass(make_rig: MakeRig) -> None:
    """What there was until then is its reply."""

    async def go() -> None:
        rig = make_rig()
        async with busy(rig) as (_, job, held):
            job.cancel()
            held.free.set()
            reply = await job.reply()
            assert reply.finish_reason is FinishReason.CANCELLED
            assert len(rig.target.passes) == 1

    run(go())


def test_cancelling_a_waiting_one_frees_its_place(make_rig: MakeRig) -> None:
    """It never begins, and says so to whoever waits for it."""

    async def go() -> None:
        rig = make_rig()
        async with busy(rig, max_waiting=1) as (session, first, held):
            waiting = session.stream("xyz", **LONG)
            waiting.cancel()
            with pytest.raises(EdgePrecError, match="cancelled before it began"):
                await waiting.reply()
            assert not session.is_full
            held.free.set()
            await first.reply()
        assert all(asked.tokens != (23, 24, 25) for asked in rig.target.passes)

    run(go())


def test_a_cancelled_task_cancels_its_generation(make_rig: MakeRig) -> None:
    """``asyncio.timeout`` around ``generate`` stops the engine too."""

    async def go() -> None:
        async with busy(make_rig()) as (session, first, held):
            task = asyncio.create_task(session.generate("xyz", **LONG))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            held.free.set()
            await first.reply()
            assert not session.is_running

    run(go())


def test_the_time_limit_counts_from_the_beginning(make_rig: MakeRig) -> None:
    """Waiting costs nothing; what was generated until then is the reply."""

    async def go() -> None:
        rig = make_rig(context_tokens=200_000)
        async with AsyncSession(lambda: rig.session) as session:
            job = session.stream("abc", ignore_eos=True, max_new_tokens=199_000, time_limit_s=0.05)
            reply = await job.reply()
            assert job.is_expired
            assert reply.finish_reason is FinishReason.CANCELLED
            assert 0 < len(reply.tokens) < 199_000
            assert job.begun_ns is not None
            assert job.begun_ns >= job.created_ns
            later = session.stream("abc", max_new_tokens=2, time_limit_s=60)
            await later.reply()
            assert not later.is_expired

    run(go())


def test_what_a_session_refuses_reaches_whoever_asked(make_rig: MakeRig) -> None:
    """From the iteration and from the reply; the next one is served."""

    async def go() -> None:
        async with AsyncSession(lambda: make_rig().session) as session:
            job = session.stream("a" * 100)
            with pytest.raises(ConfigError, match="has 100 tokens"):
                [event async for event in job]
            with pytest.raises(ConfigError, match="has 100 tokens"):
                await job.reply()
            assert (await session.generate("abc", max_new_tokens=2)).tokens

    run(go())


def test_a_failed_pass_ends_one_generation_only(make_rig: MakeRig) -> None:
    """The tokens before it came; then its error comes out of the loop."""

    async def go() -> None:
        rig = make_rig()

        def fail(_asked: Any) -> None:
            if len(rig.target.passes) == 5:
                rig.target.before_pass = lambda _: None
                raise EngineError("the device is gone")

        rig.target.before_pass = fail
        async with AsyncSession(lambda: rig.session) as session:
            events: list[Any] = []

            async def take() -> None:
                async for event in session.stream("abc", draft_length=0, **LONG):
                    events.append(event)  # noqa: PERF401  # those before the error are wanted

            with pytest.raises(EngineError, match="the device is gone"):
                await take()
            assert len(events) == 5
            assert list((await session.generate("abc", **LONG)).tokens) == rig.expected("abc", 40)

    run(go())


def test_a_session_that_cannot_be_opened_raises_on_entry() -> None:
    """The error is the loader's own, and no thread is left."""

    def fail() -> Any:
        raise EngineError("there is no device")

    async def go() -> None:
        with pytest.raises(EngineError, match="there is no device"):
            async with AsyncSession(fail):
                raise AssertionError("it was entered")

    run(go())


def test_a_closed_session_takes_nothing(make_rig: MakeRig) -> None:
    """Neither before it was opened nor after; closing it twice is harmless."""

    async def go() -> None:
        rig = make_rig()
        session = AsyncSession(lambda: rig.session)
        with pytest.raises(EdgePrecError, match="not open"):
            session.stream("abc")
        await session.start()
        await session.close()
        await session.close()
        with pytest.raises(EdgePrecError, match="not open"):
            await session.generate("abc")
        assert rig.target.closed == 1

    run(go())


def test_closing_ends_what_runs_and_what_waits(make_rig: MakeRig) -> None:
    """Nobody waits for ever."""

    async def go() -> None:
        rig = make_rig()
        held = Held()
        rig.target.before_pass = held
        session = AsyncSession(lambda: rig.session)
        await session.start()
        running, waiting = session.stream("abc", **LONG), session.stream("ab", **LONG)
        await asyncio.to_thread(held.entered.wait, 30)
        closing = asyncio.create_task(session.close())
        await asyncio.sleep(0)
        held.free.set()
        await closing
        assert (await running.reply()).finish_reason is FinishReason.CANCELLED
        with pytest.raises(EdgePrecError, match="before it began"):
            await waiting.reply()
        assert rig.target.closed == 1

    run(go())


def test_progress_changes_while_work_is_done(make_rig: MakeRig) -> None:
    """A watchdog compares two looks."""

    async def go() -> None:
        async with busy(make_rig()) as (session, job, held):
            before = session.progress
            assert session.progress == before
            held.free.set()
            await job.reply()
            assert session.progress != before

    run(go())


def test_a_negative_limit_is_refused() -> None:
    """A queue has no fewer places than none."""
    with pytest.raises(ConfigError, match="max_waiting is -1"):
        AsyncSession(lambda: None, max_waiting=-1)  # type: ignore[arg-type, return-value]
