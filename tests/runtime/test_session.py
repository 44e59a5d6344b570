"""The session's door: what it takes as a prompt, what it refuses before any pass, and what closing it frees."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from edgeprec.calibration import Calibration
from edgeprec.config import GenerationConfig, Mode, SamplingConfig
from edgeprec.errors import ConfigError, EngineError
from edgeprec.runtime.reply import FinishReason

MakeRig = Callable[..., Any]


def refuse(rig: Any, match: str, prompt: Any = "ab", **asked: Any) -> None:
    """Expect a ConfigError from ``stream`` itself, and no pass."""
    with pytest.raises(ConfigError, match=match):
        rig.session.stream(prompt, **asked)
    assert rig.target.passes == []


@pytest.mark.parametrize("prompt", ["", [], (), "?!"])
def test_empty_prompt_is_refused(make_rig: MakeRig, prompt: Any) -> None:
    """A prompt without a token, also one whose text the tokenizer knows nothing of, is refused before any work."""
    refuse(make_rig(), "the prompt is empty", prompt)


@pytest.mark.parametrize("length", [16, 17, 500])
def test_prompt_as_long_as_the_context_is_refused(make_rig: MakeRig, length: int) -> None:
    """Both numbers stand in the message; nothing was run."""
    refuse(make_rig(context_tokens=16), f"has {length} tokens, the context holds 16", "a" * length)


def test_longest_prompt_gives_one_token(make_rig: MakeRig) -> None:
    """One token less than the context is a prompt that works."""
    rig = make_rig(context_tokens=16)
    reply = rig.session.generate("a" * 15, ignore_eos=True)
    assert (len(reply.tokens), reply.finish_reason) == (1, FinishReason.LENGTH)


@pytest.mark.parametrize(("prompt", "wrong"), [([1, 27, 3], 27), ([26, -1, 99], -1), ([2**40], 2**40)])
def test_token_id_out_of_range_is_named(make_rig: MakeRig, prompt: list[int], wrong: int) -> None:
    """The first id the model does not have stands in the message."""
    refuse(make_rig(), f"token id {wrong}, expected 0 to 26", prompt)


@pytest.mark.parametrize("prompt", [["ab", "c"], [1, "b"], [1, {"role": "user", "content": "a"}], [1.5], {"role": "u"}])
def test_mixed_prompt_is_refused(make_rig: MakeRig, prompt: Any) -> None:
    """A list is all ids or all messages."""
    refuse(make_rig(), "neither a text nor all token ids", prompt)


def test_every_form_of_a_prompt_says_the_same(make_rig: MakeRig) -> None:
    """Text, ids, numpy ids and chat messages meet in the same tokens."""
    rig = make_rig()
    asked = {"max_new_tokens": 6, "ignore_eos": True}
    text = rig.session.generate("abc", **asked).tokens
    assert rig.session.generate([0, 1, 2], **asked).tokens == text
    assert rig.session.generate(np.array([0, 1, 2]), **asked).tokens == text
    chat = rig.session.generate("abc", chat=True, **asked).tokens
    assert rig.session.generate([{"role": "user", "content": "abc"}], **asked).tokens == chat
    assert rig.session.generate("uabcza", **asked).tokens == chat


def test_chat_without_a_template_is_refused(make_rig: MakeRig, fake_text: ModuleType) -> None:
    """A base model has none, and the message says what to do instead."""
    refuse(make_rig(session={"tokenizer": fake_text.letters(chat_template=None)}), "no chat template", chat=True)


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        ({"three_level": True}, "three-level drafting needs a draft model and this bundle has none"),
        ({"three_level": True, "drafter": "self"}, "drafter is 'self', expected auto or model with three_level"),
        ({"drafter": "model"}, "no draft model"),
        ({"power_budget_w": 5.0}, "no meter was given to this session"),
        ({"mode": "bounded"}, "needs a calibration"),
        ({"mode": "fp8"}, "mode is 'fp8', expected one of exact, bounded, gated, fp16, int4"),
        ({"drafter": "eagle"}, "drafter is 'eagle'"),
        ({"rule": "magic"}, "rule is 'magic'"),
        ({"objective": "beauty"}, "objective is 'beauty'"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"stop": ("a", "")}, "no empty stop string"),
        ({"stop": ""}, "no empty stop string"),
        ({"tempreature": 1.0}, "there is no setting 'tempreature'"),
    ],
)
def test_settings_that_cannot_be_met_are_refused(make_rig: MakeRig, asked: dict[str, Any], match: str) -> None:
    """One sentence, before any pass."""
    refuse(make_rig(), match, **asked)


def test_overrides_beat_the_config(make_rig: MakeRig) -> None:
    """Fields of the configuration and of its parts are given by their plain names; the rest stays."""
    config = GenerationConfig(max_new_tokens=5, ignore_eos=True, sampling=SamplingConfig(temperature=2.0, seed=3))
    rig = make_rig()
    assert len(rig.session.generate("ab", config).tokens) == 5
    reply = rig.session.generate("ab", config, max_new_tokens=7, temperature=0.0, mode="fp16")
    assert list(reply.tokens) == rig.expected("ab", 7)
    assert (reply.mode, reply.stats.seed) == (Mode.FP16, 3)


@pytest.mark.parametrize("mode", list(Mode))
def test_modes_given_by_name_are_the_modes(
    make_rig: MakeRig, calibration: Callable[..., Calibration], mode: Mode
) -> None:
    """A plain text is as good as the member: the same passes, the same tokens."""
    replies = []
    for asked in (mode, str(mode.value)):
        rig = make_rig("sometimes", session={"calibration": calibration()}, accepts_int4=True)
        reply = rig.session.generate("abab", mode=asked, max_new_tokens=12, ignore_eos=True)
        replies.append((reply.tokens, reply.mode, [event.source for event in reply.events], rig.target.passes))
    assert replies[0] == replies[1]


def test_new_stream_ends_the_old_one(make_rig: MakeRig) -> None:
    """A stream left half-read is cancelled by the next; both replies are whole and neither disturbs the other."""
    rig = make_rig("sometimes")
    old = rig.session.stream("abc", draft_length=4, ignore_eos=True)
    taken = [next(old).token for _ in range(3)]
    new = rig.session.stream("ab", draft_length=4, ignore_eos=True, max_new_tokens=9)
    assert (list(old.reply.tokens), old.reply.finish_reason) == (taken, FinishReason.CANCELLED)
    assert [event.token for event in new] == rig.expected("ab", 9)
    assert list(old) == []


def test_generating_inside_a_loop_ends_the_loop(make_rig: MakeRig) -> None:
    """A generation begun while another is being read ends that other one cleanly."""
    rig = make_rig()
    tokens = []
    for event in rig.session.stream("abc", ignore_eos=True):
        tokens.append(event.token)
        rig.session.generate("b", max_new_tokens=2)
    assert tokens == rig.expected("abc", 1)


def test_refused_prompt_leaves_the_session_usable(make_rig: MakeRig) -> None:
    """After an error the next prompt works."""
    rig = make_rig()
    with pytest.raises(ConfigError):
        rig.session.generate("")
    assert list(rig.session.generate("ab", max_new_tokens=5, ignore_eos=True).tokens) == rig.expected("ab", 5)


def test_engine_error_leaves_the_session_usable(make_rig: MakeRig) -> None:
    """A failed pass is no reason to load the pair again: the next generation trusts no entry it cannot."""
    rig = make_rig("always")

    def fail(asked: Any) -> None:
        if asked.position > 8:
            raise EngineError("out of memory")

    rig.target.before_pass = fail
    with pytest.raises(EngineError, match="out of memory"):
        rig.session.generate("ab", draft_length=4, ignore_eos=True)
    rig.target.before_pass = lambda _: None
    assert list(rig.session.generate("ab", max_new_tokens=20, ignore_eos=True).tokens) == rig.expected("ab", 20)


def test_close_frees_both_models_and_may_be_repeated(make_rig: MakeRig) -> None:
    """Leaving the block ends a running generation and closes everything; a closed session says so."""
    rig = make_rig(draft="always")
    with rig.session as session:
        running = session.stream("ab", ignore_eos=True)
        next(running)
    session.close()
    assert rig.target.closed
    assert rig.draft.closed
    assert running.reply.finish_reason is FinishReason.CANCELLED
    with pytest.raises(EngineError, match="closed"):
        session.generate("ab")


def test_fallbacks_of_engine_and_controller_are_told(make_rig: MakeRig) -> None:
    """What did not run as asked stands in the reply's statistics."""
    rig = make_rig(fallbacks=("no fused INT4 kernel on this device",))
    notes = rig.session.generate("ab", max_new_tokens=3).stats.fallbacks
    assert notes[0] == "no fused INT4 kernel on this device"
    assert any("no calibration" in note for note in notes[1:])


def test_what_rounds_taught_is_kept(make_rig: MakeRig) -> None:
    """A plain step was timed in the first generation: the second need not begin with one."""
    rig = make_rig("always")
    reasons = []
    for prompt in ("ab", "cd"):
        generation = rig.session.stream(prompt, max_new_tokens=40, ignore_eos=True, theta_high_bits=20.0)
        assert len(list(generation)) == 40
        reasons.append([record.stop_reason for record in generation.rounds])
    assert reasons[0][0] == "sample"
    assert reasons[1][0] != "sample"


@pytest.mark.parametrize(
    ("mode", "drafter"), [("fp16", "none"), ("int4", "none"), ("gated", "none"), ("exact", "self")]
)
def test_reply_names_who_drafted(make_rig: MakeRig, mode: str, drafter: str) -> None:
    """``auto`` is resolved, and modes that draft nothing say none."""
    rig = make_rig(accepts_int4=True)
    stats = rig.session.generate("ab", mode=mode, max_new_tokens=3).stats
    assert (stats.drafter, stats.engine) == (drafter, "fake")
    if mode == "exact":
        assert rig.session.generate("ab", draft_length=0, max_new_tokens=3).stats.drafter == "none"


@pytest.mark.parametrize("tokens", [[], [1] * 65, [1, 27]])
def test_fp16_logits_check_their_tokens(make_rig: MakeRig, tokens: list[int]) -> None:
    """The same sentences as for a prompt."""
    with pytest.raises(ConfigError, match="the prompt"):
        make_rig().session.fp16_logits(tokens)
