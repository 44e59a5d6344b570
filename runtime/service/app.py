"""Put the server together: routes, errors, the gate before them, and what lives as long as the server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from edgeprec.runtime.service.api_key import AnyKey, KeyFile
from edgeprec.runtime.service.body import ClientGone
from edgeprec.runtime.service.completions import Completions
from edgeprec.runtime.service.engine_room import EngineRoom, Phase
from edgeprec.runtime.service.engine_watch import EngineWatch
from edgeprec.runtime.service.gate import Gate
from edgeprec.runtime.service.json_response import json_response, problem_response
from edgeprec.runtime.service.notify import Notifier
from edgeprec.runtime.service.openapi import openapi_document
from edgeprec.runtime.service.problem import Problem
from edgeprec.runtime.service.settings import ServiceSettings

__all__ = ["WEB_FOLDER", "build_app"]

WEB_FOLDER = Path(__file__).resolve().parent.parent / "web"
_LOCKED_PATHS = ("/v1/", "/metrics")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def build_app(
    room: EngineRoom,
    *,
    notifier: Notifier | None = None,
    on_loaded: Callable[[], None] = lambda: None,
    on_failed: Callable[[], None] = lambda: None,
    web_folder: Path = WEB_FOLDER,
) -> ASGIApp:
    """Return the application. It loads the model when its life begins and calls one of the two functions after it.

    Raises:
        ConfigError: the file of API keys is not good.
    """
    settings = room.settings
    keys = AnyKey() if settings.api_key_file is None else KeyFile.read(settings.api_key_file)
    watch = EngineWatch(room.session)

    async def live() -> None:
        try:
            await room.load()
        finally:
            if room.failure is not None:
                on_failed()
        notify = notifier or Notifier()
        notify.ready(f"answering with {settings.model_name}")
        on_loaded()
        await watch.feed(notify)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(live())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # what went wrong is in room.failure
        await room.close()

    inner = Starlette(
        routes=_routes(room, watch, settings, web_folder),
        lifespan=lifespan,
        exception_handlers={
            Problem: _answer_problem(room),
            HTTPException: _answer_http,
            ClientGone: _answer_nobody,
            Exception: _answer_bug,
        },
    )
    gate = Gate(inner, settings=settings, keys=keys, metrics=room.metrics, locked=_LOCKED_PATHS)
    if not settings.cors_origins:
        return gate
    return CORSMiddleware(
        gate,
        allow_origins=settings.cors_origins,
        allow_methods=("GET", "POST"),
        allow_headers=("authorization", "content-type"),
        expose_headers=("retry-after", "x-request-id"),
    )


def _routes(room: EngineRoom, watch: EngineWatch, settings: ServiceSettings, web_folder: Path) -> list[BaseRoute]:
    completions = Completions(room)
    document = openapi_document(settings, version=version("edgeprec"))
    model = {"id": settings.model_name, "object": "model", "created": room.loaded_unix_s, "owned_by": "edgeprec"}

    async def models(_request: Request) -> Response:
        return json_response({"object": "list", "data": [model]})

    async def one_model(request: Request) -> Response:
        name = request.path_params["model"]
        if name != settings.model_name:
            raise Problem(404, f"the model {name[:100]!r} is not here, this server has {settings.model_name!r}")
        return json_response(model)

    async def health(_request: Request) -> Response:
        if room.phase is not Phase.READY:
            return json_response({"status": str(room.phase)}, status=503 if room.phase is Phase.FAILED else 200)
        is_alive = await watch.is_alive()
        return json_response({"status": "ok" if is_alive else "stuck"}, status=200 if is_alive else 503)

    async def ready(_request: Request) -> Response:
        return json_response({"status": str(room.phase)}, status=200 if room.phase is Phase.READY else 503)

    async def metrics(_request: Request) -> Response:
        return Response(room.metrics.text(), headers={"content-type": _METRICS_TYPE})

    async def openapi(_request: Request) -> Response:
        return json_response(document)

    routes: list[BaseRoute] = [
        Route("/v1/chat/completions", completions.chat, methods=["POST"]),
        Route("/v1/completions", completions.complete, methods=["POST"]),
        Route("/v1/models", models),
        Route("/v1/models/{model:path}", one_model),
        Route("/health", health),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/openapi.json", openapi),
    ]
    if web_folder.is_dir():
        routes.append(Mount("/", StaticFiles(directory=web_folder, html=True)))
    return routes


def _answer_problem(room: EngineRoom) -> Callable[[Request, Exception], Response]:
    def answer(_request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        room.metrics.count_error(error.code or str(error.status))
        return problem_response(error)

    return answer


def _answer_http(request: Request, error: Exception) -> Response:
    """Answer what the router refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    sentences = {
        404: f"there is nothing at {request.url.path[:100]!r}: /openapi.json lists what there is",
        405: f"{request.method[:20]} is not possible at {request.url.path[:100]!r}",
    }
    message = sentences.get(error.status_code, str(error.detail))
    return problem_response(Problem(error.status_code, message, headers=error.headers))


def _answer_nobody(_request: Request, _error: Exception) -> Response:
    """The client has gone: the status is for the log only."""
    return Response(status_code=499)


def _answer_bug(_request: Request, _error: Exception) -> Response:
    """Whatever it was, the log has the traceback and the client learns nothing of the machine."""
    return problem_response(Problem(500, "the server has met an error; its log says more", code="internal_error"))
