"""Who may use an object that belongs to one thread: the first that comes by, for as long as it lives."""

from __future__ import annotations

import threading

from edgeprec.errors import EdgePrecError

__all__ = ["OneThread"]


class OneThread:
    """Remembers the thread that called ``check`` first and refuses every other one until that has ended."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._owner: threading.Thread | None = None

    def check(self) -> None:
        """Take the calling thread as the owner, or compare it with the one there is.

        Raises:
            EdgePrecError: another thread owns the object and is still running.
        """
        caller = threading.current_thread()
        if self._owner is caller:
            return
        if self._owner is not None and self._owner.is_alive():
            raise EdgePrecError(
                f"{self._what} is used by thread {self._owner.name!r} and was called from thread {caller.name!r}: it "
                "belongs to one thread, use edgeprec.AsyncSession to share it"
            )
        self._owner = caller
