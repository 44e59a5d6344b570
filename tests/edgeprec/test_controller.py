"""The controller in mode exact: what it decides, and that it decides by its observations alone."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, DraftRule, Mode, Objective
from edgeprec.controller import Verification
from edgeprec.errors import ConfigError
from edgeprec.gears import Gear
from edgeprec.stop_rules import StopReason

rounds = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("controller_rounds.py"))))
make_controller, run_round, warmed, LAYERS = rounds.make_controller, rounds.run_round, rounds.warmed, rounds.LAYERS


def test_exact_times_plain_steps_and_then_drafts() -> None:
    """The first two rounds are plain FP16 steps, then INT4 drafts."""
    controller = make_controller()
    decisions = [run_round(controller)[0] for _ in range(4)]
    assert [decision.verify_now for decision in decisions] == [True, True, False, False]
    assert decisions[0].reason is StopReason.SAMPLE
    assert decisions[2].draft_plan is not None
    assert decisions[2].draft_plan.gates == (True,) * (LAYERS + 1)


def test_certain_text_is_drafted_to_the_largest_cap() -> None:
    """Where every token is accepted the cap grows to the configured limit."""
    controller = warmed(make_controller(), 40)
    assert max(run_round(controller)[1] for _ in range(3)) == 8


def test_high_gear_verifies_now_and_drafts_nothing() -> None:
    """In exact, entropy above theta_high means plain steps until it is below."""
    controller = warmed(make_controller())
    for _ in range(6):
        run_round(controller, entropy_bits=6.0)
    decision, _, _ = run_round(controller, entropy_bits=6.0)
    assert (decision.gear, decision.draft_cap, decision.reason) == (Gear.HIGH, 0, StopReason.HIGH_GEAR)
    for _ in range(3):
        run_round(controller, entropy_bits=1.0)
    decision, drafted, _ = run_round(controller, entropy_bits=1.0)
    assert decision.gear is Gear.HIGH, "in the band the gear stays"
    assert drafted > 0, "but below theta_high drafting goes on"


def test_drafting_stops_when_the_drafts_entropy_rises() -> None:
    """The draft's own entropy counts while drafting."""
    controller = warmed(make_controller(), 40)
    _, drafted, stop = run_round(controller, draft_bits=9.5)
    assert (drafted, stop) in [(1, StopReason.ENTROPY), (1, StopReason.SURVIVAL)]


def test_stop_reasons_are_an_or() -> None:
    """Entropy below theta_high but hopeless survival also ends a draft."""
    controller = warmed(make_controller(config=ControllerConfig(theta_high_bits=32.0)), 40)
    _, drafted, stop = run_round(controller, draft_bits=6.0, margin=0.1)
    assert (drafted, stop) == (1, StopReason.SURVIVAL)


def test_a_rejection_rewinds_the_window() -> None:
    """After a rejected draft the window holds FP16's entropies of emitted tokens only."""
    controller = make_controller()
    warmed(controller, 4, entropy_bits=1.0)
    run_round(controller, entropy_bits=1.0, draft_bits=2.9, agreeing=0)
    assert controller.smoothed_bits == pytest.approx(1.0)


@pytest.mark.parametrize("length", [1, 2, 5, 15])
def test_fixed_length_switches_every_other_stop_off(length: int) -> None:
    """--draft-length K drafts K tokens whatever entropy, gear, guard or costs say."""
    controller = make_controller(drafting=DraftingConfig(draft_length=length))
    for _ in range(30):
        decision, drafted, stop = run_round(controller, entropy_bits=7.0, margin=0.0, agreeing=0)
        assert (decision.draft_cap, drafted, stop) == (length, length, StopReason.CAP)
    assert controller.fallbacks == ()


def test_fixed_length_zero_is_plain_decoding() -> None:
    """K = 0 drafts nothing."""
    decision, drafted, _ = run_round(make_controller(drafting=DraftingConfig(draft_length=0)))
    assert (decision.verify_now, drafted, decision.reason) == (True, 0, StopReason.NONE)


@pytest.mark.parametrize("length", [None, 5])
@pytest.mark.parametrize("room", [0, 1, 2])
def test_room_limits_every_draft(length: int | None, room: int) -> None:
    """Rows, context and token limit hold in every mode of drafting, and are named as the reason."""
    controller = warmed(make_controller(drafting=DraftingConfig(draft_length=length)), 20)
    decision, drafted, stop = run_round(controller, room=room)
    assert decision.draft_cap == drafted == room
    assert (stop or decision.reason) is StopReason.BUFFER


@pytest.mark.parametrize("rule", list(DraftRule))
def test_rules_differ_in_where_they_stop(rule: DraftRule) -> None:
    """At 2 bits svip and adaedl stop after one token; fixed goes to the cap, and no rule but entropy uses the gear."""
    controller = warmed(make_controller(drafting=DraftingConfig(rule=rule)), 60)
    for _ in range(6):
        run_round(controller, entropy_bits=2.0)
    decision, drafted, stop = run_round(controller, entropy_bits=2.0)
    expected = {
        DraftRule.SVIP: (1, StopReason.RULE),
        DraftRule.ADAEDL: (None, None),
        DraftRule.FIXED: (decision.draft_cap, StopReason.CAP),
        DraftRule.ENTROPY: (None, None),
    }[rule]
    if expected != (None, None):
        assert (drafted, stop) == expected


def test_speculation_that_fails_switches_itself_off_and_says_so() -> None:
    """When nothing is ever accepted rounds become plain, but for rare trials, and the reply tells."""
    controller = make_controller()
    drafted = [run_round(controller, agreeing=0)[1] for _ in range(500)]
    assert sum(drafted) < 30
    assert 1 <= sum(drafted[250:]) <= 14
    assert any("switched itself off" in note for note in controller.fallbacks)


def test_what_was_learned_carries_over() -> None:
    """A second sequence neither times plain steps again nor feels its way to the cap; tables and costs are kept."""
    first = warmed(make_controller(), 60)
    second = make_controller(learned=first.learned)
    decision, drafted, _ = run_round(second)
    assert decision.reason is not StopReason.SAMPLE
    assert drafted > 2
    assert second.learned.table.mean_rate == pytest.approx(first.learned.table.mean_rate, abs=0.01)


@pytest.mark.parametrize("kind", [DrafterKind.SELF, DrafterKind.MODEL, DrafterKind.NGRAM])
def test_plan_of_each_drafter(kind: DrafterKind) -> None:
    """The target's INT4 variant, the draft model's INT4 plan of its own depth, and none for a lookup."""
    controller = make_controller(drafter=kind, draft_layers=2 if kind is DrafterKind.MODEL else None)
    plan = controller.begin_round(room_tokens=5).draft_plan
    gates = None if plan is None else plan.gates
    assert (
        gates
        == {
            DrafterKind.SELF: (True,) * 5,
            DrafterKind.MODEL: (True,) * 3,
            DrafterKind.NGRAM: None,
        }[kind]
    )


def test_a_lookup_drafts_without_entropy() -> None:
    """Tokens without logits are drafted to the cap even while the target is uncertain; none at all is a plain round."""
    controller = make_controller(drafter=DrafterKind.NGRAM)
    for _ in range(30):
        decision = controller.begin_round(room_tokens=15)
        stop, drafted = None, 0
        while decision.draft_cap and stop is None:
            stop = controller.observe_draft(None, None).stop
            drafted += 1
        controller.observe_verify(
            Verification(
                accepted=drafted,
                entropy_bits=[5.0] * (drafted + 1),
                rows=drafted + 1,
                draft_ns=1_000 * drafted,
                verify_ns=10_000_000,
            )
        )
    assert drafted > 4
    decision = controller.begin_round(room_tokens=15)
    assert decision.draft_cap > 4
    controller.observe_verify(
        Verification(accepted=0, entropy_bits=[5.0], rows=1, draft_ns=1_000, verify_ns=10_000_000)
    )


def test_middle_gears_draft_with_sensitive_layers_in_fp16() -> None:
    """Between LOW and HIGH the draft keeps the most sensitive layers in FP16."""
    config = ControllerConfig(middle_gears=1, hold_tokens=0, theta_low_bits=0.5, theta_high_bits=2.0)
    controller = make_controller(config=config)
    controller.observe_prefill(0.1)
    assert controller.gear is Gear.LOW
    run_round(controller, entropy_bits=4.0)
    decision = controller.begin_round(room_tokens=5)
    assert decision.gear is Gear.MIDDLE
    assert decision.draft_plan is not None
    assert decision.draft_plan.gates == (False, True, False, True, True)


@pytest.mark.parametrize("mode", [Mode.EXACT, Mode.BOUNDED])
@given(st.lists(st.tuples(st.floats(0, 8), st.floats(0, 8), st.floats(0, 9), st.integers(0, 8)), max_size=25))
def test_equal_observations_give_equal_decisions(mode: Mode, rounds: list[tuple[float, float, float, int]]) -> None:
    """The controller is a pure function of what it was told."""
    logs = []
    for _ in range(2):
        controller = make_controller(mode)
        log: list[Any] = []
        for entropy, draft, margin, agreeing in rounds:
            log.append(run_round(controller, entropy_bits=entropy, draft_bits=draft, margin=margin, agreeing=agreeing))
            log.append((controller.gear, controller.smoothed_bits, controller.learned, controller.fallbacks))
        logs.append(log)
    assert logs[0] == logs[1]


def test_energy_objective_drafts_less_where_drafting_is_hungry() -> None:
    """A draft step of 9 mJ against a pass of 10: speed drafts, energy does not."""
    speed = warmed(make_controller(), 60, energy=True)
    energy = warmed(make_controller(drafting=DraftingConfig(objective=Objective.ENERGY)), 60, energy=True)
    assert run_round(speed, energy=True)[1] > 4
    assert sum(run_round(energy, energy=True)[1] for _ in range(20)) <= 2
    assert all("energy" not in note for note in energy.fallbacks)


def test_energy_objective_without_a_sensor_says_so() -> None:
    """Nothing measured: the cap follows speed, and the reply says it."""
    controller = warmed(make_controller(drafting=DraftingConfig(objective=Objective.ENERGY)), 30)
    assert run_round(controller)[1] > 4
    assert any("nothing measured the energy" in note for note in controller.fallbacks)


def test_observations_outside_a_round_are_refused() -> None:
    """A token without a decision is a mistake of the caller."""
    controller = make_controller()
    with pytest.raises(ConfigError, match="begin_round"):
        controller.observe_draft(0.1, 1.0)
    run_round(controller)
    with pytest.raises(ConfigError, match="begin_round"):
        controller.observe_token(0.1)
