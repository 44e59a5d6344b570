"""JSON answers, and problems as answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from edgeprec.runtime.service.problem import Problem

__all__ = ["json_response", "problem_response"]


def json_response(value: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return ``value`` as an answer."""
    body = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status_code=status, headers=dict(headers or {}), media_type="application/json")


def problem_response(problem: Problem) -> Response:
    """Return a problem as an answer."""
    return json_response(problem.to_json(), status=problem.status, headers=problem.headers)
