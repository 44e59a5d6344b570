"""Answer ``/v1/chat/completions`` and ``/v1/completions``: whole or as a stream, for as long as the client is there."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from edgeprec.config import GenerationConfig
from edgeprec.errors import ConfigError, EdgePrecError
from edgeprec.runtime.async_generation import AsyncGeneration
from edgeprec.runtime.reply import FinishReason, Reply, TokenEvent
from edgeprec.runtime.service.answers import Answer
from edgeprec.runtime.service.asked import Asked, read_chat, read_completion
from edgeprec.runtime.service.body import read_json
from edgeprec.runtime.service.client_watch import ClientWatch
from edgeprec.runtime.service.engine_room import EngineRoom
from edgeprec.runtime.service.event_stream import DONE, EventStream, event
from edgeprec.runtime.service.json_response import json_response
from edgeprec.runtime.service.problem import Problem, without_paths

__all__ = ["Completions"]

_log = logging.getLogger(__name__)


class Completions:
    """The two endpoints that generate."""

    def __init__(self, room: EngineRoom) -> None:
        self._room = room

    async def chat(self, request: Request) -> Response:
        """Continue a conversation."""
        return await self._answer(request, read_chat)

    async def complete(self, request: Request) -> Response:
        """Continue a text."""
        return await self._answer(request, read_completion)

    async def _answer(self, request: Request, read: Callable[[Any, GenerationConfig], Asked]) -> Response:
        settings = self._room.settings
        body = await read_json(request, max_bytes=settings.max_body_bytes, seconds=settings.body_seconds)
        asked = read(body, settings.generation)
        job = await self._room.begin(asked)
        answer = Answer(
            asked=asked,
            job=job,
            model=settings.model_name,
            decode=self._decode,
            watts=self._room.power.ask,
        )
        watch = ClientWatch(request.receive)
        try:
            if asked.is_stream:
                return await self._stream(job, answer, watch)
            reply = await watch.first(job.reply())
        except EdgePrecError as error:
            raise _problem(error, job) from error
        finally:
            if not asked.is_stream:
                watch.close()
                job.cancel()
        _require_end(reply, job)
        return json_response(answer.whole(reply))

    async def _stream(self, job: AsyncGeneration, answer: Answer, watch: ClientWatch) -> Response:
        """Wait for the first tokens, so that what is refused gets a status of its own, then stream."""
        batches = job.batches()
        try:
            first = await watch.first(_next(batches))
        except BaseException:
            job.cancel()
            watch.close()
            raise
        events = _events(job, answer, first, batches)
        return EventStream(events, watch, stall_seconds=self._room.settings.stall_seconds, on_end=job.cancel)

    def _decode(self, token: int) -> str:
        return str(self._room.session.session.tokenizer.tokenizer.decode([token], skip_special_tokens=False))


async def _events(
    job: AsyncGeneration, answer: Answer, first: list[TokenEvent] | None, batches: AsyncIterator[list[TokenEvent]]
) -> AsyncIterator[bytes]:
    """Yield the whole stream; an error on the way is its last event."""
    try:
        opening = answer.opening()
        if opening is not None:
            yield event(opening)
        batch = first
        while batch is not None:
            yield event(answer.chunk(batch))
            batch = await _next(batches)
        reply = await job.reply()
        _require_end(reply, job)
        for chunk in answer.closing(reply):
            yield event(chunk)
        yield DONE
    except EdgePrecError as error:
        yield event(_problem(error, job).to_json())
    except Problem as problem:
        yield event(problem.to_json())


async def _next(batches: AsyncIterator[list[TokenEvent]]) -> list[TokenEvent] | None:
    return await anext(batches, None)


def _require_end(reply: Reply, job: AsyncGeneration) -> None:
    """Refuse to show a reply that the server itself broke off as if it were one."""
    if reply.finish_reason is FinishReason.CANCELLED and not job.is_expired:
        raise _shut_down()


def _problem(error: EdgePrecError, job: AsyncGeneration) -> Problem:
    """Return what a client may know of an error; the log has the rest."""
    if isinstance(error, ConfigError):
        return Problem(400, without_paths(str(error)))
    if job.is_cancelled:
        return _shut_down()
    _log.error("a generation failed: %s", error)
    return Problem(500, "the engine failed while generating; the server's log says why", code="engine_failed")


def _shut_down() -> Problem:
    return Problem(503, "the server is shutting down", code="shutting_down", headers={"connection": "close"})
