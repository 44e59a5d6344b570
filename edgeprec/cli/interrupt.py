"""Ctrl-C while text is generated: the first one ends the generation cleanly, a second one ends the command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["calling_on_interrupt"]


@contextmanager
def calling_on_interrupt(cancel: Callable[[], None]) -> Iterator[None]:
    """Call ``cancel`` on the first SIGINT instead of raising; the next one raises KeyboardInterrupt.

    Nothing is torn out of the middle of a pass, so what was generated can be shown. Outside the main thread Python
    lets nobody handle signals, and where SIGINT is ignored, as in a shell's background jobs, it stays so.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        cancel()

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
