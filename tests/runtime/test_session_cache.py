"""What a session keeps of its caches between generations: a next turn must not notice, whatever ran before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.calibration import Calibration
from edgeprec.errors import EngineError
from edgeprec.precision import Plan, Precision

MakeRig = Callable[..., Any]
MODES = ("exact", "bounded", "gated", "fp16", "int4")


def rig_with_everything(make_rig: MakeRig, calibration: Calibration, **changes: Any) -> Any:
    """Return a rig that runs every mode; FP16 passes of gated text may read what INT4 wrote."""
    return make_rig("sometimes", draft="sometimes", session={"calibration": calibration}, **changes)


def longest_cached_prefix(rig: Any, before: int) -> int:
    """Return the position of the first pass after ``before`` passes."""
    return int(rig.target.passes[before].position)


@pytest.mark.parametrize("drafter", ["self", "model", "ngram", "none"])
def test_second_turn_reads_only_what_is_new(make_rig: MakeRig, drafter: str) -> None:
    """The turn before is in the cache; its last token is not, for nobody has read it yet."""
    rig, fresh = make_rig("sometimes", draft="sometimes"), make_rig("sometimes", draft="sometimes")
    first = rig.session.generate("abcabc", drafter=drafter, draft_length=3, max_new_tokens=9, ignore_eos=True)
    text = [*rig.session.tokenizer.encode("abcabc"), *first.tokens, 1, 2]
    done = len(rig.target.passes)
    second = rig.session.generate(text, drafter=drafter, draft_length=3, max_new_tokens=9, ignore_eos=True)
    assert longest_cached_prefix(rig, done) == len(text) - 3
    assert second.tokens == fresh.session.generate(text, max_new_tokens=9, ignore_eos=True).tokens


@pytest.mark.parametrize("mode", ["gated", "int4"])
def test_what_int4_wrote_is_not_reused(make_rig: MakeRig, calibration: Callable[..., Calibration], mode: str) -> None:
    """After a mode that verifies nothing only the prompt's entries count; the fake cache raises on any other."""
    rig = rig_with_everything(make_rig, calibration(low=9.0, high=9.0), accepts_int4=True)
    first = rig.session.generate("abcabc", mode=mode, max_new_tokens=9, ignore_eos=True)
    rig.target.accepts_int4 = False
    text = [*rig.session.tokenizer.encode("abcabc"), *first.tokens, 1, 2]
    done = len(rig.target.passes)
    second = rig.session.generate(text, max_new_tokens=9, ignore_eos=True)
    assert longest_cached_prefix(rig, done) == 6
    assert list(second.tokens) == rig.model.decode(text, 9)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_any_conversation_equals_fresh_sessions(
    make_rig: MakeRig, calibration: Callable[..., Calibration], data: st.DataObject
) -> None:
    """Turns in any mode, cancelled, stopped, failed or cut back, never change what a later exact turn says."""
    draw = data.draw
    rig = rig_with_everything(make_rig, calibration(low=1.0, high=2.0), accepts_int4=True)
    text = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6), label="prompt")
    for _ in range(draw(st.integers(1, 4), label="turns")):
        mode = draw(st.sampled_from(MODES), label="mode")
        drafter = draw(st.sampled_from(("self", "model")), label="drafter")
        limit = draw(st.integers(1, 8), label="limit")
        stop = draw(st.sampled_from(((), ("a",), ("bc", "e"))), label="stop")
        taken = draw(st.integers(0, 8), label="taken")
        fails = draw(st.sampled_from((None, None, 0, 1, 3)), label="fails")
        failing_pass = None if fails is None else len(rig.target.passes) + fails
        rig.target.before_pass = _failing(rig, failing_pass)
        generation = rig.session.stream(text, mode=mode, drafter=drafter, max_new_tokens=limit, stop=stop)
        _take(generation, taken)
        cut = draw(st.integers(0, 3), label="cut")
        text = [*text, *generation.reply.tokens]
        text = [*text[: max(len(text) - cut, 1)], *draw(st.lists(st.integers(0, 5), max_size=2), label="next")]
    rig.target.before_pass = _failing(rig, None)
    rig.target.accepts_int4 = False
    last = rig.session.generate(
        text, max_new_tokens=6, ignore_eos=True, drafter=draw(st.sampled_from(("self", "model")))
    )
    assert list(last.tokens) == rig.model.decode(text, 6)


def _failing(rig: Any, failing_pass: int | None) -> Callable[[object], None]:
    def check(_: object) -> None:
        if len(rig.target.passes) == failing_pass:
            raise EngineError("the device fell off the bus")

    return check


def _take(generation: Any, count: int) -> None:
    """Take some tokens and leave."""
    try:
        for _ in range(count):
            next(generation, None)
    except EngineError:
        return


def test_exact_turn_after_a_polluted_one_is_fp16s(make_rig: MakeRig, calibration: Callable[..., Calibration]) -> None:
    """The same prompt again, after gated text grew out of it: the same tokens as in a session that never gated."""
    rig = rig_with_everything(make_rig, calibration(low=9.0, high=9.0), accepts_int4=True)
    before = rig.session.generate("abcabc", max_new_tokens=12, ignore_eos=True)
    rig.session.generate("abcabc", mode="gated", max_new_tokens=12, ignore_eos=True)
    assert rig.session.generate("abcabc", max_new_tokens=12, ignore_eos=True).tokens == before.tokens


def test_repeating_a_prompt_reads_its_last_token_only(make_rig: MakeRig) -> None:
    """The whole prompt is cached, yet its last row is needed: one row is run."""
    rig = make_rig()
    first = rig.session.generate("abcabc", max_new_tokens=5, ignore_eos=True)
    done = len(rig.target.passes)
    again = rig.session.generate("abcabc", max_new_tokens=5, ignore_eos=True)
    assert (rig.target.passes[done].position, len(rig.target.passes[done].tokens)) == (5, 1)
    assert again.tokens == first.tokens


def test_draft_cache_is_kept_too(make_rig: MakeRig) -> None:
    """A draft model reads a next turn from where its own cache ends, and prompts always in FP16."""
    rig = make_rig("always", draft="always")
    first = rig.session.generate("abcabc", draft_length=3, max_new_tokens=9, ignore_eos=True)
    done = len(rig.draft.passes)
    text = [*rig.session.tokenizer.encode("abcabc"), *first.tokens, 1, 2]
    rig.session.generate(text, draft_length=3, max_new_tokens=2, ignore_eos=True)
    prefill = rig.draft.passes[done]
    assert prefill.is_fp16
    assert 6 < prefill.position < len(text)
    assert rig.draft.passes[0].is_fp16
    assert all(not asked.is_fp16 for asked in rig.draft.passes[1:done])


def test_forced_logits_are_those_of_every_position(make_rig: MakeRig) -> None:
    """A text longer than a pass comes in pieces; each row is what FP16, or INT4, says after the tokens up to it."""
    rig = make_rig("never", max_rows=4)
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    identities = [rig.model.identity(text[: length + 1]) for length in range(len(text))]
    expected = np.stack([rig.model.row(known, length + 1) for length, known in enumerate(identities)])
    for precision, rows in ((Precision.FP16, expected), (Precision.INT4, np.roll(expected, 1, axis=1))):
        pieces = [logits.copy() for logits in rig.session.forced_logits(text, Plan.uniform(precision, num_layers=3))]
        assert [len(piece) for piece in pieces] == [4, 4, 2]
        np.testing.assert_array_equal(np.concatenate(pieces), rows)


def test_int4_entries_of_a_forced_text_are_not_reused(make_rig: MakeRig) -> None:
    """A prompt that begins like the text runs through FP16 again."""
    rig = make_rig("never")
    text = rig.session.tokenizer.encode("abcabc")
    for _ in rig.session.forced_logits(text, Plan.uniform(Precision.INT4, num_layers=3)):
        pass
    reply = rig.session.generate("abcabc", max_new_tokens=5, ignore_eos=True)
    assert list(reply.tokens) == rig.expected("abcabc", 5)


def test_fp16_logits_leave_the_session_usable(make_rig: MakeRig) -> None:
    """Asking for the logits after a text gives FP16's row; the cache it used is not mistaken for another text's."""
    rig = make_rig()
    before = rig.session.generate("abcabc", max_new_tokens=5, ignore_eos=True).tokens
    row = rig.session.fp16_logits([9, 8, 7])
    assert row.argmax() == rig.model.decode([9, 8, 7], 1)[0]
    assert rig.session.generate("abcabc", max_new_tokens=5, ignore_eos=True).tokens == before
