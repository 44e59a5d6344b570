"""The modes beside ``exact``: what runs, what is said of each token, and how often FP16 looks at the text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from edgeprec.calibration import Calibration
from edgeprec.gears import Gear
from edgeprec.runtime.reply import TokenSource

MakeRig = Callable[..., Any]
MakeCalibration = Callable[..., Calibration]
ASKED = {"max_new_tokens": 40, "ignore_eos": True}


def test_int4_runs_int4_after_the_prompt(make_rig: MakeRig) -> None:
    """Every layer of every step is INT4; the prompt is FP16; no token is verified."""
    rig = make_rig("never")
    reply = rig.session.generate("ab", mode="int4", **ASKED)
    assert [asked.is_fp16 for asked in rig.target.passes] == [True, *[False] * 39]
    assert [event.source for event in reply.events] == [TokenSource.TARGET, *[TokenSource.UNVERIFIED] * 39]
    assert [event.int4_layers for event in reply.events] == [0, *[3] * 39]
    assert list(reply.tokens) != rig.expected("ab", 40)
    assert reply.stats.int4_layer_share == 1.0
    assert (reply.stats.verify_rounds, reply.stats.acceptance_rate) == (0, None)


def test_gated_runs_the_plan_of_the_gear(make_rig: MakeRig, calibration: MakeCalibration) -> None:
    """Each token's gear is the plan that ran: LOW all INT4, HIGH all FP16, MIDDLE some of both."""
    rig = make_rig("sometimes", session={"calibration": calibration(low=1.0, high=1.5)}, accepts_int4=True)
    reply = rig.session.generate("ab", mode="gated", middle_gears=1, hold_tokens=0, window=1, **ASKED)
    layers = {Gear.LOW: {3}, Gear.MIDDLE: {1, 2}, Gear.HIGH: {0}}
    later = reply.events[1:]
    assert {event.gear for event in later} == {Gear.LOW, Gear.MIDDLE, Gear.HIGH}
    assert all(event.int4_layers in layers[event.gear] for event in later)
    assert [sum(asked.plan.gates[:-1]) for asked in rig.target.passes[1:]] == [event.int4_layers for event in later]
    assert {event.source for event in later} == {TokenSource.UNVERIFIED}


@pytest.mark.parametrize(("gated_layers", "gates"), [(1, (0, 0, 1, 0)), (2, (0, 1, 1, 0)), (3, (1, 1, 1, 0))])
def test_int4_runs_only_the_gated_layers(
    make_rig: MakeRig, calibration: MakeCalibration, gated_layers: int, gates: tuple[int, ...]
) -> None:
    """The least sensitive layers run in INT4, the others and the head in FP16; the tokens say how many."""
    rig = make_rig("never", session={"calibration": calibration()})
    reply = rig.session.generate("ab", mode="int4", gated_layers=gated_layers, **ASKED)
    assert {asked.plan.gates for asked in rig.target.passes[1:]} == {tuple(map(bool, gates))}
    assert {event.int4_layers for event in reply.events[1:]} == {gated_layers}


@pytest.mark.parametrize("hold", [1, 4, 8])
def test_gear_holds_between_changes(make_rig: MakeRig, calibration: MakeCalibration, hold: int) -> None:
    """At least ``hold_tokens`` tokens lie between two changes of gear."""
    rig = make_rig("always", session={"calibration": calibration(low=1.0, high=1.5)}, accepts_int4=True)
    reply = rig.session.generate("ab", mode="gated", hold_tokens=hold, window=1, **ASKED)
    gears = [event.gear for event in reply.events[1:]]
    changes = [index for index in range(1, len(gears)) if gears[index] != gears[index - 1]]
    assert changes
    assert all(later - earlier >= hold for earlier, later in pairwise(changes))


def test_gated_that_never_leaves_high_is_fp16(make_rig: MakeRig) -> None:
    """With a band nothing falls below, gated decoding is plain FP16."""
    rig = make_rig("never")
    reply = rig.session.generate("ab", mode="gated", theta_low_bits=0.0, theta_high_bits=0.0, **ASKED)
    assert list(reply.tokens) == rig.expected("ab", 40)
    assert reply.stats.int4_layer_share == 0.0


def test_bounded_emits_unverified_tokens_and_repairs_the_cache(make_rig: MakeRig, calibration: MakeCalibration) -> None:
    """Where flips are unlikely, FP16 looks at 16 tokens at once, and every one of its passes finds a clean cache."""
    rig = make_rig("always", session={"calibration": calibration(1000)})
    reply = rig.session.generate("ab", mode="bounded", epsilon=0.5, **ASKED)
    assert list(reply.tokens) == rig.expected("ab", 40)
    assert {event.source for event in reply.events[1:]} >= {TokenSource.UNVERIFIED}
    fp16 = [asked for asked in rig.target.passes if asked.is_fp16]
    assert max(len(asked.tokens) for asked in fp16) == 16
    gaps = [b.position - a.position for a, b in pairwise(fp16)]
    assert max(gaps) <= 16


def test_bounded_tokens_stand_though_fp16_disagrees(make_rig: MakeRig, calibration: MakeCalibration) -> None:
    """An emitted token is final: the text keeps INT4's choice, and FP16's verdict on it is counted."""
    rig = make_rig("never", session={"calibration": calibration(1000)})
    generation = rig.session.stream("ab", mode="bounded", epsilon=0.9, max_new_tokens=12, ignore_eos=True)
    events = list(generation)
    finals = [event for event in events if event.source is TokenSource.UNVERIFIED]
    assert finals
    assert [event.token for event in events] != rig.expected("ab", 12)
    assert generation.reply.stats.accepted == 0
    text = [*rig.session.tokenizer.encode("ab"), *generation.reply.tokens]
    assert [slot.is_int4 for slot in rig.target.slots[: len(text) - 1]] == [False] * (len(text) - 1)


def test_bounded_with_a_small_epsilon_is_exact(make_rig: MakeRig, calibration: MakeCalibration) -> None:
    """Where no token is safe enough, every token is verified and the text is FP16's."""
    rig = make_rig("sometimes", session={"calibration": calibration(700)})
    reply = rig.session.generate("ab", mode="bounded", epsilon=0.0001, **ASKED)
    assert list(reply.tokens) == rig.expected("ab", 40)
    assert TokenSource.UNVERIFIED not in {event.source for event in reply.events}


def test_exact_in_high_gear_drafts_nothing(make_rig: MakeRig, calibration: MakeCalibration) -> None:
    """Above theta_high FP16 decodes itself."""
    rig = make_rig("always", session={"calibration": calibration()})
    reply = rig.session.generate("ab", theta_low_bits=0.0, theta_high_bits=0.0, **ASKED)
    assert (reply.stats.drafted, reply.stats.rounds) == (0, 39)
    assert {event.gear for event in reply.events} == {Gear.HIGH}


@pytest.mark.parametrize("width", [8, 27, 40])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_draft_vocabulary_may_be_narrower_or_wider(make_rig: MakeRig, width: int, temperature: float) -> None:
    """Padding is never drafted though its logits are the largest, and ids the draft lacks end its drafting."""
    rig = make_rig(draft="always", draft_engine={"width": width}, session={"shared_tokens": min(width, 25)})
    generation = rig.session.stream("ab", draft_length=4, temperature=temperature, seed=2, **ASKED)
    tokens = [event.token for event in generation]
    plain = rig.session.generate("ab", mode="fp16", temperature=temperature, seed=2, **ASKED)
    assert tokens == list(plain.tokens)
    drafted = [token for record in generation.rounds for token in record.drafted]
    assert drafted
    assert max(drafted) < min(width, 25)


def test_narrower_draft_without_a_count_is_safe(make_rig: MakeRig) -> None:
    """Where nobody said how many ids are shared, those both models have are."""
    rig = make_rig(draft="always", draft_engine={"width": 8})
    reply = rig.session.generate("ab", draft_length=4, **ASKED)
    assert list(reply.tokens) == rig.expected("ab", 40)
