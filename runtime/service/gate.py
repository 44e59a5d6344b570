"""Stands before every route: who may come in, what is counted and logged, and the headers every answer carries."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeprec.runtime.service.api_key import Keys
from edgeprec.runtime.service.json_response import problem_response
from edgeprec.runtime.service.metrics import Metrics
from edgeprec.runtime.service.problem import Problem
from edgeprec.runtime.service.settings import ServiceSettings, is_loopback

__all__ = ["Gate"]

_log = logging.getLogger(__name__)
_SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Gate:
    """Refuses strangers, then calls ``app``. ``locked`` are the beginnings of paths that need a key.

    A web page must not use a server that stands open on its visitor's own machine: requests from another origin than
    the server's own and the allowed ones are refused, and without a key so are those that call this machine by a name
    that is not local.
    """

    def __init__(
        self, app: ASGIApp, *, settings: ServiceSettings, keys: Keys, metrics: Metrics, locked: Iterable[str]
    ) -> None:
        self._app = app
        self._keys = keys
        self._metrics = metrics
        self._locked = tuple(locked)
        self._origins = frozenset(settings.cors_origins)
        self._is_local_only = is_loopback(settings.host) and settings.api_key_file is None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status = time.monotonic(), 0
        request_id = f"req-{secrets.token_hex(8)}"

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = request_id
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check(Headers(scope=scope), scope)
            await self._app(scope, receive, send_with_headers)
        except Problem as problem:
            self._metrics.count_error(problem.code or str(problem.status))
            await problem_response(problem)(scope, receive, send_with_headers)
        finally:
            self._note(scope, request_id, status, time.monotonic() - began_s)

    def _check(self, headers: Headers, scope: Scope) -> None:
        host = headers.get("host", "")
        if self._is_local_only and not is_loopback(_name_of(host)):
            raise Problem(
                403, f"the host {host[:100]!r} is not this server: call it by 127.0.0.1 or localhost", code="wrong_host"
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(origin, host):
            raise Problem(
                403,
                f"pages of {origin[:100]!r} may not use this server: start it with --cors-origin",
                code="wrong_origin",
            )
        if scope["path"].startswith(self._locked) and not self._keys.accept(_bearer(headers)):
            raise Problem(
                401,
                "the API key is missing or wrong: send it as 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )

    def _is_allowed(self, origin: str, host: str) -> bool:
        return "*" in self._origins or origin in self._origins or origin in (f"http://{host}", f"https://{host}")

    def _note(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        """Count and log; a client that went before it was answered shows as 499."""
        route = getattr(scope.get("route"), "path", None) or "other"
        self._metrics.count_request(route, status or 499)
        _log.info("%s %s %d %.3f s %s", scope["method"], route, status or 499, seconds, request_id)


def _bearer(headers: Headers) -> str | None:
    kind, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else None


def _name_of(host: str) -> str:
    """Return the name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
