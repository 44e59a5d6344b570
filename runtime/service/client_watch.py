"""Notice while waiting for something else that the client has closed the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from edgeprec.runtime.service.body import ClientGone

__all__ = ["ClientWatch"]

T = TypeVar("T")


class ClientWatch:
    """Listens to ``receive`` once the body has been read; close it when the answer is sent."""

    def __init__(self, receive: Callable[[], Awaitable[Any]]) -> None:
        self._gone = asyncio.create_task(_until_gone(receive))

    async def first(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns, unless the client goes before.

        Raises:
            ClientGone: it has gone; ``work`` was cancelled.
        """
        task = asyncio.create_task(work)
        try:
            await asyncio.wait((task, self._gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientGone
            return task.result()
        finally:
            await _ended(task)

    def close(self) -> None:
        """Listen no longer."""
        self._gone.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _ended(task: asyncio.Task[T]) -> None:
    """Cancel a task that is still at work and wait until it is over; what it raises then is of no interest."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()


async def _until_gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
