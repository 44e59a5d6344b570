"""The controller's settings: which are refused, which take others along, and what is said of those that are missing."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edgeprec.calibration import Calibration
from edgeprec.config import ControllerConfig, DrafterKind, Mode
from edgeprec.errors import ConfigError
from edgeprec.gears import Gear

rounds = SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("controller_rounds.py"))))
make_controller, GRID = rounds.make_controller, rounds.GRID


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
        make_controller(mode, **changes)


def test_bounded_refuses_a_draft_model_that_was_not_calibrated() -> None:
    """The INT4 variant's calibration says nothing of a draft model."""
    calibration = Calibration(
        int4=GRID, theta_low_bits=0.1, theta_high_bits=1.0, layer_order=(0, 1, 2, 3), sensitivity=(4.0, 3.0, 2.0, 1.0)
    )
    with pytest.raises(ConfigError, match="model"):
        make_controller(Mode.BOUNDED, drafter=DrafterKind.MODEL, draft_layers=2, calibration=calibration)


def test_missing_calibration_is_said() -> None:
    """Default thresholds are named as such; thresholds set by hand need no note."""
    assert any("no calibration" in note for note in make_controller(calibration=None).fallbacks)
    config = ControllerConfig(theta_low_bits=0.3, theta_high_bits=1.0)
    assert make_controller(calibration=None, config=config).fallbacks == ()
    assert make_controller().fallbacks == ()


@pytest.mark.parametrize(
    ("low", "high", "band"),
    [(None, None, (0.25, 3.0)), (None, 0.1, (0.1, 0.1)), (5.0, None, (5.0, 5.0)), (1.0, 2.0, (1.0, 2.0))],
)
def test_thresholds_set_by_hand_move_the_other_one(low: float | None, high: float | None, band: Any) -> None:
    """One threshold given past the calibrated other takes it along instead of failing."""
    controller = make_controller(
        Mode.GATED, config=ControllerConfig(theta_low_bits=low, theta_high_bits=high, window=1)
    )
    controller.observe_prefill(band[0] - 0.01)
    assert controller.gear is Gear.LOW
    controller.observe_prefill(band[0])
    assert controller.gear is Gear.HIGH
