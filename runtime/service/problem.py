"""What went wrong with a request, as an HTTP status and the error object OpenAI's clients read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["Problem", "without_paths"]

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


_PATH = re.compile(r"(?<![\w/.])/(?!v1\b|openapi\b)[\w.@+-]+(?:/[\w.@+-]*)*")


def without_paths(text: str) -> str:
    """Return ``text`` with every path of this machine as ``[path]``; the server's own routes stay."""
    return _PATH.sub("[path]", text)


class Problem(Exception):
    """Answered as ``status`` with ``{"error": {"message", "type", "param", "code"}}``.

    ``param`` names the field of the request, ``code`` is a word for programs. A message never holds a path or
    anything else of the machine.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """Return the kind of error, as OpenAI's clients name it."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def to_json(self) -> dict[str, Any]:
        """Return the body."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}
