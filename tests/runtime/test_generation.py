"""One generation: how it begins, the ways it ends, and what is left when it is cancelled or a pass fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgeprec.errors import EngineError
from edgeprec.runtime.reply import FinishReason, TokenSource

MakeRig = Callable[..., Any]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
END = 26


def spell(text: str, *, after: int) -> dict[int, int]:
    """Return the forced tokens that write ``text`` behind ``after`` tokens; ``.`` is the end token."""
    return {after + index: END if letter == "." else LETTERS.index(letter) for index, letter in enumerate(text)}


def writing(make_rig: MakeRig, text: str, **changes: Any) -> Any:
    """Return a rig that answers the prompt ``ab`` with ``text`` whatever the precision."""
    return make_rig(model={"forced": spell(text, after=2)}, **changes)


@pytest.mark.parametrize("draft_length", [0, 1, 4, 8, 15])
def test_tokens_after_the_end_token_are_dropped(make_rig: MakeRig, draft_length: int) -> None:
    """An accepted draft that runs past the end of the text adds nothing; the end token itself is kept."""
    rig = writing(make_rig, "hello.worldwide")
    reply = rig.session.generate("ab", draft_length=draft_length)
    assert reply.text == "hello"
    assert reply.tokens == (*(LETTERS.index(letter) for letter in "hello"), END)
    assert reply.finish_reason is FinishReason.STOP
    assert len(reply.events) == 6 == reply.stats.new_tokens


def test_the_first_token_may_end_the_text(make_rig: MakeRig) -> None:
    """An answer of nothing but the end token is an answer: no round is run for it."""
    rig = writing(make_rig, ".")
    reply = rig.session.generate("ab")
    assert (reply.text, reply.tokens, reply.finish_reason) == ("", (END,), FinishReason.STOP)
    assert (reply.stats.rounds, len(rig.target.passes)) == (0, 1)


def test_ignore_eos_writes_on(make_rig: MakeRig) -> None:
    """With ``ignore_eos`` the end token is a token like any other and shows as nothing."""
    reply = writing(make_rig, "he.llo").session.generate("ab", ignore_eos=True, max_new_tokens=6)
    assert (reply.text, reply.tokens[2], reply.finish_reason) == ("hello", END, FinishReason.LENGTH)


@pytest.mark.parametrize("draft_length", [0, 1, 3, 8, 15])
@pytest.mark.parametrize(
    ("stop", "text"),
    [("w", "hello"), ("llo", "he"), ("h", ""), ("lowo", "hel"), (("rl", "or"), "hellow"), ("xyz", None)],
)
def test_stop_string_cuts_text_and_ids_alike(
    make_rig: MakeRig, stop: str | tuple[str, ...], text: str | None, draft_length: int
) -> None:
    """Neither text nor ids hold the stop string or what follows it, wherever in a draft it lies."""
    rig = writing(make_rig, "helloworld.")
    reply = rig.session.generate("ab", draft_length=draft_length, stop=stop)
    assert reply.text == ("helloworld" if text is None else text)
    assert rig.session.tokenizer.decode(reply.tokens) == reply.text
    assert reply.finish_reason is FinishReason.STOP
    assert len(reply.events) == len(reply.tokens) == reply.stats.new_tokens


def test_shown_pieces_join_to_the_text(make_rig: MakeRig) -> None:
    """What a reader was shown is the reply's text: nothing of a stop string is shown and taken back."""
    rig = writing(make_rig, "hellohelpheld.")
    shown = [event.text for event in rig.session.stream("ab", draft_length=5, stop=("held",))]
    assert "".join(shown) == "hellohelp" == rig.session.generate("ab", stop=("held",)).text


def test_a_stop_string_at_the_last_token_is_a_stop(make_rig: MakeRig) -> None:
    """Where limit and stop string meet in one token, the stop string decides."""
    reply = writing(make_rig, "helloworld").session.generate("ab", stop="o", max_new_tokens=5)
    assert (reply.text, reply.finish_reason) == ("hell", FinishReason.STOP)


def test_half_a_stop_string_is_shown_at_the_end(make_rig: MakeRig) -> None:
    """What was held back for a stop string that never came belongs to the text, and to the last piece shown."""
    rig = writing(make_rig, "hello")
    generation = rig.session.stream("ab", stop=("lox",), max_new_tokens=5)
    assert "".join(event.text for event in generation) == "hello" == generation.reply.text


def test_long_prompt_runs_in_pieces(make_rig: MakeRig) -> None:
    """No pass has more rows than the engine takes, and all of the prompt is FP16."""
    rig = make_rig(max_rows=4)
    rig.session.generate("abcdefghijk", max_new_tokens=1)
    assert [(asked.position, len(asked.tokens)) for asked in rig.target.passes] == [(0, 4), (4, 4), (8, 3)]
    assert all(asked.is_fp16 for asked in rig.target.passes)


def test_first_token_is_fp16s_own(make_rig: MakeRig) -> None:
    """The prompt's last row gives the first token, before any round."""
    generation = make_rig("never").session.stream("ab", draft_length=5)
    event = next(generation)
    assert (event.index, event.round, event.source, event.int4_layers) == (0, 0, TokenSource.TARGET, 0)


def test_cancel_before_the_first_token_runs_nothing(make_rig: MakeRig) -> None:
    """A generation nobody asked a token of costs no pass."""
    rig = make_rig()
    generation = rig.session.stream("ab")
    generation.cancel()
    assert list(generation) == []
    assert (generation.reply.finish_reason, generation.reply.tokens, rig.target.passes) == ("cancelled", (), [])
    assert generation.is_cancelled


def test_cancel_between_tokens_drops_the_rest_of_the_round(make_rig: MakeRig) -> None:
    """The reply holds the tokens that were taken, not those a draft had in store."""
    generation = make_rig("always").session.stream("ab", draft_length=8, ignore_eos=True)
    taken = [next(generation).token for _ in range(4)]
    generation.cancel()
    assert list(generation) == []
    assert list(generation.reply.tokens) == taken
    assert generation.reply.finish_reason is FinishReason.CANCELLED


def test_cancel_while_drafting_skips_the_verification(make_rig: MakeRig) -> None:
    """A signal during a draft ends the generation after the pass at work, without one more FP16 pass."""
    rig = make_rig("always")
    generation = rig.session.stream("ab", draft_length=8, ignore_eos=True)
    rig.target.before_pass = lambda asked: len(rig.target.passes) == 14 and generation.cancel()
    reply = [event.token for event in generation]
    assert len(rig.target.passes) == 15
    assert not rig.target.passes[-1].is_fp16
    assert list(generation.reply.tokens) == reply == rig.expected("ab", 10)


def test_cancel_while_reading_the_prompt(make_rig: MakeRig) -> None:
    """A long prompt can be cancelled between its pieces."""
    rig = make_rig(max_rows=2)
    generation = rig.session.stream("abcdefgh")
    rig.target.before_pass = lambda asked: asked.position == 2 and generation.cancel()
    assert list(generation) == []
    assert [asked.position for asked in rig.target.passes] == [0, 2]
    assert generation.reply.stats.tokens_per_s is None


def test_cancel_after_the_end_changes_nothing(make_rig: MakeRig) -> None:
    """A late cancel finds the reply as it was."""
    rig = writing(make_rig, "hello.")
    generation = rig.session.stream("ab")
    first = [event.token for event in generation]
    generation.cancel()
    assert (list(generation.reply.tokens), generation.reply.finish_reason) == (first, FinishReason.STOP)


def test_reading_the_reply_early_cancels(make_rig: MakeRig) -> None:
    """Leaving the loop and asking for the reply gives what was taken so far, with statistics."""
    generation = make_rig().session.stream("ab", ignore_eos=True)
    for event in generation:
        if event.index == 2:
            break
    reply = generation.reply
    assert (len(reply.tokens), reply.finish_reason, reply.stats.new_tokens) == (3, FinishReason.CANCELLED, 3)
    assert generation.reply is reply


@pytest.mark.parametrize("failing_pass", [0, 1, 3, 9, 12])
def test_engine_error_comes_through_and_keeps_the_text(make_rig: MakeRig, failing_pass: int) -> None:
    """The error reaches whoever takes the tokens; what was there until then is in the reply."""
    rig = make_rig("always")
    expected = rig.expected("ab", 40)

    def fail(_: object) -> None:
        if len(rig.target.passes) == failing_pass:
            raise EngineError("the device fell off the bus")

    rig.target.before_pass = fail
    generation = rig.session.stream("ab", draft_length=3, ignore_eos=True)
    taken: list[int] = []
    with pytest.raises(EngineError, match="fell off"):
        taken.extend(event.token for event in generation)
    reply = generation.reply
    assert list(reply.tokens) == expected[: len(reply.tokens)]
    assert len(reply.tokens) == {0: 0, 1: 1, 3: 1, 9: 9, 12: 9}[failing_pass]
    assert reply.finish_reason is FinishReason.ERROR
    assert next(generation, None) is None


def test_interrupt_in_a_pass_keeps_the_text(make_rig: MakeRig) -> None:
    """Ctrl-C that strikes inside a pass leaves a whole reply behind."""
    rig = make_rig()

    def interrupt(asked: Any) -> None:
        if asked.position > 6:
            raise KeyboardInterrupt

    rig.target.before_pass = interrupt
    generation = rig.session.stream("ab", draft_length=0, ignore_eos=True)
    with pytest.raises(KeyboardInterrupt):
        list(generation)
    assert generation.reply.finish_reason is FinishReason.CANCELLED
    assert list(generation.reply.tokens) == rig.expected("ab", 6)


def test_times_start_with_the_first_pass(make_rig: MakeRig) -> None:
    """A generation that waits before its first token is asked for does not count the wait as prefill."""
    rig = make_rig()
    generation = rig.session.stream("ab", draft_length=0, max_new_tokens=3, ignore_eos=True)
    rig.clock.now_ns += 10**9
    events = list(generation)
    assert generation.reply.stats.prefill_s == pytest.approx(4.1e-6)
    assert [event.time_ns for event in events] == [4_100, 8_100, 12_100]
    assert [record.start_ns for record in generation.rounds] == [4_100, 8_100]
