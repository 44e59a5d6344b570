"""Ctrl-C while text is generated."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from edgeprec.cli.interrupt import calling_on_interrupt


def interrupt() -> None:
    """Send this process SIGINT."""
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_one_cancels_and_the_second_raises() -> None:
    """One Ctrl-C asks, two insist."""
    calls: list[None] = []
    before = signal.getsignal(signal.SIGINT)
    with calling_on_interrupt(lambda: calls.append(None)):
        interrupt()
        assert len(calls) == 1
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert len(calls) == 1
    assert signal.getsignal(signal.SIGINT) is before


def test_the_handler_is_put_back_after_an_error() -> None:
    """Whatever goes wrong inside, the application's handler returns."""
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), calling_on_interrupt(lambda: None):
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_signal_stays_ignored() -> None:
    """A background job is not to be ended by the Ctrl-C meant for another."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls: list[None] = []
    try:
        with calling_on_interrupt(lambda: calls.append(None)):
            interrupt()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert calls == []


def test_another_thread_is_left_alone() -> None:
    """Python handles signals in the main thread only; elsewhere nothing is installed and nothing fails."""
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def work() -> None:
        with calling_on_interrupt(lambda: None):
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
