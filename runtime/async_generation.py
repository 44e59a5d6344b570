"""A generation that another thread runs: tokens come through the event loop, ``cancel`` goes the other way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future

from edgeprec.errors import EdgePrecError
from edgeprec.runtime.generation import Generation
from edgeprec.runtime.reply import Reply, TokenEvent

__all__ = ["AsyncGeneration"]


class AsyncGeneration:
    """Iterate over it once for ``TokenEvent``; ``await reply()`` gives the whole. ``AsyncSession.stream`` makes them.

    Tokens that nobody takes wait here: a slow reader holds nobody up. ``run`` alone is called in the session's thread.
    """

    def __init__(
        self,
        begin: Callable[[], Generation],
        *,
        time_limit_s: float | None = None,
        on_begin: Callable[[Generation], None] = lambda generation: None,
    ) -> None:
        self.generation: Generation | None = None  # once it runs
        self.is_cancelled = False
        self.is_expired = False  # cancelled because its time was over
        self.created_ns = time.monotonic_ns()
        self.begun_ns: int | None = None
        self._begin = begin
        self._time_limit_s = time_limit_s
        self._on_begin = on_begin
        self._loop = asyncio.get_running_loop()
        self._tokens: asyncio.Queue[TokenEvent | None] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self._work: Future[Reply] | None = None
        self._ended: asyncio.Future[Reply] | None = None

    def follow(self, work: Future[Reply], *, on_end: Callable[[AsyncGeneration], None]) -> None:
        """Watch the work that ``run`` was submitted as."""

        def end(ended: asyncio.Future[Reply]) -> None:
            if not ended.cancelled():
                ended.exception()  # taken note of: nobody has to ask for the reply
            if self._timer is not None:
                self._timer.cancel()
            self._tokens.put_nowait(None)
            on_end(self)

        self._work = work
        self._ended = asyncio.wrap_future(work, loop=self._loop)
        self._ended.add_done_callback(end)

    def run(self) -> Reply:
        """Generate in the calling thread and hand each token to the event loop."""
        generation = self._begin()
        self.generation = generation
        if self.is_cancelled:
            generation.cancel()
        self._on_begin(generation)
        self._loop.call_soon_threadsafe(self._note_begin)
        for event in generation:
            self._loop.call_soon_threadsafe(self._tokens.put_nowait, event)
        return generation.reply

    def cancel(self) -> None:
        """End it within the pass at work, or drop it from the queue; harmless once it has ended."""
        self.is_cancelled = True
        if self.generation is not None:
            self.generation.cancel()
        elif self._work is not None:
            self._work.cancel()

    async def reply(self) -> Reply:
        """Wait for the end and return the reply; a cancelled generation has what there was until then.

        Raises:
            EdgePrecError: a pass failed, the prompt was refused, or it was cancelled while it waited.
        """
        assert self._ended is not None
        await asyncio.wait([self._ended])
        if self._ended.cancelled():
            raise EdgePrecError("the generation was cancelled before it began")
        return self._ended.result()

    async def settled(self) -> Reply | None:
        """Wait for the end and return the reply, None where there is none; nothing is raised."""
        assert self._ended is not None
        await asyncio.wait([self._ended])
        has_none = self._ended.cancelled() or self._ended.exception() is not None
        return None if has_none else self._ended.result()

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self._iterate()

    async def batches(self) -> AsyncIterator[list[TokenEvent]]:
        """Yield all tokens that are there each time there is one; afterwards raise what ``reply`` raises."""
        while True:
            batch: list[TokenEvent | None] = [await self._tokens.get()]
            while not self._tokens.empty():
                batch.append(self._tokens.get_nowait())
            tokens = [event for event in batch if event is not None]
            if tokens:
                yield tokens
            if len(tokens) < len(batch):
                await self.reply()
                return

    async def _iterate(self) -> AsyncIterator[TokenEvent]:
        async for batch in self.batches():
            for event in batch:
                yield event

    def _note_begin(self) -> None:
        self.begun_ns = time.monotonic_ns()
        if self._time_limit_s is not None and not self._is_ended:
            self._timer = self._loop.call_later(self._time_limit_s, self._expire)

    def _expire(self) -> None:
        self.is_expired = not self.is_cancelled
        self.cancel()

    @property
    def _is_ended(self) -> bool:
        return self._ended is not None and self._ended.done()
