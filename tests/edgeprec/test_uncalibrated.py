"""A pair without a calibration: theta_high is learned from what FP16 accepts, not taken from a table of defaults."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeprec.config import ControllerConfig, Mode
from edgeprec.controller import Controller
from edgeprec.thresholds import MAX_ENTROPY_BITS

rounds = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("controller_rounds.py"))))
HIGH_BITS = 5.0


def controller(mode: Mode = Mode.EXACT, **config: float) -> Any:
    """Return a controller that knows nothing."""
    return rounds.make_controller(mode, calibration=None, config=ControllerConfig(**config))  # type: ignore[arg-type]


def run(made: Controller, *, accepts: bool) -> int:
    """Run 60 rounds on text of high entropy; return how many tokens were drafted."""
    asked: dict[str, Any] = {"entropy_bits": HIGH_BITS, "margin": 0.2, "agreeing": 99 if accepts else 0}
    return sum(rounds.run_round(made, **asked)[1] for _ in range(60))


def test_accepted_text_of_high_entropy_is_drafted() -> None:
    """A fixed threshold of a few bits would keep a drafter that is right at high entropy from ever drafting."""
    made = controller()
    assert made.band.theta_high_bits == MAX_ENTROPY_BITS
    assert run(made, accepts=True) > 100
    assert made.band.theta_high_bits > HIGH_BITS
    assert made.setting_notes == ("this bundle has no calibration: the entropy thresholds follow what FP16 accepts",)


def test_rejected_text_of_high_entropy_is_left_to_fp16() -> None:
    """What is never accepted ends in plain decoding."""
    made = controller()
    run(made, accepts=False)
    assert run(made, accepts=False) <= 6


@pytest.mark.parametrize(("mode", "config"), [(Mode.GATED, {}), (Mode.EXACT, {"theta_high_bits": 3.0})])
def test_a_threshold_that_was_set_stays(mode: Mode, config: dict[str, float]) -> None:
    """By hand, or for a mode whose text hangs on it."""
    made = controller(mode, **config)
    before = made.band.theta_high_bits
    assert before < MAX_ENTROPY_BITS
    if mode is Mode.EXACT:
        run(made, accepts=True)
    assert made.band.theta_high_bits == before
    assert str(before) in made.setting_notes[0]
