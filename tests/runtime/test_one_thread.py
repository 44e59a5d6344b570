"""A session belongs to one thread: misuse from a second one is told, handing it over is not misuse."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from edgeprec.errors import EdgePrecError, EngineError
from edgeprec.precision import Plan, Precision
from edgeprec.runtime.one_thread import OneThread

MakeRig = Callable[..., Any]


def in_thread(function: Callable[[], object], name: str = "second") -> object:
    """Call ``function`` in another thread and return its result or the error it raised."""
    results: list[object] = []

    def call() -> None:
        try:
            results.append(function())
        except EdgePrecError as error:
            results.append(error)

    thread = threading.Thread(target=call, name=name)
    thread.start()
    thread.join()
    return results[0]


def test_the_first_caller_owns_it() -> None:
    """Its own later calls pass, another thread's are refused with both names and what to do."""
    guard = OneThread("this session")
    guard.check()
    guard.check()
    error = in_thread(guard.check)
    assert isinstance(error, EdgePrecError)
    assert str(error) == (
        f"this session is used by thread {threading.current_thread().name!r} and was called from thread 'second': it "
        "belongs to one thread, use edgeprec.AsyncSession to share it"
    )


def test_an_ended_owner_hands_over() -> None:
    """A worker that is gone can do no harm any more."""
    guard = OneThread("this session")
    assert in_thread(guard.check) is None
    guard.check()
    assert isinstance(in_thread(guard.check, "third"), EdgePrecError)


CALLS: dict[str, Callable[[Any], object]] = {
    "generate": lambda session: session.generate("ab"),
    "stream": lambda session: session.stream("ab"),
    "fp16_logits": lambda session: session.fp16_logits([1]),
    "forced_logits": lambda session: list(session.forced_logits([1], Plan.uniform(Precision.FP16, num_layers=3))),
    "probe": lambda session: session.probe(),
    "close": lambda session: session.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_session_refuses_a_second_thread(make_rig: MakeRig, call: str) -> None:
    """No call reaches the engine from there."""
    rig = make_rig()
    rig.session.generate("ab", max_new_tokens=2)
    passes = len(rig.target.passes)
    error = in_thread(lambda: CALLS[call](rig.session))
    assert "use edgeprec.AsyncSession" in str(error)
    assert (len(rig.target.passes), rig.target.closed) == (passes, 0)


def test_a_generation_refuses_a_second_thread_but_takes_its_cancel(make_rig: MakeRig) -> None:
    """Taking tokens elsewhere would run passes there; asking to end is a flag."""
    rig = make_rig()
    generation = rig.session.stream("ab", ignore_eos=True, max_new_tokens=50)
    next(generation)
    assert "use edgeprec.AsyncSession" in str(in_thread(lambda: next(generation)))
    in_thread(lambda: [generation.cancel()])
    assert len(list(generation)) < 48
    assert generation.reply.finish_reason == "cancelled"


def test_loading_in_one_thread_and_using_in_another_is_fine(make_rig: MakeRig) -> None:
    """Whoever generates first owns the session."""
    rig = make_rig()
    reply: Any = in_thread(lambda: rig.session.generate("ab", max_new_tokens=3, ignore_eos=True))
    assert len(reply.tokens) == 3


def test_a_probe_keeps_what_the_cache_holds(make_rig: MakeRig) -> None:
    """Looking whether the engine answers costs one row, and the next prompt still starts from the cached prefix."""
    rig = make_rig(accepts_int4=False)
    first = rig.session.generate("abc", ignore_eos=True, max_new_tokens=5)
    passes = len(rig.target.passes)
    rig.session.probe()
    assert len(rig.target.passes[passes].tokens) == 1
    assert not rig.target.passes[passes].is_fp16
    again = rig.session.stream([0, 1, 2, *first.tokens], ignore_eos=True, max_new_tokens=3)
    assert again.prompt.cached == 7
    expected = rig.model.decode([0, 1, 2, *first.tokens], 3)
    assert [event.token for event in again] == expected


def test_a_probe_fits_into_a_full_context(make_rig: MakeRig) -> None:
    """Behind a text that fills the cache there is no free row: the last one is taken and forgotten."""
    rig = make_rig(context_tokens=16)
    rig.session.generate("a" * 15, ignore_eos=True)
    rig.session.probe()
    reply = rig.session.generate("a" * 12, ignore_eos=True, max_new_tokens=3)
    assert list(reply.tokens) == rig.expected("a" * 12, 3)


def test_a_probe_of_a_broken_engine_raises(make_rig: MakeRig) -> None:
    """That is what a watchdog wants to know."""
    rig = make_rig()
    rig.target.closed = 1
    with pytest.raises(EngineError, match="closed"):
        rig.session.probe()


def test_steps_count_prefill_and_rounds(make_rig: MakeRig) -> None:
    """Whoever watches a generation from outside sees that it moves, also while a long prompt is read."""
    rig = make_rig()
    generation = rig.session.stream("a" * 40, ignore_eos=True, max_new_tokens=4, draft_length=0)
    next(generation)
    assert generation.steps == 3
    list(generation)
    assert generation.steps == 6
