"""The engine behind the server: loaded and warmed up in the background, then lent to one request after the other."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from enum import StrEnum

from edgeprec.runtime.async_generation import AsyncGeneration
from edgeprec.runtime.async_session import AsyncSession, QueueFull
from edgeprec.runtime.service.asked import Asked
from edgeprec.runtime.service.metrics import Metrics
from edgeprec.runtime.service.power_watch import PowerWatch
from edgeprec.runtime.service.problem import Problem
from edgeprec.runtime.service.prompt import encode_prompt
from edgeprec.runtime.service.settings import ServiceSettings
from edgeprec.runtime.service.trace_log import TraceLog
from edgeprec.runtime.session import Session

__all__ = ["EngineRoom", "Phase"]

_log = logging.getLogger(__name__)
_WARM_UP_TOKENS = 8
_MAX_RETRY_S = 60
_LOADING_RETRY_S = 5


class Phase(StrEnum):
    """Where a server is in its life."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class EngineRoom:
    """Owns the session. ``failure`` is why it could not be loaded; ``trace`` None = nothing is traced."""

    def __init__(
        self, open_session: Callable[[], Session], settings: ServiceSettings, *, trace: TraceLog | None = None
    ) -> None:
        self.session = AsyncSession(open_session, max_waiting=settings.queue)
        self.settings = settings
        self.metrics = Metrics()
        self.power = PowerWatch(None)
        self.phase = Phase.LOADING
        self.failure: BaseException | None = None
        self.loaded_unix_s = int(time.time())
        self._trace = trace
        self._trace_lock = asyncio.Lock()
        self._notes: set[asyncio.Task[None]] = set()
        self._mean_reply_s = 1.0
        self.metrics.watch(
            waiting=lambda: self.session.waiting,
            is_running=lambda: self.session.is_running,
            limit=settings.queue,
            watts=lambda: self.power.ask(),
        )

    async def load(self) -> None:
        """Open the bundle and generate a few tokens; afterwards the phase is READY.

        Raises:
            EdgePrecError: it cannot be loaded or does not run; the phase is FAILED and ``failure`` the error.
        """
        try:
            await self.session.start()
            self.power = PowerWatch(self.session.session.meter)
            await self.session.call(self._warm_up)
        except asyncio.CancelledError:
            raise  # the server ends before it began
        except BaseException as error:
            self.failure = error
            self.phase = Phase.FAILED
            raise
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    async def close(self) -> None:
        """End everything and free the engine."""
        await self.power.close()
        await self.session.close()
        if self._notes:
            await asyncio.wait(self._notes)
        if self._trace is not None:
            self._trace.close()

    def drain(self) -> None:
        """Take no more requests; those that run and wait go on."""
        self.phase = Phase.DRAINING

    async def begin(self, asked: Asked) -> AsyncGeneration:
        """Check what is asked against the model and put it into the queue.

        Raises:
            Problem: the model is another (404), prompt or reply are too long (400), or it is not the time (429, 503).
        """
        self._require_open(asked)
        session, limit = self.session.session, self.settings.max_tokens
        if limit is not None and asked.max_tokens is not None and asked.max_tokens > limit:
            raise Problem(
                400,
                f"the field 'max_tokens' is {asked.max_tokens}, this server gives at most {limit} tokens a reply",
                param="max_tokens",
            )
        tokens = await asyncio.to_thread(encode_prompt, session.tokenizer, session.info, asked)
        self._require_open(asked)
        try:
            job = self.session.stream(
                tokens,
                asked.config,
                top_logprobs=asked.top_logprobs,
                time_limit_s=self.settings.request_seconds,
                max_new_tokens=asked.max_tokens or limit or session.info.context_tokens,
            )
        except QueueFull as error:
            raise self._full() from error
        task = asyncio.create_task(self._note_end(job))
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)
        return job

    async def _note_end(self, job: AsyncGeneration) -> None:
        """Count and trace a generation once it has ended, whoever still wants to know of it."""
        reply = await job.settled()
        if reply is None:
            return  # whoever asked has been told why
        self.metrics.count_reply(reply, job)
        self._mean_reply_s += 0.2 * (reply.stats.prefill_s + reply.stats.decode_s - self._mean_reply_s)
        if self._trace is not None and job.generation is not None:
            async with self._trace_lock:
                await asyncio.to_thread(self._trace.write, job.generation, {"model": self.settings.model_name})

    def _require_open(self, asked: Asked) -> None:
        if self.phase is Phase.LOADING:
            raise Problem(
                503, "the model is being loaded: try again", code="loading", headers=_retry_after(_LOADING_RETRY_S)
            )
        if self.phase is not Phase.READY:
            raise Problem(503, "the server is shutting down", code="shutting_down", headers={"connection": "close"})
        if asked.model is not None and asked.model != self.settings.model_name:
            raise Problem(
                404,
                f"the model {asked.model[:100]!r} is not here, this server has {self.settings.model_name!r}",
                param="model",
                code="model_not_found",
            )
        if self.session.is_full:
            raise self._full()

    def _full(self) -> Problem:
        """Suggest to come back when the generation at work has probably ended."""
        return Problem(
            429,
            f"{self.session.waiting} requests wait already, at most {self.settings.queue} may: try again later",
            code="queue_full",
            headers=_retry_after(self._mean_reply_s),
        )

    def _warm_up(self, session: Session) -> None:
        """Run every kind of pass once, and learn what they cost."""
        room = session.info.context_tokens - 1
        if room > 1:
            tokens = min(_WARM_UP_TOKENS, room)
            session.generate([0], self.settings.generation, max_new_tokens=tokens, ignore_eos=True, stop=())


def _retry_after(seconds: float) -> dict[str, str]:
    return {"retry-after": str(min(max(math.ceil(seconds), 1), _MAX_RETRY_S))}
