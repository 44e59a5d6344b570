"""The controller, mode by mode: what it decides, and that it decides by its observations alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.calibration import AgreementGrid, Calibration
from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, DraftRule, Mode, Objective
from edgeprec.controller import Controller, Decision, Verification
from edgeprec.errors import ConfigError
from edgeprec.gears import Gear
from edgeprec.governor import PowerBias
from edgeprec.stop_rules import StopReason

_LAYERS = 4
_BY_ENTROPY = (0.999, 0.995, 0.985, 0.95, 0.85, 0.6, 0.3, 0.1)
_GRID = AgreementGrid((250,) * 32, tuple(int(250 * rate) for rate in _BY_ENTROPY for _ in range(4)))
_CALIBRATION = Calibration(
    int4=_GRID,
    draft=_GRID,
    theta_low_bits=0.25,
    theta_high_bits=3.0,
    layer_order=(2, 0, 3, 1),
    sensitivity=(0.3, 0.1, 0.4, 0.2),
)


def _controller(mode: Mode = Mode.EXACT, **changes: Any) -> Controller:
    settings: dict[str, Any] = {
        "config": ControllerConfig(),
        "drafting": DraftingConfig(),
        "calibration": _CALIBRATION,
        "drafter": DrafterKind.SELF,
        "num_layers": _LAYERS,
    }
    return Controller(mode=mode, **{**settings, **changes})


def _round(
    controller: Controller,
    *,
    entropy_bits: float = 0.05,
    draft_bits: float | None = None,
    margin: float = 5.0,
    agreeing: int = 99,
    room: int = 15,
    bias: PowerBias | None = None,
    energy: bool = False,
) -> tuple[Decision, int, StopReason | None]:
    """Run one verified round: draft steps of 3 ms and 9 mJ, passes of 10 ms and 10 mJ; the first tokens agree."""
    decision = controller.begin_round(room_tokens=room, bias=bias or PowerBias())
    drafted, stop = 0, None
    while decision.draft_cap and stop is None:
        stop = controller.observe_draft(entropy_bits if draft_bits is None else draft_bits, margin).stop
        drafted += 1
    accepted = min(agreeing, drafted)
    controller.observe_verify(
        Verification(
            accepted=accepted,
            entropy_bits=[entropy_bits] * (accepted + 1),
            rows=drafted + 1,
            draft_ns=3_000_000 * drafted,
            verify_ns=10_000_000 + 300_000 * drafted,
            draft_mj=9.0 * drafted if energy else None,
            verify_mj=10.0 if energy else None,
        )
    )
    return decision, drafted, stop


def _warm(controller: Controller, rounds: int = 8, **changes: Any) -> Controller:
    for _ in range(rounds):
        _round(controller, **changes)
    return controller


def test_exact_times_plain_steps_and_then_drafts() -> None:
    """The first two rounds are plain FP16 steps, then INT4 drafts."""
    controller = _controller()
    decisions = [_round(controller)[0] for _ in range(4)]
    assert [decision.verify_now for decision in decisions] == [True, True, False, False]
    assert decisions[0].reason is StopReason.SAMPLE
    assert decisions[2].draft_plan is not None
    assert decisions[2].draft_plan.gates == (True,) * (_LAYERS + 1)


def test_certain_text_is_drafted_to_the_largest_cap() -> None:
    """Where every token is accepted the cap grows to the configured limit."""
    controller = _warm(_controller(), 40)
    assert max(_round(controller)[1] for _ in range(3)) == 8


def test_high_gear_verifies_now_and_drafts_nothing() -> None:
    """In exact, entropy above theta_high means plain steps until it is below."""
    controller = _warm(_controller())
    for _ in range(6):
        _round(controller, entropy_bits=6.0)
    decision, _, _ = _round(controller, entropy_bits=6.0)
    assert (decision.gear, decision.draft_cap, decision.reason) == (Gear.HIGH, 0, StopReason.HIGH_GEAR)
    for _ in range(3):
        _round(controller, entropy_bits=1.0)
    decision, drafted, _ = _round(controller, entropy_bits=1.0)
    assert decision.gear is Gear.HIGH, "in the band the gear stays"
    assert drafted > 0, "but below theta_high drafting goes on"


def test_drafting_stops_when_the_drafts_entropy_rises() -> None:
    """The draft's own entropy counts while drafting."""
    controller = _warm(_controller(), 40)
    _, drafted, stop = _round(controller, draft_bits=9.5)
    assert (drafted, stop) in [(1, StopReason.ENTROPY), (1, StopReason.SURVIVAL)]


def test_stop_reasons_are_an_or() -> None:
    """Entropy below theta_high but hopeless survival also ends a draft."""
    controller = _warm(_controller(config=ControllerConfig(theta_high_bits=32.0)), 40)
    _, drafted, stop = _round(controller, draft_bits=6.0, margin=0.1)
    assert (drafted, stop) == (1, StopReason.SURVIVAL)


def test_a_rejection_rewinds_the_window() -> None:
    """After a rejected draft the window holds FP16's entropies of emitted tokens only."""
    controller = _controller()
    _warm(controller, 4, entropy_bits=1.0)
    _round(controller, entropy_bits=1.0, draft_bits=2.9, agreeing=0)
    assert controller.smoothed_bits == pytest.approx(1.0)


@pytest.mark.parametrize("length", [1, 2, 5, 15])
def test_fixed_length_switches_every_other_stop_off(length: int) -> None:
    """--draft-length K drafts K tokens whatever entropy, gear, guard or costs say."""
    controller = _controller(drafting=DraftingConfig(draft_length=length))
    for _ in range(30):
        decision, drafted, stop = _round(controller, entropy_bits=7.0, margin=0.0, agreeing=0)
        assert (decision.draft_cap, drafted, stop) == (length, length, StopReason.CAP)
    assert controller.fallbacks == ()


def test_fixed_length_zero_is_plain_decoding() -> None:
    """K = 0 drafts nothing."""
    decision, drafted, _ = _round(_controller(drafting=DraftingConfig(draft_length=0)))
    assert (decision.verify_now, drafted, decision.reason) == (True, 0, StopReason.NONE)


@pytest.mark.parametrize("length", [None, 5])
@pytest.mark.parametrize("room", [0, 1, 2])
def test_room_limits_every_draft(length: int | None, room: int) -> None:
    """Rows, context and token limit hold in every mode of drafting, and are named as the reason."""
    controller = _warm(_controller(drafting=DraftingConfig(draft_length=length)), 20)
    decision, drafted, stop = _round(controller, room=room)
    assert decision.draft_cap == drafted == room
    assert (stop or decision.reason) is StopReason.BUFFER


@pytest.mark.parametrize("rule", list(DraftRule))
def test_rules_differ_in_where_they_stop(rule: DraftRule) -> None:
    """At 2 bits svip and adaedl stop after one token; fixed goes to the cap, and no rule but entropy uses the gear."""
    controller = _warm(_controller(drafting=DraftingConfig(rule=rule)), 60)
    for _ in range(6):
        _round(controller, entropy_bits=2.0)
    decision, drafted, stop = _round(controller, entropy_bits=2.0)
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
    controller = _controller()
    drafted = [_round(controller, agreeing=0)[1] for _ in range(500)]
    assert sum(drafted) < 30
    assert 1 <= sum(drafted[250:]) <= 14
    assert any("switched itself off" in note for note in controller.fallbacks)


def test_what_was_learned_carries_over() -> None:
    """A second sequence neither times plain steps again nor feels its way to the cap; tables and costs are kept."""
    first = _warm(_controller(), 60)
    second = _controller(learned=first.learned)
    decision, drafted, _ = _round(second)
    assert decision.reason is not StopReason.SAMPLE
    assert drafted > 2
    assert second.learned.table.mean_rate == pytest.approx(first.learned.table.mean_rate, abs=0.01)


@pytest.mark.parametrize("kind", [DrafterKind.SELF, DrafterKind.MODEL, DrafterKind.NGRAM])
def test_plan_of_each_drafter(kind: DrafterKind) -> None:
    """The target's INT4 variant, the draft model's INT4 plan of its own depth, and none for a lookup."""
    controller = _controller(drafter=kind, draft_layers=2 if kind is DrafterKind.MODEL else None)
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
    controller = _controller(drafter=DrafterKind.NGRAM)
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
    controller = _controller(config=config)
    controller.observe_prefill(0.1)
    assert controller.gear is Gear.LOW
    _round(controller, entropy_bits=4.0)
    decision = controller.begin_round(room_tokens=5)
    assert decision.gear is Gear.MIDDLE
    assert decision.draft_plan is not None
    assert decision.draft_plan.gates == (False, True, False, True, True)


@pytest.mark.parametrize("mode", [Mode.FP16, Mode.EXACT, Mode.BOUNDED])
def test_without_a_drafter_fp16_decodes(mode: Mode) -> None:
    """Nobody to draft: plain steps, in every mode that verifies."""
    kind = DrafterKind.NONE if mode is not Mode.FP16 else DrafterKind.SELF
    if mode is Mode.BOUNDED:
        with pytest.raises(ConfigError, match="bounded"):
            _controller(mode, drafter=kind)
        return
    decision = _controller(mode, drafter=kind).begin_round(room_tokens=9)
    assert (decision.verify_now, decision.reason) == (True, StopReason.NONE)


def test_int4_mode_never_verifies() -> None:
    """Plain INT4 decoding, however uncertain."""
    controller = _controller(Mode.INT4)
    for _ in range(9):
        decision = controller.begin_round(room_tokens=1)
        assert not decision.is_verified
        assert decision.draft_plan is not None
        assert decision.draft_plan.int4_passes == _LAYERS + 1
        controller.observe_token(7.0)


def _gated_gears(entropies: Sequence[float], hold: int) -> list[Gear]:
    controller = _controller(Mode.GATED, config=ControllerConfig(window=1, hold_tokens=hold, middle_gears=1))
    gears = []
    for bits in entropies:
        gears.append(controller.begin_round(room_tokens=1).gear)
        controller.observe_token(bits)
    return gears


def test_gated_runs_the_gears_plan() -> None:
    """Certain tokens run in INT4, uncertain ones in FP16, unverified."""
    controller = _controller(Mode.GATED, config=ControllerConfig(window=1, hold_tokens=2))
    plans = []
    for bits in [0.1, 0.1, 0.1, 5.0, 5.0, 5.0, 0.1, 0.1, 0.1]:
        decision = controller.begin_round(room_tokens=1)
        assert decision.draft_plan is not None
        assert not decision.is_verified
        plans.append(decision.draft_plan.is_fp16)
        controller.observe_token(bits)
    assert plans == [True, True, False, False, True, True, True, False, False]


@given(st.lists(st.floats(0.0, 8.0), max_size=60), st.integers(0, 6))
def test_gated_gear_never_flaps(entropies: list[float], hold: int) -> None:
    """Two changes lie at least h tokens apart, and none happens inside the band."""
    gears = _gated_gears(entropies, hold)
    changes = [i for i in range(1, len(gears)) if gears[i] is not gears[i - 1]]
    assert all(later - earlier >= hold for earlier, later in pairwise(changes))
    assert all(not 0.25 <= entropies[i - 1] <= 3.0 for i in changes)


@pytest.mark.parametrize(
    ("mode", "changes", "names"),
    [
        (Mode.BOUNDED, {"calibration": None}, "self"),
        (Mode.BOUNDED, {"drafter": DrafterKind.NGRAM}, "ngram"),
        (
            Mode.EXACT,
            {"config": ControllerConfig(theta_low_bits=9.0, theta_high_bits=None), "num_layers": 5},
            "layer order",
        ),
    ],
)
def test_impossible_settings_are_refused(mode: Mode, changes: dict[str, Any], names: str) -> None:
    """bounded needs a calibration of its drafter; the layer order must be the model's."""
    with pytest.raises(ConfigError, match=names):
        _controller(mode, **changes)


def test_bounded_refuses_a_draft_model_that_was_not_calibrated() -> None:
    """The INT4 variant's calibration says nothing of a draft model."""
    calibration = Calibration(
        int4=_GRID, theta_low_bits=0.1, theta_high_bits=1.0, layer_order=(0, 1, 2, 3), sensitivity=(4.0, 3.0, 2.0, 1.0)
    )
    with pytest.raises(ConfigError, match="model"):
        _controller(Mode.BOUNDED, drafter=DrafterKind.MODEL, draft_layers=2, calibration=calibration)


def _bounded_round(controller: Controller, draft_bits: Sequence[float]) -> tuple[list[bool], StopReason | None]:
    decision = controller.begin_round(room_tokens=15)
    finals: list[bool] = []
    stop = None
    for bits in draft_bits[: decision.draft_cap]:
        verdict = controller.observe_draft(bits, 6.0)
        finals.append(verdict.is_final)
        stop = verdict.stop
        if stop is not None:
            break
    controller.observe_verify(
        Verification(
            accepted=len(finals),
            entropy_bits=[0.05] * (len(finals) + 1),
            rows=len(finals) + 1,
            draft_ns=1,
            verify_ns=1,
            agreed=[True] * len(finals),
        )
    )
    return finals, stop


def test_bounded_emits_safe_tokens_and_verifies_the_others() -> None:
    """A certain token is final; an uncertain one ends the round and is checked."""
    controller = _controller(Mode.BOUNDED, drafting=DraftingConfig(epsilon=0.01))
    finals, stop = _bounded_round(controller, [0.05, 0.05, 2.5])
    assert finals == [True, True, False]
    assert stop is StopReason.FLIP


def test_bounded_verifies_at_least_every_sixteen_tokens() -> None:
    """Fifteen final tokens and the pass's own: then the cache is repaired, however certain the text."""
    controller = _controller(Mode.BOUNDED, drafting=DraftingConfig(epsilon=0.05))
    for _ in range(5):
        finals, stop = _bounded_round(controller, [0.01] * 30)
        assert finals == [True] * 15
        assert stop is StopReason.CAP


@pytest.mark.parametrize("mode", [Mode.EXACT, Mode.BOUNDED])
@given(st.lists(st.tuples(st.floats(0, 8), st.floats(0, 8), st.floats(0, 9), st.integers(0, 8)), max_size=25))
def test_equal_observations_give_equal_decisions(mode: Mode, rounds: list[tuple[float, float, float, int]]) -> None:
    """The controller is a pure function of what it was told."""
    logs = []
    for _ in range(2):
        controller = _controller(mode)
        log: list[Any] = []
        for entropy, draft, margin, agreeing in rounds:
            log.append(_round(controller, entropy_bits=entropy, draft_bits=draft, margin=margin, agreeing=agreeing))
            log.append((controller.gear, controller.smoothed_bits, controller.learned, controller.fallbacks))
        logs.append(log)
    assert logs[0] == logs[1]


def test_power_bias_lowers_the_gear() -> None:
    """Under full bias a gated token runs in INT4 whatever its entropy; without, in FP16."""
    controller = _controller(Mode.GATED)
    controller.observe_prefill(6.0)
    free = controller.begin_round(room_tokens=1)
    controller.observe_token(6.0)
    biased = controller.begin_round(room_tokens=1, bias=PowerBias(strength=1.0))
    assert (free.gear, biased.gear) == (Gear.HIGH, Gear.LOW)
    assert biased.draft_plan is not None
    assert biased.draft_plan.int4_passes == _LAYERS + 1


def test_energy_objective_drafts_less_where_drafting_is_hungry() -> None:
    """A draft step of 9 mJ against a pass of 10: speed drafts, energy does not."""
    speed = _warm(_controller(), 60, energy=True)
    energy = _warm(_controller(drafting=DraftingConfig(objective=Objective.ENERGY)), 60, energy=True)
    assert _round(speed, energy=True)[1] > 4
    assert sum(_round(energy, energy=True)[1] for _ in range(20)) <= 2
    assert all("energy" not in note for note in energy.fallbacks)


def test_energy_objective_without_a_sensor_says_so() -> None:
    """Nothing measured: the cap follows speed, and the reply says it."""
    controller = _warm(_controller(drafting=DraftingConfig(objective=Objective.ENERGY)), 30)
    assert _round(controller)[1] > 4
    assert any("nothing measured the energy" in note for note in controller.fallbacks)


def test_missing_calibration_is_said() -> None:
    """Default thresholds are named as such; thresholds set by hand need no note."""
    assert any("no calibration" in note for note in _controller(calibration=None).fallbacks)
    config = ControllerConfig(theta_low_bits=0.3, theta_high_bits=1.0)
    assert _controller(calibration=None, config=config).fallbacks == ()
    assert _controller().fallbacks == ()


@pytest.mark.parametrize(
    ("low", "high", "band"),
    [(None, None, (0.25, 3.0)), (None, 0.1, (0.1, 0.1)), (5.0, None, (5.0, 5.0)), (1.0, 2.0, (1.0, 2.0))],
)
def test_thresholds_set_by_hand_move_the_other_one(low: float | None, high: float | None, band: Any) -> None:
    """One threshold given past the calibrated other takes it along instead of failing."""
    controller = _controller(Mode.GATED, config=ControllerConfig(theta_low_bits=low, theta_high_bits=high, window=1))
    controller.observe_prefill(band[0] - 0.01)
    assert controller.gear is Gear.LOW
    controller.observe_prefill(band[0])
    assert controller.gear is Gear.HIGH


def test_observations_outside_a_round_are_refused() -> None:
    """A token without a decision is a mistake of the caller."""
    controller = _controller()
    with pytest.raises(ConfigError, match="begin_round"):
        controller.observe_draft(0.1, 1.0)
    _round(controller)
    with pytest.raises(ConfigError, match="begin_round"):
        controller.observe_token(0.1)
