"""One session for many callers: a thread of its own runs it, a bounded queue stands before it.

    async with AsyncSession(lambda: edgeprec.load("pair.edgeprec")) as session:
        reply = await session.generate("The capital of France is", max_new_tokens=64)
        async for token in session.stream("Once upon a time"):
            print(token.text, end="")

Generations run one after the other, in the order in which they were asked for. All methods belong to the event loop
in which the session was started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from edgeprec.config import GenerationConfig
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.runtime.async_generation import AsyncGeneration
from edgeprec.runtime.generation import Generation
from edgeprec.runtime.reply import Reply
from edgeprec.runtime.session import Session
from edgeprec.runtime.tokenizer import Message

__all__ = ["AsyncSession", "QueueFull"]

T = TypeVar("T")


class QueueFull(EdgePrecError):
    """As many generations wait as may wait."""


class AsyncSession:
    """Runs a ``Session`` for several tasks; use it with ``async with``, or call ``start`` and ``close``.

    ``open_session`` is called in the session's own thread. Beside the one that runs, ``max_waiting`` generations may
    wait; further ones are refused with ``QueueFull``.
    """

    def __init__(self, open_session: Callable[[], Session], *, max_waiting: int = 64) -> None:
        if max_waiting < 0:
            raise ConfigError(f"max_waiting is {max_waiting}, expected 0 or more generations")
        self.max_waiting = max_waiting
        self._open_session = open_session
        self._executor: ThreadPoolExecutor | None = None
        self._session: Session | None = None
        self._unfinished: set[AsyncGeneration] = set()
        self._current: Generation | None = None
        self._begun = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def session(self) -> Session:
        """Return the session, for what may be read from any thread: ``info``, ``tokenizer``, ``meter``.

        Raises:
            EdgePrecError: it is not open.
        """
        if self._session is None:
            raise EdgePrecError("this AsyncSession is not open: use it in an async with statement")
        return self._session

    @property
    def is_running(self) -> bool:
        """Whether a generation runs or is about to."""
        return bool(self._unfinished)

    @property
    def waiting(self) -> int:
        """Return how many generations wait for the one that runs."""
        return max(len(self._unfinished) - 1, 0)

    @property
    def is_full(self) -> bool:
        """Whether the next generation would be refused."""
        return len(self._unfinished) > self.max_waiting

    @property
    def progress(self) -> tuple[int, int]:
        """Return the generations begun and the steps of the current one: while work is done, this changes."""
        current = self._current
        return self._begun, 0 if current is None else current.steps

    async def start(self) -> None:
        """Start the thread and open the session in it.

        Raises:
            EdgePrecError: what ``open_session`` raises.
        """
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="edgeprec-session")
        try:
            self._session = await self._submit(self._open_session)
        except BaseException:
            self._executor.shutdown(wait=False)
            self._executor = None
            raise

    async def close(self) -> None:
        """Cancel what runs and waits, close the session and end its thread; calling it twice is harmless."""
        self.cancel_all()
        session, executor = self._session, self._executor
        if session is None or executor is None:
            return
        self._session = None
        try:
            await self._submit(session.close)
        finally:
            self._executor = None
            executor.shutdown(wait=False)  # its queue is empty: closing the session was the last entry

    def stream(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        config: GenerationConfig | None = None,
        *,
        chat: bool = False,
        top_logprobs: int | None = None,
        time_limit_s: float | None = None,
        **overrides: Any,
    ) -> AsyncGeneration:
        """Put a generation into the queue; iterate over it for tokens. Arguments as for ``Session.stream``.

        ``time_limit_s`` ends it that long after it began; the time it waits does not count.

        Raises:
            QueueFull: too many wait already.
            EdgePrecError: the session is not open. What ``Session.stream`` refuses is raised by the iteration.
        """
        session = self.session
        if self.is_full:
            raise QueueFull(f"{self.waiting} generations wait, at most {self.max_waiting} may: try again later")
        job = AsyncGeneration(
            lambda: session.stream(prompt, config, chat=chat, top_logprobs=top_logprobs, **overrides),
            time_limit_s=time_limit_s,
            on_begin=self._note_begin,
        )
        self._unfinished.add(job)
        assert self._executor is not None
        job.follow(self._executor.submit(job.run), on_end=self._unfinished.discard)
        return job

    async def generate(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        config: GenerationConfig | None = None,
        **options: Any,
    ) -> Reply:
        """Generate to the end and return the reply; see ``stream``. Cancelling the task cancels the generation."""
        job = self.stream(prompt, config, **options)
        try:
            return await job.reply()
        finally:
            job.cancel()

    async def call(self, function: Callable[[Session], T]) -> T:
        """Call ``function`` with the session in its thread, after what runs and waits now."""
        session = self.session
        return await self._submit(lambda: function(session))

    def cancel_all(self) -> None:
        """End the generation that runs within its pass, and drop those that wait."""
        for job in tuple(self._unfinished):
            job.cancel()

    def _note_begin(self, generation: Generation) -> None:
        """Take note of what runs now; called in the session's thread."""
        self._begun += 1
        self._current = generation

    async def _submit(self, function: Callable[[], T]) -> T:
        assert self._executor is not None
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)
