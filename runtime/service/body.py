"""Read the JSON body of a request within its limits of size and time."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import Request

from edgeprec.runtime.service.problem import Problem

__all__ = ["ClientGone", "read_json"]


class ClientGone(Exception):
    """The client has closed the connection: there is nobody to answer."""


async def read_json(request: Request, *, max_bytes: int, seconds: float) -> Any:
    """Return the body's value.

    Raises:
        Problem: it is too large (413), too slow (408), or no JSON (400).
        ClientGone: it ended early.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(int(announced), max_bytes)
    try:
        async with asyncio.timeout(seconds):
            data = await _read(request, max_bytes)
    except TimeoutError as error:
        raise Problem(
            408, f"the body did not arrive within {seconds:g} s: send it faster", headers={"connection": "close"}
        ) from error
    return _parse(data)


async def _read(request: Request, max_bytes: int) -> bytes:
    data = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        data += message.get("body", b"")
        if len(data) > max_bytes:
            raise _too_large(len(data), max_bytes)
        if not message.get("more_body", False):
            return bytes(data)


def _too_large(size: int, max_bytes: int) -> Problem:
    return Problem(
        413,
        f"the body has {size} bytes or more, this server takes at most {max_bytes}",
        code="body_too_large",
        headers={"connection": "close"},
    )


def _parse(data: bytes) -> Any:
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        if b"\\u" in data:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:  # also text that is no UTF-8, integers of thousands of digits
        raise Problem(400, f"the body is not valid JSON: {_reason(error)}", code="invalid_json") from error
    return value


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object has the same key twice")
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
