"""The controller in the modes besides exact: plain, gated and bounded decoding."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeprec.config import ControllerConfig, DrafterKind, DraftingConfig, Mode
from edgeprec.controller import Controller, Verification
from edgeprec.errors import ConfigError
from edgeprec.gears import Gear
from edgeprec.governor import PowerBias
from edgeprec.stop_rules import StopReason

rounds = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("controller_rounds.py"))))
make_controller, LAYERS = rounds.make_controller, rounds.LAYERS


@pytest.mark.parametrize("mode", [Mode.FP16, Mode.EXACT, Mode.BOUNDED])
def test_without_a_drafter_fp16_decodes(mode: Mode) -> None:
    """Nobody to draft: plain steps, in every mode that verifies."""
    kind = DrafterKind.NONE if mode is not Mode.FP16 else DrafterKind.SELF
    if mode is Mode.BOUNDED:
        with pytest.raises(ConfigError, match="bounded"):
            make_controller(mode, drafter=kind)
        return
    decision = make_controller(mode, drafter=kind).begin_round(room_tokens=9)
    assert (decision.verify_now, decision.reason) == (True, StopReason.NONE)


def test_int4_mode_never_verifies() -> None:
    """Plain INT4 decoding, however uncertain."""
    controller = make_controller(Mode.INT4)
    for _ in range(9):
        decision = controller.begin_round(room_tokens=1)
        assert not decision.is_verified
        assert decision.draft_plan is not None
        assert decision.draft_plan.int4_passes == LAYERS + 1
        controller.observe_token(7.0)


def _gated_gears(entropies: Sequence[float], hold: int) -> list[Gear]:
    controller = make_controller(Mode.GATED, config=ControllerConfig(window=1, hold_tokens=hold, middle_gears=1))
    gears = []
    for bits in entropies:
        gears.append(controller.begin_round(room_tokens=1).gear)
        controller.observe_token(bits)
    return gears


def test_gated_runs_the_gears_plan() -> None:
    """Certain tokens run in INT4, uncertain ones in FP16, unverified."""
    controller = make_controller(Mode.GATED, config=ControllerConfig(window=1, hold_tokens=2))
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
    controller = make_controller(Mode.BOUNDED, drafting=DraftingConfig(epsilon=0.01))
    finals, stop = _bounded_round(controller, [0.05, 0.05, 2.5])
    assert finals == [True, True, False]
    assert stop is StopReason.FLIP


def test_bounded_verifies_at_least_every_sixteen_tokens() -> None:
    """Fifteen final tokens and the pass's own: then the cache is repaired, however certain the text."""
    controller = make_controller(Mode.BOUNDED, drafting=DraftingConfig(epsilon=0.05))
    for _ in range(5):
        finals, stop = _bounded_round(controller, [0.01] * 30)
        assert finals == [True] * 15
        assert stop is StopReason.CAP


def test_power_bias_lowers_the_gear() -> None:
    """Under full bias a gated token runs in INT4 whatever its entropy; without, in FP16."""
    controller = make_controller(Mode.GATED)
    controller.observe_prefill(6.0)
    free = controller.begin_round(room_tokens=1)
    controller.observe_token(6.0)
    biased = controller.begin_round(room_tokens=1, bias=PowerBias(strength=1.0))
    assert (free.gear, biased.gear) == (Gear.HIGH, Gear.LOW)
    assert biased.draft_plan is not None
    assert biased.draft_plan.int4_passes == LAYERS + 1
