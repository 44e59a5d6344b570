"""Mode ``exact`` gives FP16's tokens: for every drafter, draft length, gate count, and however often INT4 agrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeprec.calibration import Calibration
from edgeprec.config import DrafterKind, Mode
from edgeprec.runtime.reply import FinishReason, TokenSource

AGREEMENTS = ("always", "never", "sometimes")
PROMPT = "bananaband"
MakeRig = Callable[..., Any]


def drafters(agreement: str) -> dict[str, str | None]:
    """Return arguments of ``make_rig``: the draft model agrees as often as INT4 does."""
    return {"agreement": agreement, "draft": agreement}


@pytest.mark.parametrize("draft_length", [0, 1, 5, 8, 15, None])
@pytest.mark.parametrize("drafter", ["self", "model", "ngram", "none"])
def test_exact_is_fp16(
    make_rig: MakeRig, calibration: Callable[..., Calibration], drafter: str, draft_length: int | None
) -> None:
    """Every token is the one FP16 alone gives; the fake cache raises on any hole, stale or INT4 entry on the way."""
    for agreement, layers, is_calibrated in product(AGREEMENTS, (1, 3, 7), (False, True)):
        known = calibration(layers=layers) if is_calibrated else None
        rig = make_rig(**drafters(agreement), num_layers=layers, session={"calibration": known})
        asked = {"drafter": drafter, "draft_length": draft_length, "middle_gears": 2}
        reply = rig.session.generate(PROMPT, max_new_tokens=40, ignore_eos=True, **asked)
        assert list(reply.tokens) == rig.expected(PROMPT, 40), (agreement, layers, is_calibrated)


def test_fp16_is_what_the_toy_says(make_rig: MakeRig) -> None:
    """The baseline itself is right: session, engine and sampler add nothing to the toy's argmax."""
    rig = make_rig()
    reply = rig.session.generate(PROMPT, mode="fp16", max_new_tokens=40, ignore_eos=True)
    assert list(reply.tokens) == rig.expected(PROMPT, 40)
    assert {event.source for event in reply.events} == {TokenSource.TARGET}
    assert all(asked.is_fp16 for asked in rig.target.passes)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_no_setting_changes_the_tokens(
    make_rig: MakeRig, calibration: Callable[..., Calibration], drawn: ModuleType, data: st.DataObject
) -> None:
    """Controller, rules, gears, thresholds, sampling, rows and context move speed only, never a token."""
    draw, made = data.draw, drawn.of_rig(data.draw, calibration)
    rig = make_rig(**drafters(draw(st.sampled_from(AGREEMENTS), label="agreement")), **made)
    drafter = draw(st.sampled_from(DrafterKind), label="drafter")
    asked = {"drafter": drafter, **drawn.of_drafting(draw, layers=made["num_layers"])}
    drawn.require_fp16s_text(rig, draw, asked)


@pytest.mark.parametrize("agreement", AGREEMENTS)
@pytest.mark.parametrize("drafter", ["self", "model"])
def test_rounds_say_what_agreement_gave(make_rig: MakeRig, drafter: str, agreement: str) -> None:
    """All of an agreeing draft is accepted and nothing of one that never agrees."""
    rig = make_rig(**drafters(agreement))
    reply = rig.session.generate(PROMPT, drafter=drafter, draft_length=4, max_new_tokens=41, ignore_eos=True)
    rate = reply.stats.acceptance_rate
    assert rate is not None
    assert {"always": rate == 1.0, "never": rate == 0.0, "sometimes": 0.2 < rate < 0.9}[agreement]
    assert reply.stats.rounds == {"always": 8, "never": 40}.get(agreement, reply.stats.rounds)


@pytest.mark.parametrize("drafter", ["self", "model"])
def test_full_acceptance_leaves_no_hole(make_rig: MakeRig, drafter: str) -> None:
    """After a fully accepted draft the last drafted token gets its entry too, in both caches."""
    rig = make_rig("always", draft="always")
    rig.session.generate(PROMPT, drafter=drafter, draft_length=3, max_new_tokens=33, ignore_eos=True)
    engine = rig.target if drafter == "self" else rig.draft
    ends = [asked.position + len(asked.tokens) for asked in engine.passes]
    assert None not in engine.slots[: max(ends) - 1]


def test_rollback_equals_a_fresh_prefill(make_rig: MakeRig) -> None:
    """After rejected drafts the cache below the text's last token is what a fresh prefill writes."""
    rig, fresh = make_rig("never"), make_rig("never")
    reply = rig.session.generate(PROMPT, draft_length=5, max_new_tokens=20, ignore_eos=True)
    text = [*rig.session.tokenizer.encode(PROMPT), *reply.tokens]
    fresh.session.generate(text[:-1], mode="fp16", max_new_tokens=1)
    assert rig.target.slots[: len(text) - 1] == fresh.target.slots[: len(text) - 1]


@pytest.mark.parametrize("draft_length", [1, 5, 8, 15, None])
@pytest.mark.parametrize("drafter", ["self", "model", "ngram", "none"])
def test_the_context_fills_to_its_last_token(make_rig: MakeRig, drafter: str, draft_length: int | None) -> None:
    """Generation ends with ``length`` exactly when the context is full; no pass ever leaves it."""
    for agreement, context in product(AGREEMENTS, range(12, 20)):
        rig = make_rig(**drafters(agreement), context_tokens=context)
        asked = {"drafter": drafter, "draft_length": draft_length, "ignore_eos": True}
        reply = rig.session.generate(PROMPT, max_new_tokens=99, **asked)
        assert reply.finish_reason is FinishReason.LENGTH
        assert len(reply.tokens) == context - 10
        assert list(reply.tokens) == rig.expected(PROMPT, context - 10)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 9, 17])
def test_max_new_tokens_is_met_exactly(make_rig: MakeRig, limit: int) -> None:
    """Long drafts never emit more than was asked for, nor less, nor run rows that could not be emitted."""
    rig = make_rig("always")
    reply = rig.session.generate(PROMPT, draft_length=8, max_new_tokens=limit, ignore_eos=True)
    assert (len(reply.tokens), reply.finish_reason) == (limit, FinishReason.LENGTH)
    prompt_tokens = reply.stats.prompt_tokens
    assert max(p.position + len(p.tokens) for p in rig.target.passes) <= max(prompt_tokens + limit - 1, prompt_tokens)


def emitted(events: Sequence[Any]) -> list[tuple[int, TokenSource, int]]:
    """Return token, source and INT4 layers of each event."""
    return [(event.token, event.source, event.int4_layers) for event in events]


def test_events_tell_who_produced_each_token(make_rig: MakeRig) -> None:
    """Accepted drafts and FP16's own tokens are told apart, with the layers that ran in INT4."""
    rig = make_rig("always")
    reply = rig.session.generate("ab", draft_length=2, max_new_tokens=7, ignore_eos=True)
    draft, target = (TokenSource.DRAFT, 3), (TokenSource.TARGET, 0)
    assert [(source, layers) for _, source, layers in emitted(reply.events)] == [target, *[draft, draft, target] * 2]
    assert [event.round for event in reply.events] == [0, 1, 1, 1, 2, 2, 2]
    assert [event.index for event in reply.events] == list(range(7))
    assert Mode(reply.mode) is Mode.EXACT
